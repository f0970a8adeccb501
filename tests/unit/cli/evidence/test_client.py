# SPDX-License-Identifier: Apache-2.0
"""What is asked of `vllm bench serve`, and what is read from its result."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from vllm_ascend_mrv2.cli.console import CliError
from vllm_ascend_mrv2.cli.evidence import client
from vllm_ascend_mrv2.cli.evidence.protocol import Protocol, from_json


def _command(protocol: Protocol) -> list[str]:
    return client.command(
        Path("vllm"),
        protocol.workload,
        folder=Path("/evidence"),
        model=Path("/model"),
        port=81,
        result=Path("/out/client.json"),
    )


def test_the_installed_vllm_takes_the_call(protocol_json: dict[str, Any]) -> None:
    from vllm.benchmarks.serve import add_cli_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    command = _command(from_json(json.dumps(protocol_json)))
    assert command[:3] == ["vllm", "bench", "serve"]
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    parsed = parser.parse_args(command[3:])
    assert (parsed.random_input_len, parsed.random_output_len) == (3, 5)
    assert (parsed.num_prompts, parsed.max_concurrency, parsed.seed) == (6, 2, 0)
    assert parsed.request_rate == float("inf")
    assert parsed.ignore_eos
    assert parsed.save_detailed
    assert parsed.temperature == 0
    assert parsed.extra_body == {"skip_special_tokens": False}


def test_a_custom_data_set_is_the_folders_own(protocol_json: dict[str, Any]) -> None:
    protocol_json["workload"] |= {"dataset": "custom", "dataset_path": "prompts.jsonl"}
    command = _command(from_json(json.dumps(protocol_json)))
    assert command[command.index("--dataset-path") + 1] == "/evidence/prompts.jsonl"


RESULT: dict[str, Any] = {
    "start_times": [50.0, 49.9],
    "ttfts": [0.25, 0.5],
    "itls": [[0.1, 0.2], []],
    "input_lens": [3, 4],
    "output_lens": [3, 0],
    "generated_texts": ["abc", ""],
    "errors": ["", "Traceback\nConnectionResetError"],
}


def test_one_line_per_request() -> None:
    first, second = client.requests(RESULT)
    assert first == {
        "id": 0,
        "arrival_us": 100_000,
        "chunk_us": [350_000, 450_000, 650_000],
        "input_tokens": 3,
        "output_tokens": 3,
        "output_chars": 3,
        "output_sha256": hashlib.sha256(b"abc").hexdigest(),
        "error": "",
    }
    assert (second["arrival_us"], second["chunk_us"]) == (0, [])
    assert second["error"] == "ConnectionResetError"


def test_another_format_is_refused() -> None:
    with pytest.raises(CliError, match="not the expected one"):
        client.requests({k: v for k, v in RESULT.items() if k != "itls"})
    with pytest.raises(CliError, match="not the expected one"):
        client.requests({**RESULT, "ttfts": [0.1]})
