# SPDX-License-Identifier: Apache-2.0
"""pytest plugin for core's own test files: the state of a worker process, and a record of results.

Loaded by name (`-p conformance_plugin`) into a run whose `tests` package is core's, so nothing here
imports this repository's tests. CONFORMANCE_RECORD names the file to which results are appended,
one JSON object a line, at once: a test that ends the process is the last one that began.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_FOLDER = "tests/"


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """What a worker does before it builds its runner, and before core's modules are loaded."""
    import torch
    from vllm.platforms import current_platform

    if current_platform.device_type != "npu":
        pytest.exit(f"the platform is {current_platform!r}; the plugin is not active", 4)
    torch.npu.set_device(0)
    current_platform.import_kernels()
    current_platform.import_ir_kernels()
    current_platform.register_triton_kernel_overrides()
    _complete_batches()


def _complete_batches() -> None:
    """Give a test's stand-in for a batch the host arrays that every real one has.

    Core's overlay of prompt embeddings finds its rows on the device; ours on the host, without a
    read. What a stand-in lacks is read from its own device tensors here.
    """
    from vllm.v1.worker.gpu.model_states.prompt_embeds import PromptEmbedsState

    apply, add_request = PromptEmbedsState.apply, PromptEmbedsState.add_request

    def noting(state: Any, req_index: int, data: Any) -> None:
        vars(state).setdefault("req_ids", {})[req_index] = data.req_id
        add_request(state, req_index, data)

    def completing(state: Any, batch: Any, computed: Any, inputs_embeds: Any) -> None:
        if not hasattr(batch, "req_ids"):
            rows = batch.idx_mapping.cpu()
            batch.idx_mapping_np = rows.numpy()
            batch.query_start_loc_np = batch.query_start_loc.cpu().numpy()
            batch.num_computed_prefill_tokens_np = computed.cpu()[rows].numpy()
            batch.req_ids = [state.req_ids.get(row) for row in rows.tolist()]
        apply(state, batch, computed, inputs_embeds)

    PromptEmbedsState.add_request, PromptEmbedsState.apply = noting, completing


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what the list says is not to be run: CONFORMANCE_SKIP, a JSON list of test functions.

    And use core's switch for leaving out a garbage collection after each test, most of their time.
    """
    skipped = set(json.loads(os.environ.get("CONFORMANCE_SKIP", "[]")))
    for item in items:
        item.add_marker(pytest.mark.skip_global_cleanup)
        if _name(item.nodeid).partition("[")[0] in skipped:
            item.add_marker(pytest.mark.skip(reason="not run, see expected.toml"))


class Recorder:
    """Writes the beginning and the outcome of each test."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _write(self, **entry: Any) -> None:
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(entry) + "\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that could not be loaded, or that skipped itself, has no tests of its own."""
        if report.nodeid.endswith(".py") and not report.passed:
            self._write(test=_name(report.nodeid), outcome=report.outcome, text=_reason(report))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(began=_name(nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The call's outcome, or that of a setup or teardown which did not pass."""
        if report.when == "call" or not report.passed:
            expected_failure = hasattr(report, "wasxfail")
            outcome = "xfailed" if expected_failure else report.outcome
            self._write(test=_name(report.nodeid), outcome=outcome, text=_reason(report))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._write(ended=_name(nodeid))


def _name(nodeid: str) -> str:
    return nodeid.removeprefix(_FOLDER)


def _reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr)[:600]


def pytest_configure(config: pytest.Config) -> None:
    if path := os.environ.get("CONFORMANCE_RECORD"):
        config.pluginmanager.register(Recorder(Path(path)))


@pytest.fixture(autouse=True)
def device_settles() -> Iterator[None]:
    """Fail the test whose operators failed on the device, and mend it for those that follow.

    Operators run later than their call: without this the failure would show in another test.
    """
    yield
    import torch

    try:
        torch.npu.synchronize()
    except RuntimeError as error:
        ctypes.CDLL("libascendcl.so").aclrtResetDevice(0)
        torch.npu.set_device(0)
        pytest.fail(f"the device failed during this test: {error}")
