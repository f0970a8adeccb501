# SPDX-License-Identifier: Apache-2.0
"""`record`: what a start with these engine arguments would decide, and why, without starting."""

from __future__ import annotations

import os

import click

from vllm_ascend_mrv2.cli.console import CliError


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--json", "print_json", is_flag=True, help="Print JSON instead of a table.")
@click.argument("model")
@click.argument("engine_args", nargs=-1, type=click.UNPROCESSED)
def record(print_json: bool, model: str, engine_args: tuple[str, ...]) -> None:
    """Print what `vllm serve MODEL [ENGINE_ARGS]` would decide, and why.

    A start-up that would be refused exits with the refusal. Needs a device (or an emulated one).
    """
    # Core logs to stdout, which here belongs to the record.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    try:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError as error:
        raise CliError(
            "vLLM cannot be imported.",
            why=str(error),
            do="Install it with `vllm-ascend-mrv2 install-core`, and run this on a device.",
        ) from error
    from vllm_ascend_mrv2 import decisions

    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(prog="vllm-ascend-mrv2 record"))
    arguments = parser.parse_args(["--model", model, *engine_args])
    try:
        config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config()
    except ValueError as error:
        raise CliError(
            "This start-up is refused.",
            why=str(error),
            do="Change what the reason names, and ask again. docs/support.md has what works.",
        ) from error
    made = decisions.collect(config)
    click.echo(decisions.as_json(made) if print_json else decisions.as_table(made))
