# SPDX-License-Identifier: Apache-2.0
"""`contract check | record`: what we rely on in vLLM, against cores; and writing that list anew."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

import vllm_ascend_mrv2
from vllm_ascend_mrv2.cli.console import CliError, say
from vllm_ascend_mrv2.cli.contract.collect import CollectError, collect
from vllm_ascend_mrv2.cli.contract.fetch import fetch, newest_version
from vllm_ascend_mrv2.compat import pins
from vllm_ascend_mrv2.compat.contract import check as checking
from vllm_ascend_mrv2.compat.contract import probe
from vllm_ascend_mrv2.compat.contract.check import Mismatch, Reliance
from vllm_ascend_mrv2.compat.contract.source import CoreSource

PACKAGE = Path(vllm_ascend_mrv2.__file__).resolve().parent
CONTRACT = PACKAGE / "compat" / "contract" / "contract.json"
RECORD = "vllm-ascend-mrv2 contract record"


@dataclass(frozen=True)
class Report:
    """A checked core. status: of its pin, or "unpinned"."""

    core: str
    status: str
    mismatches: tuple[Mismatch, ...]

    @property
    def is_expected(self) -> bool:
        """Whether the result is what the pin says; an unpinned core is expected to fit."""
        return (self.status == "differs") == bool(self.mismatches)

    def as_text(self) -> str:
        count, names = len(self.mismatches), len(checking.contract())
        head = f"vLLM {self.core} ({self.status}): "
        head += f"{count} of {names} differ" if count else f"all {names} are as relied on"
        if not self.is_expected and self.status != "unpinned":
            head += ", which its entry in compat/pins.toml does not say"
        return "\n".join([head, *(str(mismatch) for mismatch in self.mismatches)])


def installed_core() -> tuple[str, Path]:
    """Version and folder (that holds `vllm/`) of this environment's core. Raises CliError."""
    folder = probe.installed_core()
    try:
        found = version("vllm")
    except PackageNotFoundError:
        found = ""
    if folder is None or not found:
        raise CliError(
            "vLLM is not installed here.",
            why="`installed` names the core of this environment.",
            do="vllm-ascend-mrv2 install-core, or name a version: it is downloaded.",
        )
    return found, folder


def find_core(named: str, cache: Path) -> tuple[str, Path]:
    """What to call it, and the folder that holds its `vllm/`."""
    if named == "installed":
        return installed_core()
    if (folder := Path(named)).is_dir():
        return str(folder), folder
    wanted = newest_version() if named == "newest" else named
    return wanted, fetch(wanted, cache)


def as_json(reliances: list[Reliance]) -> str:
    """The file's text: one reliance a line, so that a change shows as one."""
    lines = ",\n".join(f"    {json.dumps(asdict(reliance))}" for reliance in reliances)
    head = f'  "reference": "{pins.reference().vllm}",\n  "relies_on": [\n'
    return f"{{\n{head}{lines}\n  ]\n}}\n"


def recorded_anew(core: CoreSource) -> str:
    """The contract of this package's source as it is, against the reference core."""
    try:
        return as_json(collect(PACKAGE, core))
    except CollectError as error:
        raise CliError(
            "This package relies on what the reference core does not have.",
            why=str(error),
            do="Correct the name or the call; what only another core has belongs in compat/.",
        ) from error


_cache = click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/cores"),
    show_default=True,
    help="Folder for downloaded cores.",
)


@click.group()
def contract() -> None:
    """The names of vLLM that this plugin relies on: list them, and check cores against the list."""


@contract.command()
@click.argument("cores", nargs=-1)
@click.option("--json", "print_json", is_flag=True, help="Print JSON instead of text.")
@_cache
def check(cores: tuple[str, ...], print_json: bool, cache: Path) -> None:
    """Check CORES without importing them: a version, `newest`, `installed`, or a folder.

    Without any: all cores in compat/pins.toml. Exits with 1 where a result is not what a core's
    entry there says; a core that has none is expected to fit.
    """
    statuses: dict[str, str] = {pin.vllm: pin.status for pin in pins.cores()}
    reports = []
    for named in cores or tuple(statuses):
        name, folder = find_core(named, cache)
        try:
            mismatches = checking.check_folder(folder)
        except FileNotFoundError as error:
            raise CliError(
                f"{named} is not a core.",
                why=str(error),
                do="Name the folder that holds a `vllm/`, a version, `newest` or `installed`.",
            ) from error
        reports.append(Report(name, statuses.get(name, "unpinned"), tuple(mismatches)))
        if not print_json:
            click.echo(reports[-1].as_text())
    if print_json:
        click.echo(json.dumps([asdict(report) for report in reports], indent=2))
    if not all(report.is_expected for report in reports):
        raise SystemExit(1)


@contract.command()
@click.argument("core", default="installed")
@_cache
def record(core: str, cache: Path) -> None:
    """Write the list anew from this package's source, against the reference core CORE.

    CORE is `installed` (the default, where that is the reference) or the reference's version.
    """
    name, folder = find_core(core, cache)
    if name != pins.reference().vllm:
        raise CliError(
            f"{name} is not the reference core, which is {pins.reference().vllm}.",
            why="the list says what names are in the reference",
            do=f"{RECORD} {pins.reference().vllm}",
        )
    text = recorded_anew(CoreSource(folder))
    CONTRACT.write_text(text, encoding="utf-8")
    say(f"{len(json.loads(text)['relies_on'])} names are in {CONTRACT}.")
