# SPDX-License-Identifier: Apache-2.0
"""Collects from this package's own source what it relies on in vLLM, with the signatures.

Seen: imports, attributes of what was imported, calls of it, base classes with all that a subclass
overrides or uses through `self`, `cls` and `super()`, attributes of parameters that are annotated
with a class of vLLM or a sequence of it (and of what they hold, as far as its annotations tell),
paths that are written as text, variables of core's environment, assignments to names of vLLM, and
the tables by which names are rebound. Not seen: attributes of objects whose class only the running
program knows; the engine tests are for those.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from vllm_ascend_mrv2.compat import wrappers
from vllm_ascend_mrv2.compat.contract.check import (
    PACKAGE,
    Reliance,
    call_fits,
    caller_signature,
    ways_in,
)
from vllm_ascend_mrv2.compat.contract.source import (
    ELEMENT,
    RESULT,
    CoreSource,
    Function,
    dotted,
    element,
    kept_arguments,
    parsed,
    shown,
    signature,
    targets,
    without_first,
)

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_STAR_CALL = "(*_)"  # a call whose arguments are not written out


class CollectError(ValueError):
    """This package relies on a name that the reference core does not have."""


@dataclass(frozen=True)
class Target:
    """A dotted path into a module, of vLLM or of this package.

    instance_of: how much of the path is a class of which the rest is read from an instance; 0 where
    nothing is. What an instance has may be another library's, and then is not relied on in vLLM.
    """

    module: str
    path: tuple[str, ...] = ()
    instance_of: int = 0

    def then(self, *names: str) -> Target:
        return replace(self, path=(*self.path, *names))

    @property
    def of_call(self) -> Target:
        """What a call of it returns."""
        return replace(self.then(RESULT), instance_of=self.instance_of or len(self.path))

    @property
    def instance(self) -> Target:
        """An instance of the class that the path names."""
        return replace(self, instance_of=len(self.path))


# Parameters of ours that hold an object of vLLM and are annotated as Any, since importing its class
# where they are used would import the device.
HELD = {"runner": Target("vllm.v1.worker.gpu.model_runner", ("GPUModelRunner",)).instance}

# Functions of `support` that take a path in a VllmConfig as text, and which argument that is.
_READS_A_PATH = {"_path": 1, "_given": 0, "_more_than_one": 0}
_CONFIG = Target("vllm.config", ("VllmConfig",)).instance
_CORES_VARIABLE = re.compile(r"VLLM_(?!ASCEND_MRV2_)[A-Z0-9_]+")
_OF_THE_BUILD = {"VLLM_TARGET_DEVICE", "VLLM_VERSION_OVERRIDE"}  # read by core's setup.py
_LOOPS = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp


@dataclass(frozen=True)
class Use:
    """One use as the source has it, before the reference core was asked what the name is."""

    target: Target
    use: str
    expects: str
    by: str


class OwnModule:
    """One module of this package: its imports by scope, classes and constants."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path = path
        self.by = f"{PACKAGE}/{path.relative_to(root).as_posix()}"
        self.tree = ast.parse(path.read_text(encoding="utf-8"))

    @cached_property
    def functions(self) -> dict[str, Function]:
        """Every function of the module by name, nested ones too; the first of a name."""
        found: dict[str, Function] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, _FUNCTIONS):
                found.setdefault(node.name, node)
        return found

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        return {n.name: n for n in self.tree.body if isinstance(n, ast.ClassDef)}

    @cached_property
    def imports(self) -> dict[str, Target]:
        """What top-level names are, of those that come from vLLM and from this package."""
        found: dict[str, Target] = {}
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom) and _is_known(node.module or ""):
                for alias in node.names:
                    found[alias.asname or alias.name] = Target(node.module or "", (alias.name,))
        return found

    @cached_property
    def constants(self) -> dict[str, Any]:
        """Top-level names whose value is written out: strings, tuples, dicts."""
        found: dict[str, Any] = {}
        for node in self.tree.body:
            value = getattr(node, "value", None)
            for target in targets(node):
                if isinstance(target, ast.Name) and value is not None:
                    folded = fold(value, found)
                    if folded is not None:
                        found[target.id] = folded
        return found

    def shown_signature(self, name: str) -> str:
        """Of a function or of a class's constructor, "" where it has none of its own."""
        if name in self.classes:
            own = {n.name: n for n in self.classes[name].body if isinstance(n, _FUNCTIONS)}
            init = own.get("__init__")
            return shown(without_first(signature(init))) if init else ""
        return shown(signature(self.functions[name])) if name in self.functions else ""


