# SPDX-License-Identifier: Apache-2.0
"""The start-up record: what was decided, and why, as data, a table and JSON.

Collects from a finished VllmConfig; decides nothing itself.
"""

from __future__ import annotations

import ctypes
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.table import Table

from vllm_ascend_mrv2 import envs
from vllm_ascend_mrv2.compat import pins

if TYPE_CHECKING:
    from vllm.config import VllmConfig

PINNING_WHY_NOT = (
    "asynchronous copies from pinned memory are not proven on CANN (they hung or read the next "
    "batch's data under graph replay and data-parallel attention)"
)
PINNING_CONDITION = (
    "turn it on by default once `doctor --device` shows, on the card and CANN version in use, that "
    "pinned H2D copies are ordered and the host allocator waits for them before reuse"
)


@dataclass(frozen=True)
class Decision:
    """One answer of the platform: topic, what was chosen, why."""

    topic: str
    choice: str
    reason: str


def pin_memory_decision() -> Decision:
    """Whether host memory may be pinned; the platform's answer is this decision's choice."""
    if envs.PIN_MEMORY.read() == "1":
        return Decision("pinned memory", "on", f"{envs.PIN_MEMORY.name}=1 (debug), unproven")
    return Decision("pinned memory", "off", f"{PINNING_WHY_NOT}; {PINNING_CONDITION}")


def seq_lens_decision(config: VllmConfig) -> Decision:
    """What the sequence-length authority starts from."""
    if envs.SEQ_LENS.read() == "device":
        return Decision("sequence lengths", "device", f"{envs.SEQ_LENS.name}=device (debug)")
    if config.speculative_config is not None and envs.SPEC_LENGTHS.read() == "masked":
        return Decision(
            "sequence lengths",
            "upper bounds where all requests verify drafts, else device, one read per step",
            f"{envs.SPEC_LENGTHS.name}=masked: a mask made on the device hides what lies beyond",
        )
    if config.speculative_config is not None:
        return Decision(
            "sequence lengths",
            "device, one read per step",
            "which drafts are rejected is known to the device only",
        )
    return Decision(
        "sequence lengths",
        "scheduler, per step",
        "taken from the CPU mirror where each request provably advances as scheduled, else read "
        "from the device",
    )


def input_copy_decision(config: VllmConfig) -> Decision:
    """How a step's host data reaches the device."""
    from vllm_ascend_mrv2.runner.input_copy import InputCopyPolicy, input_copy_of

    verdict = input_copy_of(config)
    choices = {
        InputCopyPolicy.ON_PREPARE_STREAM: "on the input stream, when a step is prepared",
        InputCopyPolicy.ON_READ: "on the compute stream, when they are read",
    }
    return Decision("input copies", choices[verdict.policy], verdict.reason)


def graph_decision(config: VllmConfig) -> Decision:
    """Which batches replay a captured graph."""
    mode = config.compilation_config.cudagraph_mode.name
    if mode == "NONE":
        return Decision("graphs", "none (eager)", "asked for by --enforce-eager or cudagraph_mode")
    sizes = config.compilation_config.cudagraph_capture_sizes
    return Decision(
        "graphs",
        f"{mode}, {len(sizes)} sizes up to {max(sizes, default=0)}",
        "attention takes host lengths, so only decode batches are captured",
    )


def updates_decision() -> Decision:
    """Who gives a captured graph its host lengths."""
    from vllm_ascend_mrv2.graph import updates

    verdict = updates.verdict()
    choice = "Python, on the step thread" if verdict.library is None else "C++, its own thread"
    return Decision("graph updates", choice, verdict.reason)


def device_decision() -> Decision:
    """Which device library is loaded, and whether it is an emulation."""
    library = _loaded_library("libascendcl.so")
    if library is None:
        return Decision("device", "not loaded", "no process has initialised the device yet")
    emulated = hasattr(ctypes.CDLL(str(library)), "emu_version")
    name = torch.npu.get_device_name(0)
    choice = f"{name}, emulated" if emulated else name
    return Decision("device", choice, f"libascendcl from {library.parent}")


def ranks_decision(config: VllmConfig) -> Decision:
    """How the model is spread over devices."""
    parallel = config.parallel_config
    sizes = {
        "tensor": parallel.tensor_parallel_size,
        "pipeline": parallel.pipeline_parallel_size,
        "data": parallel.data_parallel_size,
    }
    parts = [f"{name} {size}" for name, size in sizes.items() if size > 1]
    if not parts:
        return Decision("ranks", "one device", "no parallelism was asked for")
    if parallel.enable_expert_parallel:
        parts.append("experts divided among all")
    return Decision(
        "ranks", ", ".join(parts), "HCCL between devices; what is captured is agreed by all ranks"
    )


def _loaded_library(name: str) -> Path | None:
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = Path(line.rpartition(" ")[2])
        if path.name.startswith(name):
            return path
    return None


def collect(config: VllmConfig) -> list[Decision]:
    """The record of a finished VllmConfig."""
    from vllm_ascend_mrv2 import kernels
    from vllm_ascend_mrv2.attention.backend import PREFERRED_BLOCK_SIZE

    scheduler, cache = config.scheduler_config, config.cache_config
    block_size = cache.block_size if cache.user_specified_block_size else PREFERRED_BLOCK_SIZE
    return [
        Decision(
            "versions",
            f"vllm {version('vllm')}, torch {torch.__version__}, torch_npu {version('torch-npu')}",
            "a verified set" if pins.installed() else "not a verified set (debug)",
        ),
        device_decision(),
        ranks_decision(config),
        Decision("model runner", "V2", "the only runner of this plugin"),
        graph_decision(config),
        updates_decision(),
        Decision("torch.compile", "off", "not verified on this device"),
        Decision(
            "async scheduling",
            "on" if scheduler.async_scheduling else "off",
            "core's choice; results are awaited by the output side",
        ),
        seq_lens_decision(config),
        input_copy_decision(config),
        pin_memory_decision(),
        Decision(
            "attention",
            "npu_fused_infer_attention_score (TND, paged)",
            "lengths are checked on the host every step",
        ),
        Decision(
            "KV cache",
            f"block size {block_size}, contiguous K and V",
            "FIA takes multiples of 16",
        ),
        Decision(
            "kernels",
            f"torch operations for {len(kernels.kernel_overrides())} Triton kernels",
            "core's Triton kernels do not run on this device",
        ),
        Decision("layers", "torch_npu's fused operators", "RMSNorm, rotary embedding, SwiGLU"),
    ]


def as_json(decisions: Sequence[Decision]) -> str:
    """A JSON list of {topic, choice, reason}."""
    return json.dumps([asdict(decision) for decision in decisions], indent=2)


def as_table(decisions: Sequence[Decision], width: int = 140) -> str:
    """A table for the log, plain text."""
    table = Table(title="vllm-ascend-mrv2: what was decided, and why", title_justify="left")
    for column in ("topic", "choice", "reason"):
        table.add_column(column, overflow="fold")
    for decision in decisions:
        table.add_row(decision.topic, decision.choice, decision.reason)
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]
