# SPDX-License-Identifier: Apache-2.0
"""What tests do inside each rank: delay its streams by a seed, count what its steps cost.

vLLM mixes `InRanks` into the worker's class; nothing of a test or an engine is imported here.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import torch

from tests.helpers.emulated import Step, acl, counters, reset_counters


def _only_decodes(step: Any) -> bool:
    """Whether no request of a scheduled step begins, comes back, or has more than a token."""
    is_steady = not step.scheduled_new_reqs and not step.scheduled_cached_reqs.resumed_req_ids
    return is_steady and set(step.num_scheduled_tokens.values()) == {1}


class InRanks:
    """Of core's worker extension: `self` is the worker."""

    model_runner: Any
    vllm_config: Any
    rank: int

    def set_schedule_seed(self, seed: int | None) -> None:
        """Delay this rank's streams against each other by `seed`; None: not at all."""
        torch.npu.synchronize()
        acl().emu_set_schedule_seed(seed or 0, int(seed is not None))

    def schedule_delays(self) -> int:
        """How often the adversarial scheduler held a stream of this rank back."""
        return int(counters()["total"]["schedule_delays"])

    def how_it_sampled(self) -> tuple[bool, int]:
        """Whether sampling is sharded here, and how many steps were one graph."""
        runner = self.model_runner
        steps = sum(n for verdict, n in runner.step_log.counts.items() if verdict.sampling)
        return runner.batch_sharder is not None, steps

    def mark_steps(self) -> None:
        """Count each step of the runner with requests from here on by itself."""
        runner, numbers = self.model_runner, itertools.count()
        runner.only_decodes = []
        execute, sample = runner.execute_model, runner.sample_tokens

        def marked_execute(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            runner.marked = None
            if scheduler_output.total_num_scheduled_tokens and not kwargs.get("dummy_run"):
                runner.marked = Step(f"step {next(numbers)}")
                runner.marked.__enter__()
                runner.only_decodes.append(_only_decodes(scheduler_output))
            return execute(scheduler_output, *args, **kwargs)

        def marked_sample(*args: Any, **kwargs: Any) -> Any:
            output = sample(*args, **kwargs)
            if runner.marked is not None:
                runner.marked.__exit__(None, None, None)
            return output

        runner.execute_model, runner.sample_tokens = marked_execute, marked_sample
        reset_counters()

    def write_step_counts(self, folder: str) -> None:
        """What the steps cost, in order, into a file for this rank of this engine.

        With all its replays since `mark_steps`, those of steps without requests too.
        """
        del self.model_runner.execute_model, self.model_runner.sample_tokens
        torch.npu.synchronize()
        counted = counters()
        steps = counted["steps"]
        made = []
        for number in range(len(steps)):
            mine = steps[f"step {number}"]["this_thread"]
            copied = mine["copies"]
            made.append(
                {
                    "decodes": self.model_runner.only_decodes[number],
                    "waits": mine["host_wait_count"],
                    "replays": mine["graph_replays"],
                    **{
                        way: sum(m["count"] for kind in copied[way].values() for m in kind.values())
                        for way in ("h2d", "d2h")
                    },
                }
            )
        engine = self.vllm_config.parallel_config.data_parallel_index
        written = {"replays": counted["total"]["graph_replays"], "steps": made}
        Path(folder, f"{engine}-{self.rank}.json").write_text(json.dumps(written))
