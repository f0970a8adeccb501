# SPDX-License-Identifier: Apache-2.0
"""That the test tools do what the suite relies on; some pairs of versions silently do not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

GROUPED = """
import os, pathlib, pytest
pytestmark = pytest.mark.xdist_group("one")

@pytest.mark.parametrize("number", range(8))
def test_leaves_its_worker(number):
    pathlib.Path("workers", os.environ["PYTEST_XDIST_WORKER"]).touch()
"""


def test_a_group_stays_on_one_worker(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "test_grouped.py").write_text(GROUPED)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", str(tmp_path)],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
    )
    assert len(list((tmp_path / "workers").iterdir())) == 1
