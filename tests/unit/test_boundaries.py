# SPDX-License-Identifier: Apache-2.0
"""Who may import whom, and that nothing but the command line knows of the emulator."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import vllm_ascend_mrv2

PACKAGE = Path(vllm_ascend_mrv2.__file__).parent
NAME = "vllm_ascend_mrv2"

# Room -> rooms of this package that it may import. Modules directly in the package are rooms too.
ALLOWED: dict[str, set[str]] = {
    "compat": set(),
    "envs": set(),
    "last_words": set(),
    "engine_folder": set(),
    "refused": set(),
    "orphans": {"engine_folder"},
    "attention": {"compat", "envs"},
    "builds": {"envs"},
    "graph": {"attention", "builds", "compat", "envs", "kernels"},
    "kernels": {"compat", "envs"},
    "layers": {"compat", "envs"},
    "distributed": {"compat", "envs"},
    "runner": {
        *("attention", "compat", "distributed", "envs", "graph", "kernels", "last_words", "layers"),
    },
    "support": {"compat", "envs", "refused"},
    "decisions": {
        *("attention", "compat", "envs", "graph", "kernels", "layers", "runner", "support"),
    },
    "worker": {"compat", "distributed", "engine_folder", "envs", "last_words", "runner"},
    "platform": {
        *("attention", "compat", "decisions", "distributed", "envs", "graph"),
        *("kernels", "last_words", "layers", "runner", "engine_folder", "support"),
    },
    "cli": {"builds", "compat", "decisions", "envs", "graph", "support"},
    "__init__": {"builds", "compat", "orphans"},
}
# The start-up record says whether the device is emulated; it may say the word.
MAY_SAY_EMULATED = {"cli", "decisions"}


def modules() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if "_csrc" not in p.parts)


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module is not None
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        rooms |= {name.split(".")[1] for name in names if name.startswith(NAME + ".")}
    return rooms


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_follow_the_architecture(path: Path) -> None:
    room = room_of(path)
    assert room in ALLOWED, f"{room} is a new room: say in this table what it may import"
    forbidden = imported_rooms(path) - ALLOWED[room] - {room}
    assert not forbidden, f"{room} may not import {sorted(forbidden)}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_plugin_does_not_know_the_emulator(path: Path) -> None:
    if room_of(path) not in MAY_SAY_EMULATED:
        text = path.read_text().lower()
        assert "emulat" not in text
        assert "emu_" not in text


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_loggers_are_children_of_the_one_vllm_configures(path: Path) -> None:
    """Any other logger's INFO, the start-up record among it, is not shown."""
    assert "init_logger(__name__)" not in path.read_text()


def test_importing_the_package_loads_nothing() -> None:
    code = (
        f"import sys, {NAME}; "
        "print([m for m in ('torch', 'torch_npu', 'vllm') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.strip() == "[]"
