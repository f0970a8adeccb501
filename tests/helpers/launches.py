# SPDX-License-Identifier: Apache-2.0
"""Records the operators that a block runs, and refuses those that would wait for a device."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# fmt: off
_VIEWS = frozenset((
    "alias", "as_strided", "detach", "diagonal", "expand", "permute", "select", "slice", "split",
    "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unfold", "unsqueeze", "view",
    "_unsafe_view", "_reshape_alias",
))
# Their result's shape or value is on the device only, or torch_npu reads an argument of theirs.
_WAITS = frozenset((
    "_local_scalar_dense", "nonzero", "masked_select", "_unique", "_unique2", "unique_dim",
    "unique_consecutive", "equal", "index_fill", "index_fill_", "repeat_interleave",
))
# fmt: on


class HostWaitError(AssertionError):
    """An operator that makes the host wait for the device."""


class Launches(TorchDispatchMode):
    """`names` of the operators run, without views. `waits=False` raises on one that waits."""

    def __init__(self, waits: bool = True) -> None:
        super().__init__()
        self.names: list[str] = []
        self._waits_allowed = waits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if not self._waits_allowed:
            self._refuse_wait(name, args, kwargs)
        result = func(*args, **kwargs)
        if name not in _VIEWS:
            self.names.append(name)
        return result

    @staticmethod
    def _refuse_wait(name: str, args: Any, kwargs: Any) -> None:
        if name in _WAITS:
            raise HostWaitError(name)
        tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        if name in ("index", "index_put_") and any(
            t.dtype in (torch.bool, torch.uint8) for t in tensors[1:2]
        ):
            raise HostWaitError(f"{name} by a mask")
        on_device = any(t.device.type == "npu" for t in tensors)
        if name == "_to_copy" and on_device and str(kwargs.get("device")) == "cpu":
            raise HostWaitError("a copy to the host")
        if name == "copy_" and args[0].device.type == "cpu" and args[1].device.type == "npu":
            raise HostWaitError("a copy to the host")
