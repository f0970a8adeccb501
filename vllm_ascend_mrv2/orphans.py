# SPDX-License-Identifier: Apache-2.0
"""A process that core has spawned ends when the one that started it is gone.

Why: where a server is killed, as for memory, nobody tells its engines, and they keep the device,
shared memory and files. Core tells workers that their engine is gone, and nobody else anything.
Ray's actors, which Ray ends itself, are none of these.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from functools import cache

from vllm_ascend_mrv2 import engine_folder

# As core names its processes (0.30 to 0.33; its log lines begin with these). A program's own child
# with an LLM in it has another name: it may outlive its parent, and its engines end with it.
CORES_PROCESSES = ("EngineCore", "VllmWorker-", "VLLM_DP_Coordinator", "ApiServer_")
# Core gives an engine's workers 8 s before it kills them; twice that, and room on a busy machine.
# With --shutdown-timeout an engine may compute as long for clients that are gone.
ENDS_WITHIN_S = 20
_START_S = 0.1


@cache
def watch_parent() -> None:
    """If this process is one of core's. Idempotent; waits in a thread of its own."""
    if multiprocessing.current_process().name.startswith(CORES_PROCESSES):
        threading.Thread(target=_outlive_nobody, name="ParentWatch", daemon=True).start()


def _outlive_nobody() -> None:
    # A spawned process loads the platform while it is unpickled, and has its parent only then.
    while (parent := multiprocessing.parent_process()) is None:
        time.sleep(_START_S)
    parent.join()
    # Not a thread's work: C++ or the interpreter's end may hang. By default this signal kills.
    signal.alarm(ENDS_WITHIN_S)
    logging.getLogger(f"vllm.{__name__}").error(
        "%s ends: process %s, which started it, is gone; it was killed, or has failed. What does "
        "not end within %d s is killed.",
        *(multiprocessing.current_process().name, parent.pid, ENDS_WITHIN_S),
    )
    engine_folder.remove_of(parent.pid)
    os.kill(os.getpid(), signal.SIGTERM)
