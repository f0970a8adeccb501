# SPDX-License-Identifier: Apache-2.0
"""Adds `--device npu` to every vLLM command that takes engine arguments.

Why: core 0.32 has no such option (without one, argparse calls `--device` ambiguous), and offers a
parser hook only where AsyncEngineArgs fills the parser; `vllm bench latency` and others call
`EngineArgs.add_cli_args`, which is wrapped here once. The `vllm` command builds the `serve` parser
first, so the wrapper is in place before the others are filled.
Core versions: 0.30 to 0.33. Goes when core calls the platform hook for every engine parser.
"""

from __future__ import annotations

import argparse
from typing import Any

_HELP = "Device to run on. This platform serves npu only."


def add_device_argument(parser: argparse.ArgumentParser, device_type: str) -> None:
    """Add `--device {device_type}` to `parser` unless it has such an option."""
    if "--device" not in parser._option_string_actions:
        parser.add_argument("--device", choices=[device_type], default=device_type, help=_HELP)


def wrap_engine_args(device_type: str) -> None:
    """Make EngineArgs.add_cli_args add the option too. Idempotent."""
    from vllm.engine.arg_utils import EngineArgs

    original = EngineArgs.add_cli_args
    if getattr(original, "adds_device_argument", False):
        return

    def add_cli_args(parser: Any) -> Any:
        parser = original(parser)
        add_device_argument(parser, device_type)
        return parser

    add_cli_args.adds_device_argument = True  # type: ignore[attr-defined]
    EngineArgs.add_cli_args = staticmethod(add_cli_args)
