# SPDX-License-Identifier: Apache-2.0
"""Compares the contract with a core's source: what is missing, moved, or has another signature."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from inspect import Parameter, Signature
from pathlib import Path

from vllm_ascend_mrv2.compat import differences
from vllm_ascend_mrv2.compat.contract.source import (
    CoreSource,
    Found,
    Kind,
    parsed,
    shown,
    without_first,
)
from vllm_ascend_mrv2.compat.differences import Difference

# The package's folder name in `by`, so that a path is one of a checkout.
PACKAGE = "vllm_ascend_mrv2"
_SHOWN_FILES = 2


def split(symbol: str) -> tuple[str, tuple[str, ...]]:
    """Module name, and the path in it."""
    module, _, path = symbol.partition(":")
    return module, tuple(path.split(".")) if path else ()


@dataclass(frozen=True, order=True)
class Reliance:
    """One use of a name of vLLM.

    symbol: "module" or "module:name" or "module:Class.name".
    use: "name" (imported or read), "call" (with the arguments in `expects`), "subclass" (`expects`
    names what ours defines), "override" (core calls a method of ours instead, whose signature
    `expects` is) or "rebind" (the same, for a name that is bound to something of ours).
    kind: what it is in the reference core. expects: "" where no signature matters.
    ways: how ours takes all that the reference's takes, for "override" and "rebind"; see `ways_in`.
    by: files of this package, in order. owner: of a member, the class that defines it in the
    reference: what is found in a base instead may do something else, or raise.
    """

    symbol: str
    use: str
    kind: Kind
    expects: str
    ways: tuple[str, ...]
    by: tuple[str, ...]
    owner: str = ""

    @property
    def parts(self) -> tuple[str, tuple[str, ...]]:
        """Module name, and the path in it."""
        return split(self.symbol)

    @property
    def look_at(self) -> str:
        """Where a difference belongs: the compat module that uses it, else what uses it first."""
        compat = [path for path in self.by if path.startswith(f"{PACKAGE}/compat/")]
        return (compat or list(self.by))[0]


@dataclass(frozen=True)
class Mismatch:
    """A symbol that is not as relied on, in words."""

    symbol: str
    expected: str
    found: str
    look_at: str

    def __str__(self) -> str:
        return (
            f"{self.symbol}\n  expected: {self.expected}\n  found:    {self.found}\n"
            f"  look at:  {self.look_at}"
        )


@cache
def contract() -> tuple[Reliance, ...]:
    """The recorded list."""
    text = files(__package__).joinpath("contract.json").read_text(encoding="utf-8")
    entries = json.loads(text)["relies_on"]
    return tuple(Reliance(**e | {"ways": tuple(e["ways"]), "by": tuple(e["by"])}) for e in entries)


def check(core: CoreSource, reliances: tuple[Reliance, ...] | None = None) -> list[Mismatch]:
    """All mismatches, one for each way in which a symbol is used.

    A name that is not there is reported once, and what would be in it is not reported. Nor is one
    in whose place a compat module uses another on cores of that version; that other name is
    reported where it is not there.
    """
    found: dict[Mismatch, None] = {}
    missing: list[str] = []
    for reliance in contract() if reliances is None else reliances:
        if any(re.fullmatch(rf"{re.escape(name)}([.:].*)?", reliance.symbol) for name in missing):
            continue
        mismatch = _compare(core, reliance)
        if mismatch is None:
            continue
        if core.resolve(*reliance.parts) is None:
            missing.append(reliance.symbol)
        other = differences.about(reliance.symbol, core.version)
        instead = [mismatch] if other is None else _missing_instead(core, other)
        found.update(dict.fromkeys(instead))
    return list(found)


def _missing_instead(core: CoreSource, other: Difference) -> list[Mismatch]:
    """Of the names that a compat module uses in place of the reference's, those that differ."""
    made = []
    for line in other.relies_on:
        symbol, call, arguments = line.partition("(")
        found = core.resolve(*split(symbol))
        kind = found.kind if found is not None else "function" if call else "value"
        reliance = Reliance(
            symbol,
            "call" if call else "name",
            kind,
            call + arguments,
            (),
            (f"{PACKAGE}/{other.module}",),
        )
        if (mismatch := _compare(core, reliance)) is not None:
            made.append(mismatch)
    return made


def check_folder(folder: Path) -> list[Mismatch]:
    """`check` of the core whose package is `folder`/vllm. Raises FileNotFoundError without one."""
    return check(CoreSource(folder))


