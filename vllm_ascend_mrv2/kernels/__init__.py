# SPDX-License-Identifier: Apache-2.0
"""Torch replacements of the Triton kernels of core's Model Runner V2, one module per core module.

`register()` puts them in place, once per worker process. The functions run on any device, wait for
none, and have shapes that the host knows; so a graph can capture them. Importing this package
imports no core module and touches no device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_GPU = "vllm.v1.worker.gpu"
_registered = False


def kernel_overrides() -> dict[str, Callable[..., None]]:
    """Qualified name of each Triton kernel of core -> the function that serves its launches."""
    from vllm_ascend_mrv2.kernels import input_batch
    from vllm_ascend_mrv2.kernels.sample import gumbel, min_p

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
    }


def rebindings() -> dict[str, Any]:
    """Key of each entry of `compat.wrappers.REBINDINGS` -> what it is bound to."""
    from vllm.utils.math_utils import next_power_of_2

    from vllm_ascend_mrv2.kernels import block_table, buffer_utils
    from vllm_ascend_mrv2.kernels.sample import gumbel, sampler

    return {
        "vllm.triton_utils:triton.next_power_of_2": next_power_of_2,
        f"{_GPU}.buffer_utils.UvaBufferPool": buffer_utils.MirrorPool,
        f"{_GPU}.buffer_utils:StagedWriteTensor.apply_write": buffer_utils.apply_write,
        f"{_GPU}.block_table.BlockTables": block_table.BlockTables,
        f"{_GPU}.sample.gumbel.gumbel_sample": gumbel.gumbel_sample,
        f"{_GPU}.sample.sampler.Sampler": sampler.Sampler,
    }


def register() -> None:
    """Give core the replacements: kernels by core's registry, the rest by compat.wrappers.

    Idempotent. To be called before core's model runner constructs anything. Raises where core has
    no kernel or name of that kind, with nothing half done that a second call would not finish.
    """
    global _registered
    from vllm.triton_utils.dispatcher import register_kernels

    from vllm_ascend_mrv2.compat import wrappers

    wrappers.install(rebindings())
    if not _registered:
        register_kernels(kernel_overrides())
        _registered = True
