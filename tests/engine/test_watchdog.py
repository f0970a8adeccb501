# SPDX-License-Identifier: Apache-2.0
"""An engine whose replay misses its updates says so and ends, instead of hanging."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.emulated import passes

WITHHELD = """
import sys
from vllm import LLM, SamplingParams

llm = LLM({model!r}, max_model_len=256, gpu_memory_utilization=0.1, max_num_seqs=2,
          num_gpu_blocks_override=8)
core = llm.llm_engine.engine_core
runner = core.engine_core.model_executor.driver_worker.worker.model_runner
runner.replay_protocol.updater.thread.hold(True)
try:
    llm.generate([{{"prompt_token_ids": [1, 2, 3]}}], SamplingParams(max_tokens=8, temperature=0))
except Exception as error:
    print(type(error).__name__, error)
else:
    sys.exit("tokens came from a replay without its updates")
core.shutdown()
print("ended")
"""


# A start; the watchdog itself is in tests/device/runner.
@pytest.mark.long
def test_a_replay_without_its_updates_ends_the_engine(tiny: Callable[[str, str], Path]) -> None:
    out = passes(
        WITHHELD.format(model=str(tiny("qwen3", "float32"))),
        timeout_s=240,
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_ASCEND_MRV2_REPLAY_TIMEOUT_S="2",
    )
    assert "ReplayTimeoutError rank 0: a step did not end within 2 s" in out
    assert "decode step of 1 (greedy): 0 of 2 attention updates issued" in out
    assert "ended" in out
