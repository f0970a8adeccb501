#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lists the operators that an installed torch_npu may look up, for operator_names.inc.

A name that is missing from libopapi sends torch_npu to its legacy operator path, so each name has
a definition: the operator, or (weak, in unimplemented.cpp) a phase 1 that fails with the name. The
list comes from the wheel's own strings, since the wheel is newer than its public source.

    python generate_names.py            # rewrites it from the torch_npu of this Python
    python generate_names.py --check    # exits with 1 and the difference if it is not up to date
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import mmap
import re
import sys
from importlib.metadata import version
from pathlib import Path

LIST = Path(__file__).with_name("operator_names.inc")

# Looked up before use, and left out on purpose: with them the wheel would take another road than
# the operators that we have. Each with what the wheel does without it (op-plugin's calls of
# check_aclnn_kernel_available and GetOpApiFuncAddr).
OPTIONAL: dict[str, str] = {
    "aclnnAddRmsNormQuantV2": "aclnnAddRmsNormQuant",
    "aclnnAlltoAllMatmulV2": "aclnnAlltoAllMatmul",
    "aclnnAlltoAllQuantMatmulV2": "aclnnAlltoAllQuantMatmul",
    "aclnnAlltoAllvGroupedMatMulV2": "aclnnAlltoAllvGroupedMatMul",
    "aclnnAlltoAllvQuantGroupedMatMulV2": "aclnnAlltoAllvQuantGroupedMatMul",
    "aclnnAscendQuantV3": "aclnnAscendQuant",
    "aclnnDequantSwigluQuantV2": "aclnnDequantSwigluQuant",
    "aclnnDistributeBarrierV2": "aclnnDistributeBarrier",
    "aclnnDynamicBlockQuantV2": "aclnnDynamicBlockQuant",
    "aclnnDynamicMxQuantV2": "aclnnDynamicMxQuant",
    "aclnnDynamicMxQuantV3": "aclnnDynamicMxQuant",
    "aclnnDynamicMxQuantWithDualAxisV2": "aclnnDynamicMxQuantWithDualAxis",
    "aclnnDynamicQuantV3": "aclnnDynamicQuantV2",
    "aclnnDynamicQuantV4": "aclnnDynamicQuantV2",
    "aclnnFlashAttentionScoreGradV3": "aclnnFlashAttentionScoreGrad",
    "aclnnFlashAttentionScoreV3": "aclnnFlashAttentionScore",
    "aclnnFlashAttentionUnpaddingScoreGradV4": "aclnnFlashAttentionUnpaddingScoreGradV2",
    "aclnnFlashAttentionUnpaddingScoreGradV5": "aclnnFlashAttentionUnpaddingScoreGradV2",
    "aclnnFlashAttentionVarLenScoreV4": "aclnnFlashAttentionVarLenScore",
    "aclnnFlashAttentionVarLenScoreV5": "aclnnFlashAttentionVarLenScore",
    "aclnnFlatQuantV2": "aclnnFlatQuant",
    "aclnnGroupedDynamicBlockQuantV2": "aclnnGroupedDynamicBlockQuant",
    "aclnnGroupedDynamicMxQuantV2": "aclnnGroupedDynamicMxQuant",
    "aclnnGroupedMatMulAlltoAllvV2": "aclnnGroupedMatMulAlltoAllv",
    "aclnnGroupedMatmulAddV2": "aclnnGroupedMatmulAdd",
    "aclnnGroupedMatmulFinalizeRoutingV3": "aclnnGroupedMatmulFinalizeRoutingV2",
    "aclnnGroupedMatmulFinalizeRoutingWeightNzV2": "aclnnGroupedMatmulFinalizeRoutingWeightNz",
    "aclnnGroupedMatmulSwigluQuantWeightNzV2": "aclnnGroupedMatmulSwigluQuantWeightNZ",
    "aclnnGroupedMatmulV5": "aclnnGroupedMatmulV4",
    "aclnnHardswishBackwardV2": "aclnnHardswishBackward",
    "aclnnInplaceQuantScatterV2": "aclnnInplaceQuantScatter",
    "aclnnKvRmsNormRopeCacheV2": "aclnnKvRmsNormRopeCache",
    "aclnnLinalgCholesky": "the CPU",
    "aclnnMatmulAllReduceV3": "aclnnMatmulAllReduceV2",
    "aclnnMatmulAlltoAllV2": "aclnnMatmulAlltoAll",
    "aclnnMhcPreBackwardV2": "aclnnMhcPreBackward",
    "aclnnMhcPreV2": "aclnnMhcPre",
    "aclnnMoeDistributeCombineAddRmsNormV2": "aclnnMoeDistributeCombineAddRmsNorm",
    "aclnnMoeDistributeCombineV3": "aclnnMoeDistributeCombineV2",
    "aclnnMoeDistributeCombineV4": "aclnnMoeDistributeCombineV2",
    "aclnnMoeDistributeDispatchV3": "aclnnMoeDistributeDispatchV2",
    "aclnnMoeDistributeDispatchV4": "aclnnMoeDistributeDispatchV2",
    "aclnnMoeFinalizeRoutingV4": "aclnnMoeFinalizeRoutingV2",
    "aclnnQuantGroupedMatMulAlltoAllvV2": "aclnnQuantGroupedMatMulAlltoAllv",
    "aclnnQuantMatmulAllReduceV5": "aclnnQuantMatmulAllReduceV4",
    "aclnnQuantMatmulAlltoAllV2": "aclnnQuantMatmulAlltoAll",
    "aclnnReselectStaticKernel": "nothing: static kernels are not used",
    "aclnnReselectStaticKernelWithPath": "nothing: static kernels are not used",
    "aclnnRotaryPositionEmbeddingV2": "aclnnRotaryPositionEmbedding",
    "aclnnSetPytorchRandom": "nothing: random numbers are the device's own",
    "aclnnTopKTopPSampleV2": "aclnnTopKTopPSample",
    "aclnnTopkV2": "aclnnTopk",
    "aclnnTransQuantParamV3": "aclnnTransQuantParamV2",
    "aclnnTransformBiasRescaleQkv": "the CPU",
    "aclnnUnfoldGrad": "other operators",
    "aclnnWeightQuantMatmulAllReduceV2": "aclnnWeightQuantMatmulAllReduce",
}

