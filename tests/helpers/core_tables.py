# SPDX-License-Identifier: Apache-2.0
"""What the oracle runs for classes of core that need a device to construct: their kernels, launched
as the class launches them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch


def _addresses(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.tensor([t.data_ptr() for t in tensors], dtype=torch.uint64)


def gather_block_tables(
    tables: list[torch.Tensor],
    num_blocks: torch.Tensor,
    idx_mapping: torch.Tensor,
    num_reqs_padded: int,
    out: list[torch.Tensor],
) -> None:
    from vllm.v1.worker.gpu.block_table import _gather_block_tables_kernel

    _gather_block_tables_kernel[(len(tables), num_reqs_padded)](
        idx_mapping,
        _addresses(tables),
        _addresses(out),
        torch.tensor([t.stride(0) for t in tables]),
        num_blocks,
        num_blocks.stride(0),
        idx_mapping.shape[0],
        BLOCK_SIZE=1024,
    )


def compute_slot_mappings(
    tables: list[torch.Tensor],
    block_sizes: list[int],
    enabled: list[bool],
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    out: torch.Tensor,
) -> None:
    from vllm.v1.worker.gpu.block_table import _compute_slot_mappings_kernel

    _compute_slot_mappings_kernel[(len(tables), idx_mapping.shape[0] + 1)](
        out.shape[1],
        idx_mapping,
        query_start_loc,
        positions,
        _addresses(tables),
        torch.tensor([t.stride(0) for t in tables]),
        torch.tensor(block_sizes, dtype=torch.int32),
        torch.tensor(enabled),
        torch.ones(len(tables), dtype=torch.bool),
        out,
        out.stride(0),
        0,
        CP_SIZE=1,
        CP_INTERLEAVE=1,
        PAD_ID=-1,
        TRITON_BLOCK_SIZE=1024,
    )


def apply_write(
    table: torch.Tensor,
    rows: list[int],
    starts: list[int],
    contents: list[float],
    cumulative_lengths: list[int],
) -> None:
    from vllm.v1.worker.gpu.buffer_utils import _apply_write_kernel

    if not rows:
        return
    _apply_write_kernel[(len(rows),)](
        table,
        table.stride(0),
        torch.tensor(rows, dtype=torch.int32),
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor(contents, dtype=table.dtype),
        torch.tensor(cumulative_lengths, dtype=torch.int32),
        None,
        BLOCK_SIZE=1024,
        MULTI_GROUP=False,
    )


def sampling_mask(
    logits: torch.Tensor, cu_num_logits: torch.Tensor, num_sampled: torch.Tensor, max_num_kept: int
) -> object:
    from vllm.v1.worker.gpu.sample.output import SamplingMaskTensors

    return SamplingMaskTensors.from_logits(logits, cu_num_logits, num_sampled, max_num_kept)


def apply_prompt_embeds(
    inputs_embeds: torch.Tensor,
    embeds: list[torch.Tensor | None],
    masks: list[torch.Tensor | None],
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    max_query_len: int,
) -> torch.Tensor:
    from vllm.v1.worker.gpu.model_states.prompt_embeds import _apply_prompt_embeds_kernel

    def addresses(tensors: list[torch.Tensor | None]) -> torch.Tensor:
        return torch.tensor([0 if t is None else t.data_ptr() for t in tensors], dtype=torch.uint64)

    token_block = 4
    _apply_prompt_embeds_kernel[(idx_mapping.shape[0], -(-max_query_len // token_block))](
        inputs_embeds,
        inputs_embeds.stride(0),
        addresses(embeds),
        addresses(masks),
        torch.tensor([0 if t is None else t.shape[0] for t in embeds], dtype=torch.int32),
        idx_mapping,
        query_start_loc,
        num_computed_tokens,
        inputs_embeds.shape[1],
        TOKEN_BLOCK=token_block,
        BLOCK_SIZE=8,
    )
    return inputs_embeds


# -- speculative decoding: core's wrappers take its batches, which are namespaces here -------------


def uniform(seeds: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
    """Core's `tl_rand32`, by a kernel that does nothing else."""
    from tests.helpers.uniform_kernel import draw

    out = torch.empty(len(seeds), dtype=torch.float32)
    draw[(len(seeds),)](out, seeds, pos)
    return out


def flatten_sampled(
    flat: torch.Tensor, sampled: torch.Tensor, num_sampled: torch.Tensor, cu: torch.Tensor
) -> None:
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import _flatten_sampled_kernel

    _flatten_sampled_kernel[(len(sampled),)](
        flat, sampled, sampled.stride(0), num_sampled, cu, num_warps=1
    )


