# SPDX-License-Identifier: Apache-2.0
"""Names of core that kernel replacements are bound to, where core's kernel registry cannot serve.

Core's registry (`vllm.triton_utils.dispatcher`) replaces a Triton kernel by a function of the same
arguments. It cannot where a kernel gets tables of device addresses, where its grid carries what its
arguments do not, or where the arguments hide what the host knows; there a wrapper function, a
method or a class is rebound, and it is listed here. What it is bound to is given by the caller:
nothing here imports another part of this package. Undo with `uninstall()`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from vllm_ascend_mrv2.compat import differences

_GPU = "vllm.v1.worker.gpu"
_MARKS = "vllm.v1.watermarking"
_POOLERS = ("seqwise", "tokwise")
_ALL_KNOWN = "0.30 to 0.33"
_UNTIL_TRITON = "a Triton for this device serves core's kernels"


@dataclass(frozen=True)
class Rebinding:
    """One name of core that is bound to something of ours.

    owner: module, or "module:attribute" for a class or object in it. copies: modules that hold the
    same object under the same name by from-import. only_if_missing: leave what is there alone.
    """

    owner: str
    name: str
    reason: str
    core_versions: str
    goes_when: str
    copies: tuple[str, ...] = ()
    only_if_missing: bool = False

    @property
    def key(self) -> str:
        return f"{self.owner}.{self.name}"


REBINDINGS: tuple[Rebinding, ...] = (
    Rebinding(
        owner="vllm.triton_utils:triton",
        name="next_power_of_2",
        reason="core's placeholder for an absent Triton lacks it, and core's wrappers call it on "
        "the host before they launch",
        core_versions=_ALL_KNOWN,
        goes_when="TritonPlaceholder defines it",
        only_if_missing=True,
    ),
    Rebinding(
        owner=f"{_GPU}.buffer_utils",
        name="UvaBufferPool",
        reason="without UVA core copies every host table whole in every step, each a drain of the "
        "compute stream; ours copies what changed",
        core_versions=_ALL_KNOWN,
        goes_when="core tracks which tables changed, or pinned memory is proven on CANN",
    ),
    Rebinding(
        owner=f"{_GPU}.buffer_utils",
        name="is_uva_available",
        reason="core takes pinned memory for memory that the device can read in place; on this "
        "device it is not, also where the debug switch reports pinned memory",
        core_versions=_ALL_KNOWN,
        goes_when="core asks the platform whether host memory is device-readable",
    ),
    Rebinding(
        owner=f"{_GPU}.buffer_utils",
        name="async_tensor_h2d",
        # The model runner's is bound once more, see runner_names.py.
        copies=tuple(
            f"{_GPU}.{module}"
            for module in (
                *("model_runner", "structured_outputs", "pp_utils", "pcp_manager"),
                *("sample.penalties", "sample.thinking_budget", "sample.prompt_logprob"),
                *("model_states.prompt_embeds", "mm.encoder_runner"),
                "spec_decode.adaptive_verification",
            )
        )
        + tuple(f"vllm.model_executor.layers.pooler.{kind}.methods" for kind in _POOLERS),
        reason="from pageable memory it drains the compute stream; ours goes through the staging",
        core_versions=_ALL_KNOWN,
        goes_when="core has a hook for host-to-device copies of a step",
    ),
    Rebinding(
        owner=f"{_GPU}.buffer_utils:StagedWriteTensor",
        name="apply_write",
        reason="_apply_write_kernel is launched once per write range, and takes three more tables "
        "to the device than a scatter needs",
        core_versions=_ALL_KNOWN,
        goes_when=_UNTIL_TRITON,
    ),
    Rebinding(
        owner=f"{_GPU}.block_table",
        name="BlockTables",
        copies=(f"{_GPU}.model_runner",),
        reason="its kernels get uint64 tables of device addresses",
        core_versions=_ALL_KNOWN,
        goes_when=_UNTIL_TRITON,
    ),
    Rebinding(
        owner=f"{_GPU}.sample.gumbel",
        name="gumbel_sample",
        copies=(
            f"{_GPU}.sample.sampler",
            f"{_GPU}.spec_decode.speculator",
            f"{_GPU}.spec_decode.dspark.speculator",
            f"{_MARKS}.watermarker",
        ),
        reason="its kernel returns per-block maxima, which torch operators need not form",
        core_versions=_ALL_KNOWN,
        goes_when=_UNTIL_TRITON,
    ),
    Rebinding(
        owner=f"{_GPU}.sample.sampler",
        name="Sampler",
        copies=(f"{_GPU}.model_runner", f"{_MARKS}.gpu_sampler"),
        reason="only the sampler knows on the host which rows are greedy, and when a seed changes",
        core_versions=_ALL_KNOWN,
        goes_when=_UNTIL_TRITON,
    ),
    Rebinding(
        owner=f"{_MARKS}.gumbel",
        name="GumbelWatermarker",
        copies=(f"{_MARKS}.factory", f"{_MARKS}.spec_decode", _MARKS),
        reason="it launches its kernels on CUDA only, and shifts by host numbers elsewhere, which "
        "torch_npu brings through pinned memory",
        core_versions="0.32",
        goes_when="core asks the platform instead of the device's name",
    ),
    Rebinding(
        owner=f"{_MARKS}.gpu_sampler",
        name="GPUWatermarkSampler",
        copies=(f"{_GPU}.model_runner", f"{_GPU}.spec_decode.rejection_sampler"),
        reason="it derives from core's sampler, not from the one bound in its place",
        core_versions="0.32",
        goes_when="ours is no longer bound (see Sampler)",
    ),
    Rebinding(
        owner=f"{_GPU}.sample.penalties",
        name="bincount",
        reason="its kernel's grid carries the longest prompt, and core clears rows by index_fill_, "
        "whose index torch_npu reads on the host",
        core_versions=_ALL_KNOWN,
        goes_when=_UNTIL_TRITON,
    ),
    Rebinding(
        owner=f"{_GPU}.sample.penalties:PenaltiesState",
        name="apply_staged_writes",
        reason="core counts a request's tokens at once; here they may still be staged, and the "
        "rows to count are a copy of its own that drains the compute stream",
        core_versions=_ALL_KNOWN,
        goes_when="core has a hook for host-to-device copies of a step",
    ),
    Rebinding(
        owner=f"{_GPU}.structured_outputs:StructuredOutputsWorker",
        name="apply_grammar_bitmask",
        reason="two copies on a stream of its own, each a host wait",
        core_versions=_ALL_KNOWN,
        goes_when="core has a hook for host-to-device copies of a step",
    ),
    Rebinding(
        owner=f"{_GPU}.sample.bad_words",
        name="apply_bad_words",
        reason="its kernel's grid carries the most bad words of a request",
        core_versions=_ALL_KNOWN,
        goes_when=_UNTIL_TRITON,
    ),
    Rebinding(
        owner=f"{_GPU}.sample.logit_bias:LogitBiasState",
        name="apply",
        reason="one kernel serves three features over tables 1024 wide; only here the host knows "
        "which are used and how wide",
        core_versions=_ALL_KNOWN,
        goes_when=_UNTIL_TRITON,
    ),
    Rebinding(
        owner=f"{_GPU}.sample.thinking_budget:ThinkingBudgetState",
        name="apply",
        reason="its kernels scan as far as device lengths say; only here the host has a bound",
        core_versions=_ALL_KNOWN,
        goes_when=_UNTIL_TRITON,
    ),
    Rebinding(
        owner=f"{_GPU}.sample.thinking_budget:ThinkingBudgetState",
        name="apply_staged_writes",
        reason="index_fill_: torch_npu reads its index on the host, which waits for the device",
        core_versions=_ALL_KNOWN,
        goes_when="torch_npu fills by a device index",
    ),
    Rebinding(
        owner=f"{_GPU}.spec_decode.rejection_sampler_utils",
        name="rejection_sample",
        copies=(f"{_GPU}.spec_decode.rejection_sampler",),
        reason="its kernels pass partial reductions of the vocabulary to each other, which torch "
        "operators need not form",
        core_versions=_ALL_KNOWN,
        goes_when=_UNTIL_TRITON,
    ),
    Rebinding(
        owner=f"{_GPU}.model_states.encoder_only:EncoderOnlyModelState",
        name="prepare_inputs",
        reason="token types are copied on their own, without blocking, from memory that is not "
        "page-locked",
        core_versions=_ALL_KNOWN,
        goes_when="core has a hook for host-to-device copies of a step",
    ),
    Rebinding(
        owner=f"{_GPU}.model_states.prompt_embeds:PromptEmbedsState",
        name="apply",
        reason="its kernel gets a uint64 table of device addresses",
        core_versions=_ALL_KNOWN,
        goes_when=_UNTIL_TRITON,
    ),
    Rebinding(
        owner=f"{_GPU}.model_states.prompt_embeds:PromptEmbedsState",
        name="apply_staged_writes",
        reason="it copies that table",
        core_versions=_ALL_KNOWN,
        goes_when=_UNTIL_TRITON,
    ),
)

_MISSING = object()
_originals: list[tuple[Any, str, Any]] = []


def _resolve(owner: str) -> Any:
    module_name, _, attribute = owner.partition(":")
    module = importlib.import_module(module_name)
    return getattr(module, attribute) if attribute else module


def _is_served_elsewhere(holder: str, name: str, core: str) -> bool:
    """Whether another compat module serves that name on that core, which has it otherwise."""
    module, _, attribute = holder.partition(":")
    symbol = f"{module}:{attribute}.{name}" if attribute else f"{module}:{name}"
    return differences.about(symbol, core) is not None


def install(replacements: Mapping[str, Any]) -> None:
    """Bind every name of REBINDINGS. Idempotent.

    replacements: `Rebinding.key` -> object. Raises KeyError unless they are exactly the table's,
    and AttributeError where core has no such name (then nothing is bound).
    """
    unmatched = {rebinding.key for rebinding in REBINDINGS} ^ set(replacements)
    if unmatched:
        raise KeyError(f"replacements and REBINDINGS differ: {', '.join(sorted(unmatched))}")
    bindings: list[tuple[Any, str, Any]] = []
    core = version("vllm")
    for rebinding in REBINDINGS:
        replacement = replacements[rebinding.key]
        for holder in (rebinding.owner, *rebinding.copies):
            if _is_served_elsewhere(holder, rebinding.name, core):
                continue
            host = _resolve(holder)
            if rebinding.only_if_missing:
                if not hasattr(host, rebinding.name):
                    bindings.append((host, rebinding.name, replacement))
            elif getattr(host, rebinding.name) is not replacement:
                bindings.append((host, rebinding.name, replacement))
    for host, name, replacement in bindings:
        _originals.append((host, name, vars(host).get(name, _MISSING)))
        setattr(host, name, replacement)


def uninstall() -> None:
    """Give core its own names back, in reverse order."""
    while _originals:
        host, name, original = _originals.pop()
        if original is _MISSING:
            delattr(host, name)
        else:
            setattr(host, name, original)
