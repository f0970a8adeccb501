# SPDX-License-Identifier: Apache-2.0
"""The whole sampler, step after step, in mixed batches: the tokens that core's kernels give."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.helpers import sampler_run
from tests.helpers.combinations import COMBINATIONS
from tests.helpers.kernel_check import KernelCheck

pytestmark = pytest.mark.usefixtures("host_tables_on")


def compare(check: KernelCheck, parameters: list[dict[str, Any]], **options: Any) -> None:
    ours = sampler_run.run(parameters, 3, 7, device=str(check.device), oracle=False, **options)
    core, _ = check.oracle.call("tests.helpers.sampler_run.run", parameters, 3, 7, **options)
    for step, (mine, wanted) in enumerate(zip(ours, core, strict=True)):
        assert mine.keys() == wanted.keys()
        different = (mine["sampled"] != wanted["sampled"]).nonzero().flatten().tolist()
        assert not different, f"step {step}: {[parameters[i] for i in different]}"
        for name in mine.keys() & {"token_ids", "ranks"}:
            assert torch.equal(mine[name], wanted[name]), (step, name)
        if "logprobs" in mine:
            torch.testing.assert_close(mine["logprobs"], wanted["logprobs"], rtol=1e-5, atol=1e-5)


def test_forty_combinations_in_one_batch(check: KernelCheck) -> None:
    assert len(COMBINATIONS) == 40
    compare(check, COMBINATIONS)


@pytest.mark.parametrize("start", [0, 10, 30])
def test_small_batches(check: KernelCheck, start: int) -> None:
    compare(check, COMBINATIONS[start : start + 10])


def test_one_request_at_a_time(check: KernelCheck) -> None:
    for parameters in COMBINATIONS[::8]:
        compare(check, [parameters])


def test_float64_noise(check: KernelCheck) -> None:
    compare(check, COMBINATIONS[10:28], use_fp64_gumbel=True)


@pytest.mark.parametrize("mode", ["raw_logits", "processed_logprobs", "processed_logits"])
def test_logprobs_modes(check: KernelCheck, mode: str) -> None:
    compare(check, [p for p in COMBINATIONS if "logprobs" in p], logprobs_mode=mode)


@pytest.mark.parametrize("touches", [True, False])
def test_a_custom_processor_keeps_what_it_touches_out_of_the_step_graph(
    check: KernelCheck, touches: bool
) -> None:
    """Whatever the parameters say; and it is called in every step, as it was promised."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.worker.gpu import model_runner
    from vllm.v1.worker.gpu.states import RequestState

    calls: list[str] = []
    processor = SimpleNamespace(
        add_request=lambda row, params: touches,
        apply_staged_writes=lambda: calls.append("step"),
    )
    states = RequestState(4, 32, 32, 0, 50, check.device)

    def sampler(*processors: Any) -> Any:
        return model_runner.Sampler(
            vllm_config=SimpleNamespace(reasoning_config=None),
            max_num_reqs=4,
            vocab_size=50,
            device=check.device,
            req_states=states,
            custom_logits_processors=processors,
        )

    with_processor, without = sampler(processor), sampler()
    for made in (with_processor, without):
        made.add_request(2, SamplingParams(temperature=0.0))
        for _ in range(3):
            made.apply_staged_writes()
    assert without.is_plain[2]
    assert with_processor.is_plain[2] == (not touches)
    assert calls == ["step"] * 3
