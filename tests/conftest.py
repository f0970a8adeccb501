# SPDX-License-Identifier: Apache-2.0
"""What every test needs: the emulated device on the loader path.

No fixtures of one part here: those belong to the part's own conftest.
"""

from __future__ import annotations

import ctypes
import gc

import pytest

HOW_TO = (
    "Run the tests on the emulated device: `make test`, or "
    "`vllm-ascend-mrv2 emulator run -- python -m pytest ...`."
)


def pytest_configure(config: pytest.Config) -> None:
    """End the run at once where every device test would fail, or would run on a real card."""
    try:
        library = ctypes.CDLL("libascendcl.so")
    except OSError as error:
        pytest.exit(f"The CANN libraries are not on the loader path: {error}. {HOW_TO}", 4)
    if not hasattr(library, "emu_version"):
        pytest.exit(f"libascendcl.so is there but is not the emulator's. {HOW_TO}", 4)


def pytest_collection_finish() -> None:
    """Leave torch and vLLM, imported by now, out of every later collection: it saves CPU time."""
    gc.freeze()


def pytest_unconfigure() -> None:
    """The interpreter's own end may collect everything: libraries count what is left as leaked."""
    gc.unfreeze()
