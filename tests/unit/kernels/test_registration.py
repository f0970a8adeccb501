# SPDX-License-Identifier: Apache-2.0
"""That every Triton kernel of core's runner is replaced, or named as refused; and how they bind."""

from __future__ import annotations

import ast
import importlib
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers.kernel_check import KernelCheck
from vllm_ascend_mrv2 import kernels
from vllm_ascend_mrv2.compat import wrappers
from vllm_ascend_mrv2.kernels.unreplaced import UNREPLACED_MODULES

GPU = "vllm.v1.worker.gpu"
# kernels whose only launches are in names that are rebound
BEHIND_REBOUND = {
    f"{GPU}.sample.gumbel._gumbel_sample_kernel",
    f"{GPU}.sample.penalties._bincount_kernel",
    f"{GPU}.sample.bad_words._bad_words_kernel",
    f"{GPU}.sample.logit_bias._bias_kernel",
    f"{GPU}.sample.thinking_budget._update_committed_marker_cache_kernel",
    f"{GPU}.sample.thinking_budget._thinking_budget_kernel",
    f"{GPU}.model_states.prompt_embeds._apply_prompt_embeds_kernel",
    *(
        f"{GPU}.spec_decode.rejection_sampler_utils.{kernel}"
        for kernel in (
            "_compute_local_logits_stats_kernel",
            "_compute_cumulative_log_p_kernel",
            "_compute_local_residual_mass_kernel",
            "_rejection_kernel",
            "_resample_kernel",
            "_insert_resampled_kernel",
        )
    ),
}


def kernels_of_core() -> set[str]:
    """Qualified names of the functions that core launches as `name[grid](...)`."""
    spec = find_spec(GPU)
    assert spec is not None
    root = Path(next(iter(spec.submodule_search_locations or ())))
    found = set()
    for path in root.rglob("*.py"):
        tree = ast.parse(path.read_text())
        launched = {
            call.func.value.id
            for call in ast.walk(tree)
            if isinstance(call, ast.Call)
            and isinstance(call.func, ast.Subscript)
            and isinstance(call.func.value, ast.Name)
        }
        module = ".".join((GPU, *path.relative_to(root).with_suffix("").parts))
        found |= {
            f"{module}.{node.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.name in launched
        }
    return found


def test_no_kernel_of_core_is_forgotten() -> None:
    in_core = kernels_of_core()
    assert len(in_core) > 40
    replaced = set(kernels.kernel_overrides())
    assert replaced <= in_core
    assert in_core >= BEHIND_REBOUND

    def is_named(kernel: str) -> bool:
        module = kernel.removeprefix(f"{GPU}.").rpartition(".")[0]
        return any(module == name or module.startswith(f"{name}.") for name in UNREPLACED_MODULES)

    assert {k for k in in_core - replaced - BEHIND_REBOUND if not is_named(k)} == set()


# Kernels that the interpreter does not run, and why; their tests count or mask by numpy.
NOT_INTERPRETED = {
    f"{GPU}.metrics.logits._num_nans_kernel": "calls libdevice",
    f"{GPU}.structured_outputs._apply_grammar_bitmask_kernel": "its store mask is no bool",
}


def test_every_replacement_is_held_against_the_kernel_on_random_batches() -> None:
    """By name: a hypothesis test, or a helper of one, launches the kernel or calls its launcher."""
    tests = Path(__file__).parent
    text = (tests.parents[1] / "helpers" / "core_tables.py").read_text()
    text += "".join(
        body for path in sorted(tests.glob("test_*.py")) if "@given" in (body := path.read_text())
    )
    for kernel in sorted((set(kernels.kernel_overrides()) | BEHIND_REBOUND) - set(NOT_INTERPRETED)):
        module, _, name = kernel.rpartition(".")
        launchers = launchers_of(name, Path(str(importlib.import_module(module).__file__)))
        assert name in text or any(launcher in text for launcher in launchers), kernel


