# SPDX-License-Identifier: Apache-2.0
"""Triton kernels of core's Model Runner V2 that have no replacement, and what reaches them.

Data only. Every entry must be refused before a step can reach it: at start-up by the platform, or
per request by `kernels.unsupported_sampling`. A test holds this list against core's source.
"""

from __future__ import annotations

HYBRID = "hybrid (mamba) models"

# Module of core, relative to vllm.v1.worker.gpu -> the feature that launches its kernels. A package
# stands for all modules below it.
UNREPLACED_MODULES: dict[str, str] = {
    "block_table": "context parallelism (else replaced with the class BlockTables)",
    "buffer_utils": "several KV cache groups (else replaced with apply_write and BlockTables)",
    "cp_utils": "decode context parallelism",
    "mm.rope": "models with multi-dimensional (M-RoPE) positions",
    "model_states.mamba_hybrid": HYBRID,
    "model_states.recoverssm": HYBRID,
    "spec_decode.acceptance_estimator": "adaptive verification of drafts",
    "spec_decode.dflash": "speculative decoding by DFlash and DSpark",
    "spec_decode.dflash2": "speculative decoding by DFlash and DSpark",
    "spec_decode.multi_module_mtp": "speculative decoding by several MTP modules",
}
