# SPDX-License-Identifier: Apache-2.0
"""The default client, `vllm bench serve`: its command line, and its result as one line per request.

Starts nothing. Another client is another module with these two functions.
"""

from __future__ import annotations

import hashlib
import json
from itertools import accumulate
from pathlib import Path
from typing import Any

from vllm_ascend_mrv2.cli.console import CliError
from vllm_ascend_mrv2.cli.evidence.protocol import Workload

SERVED_NAME = "evidence"


def command(
    vllm: Path, workload: Workload, *, folder: Path, model: Path, port: int, result: Path
) -> list[str]:
    """The call that sends the workload to that port and writes `result`."""
    if workload.dataset == "random":
        data = [
            *("--random-input-len", str(workload.input_tokens)),
            *("--random-output-len", str(workload.output_tokens)),
        ]
    else:
        data = [
            *("--dataset-path", str(folder / workload.dataset_path)),
            *("--custom-output-len", str(workload.output_tokens)),
        ]
    return [
        *(str(vllm), "bench", "serve", "--backend", "openai", "--endpoint", "/v1/completions"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--model", SERVED_NAME, "--tokenizer", str(model)),
        *("--dataset-name", workload.dataset, *data),
        *("--num-prompts", str(workload.requests), "--seed", str(workload.seed)),
        *("--num-warmups", str(workload.warmups)),
        *("--max-concurrency", str(workload.concurrency)),
        *("--request-rate", str(workload.request_rate or "inf")),
        *("--temperature", str(workload.temperature)),
        *(("--ignore-eos",) if workload.ignore_eos else ()),
        # A special token is a token: without this it would be missing from the compared text.
        *("--extra-body", '{"skip_special_tokens": false}'),
        *("--disable-tqdm", "--save-result", "--save-detailed"),
        *("--result-dir", str(result.parent), "--result-filename", result.name),
    ]


def requests(result: dict[str, Any]) -> list[dict[str, Any]]:
    """One mapping per request, in the order of the data set.

    id; arrival_us, from the first arrival; chunk_us: arrival of each chunk of the stream, the first
    with the first token and the last with the last (vLLM joins tokens into one chunk where the
    reader is slow, so that these are not the times of single tokens); input_tokens, output_tokens;
    output_chars and output_sha256 of the text; error, empty where there is none.

    Raises CliError where the result lacks what is read.
    """
    try:
        rows = zip(
            result["start_times"],
            result["ttfts"],
            result["itls"],
            result["input_lens"],
            result["output_lens"],
            result["generated_texts"],
            result["errors"],
            strict=True,
        )
        first = min(result["start_times"])
        lines = []
        for number, (start, ttft, gaps, inputs, outputs, text, error) in enumerate(rows):
            chunks = [] if error else [start - first + t for t in accumulate([ttft, *gaps])]
            lines.append(
                {
                    "id": number,
                    "arrival_us": round((start - first) * 1e6),
                    "chunk_us": [round(t * 1e6) for t in chunks],
                    "input_tokens": inputs,
                    "output_tokens": outputs,
                    "output_chars": len(text),
                    "output_sha256": hashlib.sha256(text.encode()).hexdigest(),
                    "error": error.strip().splitlines()[-1] if error.strip() else "",
                }
            )
    except (KeyError, ValueError) as error:
        raise CliError(
            "The client's result is not the expected one.",
            why=f"{type(error).__name__}: {error}",
            do="Check that vLLM is the version of the protocol; the format is 0.32's.",
        ) from error
    return lines


def as_jsonl(lines: list[dict[str, Any]]) -> str:
    """One object per line, without spaces."""
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
