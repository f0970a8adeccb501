# SPDX-License-Identifier: Apache-2.0
"""Each operator that the wheel may look up is there, or is left out on purpose."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "csrc" / "emulator" / "ops" / "generate_names.py"


@pytest.fixture(scope="module")
def names() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_names", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate_names"] = module
    spec.loader.exec_module(module)
    return module


def test_the_committed_list_is_the_wheels(names: ModuleType) -> None:
    assert names.difference() == []


def test_every_name_resolves_or_is_optional(names: ModuleType) -> None:
    library = ctypes.CDLL("libopapi.so")
    wanted = names.wheel_names(names.wheel_library())
    assert len(wanted) > 800
    missing = {
        n for n in wanted if not (hasattr(library, n) and hasattr(library, n + "GetWorkspaceSize"))
    }
    assert missing == wanted & names.OPTIONAL.keys()
    assert names.OPTIONAL.keys() <= wanted, "an optional name that this wheel does not know"
