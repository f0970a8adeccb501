# SPDX-License-Identifier: Apache-2.0
"""protocol.json: all that is decided before the first counted run, as typed and checked data.

Reads and checks the file; runs nothing and knows no results.
"""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vllm_ascend_mrv2.cli.console import CliError

VERSION = 1
Metric = Literal["tpot", "ttft", "e2el"]
Statistic = Literal["mean", "p50", "p95", "p99"]
# Why a start may be put aside and made again. Failed requests and wrong outputs are no such
# reasons: they are results, and void the run.
EXCLUSION_RULES = {
    "interrupted": "the run was stopped from outside before this start was complete",
    "server_start": "the server was not healthy within its time",
}
VERDICTS = ("CONFIRMED", "NOT_REPRODUCED", "INCONCLUSIVE")


class ProtocolError(CliError):
    """protocol.json says something that no run could follow."""


@dataclass(frozen=True)
class Distribution:
    """One installed distribution. sha256: `provenance.distribution_digest`; commit: of ours."""

    version: str
    sha256: str
    commit: str = ""


@dataclass(frozen=True)
class Device:
    """emulated: whether the libraries are the emulator's; sha256: of its libraries, else empty."""

    emulated: bool
    sha256: str = ""


@dataclass(frozen=True)
class Model:
    """name: of its folder; origin: how to make or get it; sha256: `provenance.folder_digest`."""

    name: str
    origin: str
    sha256: str


@dataclass(frozen=True)
class Machine:
    """The machine profile that a run must find."""

    cpu_model: str
    cpus: int


@dataclass(frozen=True)
class Quiet:
    """A start waits for a 1-minute load below `load_below`, `wait_at_most_s` seconds at most.

    After that it runs all the same; the load is in its data.
    """

    load_below: float
    wait_at_most_s: float


@dataclass(frozen=True)
class Affinity:
    """CPU numbers of the two sides."""

    server: tuple[int, ...]
    client: tuple[int, ...]


@dataclass(frozen=True)
class Environment:
    """allow: names that pass from the caller's environment; set: values for all variants."""

    allow: tuple[str, ...]
    set: dict[str, str]


@dataclass(frozen=True)
class Server:
    """Arguments of `vllm serve` after the model, and how long it may take."""

    arguments: tuple[str, ...]
    start_timeout_s: float
    stop_timeout_s: float


@dataclass(frozen=True)
class Workload:
    """What the client asks for. request_rate: per second, 0 = as fast as concurrency allows.

    dataset: `random` (from seed and lengths) or `custom` (dataset_path, within the folder).
    """

    client: Literal["vllm-bench-serve"]
    dataset: Literal["random", "custom"]
    seed: int
    input_tokens: int
    output_tokens: int
    requests: int
    warmups: int
    concurrency: int
    request_rate: float
    temperature: float
    ignore_eos: bool
    timeout_s: float
    dataset_path: str = ""


@dataclass(frozen=True)
class Variant:
    """One of the two sides, by all that differs from the other."""

    name: str
    environment: dict[str, str]
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Primary:
    """The one metric that decides. direction: where the claim says the candidate is."""

    metric: Metric
    statistic: Statistic
    direction: Literal["lower"]


@dataclass(frozen=True)
class Guard:
    """A metric that may not get worse by more than `margin` (0.1: ten percent)."""

    metric: Metric
    statistic: Statistic
    margin: float


@dataclass(frozen=True)
class Bootstrap:
    """Resamples and seed of the cluster bootstrap."""

    resamples: int
    seed: int


@dataclass(frozen=True)
class Expected:
    """Candidate minus baseline, of a count per step."""

    difference: float
    tolerance: float


@dataclass(frozen=True)
class Mechanism:
    """A counting command, run once per variant from the root of the checkout.

    `{out}` stands for the folder in which it writes steps.json: a list of rows, each with
    `per_step`, a mapping of names to counts. `{python}` is this environment's.
    """

    command: tuple[str, ...]
    expected: dict[str, Expected]


