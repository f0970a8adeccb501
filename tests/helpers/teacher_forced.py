# SPDX-License-Identifier: Apache-2.0
"""Logits of transformers on the CPU after given tokens. For a process without a device."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch


@cache
def _model(checkpoint: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()


@torch.inference_mode()
def logits(
    checkpoint: str, prompts: list[list[int]], served: list[list[int]]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """What each served token was drawn from, and the logits of each prompt's tokens but the last.

    Both float32: [longest answer, n, vocab_size], zeros past an answer's end, and
    [len - 1, vocab_size] each.
    """
    model = _model(checkpoint)
    steps = max(map(len, served))
    drawn_from = torch.zeros(steps, len(served), model.config.vocab_size)
    of_prompts = []
    for row, (prompt, answer) in enumerate(zip(prompts, served, strict=True)):
        made = model(torch.tensor([prompt + answer])).logits[0]
        drawn_from[: len(answer), row] = made[len(prompt) - 1 : -1]
        of_prompts.append(made[: len(prompt) - 1].clone())
    return drawn_from, of_prompts


@torch.inference_mode()
def greedy_after(checkpoint: str, embeddings: torch.Tensor, new_tokens: int) -> list[int]:
    """Greedy continuation of a prompt given as embeddings, [len, hidden_size] float32."""
    model = _model(checkpoint)
    inputs, answer = embeddings.unsqueeze(0), []
    for _ in range(new_tokens):
        answer.append(int(model(inputs_embeds=inputs).logits[0, -1].argmax()))
        last = model.get_input_embeddings()(torch.tensor([[answer[-1]]]))
        inputs = torch.cat((inputs, last), dim=1)
    return answer


@torch.inference_mode()
def beams(checkpoint: str, prompt: list[int], width: int, new_tokens: int) -> list[list[int]]:
    """The `width` best continuations by the sum of log probabilities, the best first."""
    model = _model(checkpoint)
    kept: list[tuple[float, list[int]]] = [(0.0, [])]
    for _ in range(new_tokens):
        batch = torch.tensor([prompt + tokens for _, tokens in kept])
        best = torch.log_softmax(model(batch).logits[:, -1], dim=-1).topk(2 * width)
        grown = [
            (score + value, [*tokens, token])
            for (score, tokens), values, ids in zip(
                kept, best.values.tolist(), best.indices.tolist(), strict=True
            )
            for value, token in zip(values, ids, strict=True)
        ]
        kept = sorted(grown, key=lambda beam: beam[0], reverse=True)[:width]
    return [tokens for _, tokens in kept]
