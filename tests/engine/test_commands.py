# SPDX-License-Identifier: Apache-2.0
"""Every vLLM command that takes engine arguments takes `--device npu`, refuses others, and runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.commands import vllm

pytestmark = pytest.mark.xdist_group("commands")

COMMANDS = (("serve",), ("bench", "throughput"), ("bench", "latency"), ("run-batch",))
SMALL = (
    *("--dtype", "float32", "--max-model-len", "256", "--max-num-seqs", "8"),
    *("--gpu-memory-utilization", "0.1", "--num-gpu-blocks-override", "32"),
)


@pytest.fixture
def model(tiny: Callable[[str, str], Path]) -> Path:
    return tiny("qwen3", "float32")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_another_device_gives_argparses_error(
    command: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Through the console script's own function, which saves the seconds of a new process."""
    from vllm.entrypoints.cli.main import main

    monkeypatch.setattr(sys, "argv", ["vllm", *command, "--device", "cpu"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert "argument --device: invalid choice: 'cpu' (choose from 'npu')" in said


@pytest.mark.long  # the same is asked of each command above, without a process
def test_another_device_ends_the_command() -> None:
    ran = vllm("serve", "--device", "cuda")
    assert ran.code == 2
    assert "choose from 'npu'" in ran.line_with("argument --device: invalid choice: 'cuda'")


@pytest.mark.long
def test_run_batch_answers_each_line(model: Path, tmp_path: Path) -> None:
    asked, answered = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    hello = [{"role": "user", "content": "hello"}]
    lines = [
        {
            "custom_id": f"request-{index}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": str(model), "messages": hello, "temperature": 0, **body},
        }
        for index, body in enumerate(
            [{"max_tokens": 5}, {"max_tokens": 5, "ignore_eos": True}, {"temperature": -1}]
        )
    ]
    asked.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ran = vllm(
        *("run-batch", "--device", "npu", "-i", asked, "-o", answered, "--model", model), *SMALL
    )
    assert ran.code == 0, ran.output[-6000:]
    results = {
        result["custom_id"]: result for result in map(json.loads, answered.read_text().splitlines())
    }
    assert sorted(results) == ["request-0", "request-1", "request-2"]
    first, second = (results[f"request-{index}"]["response"]["body"] for index in range(2))
    assert first["choices"][0]["message"]["content"]
    assert second["usage"]["completion_tokens"] == 5
    refused = results["request-2"]
    assert refused["response"]["status_code"] == 400 or "temperature" in json.dumps(refused)


@pytest.mark.long
def test_bench_throughput_counts_its_tokens(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "throughput.json"
    ran = vllm(
        *("bench", "throughput", "--device", "npu", "--model", model, *SMALL),
        *("--dataset-name", "random", "--num-prompts", "6", "--output-json", out),
        *("--random-input-len", "20", "--random-output-len", "8"),
    )
    assert ran.code == 0, ran.output[-6000:]
    result = json.loads(out.read_text())
    assert result["num_requests"] == 6
    assert result["tokens_per_second"] > 0


@pytest.mark.long
def test_bench_latency_measures(smollm2: Path, tmp_path: Path) -> None:
    """With a real vocabulary: core draws its prompts from the first 10,000 ids."""
    out = tmp_path / "latency.json"
    ran = vllm(
        *("bench", "latency", "--device", "npu", "--model", smollm2, *SMALL),
        *("--input-len", "16", "--output-len", "4", "--batch-size", "2"),
        *("--num-iters-warmup", "1", "--num-iters", "2", "--output-json", out),
    )
    assert ran.code == 0, ran.output[-6000:]
    assert len(json.loads(out.read_text())["latencies"]) == 2
