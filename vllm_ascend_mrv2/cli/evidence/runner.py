# SPDX-License-Identifier: Apache-2.0
"""Makes the raw data of a protocol: counting first, then every server start in its order.

Crash-safe by construction: a start is written into `raw/<start>-<variant>.partial` and renamed when
it is whole; the next run puts what was left unfinished aside and goes on. No statistics here.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from vllm_ascend_mrv2.cli.console import CliError, say
from vllm_ascend_mrv2.cli.evidence import client, provenance
from vllm_ascend_mrv2.cli.evidence import folder as files
from vllm_ascend_mrv2.cli.evidence.protocol import Protocol, Start, Variant
from vllm_ascend_mrv2.cli.evidence.server import (
    Server,
    ServerStartError,
    child_setup,
    end_session,
    free_port,
)

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


@dataclass(frozen=True)
class Place:
    """Where a run happens: evidence folder, checkpoint, and the vLLM program."""

    folder: Path
    model: Path
    vllm: Path

    @property
    def raw(self) -> Path:
        return self.folder / "raw"


def default_vllm() -> Path:
    """The `vllm` of this environment."""
    return Path(sysconfig.get_path("scripts"), "vllm")


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Two runs of one folder would mix their starts."""
    with (folder / files.LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CliError(f"Another run of {folder} is going on.", do="Wait for it.") from None
        try:
            yield
        finally:
            (folder / files.LOCK).unlink()


class _Interruption:
    """Notes the first signal that asks to end; `check`, called wherever is waited, obeys.

    Python drops an exception that a handler raises at the wrong moment (in a fork's callback): the
    run would go on. A noted number is not lost.
    """

    def __init__(self) -> None:
        self.number = 0

    def check(self) -> None:
        """Raises SystemExit after a signal."""
        if self.number:
            raise SystemExit(128 + self.number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number

    @contextmanager
    def noted(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._note) for number in _ENDING}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


_interruption = _Interruption()


def environment(protocol: Protocol, variant: Variant, caller: Mapping[str, str]) -> dict[str, str]:
    """What a process of that variant sees: the allowed, the set, the variant's own; no more."""
    allowed = {name: caller[name] for name in protocol.environment.allow if name in caller}
    return {**allowed, **protocol.environment.set, **variant.environment}


def observe(protocol: Protocol, place: Place) -> dict[str, Any]:
    """What is here, in the shape that `provenance.differences` compares."""
    return {
        "stack": provenance.stack(list(protocol.stack)),
        "device": provenance.device(),
        "machine": provenance.machine(),
        "model": provenance.folder_digest(place.model),
    }


def _scrub(path: Path, place: Place) -> None:
    """Take this machine's names out of a log, so that it can be published."""
    text = path.read_text(encoding="utf-8", errors="replace")
    names = {
        os.environ.get("ASCEND_HOME_PATH", ""): "<cann>",
        str(place.folder.absolute()): "<evidence>",
        str(place.model.absolute()): "<model>",
        sys.prefix: "<environment>",
        str(Path.cwd()): "<cwd>",
        str(Path.home()): "<home>",
        socket.gethostname(): "<host>",
    }
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, names[name]) if len(name) > 1 else text
    path.write_text(text, encoding="utf-8")


def _open_run(protocol: Protocol, place: Place, no_git: str | None) -> None:
    """Write run.json, or check that the protocol is the one that it was written for."""
    digest = files.sha256(place.folder / "protocol.json")
    path = place.folder / "run.json"
    earlier = files.read_json(path) if path.is_file() else None
    if earlier is not None and earlier["protocol_sha256"] != digest:
        raise CliError(
            "protocol.json was changed after the first run.",
            why="Its data belong to the protocol as it was.",
            do="Restore it; say more in amendments.jsonl, or begin another folder.",
        )
    if earlier is None and place.raw.exists():
        raise CliError(f"{place.raw} is there without run.json.", do="Begin another folder.")
    reason = earlier["no_git_reason"] if earlier is not None else no_git or ""
    commit = "" if reason else provenance.protocol_commit(place.folder)
    if earlier is not None and earlier["protocol_commit"] != commit:
        raise CliError(
            "protocol.json was committed again after the first run.", do="Begin another folder."
        )
    observed = observe(protocol, place)
    if problems := provenance.differences(protocol, observed):
        raise CliError(
            "What is here is not what the protocol names.",
            why="; ".join(problems),
            do="Run it where it belongs, or write and commit a protocol for what is here.",
        )
    if earlier is not None:
        files.write_json(path, {**earlier, "resumed_at": [*earlier["resumed_at"], files.now()]})
        return
    files.write_json(
        path,
        {
            "began_at": files.now(),
            "resumed_at": [],
            "protocol_sha256": digest,
            "protocol_commit": commit,
            "no_git_reason": reason,
            "checkout_commit": (provenance.git(Path.cwd(), "rev-parse", "HEAD") or "").strip(),
            "observed": observed,
        },
    )


