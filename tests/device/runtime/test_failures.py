# SPDX-License-Identifier: Apache-2.0
"""Failures are loud, name what failed, and stay: device errors, legacy operators, bad handles."""

from __future__ import annotations

import ctypes

import pytest
import torch

from tests.helpers.emulated import acl, passes, recent_error, run_script


@pytest.mark.parametrize("queue", ["0", "1"])
def test_a_device_error_sticks(queue: str) -> None:
    passes(
        """
        import torch
        w = torch.randn(4, 4, device="npu")
        bad = torch.tensor([99], device="npu")
        for attempt in range(3):
            try:
                w.index_select(0, bad)
                torch.npu.synchronize()
            except RuntimeError as error:
                text = str(error)
                # With the task queue, torch_npu may only say that "the inner error is above".
                assert "507015" in text or "Inner error" in text, text
                assert "IndexSelect" in text or "Inner error" in text or QUEUED, text
            else:
                raise AssertionError(f"no error at attempt {attempt}")
        try:
            (w + 1).cpu()
        except RuntimeError:
            pass
        else:
            raise AssertionError("a failed device gave a result")
        other = torch.ones(3, device="npu:1")
        assert other.cpu().tolist() == [1.0] * 3
        """.replace("QUEUED", str(queue == "1")),
        TASK_QUEUE_ENABLE=queue,
    )


@pytest.mark.parametrize("queue", ["0", "1"])
def test_a_legacy_operator_makes_the_device_unusable_and_names_itself(queue: str) -> None:
    """torch_npu goes on after a failed aclop, with garbage: here nothing works afterwards."""
    result = run_script(
        """
        import ctypes, torch
        x = torch.ones(4, device="npu")
        torch.npu.synchronize()
        compiler = ctypes.CDLL("libacl_op_compiler.so")
        code = compiler.aclopCompileAndExecute(
            b"MadeUpOperator", 0, None, None, 0, None, None, None, 0, 0, None, None)
        assert code == 100024
        for attempt in (lambda: (x + 1).cpu(), lambda: x.cpu(), torch.npu.synchronize):
            try:
                attempt()
            except RuntimeError as error:
                # With the task queue, torch_npu may only say that "the inner error is above".
                assert "MadeUpOperator" in str(error) or "Inner error" in str(error), error
            else:
                raise AssertionError("a poisoned device went on")
        print("all refused")
        """,
        TASK_QUEUE_ENABLE=queue,
    )
    assert result.stdout == "all refused\n", result.stderr
    assert result.stderr.count("unusable from here on: the legacy operator") == 1


def test_bad_handles_are_named_and_harm_nothing() -> None:
    torch.npu.set_device(0)
    torch.npu.synchronize()
    stream, event = ctypes.c_void_p(), ctypes.c_void_p()
    assert acl().aclrtCreateStream(ctypes.byref(stream)) == 0
    assert acl().aclrtCreateEventExWithFlag(ctypes.byref(event), 1) == 0
    junk = ctypes.create_string_buffer(64)
    for bad, message in [
        (event, "is a handle of kind 'event', not 'stream'"),
        (ctypes.cast(junk, ctypes.c_void_p), "is not a handle of this runtime"),
        (ctypes.c_void_p(1), "is not a handle of this runtime"),
    ]:
        code = acl().aclrtSynchronizeStream(bad)
        assert code == 107017
        assert message in recent_error()
    assert acl().aclrtRecordEvent(stream, stream) == 107017
    assert "aclrtRecordEvent: " in recent_error()
    assert acl().aclrtDestroyStream(stream) == 0
    for call in (
        lambda: acl().aclrtSynchronizeStream(stream),
        lambda: acl().aclrtDestroyStream(stream),
        lambda: acl().aclrtRecordEvent(event, stream),
        lambda: acl().aclrtStreamWaitEvent(stream, event),
    ):
        assert call() == 107017
        assert "was destroyed" in recent_error()
    assert acl().aclrtDestroyEvent(event) == 0
    assert acl().aclrtDestroyEvent(event) == 107017
    assert (torch.ones(2, device="npu") + 1).cpu().tolist() == [2.0, 2.0]


def test_collectives_of_a_world_of_one_copy() -> None:
    passes(
        """
        import os, torch, torch.distributed as dist
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
        store = dist.HashStore()
        torch.npu.set_device(0)
        dist.init_process_group("hccl", store=store, rank=0, world_size=1)
        x = torch.arange(6.0, device="npu")
        dist.all_reduce(x)
        assert x.cpu().tolist() == [0, 1, 2, 3, 4, 5]
        out = torch.empty(6, device="npu")
        dist.all_gather_into_tensor(out, x)
        assert torch.equal(out.cpu(), x.cpu())
        part = torch.empty(6, device="npu")
        dist.reduce_scatter_tensor(part, x)
        assert torch.equal(part.cpu(), x.cpu())
        dist.broadcast(x, 0)
        dist.barrier()
        torch.npu.synchronize()
        dist.destroy_process_group()
        """
    )
