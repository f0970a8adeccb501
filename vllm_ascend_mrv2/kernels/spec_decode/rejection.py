# SPDX-License-Identifier: Apache-2.0
"""Rejection sampling of core's `v1/worker/gpu/spec_decode/rejection_sampler_utils.py`.

Core verifies request by request, and reduces over the vocabulary block by block; here all requests
are verified at once in tables [R, k] of requests and draft positions, filled up for requests with
fewer drafts. Draws are core's: Philox of (seed, position) decides acceptance, murmur3 noise the
resampled token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vllm_ascend_mrv2.kernels import constants, ragged
from vllm_ascend_mrv2.kernels.errors import NotReplacedError
from vllm_ascend_mrv2.kernels.sample import gumbel
from vllm_ascend_mrv2.kernels.spec_decode import philox


@dataclass(frozen=True)
class _Drafts:
    """The batch in tables of R requests and k draft positions, all on the device.

    starts: [R] int64, each request's first logit. counts: [R, 1] int64, its drafts. tokens: [R, k]
    int64, -1 for none and for placeholders. logit: [R, k] int64, of each draft, any where there is
    none. is_draft: [R, k] bool, a position that has one, placeholders included.
    """

    starts: torch.Tensor
    counts: torch.Tensor
    tokens: torch.Tensor
    logit: torch.Tensor
    is_draft: torch.Tensor


def _drafts_of(draft_sampled: torch.Tensor, cu_num_logits: torch.Tensor, width: int) -> _Drafts:
    num_reqs = cu_num_logits.shape[0] - 1
    starts = cu_num_logits[:-1].to(torch.int64)
    counts = (ragged.lengths(cu_num_logits, num_reqs).to(torch.int64) - 1).unsqueeze(1)
    column = constants.arange(width, draft_sampled.device)
    is_draft = column < counts
    logit = (starts.unsqueeze(1) + column).mul_(is_draft)
    tokens = draft_sampled.index_select(0, (logit + is_draft).flatten()).to(torch.int64)
    tokens = tokens.view_as(logit).masked_fill_(~is_draft, -1)
    return _Drafts(starts, counts, tokens, logit, is_draft)


@dataclass(frozen=True)
class _Target:
    """The target's logits with what is needed of them. logits: [num_logits, V] float."""

    logits: torch.Tensor
    log_sum: torch.Tensor  # [num_logits] float32

    def log_prob(self, logit: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Log probability of `tokens` at `logit`, both [R, k] int64."""
        rows = self.logits.index_select(0, logit.flatten())
        own = rows.gather(1, tokens.clamp_min(0).view(-1, 1)).to(torch.float32)
        return own.view_as(tokens) - self.log_sum.index_select(0, logit.flatten()).view_as(tokens)


def _log_sum_exp(logits: torch.Tensor) -> torch.Tensor:
    """Over the last dimension, float32; -inf where there is no finite logit is not served."""
    return torch.logsumexp(logits.to(torch.float32), -1)


def _before_first_false(flags: torch.Tensor) -> torch.Tensor:
    """[R, k] bool: the entry and all before it in its row are true."""
    return flags.logical_not().cumsum(1) == 0


def _leading(accepted: torch.Tensor) -> torch.Tensor:
    """[R, 1] int64: how many of each row's first entries are true. accepted: [R, k] bool."""
    return _before_first_false(accepted).sum(1, keepdim=True)


def rejection_sample(
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor | None,
    draft_sampled: torch.Tensor,
    cu_num_logits: torch.Tensor,
    pos: torch.Tensor,
    idx_mapping: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    expanded_local_pos: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    num_speculative_steps: int,
    synthetic_conditional_rates: torch.Tensor | None = None,
    use_fp64: bool = False,
    use_block_verification: bool = False,
    contexts: torch.Tensor | None = None,
    watermarking: torch.Tensor | None = None,
    watermarking_skip_mask: torch.Tensor | None = None,
    watermark_key: int | None = None,
    all_greedy: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Core's `rejection_sample`: tokens [R, k + 1] int64 and how many of them count, [R] int32.

    target_logits: [num_logits, V], sampling parameters applied; draft_logits: [max_num_reqs, k,
    V'], before temperature, or None for drafts without a distribution; draft_sampled: [num_logits]
    int32, the input token of each logit, negative for a placeholder; cu_num_logits: [R + 1] int32;
    pos: [num_logits] int64; idx_mapping: [R] int64; temperature: [max_num_reqs] float32; seed:
    [max_num_reqs] int64; synthetic_conditional_rates: [k] float32. Tokens past the count are 0.
    all_greedy: the host knows that every temperature is 0; then nothing is drawn.

    Raises NotReplacedError for watermarking.
    """
    if contexts is not None:
        raise NotReplacedError(
            "verification of drafts with a watermark has no replacement on this device; start "
            "without a watermark configuration."
        )
    if draft_logits is not None:  # one of the vocabularies may be padded
        vocab_size = min(target_logits.shape[-1], draft_logits.shape[-1])
        target_logits = target_logits[:, :vocab_size]
        draft_logits = draft_logits[..., :vocab_size]
    drafts = _drafts_of(draft_sampled, cu_num_logits, num_speculative_steps)
    best = target_logits.argmax(-1)
    is_real = drafts.tokens >= 0
    matches = (best.index_select(0, drafts.logit.flatten()).view_as(drafts.tokens)) == drafts.tokens
    if all_greedy and synthetic_conditional_rates is None:
        accepted = _leading(matches.logical_and_(is_real))
        last = (drafts.starts.unsqueeze(1) + accepted).squeeze(1)
        return _result(drafts, accepted, best.index_select(0, last))

    temperatures = temperature.index_select(0, idx_mapping)
    is_greedy = (temperatures == 0.0).unsqueeze(1)
    draft_pos = pos.index_select(0, drafts.logit.flatten()).view_as(drafts.tokens)
    seeds = seed.index_select(0, idx_mapping).unsqueeze(1).expand_as(draft_pos)
    u = philox.uniform(seeds, draft_pos)
    target = _Target(target_logits, _log_sum_exp(target_logits))
    draft = (
        None
        if draft_logits is None
        # A temperature of 0 has no distribution; what it would give is not looked at.
        else _draft_log_probs(
            draft_logits, idx_mapping, temperatures.masked_fill(is_greedy.squeeze(1), 1.0)
        )
    )
    joint: torch.Tensor | None = None
    if synthetic_conditional_rates is not None:
        passes = u < synthetic_conditional_rates[: u.shape[1]]
        accepted = _leading(passes.logical_and_(is_real))
    else:
        ratio = target.log_prob(drafts.logit, drafts.tokens)
        if draft is not None:
            own = draft.gather(2, drafts.tokens.clamp_min(0).unsqueeze(2)).squeeze(2)
        if use_block_verification:
            ratio = ratio if draft is None else ratio - own
            joint = _joint_ratio(ratio, is_real)
            accepted = _verify_block(drafts, target, draft, joint, u)
        else:
            threshold = u.log() if draft is None else u.log() + own
            accepted = _leading((ratio > threshold).logical_and_(is_real))
        greedy = _leading(matches.logical_and_(is_real))
        accepted = torch.where(is_greedy, greedy, accepted)

    last = (drafts.starts.unsqueeze(1) + accepted).squeeze(1)
    residual = _residual(drafts, target, draft, joint, accepted, last, is_greedy)
    token = gumbel.gumbel_sample(
        residual,
        idx_mapping,
        temperature,
        seed,
        pos.index_select(0, last),
        apply_temperature=False,
        is_drafting=False,
        use_fp64=use_fp64,
    )
    return _result(drafts, accepted, token)


def _result(
    drafts: _Drafts, accepted: torch.Tensor, token: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The accepted drafts, then `token` [R] int64, then zeros. accepted: [R, 1] int64."""
    width = drafts.tokens.shape[1] + 1
    column = constants.arange(width, token.device)
    tokens = torch.nn.functional.pad(drafts.tokens, (0, 1))
    sampled = tokens * (column < accepted)
    sampled = torch.where(column == accepted, token.unsqueeze(1), sampled)
    return sampled, (accepted.squeeze(1) + 1).to(torch.int32)


def _draft_log_probs(
    draft_logits: torch.Tensor, idx_mapping: torch.Tensor, temperatures: torch.Tensor
) -> torch.Tensor:
    """[R, k, V] float32, what the drafts were drawn from. temperatures: [R], none 0."""
    logits = draft_logits.index_select(0, idx_mapping).to(torch.float32)
    return logits.div_(temperatures.view(-1, 1, 1)).log_softmax(-1)


def _joint_ratio(ratio: torch.Tensor, is_real: torch.Tensor) -> torch.Tensor:
    """Logarithm of the running joint ratio after each draft, never above 0: [R, k].

    Sequential in k: each is capped before the next is added. A placeholder carries it on.
    """
    joint, made = torch.zeros_like(ratio[:, 0]), []
    for column in range(ratio.shape[1]):
        raised = (joint + ratio[:, column]).clamp(max=0.0)
        joint = torch.where(is_real[:, column], raised, joint)
        made.append(joint)
    return torch.stack(made, 1)


def _verify_block(
    drafts: _Drafts,
    target: _Target,
    draft: torch.Tensor | None,
    joint: torch.Tensor,
    u: torch.Tensor,
) -> torch.Tensor:
    """Block verification (Sun et al., 2024): the length of the longest accepted block, [R, 1]."""
    ratio = joint.exp()
    threshold = ratio
    if ratio.shape[1] > 1:
        # The residual mass at the next draft's position, which scales how likely the block ends.
        ahead = ratio[:, :-1]
        logit, tokens = drafts.logit[:, 1:], drafts.tokens[:, 1:]
        if draft is None:
            mass = ahead * (1.0 - target.log_prob(logit, tokens).exp())
        else:
            rows = target.logits.index_select(0, logit.flatten()).to(torch.float32)
            rows = rows.sub_(target.log_sum.index_select(0, logit.flatten()).unsqueeze(1))
            both = rows.exp_().view(*logit.shape, -1).mul_(ahead.unsqueeze(2))
            mass = both.sub_(draft[:, 1:].exp()).clamp_min_(0.0).sum(2)
        rest = mass + 1.0 - ahead
        one = constants.scalar(1.0, u.device, torch.float32)
        h = torch.where(rest > 0.0, mass / rest, one)
        threshold = torch.cat((torch.where(tokens >= 0, h, ahead), ratio[:, -1:]), 1)
    # A placeholder ends the block.
    verified = _before_first_false(drafts.tokens >= 0).logical_and_(u <= threshold)
    lengths = constants.arange(u.shape[1], u.device) + 1
    return (lengths * verified).amax(1, keepdim=True)


def _residual(
    drafts: _Drafts,
    target: _Target,
    draft: torch.Tensor | None,
    joint: torch.Tensor | None,
    accepted: torch.Tensor,
    last: torch.Tensor,
    is_greedy: torch.Tensor,
) -> torch.Tensor:
    """Logits of what is sampled after the accepted drafts, [R, V] float32.

    accepted: [R, 1] int64; last: [R] int64, its logit. What the draft has of the target's mass is
    taken off where a real draft was rejected.
    """
    logits = target.logits.index_select(0, last).to(torch.float32)
    at = accepted.clamp(max=drafts.tokens.shape[1] - 1)
    rejected = drafts.tokens.gather(1, at)
    # no token where all were accepted: the gather then sees an accepted one
    was_rejected = (accepted < drafts.counts) & (rejected >= 0) & ~is_greedy
    if draft is None:
        vocabulary = constants.arange(logits.shape[1], logits.device)
        return logits.masked_fill(was_rejected & (vocabulary == rejected), float("-inf"))
    log_target = logits - target.log_sum.index_select(0, last).unsqueeze(1)
    if joint is not None:
        before = joint.gather(1, (accepted - 1).clamp_min(0))
        log_target = log_target + before.masked_fill(accepted == 0, 0.0)
    log_draft = draft.gather(1, at.unsqueeze(2).expand(-1, 1, draft.shape[2])).squeeze(1)
    ratio = (log_draft - log_target).exp()
    smaller = log_target + torch.log1p(-ratio.clamp(max=1.0))
    none = constants.scalar(float("-inf"), logits.device, torch.float32)
    return torch.where(was_rejected, torch.where(ratio < 1.0, smaller, none), logits)
