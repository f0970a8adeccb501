# SPDX-License-Identifier: Apache-2.0
"""kernels/block_table.py and buffer_utils.py against core's pointer-table kernels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.kernel_cases import MAX_MODEL_LEN, MAX_NUM_REQS, Batch, batches
from tests.helpers.kernel_check import KernelCheck, assert_same

CORE = "tests.helpers.core_tables"
MAX_NUM_TOKENS = 80
groups = st.lists(st.sampled_from([4, 8, 16]), min_size=1, max_size=3)

pytestmark = pytest.mark.usefixtures("host_tables_on")
# the patch of host_tables_on holds for all examples of a test
per_test_patch = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def tables_for(check: KernelCheck, batch: Batch, block_sizes: list[int], **options: object):
    """Our BlockTables with random blocks for every request row, and its tables on the host."""
    from vllm.v1.worker.gpu.block_table import BlockTables

    widths = [-(-MAX_MODEL_LEN // size) for size in block_sizes]
    tables = BlockTables(block_sizes, MAX_NUM_REQS, MAX_NUM_TOKENS, widths, check.device, **options)
    for row in range(MAX_NUM_REQS):
        blocks = tuple(batch.rng.integers(1, 999, width).tolist() for width in widths)
        tables.append_block_ids(row, blocks, overwrite=True)
    tables.apply_staged_writes()
    return tables, [table.gpu.cpu() for table in tables.block_tables]


@per_test_patch
@given(batch=batches(), block_sizes=groups, extra=st.integers(0, 2))
def test_gather_block_tables(
    check: KernelCheck, batch: Batch, block_sizes: list[int], extra: int
) -> None:
    tables, on_host = tables_for(check, batch, block_sizes)
    padded = min(batch.num_reqs + extra, MAX_NUM_REQS)
    gathered = tables.gather_block_tables(check.place(batch.idx_mapping), padded)
    wanted = [torch.full_like(table, 7) for table in on_host]
    num_blocks = torch.from_numpy(tables.num_blocks.np.copy())
    _, args = check.oracle.call(
        f"{CORE}.gather_block_tables", on_host, num_blocks, batch.idx_mapping, padded, wanted
    )
    assert_same(gathered, [table[:padded] for table in args[4]], "gathered", 0, 0)


@per_test_patch
@given(
    batch=batches(),
    block_sizes=groups,
    extra=st.integers(0, 5),
    no_request=st.booleans(),
    disable=st.booleans(),
)
def test_compute_slot_mappings(
    check: KernelCheck,
    batch: Batch,
    block_sizes: list[int],
    extra: int,
    no_request: bool,
    disable: bool,
) -> None:
    """Padded slots are -1; so are those of a row without a request (-1 in idx_mapping)."""
    enabled = [not (disable and group == 0) for group in range(len(block_sizes))]
    tables, on_host = tables_for(check, batch, block_sizes, slot_mapping_enabled=enabled)
    mapping = batch.idx_mapping.clone()
    if no_request:
        mapping[-1] = -1
    starts = batch.query_start_loc
    query = starts[: batch.num_reqs + 1].diff()
    base = batch.num_computed_tokens[batch.idx_mapping]
    positions = torch.cat([torch.arange(q) + b for q, b in zip(query, base, strict=True)])
    # positions past the batch are whatever an earlier step left there
    stale = batch.ints(MAX_NUM_TOKENS - len(positions), 10**6, torch.int64)
    positions = torch.cat((positions, stale))
    num_padded = batch.num_tokens + extra
    slots = tables.compute_slot_mappings(
        *check.place((mapping, starts, positions)), num_tokens_padded=num_padded
    )
    wanted = torch.full((len(block_sizes), MAX_NUM_TOKENS), 5, dtype=torch.int64)
    _, args = check.oracle.call(
        f"{CORE}.compute_slot_mappings",
        on_host,
        block_sizes,
        enabled,
        mapping,
        starts,
        positions,
        wanted,
    )
    assert_same(slots, args[6][:, :num_padded], "slots", 0, 0)
    assert_same(tables.slot_mappings, args[6], "slots past the padding", 0, 0)


def test_context_parallelism_is_refused(check: KernelCheck) -> None:
    from vllm.v1.worker.gpu.block_table import BlockTables

    from vllm_ascend_mrv2.kernels.errors import NotReplacedError

    with pytest.raises(NotReplacedError, match=r"^context parallelism"):
        BlockTables([8], 2, 8, [4], check.device, cp_size=2)


writes = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 5), st.integers(1, 12)), min_size=0, max_size=6
)


@per_test_patch
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
@given(writes=writes, case=st.integers(0, 2**32 - 1))
def test_staged_writes(
    check: KernelCheck, dtype: torch.dtype, writes: list[tuple[int, int, int]], case: int
) -> None:
    """Core's interpreter applies the writes one after the other: the later one wins, as here."""
    from vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor

    rng = np.random.default_rng(case)
    table = StagedWriteTensor((5, 18), dtype, check.device)
    for row, start, length in writes:
        table.stage_write(row, start, rng.integers(-99, 99, length).tolist())
    staged = (
        list(table._staged_write_indices),
        list(table._staged_write_starts),
        list(table._staged_write_contents),
        list(table._staged_write_cu_lens),
    )
    table.apply_write()
    _, args = check.oracle.call(f"{CORE}.apply_write", torch.zeros(5, 18, dtype=dtype), *staged)
    assert_same(table.gpu, args[0], "written", 0, 0)
    assert not table._staged_write_indices
    assert not table._staged_write_contents


def test_host_table_is_copied_only_when_it_changed(check: KernelCheck) -> None:
    from vllm.v1.worker.gpu.buffer_utils import UvaBackedTensor

    table = UvaBackedTensor(6, dtype=torch.int32)
    address = table.gpu.data_ptr()
    before = table.gpu._version
    table.copy_to_uva()
    assert table.gpu._version == before
    table.np[3] = 11
    table.copy_to_uva()
    assert table.gpu.cpu().tolist() == [0, 0, 0, 11, 0, 0]
    assert table.gpu.data_ptr() == address
    # a change behind the host's back must not linger once the host changes again
    table.np[3] = 0
    assert table.copy_to_uva(4).cpu().tolist() == [0, 0, 0, 0]


def test_a_longer_host_table_grows_the_device_side(check: KernelCheck) -> None:
    from vllm.v1.worker.gpu.buffer_utils import UvaBufferPool

    pool = UvaBufferPool(2, dtype=torch.int32)
    assert pool.copy_to_uva([1, 2]).cpu().tolist() == [1, 2]
    assert pool.copy_to_uva([3, 4, 5]).cpu().tolist() == [3, 4, 5]
    own = pool.copy_to_gpu(np.asarray([6, 7], np.int32))
    pool.copy_to_uva([8, 9])
    assert own.cpu().tolist() == [6, 7]