@dataclass(frozen=True)
class Protocol:
    """protocol.json. Every field is required; `from_json` says what is wrong."""

    version: int
    id: str
    date: str
    claim: str
    decisions: dict[str, str]
    prior_data: str
    stack: dict[str, Distribution]
    device: Device
    model: Model
    machine: Machine
    quiet: Quiet
    affinity: Affinity
    environment: Environment
    server: Server
    workload: Workload
    variants: tuple[Variant, Variant]
    baseline: str
    candidate: str
    starts_per_variant: int
    order: Literal["ABBA"]
    exclusion: tuple[str, ...]
    max_excluded: int
    primary: Primary
    guards: tuple[Guard, ...]
    minimum_detectable_effect: float
    max_p: float
    bootstrap: Bootstrap
    stop: str
    mechanism: Mechanism | None

    def variant(self, name: str) -> Variant:
        """The variant of that name."""
        return next(v for v in self.variants if v.name == name)

    def schedule(self) -> list[Start]:
        """All starts in order: AB BA AB ..., so that a drift of the machine hits both alike."""
        first, second = (v.name for v in self.variants)
        names = [
            name
            for pair in range(self.starts_per_variant)
            for name in ((first, second) if pair % 2 == 0 else (second, first))
        ]
        return [Start(number, name, (number - 1) // 2) for number, name in enumerate(names, 1)]


@dataclass(frozen=True)
class Start:
    """One server start: its number from 1, its variant, and the pair that it belongs to, from 0."""

    number: int
    variant: str
    pair: int

    @property
    def folder(self) -> str:
        """Name under raw/."""
        return f"{self.number:02d}-{self.variant}"


def _fail(where: str, why: str) -> typing.NoReturn:
    raise ProtocolError(
        f"protocol.json: {where}: {why}",
        do="Correct it and commit it before the first run. After data exist, only an amendment can "
        "say more.",
    )


def _read(kind: Any, value: Any, where: str) -> Any:
    """`value` (from JSON) as `kind`: a dataclass, tuple, dict, Literal, optional or plain type."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _read_fields(kind, value, where)
    if origin is types.UnionType:
        if value is None and type(None) in inner:
            return None
        return _read(next(k for k in inner if k is not type(None)), value, where)
    if origin is Literal:
        if value not in inner:
            _fail(where, f"{value!r} is not known; it takes {' or '.join(map(repr, inner))}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            _fail(where, "must be a list")
        if inner[-1] is not Ellipsis and len(value) != len(inner):
            _fail(where, f"must have exactly {len(inner)} entries, has {len(value)}")
        return tuple(_read(inner[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            _fail(where, "must be an object")
        return {key: _read(inner[1], item, f"{where}.{key}") for key, item in value.items()}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        _fail(where, f"must be {kind.__name__}, is {type(value).__name__} {value!r}")
    return value


def _read_fields(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        _fail(where, "must be an object")
    hints, fields = typing.get_type_hints(kind), {f.name: f for f in dataclasses.fields(kind)}
    if unknown := sorted(set(value) - set(fields)):
        _fail(where, f"{', '.join(unknown)} not known")
    missing = [n for n, f in fields.items() if f.default is dataclasses.MISSING and n not in value]
    if missing:
        _fail(where, f"{', '.join(missing)} missing")
    prefix = "" if kind is Protocol else f"{where}."
    return kind(**{n: _read(hints[n], item, prefix + n) for n, item in value.items()})


def _check(p: Protocol) -> None:
    """What types cannot say. Raises ProtocolError for the first thing that is wrong."""
    names = [v.name for v in p.variants]
    w = p.workload
    # (where, holds, what must hold)
    rules = (
        ("version", p.version == VERSION, f"must be {VERSION}"),
        ("date", re.fullmatch(r"\d{4}-\d\d-\d\d", p.date) is not None, "must be YYYY-MM-DD"),
        ("id", p.id.startswith(p.date + "-"), "must be <date>-<topic>"),
        ("claim", bool(p.claim.strip()), "must not be empty"),
        ("stop", bool(p.stop.strip()), "must not be empty"),
        ("decisions", set(p.decisions) == set(VERDICTS), f"needs one for each of {VERDICTS}"),
        ("decisions", all(p.decisions.values()), "must not be empty"),
        ("stack", bool(p.stack), "must name what is under test"),
        ("variants", len(set(names)) == 2, "must have two different names"),
        (
            "variants",
            all(re.fullmatch(r"[a-z0-9_]+", name) is not None for name in names),
            "names are of a-z, 0-9 and _",
        ),
        ("baseline", p.baseline in names, f"must be one of {names}"),
        ("candidate", p.candidate in names and p.candidate != p.baseline, "must be the other one"),
        ("starts_per_variant", p.starts_per_variant >= 5, "must be at least 5"),
        (
            "exclusion",
            set(p.exclusion) <= set(EXCLUSION_RULES),
            f"knows only {sorted(EXCLUSION_RULES)}",
        ),
        ("max_excluded", p.max_excluded >= 0, "must not be negative"),
        ("affinity", bool(p.affinity.server and p.affinity.client), "needs CPUs for both sides"),
        ("workload.requests", w.requests > 0, "must be positive"),
        ("workload.output_tokens", w.output_tokens > 1, "must be at least 2: tpot needs a second"),
        ("workload.concurrency", w.concurrency > 0, "must be positive"),
        (
            "workload.temperature",
            w.temperature == 0,
            "must be 0: outputs are compared, and only greedy ones must agree",
        ),
        (
            "workload.dataset_path",
            (w.dataset == "custom") == bool(w.dataset_path),
            "belongs to `custom`, and only to it",
        ),
        (
            "minimum_detectable_effect",
            0 < p.minimum_detectable_effect < 1,
            "must be between 0 and 1",
        ),
        (
            "max_p",
            smallest_p(p.starts_per_variant) <= p.max_p < 1,
            f"cannot be below {smallest_p(p.starts_per_variant)}, the smallest p that "
            f"{p.starts_per_variant} pairs can give",
        ),
        ("bootstrap.resamples", p.bootstrap.resamples >= 1000, "must be at least 1000"),
        ("guards", all(g.margin > 0 for g in p.guards), "margins must be positive"),
    )
    for where, holds, what in rules:
        if not holds:
            _fail(where, what)


def smallest_p(pairs: int) -> float:
    """The smallest two-sided p of an exact sign-flip test of that many pairs."""
    return 2 / 2**pairs


def from_json(text: str) -> Protocol:
    """Raises ProtocolError for anything missing, unknown, of the wrong type or impossible."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        _fail("not JSON", str(error))
    protocol: Protocol = _read(Protocol, value, "protocol")
    _check(protocol)
    return protocol


def read(folder: Path) -> Protocol:
    """The protocol of an evidence folder. Raises ProtocolError, also where its id is another's."""
    path = folder / "protocol.json"
    if not path.is_file():
        raise ProtocolError(
            f"{path} is not there.",
            why="An evidence folder begins with its protocol.",
            do="Write it (benchmarks/evidence/ has examples) and commit it.",
        )
    protocol = from_json(path.read_text(encoding="utf-8"))
    if protocol.id != folder.absolute().name:
        _fail("id", f"{protocol.id!r} is not the folder's name, {folder.absolute().name!r}")
    return protocol
