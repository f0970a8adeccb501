# SPDX-License-Identifier: Apache-2.0
"""What is changed in core's test files so that they address this device, and nothing else.

A table of (pattern, replacement, why), applied line by line to device names and skip conditions. A
line of an `assert`, of `pytest.raises` or of `torch.testing` is never changed: `adapt` refuses it.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """A textual replacement; `pattern` is a regular expression within one line."""

    pattern: str
    replacement: str
    why: str


RULES: tuple[Rule, ...] = (
    Rule(
        r"""(["'])cuda(:\d+)?\1""",
        r"\1npu\2\1",
        "the device string is written out where core means the device under test",
    ),
    Rule(
        r"\btorch\.cuda\.(is_available|synchronize|device_count|current_device|get_rng_state)\(",
        r"torch.npu.\1(",
        "the same question to, or the same wait for, the device under test",
    ),
    Rule(
        r"\.cuda\(\)",
        ".npu()",
        "a tensor is put on the device under test",
    ),
    Rule(
        r"\btorch\.cuda\.memory\.(get_allocator_backend)\(",
        r"torch.npu.memory.\1(",
        "the same question to the device under test",
    ),
    Rule(
        r"\bcurrent_platform\.is_cuda(_alike)?\(\)",
        'current_platform.device_type == "npu"',
        "a skip condition that lists the devices on which core runs the file",
    ),
    Rule(
        r"\bnot current_platform\.device_type ==",
        "current_platform.device_type !=",
        "the result of the rule before, with the precedence that was meant",
    ),
)
_CHECKS = ("raises", "warns", "assert_close", "assert_allclose", "assert_equal")


class RefusedError(ValueError):
    """A rule matches text that states what core expects."""


@dataclass(frozen=True)
class Change:
    """One changed line, numbered from 1."""

    line: int
    before: str
    after: str


def _assertion_lines(tree: ast.Module) -> set[int]:
    """Lines of assert statements and of calls that assert."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        asserts = isinstance(node, ast.Assert) or (
            isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _CHECKS
        )
        if asserts:
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def adapt(source: str) -> tuple[str, list[Change]]:
    """The text for this device and what was changed in it, line for line.

    Raises RefusedError where a rule would change an assertion.
    """
    protected = _assertion_lines(ast.parse(source))
    lines = source.splitlines(keepends=True)
    changes: list[Change] = []
    for number, before in enumerate(lines, start=1):
        after = before
        for rule in RULES:
            after = re.sub(rule.pattern, rule.replacement, after)
        if after == before:
            continue
        if number in protected:
            raise RefusedError(f"line {number} is part of an assertion: {before.strip()}")
        lines[number - 1] = after
        changes.append(Change(number, before.rstrip("\n"), after.rstrip("\n")))
    return "".join(lines), changes
