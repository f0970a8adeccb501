# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.serving`: `vllm bench serve` against a server, with graphs and without.

Real arithmetic on this machine's CPU: the numbers compare two ways to run here, and say nothing of
a card. What is sent, and how a server is kept, is the evidence tooling's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from vllm_ascend_mrv2.cli.console import say
from vllm_ascend_mrv2.cli.evidence import client
from vllm_ascend_mrv2.cli.evidence.protocol import Workload
from vllm_ascend_mrv2.cli.evidence.server import Server, free_port
from vllm_ascend_mrv2.cli.models import tiny

MODES = {"eager": ("--enforce-eager",), "graph+hotpath": ()}
ENGINE = (
    *("--dtype", "float32", "--max-model-len", "512", "--max-num-seqs", "16"),
    *("--gpu-memory-utilization", "0.1", "--num-gpu-blocks-override", "96"),
    *("--no-enable-prefix-caching",),
)
# As `vllm bench serve` names them.
SHOWN = {
    "completed": "requests",
    "output_throughput": "tokens/s",
    "median_ttft_ms": "TTFT ms",
    "median_tpot_ms": "TPOT ms",
    "p99_tpot_ms": "TPOT p99 ms",
}
_TIMEOUT_S = 300.0


def serve_and_ask(model: Path, folder: Path, mode: str, workload: Workload) -> dict[str, Any]:
    """One server in that mode, and what `vllm bench serve` measured of it.

    Raises subprocess.CalledProcessError where the client fails, ServerStartError where the server
    does not come up; their logs are in `folder`.
    """
    vllm = Path(sysconfig.get_path("scripts"), "vllm")
    port, result = free_port(), folder / f"{mode}.json"
    server = Server(
        command=[
            *(str(vllm), "serve", str(model), "--device", "npu"),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--served-model-name", client.SERVED_NAME, *ENGINE, *MODES[mode]),
        ],
        environment=os.environ,
        cpus=os.sched_getaffinity(0),
        port=port,
        log=folder / f"{mode}.log",
        start_timeout_s=_TIMEOUT_S,
        stop_timeout_s=30,
        check=lambda: None,
    )
    say(f"Starting a server ({mode}) ...")
    with server:
        say(f"{workload.requests} requests to it ...")
        asked = client.command(
            vllm, workload, folder=folder, model=model, port=port, result=result.absolute()
        )
        with (folder / f"{mode}-client.log").open("wb") as log:
            subprocess.run(asked, stdout=log, stderr=log, check=True, timeout=_TIMEOUT_S)
    measured: dict[str, Any] = json.loads(result.read_text())
    return {"mode": mode, **{name: measured[name] for name in SHOWN}}


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("build/bench"))
@click.option("--requests", type=int, default=32, show_default=True)
@click.option("--concurrency", type=int, default=8, show_default=True)
@click.option("--layers", type=int, default=8, show_default=True, help="Of the tiny model.")
def main(out: Path, requests: int, concurrency: int, layers: int) -> None:
    """Serve a tiny model in each mode and send it the same random requests."""
    workload = Workload(
        client="vllm-bench-serve",
        dataset="random",
        seed=0,
        input_tokens=32,
        output_tokens=64,
        requests=requests,
        warmups=concurrency,
        concurrency=concurrency,
        request_rate=0.0,
        temperature=0.0,
        ignore_eos=True,
        timeout_s=_TIMEOUT_S,
    )
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        tiny.write(model, tiny.Shape(layers=layers), seed=0, dtype="float32", force=False)
        rows = [serve_and_ask(model, out, mode, workload) for mode in MODES]
    target = out / "serving.json"
    target.write_text(json.dumps(rows, indent=2) + "\n")
    table = Table(title=f"{requests} requests at concurrency {concurrency}, on this machine's CPU")
    for column in ("mode", *SHOWN.values()):
        table.add_column(column, justify="left" if column == "mode" else "right")
    for row in rows:
        table.add_row(row["mode"], *(f"{row[name]:.1f}" for name in SHOWN))
    Console(width=110).print(table)
    click.echo(f"Written to {target}.")


if __name__ == "__main__":
    main()
