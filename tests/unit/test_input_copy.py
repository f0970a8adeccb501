# SPDX-License-Identifier: Apache-2.0
"""Which way of copying a step's inputs may be taken."""

from __future__ import annotations

import pytest

from vllm_ascend_mrv2.runner.input_copy import InputCopyPolicy, decide_input_copy


def test_reading_late_is_refused_where_it_could_read_the_next_batch() -> None:
    late = InputCopyPolicy.ON_READ
    with pytest.raises(ValueError, match="may already have written the next batch"):
        decide_input_copy(late, graphs=True, async_scheduling=True)
    for graphs, async_scheduling in ((True, False), (False, True), (False, False)):
        assert decide_input_copy(late, graphs, async_scheduling).policy is late
    early = InputCopyPolicy.ON_PREPARE_STREAM
    assert decide_input_copy(early, graphs=True, async_scheduling=True).policy is early
