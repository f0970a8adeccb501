# SPDX-License-Identifier: Apache-2.0
"""Replacing core's Triton kernels by functions: core's registry, or ours where core has none.

Reason, core versions and when this goes: `differences.KERNEL_REGISTRY`.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from vllm_ascend_mrv2.compat.differences import KERNEL_REGISTRY


def core_has_one() -> bool:
    """Whether core has a registry; then it also asks the platform to fill it."""
    return find_spec("vllm.triton_utils.dispatcher") is not None


def register(overrides: Mapping[str, Callable[..., None]]) -> None:
    """Let each function serve the launches of the kernel of that qualified name.

    Raises AttributeError or ValueError where core has no such kernel.
    """
    if not core_has_one():
        _register_before(overrides)
        return
    from vllm.triton_utils.dispatcher import register_kernels

    register_kernels(overrides)


def argument_names(kernel: Any) -> tuple[str, ...]:
    """Of core's kernel, also where it has been replaced."""
    names = getattr(kernel, "arg_names", None)
    if names is None:  # no Triton: a plain function, perhaps in a placeholder
        names = inspect.signature(getattr(kernel, "func", kernel)).parameters
    return tuple(names)


class _Launcher:
    """Stands in for a kernel: `kernel[grid](...)` calls the function."""

    def __init__(self, kernel: Any, function: Callable[..., None]) -> None:
        self.arg_names = argument_names(kernel)
        self.function = function

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self.function


@KERNEL_REGISTRY.serves
def _register_before(overrides: Mapping[str, Callable[..., None]]) -> None:
    launchers = {}
    for qualified, function in overrides.items():
        module, _, name = qualified.rpartition(".")
        kernel = getattr(importlib.import_module(module), name)
        launchers[id(kernel)] = kernel, _Launcher(kernel, function)
    for module_name, loaded in list(sys.modules.items()):
        if module_name.partition(".")[0] != "vllm":
            continue
        for name, value in list(vars(loaded).items()):
            kernel, launcher = launchers.get(id(value), (None, None))
            if kernel is value and launcher is not None:
                setattr(loaded, name, launcher)
