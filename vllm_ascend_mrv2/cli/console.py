# SPDX-License-Identifier: Apache-2.0
"""How the command line speaks: errors in three parts, and messages on stderr.

stdout belongs to what a command is asked to print (shell exports, JSON) and to nothing else.
"""

from __future__ import annotations

from typing import IO, Any

import click
from rich.console import Console

console = Console(stderr=True, soft_wrap=True, highlight=False)


class CliError(click.ClickException):
    """A refusal or failure: what happened, why, and what to do now. Exit code 1 unless given."""

    def __init__(self, what: str, *, why: str = "", do: str = "", exit_code: int = 1) -> None:
        super().__init__(what)
        self.why = why
        self.do = do
        self.exit_code = exit_code  # type: ignore[misc]  # click reads it from the instance

    def format_message(self) -> str:
        """The parts on lines of their own; `why` and `do` may have several lines."""
        parts = [self.message]
        parts += [f"  why: {self.why}"] if self.why else []
        parts += [f"  do:  {self.do}"] if self.do else []
        return "\n".join(parts)

    def show(self, file: IO[Any] | None = None) -> None:
        """Print to stderr, as plain text: paths and compiler output are not markup."""
        click.echo(f"error: {self.format_message()}", file=file, err=True)


def say(message: str) -> None:
    """One line of progress on stderr."""
    console.print(message, markup=False)
