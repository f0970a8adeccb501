# SPDX-License-Identifier: Apache-2.0
"""The wheel that is tested, and new environments for it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from environments import UV, Environment

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def wheel() -> Path:
    """The wheel that `make dist` built."""
    found = list((ROOT / "dist").glob("*.whl"))
    assert len(found) == 1, "run `make test-install`, which builds it"
    return found[0]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Callable[[str], Environment]]:
    """ "pip" or "uv" -> a new environment, which is removed afterwards: a full one has 3 GB."""
    made: list[Environment] = []

    def make(installer: str) -> Environment:
        new = Environment(tmp_path / f"{installer}-{len(made)}", installer)
        new.home.mkdir(parents=True)
        made.append(new)
        if installer == "uv":
            new.run(UV, "venv", "--python", sys.executable, new.path / "venv")
        else:
            new.run(sys.executable, "-m", "venv", new.path / "venv")
        return new

    yield make
    for each in made:
        shutil.rmtree(each.path, ignore_errors=True)
