# SPDX-License-Identifier: Apache-2.0
"""What the executor's shared-memory queue hands over is owned before it is staged.

Core's ring of message slots is written again after ten messages. A large array may alias its slot
(core 0.31; later cores copy it), so a copy that reads it late would send another step's data.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch

from vllm_ascend_mrv2.runner.staging import StagingRing

SLOTS = 4
LARGE = (1 << 20) // 4 + 7  # int32 values, above the size from which core sends arrays apart
SMALL = 100


def queues() -> tuple[Any, Any]:
    """Both ends of a queue between two processes, here in one."""
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

    writer = MessageQueue(1, 1, max_chunk_bytes=4 << 20, max_chunks=SLOTS)
    reader = MessageQueue.create_from_handle(writer.export_handle(), 0)
    ready = threading.Thread(target=writer.wait_until_ready)
    ready.start()
    reader.wait_until_ready()
    ready.join()
    return writer, reader


def test_a_slot_may_be_written_again_before_its_data_is_copied() -> None:
    writer, reader = queues()
    ring = StagingRing(torch.device("npu:0"), 4096, num_slots=3)
    for size in (SMALL, LARGE):
        ring.begin_step()
        writer.enqueue(np.arange(size, dtype=np.int32))
        received = reader.dequeue(timeout=60)
        view = ring.put(received)
        received = received.view()
        received.flags.writeable = True
        received[:] = -1  # as if it aliased a slot that is written again
        for _ in range(2 * SLOTS):
            writer.enqueue(np.full(size, -2, np.int32))
            reader.dequeue(timeout=60)
        ring.flush()
        assert torch.equal(view.cpu(), torch.arange(size, dtype=torch.int32))
        ring.end_step()
