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


def test_another_device_ends_the_command() -> None:
    ran = vllm("serve", "--device", "cuda")
    assert ran.code == 2
    assert "choose from 'npu'" in ran.line_with("argument --device: invalid choice: 'cuda'")


def test_run_batch_answers_each_line(model: Path, tmp_path: Path) -> None:
    asked, answered = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [
        {
            "custom_id": f"request-{index}",
            "method": "POST",
            "url": url,
            "body": {"model": str(model), "max_tokens": 5, "temperature": 0, **body},
        }
        for index, (url, body) in enumerate(
            [
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
                ("/v1/completions", {"prompt": "the sea", "ignore_eos": True}),
                ("/v1/completions", {"prompt": "too long", "max_tokens": 100000}),
            ]
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
    chat, completion, refused = (results[f"request-{index}"]["response"] for index in range(3))
    assert chat["body"]["choices"][0]["message"]["content"]
    assert completion["body"]["usage"]["completion_tokens"] == 5
    assert results["request-2"]["error"] or refused["status_code"] == 400


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


def test_bench_latency_measures(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "latency.json"
    ran = vllm(
        *("bench", "latency", "--device", "npu", "--model", model, *SMALL),
        *("--input-len", "16", "--output-len", "8", "--batch-size", "2"),
        *("--num-iters-warmup", "1", "--num-iters", "2", "--output-json", out),
    )
    assert ran.code == 0, ran.output[-6000:]
    assert len(json.loads(out.read_text())["latencies"]) == 2
