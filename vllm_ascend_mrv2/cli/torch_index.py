# SPDX-License-Identifier: Apache-2.0
"""Where pip finds the CPU build of a torch: `python -m vllm_ascend_mrv2.cli.torch_index VERSION`
prints the options for that, none where the configured registry has it.
"""

from __future__ import annotations

import subprocess
import sys

from vllm_ascend_mrv2.compat import pins


def options(torch: str) -> list[str]:
    """What pip must be told beside `torch=={torch}+cpu`. Asks pip; nothing is installed."""
    wanted = ("--no-deps", f"torch=={torch}+cpu")
    only_ask = ("--dry-run", "--quiet", "--ignore-installed")  # it may be, and from elsewhere
    asked = [sys.executable, "-m", "pip", "install", *only_ask, *wanted]
    is_found = subprocess.run(asked, capture_output=True, check=False).returncode == 0
    return [] if is_found else ["--extra-index-url", pins.cpu_torch_index()]


if __name__ == "__main__":
    print(*options(sys.argv[1]))
