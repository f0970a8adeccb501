# SPDX-License-Identifier: Apache-2.0
"""The symbol contract: complete, up to date, and that no change of a name in core goes unreported.

The core that is changed here is a copy of the installed one's source; nothing of it is imported.
"""

from __future__ import annotations

import ast
import contextlib
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import vllm_ascend_mrv2
from vllm_ascend_mrv2.cli.contract import commands
from vllm_ascend_mrv2.cli.contract.collect import fold
from vllm_ascend_mrv2.compat import differences, pins
from vllm_ascend_mrv2.compat.contract import probe
from vllm_ascend_mrv2.compat.contract.check import (
    Reliance,
    call_fits,
    check,
    contract,
    ways_in,
)
from vllm_ascend_mrv2.compat.contract.source import CoreSource, parsed, shown

# One worker makes what these tests share.
pytestmark = pytest.mark.xdist_group("contract")

PACKAGE = Path(vllm_ascend_mrv2.__file__).parent
SEED = 7
CHANGED = 20


def _installed() -> Path:
    folder = probe.installed_core()
    assert folder is not None
    return folder


@pytest.fixture(scope="module")
def core() -> CoreSource:
    """The installed core, which is the reference."""
    return CoreSource(_installed())


class _Opened:
    """The files below a folder that this process opens while it is asked to look."""

    def __init__(self) -> None:
        self.below = ""
        self.paths: list[str] = []
        sys.addaudithook(self._heard)  # for the life of the process: there is no way back

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.below and event == "open" and str(arguments[0]).startswith(self.below):
            self.paths.append(str(arguments[0]))

    @contextlib.contextmanager
    def files(self, folder: Path) -> Iterator[list[str]]:
        self.paths, self.below = [], f"{folder}/"
        try:
            yield self.paths
        finally:
            self.below = ""


@pytest.fixture(scope="module")
def opened() -> _Opened:
    return _Opened()


