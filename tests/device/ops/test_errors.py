# SPDX-License-Identifier: Apache-2.0
"""How operators fail: missing ones, and ones that find bad data when they run. The latter leave the
device in error for good, so they run in processes of their own.
"""

from __future__ import annotations

import ctypes
import subprocess
import textwrap

import pytest
import torch

from tests.helpers.emulated import run_script

PREAMBLE = """
import torch, torch_npu
def attend(table, tokens=20):
    q = torch.zeros(1, 2, 16).npu()
    cache = torch.zeros(4, 16, 32).npu()
    mask = torch.ones(2048, 2048, dtype=torch.int8).triu(1).npu()
    return torch_npu.npu_fused_infer_attention_score_v2(
        q, cache, cache.clone(), atten_mask=mask, block_table=table.npu(), input_layout="TND",
        block_size=16, actual_seq_qlen=[1], actual_seq_kvlen=[tokens], num_query_heads=2,
        num_key_value_heads=2, softmax_scale=1.0, sparse_mode=3)[0]
def scatter(slots):
    x = torch.zeros(len(slots), 2, 16).npu()
    cache = torch.zeros(4, 16, 2, 16).npu()
    torch_npu.npu_scatter_pa_kv_cache(x, x, cache, cache.clone(), torch.tensor(slots).npu(),
                                      cache_mode="Norm")
def route(expert):
    return torch_npu.npu_moe_init_routing_v2(
        torch.zeros(1, 16).npu(), torch.tensor([[expert]], dtype=torch.int32).npu(), active_num=1,
        expert_num=4, expert_tokens_num_type=1, expert_tokens_num_flag=True,
        active_expert_range=[0, 4])
def multiply(counts):
    return torch_npu.npu_grouped_matmul(
        [torch.zeros(3, 16).npu()], [torch.zeros(2, 16, 8).npu()], split_item=2, group_type=0,
        group_list=torch.tensor(counts).npu(), group_list_type=1)
def unpermute(row):
    index = torch.tensor([row], dtype=torch.int32).npu()
    return torch_npu.npu_moe_token_unpermute(torch.zeros(2, 16).npu(), index)
"""


def run(body: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_script(PREAMBLE + textwrap.dedent(body), **environment)


def test_a_missing_operator_is_named_at_the_call() -> None:
    text = r"aclnnInverse is not implemented by the emulated device; add it in csrc/emulator/ops"
    with pytest.raises(RuntimeError, match=text):
        torch.inverse(torch.eye(3).npu())
    # Refused in phase 1: what follows is not touched.
    assert (torch.ones(3).npu() + 1).sum().item() == 6


def test_bad_device_data_is_a_device_error_that_names_the_operator() -> None:
    cases = {
        "attend(torch.tensor([[0, 4]], dtype=torch.int32))": "aclnnFusedInferAttentionScoreV4",
        "attend(torch.tensor([[-1, 0]], dtype=torch.int32))": "block_table[0][0] = -1",
        "scatter([3, 64])": "slot 64 for token 1 of a cache with 64 slots",
        "scatter([3, 5, 3])": "no slot occurs twice",
        "route(4)": "an expert is below expert_num",
        "multiply([2, 2])": "not more rows in all than x has",
        "unpermute(2)": "an entry of sorted_indices is a row",
        "torch.ones(3).npu()[torch.tensor([5]).npu()]": "aclnnIndex",
    }
    script = f"""
import ctypes
acl = ctypes.CDLL("libascendcl.so")
for call in {list(cases)!r}:
    print("case", call, flush=True)
    try:
        exec(call)
        torch.npu.synchronize()
        print("survived")
    except RuntimeError as error:
        print(error)
    acl.aclrtResetDevice(0)
    torch.npu.set_device(0)
"""
    result = run(script)
    assert result.returncode == 0, result.stderr[-2000:]
    shown = result.stdout.split("case ")[1:]
    assert len(shown) == len(cases), result.stdout
    for text, (call, message) in zip(shown, cases.items(), strict=True):
        assert "survived" not in text, call
        assert message in text, (call, text)


def test_entries_beyond_a_sequence_are_not_read() -> None:
    result = run("attend(torch.tensor([[0, -1]], dtype=torch.int32), 16); torch.npu.synchronize()")
    assert result.returncode == 0, result.stderr[-2000:]


def test_a_failing_call_in_queue_mode_2_poisons_the_process() -> None:
    result = run(
        """
        x = torch.eye(3).npu()
        try:
            torch.inverse(x)
        except RuntimeError:
            pass
        print((x + 1).sum().item())
        """,
        TASK_QUEUE_ENABLE="2",
    )
    assert result.returncode != 0
    assert "12" not in result.stdout
    assert "aclnnInverse is not implemented by the emulated device" in result.stderr


def test_handles_do_not_leak() -> None:
    library = ctypes.CDLL("libopapi.so")
    library.emuLiveOperatorHandles.restype = ctypes.c_int64

    def work() -> int:
        x = torch.ones(4, 4).npu()
        y = torch.cat([x @ x, x + 2, x.clamp(0, 1)]).nonzero()
        x[y[0, 0]] = 3
        torch.npu.synchronize()
        return library.emuLiveOperatorHandles()

    work()
    first = work()
    for _ in range(50):
        last = work()
    assert last <= first + 2