def _is_known(module: str) -> bool:
    """Whether it is vLLM's or ours."""
    return module.partition(".")[0] in ("vllm", PACKAGE)


def fold(node: ast.AST, names: Mapping[str, Any]) -> Any:
    """The value of a literal with f-strings and names of constants in it, or None."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.JoinedStr):
        inner = (p.value if isinstance(p, ast.FormattedValue) else p for p in node.values)
        parts = [fold(part, names) for part in inner]
        return "".join(parts) if all(isinstance(part, str) for part in parts) else None
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(fold(element, names) for element in node.elts)
    if isinstance(node, ast.Dict):
        keys = [fold(key, names) for key in node.keys if key is not None]
        return dict(zip(keys, (fold(value, names) for value in node.values), strict=True))
    return None


class _Uses(ast.NodeVisitor):
    """Walks one module with its scopes. Results are in `uses`."""

    def __init__(
        self,
        module: OwnModule,
        package: Package,
        extra_bases: Mapping[str, list[Target]] | None = None,
        stand_ins: Mapping[str, Target] | None = None,
    ) -> None:
        """extra_bases: of classes that are mixed in. stand_ins: functions that stand for methods of
        vLLM, and the instance that their first parameter is."""
        self.module = module
        self.package = package
        self.extra_bases = extra_bases or {}
        self.stand_ins = stand_ins or {}
        self.uses: list[Use] = []
        self._own_values: dict[str, dict[str, Target]] = {}
        # What names hold; `name[]`: what the elements of that sequence are.
        self.scopes: list[dict[str, Target]] = [{}]
        self.owners: list[str] = []  # classes around the node
        self.done: set[ast.AST] = set()  # inner parts of a chain that was recorded as a whole

    # -- names

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.partition(".")[0] == "vllm":
                self.add(Target(alias.name))
                if alias.asname:
                    self.scopes[-1][alias.asname] = Target(alias.name)
                else:
                    self.scopes[-1]["vllm"] = Target("vllm")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if _is_known(module):
            for alias in node.names:
                target = Target(module, (alias.name,))
                self.scopes[-1][alias.asname or alias.name] = target
                self.add(target)

    def resolve(self, node: ast.AST) -> list[Target]:
        """What a chain of attributes is, by import, `self`, `super()` or what a name holds."""
        path = dotted(node) if not isinstance(node, ast.Subscript) else ()
        if not path:
            return self._through_super(node)
        if len(path) > 1 and path[0] in ("self", "cls") and path[1] not in HELD:
            if self.owners and (held := self.own_values(self.owners[-1]).get(path[1])):
                return [held.then(*path[2:])]
            if self.owners and path[1] not in self.own_methods(self.owners[-1]):
                return [base.then(*path[1:]) for base in self.core_bases(self.owners[-1])]
            return []
        if path[0] == "self":
            path = path[1:]
        for scope in reversed(self.scopes):
            if path and path[0] in scope:
                return [scope[path[0]].then(*path[1:])]
        return [HELD[path[0]].then(*path[1:])] if path and path[0] in HELD else []

    def _through_super(self, node: ast.AST) -> list[Target]:
        owner = node.value if isinstance(node, ast.Attribute) else None
        if not self.owners or not isinstance(owner, ast.Call) or dotted(owner.func) != ("super",):
            return []
        assert isinstance(node, ast.Attribute)
        return [base.then(node.attr) for base in self.core_bases(self.owners[-1])]

    def add(self, target: Target, use: str = "name", expects: str = "") -> None:
        if target.module.partition(".")[0] == "vllm":
            self.uses.append(Use(target, use, expects, self.module.by))

    # -- expressions

    def visit_Constant(self, node: ast.Constant) -> None:
        """The name of a variable of core's environment."""
        if (
            isinstance(node.value, str)
            and _CORES_VARIABLE.fullmatch(node.value)
            and node.value not in _OF_THE_BUILD
        ):
            self.add(Target("vllm.envs", (node.value,)))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._chain(node, "name", "")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        self._chain(node.func, "call", _call_shape(node))
        self.generic_visit(node)

    def _chain(self, node: ast.AST, use: str, expects: str) -> None:
        if node in self.done:
            return
        self.done.add(node)
        found = self.resolve(node)
        for target in found:
            self.add(target, use, "" if expects == _STAR_CALL else expects)
        while found and isinstance(node, ast.Attribute):  # its inner parts are in the whole
            node = node.value
            self.done.add(node)

    # -- classes and functions

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for expression in node.bases:
            self.visit(expression)
        self.owners.append(node.name)
        self.scopes.append({})
        for base in self.core_bases(node.name):
            own = " ".join(sorted(self.own_members(node.name)))
            self.add(replace(base, instance_of=0), "subclass", own)
            for line in node.body:
                if isinstance(line, _FUNCTIONS):
                    ours = shown(signature(line))
                    self.add(base.then(line.name), "override", ours)
                for target in targets(line):
                    if isinstance(target, ast.Name):
                        self.add(base.then(target.id), "override")
        for line in node.body:
            self.visit(line)
        self.scopes.pop()
        self.owners.pop()

    def visit_FunctionDef(self, node: Function) -> None:
        if any(dotted(decorator)[-1:] == ("serves",) for decorator in node.decorator_list):
            return  # for other cores than the reference: see compat/differences.py
        held: dict[str, Target] = {}
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            if (found := self._annotated(argument.annotation)) is not None:
                held[argument.arg] = found
            elif (found := self._annotated(element(argument.annotation))) is not None:
                held[argument.arg + ELEMENT] = found
        if len(self.scopes) == 1 and node.name in self.stand_ins:
            held[node.args.args[0].arg] = self.stand_ins[node.name]
        self.scopes.append(held)
        self.generic_visit(node)
        self.scopes.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def _annotated(self, annotation: ast.expr | None) -> Target | None:
        """An instance of the class of vLLM that an annotation of ours names, or None."""
        path = dotted(_not_none(annotation))
        found = self.scopes[0].get(path[0]) if path else None
        if found is None or found.module.partition(".")[0] != "vllm":
            return None
        return found.then(*path[1:]).instance

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if isinstance(node.target, ast.Name) and len(self.scopes) > 1:
            self.scopes[-1].pop(node.target.id, None)
            if (found := self._annotated(node.annotation)) is not None:
                self.scopes[-1][node.target.id] = found
        self.generic_visit(node)

    # -- loops

    def _iterate(self, target: ast.expr, over: ast.expr) -> None:
        """Remember what a loop's name holds, where it goes over a sequence of known elements."""
        if not isinstance(target, ast.Name):
            return
        self.scopes[-1].pop(target.id, None)
        name = over.id + ELEMENT if isinstance(over, ast.Name) else ""
        known = [scope[name] for scope in self.scopes if name in scope]
        found = known[-1:] or [t.then(ELEMENT) for t in self.resolve(over) if t.instance_of]
        if len(found) == 1:
            self.scopes[-1][target.id] = found[0]

    def visit_For(self, node: ast.For) -> None:
        self._iterate(node.target, node.iter)
        self.generic_visit(node)

    def _visit_comprehension(self, node: _LOOPS) -> None:
        self.scopes.append({})
        for generator in node.generators:
            self._iterate(generator.target, generator.iter)
        self.generic_visit(node)
        self.scopes.pop()

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _visit_comprehension  # noqa: N815

    def own_classes(self, name: str) -> Iterator[tuple[OwnModule, ast.ClassDef]]:
        """A class of this module and those of this package that it derives from, with theirs."""
        return self.package.lineage(self.module, name)

    def core_bases(self, name: str) -> list[Target]:
        """The classes of vLLM that a class of this module derives from, over others of ours too."""
        found: list[Target] = []
        for module, node in self.own_classes(name):
            if module is self.module:
                found += self.extra_bases.get(node.name, ())
            for base in node.bases:
                path = dotted(base)
                target = module.imports.get(path[0]) if path else None
                if target is not None and target.module.partition(".")[0] == "vllm":
                    found.append(target.then(*path[1:]).instance)
        return found

    def own_values(self, name: str) -> dict[str, Target]:
        """What instances of a class of this module hold of vLLM's, as far as annotations tell: of
        the class's body, and of arguments that its methods keep."""
        if (known := self._own_values.get(name)) is not None:
            return known
        found: dict[str, Target] = {}
        lines = (n for m, owner in self.own_classes(name) if m is self.module for n in owner.body)
        for line in lines:
            annotated: Iterable[tuple[str, ast.expr | None]] = ()
            if isinstance(line, _FUNCTIONS):
                annotated = kept_arguments(line)
            elif isinstance(line, ast.AnnAssign):
                annotated = [(".".join(dotted(line.target)), line.annotation)]
            for attribute, annotation in annotated:
                if (target := self._annotated(annotation)) is not None:
                    found.setdefault(attribute, target)
        self._own_values[name] = found
        return found

    def own_methods(self, name: str) -> set[str]:
        """The methods of a class of this module and of those of ours that it derives from."""
        return {
            line.name
            for _, node in self.own_classes(name)
            for line in node.body
            if isinstance(line, _FUNCTIONS)
        }

    def own_members(self, name: str) -> set[str]:
        """The same with what is assigned in the classes' bodies."""
        bound = {
            target.id
            for _, node in self.own_classes(name)
            for line in node.body
            for target in targets(line)
            if isinstance(target, ast.Name)
        }
        return self.own_methods(name) | bound

    # -- rebinding by assignment

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Attribute):
                for bound in self.resolve(target):
                    if not bound.instance_of:
                        self.add(bound, "rebind", self._replacement(node.value))
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            for local, value in pairs:
                self._hold(local, value)
        self.generic_visit(node)

    def _replacement(self, value: ast.expr) -> str:
        """The signature of the function of this module that is assigned, "" if it is none."""
        if isinstance(value, ast.Call) and value.args:  # staticmethod(f)
            value = value.args[0]
        name = dotted(value)
        ours = self.module.functions.get(name[0]) if len(name) == 1 else None
        return shown(signature(ours)) if ours else ""

    def _hold(self, local: ast.expr, value: ast.expr) -> None:
        """Remember a local name for what an instance holds (`states = runner.req_states`) or a call
        returns (`group = get_dp_group()`)."""
        if isinstance(local, ast.Name):
            self.scopes[-1].pop(local.id, None)
            found = self.resolve(value)
            if isinstance(value, ast.Call):
                found = [t.of_call for t in self.resolve(value.func)]
            if len(found) == 1 and found[0].instance_of:
                self.scopes[-1][local.id] = found[0]


