# SPDX-License-Identifier: Apache-2.0
"""lm-eval gives SmolLM2 the same scores on this device as on the CPU with transformers, in float32.

`make lm-eval` runs it. The tasks and their data are beside this file; no hub is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.checkpoints import REPOSITORY, smollm2_checkpoint
from tests.engine.server import MODEL_NAME, Server, ServerSpec

HERE = Path(__file__).parent
METRICS = {"facts": ("acc,none", "acc_norm,none"), "endings": ("exact_match,none",)}
TOLERANCE = 2e-3  # of a sum of log probabilities

pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(scope="module", autouse=True)
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Data from this folder only, and nothing left in the user's caches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        patch.setenv("OPENAI_API_KEY", "none")
        patch.chdir(REPOSITORY)  # the tasks name their data from here
        yield


def evaluate(kind: str, /, **arguments: Any) -> dict[str, Any]:
    """lm-eval's results and samples of both tasks."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    return simple_evaluate(
        model=kind,
        model_args=arguments,
        tasks=list(METRICS),
        task_manager=TaskManager(include_path=str(HERE), include_defaults=False),
        batch_size=1,
        bootstrap_iters=0,
        log_samples=True,
        random_seed=0,
    )


@pytest.fixture(scope="module")
def on_cpu() -> dict[str, Any]:
    return evaluate(
        "hf", pretrained=str(smollm2_checkpoint()), dtype="float32", device="cpu", max_length=512
    )


@pytest.fixture(scope="module")
def on_device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    checkpoint = smollm2_checkpoint()
    room = ("--num-gpu-blocks-override", "40", "--gpu-memory-utilization", "0.3")
    arguments = ("--max-model-len", "512", "--max-num-seqs", "8", *room)
    log = tmp_path_factory.mktemp("server") / "server.log"
    server = Server(ServerSpec(checkpoint, "float32", arguments), log)
    server.start()
    try:
        yield evaluate(
            "local-completions",
            model=MODEL_NAME,
            base_url=f"{server.url}/v1/completions",
            tokenizer=str(checkpoint),
            tokenizer_backend="huggingface",
            num_concurrent=4,
            max_retries=1,
            max_length=512,
        )
    finally:
        server.stop()


@pytest.mark.parametrize("task", METRICS)
def test_the_scores_are_the_same(
    on_cpu: dict[str, Any], on_device: dict[str, Any], task: str
) -> None:
    for metric in METRICS[task]:
        score = on_device["results"][task][metric]
        assert score == on_cpu["results"][task][metric], metric
    assert 0.3 < on_device["results"][task][METRICS[task][0]] < 1, "the task tells nothing"


@pytest.mark.parametrize("task", METRICS)
def test_every_answer_is_the_same(
    on_cpu: dict[str, Any], on_device: dict[str, Any], task: str
) -> None:
    ours, theirs = on_device["samples"][task], on_cpu["samples"][task]
    assert len(ours) == len(theirs) == 40
    by_document = {sample["doc_id"]: sample for sample in theirs}
    for sample in ours:
        wanted = by_document[sample["doc_id"]]["filtered_resps"]
        if task == "endings":
            assert sample["filtered_resps"] == wanted
            continue
        for (likelihood, is_greedy), (expected, expected_greedy) in zip(
            sample["filtered_resps"], wanted, strict=True
        ):
            assert float(likelihood) == pytest.approx(float(expected), abs=TOLERANCE)
            assert is_greedy == expected_greedy
