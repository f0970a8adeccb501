# SPDX-License-Identifier: Apache-2.0
"""The most memory that a step's sampling takes, used once while core measures.

Core's profile runs the sampler greedily and without log probabilities; what it does not see would
be given to the KV cache, and a request that asks for it would end the engine.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
from vllm.v1.worker.gpu.sample.prompt_logprob import compute_prompt_logprobs_with_chunking

from vllm_ascend_mrv2.compat import prompt_scores
from vllm_ascend_mrv2.kernels.sample import gumbel


@torch.inference_mode()
def use_what_sampling_needs(runner: Any) -> None:
    """Filter and draw for a full batch, and score a prompt. Waits for the device."""
    rows, device = runner.max_num_reqs, runner.device
    hidden_size = runner.model_config.get_hidden_size()
    hidden = torch.zeros(rows, hidden_size, dtype=runner.dtype, device=device)
    logits = runner.model.compute_logits(hidden).float()
    ones = torch.ones(rows, dtype=torch.float32, device=device)
    # Beside what is drawn from: the model's logits, and those that log probabilities are of.
    kept = [logits, logits.clone()]
    drawn_from = apply_top_k_top_p(logits.clone(), ones.to(torch.int32), ones)
    gumbel.sample_seeded(
        drawn_from,
        torch.zeros(rows, dtype=torch.int32, device=device),
        ones,
        torch.zeros(rows, dtype=torch.int64, device=device),
        max_pos=runner.max_model_len,
    )
    del logits, kept, drawn_from
    # What the forward leaves is alive beside it. Two chunks: the logits of one live until those of
    # the next are there.
    tokens = min(2 * prompt_scores.chunk_rows(), runner.max_num_tokens)
    forward = torch.empty(4, runner.max_num_tokens, hidden_size, dtype=runner.dtype, device=device)
    compute_prompt_logprobs_with_chunking(
        torch.zeros(tokens, dtype=torch.int64, device=device),
        forward[0, :tokens].zero_(),
        runner.model.compute_logits,
        max(runner.model_config.max_logprobs, 1),
    )
    torch.npu.synchronize(device)
