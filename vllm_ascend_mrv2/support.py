# SPDX-License-Identifier: Apache-2.0
"""What a start-up may ask for: one row per feature of vLLM that this plugin refuses.

A row finds out whether the feature was asked for and says why it is refused and what to do. The
README's support table is compared with these rows by a test. Nothing here changes a configuration.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_ascend_mrv2 import envs, refused

if TYPE_CHECKING:  # for the contract, which follows these names; nothing is imported at run time
    from vllm.config import (
        CompilationConfig,
        ModelConfig,
        ParallelConfig,
        SpeculativeConfig,
        VllmConfig,
    )

SUPPORTED_DTYPES = ("bfloat16", "float16", "float32")


class UnsupportedConfigError(ValueError):
    """The start-up asked for something that this plugin refuses."""


@dataclass(frozen=True)
class Refusal:
    """One feature that is refused.

    asked: VllmConfig -> what was asked for, in the user's terms, or None.
    setting: a variable and its value that ask for it whatever the configuration is, if there are.
    """

    feature: str
    asked: Callable[[Any], str | None]
    why: str
    instead: str
    setting: tuple[str, str] | None = None


def _path(config: Any, path: str, default: Any = None) -> Any:
    """What a VllmConfig has under that path, or `default` where a part of it is None.

    Raises AttributeError for a name that core does not have: a question that nobody can answer must
    not pass for a no. The contract has every path.
    """
    for name in path.split("."):
        config = getattr(config, name)
        if config is None:
            return default
    return config


def _more_than_one(path: str, option: str) -> Callable[[Any], str | None]:
    def asked(config: Any) -> str | None:
        count = _path(config, path, 1)
        return f"{option}={count}" if count > 1 else None

    return asked


def _given(path: str, what: str) -> Callable[[Any], str | None]:
    return lambda config: what if _path(config, path) else None


def _v1_runner(config: VllmConfig) -> str | None:
    return None if config.use_v2_model_runner else "a model or feature that core runs on V1 only"


def _not_by_configuration(config: Any) -> str | None:
    return None


def _method(*methods: str) -> Callable[[Any], str | None]:
    def asked(config: Any) -> str | None:
        method = _path(config, "speculative_config.method")
        return f"speculative method {method}" if method in methods else None

    return asked


def _models(config: VllmConfig) -> list[tuple[ModelConfig, str]]:
    """The models that a start-up would load, and what each is."""
    drafter: SpeculativeConfig | None = config.speculative_config
    models = [(config.model_config, "model")]
    if drafter is not None:
        models.append((drafter.draft_model_config, "draft model"))
    return [(model, role) for model, role in models if model is not None]


def _quantization(config: VllmConfig) -> str | None:
    model: ModelConfig
    for model, role in _models(config):
        if model.quantization is not None:
            return f"quantization={model.quantization} of the {role}"
    return None


def _kv_cache_dtype(config: VllmConfig) -> str | None:
    for dtype in (
        config.cache_config.cache_dtype,
        _path(config, "speculative_config.kv_cache_dtype", "auto"),
    ):
        if dtype not in ("auto", "float16", "bfloat16"):
            return f"kv_cache_dtype={dtype}"
    return None


def _encoder(config: Any) -> str | None:
    if _path(config, "model_config.is_encoder_decoder"):
        return "an encoder-decoder model"
    return "a multimodal model" if _path(config, "model_config.is_multimodal_model") else None


def _several_mtp_modules(config: VllmConfig) -> str | None:
    speculation: SpeculativeConfig | None = config.speculative_config
    if speculation is None or not speculation.use_multi_module_mtp():
        return None
    return "speculative method mtp with several modules"


def _drafts_beyond_a_step(config: Any) -> str | None:
    drafts = _path(config, "speculative_config.num_speculative_tokens")
    room = _path(config, "scheduler_config.max_num_batched_tokens")
    if drafts is None or room is None or drafts < room:
        return None
    return f"{drafts} drafts in steps of {room} tokens"


def _speculation_on_another_core(config: Any) -> str | None:
    from vllm_ascend_mrv2.compat import speculation

    if _path(config, "speculative_config") is None or speculation.core_is_known():
        return None
    return "speculative decoding"


def _watermark_on_another_core(config: Any) -> str | None:
    from vllm_ascend_mrv2.compat import watermarks

    if _path(config, "watermark_config") is None or watermarks.core_is_known():
        return None
    return "watermarking"


def _attention_backend(config: VllmConfig) -> str | None:
    attention = config.attention_config
    for backend in (attention.backend, *attention.backend_per_kind.values()):
        if backend is not None and backend.name != "CUSTOM":
            return f"attention backend {backend.name}"
    return None


def _tensor_arena(config: VllmConfig) -> str | None:
    from vllm_ascend_mrv2.compat import tensor_arena

    return "the shared-memory tensor arena" if tensor_arena.is_asked_for(config) else None


def _watermark_with_speculation(config: Any) -> str | None:
    if _path(config, "watermark_config") is None or _path(config, "speculative_config") is None:
        return None
    return "watermarking with speculative decoding"


def _speculation_beyond_tensor_parallelism(config: VllmConfig) -> str | None:
    if config.speculative_config is None:
        return None
    parallel: ParallelConfig = config.parallel_config
    for name, size in (
        ("pipeline", parallel.pipeline_parallel_size),
        ("data", parallel.data_parallel_size),
    ):
        if size > 1:
            return f"speculative decoding with {name} parallelism"
    return None


def _masked_draft_model(config: Any) -> str | None:
    method = _path(config, "speculative_config.method")
    if envs.SPEC_LENGTHS.read() != "masked" or method != "draft_model":
        return None
    return f"{envs.SPEC_LENGTHS.name}=masked with {method}"


def _masked_without_effect(config: Any) -> str | None:
    if envs.SPEC_LENGTHS.read() != "masked":
        return None
    if _path(config, "speculative_config") is None:
        return f"{envs.SPEC_LENGTHS.name}=masked without speculative decoding"
    if envs.SEQ_LENS.read() == "device":
        return f"{envs.SPEC_LENGTHS.name}=masked with {envs.SEQ_LENS.name}=device"
    return None


def _architecture(config: VllmConfig) -> str | None:
    for model, role in _models(config):
        if (kind := _kind_of(model)) is not None:
            return f"{kind} {role}"
    return None


def _kind_of(model: ModelConfig) -> str | None:
    for is_one, kind in (
        (model.use_mla, "a latent attention (MLA)"),
        (model.is_hybrid, "a hybrid (attention and state-space)"),
        (model.is_attention_free, "an attention-free"),
        (model.is_diffusion, "a diffusion language"),
    ):
        if is_one:
            return kind
    return None


def _transformers_backend(config: VllmConfig) -> str | None:
    model: ModelConfig | None = config.model_config
    if model is None or not model.using_transformers_backend():
        return None
    return f"{', '.join(model.architectures)} by transformers' own code"


def _on_several_devices(config: Any) -> bool:
    world = _path(config, "parallel_config.world_size", 1)
    return world * _path(config, "parallel_config.data_parallel_size", 1) > 1


def _lora_with(config: Any) -> str | None:
    if not _path(config, "lora_config"):
        return None
    for is_asked, what in (
        (_path(config, "model_config.is_moe"), "a mixture-of-experts model"),
        (_path(config, "model_config.runner_type") == "pooling", "a pooling model"),
        (_on_several_devices(config), "several devices"),
        (_path(config, "speculative_config"), "speculative decoding"),
    ):
        if is_asked:
            return f"LoRA adapters with {what}"
    return None


def _embeds_or_pooling_with(config: Any) -> str | None:
    speculates = _path(config, "speculative_config")
    if not (speculates or _on_several_devices(config)):
        return None
    beside = "speculative decoding" if speculates else "several devices"
    if _path(config, "model_config.runner_type") == "pooling":
        return f"a pooling model with {beside}"
    embeds = _path(config, "model_config.enable_prompt_embeds")
    return f"prompt embeddings with {beside}" if embeds else None


def _executor(name: str) -> Callable[[Any], str | None]:
    def asked(config: Any) -> str | None:
        backend = _path(config, "parallel_config.distributed_executor_backend")
        return f"distributed_executor_backend={backend}" if backend == name else None

    return asked


def _ray_beyond(config: Any) -> str | None:
    from vllm_ascend_mrv2.compat import ray_executor

    if _path(config, "parallel_config.distributed_executor_backend") != "ray":
        return None
    if _path(config, "parallel_config.data_parallel_size", 1) > 1:
        return "distributed_executor_backend=ray with data parallelism"
    if ray_executor.older_is_asked_for():
        return f"distributed_executor_backend=ray with {ray_executor.SETTING}=0"
    return None


def _several_machines(config: VllmConfig) -> str | None:
    parallel: ParallelConfig = config.parallel_config
    if parallel.nnodes > 1:
        return f"nnodes={parallel.nnodes}"
    if parallel.data_parallel_backend != "mp":  # core starts Ray for one rank, too
        return f"data_parallel_backend={parallel.data_parallel_backend}"
    if parallel.data_parallel_size == 1:
        return None
    if parallel.data_parallel_external_lb or parallel.data_parallel_hybrid_lb:
        return "data parallelism with an external or hybrid load balancer"
    if parallel.data_parallel_size_local not in (0, parallel.data_parallel_size):
        return f"data_parallel_size_local={parallel.data_parallel_size_local}"
    return None


def _all2all(config: Any) -> str | None:
    if not _path(config, "parallel_config.enable_expert_parallel"):
        return None
    backend = _path(config, "parallel_config.all2all_backend")
    return None if backend == "allgather_reducescatter" else f"all2all_backend={backend}"


def _weight_offloading(config: Any) -> str | None:
    if _path(config, "offload_config.uva.cpu_offload_gb", 0) > 0:
        return "weight offloading (--cpu-offload-gb)"
    if _path(config, "offload_config.prefetch.offload_group_size", 0) > 0:
        return "weight offloading (--offload-group-size)"
    return None


_NO_SPECULATION = "use another method of the README's table, or start without --speculative-config"
_CONTEXT_WHY = "attention over a context that several devices hold is not built"
_CONTEXT_INSTEAD = "use tensor, data, pipeline or expert parallelism"

REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "Model Runner V1",
        _v1_runner,
        "this plugin is built around Model Runner V2 only",
        "unset VLLM_USE_V2_MODEL_RUNNER or set it to 1",
        ("VLLM_USE_V2_MODEL_RUNNER", "0"),
    ),
    Refusal(
        "TASK_QUEUE_ENABLE=2",
        _not_by_configuration,
        "torch_npu then checks an operator's arguments on its queue thread, after which a failed "
        "check goes unnoticed and later results are wrong",
        "set TASK_QUEUE_ENABLE to 1 or 0",
        ("TASK_QUEUE_ENABLE", "2"),
    ),
    Refusal(
        "speculative decoding by several MTP modules",
        _several_mtp_modules,
        "the kernels that pass tokens and hidden states from module to module are not replaced yet",
        "give num_speculative_tokens=1, or start without --speculative-config",
    ),
    Refusal(
        "more drafts than a step has room for",
        _drafts_beyond_a_step,
        "a request is verified in one step, which has a token for each draft and one more",
        "give a smaller num_speculative_tokens, or a larger --max-num-batched-tokens",
    ),
    Refusal(
        "speculative decoding by DFlash and DSpark",
        _method("dflash", "dspark"),
        "core's drafters write their context's keys by operators of its CUDA extension "
        "(rotary_embedding, rms_norm of vllm._custom_ops), which this device does not have",
        _NO_SPECULATION,
    ),
    Refusal(
        "extraction of hidden states",
        _method("extract_hidden_states"),
        "it needs a KV connector, none of which has been verified on this device's memory",
        "start without --speculative-config",
    ),
    Refusal(
        "speculative decoding by Medusa, MLP speculator, suffixes and custom classes",
        _method("medusa", "mlp_speculator", "suffix", "custom_class"),
        "core's Model Runner V2 has no such method",
        _NO_SPECULATION,
    ),
    Refusal(
        "speculative decoding on other cores than vLLM 0.32",
        _speculation_on_another_core,
        "their speculators are others, for which nothing has been replaced or tested",
        "install vLLM 0.32.0, or start without --speculative-config",
    ),
    Refusal(
        "speculative decoding with pipeline or data parallelism",
        _speculation_beyond_tensor_parallelism,
        "ranks that do not verify learn only later what was accepted, and idle ranks would have to "
        "draft along; neither has been tested",
        "use tensor parallelism, or start without --speculative-config",
    ),
    Refusal(
        "masked lengths with a draft model",
        _masked_draft_model,
        "only the drafts of EAGLE, MTP and n-grams are attended by a mask: a draft model's first "
        "forward has tokens of its own at other positions",
        f"unset {envs.SPEC_LENGTHS.name}",
    ),
    Refusal(
        "masked lengths where no length would be masked",
        _masked_without_effect,
        "there are no drafts to verify, or every length is read from the device anyway, so the "
        "switch would do nothing",
        f"unset {envs.SPEC_LENGTHS.name}",
    ),
    Refusal(
        "adaptive verification of drafts",
        _given("speculative_config.enable_adaptive_verification", "adaptive verification"),
        "the device then decides how many drafts each request verifies, which attention would have "
        "to be told on the host before it is known there",
        "leave enable_adaptive_verification out of --speculative-config",
    ),
    Refusal(
        "a number of drafts that changes with the batch",
        _given(
            "speculative_config.num_speculative_tokens_per_batch_size",
            "num_speculative_tokens_per_batch_size",
        ),
        "no test has shown that it holds on this device",
        "give num_speculative_tokens alone",
    ),
    Refusal(
        "LoRA with MoE or pooling models, several devices or speculative decoding",
        _lora_with,
        "adapters are verified on dense generative models on one device only, and without drafts",
        "start without --enable-lora, or merge the adapter into the model",
    ),
    Refusal(
        "prompt embeddings and pooling models with several devices or speculative decoding",
        _embeds_or_pooling_with,
        "they are verified on one device only, and without drafts",
        "serve on one device, without --speculative-config",
    ),
    Refusal(
        "decode context parallelism",
        _more_than_one(
            "parallel_config.decode_context_parallel_size", "decode_context_parallel_size"
        ),
        _CONTEXT_WHY,
        _CONTEXT_INSTEAD,
    ),
    Refusal(
        "prefill context parallelism",
        _more_than_one(
            "parallel_config.prefill_context_parallel_size", "prefill_context_parallel_size"
        ),
        _CONTEXT_WHY,
        _CONTEXT_INSTEAD,
    ),
    Refusal(
        "several machines",
        _several_machines,
        "only the devices of one machine, started by one command, have been tried",
        "start all ranks on one machine with its default executor and load balancer",
    ),
    Refusal(
        "Ray with data parallelism, and core's older Ray executor",
        _ray_beyond,
        "Ray has been tried with one engine and core's executor of messages only",
        "ask Ray for one engine by core's newer executor (VLLM_USE_RAY_V2_EXECUTOR_BACKEND is not "
        "0), or use the default executor",
    ),
    Refusal(
        "all ranks in one process",
        _not_by_configuration,
        "ranks that are threads share globals of core, torch and torch_npu, which only an "
        "experiment keeps apart so far (docs/single-process.md)",
        "unset it: the ranks of one machine are then processes of the default executor",
        (envs.SINGLE_PROCESS.name, "1"),
    ),
    Refusal(
        "external launcher",
        _executor("external_launcher"),
        "its ranks find their devices by rules that are not verified here",
        "use the default executor",
    ),
    Refusal(
        "expert load balancing",
        _given("parallel_config.enable_eplb", "expert load balancing (--enable-eplb)"),
        "it moves experts between devices while they serve, which is not verified",
        "start without --enable-eplb",
    ),
    Refusal(
        "other exchanges between experts than collectives",
        _all2all,
        "those are libraries of other devices",
        "leave --all2all-backend unset",
    ),
    Refusal(
        "quantization",
        _quantization,
        "no quantized operator has been verified",
        "serve an unquantized checkpoint",
    ),
    Refusal(
        "quantized KV cache",
        _kv_cache_dtype,
        "no quantized KV cache has been verified",
        "use --kv-cache-dtype auto",
    ),
    Refusal(
        "encoder and multimodal models",
        _encoder,
        "encoder attention and multimodal inputs are not built",
        "serve a decoder-only text model",
    ),
    Refusal(
        "MLA, hybrid, attention-free and diffusion models",
        _architecture,
        "its kernels are not replaced yet",
        "serve a decoder-only model with ordinary attention",
    ),
    Refusal(
        "models that core runs through transformers",
        _transformers_backend,
        "what such a model consists of is not known, so nothing about it is verified",
        "serve a model of a family in the README's table",
    ),
    Refusal(
        "other attention backends",
        _attention_backend,
        "they are kernels of other devices",
        "leave --attention-backend unset",
    ),
    Refusal(
        "dual batch overlap",
        _given("parallel_config.enable_dbo", "dual batch overlap"),
        "microbatches are not verified on this device",
        "start without --enable-dbo",
    ),
    Refusal(
        "KV transfer",
        _given("kv_transfer_config", "a KV connector"),
        "no connector has been verified on this device's memory",
        "start without --kv-transfer-config",
    ),
    Refusal(
        # Core turns this into a connector only after the platform was asked.
        "KV offloading",
        _given("cache_config.kv_offloading_size", "KV offloading (--kv-offloading-size)"),
        "it copies blocks to host memory, which no connector has been verified to do on this "
        "device",
        "start without --kv-offloading-size",
    ),
    Refusal(
        "weight offloading",
        _weight_offloading,
        "it needs pinned or unified host memory, which is not proven on this device",
        "start without --cpu-offload-gb and --offload-group-size",
    ),
    Refusal(
        "encoder-cache transfer",
        _given("ec_transfer_config", "an encoder-cache connector"),
        "no connector has been verified on this device's memory",
        "start without --ec-transfer-config",
    ),
    Refusal(
        "shared-memory tensor arena",
        _tensor_arena,
        "it hands out views of shared memory that may be reused while a copy still reads them",
        "start without --enable-shm-tensor-arena",
    ),
    Refusal(
        "watermarking on other cores than vLLM 0.32",
        _watermark_on_another_core,
        "their kernels for it have other arguments, for which nothing has been replaced or tested",
        "install vLLM 0.32.0, or start without --watermark-config",
    ),
    Refusal(
        "watermarking with speculative decoding",
        _watermark_with_speculation,
        "verification here draws what it draws without a watermark",
        "start without --watermark-config or without --speculative-config",
    ),
    Refusal(
        "sleep mode",
        _given("model_config.enable_sleep_mode", "sleep mode"),
        "no allocator of this platform can give memory back and restore it",
        "start without --enable-sleep-mode",
    ),
)

# Graph modes of core that are served: the decode step is captured, all else runs eagerly.
GRAPH_MODES = ("NONE", "FULL_DECODE_ONLY")
_WHY_NOT_FULL = (
    "a graph of a mixed batch would be captured with the query lengths of its capture, and only "
    "those of a decode batch are always the same"
)
_WHY_NOT_PIECEWISE = (
    "core splits graphs by torch.compile, which is not verified on this device, or breaks them "
    "(VLLM_USE_BREAKABLE_CUDAGRAPH), for which it keeps arguments by "
    "`torch.ops._C.weak_ref_tensor` of its CUDA extension"
)


def refusals_for(config: Any, rows: Iterable[Refusal] = REFUSALS) -> list[str]:
    """One line per refused feature that `config` (a VllmConfig) or this environment asks for."""
    return [
        f"{asked}: {row.why}; {row.instead}"
        for row in rows
        if (asked := setting_of(row, os.environ) or row.asked(config)) is not None
    ]


def device_problems(parallel_config: ParallelConfig, visible: int) -> list[str]:
    """A line where the ranks of this process's engines need more devices than `visible` ones.

    The server in front of data-parallel engines sees the devices of all; an engine, which core
    tells its number, may see its own only.
    """
    engines = 1
    if parallel_config.data_parallel_rank_local is None:
        engines = parallel_config.data_parallel_size_local
    needed = engines * parallel_config.world_size
    if needed <= visible:
        return []
    return [
        f"{needed} ranks: each needs an NPU of its own, and this process sees {visible}; give it "
        "more (docs/troubleshooting.md says how), or ask for fewer ranks"
    ]


def setting_of(row: Refusal, environ: Mapping[str, str]) -> str | None:
    """The setting in `environ` that alone asks for what the row refuses, as NAME=VALUE, or None."""
    if row.setting is None or environ.get(row.setting[0]) != row.setting[1]:
        return None
    return "=".join(row.setting)


def refuse(lines: list[str]) -> None:
    """Raise UnsupportedConfigError with the lines, if there are any; a process that this ends
    prints no more than them."""
    if lines:
        message = "vllm-ascend-mrv2 refuses to start. " + " | ".join(lines) + "."
        refused.end_with(message)
        raise UnsupportedConfigError(message)


def graph_requests(compilation_config: CompilationConfig) -> list[str]:
    """Refusals of graph and compile modes that the user set (None: left to the platform)."""
    lines = []
    mode = compilation_config.cudagraph_mode
    if mode is not None and mode.name not in GRAPH_MODES:
        why = _WHY_NOT_PIECEWISE if "PIECEWISE" in mode.name else _WHY_NOT_FULL
        lines.append(
            f"cudagraph_mode={mode.name}: {why}; leave cudagraph_mode unset, or set it to "
            f"{' or '.join(GRAPH_MODES)}"
        )
    compile_mode = compilation_config.mode
    if compile_mode is not None and compile_mode.name != "NONE":
        lines.append(
            f"compilation mode {compile_mode.name}: torch.compile is not verified on this device; "
            "leave the compilation mode unset or set it to 0"
        )
    return lines
