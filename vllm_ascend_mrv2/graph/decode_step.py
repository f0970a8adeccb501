# SPDX-License-Identifier: Apache-2.0
"""The body of a steady decode step: preparation, forward, sampling and update, as device work only.

Every request of the batch has one new token and its state on the device, so nothing comes from
the host but the rows of the batch. The body reads and writes core's own state tensors; it is
captured once per padded batch size and never run eagerly on real requests. Host bookkeeping and
eligibility are not here.
"""

from __future__ import annotations

import enum
from typing import Any

import torch
from vllm import envs
from vllm.distributed.parallel_state import get_tp_group
from vllm.forward_context import set_forward_context
from vllm.v1.worker.gpu.attn_utils import build_slot_mappings_by_layer

from vllm_ascend_mrv2.attention.plan import FiaPlan, make_captured_plan
from vllm_ascend_mrv2.graph.shares import shares_of
from vllm_ascend_mrv2.kernels import constants, input_batch
from vllm_ascend_mrv2.kernels.sample import gumbel

# Of a batch row without a request: the KV write skips negative slots. (The null block has no slot
# for each: it is one block, and slots may not repeat.) Source: the scatter_pa_kv_cache kernels of
# CANN's ops-transformer.
UNUSED_SLOT = -1


class Sampling(enum.Enum):
    """How a captured step draws its tokens."""

    GREEDY = "greedy"
    SEEDED = "seeded"  # temperature and core's Gumbel noise; greedy rows among them stay greedy


class DecodeStep:
    """Builds the body for a runner. `rows` is the only input of a step.

    rows: [max_num_reqs] int64 on the device, the state row of each batch row, -1 past the batch.
    """

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        device = runner.device
        self.rows = torch.full((runner.max_num_reqs,), -1, dtype=torch.int64, device=device)
        self._one_each = torch.arange(runner.max_num_reqs + 1, dtype=torch.int32, device=device)
        self._ones = torch.ones(runner.max_num_reqs, dtype=torch.int32, device=device)
        self._zeros = torch.zeros(runner.max_num_reqs, dtype=torch.int32, device=device)

    def run(self, size: int, sampling: Sampling, kv_lens: list[int]) -> torch.Tensor:
        """Launch the whole step for `size` batch rows; return the sampled tokens, [size] int64.

        kv_lens: host lengths of a capture; a replay's are given by task updates.
        """
        runner = self.runner
        rows = self.rows[:size]
        is_request = rows >= 0
        row = rows.clamp_min(0)
        positions = self._prepare(size, row, is_request)
        tables = runner.block_tables
        metadata: dict[str, FiaPlan] = {}
        for index, group in enumerate(runner.kv_cache_config.kv_cache_groups):
            plan = make_captured_plan(
                kv_lens,
                tables.input_block_tables[index][:size],
                tables.slot_mappings[index, :size],
                tables.block_sizes[index],
            )
            metadata |= dict.fromkeys(group.layer_names, plan)
        slots = build_slot_mappings_by_layer(tables.slot_mappings[:, :size], runner.kv_cache_config)
        # Data-parallel ranks replay one size together.
        of_ranks = torch.full((runner.dp_size,), size, dtype=torch.int32)
        with set_forward_context(
            metadata,
            runner.vllm_config,
            num_tokens=size,
            num_tokens_across_dp=of_ranks if runner.dp_size > 1 else None,
            slot_mapping=slots,
            is_padding=~is_request if envs.VLLM_MOE_SKIP_PADDING else None,
        ):
            hidden = runner.model(
                input_ids=runner.input_buffers.input_ids[:size],
                positions=positions,
                inputs_embeds=None,
                intermediate_tensors=None,
            )
        logits = runner.model.compute_logits(hidden)
        tokens = self._sample_sharded(logits, row, positions, sampling)
        self._update(size, tokens)
        return tokens

    def _prepare(self, size: int, row: torch.Tensor, is_request: torch.Tensor) -> torch.Tensor:
        """Positions, lengths, input ids, block tables and slots from the state; the positions."""
        runner = self.runner
        states, buffers, tables = runner.req_states, runner.input_buffers, runner.block_tables
        positions = buffers.positions[:size]
        computed = states.num_computed_tokens.gpu.index_select(0, row).mul_(is_request)
        positions.copy_(computed)
        torch.mul(computed.add_(1), is_request, out=buffers.seq_lens[:size])
        buffers.input_ids[:size].copy_(states.last_sampled_tokens.view(-1).index_select(0, row))
        for group, (table, block_size) in enumerate(
            zip(tables.block_tables, tables.block_sizes, strict=True)
        ):
            blocks = tables.input_block_tables[group][:size]
            torch.index_select(table.gpu, 0, row, out=blocks)
            blocks.mul_(is_request.unsqueeze(1))
            block = blocks.gather(1, (positions // block_size).unsqueeze(1)).squeeze(1)
            slot = torch.add(positions % block_size, block, alpha=block_size)
            unused = constants.scalar(UNUSED_SLOT, slot.device, slot.dtype)
            torch.where(is_request, slot, unused, out=tables.slot_mappings[group, :size])
        return positions

    def _sample_sharded(
        self,
        logits: torch.Tensor,
        row: torch.Tensor,
        positions: torch.Tensor,
        sampling: Sampling,
    ) -> torch.Tensor:
        """All tokens; if the user asked for it, each tensor-parallel rank samples its share."""
        if self.runner.batch_sharder is None:
            return self._sample(logits, row, positions, sampling)
        group = get_tp_group()
        shares = shares_of(len(row), group.world_size)
        mine = shares[group.rank_in_group].rows
        tokens = self._sample(logits[mine], row[mine], positions[mine], sampling)
        gathered = group.all_gather(tokens, 0).view(group.world_size, -1)
        size = gathered.shape[1]
        if all(share.counted == size for share in shares):
            return gathered.view(-1)
        return torch.cat(
            [
                of_rank[size - share.counted :]
                for of_rank, share in zip(gathered, shares, strict=True)
            ]
        )

    def _sample(
        self,
        logits: torch.Tensor,
        row: torch.Tensor,
        positions: torch.Tensor,
        sampling: Sampling,
    ) -> torch.Tensor:
        if sampling is Sampling.GREEDY:
            return logits.argmax(-1)
        sampler = self.runner.sampler
        temperature = sampler.sampling_states.temperature.gpu.index_select(0, row)
        divisor = temperature.masked_fill(temperature == 0.0, 1.0).unsqueeze(1)
        return gumbel.sample_seeded(
            logits.float().div_(divisor),
            sampler.seed_states.gpu.index_select(0, row),
            temperature,
            positions,
            max_pos=self.runner.max_model_len,
        )

    def _update(self, size: int, tokens: torch.Tensor) -> None:
        """Core's own update of the request state, for one sampled token per request.

        Tokens are not counted: a request that is drawn here has no penalties (see StepFacts).
        """
        states = self.runner.req_states
        input_batch.post_update(
            self.rows[:size],
            states.num_computed_tokens.gpu,
            states.last_sampled_tokens,
            None,
            0,
            tokens.view(-1, 1),
            1,
            self._ones[:size],
            self._zeros[:size],
            self._one_each[: size + 1],
            states.all_token_ids.gpu,
            states.all_token_ids.gpu.stride(0),
            states.total_len.gpu,
        )
