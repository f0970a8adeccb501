# SPDX-License-Identifier: Apache-2.0
"""Results of a step, fetched where they are awaited.

Core starts its device-to-host copies on the thread that prepares the next step, with
`non_blocking=True`, for which torch_npu allocates pinned memory whatever the platform says. Here
that thread only records an event; the thread that calls `get_output` waits for it on the copy
stream and copies into pageable memory. Nothing here may run on the compute stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import vllm.envs as envs
from vllm.v1.outputs import (
    AsyncModelRunnerOutput,
    DraftTokenIds,
    LogprobsTensors,
    ModelRunnerOutput,
)
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.utils import raise_if_nan_logits

from vllm_ascend_mrv2.compat import sampling_mask
from vllm_ascend_mrv2.graph.watchdog import Watchdog
from vllm_ascend_mrv2.last_words import SAID

_watchdog: Watchdog | None = None


def use(watchdog: Watchdog | None) -> None:
    """Bound every result's wait by `watchdog`. One runner per process; core makes the results."""
    global _watchdog
    _watchdog = watchdog


class _LateResult(AsyncModelRunnerOutput):
    """A result that exists on the device once `main_stream` comes to here.

    Subclasses hold the step's device tensors until they have copied them, so that their memory is
    not reused on the compute stream before.
    """

    def __init__(
        self,
        output: ModelRunnerOutput,
        main_stream: torch.npu.Stream,
        copy_stream: torch.npu.Stream,
    ) -> None:
        self._output = output
        self._copy_stream = copy_stream
        self._ready = torch.npu.Event()
        self._ready.record(main_stream)

    def get_kv_connector_output(self) -> Any:
        """Core 0.33 asks for it where `get_output` failed; None, as no connector is served."""
        return self._output.kv_connector_output

    @contextmanager
    def _copying(self) -> Iterator[None]:
        """Within this block copies run on the copy stream, after this step and no other."""
        device = self._copy_stream.device
        with SAID, torch.npu.device(device), torch.npu.stream(self._copy_stream):
            if _watchdog is not None:
                _watchdog.wait(self._ready)
            self._copy_stream.wait_event(self._ready)
            yield


class AscendStepOutput(_LateResult):
    """The result of a decode step that ran as one graph: one token for each request."""

    def __init__(
        self,
        output: ModelRunnerOutput,
        tokens: torch.Tensor,
        main_stream: torch.npu.Stream,
        copy_stream: torch.npu.Stream,
    ) -> None:
        """tokens: [num_reqs] int64 on the device, not in graph memory."""
        super().__init__(output, main_stream, copy_stream)
        self._tokens = tokens

    def get_output(self) -> ModelRunnerOutput:
        """Wait for this step alone, copy its tokens (the one D2H) and return them."""
        with self._copying():
            self._output.sampled_token_ids = _host(self._tokens.view(-1, 1)).tolist()
        return self._output


class AscendAsyncOutput(_LateResult):
    """Takes the place of core's AsyncOutput, with the same constructor."""

    def __init__(
        self,
        model_runner_output: ModelRunnerOutput,
        sampler_output: SamplerOutput,
        num_sampled_tokens: torch.Tensor,
        main_stream: torch.npu.Stream,
        copy_stream: torch.npu.Stream,
        check_ep_fault: bool = False,
        pending_aux_output: Any | None = None,
        routed_experts: Any | None = None,  # in the other's place in core 0.30
    ) -> None:
        if check_ep_fault or pending_aux_output is not None or routed_experts is not None:
            raise NotImplementedError(
                "expert-parallel fault checks and the auxiliary output connector are not "
                "supported on this platform; start without them."
            )
        super().__init__(model_runner_output, main_stream, copy_stream)
        self._sampler_output = sampler_output
        self._num_sampled_tokens = num_sampled_tokens

    def get_output(self) -> ModelRunnerOutput:
        """Wait for this step alone, copy its results and return them."""
        output, sampled = self._output, self._sampler_output
        with self._copying():
            token_ids: list[list[int]] = _host(sampled.sampled_token_ids).tolist()
            num_sampled = _host(self._num_sampled_tokens).numpy()
            logprobs = _host_logprobs(sampled.logprobs_tensors)
            num_nans = None if sampled.num_nans is None else _host(sampled.num_nans)
            masks = sampled.sampling_mask_tensors
            if masks is not None:
                masks = masks._replace(
                    token_ids=_host(masks.token_ids),
                    packed_mask=_host(masks.packed_mask),
                    counts=_host(masks.counts),
                )
            output.prompt_logprobs_dict = {
                req_id: _host_logprobs(tensors)
                for req_id, tensors in output.prompt_logprobs_dict.items()
            }
            scores = getattr(output, "prompt_token_id_logprobs_dict", {})  # not in core 0.30
            for req_id, tensor in scores.items():
                scores[req_id] = _host(tensor)
        for ids, count in zip(token_ids, num_sampled.tolist(), strict=True):
            del ids[count:]
        output.sampled_token_ids = token_ids
        if masks is not None:
            output.sampling_masks = sampling_mask.as_lists(masks, num_sampled)
        if num_nans is not None:
            output.num_nans_in_logits = dict(zip(output.req_ids, num_nans.tolist(), strict=False))
            if envs.VLLM_RAISE_ON_LOGIT_NANS:
                raise_if_nan_logits(output.num_nans_in_logits)
        if logprobs is not None:
            output.logprobs = logprobs.tolists()
        return output


