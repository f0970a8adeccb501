# SPDX-License-Identifier: Apache-2.0
"""The command group. A new command is one import and one `add_command` here, nothing else."""

from __future__ import annotations

from typing import Any

import click

from vllm_ascend_mrv2 import envs
from vllm_ascend_mrv2.cli.console import CliError
from vllm_ascend_mrv2.cli.contract.commands import contract
from vllm_ascend_mrv2.cli.doctor.commands import doctor
from vllm_ascend_mrv2.cli.emulator import emulator
from vllm_ascend_mrv2.cli.evidence.commands import evidence
from vllm_ascend_mrv2.cli.hotpath import hotpath
from vllm_ascend_mrv2.cli.install_core import install_core
from vllm_ascend_mrv2.cli.models.commands import models
from vllm_ascend_mrv2.cli.record import record


class _Group(click.Group):
    """A switch that a command finds wrong is said as any other error."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except envs.SwitchError as error:
            name, _, why = str(error).partition("; ")
            why, _, do = why.partition(". ")
            raise CliError(f"{name}.", why=why, do=do) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="vllm-ascend-mrv2")
def cli() -> None:
    """vLLM on Huawei Ascend NPUs with Model Runner V2, and an emulated Ascend device."""


cli.add_command(contract)
cli.add_command(doctor)
cli.add_command(emulator)
cli.add_command(evidence)
cli.add_command(hotpath)
cli.add_command(install_core)
cli.add_command(models)
cli.add_command(record)


def main() -> None:
    """Entry point of the console script."""
    cli(prog_name="vllm-ascend-mrv2")
