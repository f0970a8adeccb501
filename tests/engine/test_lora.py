# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters per request are what the same adapters merged into the weights are, in float32.

Several in one batch and with requests without one; more than fit at once; of every layer that can
have one; eagerly and with graphs. Loaded and unloaded while the server runs.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.engine import in_process
from tests.engine.adapters import ATTENTION, MLP, VOCABULARY, Adapter
from tests.engine.conftest import ServerPool
from tests.engine.core_semantics import assert_core_s
from tests.engine.server import MODEL_NAME, ServerSpec
from tests.helpers.combinations import sampling_params
from tests.helpers.core_oracle import CoreOracle
from tests.helpers.emulated import counters, reset_counters
from tests.helpers.kernel_fixtures import oracle  # noqa: F401

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("lora")]

ADAPTERS = {
    1: Adapter(seed=1, rank=8, alpha=16, targets=(*ATTENTION, *MLP)),
    2: Adapter(seed=2, rank=3, alpha=4, targets=("q_proj", "down_proj")),
    3: Adapter(seed=3, rank=16, alpha=16, targets=("v_proj", "o_proj", *VOCABULARY)),
}
ASKED = ({"temperature": 0.0}, {"temperature": 0.9, "seed": 5}, {"temperature": 0.9, "top_k": 20})


def prompts(count: int) -> list[list[int]]:
    rng = random.Random(31)
    return [[rng.randrange(256) for _ in range(rng.choice((1, 7, 30, 120)))] for _ in range(count)]


class Engine:
    """An engine in this process with room for two adapters at once."""

    def __init__(self, llm: Any, base: Path, folder: Path) -> None:
        self.llm, self.base = llm, base
        self.adapters = {n: a.write(base, folder / f"adapter-{n}") for n, a in ADAPTERS.items()}
        self.merged = {n: a.merge(base, folder / f"merged-{n}") for n, a in ADAPTERS.items()}
        core = llm.llm_engine.engine_core.engine_core
        self.runner = core.model_executor.driver_worker.worker.model_runner

    def checkpoint(self, number: int) -> Path:
        return self.merged.get(number, self.base)

    def ask(self, asked: Sequence[tuple[list[int], dict[str, Any], int]]) -> list[Any]:
        """(prompt, arguments of SamplingParams, adapter or 0) -> answers; all run together."""
        from vllm.lora.request import LoRARequest

        outputs = self.llm.generate(
            [{"prompt_token_ids": prompt} for prompt, _, _ in asked],
            [sampling_params(more, max_tokens=6, ignore_eos=True) for _, more, _ in asked],
            lora_request=[
                LoRARequest(f"adapter-{n}", n, str(self.adapters[n])) if n else None
                for _, _, n in asked
            ],
            use_tqdm=False,
        )
        return [output.outputs[0] for output in outputs]


@pytest.fixture(scope="module", params=["graphs", "eager"])
def engine(
    tiny: Callable[[str, str], Path],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Engine]:
    base = tiny("qwen3", "float32")
    with in_process.engine(
        base,
        num_gpu_blocks_override=160,
        enforce_eager=request.param == "eager",
        enable_lora=True,
        max_loras=2,
        max_lora_rank=16,
    ) as llm:
        yield Engine(llm, base, tmp_path_factory.mktemp("lora"))


def assert_merged(
    engine: Engine,
    oracle: CoreOracle,  # noqa: F811
    asked: Sequence[tuple[list[int], dict[str, Any], int]],
    answers: Sequence[Any],
) -> None:
    """Each answer is that of the checkpoint with its adapter merged."""
    for number in {n for _, _, n in asked}:
        rows = [row for row, (_, _, n) in enumerate(asked) if n == number]
        assert_core_s(
            oracle,
            engine.checkpoint(number),
            [asked[row][0] for row in rows],
            [asked[row][1] for row in rows],
            [answers[row] for row in rows],
        )