def _not_none(annotation: ast.expr | None) -> ast.expr | None:
    """`X` of `X | None`; nothing of containers and of other unions."""
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.right, ast.Constant):
        annotation = annotation.left
    return None if isinstance(annotation, ast.Subscript | ast.BinOp) else annotation


def _call_shape(node: ast.Call) -> str:
    """`(_, _, name=_)`, or `(*_)` where arguments are unpacked."""
    unpacked = [a for a in node.args if isinstance(a, ast.Starred)]
    if unpacked or any(keyword.arg is None for keyword in node.keywords):
        return _STAR_CALL
    parts = ["_"] * len(node.args) + [f"{keyword.arg}=_" for keyword in node.keywords]
    return f"({', '.join(parts)})"


# -- tables of names ---------------------------------------------------------------------------


class Package:
    """All modules of this package, by name."""

    def __init__(self, root: Path) -> None:
        """root: the folder of the package."""
        paths = sorted(p for p in root.rglob("*.py") if "_csrc" not in p.parts)
        self.modules = {self._name(path, root): OwnModule(path, root) for path in paths}

    @staticmethod
    def _name(path: Path, root: Path) -> str:
        parts = path.relative_to(root).with_suffix("").parts
        return ".".join((PACKAGE, *(part for part in parts if part != "__init__")))

    def __getitem__(self, name: str) -> OwnModule:
        return self.modules[f"{PACKAGE}.{name}"]

    def uses(self) -> Iterator[Use]:
        """Every use, as often as it is made."""
        stand_ins = self.stand_ins()
        for name, module in self.modules.items():
            extra = {"_FusedRotary": self.rotary_classes()} if "rotary" in name else {}
            visitor = _Uses(module, self, extra, stand_ins.get(name))
            visitor.visit(module.tree)
            yield from visitor.uses
        yield from self.tables()

    def lineage(self, module: OwnModule, name: str) -> Iterator[tuple[OwnModule, ast.ClassDef]]:
        """A class of one of our modules, then all of ours that it derives from, in any of them."""
        if (node := module.classes.get(name)) is None:
            return
        yield module, node
        for base in node.bases:
            path = dotted(base)
            target = module.imports.get(path[0]) if path else None
            if target is not None and (own := self._own(target.then(*path[1:]))) is not None:
                yield from self.lineage(self.modules[own[0]], own[1])
            elif len(path) == 1 and path[0] != name:
                yield from self.lineage(module, path[0])

    def stand_ins(self) -> dict[str, dict[str, Target]]:
        """Module of ours -> function in it -> the instance of vLLM that it gets first.

        Those that the table of rebindings binds to a method.
        """
        found: dict[str, dict[str, Target]] = defaultdict(dict)
        for key, ours in self._dict_of_function("kernels", "rebindings"):
            module, is_member, name = key.partition(":")
            if is_member and ours is not None and (own := self._own(ours)) is not None:
                owner = tuple(name.split(".")[:-1])
                found[own[0]][own[1]] = Target(module, owner).instance
        return found

    def rotary_classes(self) -> list[Target]:
        constants = self["layers.rotary_embedding"].constants
        return [
            Target(f"{constants['_PACKAGE']}.{module}", (name,)).instance
            for name, module in constants["_CLASSES"].items()
        ]

    def tables(self) -> Iterator[Use]:
        """Names of vLLM that stand in tables, as strings."""
        by = self["compat.torch_cuda"].by
        for module in self["compat.torch_cuda"].constants["MODULES"]:
            yield Use(Target(module, ("torch",)), "rebind", "", by)
        gates = self["compat.triton_gate"]
        for gate in ("_CONFIG_GATE", "_NGRAM_GATE"):
            yield Use(Target(gates.constants[gate], ("HAS_TRITON",)), "rebind", "", gates.by)
        parameters = self["compat.unknown_parameters"]
        for module, name, _, _ in parameters.constants["_REQUESTS"]:
            yield Use(Target(module, (name,)), "name", "", parameters.by)
            for method in parameters.constants["_METHODS"]:
                # A class may lack one of them.
                target = Target(module, (name,)).instance.then(method)
                yield Use(target, "rebind", "", parameters.by)
        for target in self.rotary_classes():
            yield Use(
                replace(target, instance_of=0), "name", "", self["layers.rotary_embedding"].by
            )
        runner_names = self["compat.runner_names"]
        for name, ours in self._dict_of_call("platform", "runner_names.install"):
            target = Target(runner_names.constants["_MODULE"], (name,))
            yield Use(target, "rebind", self._signature(ours), runner_names.by)
        yield from self._paths()
        yield from self._kernels()

    def _paths(self) -> Iterator[Use]:
        """What of a VllmConfig is read by a path that is written as text."""
        support = self["support"]
        for node in ast.walk(support.tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            place = _READS_A_PATH.get(node.func.id)
            if place is None:
                continue
            path = fold(node.args[place], support.constants)
            if isinstance(path, str):
                yield Use(_CONFIG.then(*path.split(".")), "name", "", support.by)
            elif dotted(node.args[place]) != ("path",):  # handed on by another of them
                raise CollectError(f"{support.by}:{node.lineno}: a path is not written out")

    def _kernels(self) -> Iterator[Use]:
        for name, ours in self._dict_of_function("kernels", "kernel_overrides"):
            own = self._own(ours) if ours is not None else None
            by = self.modules[own[0]].by if own else self["kernels"].by
            module, _, kernel = name.rpartition(".")
            yield Use(Target(module, (kernel,)), "rebind", self._signature(ours), by)
        replacements = dict(self._dict_of_function("kernels", "rebindings"))
        by = self["compat.wrappers"].by
        for rebinding in wrappers.REBINDINGS:
            for owner in (rebinding.owner, *rebinding.copies):
                module, _, attribute = owner.partition(":")
                path = (attribute,) if attribute else ()
                if rebinding.only_if_missing:
                    yield Use(Target(module, path), "name", "", by)
                else:
                    target = Target(module, (*path, rebinding.name))
                    yield Use(target, "rebind", self._signature(replacements[rebinding.key]), by)

    def _dict_of_function(self, module: str, function: str) -> Iterator[tuple[str, Target | None]]:
        """Key of each entry of the dict that a function returns, and what its value names."""
        node = self[module].functions[function]
        names = dict(self[module].constants)
        for line in node.body:
            for target in targets(line):
                if isinstance(target, ast.Name) and isinstance(line, ast.Assign):
                    names[target.id] = fold(line.value, names)
        (returned,) = (line.value for line in node.body if isinstance(line, ast.Return))
        assert isinstance(returned, ast.Dict)
        yield from self._entries(self[module], node, returned, names)

    def _dict_of_call(self, module: str, function: str) -> Iterator[tuple[str, Target | None]]:
        """The same of the dict that a function of another module is called with."""
        for scope in ast.walk(self[module].tree):
            if isinstance(scope, _FUNCTIONS):
                for node in ast.walk(scope):
                    if isinstance(node, ast.Call) and ".".join(dotted(node.func)) == function:
                        (argument,) = node.args
                        assert isinstance(argument, ast.Dict)
                        yield from self._entries(self[module], scope, argument, {})

    def _entries(
        self, module: OwnModule, scope: Function, node: ast.Dict, names: Mapping[str, Any]
    ) -> Iterator[tuple[str, Target | None]]:
        visitor = _Uses(module, self)
        for line in (*module.tree.body, *scope.body):
            if isinstance(line, ast.ImportFrom):
                visitor.visit_ImportFrom(line)
        for key, value in zip(node.keys, node.values, strict=True):
            name = fold(key, names) if key is not None else None
            if not isinstance(name, str):
                raise CollectError(f"{module.by}: a key of a table of names is not written out")
            found = visitor.resolve(value)
            yield name, found[0] if found else None

    def _own(self, target: Target) -> tuple[str, str] | None:
        """Module of ours and the name in it, None for what is not ours."""
        for cut in range(len(target.path)):
            name = ".".join((target.module, *target.path[:cut]))
            if name in self.modules and len(target.path) == cut + 1:
                return name, target.path[cut]
        return None

    def _signature(self, target: Target | None) -> str:
        """Of something of ours, "" where it is not ours."""
        own = self._own(target) if target is not None else None
        return self.modules[own[0]].shown_signature(own[1]) if own else ""


def collect(package: Path, core: CoreSource) -> list[Reliance]:
    """The contract of the package in that folder, with the reference core to say what names are.

    Raises CollectError for a name that the reference does not have.
    """
    found: dict[Reliance, set[str]] = defaultdict(set)
    for use in Package(package).uses():
        if (target := _canonical(core, use)) is not None:
            # Of an attribute of a value only the value is relied on, by name: see _canonical.
            is_whole = target == _submodules(core, use.target)
            found[_reliance(core, target, use, is_whole)].add(use.by)
    by_symbol: dict[str, list[Reliance]] = defaultdict(list)
    for reliance, by in found.items():
        by_symbol[reliance.symbol].append(replace(reliance, by=tuple(sorted(by))))
    return sorted(kept for uses in by_symbol.values() for kept in _without_weaker(uses))


def _reliance(core: CoreSource, target: Target, use: Use, is_whole: bool) -> Reliance:
    """With the ways by which ours takes what the reference's takes; `by` is left empty."""
    what = core.resolve(target.module, target.path)
    assert what is not None
    symbol = f"{target.module}:{'.'.join(target.path)}" if target.path else target.module
    if not is_whole:
        return Reliance(symbol, "name", what.kind, "", (), (), what.owner)
    made = Reliance(symbol, use.use, what.kind, use.expects, (), (), what.owner)
    if use.use == "subclass":
        own = set(use.expects.split())
        if core.abstract_names(what) - own:  # ours is abstract too: a base of others of ours
            return replace(made, use="name", expects="")
        # A private name that the reference's class does not have is no business between the two; a
        # public one may be what another core's asks for.
        kept = (
            name
            for name in sorted(own)
            if not name.startswith("_") or core.resolve(target.module, (*target.path, name))
        )
        return replace(made, expects=" ".join(kept))
    theirs = caller_signature(core, made, what)
    if not use.expects or theirs is None:
        return replace(made, expects="")
    if use.use == "call":
        if not call_fits(theirs, use.expects):
            raise CollectError(f"{use.by} calls {symbol}{use.expects}; it is {shown(theirs)}")
        return made
    ways = ways_in(parsed(use.expects), theirs)
    if not ways:
        raise CollectError(f"{use.by}: {use.expects} cannot stand for {symbol}{shown(theirs)}")
    return replace(made, ways=ways)


def _without_weaker(uses: list[Reliance]) -> list[Reliance]:
    """The uses of one symbol without those that ask no more than another: by name, bare calls."""
    strict = [use for use in uses if use.expects]
    if strict:
        return strict
    named = [use for use in uses if use.use != "name"]
    return named or uses


def _submodules(core: CoreSource, target: Target) -> Target:
    """The same with as much of the path as is modules in the module's name."""
    while target.path and core.module(f"{target.module}.{target.path[0]}") is not None:
        package = core.module(target.module)
        if package is not None and target.path[0] in package.bindings:
            break
        target = Target(
            f"{target.module}.{target.path[0]}", target.path[1:], max(0, target.instance_of - 1)
        )
    return target


def _canonical(core: CoreSource, use: Use) -> Target | None:
    """The longest front of the path that the reference core has; None for what is not vLLM's."""
    target = _submodules(core, use.target)
    for length in range(len(target.path), -1, -1):
        if target.path[:length][-1:] in ((ELEMENT,), (RESULT,)):
            continue
        found = core.resolve(target.module, target.path[:length])
        if found is None or found.kind == "unknown":
            continue
        if target.instance_of:
            return (
                replace(target, path=target.path[:length]) if length > target.instance_of else None
            )
        if length or not target.path:
            return replace(target, path=target.path[:length])
    raise CollectError(
        f"{use.by} relies on {use.target.module}:{'.'.join(use.target.path)}, which the reference "
        "core does not have"
    )
