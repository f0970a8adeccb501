# SPDX-License-Identifier: Apache-2.0
"""The attention tasks inside a captured graph, and their update with a step's host lengths.

FIA takes lengths on the host, so a captured call is frozen with those of its capture. Each is
captured as a task group behind an external event: the replay stops at the event until the task
was updated and the event recorded. Order against other replays is the protocol's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from vllm_ascend_mrv2.attention.fia import FiaCall


class TaskMismatchError(RuntimeError):
    """The updates of a replay are not those that were captured."""


class TaskEvent(Protocol):
    """An external event: torch.npu.ExternalEvent, or the hot path's."""

    def wait(self, stream: torch.npu.Stream) -> None: ...

    def reset(self, stream: torch.npu.Stream) -> None: ...

    def record(self, stream: torch.npu.Stream) -> None: ...


@dataclass(frozen=True)
class AttentionTask:
    """One captured FIA call and all that an update of it needs."""

    call: FiaCall
    output: torch.Tensor
    softmax_lse: torch.Tensor
    workspace: torch.Tensor
    handle: Any  # task group
    may_run: TaskEvent

    def launch(self, query_ends: list[int], kv_lens: list[int]) -> None:
        """Make the call into the captured tensors with these lengths."""
        self.call.attend_into(self.output, self.softmax_lse, self.workspace, query_ends, kv_lens)


class AttentionTasks:
    """The tasks of one graph in capture order. Recorder of the capture, updater of replays."""

    def __init__(self, new_event: Callable[[], TaskEvent]) -> None:
        self.tasks: list[AttentionTask] = []
        self._new_event = new_event

    def record(self, call: FiaCall, query_ends: list[int], kv_lens: list[int]) -> torch.Tensor:
        """Capture `call` on the current stream as a task that waits for its update."""
        query = call.query
        output = torch.empty_like(query)
        softmax_lse = torch.empty(1, dtype=torch.float32, device=query.device)
        workspace = call.workspace(query_ends, kv_lens)
        stream = torch.npu.current_stream(query.device)
        may_run = self._new_event()
        may_run.wait(stream)
        may_run.reset(stream)
        torch.npu.graph_task_group_begin(stream)
        call.attend_into(output, softmax_lse, workspace, query_ends, kv_lens)
        handle = torch.npu.graph_task_group_end(stream)
        self.tasks.append(AttentionTask(call, output, softmax_lse, workspace, handle, may_run))
        return output

    @property
    def have_mask(self) -> bool:
        """Whether attention is given a mask, and with it the query length of each request."""
        return any(task.call.mask is not None for task in self.tasks)

    def require(self, captured: int) -> None:
        """Raises TaskMismatchError unless there are `captured` tasks."""
        if len(self.tasks) != captured:
            raise TaskMismatchError(
                f"the graph waits for {captured} attention updates and {len(self.tasks)} are known"
            )

    def update(
        self,
        stream: torch.npu.Stream,
        query_ends: list[int],
        kv_lens: Sequence[int],
        captured: int,
    ) -> None:
        """Give every task these lengths and let it run, on the update stream `stream`.

        captured: how many tasks the graph holds. Raises TaskMismatchError if they are not all
        here; then none is updated.
        """
        self.require(captured)
        lens = list(kv_lens)
        with torch.npu.stream(stream):
            for task in self.tasks:
                torch.npu.graph_task_update_begin(stream, task.handle)
                try:
                    task.launch(query_ends, lens)
                except BaseException:
                    with suppress(RuntimeError):  # the stream must not stay in this update
                        torch.npu.graph_task_update_end(stream)
                    raise
                torch.npu.graph_task_update_end(stream)
                task.may_run.record(stream)

    def let_go(self, stream: torch.npu.Stream) -> None:
        """Let a replay end whose updates failed. Its result must not be used."""
        for task in self.tasks:
            task.may_run.record(stream)
