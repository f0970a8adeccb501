# SPDX-License-Identifier: Apache-2.0
"""That the evidence in this repository holds, and that one changed byte in it is seen."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from vllm_ascend_mrv2.cli.evidence import protocol as protocols
from vllm_ascend_mrv2.cli.evidence.verify import verify

FOLDERS = sorted(
    p.parent for p in (Path(__file__).parents[4] / "benchmarks/evidence").glob("*/protocol.json")
)
# Those whose run is done; a protocol without one says nothing yet.
CLOSED = [folder for folder in FOLDERS if (folder / "run.json").exists()]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: p.name)
def test_its_protocol_can_be_followed(folder: Path) -> None:
    protocols.read(folder)


@pytest.mark.parametrize("folder", CLOSED, ids=lambda p: p.name)
def test_it_holds(folder: Path) -> None:
    assert verify(folder) == []


@pytest.mark.parametrize("folder", CLOSED, ids=lambda p: p.name)
def test_one_changed_byte_is_seen(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / folder.name
    shutil.copytree(folder, copy)
    path = next(copy.glob("raw/*/requests.jsonl"))
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(whole)
    name = path.relative_to(copy).as_posix()
    assert f"{name} has other content than SHA256SUMS says" in verify(copy)
