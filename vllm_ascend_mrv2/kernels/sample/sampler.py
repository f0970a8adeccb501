# SPDX-License-Identifier: Apache-2.0
"""Core's sampler, with what only the host knows about a batch put to use.

The random draw only: which rows are greedy, and seed states hashed once per request. The order of
processors, logprobs and the output are core's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
from vllm.v1.worker.gpu.buffer_utils import UvaBackedTensor
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.sample import sampler as core
from vllm.v1.worker.gpu.sample.output import SamplerOutput

from vllm_ascend_mrv2.kernels.sample import gumbel

# Fields of SamplingParams that leave the logits alone, or change them by temperature only.
_LEAVE_LOGITS_ALONE = frozenset(
    {
        *("n", "temperature", "seed", "max_tokens", "output_kind", "stream_interval"),
        *("stop", "stop_token_ids", "ignore_eos", "_eos_token_id", "_all_stop_token_ids"),
        *("include_stop_str_in_output", "output_text_buffer_length", "repetition_detection"),
        *("detokenize", "skip_special_tokens", "spaces_between_special_tokens"),
        *("skip_clone", "skip_reading_prefix_cache", "flat_logprobs"),
        *("watermarking", "_watermarking_skipped"),  # WatermarkSampler knows which are drawn so
    }
)
_DEFAULTS = SamplingParams()


def samples_plainly(params: SamplingParams) -> bool:
    """Whether a request's tokens are drawn from its logits by temperature and seed alone.

    Every field that is not known to leave the logits alone must have its default: a field that a
    newer core adds is not taken for harmless.
    """
    return all(
        name in _LEAVE_LOGITS_ALONE or getattr(params, name) == getattr(_DEFAULTS, name)
        for name in params.__struct_fields__
    )


class Sampler(core.Sampler):
    """Draws core's tokens: a batch without random rows costs one argmax, no noise."""

    trace_replay_state: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # [max_num_reqs] int32: murmur3 of each request's seed, so that no step hashes seeds
        max_num_reqs = self.sampling_states.max_num_reqs
        self.seed_states = UvaBackedTensor(max_num_reqs, dtype=torch.int32)
        self.is_plain = np.zeros(max_num_reqs, dtype=bool)  # host: see `samples_plainly`
        self._custom_processors = tuple(kwargs.get("custom_logits_processors", ()))
        self._has_staged_writes = True

    def add_request(self, req_idx: int, *args: Any, **kwargs: Any) -> None:
        """As core's: the request's `sampling_params`; in 0.30 the length of its prompt before."""
        super().add_request(req_idx, *args, **kwargs)
        sampling_params: SamplingParams = kwargs["sampling_params"] if kwargs else args[-1]
        seed = torch.from_numpy(self.sampling_states.seeds.np[req_idx : req_idx + 1])
        self.seed_states.np[req_idx] = gumbel.seed_state(seed).numpy()[0]
        # A processor of the user's may change any request's logits, whatever its parameters say.
        is_untouched = not (self._custom_processors and self.needs_logits_processing[req_idx])
        self.is_plain[req_idx] = is_untouched and samples_plainly(sampling_params)
        self._has_staged_writes = True

    def apply_staged_writes(self) -> None:
        """Core calls this every step; its tables change only when a request is added."""
        if self._has_staged_writes:
            super().apply_staged_writes()
            self.seed_states.copy_to_uva()
            self._has_staged_writes = False
        else:
            for processor in self._custom_processors:  # promised a call in every step
                processor.apply_staged_writes()

    def __call__(self, logits: torch.Tensor, input_batch: InputBatch) -> SamplerOutput:
        """Core's, without the trace's kernel in a step that replays none."""
        trace = self.trace_replay_state
        if trace is None or trace.trace_len.np[input_batch.idx_mapping_np].any():
            return super().__call__(logits, input_batch)
        self.trace_replay_state = None
        try:
            return super().__call__(logits, input_batch)
        finally:
            self.trace_replay_state = trace

    def _sample_random(
        self,
        processed_logits: torch.Tensor,
        expanded_idx_mapping: torch.Tensor,
        idx_mapping_np: npt.NDArray[np.integer[Any]],
        pos: torch.Tensor,
        top_k: torch.Tensor | None,
        top_p: torch.Tensor | None,
        *of_fused_samplers: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sampled tokens [n] int64 and the logits they were drawn from.

        of_fused_samplers: when core may use another device's sampler; differs between cores.
        """
        states = self.sampling_states
        logits = apply_top_k_top_p(processed_logits, top_k, top_p)
        if not states.temperature.np[idx_mapping_np].any():
            return logits.argmax(-1), logits
        if self.use_fp64_gumbel:
            sampled = gumbel.gumbel_sample(
                logits,
                expanded_idx_mapping,
                states.temperature.gpu,
                states.seeds.gpu,
                pos,
                apply_temperature=False,
                is_drafting=False,
                use_fp64=True,
            )
            return sampled, logits
        sampled = gumbel.sample_seeded(
            logits,
            self.seed_states.gpu.index_select(0, expanded_idx_mapping),
            states.temperature.gpu.index_select(0, expanded_idx_mapping),
            pos,
            max_pos=self.req_states.max_model_len,
        )
        return sampled, logits
