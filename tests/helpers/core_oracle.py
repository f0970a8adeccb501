# SPDX-License-Identifier: Apache-2.0
"""Runs functions with core's own Triton kernels, interpreted on the CPU in a process of their own.

The oracle of the kernel replacements. Run as a script, this file is that process: it serves calls
over a socket. No kernel of ours may be registered there.
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

_KEY = b"core-oracle"
_ROOT = Path(__file__).resolve().parents[2]


class OracleError(AssertionError):
    """The function raised in the oracle's process; the message is its traceback."""


class CoreOracle:
    """`call("module.function", *args)`: result and arguments as core's kernels leave them."""

    def __init__(self) -> None:
        environment = {
            **os.environ,
            "TRITON_INTERPRET": "1",
            # core's import gate accepts Triton without a driver only where devices are hidden
            "CUDA_VISIBLE_DEVICES": "",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "VLLM_PLUGINS": "",
            "HF_HUB_OFFLINE": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(_ROOT),
        }
        with Listener(family="AF_UNIX", authkey=_KEY) as listener:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(listener.address)], env=environment, cwd=_ROOT
            )
            self._connection: Connection = listener.accept()

    def call(self, function: str, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, ...]]:
        """The function's result, and its positional arguments after the call (tensors mutated)."""
        _send(self._connection, (function, args, kwargs))
        ok, value = _receive(self._connection)
        if not ok:
            raise OracleError(value)
        return value

    def close(self) -> None:
        self._connection.close()
        self._process.wait(timeout=30)


def _send(connection: Connection, value: Any) -> None:
    # plain pickle: Connection.send would pass tensors as descriptors of shared memory
    connection.send_bytes(pickle.dumps(value))


def _receive(connection: Connection) -> Any:
    return pickle.loads(connection.recv_bytes())


def resolve(function: str) -> Any:
    """The object of a dotted name "module.function"."""
    module, _, name = function.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _give_log1p_to_the_interpreter() -> None:
    """It interprets Triton's language, not CUDA's device library, of which core uses this."""
    from types import SimpleNamespace

    import numpy as np
    from triton.language.core import tensor
    from triton.runtime.interpreter import TensorHandle
    from vllm.v1.worker.gpu.sample import gumbel
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler_utils

    def log1p(x: Any) -> Any:
        return tensor(TensorHandle(np.log1p(x.handle.data), x.handle.dtype), x.type)

    for module in (rejection_sampler_utils, gumbel):
        if hasattr(module, "tldevice"):
            module.tldevice = SimpleNamespace(log1p=log1p)


def _serve(address: str) -> None:
    import traceback

    from vllm.triton_utils import HAS_TRITON

    assert HAS_TRITON, "core did not accept the Triton interpreter"
    _give_log1p_to_the_interpreter()
    with Client(address, family="AF_UNIX", authkey=_KEY) as connection:
        while True:
            try:
                function, args, kwargs = _receive(connection)
            except EOFError:
                return
            try:
                result = resolve(function)(*args, **kwargs)
                _send(connection, (True, (result, args)))
            except Exception:
                _send(connection, (False, traceback.format_exc()))


if __name__ == "__main__":
    _serve(sys.argv[1])
