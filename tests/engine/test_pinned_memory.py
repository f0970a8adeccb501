# SPDX-License-Identifier: Apache-2.0
"""Nothing pins host memory while serving, and the platform says so for whatever it is asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.checkpoints import REPOSITORY
from tests.engine.server import environment


@pytest.mark.long  # conftest.py asks the same of each engine in this process
@pytest.mark.parametrize("task_queue", ["0", "1"])
def test_serving_allocates_no_pinned_memory(
    task_queue: str, tiny: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """Greedy, seeds, filters, penalties, logprobs, preemption-size cache, in one process."""
    result = tmp_path / "result.json"
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "tests.engine.pinning_probe"),
            *(str(tiny("qwen3", "float32")), str(result)),
        ],
        cwd=tmp_path,
        env=environment(
            {
                "PYTHONPATH": path,
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                "TASK_QUEUE_ENABLE": task_queue,
            }
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-6000:]
    report = json.loads(result.read_text())
    assert report["tokens"] >= 100
    for counter in ("host_allocator", "device_library"):
        before, after, control = report[counter]
        assert after == before, f"{counter} counted pinned allocations: {report}"
        assert control is not None, f"{counter} is not there to count"
        assert control > after, f"{counter} does not see a pinned allocation"


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((True,), {}), (("npu",), {}), ((), {"device": "npu:0"}), ((0, 1), {"force": True})],
)
def test_pinned_memory_is_reported_unavailable_for_every_argument(
    args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    from vllm.platforms import current_platform
    from vllm.utils.platform_utils import is_pin_memory_available

    assert current_platform.is_pin_memory_available(*args, **kwargs) is False
    assert is_pin_memory_available() is False
