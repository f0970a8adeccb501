# SPDX-License-Identifier: Apache-2.0
"""The Ascend model runner: core's MRV2 runner plus the sequence-length authority.

Only what joins core's step to the authority lives here. Kernels, attention, results and
decisions have their own modules; a model's or a feature's particulars may not be added.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.model_runner import GPUModelRunner

from vllm_ascend_mrv2 import envs
from vllm_ascend_mrv2.attention.plan import HostSeqLens
from vllm_ascend_mrv2.runner.seq_lens import (
    SeqLensAuthority,
    SeqLensFacts,
    SeqLensMirror,
    VerdictLog,
    decide_seq_lens,
)

# A child of the logger that vLLM configures: others are silent below WARNING.
logger = init_logger(f"vllm.{__name__}")


class AscendModelRunner(GPUModelRunner):
    """MRV2 on NPUs. One instance per worker; not thread-safe but for results (see output.py)."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        self.seq_lens_mirror = SeqLensMirror(self.max_num_reqs)
        self.host_seq_lens = HostSeqLens()
        self.seq_lens_log = VerdictLog()
        self._seq_lens_from_device = envs.SEQ_LENS.read() == "device"

    def initialize_kv_cache(self, *args: Any, **kwargs: Any) -> None:
        super().initialize_kv_cache(*args, **kwargs)
        for groups in self.attn_groups:
            for group in groups:
                for builder in group.metadata_builders:
                    builder.host_seq_lens = self.host_seq_lens

    def add_requests(self, scheduler_output: SchedulerOutput) -> None:
        super().add_requests(scheduler_output)
        for new_request in scheduler_output.scheduled_new_reqs:
            row = self.req_states.req_id_to_index[new_request.req_id]
            self.seq_lens_mirror.add(row, new_request.num_computed_tokens)

    def _remove_request(self, req_id: str) -> bool:
        row = self.req_states.req_id_to_index.get(req_id)
        if row is not None:
            self.seq_lens_mirror.remove(row)
        return super()._remove_request(req_id)

    def prepare_inputs(
        self, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any
    ) -> InputBatch:
        input_batch = super().prepare_inputs(scheduler_output, *args, **kwargs)
        self._publish_seq_lens(input_batch)
        return input_batch

    def prepare_dummy_attn(
        self, input_batch: InputBatch, valid_state_slots: bool = False
    ) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        # A dummy batch's lengths are made on the host, in this array, by core.
        self.host_seq_lens.publish(input_batch.seq_lens_cpu_upper_bound.numpy())
        return super().prepare_dummy_attn(input_batch, valid_state_slots)

    def _publish_seq_lens(self, batch: InputBatch) -> None:
        """Decide who speaks for this batch's lengths and publish them for the attention plan."""
        rows = batch.idx_mapping_np
        mirror = self.seq_lens_mirror
        verdict = decide_seq_lens(
            SeqLensFacts(
                forced_to_device=self._seq_lens_from_device,
                has_speculator=self.speculator is not None,
                has_drafts=batch.num_draft_tokens > 0,
                new_tokens_per_step=self.model_state.num_new_sampled_tokens_per_step,
                is_diffusion=self.model_config.is_diffusion,
                samples_here=self.is_last_pp_rank,
                mirror_complete=mirror.follows(rows),
                mirror_agrees=mirror.agrees(rows, batch.num_computed_tokens_np),
            )
        )
        if self.seq_lens_log.note(verdict):
            logger.info("Sequence lengths: %s (%s)", verdict.authority.value, verdict.reason)
        if verdict.authority is SeqLensAuthority.DEVICE:
            lens = self._read_seq_lens(batch)
            batch.seq_lens_cpu_upper_bound = torch.from_numpy(lens)
            mirror.correct(rows, lens[: batch.num_reqs])
        else:
            lens = batch.seq_lens_cpu_upper_bound.numpy()
            mirror.advance(rows, batch.num_scheduled_tokens)
        self.host_seq_lens.publish(lens)

    def _read_seq_lens(self, batch: InputBatch) -> np.ndarray:
        """The device's own lengths, [num_reqs_after_padding] int32: one D2H, waits for it."""
        return batch.seq_lens.to("cpu").numpy()
