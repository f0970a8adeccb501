# SPDX-License-Identifier: Apache-2.0
"""The click commands of `evidence`; what they do is the modules' beside this one."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from vllm_ascend_mrv2.cli.console import CliError, say
from vllm_ascend_mrv2.cli.evidence import folder as files
from vllm_ascend_mrv2.cli.evidence import protocol as protocols
from vllm_ascend_mrv2.cli.evidence import provenance


def _require() -> None:
    missing = [name for name in ("numpy", "scipy", "psutil") if not importlib.util.find_spec(name)]
    if missing:
        raise CliError(
            f"{', '.join(missing)} is not installed in this environment.",
            why="Evidence is made and checked with it.",
            do="pip install 'vllm-ascend-mrv2[evidence]'",
        )


@click.group()
def evidence() -> None:
    """Claims with a protocol, raw data and a verdict: make them, summarize them, check them."""


_folder = click.argument(
    "folder", type=click.Path(exists=True, file_okay=False, path_type=Path, resolve_path=True)
)


@evidence.command()
@_folder
@click.option(
    "--model",
    type=click.Path(exists=True, file_okay=False, path_type=Path, resolve_path=True),
    help="The checkpoint's folder; default: build/models/NAME, NAME being the protocol's.",
)
@click.option("--no-git", metavar="REASON", help="Run without a committed protocol; why is kept.")
@click.option("--observe", is_flag=True, help="Print what a protocol must say of this machine.")
def run(folder: Path, model: Path | None, no_git: str | None, observe: bool) -> None:
    """Make the raw data that FOLDER/protocol.json asks for, then summarize them.

    Goes on where an earlier run was stopped. Needs a device (or an emulated one) and vLLM.

    \b
    vllm-ascend-mrv2 emulator run --no-guard -- vllm-ascend-mrv2 evidence run FOLDER
    """
    _require()
    from vllm_ascend_mrv2.cli.evidence import runner, summary

    protocol = protocols.read(folder)
    place = runner.Place(
        folder, model or Path("build/models", protocol.model.name).absolute(), runner.default_vllm()
    )
    if not place.model.is_dir():
        raise CliError(
            f"The checkpoint {place.model} is not there.", do=f"Make it: {protocol.model.origin}"
        )
    if observe:
        click.echo(json.dumps(runner.observe(protocol, place), indent=2))
        return
    if (folder / "summary.json").is_file():
        raise CliError(
            f"{folder.name} is complete.", do="Another run is another folder with its own protocol."
        )
    runner.run(protocol, place, no_git=no_git)
    _write(folder, summary.summarize(protocol, folder))


@evidence.command()
@_folder
def summarize(folder: Path) -> None:
    """Write FOLDER/summary.json and SHA256SUMS from its raw data."""
    _require()
    from vllm_ascend_mrv2.cli.evidence import summary

    protocol = protocols.read(folder)
    if (folder / files.SUMS).is_file() and (
        changed := files.sum_problems(
            folder, under=("protocol.json", "run.json", "raw/", "excluded/")
        )
    ):
        raise CliError(
            "Data of this folder were changed after they were summed up.",
            why="\n       ".join(changed),
            do="Restore them from git.",
        )
    _write(folder, summary.summarize(protocol, folder))


@evidence.command()
@_folder
def verify(folder: Path) -> None:
    """Check FOLDER: sums, completeness, and that its summary follows from its raw data."""
    _require()
    from vllm_ascend_mrv2.cli.evidence import verify as checks

    if problems := checks.verify(folder):
        raise CliError(
            f"{folder.name} does not hold: {len(problems)} "
            f"{'problem' if len(problems) == 1 else 'problems'}.",
            why="\n       ".join(problems),
            do="Take the folder as it was committed; a run that is not whole has to be run again.",
        )
    commit = files.read_json(folder / "run.json")["protocol_commit"]
    if commit and provenance.git(folder, "cat-file", "-e", commit) is None:
        say(f"Not checked: commit {commit} of the protocol is not in a repository here.")
    said = files.read_json(folder / "summary.json")
    click.echo(f"{folder.name} holds. {said['verdict']}: {said['reason']}")


def _write(folder: Path, made: dict[str, Any]) -> None:
    files.write_json(folder / "summary.json", made)
    files.write_sums(folder)
    Console(width=100).print(_table(made))
    click.echo(f"{made['verdict']}: {made['reason']}")
    readme = folder / "README.md"
    if not readme.is_file() or made["verdict"] not in readme.read_text(encoding="utf-8"):
        say(f"Say it in words in {readme}, then run `evidence summarize` again for the sums.")


def _table(made: dict[str, Any]) -> Table:
    table = Table(
        title=f"{made['candidate']} over {made['baseline']}, "
        f"smallest attainable p {made['smallest_attainable_p']:g}"
    )
    for column in ("metric", "statistic", "ratio", "95 % interval", "p"):
        table.add_column(column)
    for metric, by_statistic in made.get("candidate_over_baseline", {}).items():
        for statistic, seen in by_statistic.items():
            interval = f"[{seen['low']:.4f}, {seen['high']:.4f}]"
            table.add_row(metric, statistic, f"{seen['ratio']:.4f}", interval, f"{seen['p']:.4g}")
    return table
