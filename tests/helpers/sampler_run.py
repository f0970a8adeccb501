# SPDX-License-Identifier: Apache-2.0
"""A few sampling steps of core's runner in small, run alike by us and by the oracle's process.

The whole sampler on real request state: requests with any parameters are added, logits are given,
and core's update advances the state. Which kernels and Sampler it gets depends on the process.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tests.helpers.combinations import sampling_params
from tests.helpers.core_version import core_is_before
from vllm_ascend_mrv2.kernels.sample.gumbel import uniform_bits

VOCAB_SIZE = 300
MAX_MODEL_LEN = 64


def _on_cpu_only() -> None:
    """In the oracle's process: host tables without a device, and top-k by torch (as on the NPU)."""
    import vllm.platforms
    from vllm.platforms.interface import UnspecifiedPlatform
    from vllm.v1.sample.ops import topk_topp_sampler
    from vllm.v1.worker.gpu import buffer_utils

    class Host(UnspecifiedPlatform):
        device_type = "cpu"

    vllm.platforms.current_platform = Host()
    buffer_utils.is_uva_available = lambda: False
    topk_topp_sampler.HAS_TRITON = False
    if core_is_before("0.31"):
        from vllm.v1.worker.gpu.sample import sampler

        sampler.gumbel_sample = _later_draws


def _later_draws(
    logits: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    pos: torch.Tensor,
    **_: Any,
) -> torch.Tensor:
    """The random stream of core from 0.31 on, which we draw from on every core, a row at a time.

    logits: [n, vocab_size], temperature applied. -> [n] int64
    """
    tokens = []
    for row, state in enumerate(expanded_idx_mapping.tolist()):
        scores = logits[row].double().numpy()
        if temperature[state] != 0:
            bits = uniform_bits(int(seed[state]), int(pos[row]), scores.shape[0])
            scores = scores - np.log(-np.log1p(-(bits + 0.5) * 2.0**-32))
        tokens.append(int(scores.argmax()))
    return torch.tensor(tokens)


def run(
    parameters: list[dict[str, Any]],
    num_steps: int,
    case: int,
    device: str = "cpu",
    oracle: bool = True,
    use_fp64_gumbel: bool = False,
    logprobs_mode: str = "raw_logprobs",
    prompts: list[list[int]] | None = None,
    logits: torch.Tensor | None = None,
    more_stop_token_ids: tuple[int, ...] = (),
) -> list[dict[str, torch.Tensor]]:
    """Per step: sampled tokens [n], and where asked for the logprobs' tensors. CPU tensors.

    parameters: as in tests/helpers/combinations.py; the requests sit in scattered state rows.
    prompts, and logits [num_steps, n, vocab_size]: of each request; random ones where not given.
    more_stop_token_ids: the model's own, which `min_tokens` holds back as well.
    """
    from vllm.v1.worker.gpu import input_batch, model_runner
    from vllm.v1.worker.gpu.states import RequestState

    if oracle:
        _on_cpu_only()
    rng = np.random.default_rng(case)
    num_reqs, max_num_reqs = len(parameters), len(parameters) + 3
    vocab_size = VOCAB_SIZE if logits is None else logits.shape[-1]
    max_model_len = MAX_MODEL_LEN if prompts is None else max(map(len, prompts)) + num_steps + 1
    where = torch.device(device)
    states = RequestState(max_num_reqs, max_model_len, 256, 0, vocab_size, where)
    # Core before 0.31 has no such argument, and makes what depends on it elsewhere.
    config = {"vllm_config": SimpleNamespace(reasoning_config=None)}
    sampler = model_runner.Sampler(
        **({} if core_is_before("0.31") else config),
        max_num_reqs=max_num_reqs,
        vocab_size=vocab_size,
        device=where,
        req_states=states,
        logprobs_mode=logprobs_mode,
        use_fp64_gumbel=use_fp64_gumbel,
    )
    states.free_indices = rng.permutation(max_num_reqs).tolist()
    for i, arguments in enumerate(parameters):
        if prompts is None:
            prompt = rng.integers(0, VOCAB_SIZE, rng.integers(3, 12)).tolist()
        else:
            prompt = prompts[i]
        params = sampling_params(arguments)
        params._all_stop_token_ids.update(more_stop_token_ids)
        states.add_request(str(i), len(prompt), prompt, len(prompt) - 1, 40)
        # Core before 0.31 is told the prompt's length, later ones read it from the state.
        length = (len(prompt),) if core_is_before("0.31") else ()
        sampler.add_request(states.req_id_to_index[str(i)], *length, params)
    rows_np = np.asarray([states.req_id_to_index[str(i)] for i in range(num_reqs)])
    rows = torch.from_numpy(rows_np).to(where)
    starts = torch.arange(num_reqs + 1, dtype=torch.int32).to(where)
    results = []
    for step in range(num_steps):
        states.apply_staged_writes()
        sampler.apply_staged_writes()
        lengths = (states.num_computed_tokens.gpu[rows] + 1).to(torch.int32)
        bound = lengths.cpu()
        batch = SimpleNamespace(
            num_reqs=num_reqs,
            idx_mapping=rows,
            idx_mapping_np=rows_np,
            expanded_idx_mapping=rows,
            expanded_local_pos=torch.zeros(num_reqs, dtype=torch.int32).to(where),
            cu_num_logits=starts,
            cu_num_logits_np=np.arange(num_reqs + 1),
            positions=(lengths - 1).to(torch.int64),
            logits_indices=torch.arange(num_reqs).to(where),
            input_ids=torch.zeros(num_reqs, dtype=torch.int32).to(where),
            seq_lens=lengths,
            seq_lens_cpu_upper_bound=bound,
        )
        if logits is None:
            drawn = rng.standard_normal((num_reqs, VOCAB_SIZE), np.float32) * 3
            step_logits = torch.from_numpy(drawn)
        else:
            step_logits = logits[step].clone()
        output = sampler(step_logits.to(where), batch)
        input_batch.post_update(
            rows,
            states.num_computed_tokens.gpu,
            states.last_sampled_tokens,
            sampler.penalties_state.output_bin_counts,
            output.sampled_token_ids,
            output.num_sampled,
            output.num_rejected,
            starts,
            states.all_token_ids.gpu,
            states.total_len.gpu,
        )
        result = {"sampled": output.sampled_token_ids.view(-1).cpu()}
        if (tensors := output.logprobs_tensors) is not None:
            result["token_ids"] = tensors.logprob_token_ids.cpu()
            result["logprobs"] = tensors.logprobs.cpu()
            result["ranks"] = tensors.selected_token_ranks.cpu()
        results.append(result)
    return results
