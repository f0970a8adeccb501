# SPDX-License-Identifier: Apache-2.0
"""What transformers on the CPU makes of whole prompts, float32. For a process without a device."""

from __future__ import annotations

import torch
from torch.nn.functional import normalize


@torch.inference_mode()
def mean_embeddings(checkpoint: str, prompts: list[list[int]]) -> torch.Tensor:
    """Normalised means of an encoder's hidden states, [n, hidden_size]."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(checkpoint, dtype=torch.float32).eval()
    states = [model(torch.tensor([prompt])).last_hidden_state[0] for prompt in prompts]
    return normalize(torch.stack([state.mean(0) for state in states]), dim=-1)


@torch.inference_mode()
def last_embeddings(checkpoint: str, prompts: list[list[int]]) -> torch.Tensor:
    """Normalised hidden states of a decoder's last tokens, [n, hidden_size]."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval().model
    states = [model(torch.tensor([prompt])).last_hidden_state[0, -1] for prompt in prompts]
    return normalize(torch.stack(states), dim=-1)


@torch.inference_mode()
def class_scores(checkpoint: str, prompts: list[list[int]]) -> torch.Tensor:
    """Probabilities of a sequence classifier's labels, [n, labels]."""
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(checkpoint, dtype=torch.float32)
    logits = [model.eval()(torch.tensor([prompt])).logits[0] for prompt in prompts]
    return torch.softmax(torch.stack(logits), dim=-1)


@torch.inference_mode()
def pair_scores(checkpoint: str, pairs: list[list[str]]) -> torch.Tensor:
    """A cross-encoder's score of each pair, [n]."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForSequenceClassification.from_pretrained(checkpoint, dtype=torch.float32)
    inputs = [tokenizer(*pair, return_tensors="pt") for pair in pairs]
    return torch.sigmoid(torch.cat([model.eval()(**one).logits[0] for one in inputs]))
