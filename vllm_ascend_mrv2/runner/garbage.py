# SPDX-License-Identifier: Apache-2.0
"""Python's garbage collector around start-up and capture. Nothing here runs in a step.

Core collects a dozen times while an engine starts. With torch and vLLM imported, each takes more
than half a second to find that modules are still in use (`gc.callbacks`, timed): two
thirds of what the start of a tiny model's engine costs. What is frozen is left out.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def freeze_what_is_loaded() -> None:
    """Collect what an earlier engine left, and leave out of later collections what stays.

    Core unfreezes after its capture and freezes everything when the engine is up.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@contextmanager
def no_collection() -> Iterator[None]:
    """No collection while a graph is captured: a finalizer may use the device, and break it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
