# SPDX-License-Identifier: Apache-2.0
"""Host-to-device state of core's `v1/worker/gpu/buffer_utils.py`, for a device without UVA.

`MirrorPool` stands in for core's `UvaBufferPool`; `apply_staged_writes` for the launches of
`_apply_write_kernel`. All data is snapshot when the call is made: core rewrites the host arrays
as soon as it returns. How it gets to the device is `upload`'s; when state is written is core's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor

from vllm_ascend_mrv2.kernels import upload


def is_uva_available() -> bool:
    """Whether the device can read host memory in place: never here, pinned or not."""
    return False


class MirrorPool:
    """One device copy of a host array, written only when the host array changed.

    Serves as core's `UvaBufferPool`. Core's pool rotates several buffers, since its device reads
    the host's memory; here the device reads its own copy, which is overwritten in stream order, so
    one is enough and its address never changes (a captured graph may read it).

    Nothing may write the returned tensor on the device: a later call would not notice.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        dtype: torch.dtype,
        max_concurrency: int | None = None,
    ) -> None:
        """size: full shape; dtype: of the device copy; max_concurrency: accepted, not needed."""
        from vllm.platforms import current_platform

        self.size = size
        self.dtype = dtype
        self._device = current_platform.device_type
        # The device copy comes into being with the first write: StagedWriteTensor makes three pools
        # that this package never uses.
        self._host = torch.zeros(size, dtype=dtype)
        self._host_np = self._host.numpy()
        self._mirror: torch.Tensor | None = None

    def copy_to_uva(self, x: torch.Tensor | npt.NDArray[Any] | list[Any]) -> torch.Tensor:
        """The device copy of x, [len(x), ...]. Copies only if x differs from what is there.

        Grows the first dimension where x is longer than any before it (then the address changes).
        """
        source = x.numpy() if isinstance(x, torch.Tensor) else np.asarray(x, self._host_np.dtype)
        n = len(source)
        if n > self._host.shape[0]:
            self._host = torch.zeros(
                (1 << (n - 1).bit_length(), *self._host.shape[1:]), dtype=self.dtype
            )
            self._host_np = self._host.numpy()
            self._mirror = None
        if self._mirror is None:
            self._mirror = torch.zeros_like(self._host, device=self._device)
        if not np.array_equal(self._host_np[:n], source):
            self._host_np[:n] = source
            mirror, view = self._mirror[:n], upload.stage(self._host_np[:n], self._device)
            upload.after(lambda: mirror.copy_(view))
        return self._mirror[:n]

    def copy_to_gpu(
        self, x: torch.Tensor | npt.NDArray[Any], out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """A tensor of the caller's own holding x: `out`, or a new one."""
        mirror = self.copy_to_uva(x)
        return mirror.clone() if out is None else out.copy_(mirror)


def flat_indices(
    rows: Sequence[int], starts: Sequence[int], cumulative_lengths: Sequence[int], row_stride: int
) -> npt.NDArray[np.int64]:
    """Element offsets of staged writes in a row-major tensor, [cumulative_lengths[-1]] int64.

    Write i covers starts[i], starts[i] + 1, ... of row rows[i], and is
    cumulative_lengths[i] - cumulative_lengths[i - 1] elements long.
    """
    ends = np.asarray(cumulative_lengths, np.int64)
    begins = np.concatenate(([0], ends[:-1]))
    bases = np.asarray(rows, np.int64) * row_stride + np.asarray(starts, np.int64)
    return np.repeat(bases - begins, ends - begins) + np.arange(ends[-1], dtype=np.int64)


def last_of_each(indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    """Positions of the last entry of each distinct index, or None where all are distinct."""
    _, reversed_first = np.unique(indices[::-1], return_index=True)
    if reversed_first.size == indices.size:
        return None
    return np.sort(indices.size - 1 - reversed_first)


def apply_staged_writes(tensors: Sequence[StagedWriteTensor]) -> None:
    """Apply and clear the staged writes of core `StagedWriteTensor`s with one H2D copy.

    Each tensor gets one scatter. Two writes to one element leave the later one's value, whatever
    order the device scatters in. No staged write, no device work.
    """
    parts: list[tuple[Any, npt.NDArray[np.int64], npt.NDArray[Any]]] = []
    for tensor in tensors:
        rows = tensor._staged_write_indices
        if not rows:
            continue
        indices = flat_indices(
            rows, tensor._staged_write_starts, tensor._staged_write_cu_lens, tensor.gpu.stride(0)
        )
        contents = np.asarray(tensor._staged_write_contents, _NUMPY_DTYPE[tensor.dtype])
        tensor.clear_staged_writes()
        if len(set(rows)) != len(rows) and (kept := last_of_each(indices)) is not None:
            indices, contents = indices[kept], contents[kept]
        parts.append((tensor.gpu, indices, contents))
    if not parts:
        return
    words = [piece for _, indices, contents in parts for piece in _as_words(indices, contents)]
    packed = upload.stage(np.concatenate(words), parts[0][0].device)
    upload.after(lambda: _scatter(packed, parts))


def _scatter(
    packed: torch.Tensor, parts: list[tuple[Any, npt.NDArray[np.int64], npt.NDArray[Any]]]
) -> None:
    """Write each part of `packed` [words] int64 (indices, then contents) to its target."""
    offset = 0
    for target, indices, contents in parts:
        count, words = indices.size, _num_words(contents)
        where = packed[offset : offset + count]
        values = packed[offset + count : offset + count + words].view(target.dtype)[:count]
        target.view(-1)[where] = values
        offset += count + words


def apply_write(tensor: StagedWriteTensor) -> None:
    """Core's `StagedWriteTensor.apply_write`."""
    apply_staged_writes((tensor,))


_NUMPY_DTYPE = {torch.int32: np.int32, torch.int64: np.int64, torch.float32: np.float32}
_WORD_BYTES = 8


def _num_words(contents: npt.NDArray[Any]) -> int:
    return -(-contents.nbytes // _WORD_BYTES)


def _as_words(
    indices: npt.NDArray[np.int64], contents: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Both as int64 words, contents padded to whole words."""
    words = np.zeros(_num_words(contents), np.int64)
    words.view(contents.dtype)[: contents.size] = contents
    return indices, words
