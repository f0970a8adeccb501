# SPDX-License-Identifier: Apache-2.0
"""The decode step as one graph, per padded batch size and way of sampling.

Keeps the graphs, the rows that are on the device, and the rule which batches may take one. Core's
request bookkeeping before a step is the runner's.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm  # type: ignore[import-untyped]

from vllm_ascend_mrv2.attention.plan import padded_decode_lens
from vllm_ascend_mrv2.graph.capture import CapturedGraph, capture
from vllm_ascend_mrv2.graph.decode_step import DecodeStep, Sampling
from vllm_ascend_mrv2.graph.replay import ReplayProtocol

# For each size. Core's graphs of the forward alone come on top.
STEP_GRAPHS_PER_SIZE = len(Sampling)


@dataclass(frozen=True)
class StepFacts:
    """All that decides whether a step may be one graph. Unknown must be given as the unsafe value.

    num_requests, largest_size: of the batch, and of what was captured (0: nothing).
    Each of the others is true for the whole batch.
    """

    num_requests: int
    largest_size: int
    has_new_requests: bool
    has_drafts: bool
    has_grammar: bool
    has_adapters: bool
    all_one_token: bool
    all_past_prefill: bool
    needs_logits_processing: bool  # anything but temperature
    needs_logprobs: bool
    counts_nans: bool
    any_random: bool


@dataclass(frozen=True)
class StepVerdict:
    """How a step runs: `sampling` is None where it is not one graph; why."""

    sampling: Sampling | None
    reason: str


def decide_step(facts: StepFacts) -> StepVerdict:
    """Choose for one step. Pure; the first reason against the graph wins."""
    against = (
        (facts.num_requests == 0, "nothing to run"),
        (facts.largest_size == 0, "no decode step was captured"),
        (facts.num_requests > facts.largest_size, "more requests than the largest captured size"),
        (facts.has_new_requests, "a request starts: its prompt is not on the device yet"),
        (facts.has_drafts, "drafts are verified outside"),
        (not facts.all_one_token, "a request has more than one token"),
        (not facts.all_past_prefill, "a request is still in its prompt"),
        (facts.has_adapters, "a request has a LoRA adapter: the step is captured without"),
        (facts.has_grammar, "a grammar masks the logits between forward and sampling"),
        (facts.needs_logits_processing, "a request changes its logits by more than temperature"),
        (facts.needs_logprobs, "a request wants log probabilities"),
        (facts.counts_nans, "NaNs in the logits are counted"),
    )
    for applies, reason in against:
        if applies:
            return StepVerdict(None, reason)
    sampling = Sampling.SEEDED if facts.any_random else Sampling.GREEDY
    return StepVerdict(sampling, "steady decode: one graph")


@dataclass(frozen=True)
class _StepGraph:
    captured: CapturedGraph
    tokens: torch.Tensor  # [size] int64, in graph memory: the next replay overwrites it


class StepGraphs:
    """The captured decode steps of one runner."""

    def __init__(self, runner: Any, protocol: ReplayProtocol) -> None:
        self.runner = runner
        self.protocol = protocol
        self.step = DecodeStep(runner)
        self.sizes: list[int] = []
        self._graphs: dict[tuple[int, Sampling], _StepGraph] = {}
        self._rows_on_device: npt.NDArray[np.int64] = np.full(runner.max_num_reqs, -1, np.int64)

    @property
    def largest_size(self) -> int:
        return self.sizes[-1] if self.sizes else 0

    @property
    def captured(self) -> list[CapturedGraph]:
        """All captured steps."""
        return [graph.captured for graph in self._graphs.values()]

    @torch.inference_mode()
    def capture_all(self, sizes: list[int], pool: Any) -> None:
        """Capture each size for both ways of sampling, the largest first."""
        device = self.runner.device
        stream = torch.npu.Stream(device)
        stream.wait_stream(torch.npu.current_stream(device))
        steps = [(size, way) for size in sorted(sizes, reverse=True) for way in Sampling]
        for size, sampling in tqdm(steps, desc="Capturing decode steps"):
            lens = [1] * size
            with torch.npu.stream(stream):
                self.step.run(size, sampling, lens)  # makes every constant that it needs
            captured = CapturedGraph(f"decode step of {size} ({sampling.value})")
            with capture(captured, pool, stream):
                tokens = self.step.run(size, sampling, lens)
            self._graphs[size, sampling] = _StepGraph(captured, tokens)
        torch.npu.current_stream(device).wait_stream(stream)
        self.sizes = sorted(sizes)

    def rows_changed(self, rows: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64] | None:
        """The row table [max_num_reqs] to put on the device, or None if it is there."""
        wanted = self._rows_on_device
        count = len(rows)
        if np.array_equal(wanted[:count], rows) and (count == len(wanted) or wanted[count] == -1):
            return None
        wanted = np.full_like(wanted, -1)
        wanted[:count] = rows
        self._rows_on_device = wanted
        return wanted

    def replay(
        self, sampling: Sampling, kv_lens: list[int], size: int | None = None
    ) -> torch.Tensor:
        """Run a step for these host lengths; the tokens, [num_requests] int64, the caller's own.

        size: a captured size that holds the batch; None: the smallest.
        """
        count = len(kv_lens)
        if size is None:
            size = self.sizes[bisect_left(self.sizes, count)]
        graph = self._graphs[size, sampling]
        self.protocol.replay(
            graph.captured, list(range(1, size + 1)), padded_decode_lens(kv_lens, size)
        )
        return graph.tokens[:count].clone()
