# SPDX-License-Identifier: Apache-2.0
"""From facts to findings: one function per topic, each pure, each finding with its next step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from vllm_ascend_mrv2 import envs, support
from vllm_ascend_mrv2.cli.doctor.child import NO_ANSWER
from vllm_ascend_mrv2.cli.doctor.facts import Cann, Facts
from vllm_ascend_mrv2.compat import pins

OURS = "ascend_mrv2"  # our entry point's name in pyproject.toml
ON_EMULATED = "vllm-ascend-mrv2 emulator run -- COMMAND"
_SELECT = (
    "source the set_env.sh of the CANN in use; for the emulated device: "
    'eval "$(vllm-ascend-mrv2 emulator env)"'
)
_SHOWN_MISMATCHES = 5
_EMULATORS = "ASCEND_EMU_"
# What torch-npu takes from CANN. Of what CANN takes from elsewhere its own error has the names.
_CANNS_LIBRARY = r"lib(?:ascend\w*|acl_\w+|hccl|hcomm|ge_\w+|graph|opapi|nnopbase)\.so[.\d]*"
_CANNS_SYMBOL = r"(?:[Aa]cl|Hccl|_ZNK?2ge)\w*"
_LIBRARY = re.compile(r"([\w.+-]+\.so[.\d]*): ")  # in what the loader says


class Level(Enum):
    """ok: as it should be. note: worth knowing. problem: a start would fail, or is unverified."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One line of the report: what was found, and for a problem (or a note that asks for one) the
    next step."""

    level: Level
    topic: str
    says: str
    next_step: str = ""


def _ok(topic: str, says: str) -> Finding:
    return Finding(Level.OK, topic, says)


def _problem(topic: str, says: str, next_step: str) -> Finding:
    return Finding(Level.PROBLEM, topic, says, next_step)


def _versions(facts: Facts) -> dict[str, str]:
    core = facts.cores[0].version if facts.cores else None
    found = {
        "vllm": core,
        "torch": facts.torch.version if facts.torch else None,
        "torch-npu": facts.torch_npu.version if facts.torch_npu else None,
    }
    return {name: version for name, version in found.items() if version}


def _is_plain_core(facts: Facts) -> bool:
    """Whether vLLM is there, from its own distribution alone, and without CUDA."""
    return [(d.name, d.is_cuda_build) for d in facts.cores] == [("vllm", False)]


def _has_cuda_torch(facts: Facts) -> bool:
    return facts.torch is not None and facts.torch.is_cuda_build


def _is_incomplete(facts: Facts) -> bool:
    """Whether something of the set, or of what vLLM requires, is missing or not whole."""
    found = [dist for dist in (*facts.cores, facts.torch, facts.torch_npu) if dist is not None]
    return any(dist.torn or dist.unmet for dist in found)


def _nearest(facts: Facts) -> pins.CorePin:
    return pins.nearest(_versions(facts).get("vllm"))


def install_command(pin: pins.CorePin, facts: Facts) -> str:
    """What to type for that set; told to replace where another is there, as `install-core` asks."""
    torches = {"torch": facts.torch, "torch-npu": facts.torch_npu}
    is_another = any(
        dist is not None and not dist.torn and pins.public(dist.version) != pin.versions[name]
        for name, dist in torches.items()
    )
    is_another_core = bool(facts.cores) and (
        not _is_plain_core(facts)
        or (not facts.cores[0].torn and facts.cores[0].version != pin.vllm)
    )
    replaces = is_another or _has_cuda_torch(facts) or is_another_core
    return pins.install_command(pin) + (" --replace" if replaces else "")


# -- topics -----------------------------------------------------------------------------------


def python(facts: Facts) -> Iterator[Finding]:
    yield _ok("Python", f"{facts.python} ({facts.machine}), {facts.executable}")


def versions(facts: Facts) -> Iterator[Finding]:
    """Whether the set of vLLM, torch and torch-npu is one that the tests pass on."""
    found = _versions(facts)
    shown = ", ".join(f"{name} {found.get(name, 'not installed')}" for name in pins.stack())
    if pin := pins.matching(found.get):
        if is_verified(facts):
            yield _ok("versions", f"{shown}: verified on {pin.verified}")
        else:
            but = "not whole, see below" if _is_incomplete(facts) else "in another build"
            yield Finding(Level.NOTE, "versions", f"{shown}: of a verified set, but {but}")
        return
    near = _nearest(facts)
    wanted = ", ".join(f"{name} {want}" for name, want in near.versions.items())
    yield _problem(
        "versions",
        f"{shown}: not a verified set; the nearest is {wanted}",
        install_command(near, facts),
    )


def torch_pair(facts: Facts) -> Iterator[Finding]:
    """Whether torch-npu is built for this torch, and both can be imported."""
    torch, npu = facts.torch, facts.torch_npu
    both = install_command(_nearest(facts), facts)
    if torch is None or npu is None:
        missing = " and ".join(n for n, d in (("torch", torch), ("torch-npu", npu)) if d is None)
        yield _problem("torch", f"{missing}: not installed", both)
        return
    if halves := [f"{d.name} {d.version} ({d.torn})" for d in (torch, npu) if d.torn]:
        yield _problem("torch", f"not installed whole: {' and '.join(halves)}", both)
        return
    for line in npu.requires:
        needs = Requirement(line)
        if canonicalize_name(needs.name) == "torch" and not needs.specifier.contains(
            torch.version, prereleases=True
        ):
            yield _problem(
                "torch",
                f"torch {torch.version} and torch-npu {npu.version} do not fit: torch-npu is built "
                f"for torch{needs.specifier}",
                both,
            )
            return
    if torch.is_cuda_build:
        yield _problem(
            "torch",
            f"torch {torch.version} is a CUDA build: it and torch-npu register the same option of "
            "the allocator, and the second to do so aborts",
            both,
        )
        return
    if error := facts.probe.error:
        again = (
            f"pip uninstall -y torch torch-npu && {both}   (for the whole message: "
            "python -c 'import torch, torch_npu')"
        )
        yield _problem(
            "torch",
            f"`import torch, torch_npu` fails: {_emulators_refusal(error)[0]}",
            import_step(error, facts.cann) or again,
        )
        return
    yield _ok("torch", f"torch {torch.version} and torch-npu {npu.version} fit and can be imported")


def import_step(error: str, cann: Cann | None) -> str:
    """What to do where something else than torch or torch-npu explains the failed import, or ""."""
    want = pins.device()["cann"]
    if re.search(r"\bASCEND_\w+_PATH\b", error):  # torch-npu's own check of what set_env.sh sets
        return _SELECT
    if symbol := re.search(rf"undefined symbol: ({_CANNS_SYMBOL})", error):
        return f"install CANN {want}: the one that is loaded is older, and lacks {symbol[1]}"
    library = match[1] if (match := _LIBRARY.search(error)) else ""
    is_canns = re.fullmatch(_CANNS_LIBRARY, library) is not None
    if is_canns and cann is not None and cann.is_loaded:
        return f"install CANN {want} again: its {library} cannot be loaded"
    of_cann = cann.load_error if cann else ""
    if is_canns or error == of_cann or (library and library in of_cann):
        return "make CANN loadable, see CANN below"
    if error.startswith(NO_ANSWER):
        return (
            "see whether `python -c 'import torch, torch_npu'` ends, given time; if not, whether "
            "`npu-smi info` does, and restart the machine if that hangs too"
        )
    return ""


def core(facts: Facts) -> Iterator[Finding]:
    """Which distribution brings vLLM, and which build it is."""
    again = install_command(_nearest(facts), facts)
    if not facts.cores:
        half = f": {facts.core_folder} has no metadata, as after an interrupted installation"
        yield _problem("vLLM", f"not installed{half if facts.core_folder else ''}", again)
        return
    names = [dist.name for dist in facts.cores]
    shown = " and ".join(f"{dist.name} {dist.version}" for dist in facts.cores)
    if names != ["vllm"]:
        afresh = install_command(_nearest(facts), replace(facts, cores=()))
        yield _problem(
            "vLLM",
            f"the package `vllm` is brought by {shown}"
            + ("; they overwrite each other's files" if len(names) > 1 else ", another build"),
            f"pip uninstall -y {' '.join(names)} && {afresh}",
        )
    elif half := facts.cores[0].torn:
        yield _problem("vLLM", f"{shown} is not installed whole: {half}", again)
    elif facts.cores[0].is_cuda_build:
        yield _problem(
            "vLLM",
            f"{shown} is the CUDA build: it requires CUDA's packages, and its kernels never run "
            "here",
            again,
        )
    elif unmet := facts.cores[0].unmet:
        some = ", ".join(unmet[:_SHOWN_MISMATCHES])
        yield _problem(
            "vLLM",
            f"{shown} lacks {len(unmet)} of the packages that it requires ({some}), as after an "
            "interrupted installation",
            again,
        )
    else:
        yield _ok("vLLM", f"{shown}, without CUDA")


def symbols(facts: Facts) -> Iterator[Finding]:
    """Whether the installed core has every name that this plugin relies on."""
    wrong = facts.core_mismatches
    if wrong is None or not facts.cores or any(core.torn for core in facts.cores):
        return  # half a core lacks most of them: one cause, one step
    again = f"{pins.install_command(_nearest(facts))} --replace"
    if not wrong:
        yield _ok("core symbols", "every name of vLLM that this plugin relies on is as expected")
    for mismatch in wrong[:_SHOWN_MISMATCHES]:
        yield _problem(
            "core symbols",
            f"{mismatch.symbol}: expected {mismatch.expected}, found {mismatch.found}",
            f"{again}   (who ports to this core begins at {mismatch.look_at})",
        )
    if len(wrong) > _SHOWN_MISMATCHES:
        more = len(wrong) - _SHOWN_MISMATCHES
        yield Finding(Level.NOTE, "core symbols", f"and {more} more, see --json")


def triton(facts: Facts) -> Iterator[Finding]:
    """triton-ascend writes into the folder of triton, and lacks what core imports."""
    names = {str(canonicalize_name(dist.name)): dist for dist in facts.tritons}
    shown = " and ".join(f"{dist.name} {dist.version}" for dist in facts.tritons)
    if "triton-ascend" in names:
        stock = names.get("triton")
        again = f" && pip install --no-deps triton=={stock.version}" if stock else ""
        yield _problem(
            "triton",
            f"{shown}: triton-ascend puts its files where triton's are, and lacks names that vLLM "
            "imports; this plugin uses neither",
            f"pip uninstall -y {' '.join(sorted(names))}{again}",
        )
    elif facts.tritons:
        yield _ok("triton", f"{shown}, not used on this device")
    else:
        yield _ok("triton", "not installed, and not needed")


def platform_plugins(facts: Facts) -> Iterator[Finding]:
    """vLLM takes exactly one out-of-tree platform, of those that VLLM_PLUGINS lets in."""
    allowed = facts.environ.get("VLLM_PLUGINS")
    let_in = None if allowed is None else allowed.split(",")
    active = [p for p in facts.platform_plugins if let_in is None or p.name in let_in]
    others = [plugin for plugin in active if plugin.name != OURS]
    if not any(plugin.name == OURS for plugin in facts.platform_plugins):
        yield _problem(
            "platform plugins",
            "this plugin's own entry point is not installed, so vLLM will not find it",
            "pip install /path/to/vllm-ascend-mrv2   (a checkout or its wheel)",
        )
    elif len(others) == len(active):
        yield _problem(
            "platform plugins",
            f"VLLM_PLUGINS={allowed} leaves this plugin out",
            f"export VLLM_PLUGINS={OURS}   (or unset it)",
        )
    elif others:
        shown = ", ".join(f"{plugin.name} (of {plugin.distribution})" for plugin in others)
        away = " ".join(sorted({plugin.distribution for plugin in others}))
        yield _problem(
            "platform plugins",
            f"{shown} beside {OURS}: vLLM refuses to start with two platforms that both see a "
            "device",
            f"export VLLM_PLUGINS={OURS}   (or: pip uninstall {away})",
        )
    else:
        hidden = [p.name for p in facts.platform_plugins if p not in active]
        more = f"; {', '.join(hidden)} is kept out by VLLM_PLUGINS" if hidden else ""
        yield _ok("platform plugins", f"{OURS} alone{more}")


def cann(facts: Facts) -> Iterator[Finding]:
    """Whether CANN can be loaded, and is the version that the tests ran on."""
    found, want = facts.cann, pins.device()["cann"]
    for name in facts.no_folders:
        yield _problem(
            "CANN",
            f"{name}={facts.environ[name]} is no folder",
            _SELECT,
        )
    if found is None:
        yield _problem(
            "CANN",
            "not found: no libascendcl.so on the loader's path, no toolkit in /usr/local/Ascend",
            f"on a machine with a card install CANN {want} and source its set_env.sh; without a "
            f"card: {ON_EMULATED}",
        )
        return
    version = found.version or "one of unknown version"
    is_older = not found.is_emulated and _numbers(found.version) < _numbers(want)
    than = f"; the tests ran on {want}, and torch-npu may call what an older one lacks"
    older = than if is_older and found.version else ""
    library = f"{version} in {found.home}: its" if found.home else "a"
    select = f"source {found.set_env}" if found.set_env else _SELECT
    source = f"{select}; if that does not help, " if found.home else ""
    if not found.is_loaded and found.is_emulated and found.is_on_path:
        says, step = _emulators_refusal(found.load_error)
        yield _problem("CANN", f"the emulated device refuses its settings: {says}", step)
    elif not found.is_loaded and "libascend_hal.so: cannot open" in found.load_error:
        yield _problem(
            "CANN",
            f"{library} libascendcl.so is found, and needs the driver's libascend_hal.so, which "
            f"the loader does not find: {found.load_error}",
            "install the driver; in a container pass /usr/local/Ascend/driver on and add its "
            "lib64/driver to LD_LIBRARY_PATH",
        )
    elif not found.is_loaded and not found.is_on_path:
        yield _problem(
            "CANN",
            f"{version} is in {found.home}, but the loader does not find its libascendcl.so{older}",
            f"{select}; better, install CANN {want}" if older else select,
        )
    elif not found.is_loaded:
        yield _problem(
            "CANN",
            f"{library} libascendcl.so is found, but cannot be loaded: {found.load_error}",
            f"{source}install CANN {want} for {facts.machine} again",
        )
    elif found.is_emulated:
        yield _ok("CANN", f"{version}, emulated, in {found.home}")
    elif is_older:
        yield _problem(
            "CANN",
            f"{version} in {found.home}{than}",
            f"install CANN {want} and source its set_env.sh",
        )
    else:
        yield _ok("CANN", f"{version} in {found.home}")


def _emulators_refusal(error: str) -> tuple[str, str]:
    """What the emulated device says, without its list of all names, and the next step."""
    says, _, names = error.partition(": unset it, or take one of ")
    match = re.search(rf"\b{_EMULATORS}\w+", says)
    name = match[0] if match else ""
    if names:
        return says, f"{envs.meant(name, names.split(), _EMULATORS)}unset {name}"
    return error, f"correct {name or 'what it names'}, or unset it"


def driver(facts: Facts) -> Iterator[Finding]:
    """Whether there is an NPU driver, and it is not older than CANN or experience asks."""
    if facts.cann is not None and facts.cann.is_emulated:
        yield _ok("driver", "none is needed for the emulated device")
        return
    if facts.cann is None and facts.driver is None and not facts.device_files:
        yield Finding(Level.NOTE, "driver", "none, and no device file: a machine without a card")
        return
    want = pins.device()["driver"]
    upgrade = (
        f"install the driver and firmware (Ascend HDK {want} or newer) that the release notes of "
        "your CANN name, then restart the machine"
    )
    if (found := facts.driver) is None:
        yield _problem("driver", "no NPU driver: driver/version.info was not found", upgrade)
        return
    if found.error:
        yield _problem(
            "driver",
            f"of unknown version: {found.file} cannot be read: {found.error}",
            f"let this user read the file; if it is damaged, {upgrade}",
        )
        return
    hal = facts.cann.required_driver_hal if facts.cann else ""
    if hal and found.hal and _numbers(found.hal) < _numbers(hal):
        yield _problem(
            "driver",
            f"{found.version} is too old: its ascendhal is {found.hal}, CANN asks for {hal}",
            upgrade,
        )
    elif _numbers(found.version) < _numbers(want):
        yield _problem(
            "driver",
            f"{found.version} is too old: {want} or newer is recommended ({found.file})",
            upgrade,
        )
    else:
        yield _ok("driver", f"{found.version} ({found.file})")


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers before any letter: 25.0.rc1.1 is (25, 0); "" is empty, so older than any."""
    leading = re.match(r"[\d.]*", version)
    return tuple(int(part) for part in (leading[0] if leading else "").split(".") if part)


