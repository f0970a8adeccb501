# SPDX-License-Identifier: Apache-2.0
"""One folder for the files by which the processes of an engine find each other, which goes with it.

Core puts each into the temporary folder, its sockets and the file where ranks meet, and leaves
them there: some after every end, all where a process is killed.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

_CORES_SETTING = "VLLM_RPC_BASE_PATH"
_LONGEST_PATH = 107  # of a socket: sun_path of unix(7), with its end
_LONGEST_NAME = 37  # "/" and the UUID that core gives a socket


def open_for_engines() -> None:
    """For what this process starts, unless a process before it or the user has chosen. Idempotent.

    It goes at this process's end, but not where it is killed.
    """
    if _CORES_SETTING in os.environ:
        return
    folder = tempfile.mkdtemp(prefix="vllm-")
    if len(os.fsencode(folder)) + _LONGEST_NAME > _LONGEST_PATH:
        Path(folder).rmdir()
        return
    os.environ[_CORES_SETTING] = folder
    atexit.register(_remove, folder, os.getpid())


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not in a child that was forked
        shutil.rmtree(folder, ignore_errors=True)
        os.environ.pop(_CORES_SETTING, None)
