# SPDX-License-Identifier: Apache-2.0
"""One folder for the files by which the processes of an engine find each other, which goes with it.

Core puts its sockets and the file where ranks meet into the temporary folder, and leaves them
there: some after every end, all where a process is killed.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

_CORES_SETTING = "VLLM_RPC_BASE_PATH"
# Not one of our switches: it goes from a process to those that it starts.
_PLACE = "_VLLM_ASCEND_MRV2_ENGINE_FOLDER"
_OWNER = f"{_PLACE}_OWNER"  # the process that made it
_LONGEST_PATH = 107  # of a socket: sun_path of unix(7), with its end
_LONGEST_NAME = 37  # "/" and the UUID that core gives a socket
_is_open = False  # here, or in what this process was forked from


def open_for_engines() -> None:
    """For what this process starts, unless the user has chosen. Idempotent.

    It goes at this process's end; where it is killed, its engines remove it (orphans.py). They use
    it, too; another program that this one starts, a server of its own, makes its own.
    """
    global _is_open
    chosen = os.environ.get(_CORES_SETTING)
    is_ours = chosen is not None and chosen == os.environ.get(_PLACE)
    is_the_users = chosen is not None and not is_ours
    if _is_open or is_the_users or (is_ours and _belongs_to_an_engine()):
        return
    folder = tempfile.mkdtemp(prefix="vllm-")
    if len(os.fsencode(folder)) + _LONGEST_NAME > _LONGEST_PATH:
        Path(folder).rmdir()
        return
    _is_open = True
    os.environ[_CORES_SETTING] = os.environ[_PLACE] = folder
    os.environ[_OWNER] = str(os.getpid())
    atexit.register(_remove_own, os.getpid())


def _belongs_to_an_engine() -> bool:
    """Whether core, or Ray for it, has started this process; it is no program of its own."""
    ray = sys.modules.get("ray")
    return multiprocessing.parent_process() is not None or bool(ray and ray.is_initialized())


def goes_too(file: Path) -> None:
    """Let what core has put elsewhere, a file or a folder, go when ours goes. Nothing without."""
    with suppress(KeyError, OSError):  # of the second rank that says so, or after the server
        Path(os.environ[_PLACE], file.name).symlink_to(file)


def _remove_own(owner: int) -> None:
    if os.getpid() == owner:  # no child that was forked
        remove_of(owner)


def remove_of(owner: int | None) -> None:
    """Remove the folder, if it is `owner`'s: that process ends, or is gone."""
    if os.environ.get(_OWNER) != str(owner):
        return
    folder = Path(os.environ[_PLACE])
    for file in folder.glob("*"):
        if file.is_dir():  # also a link to one
            shutil.rmtree(file.resolve(), ignore_errors=True)
        elif file.is_symlink():
            file.readlink().unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    for name in (_CORES_SETTING, _PLACE, _OWNER):
        os.environ.pop(name, None)
