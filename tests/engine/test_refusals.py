# SPDX-License-Identifier: Apache-2.0
"""What this plugin does not support is refused at start-up: one line says why and what to do.

One way of asking for each row of support.REFUSALS, through vLLM's own argument parser; the table
is checked to be complete. Two of them also through `vllm serve`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.config import ParallelConfig

from tests.engine.commands import vllm
from tests.helpers.core_version import core_is_before
from vllm_ascend_mrv2 import support

pytestmark = pytest.mark.xdist_group("refusals")

PREFIX = "vllm-ascend-mrv2 refuses to start."


@dataclass(frozen=True)
class Ask:
    """One way to ask for a refused feature: arguments, environment, or a model's configuration.

    named: what the refusal must name. `refused_by_core`: vLLM itself refuses before the platform is
    asked, and `named` is in its message. since: the first core that has the option; older ones do
    not know it.
    """

    feature: str
    named: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None
    refused_by_core: bool = False
    since: str = ""


MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "decoder_sparse_step": 1,
}
DEEPSEEK = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "kv_lora_rank": 64,
    "q_lora_rank": None,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "n_routed_experts": 4,
    "first_k_dense_replace": 0,
}
WHISPER = {"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper"}
CONNECTOR = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}
EC_CONNECTOR = {"ec_connector": "ECExampleConnector", "ec_role": "ec_both"}
NGRAM = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}


def speculation(**config: Any) -> tuple[str, str]:
    return "--speculative-config", json.dumps(config)


ASKS = (
    Ask(
        "Model Runner V1",
        "VLLM_USE_V2_MODEL_RUNNER=0",
        environment={"VLLM_USE_V2_MODEL_RUNNER": "0"},
    ),
    Ask("TASK_QUEUE_ENABLE=2", "TASK_QUEUE_ENABLE=2", environment={"TASK_QUEUE_ENABLE": "2"}),
    Ask(
        "speculative decoding by several MTP modules",
        "several modules",
        speculation(method="mtp", num_speculative_tokens=2),
        config={
            "architectures": ["MiMoForCausalLM"],
            "model_type": "qwen2",
            "num_nextn_predict_layers": 2,
        },
    ),
    Ask(
        "more drafts than a step has room for",
        "96 drafts in steps of 96 tokens",
        (
            *speculation(**NGRAM | {"num_speculative_tokens": 96}),
            *("--max-num-batched-tokens", "96", "--max-num-seqs", "4"),
        ),
    ),
    Ask(
        "speculative decoding by DFlash and DSpark",
        "dflash",
        speculation(method="dflash", num_speculative_tokens=2, model="MODEL"),
        config={"architectures": ["DFlashDraftModel"], "dflash_config": {"mask_token_id": 3}},
    ),
    Ask(
        "adaptive verification of drafts",
        "daptive verification",
        speculation(**NGRAM, enable_adaptive_verification=True),
    ),
    Ask(
        "speculative decoding with pipeline or data parallelism",
        "pipeline parallelism",
        (*speculation(**NGRAM), "--pipeline-parallel-size", "2"),
    ),
    Ask(
        "speculative decoding with pipeline or data parallelism",
        "data parallelism",
        (*speculation(**NGRAM), "--data-parallel-size", "2"),
    ),
    Ask(
        "masked lengths with a draft model",
        "with draft_model",
        speculation(method="draft_model", num_speculative_tokens=2, model="MODEL"),
        environment={"VLLM_ASCEND_MRV2_SPEC_LENGTHS": "masked"},
    ),
    Ask(
        "masked lengths where no length would be masked",
        "without speculative decoding",
        environment={"VLLM_ASCEND_MRV2_SPEC_LENGTHS": "masked"},
    ),
    Ask(
        "masked lengths where no length would be masked",
        "SEQ_LENS=device",
        speculation(**NGRAM),
        environment={
            "VLLM_ASCEND_MRV2_SPEC_LENGTHS": "masked",
            "VLLM_ASCEND_MRV2_SEQ_LENS": "device",
        },
    ),
    Ask(
        "extraction of hidden states",
        "extract_hidden_states",
        speculation(method="extract_hidden_states", num_speculative_tokens=1),
    ),
    Ask(
        "speculative decoding by Medusa, MLP speculator, suffixes and custom classes",
        "custom_class",
        speculation(method="custom_class", model="some.Proposer", num_speculative_tokens=2),
    ),
    Ask(
        "a number of drafts that changes with the batch",
        "num_speculative_tokens_per_batch_size",
        speculation(**NGRAM, num_speculative_tokens_per_batch_size=[[1, 4, 2], [5, 999, 1]]),
    ),
    Ask(
        "LoRA with MoE or pooling models, several devices or speculative decoding",
        "LoRA adapters with a pooling model",
        ("--enable-lora", "--runner", "pooling"),
    ),
    Ask(
        "prompt embeddings and pooling models with several devices or speculative decoding",
        "pooling model",
        ("--runner", "pooling", "--tensor-parallel-size", "2"),
    ),
    Ask(
        "prompt embeddings and pooling models with several devices or speculative decoding",
        "prompt embeddings",
        ("--enable-prompt-embeds", "--pipeline-parallel-size", "2"),
    ),
    Ask(
        "decode context parallelism",
        "decode_context_parallel_size=2",
        ("--tensor-parallel-size", "4", "--decode-context-parallel-size", "2"),
    ),
    Ask(
        "prefill context parallelism",
        "prefill_context_parallel_size=2",
        ("--prefill-context-parallel-size", "2"),
    ),
    Ask("several machines", "data_parallel_backend=ray", ("--data-parallel-backend", "ray")),
    Ask(
        "Ray with data parallelism, and core's older Ray executor",
        "Ray",
        ("--distributed-executor-backend", "ray", "--data-parallel-size", "2"),
        refused_by_core=True,  # where Ray is not installed
    ),
    Ask(
        "all ranks in one process",
        "VLLM_ASCEND_MRV2_SINGLE_PROCESS=1",
        ("--tensor-parallel-size", "2"),
        environment={"VLLM_ASCEND_MRV2_SINGLE_PROCESS": "1"},
    ),
    Ask("external launcher", "launcher", ("--distributed-executor-backend", "external_launcher")),
    Ask(
        "several machines",
        "data_parallel_size_local=1",
        ("--data-parallel-size", "2", "--data-parallel-size-local", "1"),
    ),
    Ask(
        "several machines",
        "external or hybrid load balancer",
        ("--data-parallel-size", "2", "--data-parallel-external-lb", "--data-parallel-rank", "0"),
        config=MOE,
    ),
    Ask(
        "expert load balancing",
        "load balancing",
        ("--enable-eplb", "--enable-expert-parallel", "--tensor-parallel-size", "2"),
        config=MOE,
        refused_by_core=True,
    ),
    Ask(
        "other exchanges between experts than collectives",
        "all2all_backend=deepep_low_latency",
        ("--enable-expert-parallel", "--all2all-backend", "deepep_low_latency"),
        config=MOE,
    ),
    Ask(
        "other attention backends",
        "attention backend FLASH_ATTN",
        ("--attention-backend", "FLASH_ATTN"),
    ),
    Ask("quantization", "quantization=fp8", ("--quantization", "fp8")),
    Ask("quantized KV cache", "kv_cache_dtype=fp8", ("--kv-cache-dtype", "fp8")),
    Ask("encoder and multimodal models", "encoder", config=WHISPER),
    Ask(
        "MLA, hybrid, attention-free and diffusion models",
        "latent attention",
        config=DEEPSEEK,
    ),
    Ask(
        "models that core runs through transformers",
        "Qwen3ForCausalLM by transformers' own code",
        ("--model-impl", "transformers"),
    ),
    Ask("dual batch overlap", "dual batch overlap", ("--enable-dbo",)),
    Ask("KV transfer", "KV connector", ("--kv-transfer-config", json.dumps(CONNECTOR))),
    Ask("KV offloading", "--kv-offloading-size", ("--kv-offloading-size", "1")),
    Ask("weight offloading", "--cpu-offload-gb", ("--cpu-offload-gb", "1")),
    Ask(
        "weight offloading",
        "--offload-group-size",
        ("--offload-group-size", "2", "--offload-num-in-group", "1"),
    ),
    Ask(
        "encoder-cache transfer",
        "encoder-cache",
        ("--ec-transfer-config", json.dumps(EC_CONNECTOR)),
    ),
    Ask("shared-memory tensor arena", "arena", ("--enable-shm-tensor-arena",), since="0.32"),
    Ask(
        "watermarking with speculative decoding",
        "watermarking with speculative decoding",
        (
            *("--watermark-config", json.dumps({"key": 3, "algorithm": "dual_key_gumbel"})),
            *speculation(
                method="mtp", num_speculative_tokens=1, draft_sample_method="probabilistic"
            ),
        ),
        config={
            "architectures": ["MiMoForCausalLM"],
            "model_type": "qwen2",
            "num_nextn_predict_layers": 1,
        },
    ),
    Ask("sleep mode", "Sleep mode", ("--enable-sleep-mode",), refused_by_core=True),
    Ask(
        "graphs",
        "cudagraph_mode=FULL",
        ("--compilation-config", json.dumps({"cudagraph_mode": "FULL"})),
    ),
    Ask(
        "graphs",
        "of its CUDA extension",
        ("--compilation-config", json.dumps({"cudagraph_mode": "PIECEWISE"})),
    ),
    Ask("compilation", "compilation mode", ("--compilation-config", json.dumps({"mode": 3}))),
)
# Asked for on a core that is not installed here: tests/unit/test_contract.py has those.
OTHER_CORES = {
    "speculative decoding on other cores than vLLM 0.32",
    "watermarking on other cores than vLLM 0.32",
}
NOT_ROWS = {"graphs", "compilation"}  # refused before core's defaults, by support.graph_requests


def test_every_row_of_the_support_table_is_asked_for() -> None:
    rows = {row.feature for row in support.REFUSALS} - OTHER_CORES
    assert {ask.feature for ask in ASKS} - NOT_ROWS == rows


@pytest.fixture
def model(tiny: Callable[[str, str], Path]) -> Path:
    return tiny("qwen3", "float32")


def model_with(config: Mapping[str, Any] | None, model: Path, folder: Path) -> Path:
    """`model`, or a folder with its configuration changed by `config` (there are no weights)."""
    if config is None:
        return model
    for path in model.iterdir():
        if path.name != "model.safetensors":
            (folder / path.name).write_bytes(path.read_bytes())
    changed = {**json.loads((model / "config.json").read_text()), **config}
    (folder / "config.json").write_text(json.dumps(changed))
    return folder


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: f"{ask.feature}: {ask.named}")
def test_it_is_refused_in_a_line_that_names_it(
    ask: Ask,
    engine_config: Callable[..., Any],
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in ask.environment.items():
        monkeypatch.setenv(name, value)
    folder = model_with(ask.config, model, tmp_path)
    # A drafter is the tiny model with this row's changes; what it drafts for has none of them.
    is_drafter = any("MODEL" in argument for argument in ask.arguments)
    asked = [argument.replace("MODEL", str(folder)) for argument in ask.arguments]
    serving = ("--model", str(model if is_drafter else folder))
    if ask.since and core_is_before(ask.since):
        engine_config(*serving)
        with pytest.raises(SystemExit):
            engine_config(*serving, *asked)
        return
    with pytest.raises(ValueError, match=r".") as caught:
        engine_config(*serving, *asked)
    message = str(caught.value)
    if ask.refused_by_core:
        assert ask.named in message
        return
    line = next(line for line in message.splitlines() if PREFIX in line)
    assert ask.named in line
    rows = [row for row in support.REFUSALS if row.feature == ask.feature]
    assert all(row.why in line and row.instead in line for row in rows)


def test_what_is_not_asked_for_is_accepted(engine_config: Callable[..., Any], model: Path) -> None:
    config = engine_config("--model", str(model))
    assert config.use_v2_model_runner
    assert config.parallel_config.worker_cls == "vllm_ascend_mrv2.worker.NPUWorker"


def test_runner_v2_may_be_named(
    engine_config: Callable[..., Any], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    assert engine_config("--model", str(model)).use_v2_model_runner


def test_copying_inputs_late_is_refused_with_graphs_and_async_scheduling(
    engine_config: Callable[..., Any], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_ASCEND_MRV2_INPUT_COPY", "read")
    with pytest.raises(ValueError, match="may already have written the next batch"):
        engine_config("--model", str(model))
    for arguments in (("--enforce-eager",), ("--no-async-scheduling",)):
        engine_config("--model", str(model), *arguments)


def test_more_ranks_than_devices_are_refused_at_once(
    engine_config: Callable[..., Any], model: Path
) -> None:
    visible = torch.npu.device_count()
    for option in ("--data-parallel-size", "--pipeline-parallel-size"):
        with pytest.raises(ValueError, match=f"{visible + 1} ranks: .* sees {visible}; give it"):
            engine_config("--model", str(model), option, f"{visible + 1}")


@pytest.mark.parametrize(
    ("this_rank", "visible", "needed"),
    [(None, 4, None), (None, 3, 4), (None, 2, 4), (1, 2, None), (1, 1, 2)],
)
def test_an_engine_needs_the_devices_of_its_own_ranks(
    this_rank: int | None, visible: int, needed: int | None
) -> None:
    """Two data-parallel engines of two ranks each, as the server and as an engine sees them."""
    asked = ParallelConfig(tensor_parallel_size=2)
    asked.data_parallel_size = asked.data_parallel_size_local = 2
    asked.data_parallel_rank_local = this_rank
    problems = support.device_problems(asked, visible)
    assert [problem.split()[0] for problem in problems] == ([] if needed is None else [str(needed)])


@pytest.mark.long  # the same is asked above, without a process
@pytest.mark.parametrize(
    ("extra", "named", "why"),
    [
        ({"TASK_QUEUE_ENABLE": "2"}, "TASK_QUEUE_ENABLE=2", "queue thread"),
        ({"VLLM_USE_V2_MODEL_RUNNER": "0"}, "VLLM_USE_V2_MODEL_RUNNER=0", "Model Runner V2 only"),
    ],
)
def test_vllm_serve_ends_at_once_with_the_line(
    model: Path, extra: dict[str, str], named: str, why: str
) -> None:
    ran = vllm("serve", model, "--device", "npu", extra=extra)
    assert ran.code != 0
    line = ran.line_with(PREFIX)
    assert line.startswith(f"error: {PREFIX}")
    assert named in line
    assert why in line
    assert ran.output.count(PREFIX) == 1
    assert "Traceback" not in ran.output
    assert "ERR99999" not in ran.output


def test_vllm_serve_refuses_an_unknown_switch_of_ours(model: Path) -> None:
    ran = vllm("serve", model, "--device", "npu", extra={"VLLM_ASCEND_MRV2_PIN_MEMROY": "1"})
    assert ran.code != 0
    assert "VLLM_ASCEND_MRV2_PIN_MEMORY" in ran.line_with("VLLM_ASCEND_MRV2_PIN_MEMROY")
