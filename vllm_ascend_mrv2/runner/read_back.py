# SPDX-License-Identifier: Apache-2.0
"""What the device has computed, brought to the host once per step: the exact path of speculation.

A step's rejections are known to the device only. After it has updated the requests' counts they
are set aside, and read when a length is first asked for that depends on them: a later draft of the
same step, or the next step. One copy and one wait serve both. Who may do without is seq_lens.py's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from vllm_ascend_mrv2.runner.seq_lens import SeqLensMirror


class ComputedReadBack:
    """Keeps a mirror at the device's counts. The step thread's; not thread-safe."""

    def __init__(
        self, device: torch.device, mirror: SeqLensMirror, before_wait: Callable[[str], None]
    ) -> None:
        """before_wait: called, with what waits, before the host waits for the device."""
        self._stream = torch.npu.Stream(device)
        self._mirror = mirror
        self._before_wait = before_wait
        self._snapshot: torch.Tensor | None = None
        self._ready = torch.npu.Event()

    def set_aside(self, computed: torch.Tensor) -> None:
        """Note the counts [max_num_reqs] int32 as the compute stream has them here.

        To be called after each step's update. A copy on the device, since the next step's new
        requests are written to `computed` before it may have been read.
        """
        self._snapshot = computed.clone()
        self._ready.record(torch.npu.current_stream(computed.device))
        self._mirror.begin_read()

    def computed(self, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.int32]:
        """The device's counts of `rows`, [num_reqs] int32. Waits, the first time after a step.

        Rows added since are as long as their request came.
        """
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            self._before_wait("a read of computed tokens")
            # Not on the compute stream, where drafts may be queued behind the update already.
            with torch.npu.stream(self._stream):
                self._stream.wait_event(self._ready)
                values = snapshot.to("cpu").numpy()
            self._mirror.end_read(values)
        return self._mirror.computed(rows)
