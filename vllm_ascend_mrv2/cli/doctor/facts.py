# SPDX-License-Identifier: Apache-2.0
"""What doctor saw of an environment, as data. Nothing is looked at or judged here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vllm_ascend_mrv2.cli.doctor.device import DeviceProbe
from vllm_ascend_mrv2.compat.contract.check import Mismatch


@dataclass(frozen=True)
class Dist:
    """An installed distribution: its name as pip prints it, version, and requirement lines.

    is_cuda_build: whether it requires CUDA's packages. torn: what of it is not there, as after an
    interrupted installation, or "". unmet: what it and what it requires need, and is not installed,
    or not whole; of vLLM only.
    """

    name: str
    version: str
    requires: tuple[str, ...] = ()
    is_cuda_build: bool = False
    unmet: tuple[str, ...] = ()
    torn: str = ""


@dataclass(frozen=True)
class Plugin:
    """An entry point of the group `vllm.platform_plugins`, and the distribution it is from."""

    name: str
    distribution: str


@dataclass(frozen=True)
class Cann:
    """A CANN toolkit.

    home: its folder, "" where only the loader knows;
    version: as its files or its library say, "" where neither does;
    is_loaded: whether libascendcl.so can be loaded; load_error: why not;
    is_on_path: whether the loader's path leads to one, loaded or not;
    set_env: the script that selects it, or "" where there is none;
    is_emulated: whether it is an emulation's;
    required_driver_hal: the ascendhal version that its files ask of the driver, or "".
    """

    home: str
    version: str
    is_loaded: bool
    load_error: str = ""
    is_emulated: bool = False
    required_driver_hal: str = ""
    is_on_path: bool = False
    set_env: str = ""


@dataclass(frozen=True)
class Driver:
    """The NPU driver: package version, ascendhal version ("" where its file has none), file.

    error: why its file, which is there, does not tell the version.
    """

    version: str
    hal: str
    file: str
    error: str = ""


@dataclass(frozen=True)
class TorchProbe:
    """What a process that imported torch and torch_npu said; `error` is its last line if it failed.

    is_run: False where torch or torch-npu is not installed, so that nothing was tried.
    """

    is_run: bool = False
    error: str = ""
    devices: tuple[str, ...] = ()  # a name for each visible device


@dataclass(frozen=True)
class Facts:
    """An environment. `environ` holds the variables that doctor's rules read, and no others."""

    python: str
    executable: str
    machine: str
    plugin_version: str
    torch: Dist | None = None
    torch_npu: Dist | None = None
    cores: tuple[Dist, ...] = ()  # distributions that bring the package `vllm`
    tritons: tuple[Dist, ...] = ()  # distributions that bring the package `triton`
    platform_plugins: tuple[Plugin, ...] = ()
    cann: Cann | None = None
    driver: Driver | None = None
    device_files: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    no_folders: tuple[str, ...] = ()  # variables that name a toolkit's folder, which is not there
    probe: TorchProbe = TorchProbe()
    core_folder: str = ""  # the `vllm/` that would be imported, whatever brought it
    core_mismatches: tuple[Mismatch, ...] | None = None  # None: there is no core to look at
    device_probes: tuple[DeviceProbe, ...] | None = None  # None: not asked for, (): no device