def exclude(protocol: Protocol, place: Place, partial: Path, rule: str, why: str) -> None:
    """Keep an unfinished start under excluded/ with its rule. Raises CliError where none allows."""
    target_root = place.folder / "excluded"
    count = len(list(target_root.iterdir())) if target_root.is_dir() else 0
    if rule not in protocol.exclusion or count >= protocol.max_excluded:
        raise CliError(
            f"{partial.name} is incomplete ({why}), and the protocol lets no more be excluded.",
            why=f"its rules: {list(protocol.exclusion)}, at most {protocol.max_excluded} starts",
            do="This run is over: keep the folder as it is and say so in its README.",
        )
    reason = {"rule": rule, "why": why, "excluded_at": files.now(), "files": _sums_in(partial)}
    files.write_json(partial / "reason.json", reason)
    target_root.mkdir(exist_ok=True)
    partial.rename(target_root / f"{count + 1:02d}-{partial.name.removesuffix(files.PARTIAL)}")


def _sums_in(folder: Path) -> dict[str, str]:
    return {
        p.relative_to(folder).as_posix(): files.sha256(p)
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def _await_quiet(protocol: Protocol) -> float:
    """Seconds waited for the machine to be quiet."""
    began = time.monotonic()
    while os.getloadavg()[0] >= protocol.quiet.load_below:
        if time.monotonic() - began >= protocol.quiet.wait_at_most_s:
            break
        _interruption.check()
        time.sleep(0.5)
    return time.monotonic() - began


def _busy_s() -> float:
    """CPU seconds that the machine has worked so far, all CPUs and all programs."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def _run_client(
    command: list[str], environ: Mapping[str, str], cpus: tuple[int, ...], log: Path, limit_s: float
) -> float:
    """CPU seconds that the client used. Raises CliError where it failed."""
    before = os.times()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environ,
            start_new_session=True,
            preexec_fn=child_setup(cpus, signal.SIGKILL),
        )
    deadline = time.monotonic() + limit_s
    try:
        while (code := process.poll()) is None and time.monotonic() < deadline:
            _interruption.check()
            time.sleep(0.1)
    finally:
        end_session(process.pid)
        process.wait(30)
    if code != 0:
        how = f"exit code {code}" if code is not None else f"not done after {limit_s:g} s"
        raise CliError(
            f"The client failed: {how}.",
            why=f"its log is {log}",
            do="Mend what the log says, and run the command again.",
        )
    after = os.times()
    return (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )


def _save_metrics(text: str, path: Path) -> None:
    """All metrics but the buckets of histograms, which are most of the text."""
    lines = [line for line in text.splitlines() if "_bucket{" not in line and line[:1] != "#"]
    files.write_text(path, "\n".join(lines) + "\n")


def _keep_counters(partial: Path) -> None:
    """Counters of the processes that launched something, as counters-0.json and so on."""
    kept = 0
    for path in sorted(partial.glob("counters-*.json")):
        if files.read_json(path)["total"]["launch_count"]:
            path.rename(partial / f"kept-{kept}.json")
            kept += 1
        else:
            path.unlink()
    for number in range(kept):
        (partial / f"kept-{number}.json").rename(partial / f"counters-{number}.json")


def engine_steps(metrics: str) -> int:
    """How many engine steps /metrics tells of; 0 where it does not say."""
    found = re.findall(r"^vllm:iteration_tokens_total_count\S* (\S+)$", metrics, re.MULTILINE)
    return int(sum(map(float, found)))


def _measure(protocol: Protocol, place: Place, start: Start, partial: Path) -> dict[str, Any]:
    """Start the server, send the workload, stop it; what start.json says, but for its hashes."""
    variant = protocol.variant(start.variant)
    environ = environment(protocol, variant, os.environ)
    if protocol.device.emulated:
        environ["ASCEND_EMU_COUNTERS"] = str(partial.absolute() / "counters-%p.json")
    waited_s = _await_quiet(protocol)
    began_at, load_before = files.now(), os.getloadavg()
    port, result = free_port(), partial / "client.json"
    server = Server(
        command=[
            *(str(place.vllm), "serve", str(place.model)),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--served-model-name", client.SERVED_NAME),
            *protocol.server.arguments,
            *variant.arguments,
        ],
        environment=environ,
        cpus=protocol.affinity.server,
        port=port,
        log=partial / "server.log",
        start_timeout_s=protocol.server.start_timeout_s,
        stop_timeout_s=protocol.server.stop_timeout_s,
        check=_interruption.check,
    )
    with server:
        busy_before, server_before, at = _busy_s(), server.cpu_s(), time.monotonic()
        client_cpu_s = _run_client(
            client.command(
                place.vllm,
                protocol.workload,
                folder=place.folder,
                model=place.model,
                port=port,
                result=result.absolute(),
            ),
            environment(protocol, variant, os.environ),
            protocol.affinity.client,
            partial / "client.log",
            protocol.workload.timeout_s,
        )
        wall_s = time.monotonic() - at
        server_cpu_s, busy_s = server.cpu_s() - server_before, _busy_s() - busy_before
        load_after = os.getloadavg()
        metrics = server.get("/metrics")
    _save_metrics(metrics, partial / "metrics.txt")
    lines = client.requests(files.read_json(result))
    files.write_text(partial / "requests.jsonl", client.as_jsonl(lines))
    result.unlink()
    for log in ("server.log", "client.log"):
        _scrub(partial / log, place)
    _keep_counters(partial)
    return {
        "start": start.number,
        "variant": start.variant,
        "began_at": began_at,
        "ended_at": files.now(),
        "waited_for_quiet_s": round(waited_s, 1),
        "load_before": [round(x, 2) for x in load_before],
        "load_after": [round(x, 2) for x in load_after],
        "server_healthy_after_s": round(server.healthy_after_s, 2),
        "server_exit_code": server.exit_code,
        "client_wall_s": round(wall_s, 2),
        "cpu_s": {
            "server": round(server_cpu_s, 2),
            "client": round(client_cpu_s, 2),
            "other_programs": round(max(0.0, busy_s - server_cpu_s - client_cpu_s), 2),
        },
        "engine_steps": engine_steps(metrics),
    }


def _count(protocol: Protocol, place: Place, variant: Variant) -> None:
    """Run the counting command of one variant, unless its result is there."""
    assert protocol.mechanism is not None
    target = place.raw / f"mechanism-{variant.name}"
    if target.is_dir():
        return
    partial = target.with_name(target.name + files.PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)  # counts, not times: made again, nothing is lost
    partial.mkdir(parents=True)
    say(f"Counting: {variant.name}")
    values = {"{out}": str(partial.absolute()), "{python}": sys.executable}
    command = [values.get(word, word) for word in protocol.mechanism.command]
    _run_client(
        command,
        environment(protocol, variant, os.environ),
        protocol.affinity.server,
        partial / "log.txt",
        protocol.workload.timeout_s,
    )
    if not (partial / "steps.json").is_file():
        raise CliError("The counting command wrote no steps.json.", do="Correct the protocol.")
    _scrub(partial / "log.txt", place)
    partial.rename(target)


def _make(protocol: Protocol, place: Place, start: Start) -> None:
    """One start, whole or not at all; again where a rule allows."""
    target = place.raw / start.folder
    partial = target.with_name(target.name + files.PARTIAL)
    while not target.is_dir():
        _interruption.check()
        partial.mkdir(parents=True)
        say(f"Start {start.number} of {2 * protocol.starts_per_variant}: {start.variant}")
        try:
            record = _measure(protocol, place, start, partial)
        except ServerStartError as error:
            _scrub(partial / "server.log", place)
            exclude(protocol, place, partial, "server_start", str(error))
            continue
        files.write_json(partial / "start.json", {**record, "files": _sums_in(partial)})
        partial.rename(target)


def run(protocol: Protocol, place: Place, *, no_git: str | None = None) -> None:
    """Make all that is missing under raw/. Raises CliError for a run that the protocol forbids."""
    with _exclusive(place.folder), _interruption.noted():
        _open_run(protocol, place, no_git)
        place.raw.mkdir(exist_ok=True)
        for start in protocol.schedule():
            left = place.raw / (start.folder + files.PARTIAL)
            if left.is_dir():
                for log in left.glob("*.log"):
                    _scrub(log, place)
                exclude(protocol, place, left, "interrupted", "left unfinished by an earlier run")
        if protocol.mechanism is not None:
            for variant in protocol.variants:
                _count(protocol, place, variant)
        for start in protocol.schedule():
            _make(protocol, place, start)
