# SPDX-License-Identifier: Apache-2.0
"""A program that was refused ends with the line alone; however often that was, and nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("raised", "shown"),
    [
        ("refused first", "error: refused first\n"),
        ("around refused 1999, in other words", "error: refused 1999\n"),
        ("another", "Traceback"),
    ],
)
def test_the_end_of_a_program(raised: str, shown: str) -> None:
    code = (
        "from vllm_ascend_mrv2 import refused\n"
        "for line in ('refused first', *(f'refused {n}' for n in range(1000, 2000))):\n"
        "    refused.end_with(line)\n"
        f"raise ValueError({raised!r})\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 1
    assert ran.stderr.startswith(shown)
    assert ran.stderr.count("\n") == 1 or shown == "Traceback"