def launchers_of(kernel: str, source: Path) -> set[str]:
    """Functions of core that launch it, and the functions of the same file that call those."""
    functions = [
        node
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.FunctionDef)
    ]
    found = {function.name for function in functions if f"{kernel}[" in ast.unparse(function)}
    return found | {
        function.name
        for function in functions
        if any(f"{name}(" in ast.unparse(function) for name in found)
    }


def test_every_binding_says_why_and_until_when() -> None:
    assert set(kernels.rebindings()) == {rebinding.key for rebinding in wrappers.REBINDINGS}
    for rebinding in wrappers.REBINDINGS:
        assert rebinding.reason, rebinding.key
        assert rebinding.core_versions, rebinding.key
        assert rebinding.goes_when, rebinding.key


def test_no_copy_of_a_rebound_name_is_missed(check: KernelCheck) -> None:
    """A module of core that calls a rebound name must hold ours (others may only annotate)."""
    importlib.import_module(f"{GPU}.model_runner")
    ours = kernels.rebindings()
    seen = 0
    for rebinding in wrappers.REBINDINGS:
        if ":" in rebinding.owner:
            continue
        for name, module in list(sys.modules.items()):
            if not name.startswith(GPU) or rebinding.name not in vars(module):
                continue
            if rebinding.name in called_names(Path(str(module.__file__))):
                seen += 1
                assert vars(module)[rebinding.name] is ours[rebinding.key], (name, rebinding.name)
    assert seen >= 5


def called_names(source: Path) -> set[str]:
    return {
        call.func.id
        for call in ast.walk(ast.parse(source.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    }


def test_bindings_are_undone_and_done_again(check: KernelCheck) -> None:
    module = importlib.import_module(f"{GPU}.sample.bad_words")
    ours = module.apply_bad_words
    wrappers.uninstall()
    try:
        assert module.apply_bad_words is not ours
        assert module.apply_bad_words.__module__ == module.__name__
        from vllm.triton_utils import triton

        assert not hasattr(triton, "next_power_of_2")
    finally:
        kernels.register()
    assert module.apply_bad_words is ours
    kernels.register()
    wrappers.uninstall()
    assert module.apply_bad_words.__module__ == module.__name__
    kernels.register()


def test_a_name_that_is_not_in_the_table_is_an_error() -> None:
    with pytest.raises(KeyError, match="made_up"):
        wrappers.install({**kernels.rebindings(), "made_up.name": None})


def test_sampling_parameters() -> None:
    from vllm.sampling_params import SamplingParams

    everything = SamplingParams(
        temperature=0.7,
        top_k=5,
        top_p=0.9,
        min_p=0.1,
        seed=3,
        min_tokens=2,
        repetition_penalty=1.2,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        logit_bias={3: 1.0},
        allowed_token_ids=[3, 4],
        logprobs=3,
        prompt_logprobs=2,
        thinking_token_budget=10,
    )
    assert kernels.unsupported_sampling(everything, watermarks=False) is None
    marked = SamplingParams(watermarking=True)
    assert kernels.unsupported_sampling(marked, watermarks=True) is None
    reason = kernels.unsupported_sampling(marked, watermarks=False)
    assert reason is not None
    assert "no watermark configuration" in reason


@pytest.mark.parametrize(
    ("arguments", "name", "fits", "too_long"),
    [
        ({}, "allowed_token_ids", list(range(1024)), list(range(1025))),
        ({}, "logit_bias", dict.fromkeys(range(1024), 1.0), dict.fromkeys(range(1025), 1.0)),
        ({"min_tokens": 1}, "stop_token_ids", list(range(120)), list(range(121))),
        ({}, "stop_token_ids", list(range(500)), None),
    ],
)
def test_lists_longer_than_core_s_tables(
    arguments: dict[str, int], name: str, fits: object, too_long: object
) -> None:
    """Core raises in the worker for these, which would end the engine."""
    from vllm.sampling_params import SamplingParams

    def reason_for(asked: object) -> str | None:
        return kernels.unsupported_sampling(SamplingParams(**arguments, **{name: asked}), False)

    assert reason_for(fits) is None
    if too_long is not None:
        reason = reason_for(too_long)
        assert reason is not None
        assert reason.startswith(name)
