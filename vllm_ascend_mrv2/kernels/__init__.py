# SPDX-License-Identifier: Apache-2.0
"""Torch replacements of the Triton kernels of core's Model Runner V2, one module per core module.

`register()` puts them in place, once per worker process. The functions run on any device, wait for
none, and have shapes that the host knows; so a graph can capture them. Importing this package
imports no core module and touches no device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams

_GPU = "vllm.v1.worker.gpu"
_RESERVED_STOP_TOKENS = 8  # for the end-of-sequence ids that core adds after the check
_registered = False


def kernel_overrides() -> dict[str, Callable[..., None]]:
    """Qualified name of each Triton kernel of core -> the function that serves its launches."""
    from vllm.v1.worker.gpu.sample import output as core_output

    from vllm_ascend_mrv2.compat import sampling_mask
    from vllm_ascend_mrv2.kernels import input_batch, structured_outputs
    from vllm_ascend_mrv2.kernels.metrics import logits
    from vllm_ascend_mrv2.kernels.sample import (
        batch_shard,
        gumbel,
        logprob,
        min_p,
        output,
        penalties,
        prompt_logprob,
        trace_replay,
        watermark,
    )
    from vllm_ascend_mrv2.kernels.spec_decode import (
        ngram,
        rejection_sampler,
        standalone_ar,
        target_dependent_ar,
    )

    spec = f"{_GPU}.spec_decode"
    shard = f"{_GPU}.sample.batch_shard"
    marks = f"{_GPU}.sample.watermark"
    return {
        f"{_GPU}.input_batch._prepare_prefill_inputs_kernel": input_batch.prepare_prefill_inputs,
        f"{_GPU}.input_batch._prepare_pos_seq_lens_kernel": input_batch.prepare_pos_seq_lens,
        f"{_GPU}.input_batch._combine_sampled_and_draft_tokens_kernel": (
            input_batch.combine_sampled_and_draft_tokens
        ),
        f"{_GPU}.input_batch._get_num_sampled_and_rejected_kernel": (
            input_batch.get_num_sampled_and_rejected
        ),
        f"{_GPU}.input_batch._post_update_kernel": input_batch.post_update,
        f"{_GPU}.input_batch._post_update_num_computed_tokens_kernel": (
            input_batch.post_update_num_computed_tokens
        ),
        f"{_GPU}.input_batch._expand_idx_mapping_kernel": input_batch.expand_idx_mapping,
        f"{_GPU}.sample.gumbel._temperature_kernel": gumbel.apply_temperature,
        f"{_GPU}.sample.min_p._min_p_kernel": min_p.apply_min_p,
        f"{_GPU}.sample.penalties._penalties_kernel": penalties.apply_penalties,
        f"{_GPU}.sample.logprob._topk_log_softmax_kernel": logprob.topk_log_softmax,
        f"{_GPU}.sample.logprob._ranks_kernel": logprob.ranks,
        f"{_GPU}.sample.logprob._fill_logprob_token_ids_kernel": logprob.fill_logprob_token_ids,
        f"{_GPU}.sample.prompt_logprob._prompt_logprobs_token_ids_kernel": (
            prompt_logprob.prompt_logprobs_token_ids
        ),
        f"{_GPU}.sample.trace_replay._trace_replay_kernel": trace_replay.trace_replay,
        f"{_GPU}.sample.output._compact_sampling_mask_kernel": sampling_mask.kernel_for(
            core_output._compact_sampling_mask_kernel, output.compact_sampling_mask
        ),
        f"{shard}._build_shard_plan_kernel": batch_shard.build_shard_plan,
        f"{shard}._pack_sampler_output_kernel": batch_shard.pack_sampler_output,
        f"{shard}._unpack_gathered_output_kernel": batch_shard.unpack_gathered_output,
        f"{shard}._pack_logprobs_kernel": batch_shard.pack_logprobs,
        f"{shard}._unpack_logprobs_kernel": batch_shard.unpack_logprobs,
        f"{marks}._philox_gumbel_kernel": watermark.philox_gumbel,
        f"{marks}._repeated_context_mask_kernel": watermark.repeated_context_mask,
        f"{_GPU}.metrics.logits._num_nans_kernel": logits.num_nans,
        f"{_GPU}.structured_outputs._apply_grammar_bitmask_kernel": (
            structured_outputs.apply_grammar_bitmask
        ),
        f"{spec}.rejection_sampler._flatten_sampled_kernel": rejection_sampler.flatten_sampled,
        f"{spec}.rejection_sampler._gather_draft_sampled_kernel": (
            rejection_sampler.gather_draft_sampled
        ),
        f"{spec}.ngram.speculator._ngram_scan_kernel": ngram.scan,
        f"{spec}.ngram.speculator._ngram_finalize_kernel": ngram.finalize,
        f"{spec}.target_dependent_ar.speculator._prepare_prefill_inputs_kernel": (
            target_dependent_ar.prepare_prefill_inputs
        ),
        f"{spec}.target_dependent_ar.speculator._prepare_decode_inputs_kernel": (
            target_dependent_ar.prepare_decode_inputs
        ),
        f"{spec}.target_dependent_ar.speculator._update_draft_inputs_kernel": (
            target_dependent_ar.update_draft_inputs
        ),
        f"{spec}.standalone_ar.speculator._prepare_prefill_inputs_kernel": (
            standalone_ar.prepare_prefill_inputs
        ),
    }


def rebindings() -> dict[str, Any]:
    """Key of each entry of `compat.wrappers.REBINDINGS` -> what it is bound to."""
    from vllm.utils.math_utils import next_power_of_2

    from vllm_ascend_mrv2.kernels import block_table, buffer_utils, structured_outputs, upload
    from vllm_ascend_mrv2.kernels.model_states import encoder_only, prompt_embeds
    from vllm_ascend_mrv2.kernels.sample import (
        bad_words,
        gumbel,
        logit_bias,
        penalties,
        sampler,
        thinking_budget,
        watermarker,
    )
    from vllm_ascend_mrv2.kernels.spec_decode import rejection

    marks = "vllm.v1.watermarking"
    thinking = f"{_GPU}.sample.thinking_budget:ThinkingBudgetState"
    embeds = f"{_GPU}.model_states.prompt_embeds:PromptEmbedsState"
    return {
        "vllm.triton_utils:triton.next_power_of_2": next_power_of_2,
        f"{_GPU}.buffer_utils.UvaBufferPool": buffer_utils.MirrorPool,
        f"{_GPU}.buffer_utils.async_tensor_h2d": upload.tensor_h2d,
        f"{_GPU}.buffer_utils.is_uva_available": buffer_utils.is_uva_available,
        f"{_GPU}.buffer_utils:StagedWriteTensor.apply_write": buffer_utils.apply_write,
        f"{_GPU}.block_table.BlockTables": block_table.BlockTables,
        f"{_GPU}.sample.gumbel.gumbel_sample": gumbel.gumbel_sample,
        f"{_GPU}.sample.sampler.Sampler": sampler.Sampler,
        f"{marks}.gumbel.GumbelWatermarker": watermarker.GumbelWatermarker,
        f"{marks}.gpu_sampler.GPUWatermarkSampler": watermarker.WatermarkSampler,
        f"{_GPU}.sample.penalties.bincount": penalties.bincount,
        f"{_GPU}.sample.penalties:PenaltiesState.apply_staged_writes": (
            penalties.apply_staged_writes
        ),
        f"{_GPU}.structured_outputs:StructuredOutputsWorker.apply_grammar_bitmask": (
            structured_outputs.apply_bitmask
        ),
        f"{_GPU}.sample.bad_words.apply_bad_words": bad_words.apply_bad_words,
        f"{_GPU}.sample.logit_bias:LogitBiasState.apply": logit_bias.apply,
        f"{thinking}.apply": thinking_budget.apply,
        f"{thinking}.apply_staged_writes": thinking_budget.reset,
        f"{_GPU}.spec_decode.rejection_sampler_utils.rejection_sample": rejection.rejection_sample,
        f"{_GPU}.model_states.encoder_only:EncoderOnlyModelState.prepare_inputs": (
            encoder_only.prepare_inputs
        ),
        f"{embeds}.apply": prompt_embeds.apply,
        f"{embeds}.apply_staged_writes": prompt_embeds.apply_staged_writes,
    }


def register() -> None:
    """Give core the replacements: kernels by core's registry, the rest by compat.wrappers.

    Idempotent. To be called before core's model runner constructs anything. Raises where core has
    no kernel or name of that kind, with nothing half done that a second call would not finish.
    """
    global _registered
    from vllm_ascend_mrv2.compat import (
        kernel_registry,
        logits_context,
        speculation,
        watermarks,
        wrappers,
    )
    from vllm_ascend_mrv2.kernels.sample import logit_bias, thinking_budget

    wrappers.install(rebindings())
    if not logits_context.core_has_one():
        logits_context.install(logit_bias.apply, thinking_budget.apply)
    if not _registered:
        known = speculation.of_this_core(kernel_overrides())
        kernel_registry.register(watermarks.of_this_core(known))
        _registered = True


@cache
def _watermarks_by_default() -> bool:
    from vllm.sampling_params import SamplingParams

    return bool(SamplingParams().watermarking)


def unsupported_sampling(params: SamplingParams, watermarks: bool) -> str | None:
    """Why this engine cannot serve a request with these parameters, or None where it can.

    Two kinds. A watermark from an engine without a configuration for it (watermarks: it has one),
    where core would answer without. And lists longer than core's device tables: core notices only
    in the worker, where the error ends the engine. No parameter reaches a kernel without a
    replacement: those that `unreplaced` lists belong to engine options, refused at start-up.
    """
    from vllm.v1.worker.gpu.sample import logit_bias as core

    # Before core 0.32 it is on by default, which nobody asked for.
    if params.watermarking and not (watermarks or _watermarks_by_default()):
        return (
            "watermarking was asked for, and this engine has no watermark configuration: it would "
            "answer without one. Leave `watermarking` unset, or start with --watermark-config."
        )
    tables = (
        ("allowed_token_ids", params.allowed_token_ids, core.MAX_NUM_ALLOWED_TOKEN_IDS),
        ("logit_bias", params.logit_bias, core.MAX_NUM_LOGIT_BIAS_TOKENS),
        (
            "stop_token_ids with min_tokens",
            set(params.stop_token_ids or ()) if params.min_tokens else None,
            core.MAX_NUM_STOP_TOKEN_IDS - _RESERVED_STOP_TOKENS,
        ),
    )
    for name, asked, limit in tables:
        if asked and len(asked) > limit:
            return f"{name} has {len(asked)} entries; at most {limit} are supported. Pass fewer."
    return None
