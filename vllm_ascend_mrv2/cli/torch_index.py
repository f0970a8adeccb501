# SPDX-License-Identifier: Apache-2.0
"""Where pip finds the CPU build of a torch: on the registry that it is configured for, else on
PyTorch's own index.
"""

from __future__ import annotations

import subprocess
import sys

from vllm_ascend_mrv2.compat import pins


def options(torch: str) -> list[str] | None:
    """What pip must be told to find `torch=={torch}+cpu`; None where it is nowhere.

    Asks pip; nothing is installed, but pip keeps what it downloads to look at.
    """
    for tried in ([], ["--extra-index-url", pins.cpu_torch_index()]):
        if _is_found(f"torch=={torch}+cpu", tried):
            return tried
    return None


def _is_found(wanted: str, options: list[str]) -> bool:
    # It may be installed, and from elsewhere. An index that does not answer is given up soon.
    only_ask = ("--dry-run", "--quiet", "--ignore-installed", "--no-deps", "--retries", "2")
    asked = [sys.executable, "-m", "pip", "install", *only_ask, *options, wanted]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0