def ngram_drafts(
    token_ids: torch.Tensor,
    idx_mapping: torch.Tensor,
    total_len: torch.Tensor,
    num_sampled: torch.Tensor,
    last_sampled: torch.Tensor,
    min_n: int,
    max_n: int,
    k: int,
) -> torch.Tensor:
    """Core's NgramGPUSpeculator, without its engine."""
    from vllm.v1.worker.gpu.spec_decode.ngram import speculator

    speculator.HAS_TRITON = True  # as compat.triton_gate does in a worker
    rows, length = token_ids.shape
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(
            prompt_lookup_min=min_n, prompt_lookup_max=max_n, num_speculative_tokens=k
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=rows),
        model_config=SimpleNamespace(max_model_len=length),
    )
    states = SimpleNamespace(
        all_token_ids=SimpleNamespace(gpu=token_ids), total_len=SimpleNamespace(gpu=total_len)
    )
    made = speculator.NgramGPUSpeculator(config, token_ids.device, states)
    batch = SimpleNamespace(num_reqs=len(idx_mapping), idx_mapping=idx_mapping)
    return made.propose(
        batch, None, None, None, None, num_sampled, None, last_sampled, None, None, None
    )


def prepare_draft_prefill(
    last_token_indices: torch.Tensor,
    current_step: torch.Tensor,
    buffers: dict[str, Any],
    batch: dict[str, Any],
    *arguments: Any,
) -> None:
    from vllm.v1.worker.gpu.spec_decode.target_dependent_ar import speculator

    speculator.prepare_prefill_inputs(
        last_token_indices,
        current_step,
        SimpleNamespace(**buffers),
        SimpleNamespace(**batch),
        *arguments,
    )


def prepare_draft_decode(
    draft_tokens: torch.Tensor,
    seq_lens: torch.Tensor,
    num_rejected: torch.Tensor,
    buffers: dict[str, Any],
    *arguments: Any,
) -> None:
    from vllm.v1.worker.gpu.spec_decode.target_dependent_ar import speculator

    speculator.prepare_decode_inputs(
        draft_tokens[:, 0], seq_lens, num_rejected, SimpleNamespace(**buffers), *arguments
    )


def update_draft_inputs(
    draft_tokens: torch.Tensor,
    step: torch.Tensor,
    hidden: torch.Tensor,
    out: torch.Tensor,
    next_hidden: torch.Tensor,
    buffers: dict[str, Any],
    *arguments: Any,
) -> None:
    from vllm.v1.worker.gpu.spec_decode.target_dependent_ar import speculator

    speculator.update_draft_inputs(
        draft_tokens, step, hidden, out, next_hidden, SimpleNamespace(**buffers), *arguments
    )


def prepare_draft_model_prefill(
    buffers: dict[str, Any], batch: dict[str, Any], *arguments: Any
) -> int:
    from vllm.v1.worker.gpu.spec_decode.standalone_ar import speculator

    return speculator.prepare_prefill_inputs(
        SimpleNamespace(**buffers), SimpleNamespace(**batch), *arguments
    )


# -- batch-sharded sampling: core's functions launch these between collectives ---------------------


def build_shard_plan(
    idx_mapping: torch.Tensor,
    cu_num_logits: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    out: list[torch.Tensor],
    local_logits_start: int,
    max_num_reqs_per_rank: int,
    num_ranks: int,
    rank: int,
) -> None:
    from vllm.v1.worker.gpu.sample.batch_shard import _build_shard_plan_kernel

    num_reqs = idx_mapping.shape[0]
    _build_shard_plan_kernel[(num_reqs,)](
        idx_mapping,
        cu_num_logits,
        query_start_loc,
        seq_lens,
        *out,
        num_reqs,
        local_logits_start,
        max_num_reqs_per_rank,
        TP_SIZE=num_ranks,
        TP_RANK=rank,
        PADDED_NUM_REQS=16,
        PADDED_NUM_LOGITS_PER_REQ=8,
        num_warps=1,
    )


def pack_sampler_output(
    packed: torch.Tensor,
    sampled: torch.Tensor,
    num_sampled: torch.Tensor,
    num_rejected: torch.Tensor,
    num_nans: torch.Tensor | None,
    cu_num_logits: torch.Tensor | None,
    width: int,
) -> None:
    from vllm.v1.worker.gpu.sample.batch_shard import _pack_sampler_output_kernel

    _pack_sampler_output_kernel[(num_sampled.shape[0],)](
        packed,
        packed.stride(0),
        sampled,
        sampled.stride(0),
        num_sampled,
        num_rejected,
        num_nans,
        cu_num_logits,
        width,
        min(sampled.shape[1], width),
        BLOCK_SIZE=8,
    )