# Two-phase operators without "aclnn" in their name are known by their first phase.
_NAME = re.compile(rb"(?<![\w])(aclnn[A-Z]\w*|acl\w+GetWorkspaceSize)(?=\0)")
_PHASE = re.compile(r"Get(?:Max)?WorkspaceSize$")


def wheel_library() -> Path:
    """The libtorch_npu.so of this Python, found without importing (and so initialising) it."""
    spec = importlib.util.find_spec("torch_npu")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("torch_npu is not installed in this Python")
    return Path(next(iter(spec.submodule_search_locations))) / "lib" / "libtorch_npu.so"


def wheel_names(library: Path) -> set[str]:
    """Names of all operators in the strings of `library`."""
    with (
        library.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text,
    ):
        return {_PHASE.sub("", match[1].decode()) for match in _NAME.finditer(text)}


def render(names: set[str], torch_npu_version: str) -> str:
    """The text of operator_names.inc."""
    lines = [
        "// SPDX-License-Identifier: Apache-2.0",
        f"// Generated by generate_names.py from torch_npu {torch_npu_version}. Do not edit.",
        *(f"OPERATOR_NAME({name})" for name in sorted(names - OPTIONAL.keys())),
    ]
    return "\n".join(lines) + "\n"


def difference() -> list[str]:
    """Lines by which the committed list differs from the installed wheel; empty: up to date."""
    wanted = render(wheel_names(wheel_library()), version("torch_npu"))
    return list(
        difflib.unified_diff(
            LIST.read_text().splitlines(), wanted.splitlines(), LIST.name, "wheel", lineterm="", n=0
        )
    )


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    if parser.parse_args().check:
        lines = difference()
        print("\n".join(lines) if lines else f"{LIST.name} is up to date")
        return 1 if lines else 0
    LIST.write_text(render(wheel_names(wheel_library()), version("torch_npu")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
