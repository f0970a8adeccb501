# SPDX-License-Identifier: Apache-2.0
"""The harness around core's own tests: what it may change in them, and what its list accepts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.emulated import run_script
from tests.upstream import adapt, expectations, fetch, processes
from vllm_ascend_mrv2.compat import pins

LIST = Path(__file__).parents[1] / "upstream" / "expected.toml"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('DEVICE = "cuda"\n', 'DEVICE = "npu"\n'),
        ("d = torch.device('cuda:1')\n", "d = torch.device('npu:1')\n"),
        ("x = torch.zeros(1).cuda()\n", "x = torch.zeros(1).npu()\n"),
        ("skip = not torch.cuda.is_available()\n", "skip = not torch.npu.is_available()\n"),
        (
            "skip = not current_platform.is_cuda_alike()\n",
            'skip = current_platform.device_type != "npu"\n',
        ),
        ('name = "cudagraph"\n', 'name = "cudagraph"\n'),
        ("assert current_platform\n", "assert current_platform\n"),
    ],
)
def test_device_names_and_skip_conditions_are_adapted(before: str, after: str) -> None:
    assert adapt.adapt(before)[0] == after


@pytest.mark.parametrize(
    "source",
    [
        'assert x.device == "cuda"\n',
        'assert (\n    x.device ==\n    "cuda"\n)\n',
        'torch.testing.assert_close(x, torch.zeros(1, device="cuda"))\n',
        'with pytest.raises(ValueError, match="cuda"):\n    pass\n',
    ],
)
def test_an_assertion_is_never_changed(source: str) -> None:
    with pytest.raises(adapt.RefusedError, match="part of an assertion"):
        adapt.adapt(source)


def _file(passes: tuple[str, ...], other: tuple[str, ...], cases: int) -> expectations.File:
    entries = [expectations.Entry(pattern, None) for pattern in passes]
    entries += [expectations.Entry(pattern, "refused") for pattern in other]
    return expectations.File("test_x.py", tuple(entries), cases)


def test_a_run_as_listed_has_no_problem() -> None:
    file = _file(("test_a", "test_b"), ("test_b[cp*]", "test_c"), 5)
    seen = {"test_a[0]": "passed", "test_a[1]": "passed", "test_b[tp]": "passed"}
    seen |= {"test_b[cp4]": "failed", "test_c": "skipped"}
    tally = expectations.compare(file, seen)
    assert (tally.passed, tally.not_applicable, tally.problems) == (3, 2, [])


@pytest.mark.parametrize(
    ("seen", "problem"),
    [
        ({"test_a": "failed", "test_c": "skipped"}, "test_a: failed, listed as passing"),
        ({"test_a": "skipped", "test_c": "skipped"}, "test_a: skipped, listed as passing"),
        ({"test_a": "passed", "test_c": "passed"}, "test_c: passed, listed as not applicable"),
        ({"test_a": "passed", "test_d": "passed"}, "test_d: passed, and not listed"),
        ({"test_a": "passed", "test_d": "passed"}, "test_c: listed, and no such test ran"),
        ({"test_a": "passed"}, "1 test cases, 2 listed"),
        ({expectations.MODULE: "failed"}, "(the module): failed, and not listed"),
    ],
)
def test_a_run_that_differs_is_a_problem(seen: dict[str, str], problem: str) -> None:
    assert problem in expectations.compare(_file(("test_a",), ("test_c",), 2), seen).problems


def test_the_list_is_of_the_pinned_version_and_consistent() -> None:
    assert pins.stack()["vllm"] in fetch.SHA256
    for file in expectations.load(LIST):
        assert file.reason or file.entries, f"{file.path}: nothing is expected of it"
        patterns = [entry.pattern for entry in file.entries]
        assert len(patterns) == len(set(patterns)), f"{file.path}: a test is listed twice"


def test_a_record_tells_outcomes_and_who_ended_the_process(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    lines = [
        {"began": "test_x.py::test_a"},
        {"test": "test_x.py::test_a", "outcome": "passed", "text": ""},
        {"test": "test_x.py::test_a", "outcome": "failed", "text": "in its teardown"},
        {"ended": "test_x.py::test_a"},
        {"test": "test_y.py", "outcome": "skipped", "text": ""},
        {"began": "test_x.py::test_b"},
    ]
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    outcomes, running = processes.read_record(record)
    assert outcomes == {
        "test_x.py": {"test_a": "failed"},
        "test_y.py": {expectations.MODULE: "skipped"},
    }
    assert running == "test_x.py::test_b"


_ENDS = """
import os, signal

def test_before():
    pass

def test_ends():
    os.kill(os.getpid(), signal.SIGKILL)

def test_after():
    pass
"""


def test_a_test_that_ends_its_process_ends_no_other(tmp_path: Path) -> None:
    """Nor does a file that cannot be loaded. Each in a fork of a process without a device."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "tests" / "test_ends.py").write_text(_ENDS)
    (tmp_path / "tests" / "test_broken.py").write_text("import os\nos._exit(3)\n")
    result = run_script(
        f"""
        import json
        from pathlib import Path
        from tests.upstream import processes

        folder = Path({str(tmp_path)!r})
        files = processes.Files(
            folder, folder / "record", folder / "log", (), ("conformance_record",)
        )
        names = ("test_ends.py", "test_broken.py")
        print(json.dumps([processes.run_file(files, name) for name in names]))
        """
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == [
        {"test_before": "passed", "test_ends": "ended the process", "test_after": "passed"},
        {"(the module)": "ended the process"},
    ]