def _compare(core: CoreSource, reliance: Reliance) -> Mismatch | None:
    module, path = reliance.parts
    found = core.resolve(module, path)
    if found is None:
        return Mismatch(
            reliance.symbol, _expected(reliance), _gone(core, module, path), reliance.look_at
        )
    if found.kind == "unknown":  # it may be there: the source does not tell any more
        return None
    if found.kind != reliance.kind and not {found.kind, reliance.kind} <= {"value", "property"}:
        return Mismatch(reliance.symbol, f"a {reliance.kind}", f"a {found.kind}", reliance.look_at)
    if reliance.owner not in ("", found.owner):
        expected = f"{_expected(reliance)}, defined by {reliance.owner}"
        return Mismatch(reliance.symbol, expected, f"that of {found.owner}", reliance.look_at)
    if reliance.use == "subclass":
        if missing := core.abstract_names(found) - set(reliance.expects.split()):
            wants = f"abstract methods that ours lacks: {', '.join(sorted(missing))}"
            return Mismatch(reliance.symbol, _expected(reliance), wants, reliance.look_at)
        return None
    theirs = caller_signature(core, reliance, found)
    if not reliance.expects or theirs is None:
        return None
    if reliance.use == "call":
        fits = call_fits(theirs, reliance.expects)
    else:
        fits = set(reliance.ways) <= set(ways_in(parsed(reliance.expects), theirs))
    if fits:
        return None
    return Mismatch(reliance.symbol, _expected(reliance), shown(theirs), reliance.look_at)


def caller_signature(core: CoreSource, reliance: Reliance, found: Found) -> Signature | None:
    """The signature of a name as `expects` is written, or None where the source does not tell.

    A method's own first argument is there if ours stands in for it, and is not if we call it.
    """
    theirs = core.call_signature(found)
    is_member = len(reliance.parts[1]) > 1
    if theirs is None or found.kind != "function" or not is_member or found.is_static:
        return theirs
    if reliance.use == "call":
        return theirs if found.is_classmethod else without_first(theirs)
    if found.is_classmethod:
        first = Parameter("cls", Parameter.POSITIONAL_OR_KEYWORD)
        return theirs.replace(parameters=[first, *theirs.parameters.values()])
    return theirs


def _expected(reliance: Reliance) -> str:
    name = reliance.symbol.rpartition(":")[2].rpartition(".")[2]
    if reliance.use == "call" and reliance.expects:
        return f"a {reliance.kind} that can be called as {name}{reliance.expects}"
    if reliance.use == "subclass":
        return "a class to derive from"
    if reliance.expects:
        ours = "overridden" if reliance.use == "override" else "replaced"
        return f"a {reliance.kind}, {ours} by {name}{reliance.expects}"
    return f"a {reliance.kind}"


def _gone(core: CoreSource, module: str, path: tuple[str, ...]) -> str:
    if core.resolve(module, ()) is None:
        return f"nothing: no module {module}"
    elsewhere = core.defining_files.get(path[-1], [])
    if not 0 < len(elsewhere) <= _SHOWN_FILES:  # more is a common name, not this one moved
        return "nothing"
    return f"nothing; {' and '.join(elsewhere)} has one"


def call_fits(theirs: Signature, call: str) -> bool:
    """Whether a call that looks like `(_, _, name=_)` binds to the signature."""
    expression = ast.parse(f"_{call}", mode="eval").body
    assert isinstance(expression, ast.Call)
    keywords = {str(keyword.arg): None for keyword in expression.keywords}
    try:
        theirs.bind(*expression.args, **keywords)
    except TypeError:
        return False
    return True


def ways_in(ours: Signature, theirs: Signature) -> tuple[str, ...]:
    """Of "position" and "keyword" those by which ours can be called in every way theirs can.

    That is with all of its arguments, and with no more than it requires. Which of the two core uses
    is not looked up: what holds for the reference has to hold for another core.
    """
    variadic = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    parameters = list(theirs.parameters.values())
    everything = [p for p in parameters if p.kind not in variadic]
    required = [p for p in everything if p.default is Parameter.empty]
    # (*args, **kwargs) stands for whatever a subclass takes; then it says nothing.
    says_nothing = {p.kind for p in parameters} >= set(variadic)
    return tuple(
        way
        for way in ("position", "keyword")
        if says_nothing or all(_binds(ours, some, way) for some in (everything, required))
    )


def _binds(ours: Signature, parameters: list[Parameter], way: str) -> bool:
    """Whether ours takes these; the first stays by position, as `self` does."""
    positional: list[None] = []
    keywords: dict[str, None] = {}
    for index, parameter in enumerate(parameters):
        by_name = way == "keyword" and index > 0
        if parameter.kind is Parameter.KEYWORD_ONLY or (
            by_name and parameter.kind is not Parameter.POSITIONAL_ONLY
        ):
            keywords[parameter.name] = None
        else:
            positional.append(None)
    try:
        ours.bind(*positional, **keywords)
    except TypeError:
        return False
    return True
