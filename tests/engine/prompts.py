# SPDX-License-Identifier: Apache-2.0
"""Prompts as token ids: 32 of 1 to 600 tokens, and a set that shares a prefix. Deterministic.

Half natural text, half random tokens: text makes a real model certain of its answer, random tokens
exercise every row of the embedding. Lengths sit on and beside block and chunk borders.
"""

from __future__ import annotations

import random
from pathlib import Path

from tokenizers import Tokenizer

from tests.engine.checkpoints import REPOSITORY

LENGTHS = (
    *(1, 600, 2, 257, 15, 512, 128, 33, 3, 400, 16, 300, 63, 550, 129, 255),
    *(17, 450, 31, 200, 127, 599, 7, 350, 32, 256, 64, 500, 65, 384, 100, 150),
)
# Whole blocks of the default 128-token block size are shared, and a part of one more.
SHARED_TOKENS = 300


def _sources(checkpoint: Path) -> tuple[list[int], range]:
    """Tokens of a long text, and the ids that random prompts may use (no control tokens)."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    text = tokenizer.encode((REPOSITORY / "LICENSE").read_text(encoding="utf-8")).ids
    ordinary = 256  # the byte tokenizer's bytes
    if tokenizer.get_vocab_size() > 1000:
        return text, range(100, tokenizer.get_vocab_size())
    return text, range(ordinary)


def varied(checkpoint: Path) -> list[list[int]]:
    """32 prompts with the lengths of LENGTHS, text and random tokens in turn."""
    text, ids = _sources(checkpoint)
    chance = random.Random(20)
    out = []
    for index, length in enumerate(LENGTHS):
        if (index // 2) % 2 == 0:
            start = chance.randrange(len(text) - length)
            out.append(text[start : start + length])
        else:
            out.append([chance.choice(ids) for _ in range(length)])
    return out


def sharing_a_prefix(checkpoint: Path) -> list[list[int]]:
    """Six prompts that begin with the same SHARED_TOKENS tokens and go on differently.

    The first is the prefix alone, the last is the first again: a full hit but for its last token.
    """
    text, ids = _sources(checkpoint)
    chance = random.Random(21)
    prefix = text[-SHARED_TOKENS:]
    tails = [[chance.choice(ids) for _ in range(length)] for length in (1, 20, 84, 200)]
    return [prefix, *(prefix + tail for tail in tails), prefix]
