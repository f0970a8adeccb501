# SPDX-License-Identifier: Apache-2.0
"""Watches the KV cache of a runner in this process: what no step may read is NaN, and what no step
may write stays as it was.

Before each step every slot that its requests have not computed is poisoned with NaN, in the layers
of target and drafter, and so is every block that nobody has: the null block, and those that are
free and in no prefix cache. A length that is one too long then shows as NaN in a hidden state.
After the step, with its drafts made, every slot but its requests' own must be bit for bit what it
was. Findings name step, request and block. Uses the runner's own tables; the device is read at
every step, so nothing is fast here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch


class KvGuard:
    """Guards one runner from its creation on. Raises AssertionError inside the step at fault."""

    def __init__(self, runner: Any, block_pool: Any, found: list[str] | None = None) -> None:
        """runner: of this process; block_pool: its scheduler's; found: for what it would raise."""
        self.runner = runner
        self._found = found
        self._pool = block_pool
        self.steps = 0
        self.poisoned = 0  # slots
        self._before: list[torch.Tensor] = []
        self._allowed: torch.Tensor | None = None
        self._owners: dict[int, str] = {}
        layers = {layer.kv_cache.data_ptr() for layer in self._attention_layers()}
        assert {cache.data_ptr() for cache in runner.kv_caches} >= layers, "a layer is not watched"
        self._prepare, self._sample = runner.prepare_inputs, runner.sample_tokens
        runner.prepare_inputs, runner.sample_tokens = self.prepare, self.sample
        speculator = runner.speculator
        if hasattr(speculator, "sample_draft"):
            self._sample_draft = speculator.sample_draft
            speculator.sample_draft = self.sample_draft
        # A graph has `sample_draft` in it, so that no replay calls it: there the hidden states are
        # seen that a replay leaves for the next draft.
        names = ("prefill_cudagraph_manager", "decode_cudagraph_manager")
        managers = (getattr(speculator, name, None) for name in names)
        self._draft_graphs = [manager for manager in managers if manager is not None]
        for manager in self._draft_graphs:
            manager.run_fullgraph = partial(self.replay_draft, manager.run_fullgraph)

    def close(self) -> None:
        """Let go of the runner, and of what the device holds for this."""
        runner, speculator = self.runner, self.runner.speculator
        del runner.prepare_inputs, runner.sample_tokens
        if hasattr(self, "_sample_draft"):
            del speculator.sample_draft, self._sample_draft
        for manager in self._draft_graphs:
            del manager.run_fullgraph
        self._draft_graphs = []
        self._before, self._allowed = [], None

    def _attention_layers(self) -> list[Any]:
        """Of the target, and of a drafter that has a model."""
        layers = self.runner.compilation_config.static_forward_context.values()
        return [layer for layer in layers if hasattr(layer, "kv_cache")]

    def prepare(self, *args: Any, **kwargs: Any) -> Any:
        batch = self._prepare(*args, **kwargs)
        self._batch = batch
        tables = self.runner.block_tables
        assert len(tables.block_tables) == 1, "one KV cache group is watched"
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
        nobodys = np.fromiter(
            (not block.ref_cnt and block.block_hash is None for block in self._pool.blocks),
            bool,
            num_blocks,
        )
        nobodys[list(self._owners)] = False  # freed since by a scheduler that is a step ahead
        nobodys[self._pool.null_block.block_id] = True
        poisoned = allowed | nobodys[:, None]
        self.poisoned += int(poisoned.sum())
        self._allowed = torch.from_numpy(allowed).to(self.runner.device)
        self._computed, self._blocks_of = computed[batch.idx_mapping_np], blocks_of
        poison = torch.from_numpy(poisoned).to(self.runner.device).view(num_blocks, 1, size, 1)
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
        self._refuse_nan_of_draft(hidden)
        return self._sample_draft(hidden, *args, **kwargs)

    def replay_draft(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = run(*args, **kwargs)
        self._refuse_nan_of_draft(self.runner.speculator.hidden_states)
        return result

    def _refuse_nan_of_draft(self, hidden: torch.Tensor) -> None:
        if not self._before:  # the engine measures itself
            return
        nan = hidden[: self._batch.num_reqs].isnan().any(-1)
        lens = self.runner.speculator.host_seq_lens.values
        rows = nan.cpu().nonzero().flatten().tolist()
        self._refuse(rows, "a draft", lens if lens is not None else [])

    def _refuse_nan(self, nan: torch.Tensor, what: str) -> None:
        tokens = nan.cpu().nonzero().flatten().numpy()
        if tokens.size == 0:
            return
        ends = self._batch.query_start_loc_np[1 : self._batch.num_reqs + 1]
        rows = sorted(set(np.searchsorted(ends, tokens, side="right").tolist()))
        self._refuse(rows, what, self.runner.host_seq_lens.require(self._batch.num_reqs))

    def _refuse(self, rows: list[int], what: str, lens: Any) -> None:
        """Rows of the batch that read poison, and where the lengths that they were given end."""
        size = self.runner.block_tables.block_sizes[0]
        found = []
        for row in rows:
            text = f"request {self._batch.req_ids[row]} ({self._computed[row]} tokens computed)"
            if row < len(lens) and lens[row]:
                last = int(lens[row]) - 1
                block = self._blocks_of[self._batch.idx_mapping_np[row], last // size]
                text += f" up to token {last}, block {block} slot {last % size}"
            found.append(text)
        if found:
            self._report(f"{what} read what is not computed: {'; '.join(found)}")

    def _report(self, finding: str) -> None:
        text = f"step {self.steps}: {finding}"
        if self._found is None:
            raise AssertionError(text)
        self._found.append(text)

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
            if found:
                self._report(f"layer {layer} wrote {', '.join(found)}")
