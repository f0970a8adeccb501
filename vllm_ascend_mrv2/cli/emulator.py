# SPDX-License-Identifier: Apache-2.0
"""`emulator build | env | run`: the emulated device as a toolkit that any program can be run with.

Only chooses, says and executes; where things live is `toolkit`'s, compiling is `builder`'s.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path

import click

from vllm_ascend_mrv2.builds import cache_root
from vllm_ascend_mrv2.cli import install_core
from vllm_ascend_mrv2.cli.builder import ensure_built
from vllm_ascend_mrv2.cli.console import CliError
from vllm_ascend_mrv2.cli.toolkit import Toolkit, find_stack, source_dir

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


# What the device takes (csrc/emulator/runtime/config.cpp, which a test compares with these).
_MOST_DEVICES = 64
_LARGEST_SEED = (1 << 64) - 1
_LEAST_BYTES, _MOST_BYTES = 64 << 20, 1 << 40


class ByteCount(click.ParamType):
    """Memory of a device in bytes, or with a unit: 512MiB, 16G. Units are powers of 1024."""

    name = "bytes"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        match = re.fullmatch(r"(\d+)\s*([kmgt]?)(?:i?b)?", str(value).strip().lower())
        if match is None:
            self.fail(f"{value!r} is not a number of bytes such as 17179869184 or 16GiB.", param)
        count = int(match[1]) * _UNITS[match[2]]
        if not _LEAST_BYTES <= count <= _MOST_BYTES:
            self.fail(
                f"{value} is not from {_LEAST_BYTES >> 20}MiB to {_MOST_BYTES >> 40}TiB.", param
            )
        return count


def prepared(*, force: bool = False) -> Toolkit:
    """The toolkit of this environment, built first where it is missing or stale."""
    return ensure_built(source_dir(), find_stack(), cache_root(os.environ), force=force)


@click.group()
def emulator() -> None:
    """The emulated Ascend device: build it, and run programs on it."""


@emulator.command()
@click.option("--force", is_flag=True, help="Build even where an up-to-date one is there.")
def build(force: bool) -> None:
    """Compile the emulated device for the installed torch and torch-npu; print its folder."""
    click.echo(prepared(force=force).path)


@emulator.command()
def env() -> None:
    """Print the exports that select the emulated device, as a toolkit's set_env.sh does.

    \b
    eval "$(vllm-ascend-mrv2 emulator env)"
    """
    click.echo(prepared().exports())


@emulator.command(context_settings={"allow_interspersed_args": False})
@click.option("--guard/--no-guard", default=None, help="Make host access to device memory fault.")
@click.option(
    "--seed", type=click.IntRange(0, _LARGEST_SEED), help="Reorder independent streams by a seed."
)
@click.option("--counters", type=click.Path(dir_okay=False), help="JSON written at exit; %p = pid.")
@click.option("--devices", type=click.IntRange(1, _MOST_DEVICES), help="Number of devices.")
@click.option("--hbm", type=ByteCount(), help="Memory of each device, 64MiB to 1TiB.")
@click.option(
    "--check",
    is_flag=False,
    flag_value="report",
    type=click.Choice(["off", "report", "strict"]),
    help="Prove the order of what streams and host do. strict: the first finding is an error at "
    "the next call, and the exit code is 66 instead of 0, also where no call follows.",
)
@click.option(
    "--check-report", type=click.Path(dir_okay=False), help="JSON of the findings; %p = pid."
)
@click.option(
    "--suppressions",
    type=click.Path(exists=True, dir_okay=False),
    help="Findings to leave out, a line `KIND PATTERN # reason` each.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    guard: bool | None,
    seed: int | None,
    counters: str | None,
    devices: int | None,
    hbm: int | None,
    check: str | None,
    check_report: str | None,
    suppressions: str | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND on the emulated device, building that first if needed.

    COMMAND takes this process's place: signals reach it, and its exit code is ours. The options
    are shorthands for the ASCEND_EMU_* variables, which pass through as they are.

    \b
    vllm-ascend-mrv2 emulator run -- vllm serve MODEL --device npu
    vllm-ascend-mrv2 emulator run --check=strict -- python program.py
    """
    environment = dict(os.environ)
    is_checked = check or environment.get("ASCEND_EMU_CHECK", "off")
    for option, value in (("--check-report", check_report), ("--suppressions", suppressions)):
        if value is not None and is_checked == "off":
            raise click.UsageError(f"{option} is about what --check finds: give that, too.")
    # The environment's own commands (vllm, python) are found without activating it.
    scripts = sysconfig.get_path("scripts")
    environment["PATH"] = os.pathsep.join(filter(None, [scripts, environment.get("PATH", "")]))
    if Path(command[0]).name == "vllm":
        install_core.ensure_installed()
    program = shutil.which(command[0], path=environment["PATH"])
    if program is None:
        raise CliError(
            f"The command {command[0]!r} was not found, or is not executable.",
            why=f"it is neither in {scripts} nor on PATH",
            do="Check its name; options of `emulator run` stand before --, the command after it.",
            exit_code=127,
        )
    environment = prepared().environment(environment)
    switches = {
        "ASCEND_EMU_GUARD": None if guard is None else str(int(guard)),
        "ASCEND_EMU_SCHEDULE_SEED": seed,
        # The command may change its folder before it exits.
        "ASCEND_EMU_COUNTERS": None if counters is None else Path(counters).absolute(),
        "ASCEND_EMU_DEVICES": devices,
        "ASCEND_EMU_HBM_BYTES": hbm,
        "ASCEND_EMU_CHECK": check,
        "ASCEND_EMU_CHECK_REPORT": None if check_report is None else Path(check_report).absolute(),
        "ASCEND_EMU_CHECK_SUPPRESSIONS": (
            None if suppressions is None else Path(suppressions).absolute()
        ),
    }
    if check in ("report", "strict"):
        # The thread of torch_npu's task queue launches copies for others and has no Python stack.
        environment.setdefault("TASK_QUEUE_ENABLE", "0")
    environment |= {name: str(value) for name, value in switches.items() if value is not None}
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(program, command, environment)
    except OSError as error:
        raise CliError(
            f"{program} could not be started.",
            why=str(error),
            do="Check that it is a program for this machine and starts with a `#!` line if it is "
            "a script.",
            exit_code=126,
        ) from error
