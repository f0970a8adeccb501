# SPDX-License-Identifier: Apache-2.0
"""Watches the KV cache of a runner in this process: what no step may read is NaN, and what no step
may write stays as it was.

Before each step every slot that its requests have not computed is poisoned with NaN: a length that
is one too long then shows as NaN in a hidden state. After it, with its drafts made, every slot but
those must be bit for bit what it was. Findings name step, request and block. Uses the runner's own
tables; the device is read at every step, so nothing is fast here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


class KvGuard:
    """Guards one runner from its creation on. Raises AssertionError inside the step at fault."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        self.steps = 0
        self.poisoned = 0  # slots
        self._before: list[torch.Tensor] = []
        self._allowed: torch.Tensor | None = None
        self._owners: dict[int, str] = {}
        self._prepare, self._sample = runner.prepare_inputs, runner.sample_tokens
        runner.prepare_inputs, runner.sample_tokens = self.prepare, self.sample
        speculator = runner.speculator
        if hasattr(speculator, "sample_draft"):
            self._sample_draft = speculator.sample_draft
            speculator.sample_draft = self.sample_draft

    def prepare(self, *args: Any, **kwargs: Any) -> Any:
        batch = self._prepare(*args, **kwargs)
        self._batch = batch
        tables = self.runner.block_tables
        computed = self.runner.req_states.num_computed_tokens.gpu.cpu().numpy()
        blocks_of = tables.block_tables[0].gpu.cpu().numpy()
        counts = tables.num_blocks.np[0]
        size = tables.block_sizes[0]
        num_blocks = self.runner.kv_caches[0].shape[0]
        allowed = np.zeros((num_blocks, size), bool)
        self._owners = {}
        for req_id, row in zip(batch.req_ids, batch.idx_mapping_np, strict=True):
            mine = blocks_of[row, : counts[row]]
            assert 0 not in mine, f"step {self.steps}: request {req_id} owns the null block"
            slots = np.arange(computed[row], len(mine) * size)
            taken = allowed[mine[slots // size], slots % size]
            assert not taken.any(), f"step {self.steps}: {req_id} shares an unfilled block"
            allowed[mine[slots // size], slots % size] = True
            self._owners |= dict.fromkeys(mine.tolist(), req_id)
        self.poisoned += int(allowed.sum())
        self._allowed = torch.from_numpy(allowed).to(self.runner.device)
        poison = self._allowed.view(num_blocks, 1, size, 1)
        for cache in self.runner.kv_caches:
            cache.masked_fill_(poison, float("nan"))
        self._before = [cache.clone() for cache in self.runner.kv_caches]
        return batch

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        state = self.runner.execute_model_state
        if state is not None:
            hidden = state.hidden_states[: self._batch.num_tokens]
            self._refuse_nan(hidden.isnan().any(-1), "a hidden state of the target")
        output = self._sample(*args, **kwargs)
        if state is not None:
            self._compare()
            self.steps += 1
        return output

    def sample_draft(self, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self._before:  # not while the engine measures itself
            nan = hidden.isnan().any(-1).cpu()
            rows = nan.nonzero().flatten().tolist()
            names = [self._batch.req_ids[row] for row in rows if row < self._batch.num_reqs]
            assert not names, f"step {self.steps}: a draft of {names} read what is not computed"
        return self._sample_draft(hidden, *args, **kwargs)

    def _refuse_nan(self, nan: torch.Tensor, what: str) -> None:
        tokens = nan.cpu().nonzero().flatten().numpy()
        if tokens.size == 0:
            return
        ends = self._batch.query_start_loc_np[1 : self._batch.num_reqs + 1]
        rows = sorted(set(np.searchsorted(ends, tokens, side="right").tolist()))
        names = [self._batch.req_ids[row] for row in rows]
        raise AssertionError(f"step {self.steps}: {what} of {names} read what is not computed")

    def _compare(self) -> None:
        assert self._allowed is not None
        for layer, (cache, before) in enumerate(
            zip(self.runner.kv_caches, self._before, strict=True)
        ):
            bits = {4: torch.int32, 2: torch.int16}[cache.element_size()]
            changed = (cache.view(bits) != before.view(bits)).any(-1).any(1)
            wrong = changed.logical_and_(~self._allowed).cpu().nonzero().tolist()
            found = [
                f"block {block} slot {slot} (of {self._owners.get(block, 'no request')})"
                for block, slot in wrong[:4]
            ]
            assert not found, f"step {self.steps}: layer {layer} wrote {', '.join(found)}"
