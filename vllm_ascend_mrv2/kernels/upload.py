# SPDX-License-Identifier: Apache-2.0
"""How replacements send host data to the device: at once, or through the step's staging.

Outside a step each copy is made at once and blocks. While a step is open, the runner's staging
(see runner/staging.py) takes the data and makes one copy of it all. Nothing else in this package
copies from the host to the device.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch


class Staging(Protocol):
    """What a step's staging offers: see runner/staging.py."""

    is_open: bool

    def put(self, array: npt.NDArray[Any]) -> torch.Tensor: ...

    def then(self, action: Callable[[], None]) -> None: ...

    def flush(self) -> None: ...


_local = threading.local()


def use(staging: Staging | None, keep_repeats: bool = False) -> None:
    """Send through `staging` on this thread, while it is open; None: always at once.

    keep_repeats: look at the runner's own inputs for such as came before (see `_Repeats`).
    """
    _local.staging = staging
    _local.repeats = _Repeats() if keep_repeats else None


def _open_staging() -> Staging | None:
    staging: Staging | None = getattr(_local, "staging", None)
    return staging if staging is not None and staging.is_open else None


def stage(array: npt.NDArray[Any], device: torch.device | str) -> torch.Tensor:
    """A device view of a snapshot of `array`; to be read only by actions given to `after`."""
    staging = _open_staging()
    if staging is None:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)
    return staging.put(array)


def after(action: Callable[[], None]) -> None:
    """Run `action`, device work on what was staged, once that is on the device."""
    staging = _open_staging()
    if staging is None:
        action()
    else:
        staging.then(action)


def flush() -> None:
    """Bring all that was staged to the device before what is launched next."""
    staging = _open_staging()
    if staging is not None:
        staging.flush()


_NUMPY = {
    torch.bool: np.bool_,
    torch.uint8: np.uint8,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.float32: np.float32,
    torch.float64: np.float64,
}


def as_array(data: Any, dtype: torch.dtype | None) -> npt.NDArray[Any]:
    """List, numpy array or CPU tensor as a numpy array of `dtype` (None: its own)."""
    if isinstance(data, torch.Tensor):
        data = data.numpy()
    return np.asarray(data, dtype=None if dtype is None else _NUMPY[dtype])


def tensor_h2d(
    data: Any,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Core's `async_tensor_h2d`: `data` on the device, in `out` or in a tensor of its own.

    What was staged before reaches the device first. Dtypes that staging does not carry (bfloat16)
    are copied at once.
    """
    dtype = out.dtype if out is not None else dtype
    if _open_staging() is None or (dtype is not None and dtype not in _NUMPY):
        source = data if isinstance(data, torch.Tensor) else torch.as_tensor(data)
        return source.to(device, dtype) if out is None else out.copy_(source)
    view = stage(as_array(data, dtype), device or "cpu")
    flush()
    return view.clone() if out is None else out.copy_(view)


def step_tensor_h2d(
    data: Any,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same for the runner's own inputs, which live no longer than the step.

    Core asks for a tensor without `out` first and with `out` last, and launches no reader in
    between; so only the last one flushes, and the first is the staged view itself, or what is kept
    of an earlier step.
    """
    if _open_staging() is None:
        return tensor_h2d(data, device, dtype, out)
    array = as_array(data, out.dtype if out is not None else dtype)
    view = _on_device(array, device if out is None else out.device)
    if out is None:
        return view
    flush()
    return out.copy_(view)


def _on_device(array: npt.NDArray[Any], device: torch.device | str | None) -> torch.Tensor:
    """`array` on the device, to be read after the next flush."""
    repeats: _Repeats | None = getattr(_local, "repeats", None)
    return stage(array, device or "cpu") if repeats is None else repeats.on_device(array, device)


class _Kept:
    """An input that stays on the device, while nobody writes it."""

    def __init__(self, view: torch.Tensor) -> None:
        """A copy of the staged `view`, made by the next flush."""
        with torch.inference_mode(False):  # in that mode torch does not count writes
            self.tensor = torch.empty_like(view)
        self._version = -1
        after(lambda: self._fill(view))

    def _fill(self, view: torch.Tensor) -> None:
        self.tensor.copy_(view)
        self._version = self.tensor._version

    @property
    def is_untouched(self) -> bool:
        return bool(self.tensor._version == self._version)


# As many as a speculating step has: what comes again is the last step's. Of 260 inputs of a mixed
# load with EAGLE 146 were sent where 3 were kept, and 140 where 32 were; of 356 with n-grams, 175
# and 166.
KEPT_INPUTS = 3


class _Repeats:
    """Inputs of past steps by content: from the second time on that one comes it is not sent again.

    For speculation: its steps are core's, with three inputs that are the same while the batch is.
    Without, a steady decode is one graph with no such input, and other steps differ from the last.
    """

    def __init__(self) -> None:
        # None: seen once. A key is at most 8 bytes for each request of a batch.
        self._inputs: OrderedDict[tuple[str, tuple[int, ...], bytes], _Kept | None] = OrderedDict()

    def on_device(self, array: npt.NDArray[Any], device: torch.device | str | None) -> torch.Tensor:
        """`array` on the device, to be read after the next flush. A tensor that was written since
        it was given out is not given out again.
        """
        key = (array.dtype.char, array.shape, array.tobytes())
        is_known = key in self._inputs
        kept = self._inputs.pop(key, None)
        if kept is not None and kept.is_untouched:
            self._inputs[key] = kept
            return kept.tensor
        view = stage(array, device or "cpu")
        self._inputs[key] = kept = _Kept(view) if is_known else None
        if len(self._inputs) > KEPT_INPUTS:
            self._inputs.popitem(last=False)
        return view if kept is None else kept.tensor
