# SPDX-License-Identifier: Apache-2.0
"""The Ascend model runner: core's MRV2 runner joined to authority, staging and graphs.

Only what joins core's step to them lives here, in the order of a step. What each does has its own
module; a model's or a feature's particulars may not be added.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from vllm.config import VllmConfig
from vllm.distributed.parallel_state import get_dp_group, get_world_group
from vllm.logger import init_logger
from vllm.utils.math_utils import round_up
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.lora_utils import NO_LORA_ID
from vllm.v1.worker.gpu.model_runner import GPUModelRunner

from vllm_ascend_mrv2 import envs
from vllm_ascend_mrv2.attention.fia import compressed_causal_mask
from vllm_ascend_mrv2.attention.plan import HostSeqLens
from vllm_ascend_mrv2.distributed.agreement import (
    RankStep,
    agreed_sizes,
    decide_step_of_ranks,
    exchange,
)
from vllm_ascend_mrv2.graph.budget import (
    DEVICE_STREAMS,
    RESERVED_STREAMS,
    CaptureBudget,
    bytes_per_row,
    prune_sizes,
)
from vllm_ascend_mrv2.graph.decode_step import UNUSED_SLOT, Sampling
from vllm_ascend_mrv2.graph.replay import ReplayProtocol
from vllm_ascend_mrv2.graph.step_graphs import (
    STEP_GRAPHS_PER_SIZE,
    StepFacts,
    StepGraphs,
    StepVerdict,
    decide_step,
)
from vllm_ascend_mrv2.graph.watchdog import Watchdog
from vllm_ascend_mrv2.kernels import upload
from vllm_ascend_mrv2.kernels.sample import penalties
from vllm_ascend_mrv2.runner import output as results
from vllm_ascend_mrv2.runner.garbage import no_collection
from vllm_ascend_mrv2.runner.input_copy import InputCopyPolicy, input_copy_of
from vllm_ascend_mrv2.runner.masked import hides_unverified, new_blocks, zero_blocks
from vllm_ascend_mrv2.runner.memory import use_what_sampling_needs
from vllm_ascend_mrv2.runner.output import AscendStepOutput
from vllm_ascend_mrv2.runner.read_back import ComputedReadBack
from vllm_ascend_mrv2.runner.seq_lens import (
    SeqLensAuthority,
    SeqLensFacts,
    SeqLensMirror,
    SeqLensVerdict,
    VerdictLog,
    decide_seq_lens,
)
from vllm_ascend_mrv2.runner.staging import StagingRing

# A child of the logger that vLLM configures: others are silent below WARNING.
logger = init_logger(f"vllm.{__name__}")

# Of a step's host data; long prompts are copied apart (see StagingRing.put).
STAGING_BYTES = 1 << 20


def forget_runner() -> None:
    """Let go of what a runner of this process and thread left behind: its memory is on the device.

    Kernels and results find their runner's staging and watchdog through these two places.
    """
    upload.use(None)
    results.use(None)


class AscendModelRunner(GPUModelRunner):
    """MRV2 on NPUs. One instance per worker; not thread-safe but for results (see output.py)."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        self.staging = StagingRing(device, STAGING_BYTES, vllm_config.max_concurrent_batches + 1)
        self.stages_inputs = input_copy_of(vllm_config).policy is InputCopyPolicy.ON_PREPARE_STREAM
        upload.use(self.staging, keep_repeats=vllm_config.speculative_config is not None)
        super().__init__(vllm_config, device)
        self.seq_lens_mirror = SeqLensMirror(self.max_num_reqs)
        self.host_seq_lens = HostSeqLens()
        self.seq_lens_log: VerdictLog[SeqLensVerdict] = VerdictLog()
        self.step_log: VerdictLog[StepVerdict] = VerdictLog()
        self.replay_protocol = ReplayProtocol(device)
        self.staging.before_wait = self.replay_protocol.close_window
        self.watchdog = Watchdog(
            self.replay_protocol,
            envs.REPLAY_TIMEOUT_S.seconds(),
            vllm_config.parallel_config.rank,
        )
        results.use(self.watchdog)
        self.step_graphs: StepGraphs | None = None
        # What a step may take beyond weights and KV cache; the worker's to say, once measured.
        self.peak_activation_bytes = 0
        penalties.count_drafts(self.speculator is not None)
        self.read_back: ComputedReadBack | None = None
        if self.speculator is not None:
            self.read_back = ComputedReadBack(
                device, self.seq_lens_mirror, self.replay_protocol.close_window
            )
            self.speculator.read_back = self.read_back
        # Of every batch in which each request verifies as many drafts as there can be.
        self._hides_unverified = self.speculator is not None and hides_unverified()
        if self.speculator is not None:
            self.speculator.hides_unverified = self._hides_unverified
        self._batch_has_penalties = True
        self._seq_lens_from_device = envs.SEQ_LENS.read() == "device"
        self._step_result: tuple[list[str], torch.Tensor] | None = None

    # -- start-up -----------------------------------------------------------------------------

    def profile_run(self, *args: Any, **kwargs: Any) -> None:
        super().profile_run(*args, **kwargs)
        if self.is_last_pp_rank and not self.is_pooling_model:
            use_what_sampling_needs(self)

    def initialize_kv_cache(
        self, kv_cache_config: KVCacheConfig, *args: Any, **kwargs: Any
    ) -> None:
        self._prune_capture_sizes(kv_cache_config)
        super().initialize_kv_cache(kv_cache_config, *args, **kwargs)
        for groups in self.attn_groups:
            for group in groups:
                for builder in group.metadata_builders:
                    builder.host_seq_lens = self.host_seq_lens
                    if self._hides_unverified:
                        builder.masked_query_len = self.decode_query_len
        self.cudagraph_manager.protocol = self.replay_protocol
        self.cudagraph_manager.host_seq_lens = self.host_seq_lens
        if hasattr(self.speculator, "use_graphs"):
            self.speculator.use_graphs(self.replay_protocol, self.host_seq_lens)

    def _prune_capture_sizes(self, kv_cache_config: KVCacheConfig) -> None:
        """Leave core only the sizes that streams and memory suffice for, and log why."""
        compilation = self.compilation_config
        # In tokens: of a step that verifies drafts, several for each request.
        query_len = self.decode_query_len
        most = min(self.max_num_reqs * query_len, self.max_num_tokens)
        largest = most // query_len * query_len
        asked = (n for n in compilation.cudagraph_capture_sizes or () if n <= most)
        sizes = sorted({min(round_up(n, query_len), largest) for n in asked})
        if not sizes:
            return
        kv_cache_bytes = max((t.size for t in kv_cache_config.kv_cache_tensors), default=0)
        row_bytes = bytes_per_row(
            self.vocab_size, self.model_config.get_hidden_size(), self.dtype.itemsize
        )
        made = prune_sizes(
            sizes,
            STEP_GRAPHS_PER_SIZE + len(self.lora_capture_cases),
            lambda size: size * row_bytes,
            CaptureBudget(
                streams=DEVICE_STREAMS - RESERVED_STREAMS,
                memory_bytes=max(
                    0,
                    torch.npu.mem_get_info(self.device)[0]
                    - kv_cache_bytes
                    - self.peak_activation_bytes,
                ),
            ),
        )
        kept = self._sizes_of_all_ranks(list(made.sizes))
        log = logger.info if len(kept) == len(sizes) else logger.warning
        log("Graph capture: %s", made.reason)
        if len(kept) < len(made.sizes):
            log("Graph capture: only the %d sizes that every rank has room for.", len(kept))
        compilation.cudagraph_capture_sizes = kept
        compilation.max_cudagraph_capture_size = max(kept, default=0)

    def _sizes_of_all_ranks(self, mine: list[int]) -> list[int]:
        """What every rank can capture: one that lacks a size would run another step than others."""
        world = get_world_group()
        if world.world_size == 1:
            return mine
        of_ranks: list[list[int]] = [[] for _ in range(world.world_size)]
        dist.all_gather_object(of_ranks, mine, group=world.cpu_group)
        return agreed_sizes(of_ranks)

    def capture_model(self, *, profile_only: bool = False) -> int:
        compressed_causal_mask(self.device)
        size_bytes = super().capture_model(profile_only=profile_only)
        sizes = self.cudagraph_manager.captured_token_counts()
        # With a speculator every step ends with drafts, which are not part of that graph. A
        # pipeline's stages each have a part of the step, and hand it on in between.
        if sizes and not (profile_only or self.use_pp or self.speculator is not None):
            if self.lora_config is not None:
                none = (NO_LORA_ID,) * max(sizes)
                self._set_active_loras(none, none, set())
            self.step_graphs = StepGraphs(self, self.replay_protocol)
            with no_collection():
                self.step_graphs.capture_all(sizes, self.cudagraph_manager.pool)
        gc.freeze()  # core's capture has collected, and unfrozen, everything
        return size_bytes

    def shutdown(self) -> None:
        self.replay_protocol.close()
        if self.watchdog.has_failed:
            # Core waits for the device here, which does not come back: leave it to the exit.
            logger.warning("The device is left as it is: a step on it does not end.")
            return
        forget_runner()
        self.step_graphs = None
        if self.lora_config is not None and hasattr(self, "lora_manager"):
            del self.lora_manager  # it holds the model and the adapters' slots
        super().shutdown()

    # -- requests -----------------------------------------------------------------------------

    def add_requests(self, scheduler_output: SchedulerOutput) -> None:
        super().add_requests(scheduler_output)
        for new_request in scheduler_output.scheduled_new_reqs:
            row = self.req_states.req_id_to_index[new_request.req_id]
            self.seq_lens_mirror.add(row, new_request.num_computed_tokens)

    def update_requests(self, scheduler_output: SchedulerOutput) -> None:
        super().update_requests(scheduler_output)
        if self._hides_unverified:
            zero_blocks(self.kv_caches, new_blocks(scheduler_output, self.block_tables.block_sizes))

    def _remove_request(self, req_id: str) -> bool:
        row = self.req_states.req_id_to_index.get(req_id)
        if row is not None:
            self.seq_lens_mirror.remove(row)
        return super()._remove_request(req_id)

    # -- a step -------------------------------------------------------------------------------

    @torch.inference_mode()
    def execute_model(
        self,
        scheduler_output: SchedulerOutput,
        intermediate_tensors: Any = None,
        dummy_run: bool = False,
        **kwargs: Any,
    ) -> Any:
        if dummy_run:
            return super().execute_model(
                scheduler_output, intermediate_tensors, dummy_run=True, **kwargs
            )
        self._step_result = None
        if self.stages_inputs:
            self.staging.begin_step()
        verdict = decide_step(self._step_facts(scheduler_output))
        size = None
        num_requests = len(scheduler_output.num_scheduled_tokens)
        # Without requests nothing runs here, and the engine runs an idle batch next.
        if self.dp_size > 1 and self.step_graphs is not None and num_requests:
            verdict, size = self._agree(verdict, num_requests)
        if self.step_log.note(verdict):
            logger.debug("Step: %s (%s)", verdict.sampling, verdict.reason)
        if verdict.sampling is not None:
            self._execute_step_graph(scheduler_output, verdict.sampling, size)
            return None
        output = super().execute_model(scheduler_output, intermediate_tensors, **kwargs)
        if self.execute_model_state is None:  # nothing ran: no sample_tokens will follow
            upload.flush()
            self.staging.end_step()
        return output

    def sample_tokens(self, grammar_output: GrammarOutput | None) -> Any:
        if self._step_result is None:
            output = super().sample_tokens(grammar_output)
        else:
            output = self._step_graph_output(*self._step_result)
            self._step_result = None
        self.staging.end_step()
        return output

    def pool(self) -> Any:
        output = super().pool()
        self.staging.end_step()
        return output

    # -- a step as one graph ------------------------------------------------------------------

    def _step_facts(self, scheduler_output: SchedulerOutput) -> StepFacts:
        """What the scheduler and the host's tables say, before any state is updated."""
        graphs, sampler = self.step_graphs, self.sampler
        cached = scheduler_output.scheduled_cached_reqs
        is_decode = not scheduler_output.scheduled_new_reqs and len(cached.req_ids) == len(
            scheduler_output.num_scheduled_tokens
        )
        if graphs is None or not is_decode:
            return StepFacts(
                num_requests=len(scheduler_output.num_scheduled_tokens),
                largest_size=0 if graphs is None else graphs.largest_size,
                has_new_requests=True,
                has_drafts=True,
                has_grammar=True,
                has_adapters=True,
                all_one_token=False,
                all_past_prefill=False,
                needs_logits_processing=True,
                needs_logprobs=True,
                counts_nans=True,
                any_random=True,
            )
        rows = self._rows(cached.req_ids)
        computed = np.asarray(cached.num_computed_tokens)
        is_plain = bool(sampler.is_plain[rows].all()) and not sampler.return_sampling_mask
        return StepFacts(
            num_requests=len(rows),
            largest_size=graphs.largest_size,
            has_new_requests=False,
            has_drafts=bool(scheduler_output.scheduled_spec_decode_tokens),
            has_grammar=scheduler_output.has_structured_output_requests,
            has_adapters=bool((self.lora_state.lora_ids[rows] != NO_LORA_ID).any()),
            all_one_token=scheduler_output.total_num_scheduled_tokens == len(rows),
            all_past_prefill=bool((computed >= self.req_states.prefill_len.np[rows]).all()),
            needs_logits_processing=not is_plain,
            needs_logprobs=not is_plain,
            counts_nans=sampler.compute_nans,
            any_random=bool(sampler.sampling_states.temperature.np[rows].any()),
        )

    def _rows(self, req_ids: list[str]) -> npt.NDArray[np.intp]:
        index = self.req_states.req_id_to_index
        return np.fromiter(map(index.__getitem__, req_ids), np.intp, len(req_ids))

    def _agree(self, mine: StepVerdict, num_requests: int) -> tuple[StepVerdict, int | None]:
        """What all data-parallel ranks do in this step, and at which size if it is one graph."""
        assert self.step_graphs is not None
        group = get_dp_group()
        is_idle = num_requests == 0
        facts = RankStep(mine.sampling is not None or is_idle, num_requests)
        ranks = exchange(facts, group.rank_in_group, group.world_size, group.cpu_group)
        agreed = decide_step_of_ranks(ranks, self.step_graphs.sizes)
        if agreed.size is None:
            return (
                StepVerdict(None, agreed.reason if mine.sampling is not None else mine.reason),
                None,
            )
        return mine, agreed.size

    @torch.inference_mode()
    def run_idle(self) -> bool:
        """Run along with data-parallel ranks that have requests, if they all replay one graph.

        False where they do not: core's dummy batch must follow.
        """
        if self.dp_size == 1 or self.step_graphs is None:
            return False
        _, size = self._agree(StepVerdict(None, "no requests"), 0)
        if size is None:
            return False
        if self.stages_inputs:
            self.staging.begin_step()
        self._put_rows(np.empty(0, np.intp))
        upload.flush()
        self.step_graphs.replay(Sampling.GREEDY, [], size)
        self.staging.end_step()
        return True

    def _put_rows(self, rows: npt.NDArray[np.intp]) -> None:
        """Stage the batch's rows, if they are not on the device already."""
        graphs = self.step_graphs
        assert graphs is not None
        if (table := graphs.rows_changed(rows)) is not None:
            view = upload.stage(table, self.device)
            upload.after(lambda: graphs.step.rows.copy_(view))

    def _execute_step_graph(
        self, scheduler_output: SchedulerOutput, sampling: Sampling, size: int | None
    ) -> None:
        """Core's own bookkeeping, then the device's whole step in one replay.

        size: batch rows that all ranks agreed on; None: as this batch needs.
        """
        graphs = self.step_graphs
        assert graphs is not None
        self.finish_requests(scheduler_output)
        self.free_states(scheduler_output)
        self.add_requests(scheduler_output)
        self.update_requests(scheduler_output)
        self.block_tables.apply_staged_writes()
        req_ids = list(scheduler_output.num_scheduled_tokens)
        rows = self._rows(req_ids)
        self._put_rows(rows)
        upload.flush()
        lens = self._decide_seq_lens(
            rows,
            num_scheduled=np.ones(len(rows), dtype=np.int32),
            num_computed=self.req_states.num_computed_tokens_np[rows],
            device_lens=lambda: self._computed_on_device(graphs.step.rows[: len(rows)]) + 1,
        )
        self._step_result = req_ids, graphs.replay(sampling, lens.tolist(), size)

    def _computed_on_device(self, rows: torch.Tensor) -> npt.NDArray[np.int32]:
        self.replay_protocol.close_window("a read of sequence lengths")
        computed = self.req_states.num_computed_tokens.gpu.index_select(0, rows)
        return computed.to("cpu").numpy()

    def _step_graph_output(self, req_ids: list[str], tokens: torch.Tensor) -> AscendStepOutput:
        output = ModelRunnerOutput(
            req_ids=req_ids,
            req_id_to_index={req_id: row for row, req_id in enumerate(req_ids)},
            sampled_token_ids=None,
            prompt_logprobs_dict={},
        )
        return AscendStepOutput(output, tokens, self.main_stream, self.output_copy_stream)

    # -- lengths ------------------------------------------------------------------------------

    def prepare_inputs(
        self, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any
    ) -> InputBatch:
        batch = super().prepare_inputs(scheduler_output, *args, **kwargs)
        if self.sampler is not None:
            has_penalties = self.sampler.penalties_state.use_penalty[batch.idx_mapping_np]
            self._batch_has_penalties = bool(has_penalties.any())
        lens = self._decide_seq_lens(
            batch.idx_mapping_np,
            num_computed=batch.num_computed_tokens_np,
            num_scheduled=batch.num_scheduled_tokens,
            device_lens=lambda: self._read_seq_lens(batch),
            has_drafts=batch.num_draft_tokens > 0,
            hides_unverified=self._hides_unverified
            and bool((batch.num_scheduled_tokens == self.decode_query_len).all()),
        )
        batch.seq_lens_cpu_upper_bound[: batch.num_reqs] = torch.from_numpy(lens)
        self.host_seq_lens.publish(batch.seq_lens_cpu_upper_bound.numpy())
        if not self.is_last_pp_rank:
            # Core reads it again when this step's tokens arrive, some steps later; a staged view
            # does not live so long.
            batch.idx_mapping = batch.idx_mapping.clone()
        return batch

    def _update_what_is_asked_for(self, *args: Any, **kwargs: Any) -> None:
        """Core's update, which counts every token for penalties: not where no request has any."""
        if self._batch_has_penalties or self.sampler is None:
            super().postprocess_sampled(*args, **kwargs)
            return
        penalties = self.sampler.penalties_state
        counts, penalties.output_bin_counts = penalties.output_bin_counts, None
        try:
            super().postprocess_sampled(*args, **kwargs)
        finally:
            penalties.output_bin_counts = counts

    def prepare_attn(self, input_batch: InputBatch) -> Any:
        block_tables, slot_mappings = super().prepare_attn(input_batch)
        num_tokens, padded = input_batch.num_tokens, input_batch.num_tokens_after_padding
        if padded > num_tokens:
            # Tokens of no request are written nowhere.
            slot_mappings[:, num_tokens:padded] = UNUSED_SLOT
        return block_tables, slot_mappings

    def prepare_dummy_attn(
        self, input_batch: InputBatch, valid_state_slots: bool = False
    ) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        # A dummy batch's lengths are made on the host, in this array, by core.
        self.host_seq_lens.publish(input_batch.seq_lens_cpu_upper_bound.numpy())
        return super().prepare_dummy_attn(input_batch, valid_state_slots)

    def _decide_seq_lens(
        self,
        rows: npt.NDArray[np.intp],
        num_computed: npt.NDArray[np.int32],
        num_scheduled: npt.NDArray[np.int32],
        device_lens: Any,
        has_drafts: bool = False,
        hides_unverified: bool = False,
    ) -> npt.NDArray[np.int32]:
        """This step's lengths [num_reqs] int32, from whoever may say them; the mirror follows."""
        mirror = self.seq_lens_mirror
        verdict = decide_seq_lens(
            SeqLensFacts(
                forced_to_device=self._seq_lens_from_device,
                # Of a pipeline only the last rank loads one, and the others verify its drafts too.
                has_speculator=self.speculative_config is not None,
                has_drafts=has_drafts,
                hides_unverified=hides_unverified,
                new_tokens_per_step=self.model_state.num_new_sampled_tokens_per_step,
                is_diffusion=self.model_config.is_diffusion,
                mirror_complete=mirror.follows(rows),
                mirror_agrees=mirror.agrees(rows, num_computed),
            )
        )
        if self.seq_lens_log.note(verdict):
            logger.info("Sequence lengths: %s (%s)", verdict.authority.value, verdict.reason)
        if verdict.authority is SeqLensAuthority.DEVICE:
            if self.read_back is not None and not self._seq_lens_from_device:
                return self.read_back.computed(rows) + num_scheduled
            lens = device_lens()
            mirror.correct(rows, lens)
            return lens
        if verdict.authority is SeqLensAuthority.BOUND:
            return num_computed + num_scheduled  # the mirror waits for the next read
        mirror.advance(rows, num_scheduled)
        return num_computed + num_scheduled

    def postprocess_sampled(self, *args: Any, **kwargs: Any) -> None:
        self._update_what_is_asked_for(*args, **kwargs)
        if self.read_back is not None:
            self.read_back.set_aside(self.req_states.num_computed_tokens.gpu)

    def _read_seq_lens(self, batch: InputBatch) -> npt.NDArray[np.int32]:
        """The device's own lengths, [num_reqs] int32: one D2H, waits for it."""
        self.replay_protocol.close_window("a read of sequence lengths")
        return batch.seq_lens[: batch.num_reqs].to("cpu").numpy()
