# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks`: measure, print a table, write JSON. Run by `make bench`."""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.steady_decode import PHASES, Measurement, Mode, measure
from vllm_ascend_mrv2.cli.models import tiny

# What is measured side by side.
MODES = {
    mode.name: mode
    for mode in (
        Mode("eager", {"enforce_eager": True}, has_hot_path=False),
        Mode("graph", {}, has_hot_path=False),
        Mode("graph+hotpath", {}, has_hot_path=True),
    )
}


def _table(rows: list[Measurement]) -> Table:
    table = Table(
        title="A steady decode step: counts per step; waits and median host us of the step thread"
    )
    for column in (
        *("mode", "batch", "layers", "host us", "H2D", "D2H"),
        *("waits", "launches", "replays", "updates"),
    ):
        table.add_column(column, justify="left" if column == "mode" else "right")
    for row in rows:
        counted = row.per_step
        table.add_row(
            *(row.mode, str(row.batch), str(row.layers), f"{row.host_us:.0f}"),
            *(f"{n:.2f}" for n in (counted.h2d, counted.d2h, counted.step_thread_waits)),
            *(f"{n:.1f}" for n in (counted.launches, counted.graph_replays, counted.task_updates)),
        )
    return table


def _phase_table(rows: list[Measurement]) -> Table:
    table = Table(title="The same, host us of the step thread by phase (median of each)")
    for column in ("mode", "batch", "host us", *PHASES):
        table.add_column(column, justify="left" if column == "mode" else "right")
    for row in rows:
        phases = (f"{row.phases_us[phase]:.0f}" for phase in PHASES)
        table.add_row(row.mode, str(row.batch), f"{row.host_us:.0f}", *phases)
    return table


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("build/bench"))
@click.option("--batch", "batches", type=int, multiple=True, default=(1, 8, 32), show_default=True)
@click.option("--layers", type=int, default=24, show_default=True, help="Of the tiny model.")
@click.option("--steps", type=int, default=50, show_default=True, help="Counted per measurement.")
@click.option(
    "--mode", "modes", type=click.Choice(list(MODES)), multiple=True, default=tuple(MODES)
)
@click.option(
    "--compute/--no-compute",
    default=False,
    show_default=True,
    help="Whether the device computes: without, host times are not those of a shared CPU.",
)
def main(
    out: Path,
    batches: tuple[int, ...],
    layers: int,
    steps: int,
    modes: tuple[str, ...],
    compute: bool,
) -> None:
    """Count and time what a steady decode step does, for each mode and batch size."""
    os.environ["ASCEND_EMU_COMPUTE"] = str(int(compute))
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    rows = []
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        tiny.write(model, tiny.Shape(layers=layers), seed=0, dtype="float32", force=False)
        for batch in batches:
            for mode in modes:
                # An engine does not give all of its memory back: a process for each.
                with ProcessPoolExecutor(1, mp_context=spawn) as pool:
                    work = pool.submit(measure, model, MODES[mode], batch, steps)
                    rows.append(work.result())
    out.mkdir(parents=True, exist_ok=True)
    target = out / "steps.json"
    target.write_text(json.dumps([row.as_json() for row in rows], indent=2) + "\n")
    console = Console(width=110)
    console.print(_table(rows))
    console.print(_phase_table(rows))
    click.echo(f"Written to {target}.")


if __name__ == "__main__":
    main()