class Copy:
    """A copy of a core's source, to be changed and put right again. Parses each file once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.originals: dict[Path, str] = {}
        self._unchanged = CoreSource(folder)
        check(self._unchanged)

    def change(self, path: Path, change: Callable[[str], str]) -> None:
        self.originals.setdefault(path, path.read_text() if path.exists() else "")
        path.write_text(change(self.originals[path]))

    @property
    def source(self) -> CoreSource:
        """As it is now."""
        fresh = CoreSource(self.folder)
        for name, module in self._unchanged._modules.items():
            if module is not None and module.path not in self.originals:
                fresh._modules[name] = module
        return fresh

    def restore(self) -> None:
        for path, text in self.originals.items():
            path.write_text(text)
        self.originals.clear()


@pytest.fixture(scope="module")
def copied_once(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    folder = tmp_path_factory.mktemp("core")

    def others(where: str, names: list[str]) -> list[str]:
        return [n for n in names if not n.endswith(".py") and not (Path(where) / n).is_dir()]

    shutil.copytree(_installed() / "vllm", folder / "vllm", ignore=others)
    return Copy(folder)


@pytest.fixture
def copied(copied_once: Copy) -> Iterator[Copy]:
    """That copy, as it was before."""
    yield copied_once
    copied_once.restore()


# -- the list ----------------------------------------------------------------------------------


def test_the_list_is_that_of_the_source_as_it_is(core: CoreSource) -> None:
    recorded = commands.CONTRACT.read_text(encoding="utf-8")
    assert commands.recorded_anew(core) == recorded, f"run `{commands.RECORD}` and commit the file"


def test_the_reference_fulfils_it(core: CoreSource) -> None:
    assert check(core) == []


def _symbols() -> set[str]:
    return {reliance.symbol for reliance in contract()}


@pytest.mark.parametrize(
    "symbol",
    [
        "vllm.v1.worker.gpu_worker:Worker",  # a base class
        "vllm.v1.worker.gpu_worker:Worker._make_model_runner",  # overridden, super() not called
        "vllm.v1.attention.backend:AttentionImpl.forward",  # below a base of ours elsewhere
        "vllm.v1.worker.gpu.model_runner:GPUModelRunner.execute_model_state",  # read through self
        "vllm.v1.worker.gpu.model_runner:AsyncOutput",  # bound by name
        "vllm.v1.worker.gpu.block_table:BlockTables",  # in the table of rebindings
        "vllm.v1.worker.gpu.spec_decode.speculator:gumbel_sample",  # one of its copies
        "vllm.v1.worker.gpu.input_batch:_post_update_kernel",  # a kernel
        "vllm.sampling_params:SamplingParams.update_from_tokenizer",  # assigned to
        "vllm.v1.worker.gpu_worker:kernel_warmup",
        "vllm.config:CUDAGraphMode.FULL_DECODE_ONLY",  # a member of an enumeration
        "vllm.envs:VLLM_RAISE_ON_LOGIT_NANS",  # answered by a module's __getattr__
        "vllm.distributed.parallel_state:torch",  # a module's view of torch
        "vllm.config.vllm:HAS_TRITON",
        "vllm.v1.worker.gpu.sample.logit_bias:MAX_NUM_STOP_TOKEN_IDS",  # over an imported module
        "vllm.v1.core.sched.output:SchedulerOutput.scheduled_cached_reqs.req_ids",  # a parameter
        "vllm.config:VllmConfig.parallel_config.worker_cls",
        # through a local name, the class of each by the call that makes it or by annotation
        "vllm.v1.worker.gpu.model_runner:GPUModelRunner.req_states.num_computed_tokens.gpu",
        "vllm.v1.worker.gpu.sample.sampler:Sampler.sampling_states.temperature.gpu",
        # of the instance that a function gets which stands for a method
        "vllm.v1.worker.gpu.sample.thinking_budget:ThinkingBudgetState.cached_scan_pos",
    ],
)
def test_each_way_of_relying_is_seen(symbol: str) -> None:
    assert symbol in _symbols()


def test_no_import_of_vllm_is_missing() -> None:
    """By a plain search of the source, which knows nothing of what the collector does."""
    modules = {symbol.partition(":")[0] for symbol in _symbols()}
    for path in PACKAGE.rglob("*.py"):
        found = re.findall(
            r"^\s*(?:from|import) (vllm(?:\.\w+)*)\b", path.read_text(), re.MULTILINE
        )
        for module in found:
            assert any(known == module or known.startswith(f"{module}.") for known in modules), path


def test_no_module_of_vllm_in_a_string_is_missing() -> None:
    """So that a new table of names is not left out of the list."""
    modules = {symbol.partition(":")[0] for symbol in _symbols()}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            value = fold(node, {}) if isinstance(node, ast.Constant) else None
            if not isinstance(value, str) or not re.fullmatch(r"vllm(\.[a-z_0-9]+)+", value):
                continue
            if value in ("vllm.platform_plugins",) or "cli" in path.parts:
                continue
            assert any(known == value or known.startswith(f"{value}.") for known in modules), value


# -- changes of core ---------------------------------------------------------------------------


def _owner_file(core: CoreSource, reliance: Reliance) -> Path | None:
    found = core.resolve(*reliance.parts)
    module = core.module(found.module) if found is not None else None
    return None if module is None else module.path


def _renamed(text: str, name: str) -> str:
    """Everywhere in a file but in imports from other modules of vLLM, which keep their names."""
    imports = re.compile(r"\s*(from|import) vllm")
    word = re.compile(rf"\b{name}\b")
    lines = text.splitlines(keepends=True)
    return "".join(
        line if imports.match(line) else word.sub(f"{name}_moved", line) for line in lines
    )


class _Delete(ast.NodeTransformer):
    """Takes every binding of a name out of a module, and the strings a `__getattr__` looks up."""

    def __init__(self, name: str) -> None:
        self.name = name

    def generic_visit(self, node: ast.AST) -> ast.AST | None:
        super().generic_visit(node)
        for block in ("body", "orelse", "finalbody"):
            body = getattr(node, block, None)
            if isinstance(body, list):
                kept = [line for line in body if not self._binds(line)]
                setattr(node, block, kept or ([ast.Pass()] if block == "body" else []))
        if isinstance(node, ast.Constant) and node.value == self.name:
            node.value = f"{self.name}_gone"
        return node

    def _binds(self, line: ast.stmt) -> bool:
        if isinstance(line, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return line.name == self.name
        if isinstance(line, ast.Import | ast.ImportFrom):
            bound = {a: a.asname or a.name.partition(".")[0] for a in line.names}
            line.names = [alias for alias in line.names if bound[alias] != self.name]
            return not line.names
        targets = getattr(line, "targets", None) or [getattr(line, "target", None)]
        flat = [element for t in targets for element in getattr(t, "elts", [t])]
        return any(getattr(t, "id", getattr(t, "attr", None)) == self.name for t in flat)


def _deleted(text: str, name: str) -> str:
    tree = _Delete(name).visit(ast.parse(text))
    return ast.unparse(ast.fix_missing_locations(tree))


def _chosen() -> Iterator[Reliance]:
    by_symbol = {reliance.symbol: reliance for reliance in contract() if reliance.parts[1]}
    names = random.Random(SEED).sample(sorted(by_symbol), CHANGED)
    return (by_symbol[name] for name in names)


_CHANGES = [(r, (_renamed, _deleted)[index % 2]) for index, r in enumerate(_chosen())]


def _take_away(copied: Copy, reliance: Reliance, change: Callable[[str, str], str]) -> None:
    """Rename or delete it where core defines it; a base class may have one of the same name."""
    name = reliance.parts[1][-1]
    path = _owner_file(copied.source, reliance)
    assert path is not None
    copied.change(path, lambda text: change(text, name))


def _change_id(value: object) -> str:
    return value.symbol if isinstance(value, Reliance) else getattr(value, "__name__", "")[1:]


@pytest.mark.parametrize(("reliance", "change"), _CHANGES, ids=_change_id)
def test_a_name_that_is_gone_is_reported(
    reliance: Reliance, change: Callable[[str, str], str], copied: Copy
) -> None:
    _take_away(copied, reliance, change)
    mismatches = {mismatch.symbol: mismatch for mismatch in check(copied.source)}
    assert reliance.symbol in mismatches
    found = mismatches[reliance.symbol]
    assert found.found.startswith(("nothing", "that of "))
    assert found.look_at.startswith("vllm_ascend_mrv2/")
    assert (PACKAGE.parent / found.look_at).is_file()


def test_what_only_a_base_class_has_is_reported(copied: Copy) -> None:
    """`WorkerBase` has the method too, and raises NotImplementedError."""
    copied.change(
        copied.folder / "vllm/v1/worker/gpu_worker.py",
        lambda text: text.replace("def execute_model(", "def execute_the_model("),
    )
    (found,) = check(copied.source)
    assert found.symbol == "vllm.v1.worker.gpu_worker:Worker.execute_model"
    assert "defined by Worker" in found.expected
    assert found.found == "that of WorkerBase"


@pytest.mark.parametrize(
    ("file", "name", "symbol", "look_at"),
    [
        # A path that is written as text, in a question that must not pass for answered.
        (
            "config/cache.py",
            "kv_offloading_size",
            "vllm.config:VllmConfig.cache_config.kv_offloading_size",
            "support.py",
        ),
        ("config/model.py", "is_hybrid", "vllm.config:ModelConfig.is_hybrid", "support.py"),
        # Private, and read in a function that stands in for a method.
        (
            "v1/worker/gpu/buffer_utils.py",
            "_staged_write_indices",
            "vllm.v1.worker.gpu.buffer_utils:StagedWriteTensor._staged_write_indices",
            "kernels/buffer_utils.py",
        ),
        # Of an element of a sequence, and of what a call returns.
        (
            "v1/core/sched/output.py",
            "block_ids",
            "vllm.v1.core.sched.output:SchedulerOutput.scheduled_new_reqs.[].block_ids",
            "runner/masked.py",
        ),
        (
            "distributed/parallel_state.py",
            "rank_in_group",
            "vllm.distributed.parallel_state:get_dp_group.().rank_in_group",
            "runner/model_runner.py",
        ),
    ],
)
def test_a_name_behind_a_value_is_reported(
    copied: Copy, file: str, name: str, symbol: str, look_at: str
) -> None:
    copied.change(copied.folder / "vllm" / file, lambda text: _renamed(text, name))
    found = {mismatch.symbol: mismatch for mismatch in check(copied.source)}
    assert found[symbol].found.startswith("nothing")
    assert found[symbol].look_at == f"vllm_ascend_mrv2/{look_at}"


# Each checks a core from its files on, which takes seconds.
_PROBED = [
    pytest.param(*change, marks=[pytest.mark.long] if index else [])
    for index, change in enumerate(_CHANGES)
]


@pytest.mark.parametrize(("reliance", "change"), _PROBED, ids=_change_id)
def test_the_probe_of_a_start_reports_it_too(
    reliance: Reliance,
    change: Callable[[str, str], str],
    copied: Copy,
    opened: _Opened,
    tmp_path: Path,
) -> None:
    _take_away(copied, reliance, change)
    with opened.files(copied.folder) as read:
        (found,) = [m for m in probe.probe(copied.folder, tmp_path) if m.symbol == reliance.symbol]
    assert read, "the first start reads core"
    assert found.found.startswith(("nothing", "that of "))
    with opened.files(copied.folder) as read:
        assert found in probe.probe(copied.folder, tmp_path), "kept"
    assert read == [], "the next start looks at the files, and reads none"


def test_a_start_on_a_core_that_lacks_a_name_says_so(copied: Copy, tmp_path: Path) -> None:
    """Before the platform is imported, which needs that name."""
    copied.change(
        copied.folder / "vllm/platforms/interface.py",
        lambda text: text.replace("def get_attn_backend_cls(", "def attn_backend_cls("),
    )
    code = "import vllm_ascend_mrv2; print(vllm_ascend_mrv2.register())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "PYTHONPATH": f"{copied.folder}:{PACKAGE.parent}",
            "VLLM_ASCEND_MRV2_CACHE": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.strip() == vllm_ascend_mrv2.PLATFORM_CLASS, done.stderr
    (line,) = done.stderr.strip().splitlines()[-1:]
    assert line == (
        "core's vllm.platforms.interface:Platform.get_attn_backend_cls is not as relied on: "
        "expected a function, overridden by get_attn_backend_cls(cls, selected_backend, "
        "attn_selector_config, num_heads=...), found nothing; look at vllm_ascend_mrv2/platform.py"
    )


def test_the_probe_checks_anew_what_was_edited(
    copied: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Path] = []
    monkeypatch.setattr(probe, "check_folder", lambda core: checked.append(core) or [])
    for _ in range(2):
        assert probe.probe(copied.folder, tmp_path / "results") == ()
    assert len(checked) == 1
    copied.change(copied.folder / "vllm/v1/outputs.py", lambda text: text + "\n")
    probe.probe(copied.folder, tmp_path / "results")
    assert len(checked) == 2
    (tmp_path / "file").touch()
    probe.probe(copied.folder, tmp_path / "file" / "results")  # cannot be written
    assert len(checked) == 3


# -- other cores -------------------------------------------------------------------------------


def _as_version(copied: Copy, version: str) -> None:
    copied.change(
        copied.folder / "vllm/_version.py", lambda _: f"__version__ = version = '{version}'\n"
    )


def test_a_name_that_another_core_has_otherwise_is_served(copied: Copy) -> None:
    """What a compat module uses in its place is then looked for instead."""
    worker, utils = (copied.folder / "vllm/v1/worker" / n for n in ("gpu_worker.py", "utils.py"))
    copied.change(worker, lambda text: _deleted(text, "_make_model_runner"))
    assert [m.symbol for m in check(copied.source)] == [
        "vllm.v1.worker.gpu_worker:Worker._make_model_runner"
    ]
    _as_version(copied, "0.31.0")
    assert check(copied.source) == []
    copied.change(utils, lambda text: text.replace("cache_config: CacheConfig,", "a, b,", 1))
    copied.change(
        worker,
        lambda text: _deleted(text, "_make_model_runner").replace(
            "report_usage_stats", "report_usage"
        ),
    )
    found = [(m.symbol, m.look_at) for m in check(copied.source) if "usage" in m.symbol]
    assert found == [
        (
            "vllm.v1.worker.gpu_worker:report_usage_stats",
            "vllm_ascend_mrv2/compat/worker_startup.py",
        )
    ]


@pytest.mark.parametrize("difference", differences.ALL, ids=lambda entry: entry.module)
def test_each_difference_is_of_the_contract_and_has_its_module(
    difference: differences.Difference,
) -> None:
    assert (PACKAGE / difference.module).is_file()
    assert not difference.is_for(pins.reference().vllm)
    assert any(difference.is_for(pin.vllm) for pin in pins.cores())
    assert any(difference.names(symbol) for symbol in _symbols())
    assert difference.reason
    assert difference.goes_when


def test_a_function_that_moved_is_said_to_be_where_it_went(copied: Copy) -> None:
    old, new = (copied.folder / "vllm/v1/worker" / name for name in ("utils.py", "elsewhere.py"))
    text = old.read_text()
    copied.change(new, lambda _: text)
    copied.change(old, lambda text: _deleted(text, "request_memory"))
    (found,) = check(copied.source)
    assert found.symbol == "vllm.v1.worker.utils:request_memory"
    assert found.expected == "a function that can be called as request_memory(_, _, _)"
    assert found.found == "nothing; vllm/v1/worker/elsewhere.py has one"
    assert found.look_at == "vllm_ascend_mrv2/compat/worker_startup.py"


def test_what_is_in_a_class_that_is_gone_is_not_reported_too(copied: Copy) -> None:
    path = copied.folder / "vllm/v1/worker/gpu_worker.py"
    copied.change(path, lambda text: _deleted(text, "Worker"))
    found = [m.symbol for m in check(copied.source) if "gpu_worker:" in m.symbol]
    assert found == ["vllm.v1.worker.gpu_worker:Worker"]


def test_a_changed_signature_shows_both(copied: Copy) -> None:
    path = copied.folder / "vllm/v1/worker/gpu/model_runner.py"
    old, new = "self, input_batch: InputBatch\n", "self, input_batch, pads\n"
    assert f"def prepare_attn(\n        {old}    )" in path.read_text()
    copied.change(path, lambda text: text.replace(old, new))
    found = [m for m in check(copied.source) if m.symbol.endswith("prepare_attn")]
    assert [(m.expected, m.found, m.look_at) for m in found] == [
        (
            "a function that can be called as prepare_attn(_)",
            "(input_batch, pads)",
            "vllm_ascend_mrv2/runner/model_runner.py",
        ),
        (
            "a function, overridden by prepare_attn(self, input_batch)",
            "(self, input_batch, pads)",
            "vllm_ascend_mrv2/runner/model_runner.py",
        ),
    ]


def test_another_kind_is_reported(copied: Copy) -> None:
    copied.change(
        copied.folder / "vllm/v1/worker/utils.py",
        lambda text: _deleted(text, "request_memory") + "\nclass request_memory:\n    pass\n",
    )
    (found,) = check(copied.source)
    assert (found.expected, found.found) == ("a function", "a class")


def test_what_the_source_no_longer_tells_is_not_reported(copied: Copy) -> None:
    """A value whose class cannot be read off any more may have all that it had."""
    copied.change(
        copied.folder / "vllm/v1/worker/gpu/model_runner.py",
        lambda text: text.replace("self.req_states = RequestState(", "self.req_states = make("),
    )
    assert check(copied.source) == []


def test_a_new_abstract_method_is_reported(copied: Copy) -> None:
    """Ours could not be instantiated; nothing that it relies on is gone."""
    path = copied.folder / "vllm/v1/attention/backend.py"
    head = "class AttentionImpl(AttentionImplBase[T], Generic[T]):"
    assert head in path.read_text()
    method = "\n    @abstractmethod\n    def prefetch(self) -> None: ...\n"
    copied.change(path, lambda text: text.replace(head, head + method))
    (found,) = check(copied.source)
    assert found.symbol == "vllm.v1.attention.backend:AttentionImpl"
    assert found.found == "abstract methods that ours lacks: prefetch"
    assert found.look_at == "vllm_ascend_mrv2/attention/backend.py"


def test_where_to_look() -> None:
    in_compat = "vllm_ascend_mrv2/compat/b.py"
    one = Reliance("m:x", "name", "function", "", (), ("vllm_ascend_mrv2/a.py",))
    assert one.look_at == "vllm_ascend_mrv2/a.py"
    assert replace(one, by=("vllm_ascend_mrv2/a.py", in_compat)).look_at == in_compat


# -- signatures --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs", "ways"),
    [
        ("(self, a)", "(self, a)", ("position", "keyword")),
        ("(self, a, *args, **kwargs)", "(self, a, b, *, c)", ("position", "keyword")),
        ("(self, x)", "(self, a)", ("position",)),
        ("(self, a, **kwargs)", "(self, a, b=...)", ("keyword",)),
        ("(self, a)", "(self, a, b=...)", ()),
        ("(self, a, b)", "(self, a)", ()),
        ("(self, a, b)", "(self, a, b=...)", ()),
        ("(self, b, a)", "(self, a, b)", ("position", "keyword")),
        ("(self, a, b=...)", "(self, a)", ("position", "keyword")),
        ("(self, a)", "(self, *args, **kwargs)", ("position", "keyword")),
        ("(self)", "(self, *, a)", ()),
    ],
)
def test_the_ways_in_which_ours_stands_for_theirs(
    ours: str, theirs: str, ways: tuple[str, ...]
) -> None:
    assert ways_in(parsed(ours), parsed(theirs)) == ways


@pytest.mark.parametrize(
    ("call", "theirs", "fits"),
    [
        ("(_, _)", "(a, b, c=...)", True),
        ("(_)", "(a, b)", False),
        ("(_, b=_)", "(a, b)", True),
        ("(_, z=_)", "(a, b)", False),
        ("(_, z=_)", "(a, **kwargs)", True),
        ("(_, _)", "(a, *, b)", False),
    ],
)
def test_whether_a_call_fits(call: str, theirs: str, fits: bool) -> None:
    assert call_fits(parsed(theirs), call) is fits


@pytest.mark.parametrize("text", ["()", "(a, /, b, *, c=..., **k)", "(self, x, y=..., *args)"])
def test_signatures_are_shown_as_they_are_read(text: str) -> None:
    assert shown(parsed(text)) == text


def test_the_check_of_one_core_needs_no_torch(core: CoreSource) -> None:
    code = (
        "import sys; from pathlib import Path; "
        "from vllm_ascend_mrv2.compat.contract.check import check_folder; "
        "print(check_folder(Path(sys.argv[1])), 'torch' in sys.modules, 'vllm' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(core.folder)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "[] False False"


# -- the command -------------------------------------------------------------------------------


def test_what_a_pin_says_is_compared_with_what_is_found() -> None:
    wrong = (commands.Mismatch("vllm.m:x", "a function", "nothing", "vllm_ascend_mrv2/a.py"),)
    assert commands.Report("0.32.0", "verified", ()).is_expected
    assert commands.Report("0.33.0", "differs", wrong).is_expected
    assert not commands.Report("0.32.0", "verified", wrong).is_expected
    assert not commands.Report("0.33.0", "differs", ()).is_expected
    assert not commands.Report("0.34.0", "unpinned", wrong).is_expected
    text = commands.Report("0.34.0", "unpinned", wrong).as_text().splitlines()
    assert text[0].startswith(f"vLLM 0.34.0 (unpinned): 1 of {len(contract())} differ")
    assert text[1:] == [
        "vllm.m:x",
        "  expected: a function",
        "  found:    nothing",
        "  look at:  vllm_ascend_mrv2/a.py",
    ]


def test_the_installed_core_is_the_reference() -> None:
    assert commands.installed_core() == (pins.reference().vllm, _installed())