class DraftTokens:
    """Takes the place of core's DraftTokensHandler: drafts that a grammar must see on the host."""

    def __init__(self, device: torch.device | None = None) -> None:
        self._stream = torch.npu.Stream(device)
        self._ready = torch.npu.Event()
        self._req_ids: list[str] = []
        self._num_drafts = 0
        self._drafts: torch.Tensor | None = None

    def set_draft_tokens(self, input_batch: InputBatch, draft_tokens: torch.Tensor) -> None:
        """draft_tokens: [num_reqs, k] int64 on the device, its caller's no more."""
        self._req_ids = input_batch.req_ids
        self._num_drafts = draft_tokens.shape[1]
        self._drafts = None
        if input_batch.has_structured_output_reqs:
            self._drafts = draft_tokens
            self._ready.record(torch.npu.current_stream(draft_tokens.device))

    def get_draft_tokens(self) -> DraftTokenIds:
        """The drafts, copied here, or placeholders where no grammar asked for them."""
        drafts, self._drafts = self._drafts, None
        if drafts is None:
            return DraftTokenIds(self._req_ids, [[-1] * self._num_drafts for _ in self._req_ids])
        with SAID, torch.npu.stream(self._stream):
            if _watchdog is not None:
                _watchdog.wait(self._ready)
            self._stream.wait_event(self._ready)
            return DraftTokenIds(self._req_ids, _host(drafts).tolist())


class AscendPoolingOutput(_LateResult):
    """Takes the place of core's AsyncPoolingOutput, with the same constructor."""

    def __init__(
        self,
        model_runner_output: ModelRunnerOutput,
        pooler_output: torch.Tensor | list[torch.Tensor | None],
        finished_mask: list[bool],
        main_stream: torch.npu.Stream,
        copy_stream: torch.npu.Stream,
    ) -> None:
        """pooler_output: of each request, [num_reqs, ...] or a list; finished_mask: [num_reqs]."""
        super().__init__(model_runner_output, main_stream, copy_stream)
        self._pooled = pooler_output
        self._finished_mask = finished_mask

    def get_output(self) -> ModelRunnerOutput:
        """Wait for this step alone, copy what is finished (None for the others) and return it."""
        pooled = self._pooled
        with self._copying():
            if isinstance(pooled, torch.Tensor):
                pooled = list(_host(pooled).unbind())
            self._output.pooler_output = [
                _host(one) if is_finished and one is not None else None
                for one, is_finished in zip(pooled, self._finished_mask, strict=True)
            ]
        return self._output


def _host(tensor: torch.Tensor) -> torch.Tensor:
    """A pageable host copy, complete when this returns."""
    return tensor.to("cpu")


def _host_logprobs(tensors: LogprobsTensors | None) -> LogprobsTensors | None:
    if tensors is None:
        return None
    return type(tensors)(*(_host(x) if isinstance(x, torch.Tensor) else x for x in tensors))
