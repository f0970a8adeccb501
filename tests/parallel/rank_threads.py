# SPDX-License-Identifier: Apache-2.0
"""How far ranks get that are threads of one process: the experiment of docs/single-process.md.

Not a part of the plugin, which refuses this, and not a test. Globals of core become thread-local:
the functions that use them are compiled anew from core's source, in place.

    emulator run --devices 2 -- python -m tests.parallel.rank_threads MODEL [--eager]
"""

from __future__ import annotations

import ast
import copy
import gc
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import Lock
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.multi_threaded_pg import ThreadLocalWorld
from vllm.platforms import current_platform
from vllm.utils.network_utils import get_distributed_init_method, get_open_port
from vllm.v1.executor.abstract import Executor
from vllm.v1.executor.uniproc_executor import AsyncOutputFuture
from vllm.v1.outputs import AsyncModelRunnerOutput
from vllm.v1.serial_utils import run_method
from vllm.v1.worker.worker_base import WorkerWrapperBase

GROUPS = "_WORLD _INNER_DP_WORLD _NODE_COUNT _TP _ETP _ENGRAM_DP _DCP _PP _DP _EP _EPLB _PCP"
GLOBALS = {
    "vllm.distributed.parallel_state": f"{GROUPS} _groups _group_name_counter",
    "vllm.forward_context": "_forward_context",
    "vllm.config.vllm": "_current_vllm_config _current_prefix",
    "vllm.v1.worker.workspace": "_manager",
    "vllm.model_executor.offloader.base": "_instance",
    "vllm.model_executor.layers.rotary_embedding": "_ROPE_DICT",
    "vllm.platforms.interface": "_assigned_physical_gpu_ids",
    "vllm.utils.torch_utils": "_aux_stream",
    "vllm_ascend_mrv2.runner.output": "_watchdog",
}
PER_THREAD = "__per_thread__"


class PerThread(threading.local):
    """The named globals of a module, in each thread as the module was when this was made."""

    def __init__(self, module: ModuleType, names: Iterable[str]) -> None:
        for name in names:
            value = getattr(module, name)
            setattr(self, name, {} if isinstance(value, dict) else value)


