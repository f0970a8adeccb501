# SPDX-License-Identifier: Apache-2.0
"""What compat modules do on other cores than the installed one, where that can be told without it.

That the differences are all, and are served, is what the engine tests on those cores show.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from vllm_ascend_mrv2.compat import grammar_rows, kernel_registry, sampling_mask, watermarks
from vllm_ascend_mrv2.kernels.sample.output import compact_sampling_mask


def test_a_sampling_mask_of_one_row_a_request() -> None:
    """Core 0.31's launch gives what 0.32's gives for one row each; a row that sampled nothing is
    empty."""

    def of_0_31(
        logits_ptr: Any, logits_row_stride: Any, logits_col_stride: Any, num_sampled_tokens_ptr: Any
    ) -> None:
        raise AssertionError

    logits = torch.tensor([[0.0, -float("inf"), 1.0], [2.0, 3.0, -float("inf")]])
    num_sampled = torch.tensor([1, 0], dtype=torch.int32)
    ids, mask = torch.full((2, 2), -1, dtype=torch.int32), torch.zeros(2, 1, dtype=torch.uint8)
    counts = torch.full((2,), -1, dtype=torch.int32)
    launch = sampling_mask.kernel_for(of_0_31, compact_sampling_mask)
    launch(logits, 3, 1, num_sampled, ids, 2, mask, 1, counts, 3, 2, BLOCK_SIZE=8)
    assert counts.tolist() == [2, 0]
    assert ids[0].tolist() == [0, 2]
    assert mask[0].tolist() == [0b101]


def test_a_kernel_that_knows_its_rows_is_served_as_it_is() -> None:
    def of_0_32(logits_ptr: Any, cu_num_logits_ptr: Any) -> None:
        raise AssertionError

    assert sampling_mask.kernel_for(of_0_32, compact_sampling_mask) is compact_sampling_mask


def test_lists_of_masks_by_what_the_core_has() -> None:
    asked: list[tuple[Any, ...]] = []
    old = SimpleNamespace(tolists=lambda *args: asked.append(args))
    sampling_mask.as_lists(old, "counts")
    new = SimpleNamespace(tolists=lambda *args: asked.append(args), rows_per_request=1)
    sampling_mask.as_lists(new, "counts")
    assert asked == [(), ("counts",)]


def test_kernels_without_cores_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a module of core holds the kernel; what is replaced keeps its arguments' names."""

    def kernel(x_ptr: Any, BLOCK_SIZE: Any) -> None:  # noqa: N803
        raise AssertionError

    defining, importing = ModuleType("vllm._test_defining"), ModuleType("vllm._test_importing")
    defining._kernel = importing._kernel = kernel  # type: ignore[attr-defined]
    importing.other = test_kernels_without_cores_registry  # type: ignore[attr-defined]
    for module in (defining, importing):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    launched: list[tuple[Any, ...]] = []

    def ours(*args: Any, **kwargs: Any) -> None:
        launched.append((*args, kwargs))

    kernel_registry._register_before({"vllm._test_defining._kernel": ours})
    assert defining._kernel is importing._kernel
    assert kernel_registry.argument_names(defining._kernel) == ("x_ptr", "BLOCK_SIZE")
    defining._kernel[(1,)]("x", BLOCK_SIZE=8)
    assert launched == [("x", {"BLOCK_SIZE": 8})]
    assert importing.other is test_kernels_without_cores_registry
    with pytest.raises(AttributeError):
        kernel_registry._register_before({"vllm._test_defining._gone": ours})


def test_grammar_rows_by_stride_are_those_of_a_batch_without_drafts() -> None:
    batch = SimpleNamespace(req_ids=["a", "b", "c"], num_draft_tokens_per_req=None)
    batch.cu_num_logits_np = torch.tensor([0, 1, 2, 3]).numpy()
    worker = SimpleNamespace(mask_stride=1, num_bonus_tokens=1)
    assert grammar_rows.mapping(worker, batch, ["c", "a"]) == [2, 0]
    assert grammar_rows._by_stride(worker, batch, ["c", "a"]) == [2, 0]
    worker.mask_stride = 3
    assert grammar_rows._by_stride(worker, batch, ["b"]) == [3, 4, 5]


@pytest.mark.parametrize("is_known", [True, False])
def test_kernels_of_watermarks_are_for_the_core_that_they_fit(
    is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watermarks, "core_is_known", lambda: is_known)
    watermark = "vllm.v1.worker.gpu.sample.watermark._philox_gumbel_kernel"
    kernels = {watermark: print, "vllm.v1.worker.gpu.sample.min_p._min_p_kernel": print}
    assert (watermark in watermarks.of_this_core(kernels)) == is_known
    assert "vllm.v1.worker.gpu.sample.min_p._min_p_kernel" in watermarks.of_this_core(kernels)
