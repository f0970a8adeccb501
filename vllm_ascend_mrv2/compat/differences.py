# SPDX-License-Identifier: Apache-2.0
"""What other cores have otherwise than the reference, as data: one entry for each compat module.

The contract (contract/) says what the reference core has to have. An entry here says which of
those names other cores lack or have in another form, and what serves in their place there. The
static check counts a name as served where the entry's `relies_on` holds in that core; the code
that uses it is marked by `Difference.serves`, and chosen by looking for the feature, not for the
version.
Imports neither torch nor vllm.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from packaging.specifiers import SpecifierSet

_F = TypeVar("_F", bound=Callable[..., object])


@dataclass(frozen=True)
class Difference:
    """Names of the contract that some cores have otherwise.

    module: of ours that serves those cores, below this package.
    cores: which they are, as a version specifier.
    symbols: names as in the contract; one that ends in `*` stands for all that begin so.
    relies_on: what has to be there instead, as "module:name" or with a call's shape,
    "module:name(_, _, key=_)".
    refuses: a feature that is refused on those cores, "" where all is served.
    """

    module: str
    cores: str
    symbols: tuple[str, ...]
    reason: str
    goes_when: str
    relies_on: tuple[str, ...] = ()
    refuses: str = ""

    def is_for(self, core: str) -> bool:
        """Whether the core of that version ("": not known) is one of those."""
        return bool(core) and SpecifierSet(self.cores).contains(core, prereleases=True)

    def names(self, symbol: str) -> bool:
        """Whether it is about that name of the contract."""
        return any(
            re.fullmatch(re.escape(known).replace(r"\*", ".*"), symbol) for known in self.symbols
        )

    def serves(self, function: _F) -> _F:
        """Marks a function that runs on those cores only: the contract does not look into it."""
        return function


_GPU = "vllm.v1.worker.gpu"
_WORKER = "vllm.v1.worker.gpu_worker"
_PLATFORM = "vllm.platforms.interface:Platform"

WORKER_STARTUP = Difference(
    module="compat/worker_startup.py",
    cores="<0.32",
    symbols=(
        f"{_WORKER}:Worker._init_workspace_and_model_runner",
        f"{_WORKER}:Worker._make_model_runner",
        "vllm.v1.worker.utils:request_memory",
        "vllm.model_executor.model_loader:get_model_loader.().get_external_weight_memory",
    ),
    relies_on=(
        f"{_WORKER}:init_workspace_manager(_, _, _)",
        f"{_WORKER}:_num_workspace_lanes(_, _)",
        f"{_WORKER}:report_usage_stats(_)",
        "vllm.v1.worker.utils:request_memory(_, _)",
    ),
    reason="the end of Worker.init_device became methods of its own in 0.32, and weights that "
    "another process holds are counted since then",
    goes_when="no core before 0.32 is supported",
)

SAMPLING_MASK = Difference(
    module="compat/sampling_mask.py",
    cores="<0.32",
    symbols=(f"{_GPU}.sample.output:_compact_sampling_mask_kernel",),
    relies_on=(
        f"{_GPU}.sample.output:_compact_sampling_mask_kernel(_, _, _, _, _, _, _, _, _, _, _, _)",
        f"{_GPU}.sample.output:SamplingMaskTensors.tolists()",
    ),
    reason="a request has one row of a sampling mask there; since 0.32 it may have several",
    goes_when="no core before 0.32 is supported",
)

ADAPTER_HEADS = Difference(
    module="kernels/lora.py",
    cores="<0.31",
    symbols=("vllm.lora.punica_wrapper.punica_base:PunicaWrapperBase.apply_lora_full_linear",),
    relies_on=("vllm.lora.punica_wrapper.punica_base:PunicaWrapperBase.add_lora_logits",),
    reason="adapters of whole classification heads came with 0.31; here they are refused",
    goes_when="0.30 is no longer supported",
)

KERNEL_REGISTRY = Difference(
    module="compat/kernel_registry.py",
    cores="<0.31",
    symbols=(
        "vllm.triton_utils.dispatcher*",
        f"{_PLATFORM}.register_triton_kernel_overrides",
        "vllm.platforms:current_platform.register_triton_kernel_overrides",
    ),
    relies_on=("vllm.triton_utils:triton",),
    reason="core's registry of kernel replacements, and the hook that fills it, came with 0.31",
    goes_when="0.30 is no longer supported",
)

ENVIRON_CHECK = Difference(
    module="compat/environ_check.py",
    cores="<0.31",
    symbols=(f"{_PLATFORM}.validate_environ",),
    relies_on=("vllm.envs:validate_environ(_)", "vllm.engine.arg_utils:envs"),
    reason="the platform is asked to check VLLM_ variables since 0.31; before, core takes ours for "
    "misspelt ones of its own",
    goes_when="0.30 is no longer supported",
)

LOGITS_CONTEXT = Difference(
    module="compat/logits_context.py",
    cores="<0.31",
    symbols=(
        f"{_GPU}.sample.logit_bias:LogitBiasState.apply",
        f"{_GPU}.sample.thinking_budget:ThinkingBudgetState.apply",
        f"{_GPU}.sample.logits_processor.interface*",
    ),
    relies_on=(
        f"{_GPU}.sample.logit_bias:LogitBiasState.apply_logit_bias(_, _, _, _)",
        f"{_GPU}.sample.thinking_budget:ThinkingBudgetState.apply(_, _, _, _, _, _)",
    ),
    reason="logits processors get one context object since 0.31, and single arguments before",
    goes_when="0.30 is no longer supported",
)

PROMPT_SCORES = Difference(
    module="compat/prompt_scores.py",
    cores="<0.31",
    symbols=(
        f"{_GPU}.sample.prompt_logprob:CHUNK_SIZE",
        f"{_GPU}.sample.prompt_logprob:async_tensor_h2d",
    ),
    relies_on=(f"{_GPU}.sample.prompt_logprob:compute_prompt_logprobs_with_chunking(_, _, _, _)",),
    reason="the chunk of a prompt's scores is a local name there, and no token ids go to the "
    "device for them",
    goes_when="0.30 is no longer supported",
)

GRAMMAR_ROWS = Difference(
    module="compat/grammar_rows.py",
    cores=">=0.33",
    symbols=(
        f"{_GPU}.structured_outputs:_build_grammar_mapping",
        f"{_GPU}.structured_outputs:StructuredOutputsWorker.num_bonus_tokens",
    ),
    relies_on=(f"{_GPU}.structured_outputs:StructuredOutputsWorker.mask_stride",),
    reason="a request has as many rows of a grammar's bitmask there as it may have logits; before "
    "0.33 it has as many as it has",
    goes_when="no core before 0.33 is supported",
)

RAY_EXECUTOR = Difference(
    module="compat/ray_executor.py",
    cores=">=0.33",
    symbols=("vllm.envs:VLLM_USE_RAY_V2_EXECUTOR_BACKEND",),
    relies_on=("vllm.v1.executor.ray_executor_v2:RayExecutorV2",),
    reason="the executor of messages is the only one for Ray since 0.33, and the variable that "
    "chooses is gone",
    goes_when="no core before 0.33 is supported",
)

TENSOR_ARENA = Difference(
    module="compat/tensor_arena.py",
    cores="<0.32",
    symbols=("vllm.config:VllmConfig.parallel_config.enable_shm_tensor_arena",),
    relies_on=("vllm.config:VllmConfig.parallel_config",),
    reason="the option that is refused came with 0.32; nobody can ask for it before",
    goes_when="no core before 0.32 is supported",
)

SPECULATION = Difference(
    module="compat/speculation.py",
    cores="!=0.32.*",
    symbols=(
        f"{_GPU}.spec_decode*",
        f"{_GPU}.model_runner:init_speculator",
        f"{_GPU}.model_runner:DraftTokensHandler",
        f"{_GPU}.model_runner:RejectionSampler",
        f"{_GPU}.cudagraph_utils:CudaGraphManager*",
    ),
    relies_on=(f"{_GPU}.input_batch:post_update",),
    reason="speculators were renamed, joined by n-grams and given other arguments in 0.32, and "
    "again in 0.33",
    goes_when="those cores are served or no longer supported",
    refuses="speculative decoding",
)

WATERMARKS = Difference(
    module="compat/watermarks.py",
    cores="!=0.32.*",
    symbols=(
        f"{_GPU}.sample.watermark*",
        f"{_GPU}.model_runner:GPUWatermarkSampler",
        "vllm.v1.watermarking*",
    ),
    relies_on=(f"{_GPU}.sample.watermark:philox_gumbel_sample",),
    reason="the kernels learned of drafts and of a bound of the history in 0.32, and of "
    "temperatures in 0.33",
    goes_when="those cores are served or no longer supported",
    refuses="watermarking",
)

ALL: tuple[Difference, ...] = (
    WORKER_STARTUP,
    ADAPTER_HEADS,
    SAMPLING_MASK,
    KERNEL_REGISTRY,
    ENVIRON_CHECK,
    LOGITS_CONTEXT,
    PROMPT_SCORES,
    GRAMMAR_ROWS,
    RAY_EXECUTOR,
    TENSOR_ARENA,
    SPECULATION,
    WATERMARKS,
)


def about(symbol: str, core: str) -> Difference | None:
    """The entry that is about that name on the core of that version, or None."""
    found = (entry for entry in ALL if entry.is_for(core) and entry.names(symbol))
    return next(found, None)