class _ToThread(ast.NodeTransformer):
    """In functions, reads and writes of `names` go to the module's PerThread."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names, self._depth = names, 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._depth += 1
        node.body = [self.visit(statement) for statement in node.body]
        self._depth -= 1
        return node

    def visit_Global(self, node: ast.Global) -> ast.AST:
        others = [name for name in node.names if name not in self._names]
        return ast.copy_location(ast.Global(others) if others else ast.Pass(), node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if not self._depth or node.id not in self._names:
            return node
        store = ast.copy_location(ast.Name(PER_THREAD, ast.Load()), node)
        return ast.copy_location(ast.Attribute(store, node.id, node.ctx), node)


def _codes(code: CodeType) -> dict[tuple[str, int], CodeType]:
    """All code in `code`, by name and first line."""
    found = {(code.co_qualname, code.co_firstlineno): code}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _codes(constant)
    return found


def isolate(module_name: str, names: frozenset[str]) -> int:
    """Make globals of a module thread-local; how many functions were changed."""
    module = importlib.import_module(module_name)
    assert module.__file__ is not None
    tree = _ToThread(names).visit(ast.parse(Path(module.__file__).read_text()))
    made = _codes(compile(ast.fix_missing_locations(tree), module.__file__, "exec"))
    setattr(module, PER_THREAD, PerThread(module, names))
    changed = 0
    for found in gc.get_objects():
        if not isinstance(found, FunctionType):
            continue
        code = found.__code__
        if code.co_filename == module.__file__ and names & set(code.co_names):
            found.__code__ = made[code.co_qualname, code.co_firstlineno]
            changed += 1
    return changed


class RankThreads(Executor):
    """A worker thread for each rank. No serialisation, and no answer to a rank that fails."""

    def _init_executor(self) -> None:
        for module, names in GLOBALS.items():
            isolate(module, frozenset(names.split()))
        dist.distributed_c10d._world = ThreadLocalWorld()
        torch._C._distributed_c10d._set_thread_isolation_mode(True)
        ranks = self.parallel_config.world_size
        self._threads = [ThreadPoolExecutor(1, f"rank{rank}") for rank in range(ranks)]
        self._workers = [WorkerWrapperBase(rpc_rank=n, global_rank=n) for n in range(ranks)]
        address = get_distributed_init_method("127.0.0.1", get_open_port())
        alone = threading.Lock()  # while the default dtype of the process is a model's

        def make(rank: int) -> None:
            mine = {
                "vllm_config": copy.deepcopy(self.vllm_config),
                "local_rank": rank,
                "rank": rank,
                "distributed_init_method": address,
                "is_driver_worker": rank == 0,
                "shared_worker_lock": Lock(),
            }
            with alone:
                self._workers[rank].init_worker([mine] * ranks)

        def load(rank: int) -> None:
            with alone:
                self._workers[rank].load_model()
            current_platform.update_block_size_for_backend(self._workers[rank].vllm_config)

        self._in_all(make)
        self._in_all(lambda rank: self._workers[rank].init_device())
        self._in_all(load)
        current_platform.update_block_size_for_backend(self.vllm_config)

    def _start_in_all(self, work: Callable[[int], Any]) -> list[Future[Any]]:
        return [thread.submit(work, rank) for rank, thread in enumerate(self._threads)]

    def _in_all(self, work: Callable[[int], Any]) -> list[Any]:
        return [future.result() for future in self._start_in_all(work)]

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
    ) -> Any:
        def work(rank: int) -> Any:
            return run_method(self._workers[rank], method, args, kwargs or {})

        started = self._start_in_all(work)
        if not non_block:
            results = [future.result() for future in started]
            return [
                result.get_output() if isinstance(result, AsyncModelRunnerOutput) else result
                for result in results
            ]
        first = started[0].result()  # of a step, what rank 0 says
        if isinstance(first, AsyncModelRunnerOutput):
            return AsyncOutputFuture(first, single_value=False)
        done: Future[Any] = Future()
        done.set_result([first])
        return done

    def _step(self, method: str, argument: Any, non_block: bool) -> Any:
        """As collective_rpc, but the result is rank 0's."""
        future = self.collective_rpc(method, args=(argument,), non_block=True)
        if isinstance(future, AsyncOutputFuture):
            future.single_value = True
        else:
            (result,) = future.result()
            future = Future()
            future.set_result(result)
        return future if non_block else future.result()

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        return self._step("execute_model", scheduler_output, non_block)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        return self._step("sample_tokens", grammar_output, non_block)

    def check_health(self) -> None:
        """Nobody can tell."""

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        return True


def capture_without_emptying_caches() -> None:
    """torch_npu's capture begins by waiting for every device, also for one that captures now."""

    def enter(self: Any) -> None:
        torch.npu.synchronize()
        self.stream_ctx.__enter__()
        self.npu_graph.capture_begin(*self.pool, capture_error_mode="thread_local")

    torch.npu.graph.__enter__ = enter


def graph_memory_per_thread() -> None:
    """One pool's handle for two devices is one capture too many for the allocator."""
    pools = threading.local()

    def get_global_graph_pool(self: Any) -> Any:
        if not hasattr(pools, "handle"):
            pools.handle = self.graph_pool_handle()
        return pools.handle

    type(current_platform).get_global_graph_pool = get_global_graph_pool


def main(model: str, *options: str) -> None:
    """Print the tokens of four requests by two ranks that are threads."""
    from vllm import LLM, SamplingParams

    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    capture_without_emptying_caches()
    graph_memory_per_thread()
    llm = LLM(
        model,
        dtype="float32",
        max_model_len=320,
        max_num_seqs=8,
        max_num_batched_tokens=96,
        block_size=16,
        num_gpu_blocks_override=44,
        gpu_memory_utilization=0.1,
        tensor_parallel_size=2,
        distributed_executor_backend=RankThreads,
        enforce_eager="--eager" in options,
    )
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    for answer in llm.generate([{"prompt_token_ids": [5 + n, 9, 7]} for n in range(4)], params):
        print(list(answer.outputs[0].token_ids), file=sys.stderr)
    os._exit(0)  # at an ordered end both ranks would leave the collective world one by one


if __name__ == "__main__":
    main(*sys.argv[1:])
