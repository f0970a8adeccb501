# SPDX-License-Identifier: Apache-2.0
"""Checks a request's bad words against core's device table before they reach the worker.

Why: core bounds the number of bad words when it tokenises them, and the sum of their tokens only in
the worker, where the error ends the engine and every other request with it.
Core versions: 0.30 to 0.33. Goes when core checks both in the front end. Undo with `uninstall()`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_original: Callable[..., None] | None = None


def install() -> None:
    """Make SamplingParams.update_from_tokenizer check the sum too. Idempotent."""
    global _original
    if _original is not None:
        return
    from vllm import envs
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import SamplingParams

    original = SamplingParams.update_from_tokenizer

    def update_from_tokenizer(self: SamplingParams, tokenizer: Any) -> None:
        original(self, tokenizer)
        total = sum(map(len, self.bad_words_token_ids or ()))
        if total > envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS:
            raise VLLMValidationError(
                f"bad_words have {total} tokens in total; at most "
                f"{envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS} are supported. Pass fewer, or raise "
                "VLLM_MAX_BAD_WORDS_TOTAL_TOKENS at start.",
                parameter="bad_words",
                value=self.bad_words,
            )

    SamplingParams.update_from_tokenizer = update_from_tokenizer
    _original = original


def uninstall() -> None:
    """Give core's method back."""
    global _original
    if _original is None:
        return
    from vllm.sampling_params import SamplingParams

    SamplingParams.update_from_tokenizer = _original
    _original = None