def unpack_gathered_output(
    gathered: torch.Tensor,
    source: torch.Tensor,
    sampled: torch.Tensor,
    num_sampled: torch.Tensor,
    num_rejected: torch.Tensor,
    num_nans: torch.Tensor | None,
) -> None:
    from vllm.v1.worker.gpu.sample.batch_shard import _unpack_gathered_output_kernel

    _unpack_gathered_output_kernel[(source.shape[0],)](
        gathered,
        gathered.stride(0),
        source,
        sampled,
        num_sampled,
        num_rejected,
        num_nans,
        sampled.shape[1],
        BLOCK_SIZE=8,
    )


def pack_logprobs(
    send_ids: torch.Tensor,
    send_logprobs: torch.Tensor,
    ids: torch.Tensor,
    logprobs: torch.Tensor,
    ranks: torch.Tensor,
    cu_num_logits: torch.Tensor,
    width: int,
) -> None:
    from vllm.v1.worker.gpu.sample.batch_shard import _pack_logprobs_kernel

    _pack_logprobs_kernel[(cu_num_logits.shape[0] - 1, width)](
        send_ids,
        send_ids.stride(0),
        send_logprobs,
        send_logprobs.stride(0),
        ids,
        ids.stride(0),
        logprobs,
        logprobs.stride(0),
        ranks,
        cu_num_logits,
        width,
        send_logprobs.shape[1],
        ids.shape[1],
        BLOCK_SIZE=8,
    )


def unpack_logprobs(
    gathered_ids: torch.Tensor,
    gathered_logprobs: torch.Tensor,
    source: torch.Tensor,
    cu_num_logits: torch.Tensor,
    ids: torch.Tensor,
    logprobs: torch.Tensor,
    ranks: torch.Tensor,
    width: int,
) -> None:
    from vllm.v1.worker.gpu.sample.batch_shard import _unpack_logprobs_kernel

    _unpack_logprobs_kernel[(source.shape[0], width)](
        gathered_ids,
        gathered_ids.stride(0),
        gathered_logprobs,
        gathered_logprobs.stride(0),
        source,
        cu_num_logits,
        ids,
        logprobs,
        ranks,
        width,
        logprobs.shape[1],
        BLOCK_SIZE=8,
    )


def watermarked(arguments: tuple[Any, ...], state: dict[str, Any]) -> torch.Tensor:
    from vllm.v1.worker.gpu.sample.watermark import philox_gumbel_sample

    return philox_gumbel_sample(*arguments, **state)


def repeated_contexts(
    output: torch.Tensor,
    all_token_ids: torch.Tensor,
    request: torch.Tensor,
    prompt_lens: torch.Tensor,
    total_lens: torch.Tensor,
    contexts: torch.Tensor,
    max_history: int,
    include_prompt: bool,
    skip_partial: bool = False,
    newer: torch.Tensor | None = None,
    local_positions: torch.Tensor | None = None,
    num_steps: int = 0,
    prior_contexts: torch.Tensor | None = None,
    steps: torch.Tensor | None = None,
    enabled: torch.Tensor | None = None,
) -> None:
    from vllm.v1.worker.gpu.sample.watermark import _repeated_context_mask_kernel

    _repeated_context_mask_kernel[(len(request),)](
        output,
        all_token_ids,
        all_token_ids.stride(0),
        request,
        prompt_lens,
        total_lens,
        newer,
        0 if newer is None else newer.stride(0),
        contexts,
        contexts.stride(0),
        local_positions,
        prior_contexts,
        0 if prior_contexts is None else prior_contexts.stride(0),
        0 if prior_contexts is None else prior_contexts.stride(1),
        steps,
        0 if steps is None else steps.stride(0),
        enabled,
        CONTEXT_WIDTH=contexts.shape[1],
        NUM_SPECULATIVE_STEPS=num_steps,
        MAX_HISTORY=max_history,
        INCLUDE_PROMPT=include_prompt,
        SKIP_PARTIAL_CONTEXT=skip_partial,
        HAS_HISTORY_OFFSETS=newer is not None,
        SPECULATIVE_CONTEXTS=local_positions is not None,
        DRAFT_CONTEXTS=steps is not None,
        BLOCK=16,
    )
