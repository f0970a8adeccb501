# SPDX-License-Identifier: Apache-2.0
"""Refuses request parameters that neither core nor the OpenAI API knows.

Why: core accepts any field and ignores it, so a misspelt `temprature` answers with another
temperature than was asked for. OpenAI's own server refuses such a request. Fields that its API has
and core does not serve (`user`, `store`, ...) are still accepted, since clients send them.
Core versions: 0.30 to 0.33. Goes when core can refuse unknown fields. Undo with `uninstall()`.
"""

from __future__ import annotations

import difflib
import importlib
import typing
from typing import Any

# Core's request class -> the OpenAI client's definition of the same request.
_REQUESTS: tuple[tuple[str, str, str, str], ...] = (
    (
        "vllm.entrypoints.openai.chat_completion.protocol",
        "ChatCompletionRequest",
        "openai.types.chat.completion_create_params",
        "CompletionCreateParamsBase",
    ),
    (
        "vllm.entrypoints.openai.completion.protocol",
        "CompletionRequest",
        "openai.types.completion_create_params",
        "CompletionCreateParamsBase",
    ),
)
# What turns a request into what the engine samples with.
_METHODS = ("to_sampling_params", "to_beam_search_params")
_originals: list[tuple[type, str, Any]] = []


def _refuse_unknown(request: Any, openai_fields: frozenset[str]) -> None:
    from vllm.exceptions import VLLMValidationError

    unknown = sorted(set(request.model_extra or ()) - openai_fields)
    if not unknown:
        return
    known = [*type(request).model_fields, *openai_fields]
    near = difflib.get_close_matches(unknown[0], known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise VLLMValidationError(
        f"unknown parameter {', '.join(map(repr, unknown))}{hint}",
        parameter=unknown[0],
        value=request.model_extra[unknown[0]],
    )


def _checked(original: Any, openai_fields: frozenset[str]) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse_unknown(self, openai_fields)
        return original(self, *args, **kwargs)

    return method


def install() -> None:
    """Check chat and completion requests before they are sampled. Idempotent.

    Imports core's protocol modules, which import no device.
    """
    if _originals:
        return
    for module, name, openai_module, openai_name in _REQUESTS:
        request = getattr(importlib.import_module(module), name)
        openai_type = getattr(importlib.import_module(openai_module), openai_name)
        fields = frozenset(typing.get_type_hints(openai_type))
        for method in _METHODS:
            if (original := vars(request).get(method)) is not None:
                _originals.append((request, method, original))
                setattr(request, method, _checked(original, fields))


def uninstall() -> None:
    """Give core's methods back."""
    while _originals:
        request, method, original = _originals.pop()
        setattr(request, method, original)