def devices(facts: Facts) -> Iterator[Finding]:
    """Which devices a process of this environment sees."""
    if not facts.probe.is_run or facts.probe.error:
        if facts.device_files:
            shown = ", ".join(facts.device_files)
            yield Finding(Level.NOTE, "devices", f"{shown}; torch cannot be asked, see above")
        return
    seen = facts.probe.devices
    visible = facts.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    if seen:
        limited = f", limited by ASCEND_RT_VISIBLE_DEVICES={visible}" if visible else ""
        kinds = ", ".join(f"{seen.count(name)} x {name}" for name in dict.fromkeys(seen))
        yield _ok("devices", kinds + limited)
    elif visible is not None:
        yield _problem(
            "devices",
            f"none is visible, with ASCEND_RT_VISIBLE_DEVICES={visible!r}",
            "unset ASCEND_RT_VISIBLE_DEVICES, or name devices that are there, such as 0,1",
        )
    else:
        yield _problem(
            "devices",
            "torch_npu sees none",
            "see what `npu-smi info` says; in a container pass /dev/davinci0 and its companions "
            f"on. Without a card: {ON_EMULATED}",
        )


def switches(facts: Facts) -> Iterator[Finding]:
    """Environment variables that this plugin does not know, or that contradict it."""
    wrong: list[tuple[str, str]] = []  # what is wrong, the next step
    wrong += [
        (f"{name} is no switch of this plugin", envs.mend_unknown(name))
        for name in envs.unknown_switches(facts.environ)
    ]
    for switch in envs.SWITCHES:
        try:
            switch.read(facts.environ)
        except envs.SwitchError:
            wrong.append(
                (
                    f"{switch.name}={facts.environ[switch.name]} is no value that it takes",
                    f"set it to {switch.takes}, or unset it",
                )
            )
    wrong += [
        (f"{asked}: {row.why}", row.instead)
        for row in support.REFUSALS
        if (asked := support.setting_of(row, facts.environ))
    ]
    if facts.environ.get("VLLM_WORKER_MULTIPROC_METHOD") == "fork":
        why = "a forked child cannot use a device that its parent initialised"
        wrong.append((f"VLLM_WORKER_MULTIPROC_METHOD=fork: {why}", "unset it, or set it to spawn"))
    emulated = facts.cann is not None and facts.cann.is_emulated
    idle = sorted(name for name in facts.environ if name.startswith(_EMULATORS))
    if idle and not emulated:
        does = "does" if len(idle) == 1 else "do"
        yield Finding(
            *(Level.NOTE, "switches"),
            f"{', '.join(idle)} {does} nothing: the device is not emulated",
        )
    for says, next_step in wrong:
        yield _problem("switches", says, next_step)
    if not wrong:
        names = [switch.name for switch in envs.SWITCHES if switch.name in facts.environ]
        ours = [f"{name}={facts.environ[name]}" for name in names]
        yield _ok("switches", ", ".join(ours) or "all at their defaults")


