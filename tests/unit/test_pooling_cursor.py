# SPDX-License-Identifier: Apache-2.0
"""Where a pooler's requests begin and end: core's numbers, without its asynchronous copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vllm_ascend_mrv2.compat import pooling_cursor


class _Copies(TorchDispatchMode):
    """Whether each copy to another device is asynchronous."""

    def __init__(self) -> None:
        super().__init__()
        self.asynchronous: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket.__name__ == "_to_copy" and "device" in kwargs:
            self.asynchronous.append(bool(kwargs.get("non_blocking")))
        return func(*args, **kwargs)


def cursor(lengths: list[int], device: str, **more: Any) -> Any:
    """Core's cursor of prompts of these lengths, each computed at once."""
    from vllm.pooling_params import PoolingParams
    from vllm.v1.pool.metadata import PoolingMetadata, PoolingStates

    numbers = np.asarray(lengths, np.int32)
    made = PoolingMetadata(
        prompt_lens=torch.from_numpy(numbers),
        prompt_token_ids=None,
        prompt_token_ids_cpu=None,
        pooling_params=[PoolingParams(task="embed") for _ in lengths],
        pooling_states=[PoolingStates() for _ in lengths],
    )
    made.build_pooling_cursor(numbers, torch.from_numpy(numbers), torch.device(device), **more)
    return made.get_pooling_cursor()


@pytest.mark.parametrize("lengths", [[1], [3, 1, 7], [200, 30, 31, 2, 1]])
def test_numbers_are_core_s_and_are_waited_for(lengths: list[int]) -> None:
    core_s = cursor(lengths, "cpu")
    pooling_cursor.install()
    try:
        pooling_cursor.install()
        ours = cursor(lengths, "cpu")
        starts = torch.tensor([0, *np.cumsum(lengths)])
        given = cursor(lengths, "cpu", query_start_loc_gpu=starts)
        with _Copies() as copies:
            cursor(lengths, "meta")
    finally:
        pooling_cursor.uninstall()
    for name in ("first_token_indices_gpu", "last_token_indices_gpu"):
        assert getattr(ours, name).tolist() == getattr(core_s, name).tolist()
    assert given.first_token_indices_gpu.data_ptr() == starts.data_ptr()
    assert copies.asynchronous == [False]
    with _Copies() as copies:
        cursor(lengths, "meta")
    assert copies.asynchronous == [True], "core waits by itself: compat/pooling_cursor.py can go"
