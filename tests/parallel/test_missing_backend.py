# SPDX-License-Identifier: Apache-2.0
"""Without torch's HCCL backend the start-up ends; core alone would go on over gloo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.helpers.emulated import passes, run_script


def test_a_worker_ends_and_says_what_to_install(tiny: Callable[[str, str], Path]) -> None:
    ended = run_script(
        f"""
        import torch.distributed as dist
        dist.Backend.backend_list.remove("hccl")
        from vllm import LLM
        LLM({str(tiny("qwen3", "float32"))!r}, max_model_len=64, enforce_eager=True)
        """,
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
    )
    assert ended.returncode == 1
    assert "HcclMissingError: torch.distributed has no hccl backend" in ended.stderr
    assert "vllm-ascend-mrv2 doctor" in ended.stderr


def test_a_group_on_another_backend_is_refused() -> None:
    passes(
        """
        import torch
        import torch.distributed as dist
        from vllm_ascend_mrv2.distributed.communicator import HcclMissingError, NPUCommunicator
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            NPUCommunicator(dist.group.WORLD, torch.device("npu:0"), dist.group.WORLD, "tp:0")
        except HcclMissingError as error:
            assert "the group tp:0 talks over gloo, not hccl" in str(error), error
        else:
            raise SystemExit("accepted")
        """
    )
