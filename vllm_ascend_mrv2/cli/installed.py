# SPDX-License-Identifier: Apache-2.0
"""What is installed here of vLLM, torch, torch-npu and all that they require, and whether whole.

A pip that is killed leaves a distribution whose metadata is there and whose files are not, and pip
then takes it as installed. `install-core`, `emulator run` and `doctor` all ask here.
"""

from __future__ import annotations

import csv
import shutil
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from vllm_ascend_mrv2.compat import pins

# Where this environment's pip puts distributions.
_PIPS_FOLDERS = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}


def find(name: str) -> Distribution | None:
    """The distribution of that name, whole or not."""
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _applying(lines: Iterable[str], extras: Sequence[str] = ()) -> Iterator[Requirement]:
    """The requirements that hold here, of extras those of the given ones only."""
    for line in lines:
        if not extras and "extra ==" in line:  # most lines of most: not worth a parser
            continue
        needs = Requirement(line)
        asked = [{"extra": extra} for extra in ("", *extras)]
        if needs.marker is None or any(map(needs.marker.evaluate, asked)):
            yield needs


def is_cuda_build(core: Distribution) -> bool:
    """The empty target names no accelerator's packages, the published wheel names many.

    An extra of vLLM names one in any build.
    """
    required = _applying(core.requires or [])
    return any(r.name.lower().startswith(("nvidia-", "flashinfer")) for r in required)


@dataclass(frozen=True)
class Lacks:
    """What some distributions need and is not there.

    unmet: requirements that nothing installed meets, or only what is torn.
    torn: name -> distribution that is not whole, of those and of all that they require.
    """

    unmet: tuple[str, ...]
    torn: dict[str, Distribution]


NOTHING = Lacks((), {})


class _Seen(NamedTuple):
    """What the walk reads of a distribution: each reading parses all of its metadata."""

    dist: Distribution
    version: str
    requires: list[str]
    is_whole: bool

    def meets(self, needs: Requirement) -> bool:
        return self.is_whole and needs.specifier.contains(self.version, prereleases=True)


def _see(dist: Distribution | None) -> _Seen | None:
    if dist is None:
        return None
    if torn(dist):  # what its metadata says may end anywhere
        return _Seen(dist, "", [], False)
    return _Seen(dist, dist.version, dist.requires or [], True)


def lacks(*names: str) -> Lacks:
    """Looks at what is installed of those, at what they require, and at what that requires."""
    unmet: dict[str, str] = {}
    seen = {name: _see(find(name)) for name in names}
    todo: list[tuple[str, ...]] = [(name,) for name in seen]  # name, extras
    walked = set(todo)
    while todo:
        name, *extras = todo.pop()
        about = seen[name]
        for needs in _applying(about.requires if about else [], extras):
            needed = str(canonicalize_name(needs.name))
            if needed not in seen:
                seen[needed] = _see(find(needed))
            found = seen[needed]
            if found is None or not found.meets(needs):
                unmet[needed] = str(needs)
            step = (needed, *sorted(needs.extras))
            if step not in walked:
                walked.add(step)
                todo.append(step)
    broken = {name: one.dist for name, one in seen.items() if one and not one.is_whole}
    return Lacks(tuple(unmet.values()), broken)


# -- whole or not -----------------------------------------------------------------------------


def torn(dist: Distribution) -> str:
    """What of a distribution is not there, as after a killed installation; "" where it is whole.

    pip writes INSTALLER last (uv and conda write one, too). Where pip of this environment does not
    install, as in Debian's folder, distributions have none. The files of vLLM, torch and torch-npu
    are looked at in any case; not those of others, since some overwrite each other's
    (py-cpuinfo and py-cpuinfo2) in an environment that works.
    """
    try:
        if dist.read_text("PKG-INFO") is not None:  # of setup.py: it has neither file
            return ""
        about = dist.metadata
        if "Name" not in about or "Version" not in about:
            return "its METADATA is not whole"
        folder = _folder(dist)
        if dist.read_text("INSTALLER") is None and folder in _PIPS_FOLDERS:
            return "its installation did not end"
        if canonicalize_name(about["Name"]) not in pins.stack():
            return ""
        return _first_torn(dist.read_text("RECORD") or "", folder)
    except UnicodeDecodeError:
        return "its metadata cannot be read"


def _folder(dist: Distribution) -> Path:
    return Path(str(dist.locate_file("")))


def _first_torn(record: str, folder: Path) -> str:
    """The first file that is not as RECORD says.

    Python's own caches come and go. Scripts, outside of the folder, are written anew where an
    environment is moved. A source that was edited is someone's wish, and no installation's end.
    """
    for row in csv.reader(record.splitlines()):
        if len(row) != 3 or row[0].endswith(".pyc") or row[0].startswith(("..", "/")):
            continue
        name, _, size = row
        try:
            found = (folder / name).stat().st_size
        except OSError:
            return f"{name} is missing"
        is_editable = name.endswith(".py") and found > 0
        if size.isdigit() and found != int(size) and not is_editable:
            return f"{name} has {found} of {size} bytes"
    return ""


def forget(name: str, dist: Distribution) -> None:
    """Take its metadata away, so that pip installs it over what is there.

    pip's own ways do not do: `install` finds the requirement satisfied, and `--force-reinstall`
    uninstalls first, which it refuses without a RECORD.
    """
    for info in _folder(dist).glob("*.dist-info"):
        if canonicalize_name(info.name.partition("-")[0]) == name:
            shutil.rmtree(info)