def test_a_mixed_batch_is_what_merged_weights_give(
    engine: Engine,
    oracle: CoreOracle,  # noqa: F811
) -> None:
    seeded = [asked for asked in ASKED if asked["temperature"] == 0 or "seed" in asked]
    asked = [
        (prompt, seeded[index % len(seeded)], (0, 1, 2, 0, 2, 1, 3, 3)[index % 8])
        for index, prompt in enumerate(prompts(24))
    ]
    reset_counters()
    answers = engine.ask(asked)
    assert_merged(engine, oracle, asked, answers)
    by_adapter = {n: engine.ask([(prompts(1)[0], seeded[0], n)])[0].token_ids for n in (0, 1, 2, 3)}
    assert len({tuple(tokens) for tokens in by_adapter.values()}) == 4, "adapters change nothing"
    reasons = {verdict.reason for verdict in engine.runner.step_log.counts}
    if engine.runner.step_graphs is not None:
        assert "a request has a LoRA adapter: the step is captured without" in reasons
        assert counters()["total"]["graph_replays"] > 20


def test_an_adapter_is_unloaded_and_loaded_again(engine: Engine) -> None:
    asked = [(prompts(3)[2], ASKED[0], 1)]
    before = engine.ask(asked)[0].token_ids
    assert 1 in engine.llm.llm_engine.list_loras()
    assert engine.llm.llm_engine.remove_lora(1)
    assert 1 not in engine.llm.llm_engine.list_loras()
    bare = [(prompts(3)[2], ASKED[0], 0)]
    assert engine.ask(bare)[0].token_ids != before
    assert engine.ask(asked)[0].token_ids == before


def test_steps_without_adapters_are_one_graph(engine: Engine) -> None:
    def one_graph() -> int:
        counts = engine.runner.step_log.counts
        return sum(count for verdict, count in counts.items() if verdict.sampling)

    before = one_graph()
    engine.ask([(prompt, ASKED[1], 0) for prompt in prompts(4)])
    has_graphs = engine.runner.step_graphs is not None
    assert one_graph() - before >= 4 if has_graphs else one_graph() == 0


def test_adapters_are_loaded_and_unloaded_over_http(
    servers: ServerPool, tiny: Callable[[str, str], Path], tmp_path: Path
) -> None:
    base = tiny("qwen3", "float32")
    spec = ServerSpec(
        base,
        "float32",
        (
            *("--max-model-len", "320", "--gpu-memory-utilization", "0.3"),
            *("--num-gpu-blocks-override", "40", "--max-num-seqs", "8"),
            *("--enable-lora", "--max-lora-rank", "16"),
        ),
        (("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1"),),
    )
    server = servers.get(spec)

    def text(model: str) -> httpx.Response:
        body = {"model": model, "prompt": "hello", "temperature": 0, "max_tokens": 8}
        return httpx.post(f"{server.url}/v1/completions", json=body, timeout=120)

    def manage(verb: str, **body: Any) -> httpx.Response:
        return httpx.post(f"{server.url}/v1/{verb}_lora_adapter", json=body, timeout=120)

    plain = text(MODEL_NAME).json()["choices"][0]["text"]
    assert text("tuned").status_code == 404
    folder = ADAPTERS[1].write(base, tmp_path / "adapter")
    assert manage("load", lora_name="tuned", lora_path=str(folder)).status_code == 200
    assert "tuned" in {model.id for model in server.client().models.list()}
    assert text("tuned").json()["choices"][0]["text"] != plain
    assert text(MODEL_NAME).json()["choices"][0]["text"] == plain
    assert manage("unload", lora_name="tuned").status_code == 200
    assert text("tuned").status_code == 404
    assert manage("load", lora_name="broken", lora_path="/nowhere").status_code in (400, 404)
    assert text(MODEL_NAME).json()["choices"][0]["text"] == plain
    for factor in (2, 0.5):  # of another model's width: larger, and smaller
        misfit = tmp_path / f"misfit-{factor}"
        shutil.copytree(folder, misfit)
        weights = load_file(folder / "adapter_model.safetensors")
        for name in weights:
            if "lora_B" in name:
                rows, rank = weights[name].shape
                weights[name] = np.resize(weights[name], (int(rows * factor), rank))
        save_file(weights, misfit / "adapter_model.safetensors")
        answer = manage("load", lora_name="misfit", lora_path=str(misfit))
        assert answer.status_code >= 400
        assert "does not fit the model" in answer.text
        assert text("misfit").status_code == 404
        assert text(MODEL_NAME).json()["choices"][0]["text"] == plain
