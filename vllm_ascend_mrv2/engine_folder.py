# SPDX-License-Identifier: Apache-2.0
"""One folder for the files by which the processes of an engine find each other, which goes with it.

Core puts its sockets and the file where ranks meet into the temporary folder, and leaves them
there: some after every end, all where a process is killed.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_CORES_SETTING = "VLLM_RPC_BASE_PATH"
# Not one of our switches: it goes from a process to those that it starts.
_PLACE = "_VLLM_ASCEND_MRV2_ENGINE_FOLDER"
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
    os.environ[_CORES_SETTING] = os.environ[_PLACE] = folder
    atexit.register(_remove, Path(folder), os.getpid())


def goes_too(file: Path) -> None:
    """Let `file`, which core has put elsewhere, go when the folder goes. Nothing without one."""
    with suppress(KeyError, OSError):  # of the second rank that says so, or after the server
        Path(os.environ[_PLACE], file.name).symlink_to(file)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() != owner:  # a child that was forked
        return
    for file in folder.glob("*"):
        if file.is_symlink():
            file.readlink().unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    for name in (_CORES_SETTING, _PLACE):
        os.environ.pop(name, None)