_REPORT = "do not rely on results of this device; report `doctor --device --json`"
# Probe -> what it is called in a report, the level of a failure, and what then.
_PROBES: dict[str, tuple[str, Level, str]] = {
    "pinned_ordering": (
        "pinned copies in order",
        Level.NOTE,
        f"leave {envs.PIN_MEMORY.name} unset, as it is by default",
    ),
    "pinned_reuse": (
        "pinned memory kept for copies",
        Level.NOTE,
        f"leave {envs.PIN_MEMORY.name} unset, as it is by default",
    ),
    "fia_lengths": ("attention by host lengths", Level.PROBLEM, _REPORT),
    "stream_budget": (
        "streams for graphs",
        Level.PROBLEM,
        "start with --enforce-eager, or end what else uses this device",
    ),
    "hccl": ("HCCL", Level.PROBLEM, "install the HCCL of the CANN in use; every worker needs it"),
}


def device_probes(facts: Facts) -> Iterator[Finding]:
    """What the probes on the device saw, where they were asked for."""
    if facts.device_probes == ():
        yield _problem(
            "device", "nothing was tried: torch reaches no device", "mend the problems above first"
        )
    for probe in facts.device_probes or ():
        title, level, then = _PROBES[probe.name]
        if probe.holds is None:
            yield _problem(
                "device",
                f"{title}: could not be tried: {probe.error}",
                "mend the problems above; if there are none, report `doctor --device --json`",
            )
        elif probe.holds:
            yield _ok("device", f"{title}: {probe.saw}")
        else:
            yield Finding(level, "device", f"{title}: {probe.saw}", then)


TOPICS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    *(python, versions, torch_pair, core, symbols, triton, platform_plugins),
    *(cann, driver, devices, switches, device_probes),
)


def diagnose(facts: Facts) -> list[Finding]:
    """All findings, in the order of the topics."""
    return [finding for topic in TOPICS for finding in topic(facts)]


def is_verified(facts: Facts) -> bool:
    """Whether vLLM, torch and torch-npu are a verified set, in the builds that were tested."""
    is_set = pins.matching(_versions(facts).get) is not None
    is_other_build = not _is_plain_core(facts) or _has_cuda_torch(facts)
    return is_set and not is_other_build and not _is_incomplete(facts)
