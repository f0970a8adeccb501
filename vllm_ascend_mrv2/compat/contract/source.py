# SPDX-License-Identifier: Apache-2.0
"""A core as source text: finds what a name is, and its signature, without importing anything.

Follows imports between modules of vLLM, base classes, and attributes that methods set on `self`.
What comes from outside of vLLM (torch, pydantic) is not looked into.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, Literal

Kind = Literal["module", "class", "function", "property", "value", "unknown"]
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef
_DEFINITION = re.compile(r"^\s*(?:def|class) (\w+)", re.MULTILINE)
# Annotations around a class that say nothing of what an instance has.
_TRANSPARENT = (("ClassVar",), ("Optional",), ("SkipValidation",))
_SEQUENCES = {"Sequence", "Iterable", "list", "List", "tuple", "Tuple"}
# In a path: any element of the sequence before it, and what a call of it returns.
ELEMENT, RESULT = "[]", "()"


@dataclass(frozen=True)
class Found:
    """What a name is. module: where it is defined; node: its definition, None for a module.

    owner: the class that defines it, "" where that is none. "unknown": an attribute of a value
    whose class the source does not tell.
    """

    kind: Kind
    module: str
    node: ast.AST | None = None
    owner: str = ""

    @property
    def is_static(self) -> bool:
        """Whether it is a function that gets no first argument of its own: a staticmethod."""
        return "staticmethod" in decorators(self.node)

    @property
    def is_classmethod(self) -> bool:
        return "classmethod" in decorators(self.node)


def decorators(node: ast.AST | None) -> set[str]:
    """Last names of a definition's decorators: `functools.cache` and `cache` are the same here."""
    names = set()
    for decorator in getattr(node, "decorator_list", ()):
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        names.add(target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", ""))
    return names


def statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module or class, those in its if, try and with blocks included."""
    for node in body:
        yield node
        for block in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With):
                yield from statements(getattr(node, block, ()))
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                yield from statements(handler.body)


def dotted(node: ast.AST | None) -> tuple[str, ...]:
    """`a.b.c` as ("a", "b", "c"); subscripts are dropped; empty for any other expression."""
    if isinstance(node, ast.Subscript):
        return dotted(node.value)
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute) and (front := dotted(node.value)):
        return (*front, node.attr)
    return ()


def element(annotation: ast.expr | None) -> ast.expr | None:
    """`X` of `Sequence[X]`, `list[X]` or `tuple[X, ...]`; None of anything else."""
    if not isinstance(annotation, ast.Subscript) or dotted(annotation)[-1:][0] not in _SEQUENCES:
        return None
    inner = annotation.slice
    return inner.elts[0] if isinstance(inner, ast.Tuple) else inner


def targets(node: ast.AST) -> list[ast.expr]:
    """What an assignment binds, tuples taken apart; an item (`x[0] = ...`) is no binding of x."""
    if isinstance(node, ast.Assign):
        found = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        found = [node.target]
    else:
        return []
    flat: list[ast.expr] = []
    for target in found:
        flat += target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    return [target for target in flat if not isinstance(target, ast.Subscript)]


def argument_annotation(method: Function, value: ast.AST | None) -> ast.expr | None:
    """Of the argument that `value` is; None where it is none, or has no annotation."""
    name = dotted(value)
    arguments = (*method.args.args, *method.args.kwonlyargs)
    return next((a.annotation for a in arguments if name == (a.arg,)), None)


def set_on_self(method: Function) -> Iterator[tuple[str, ast.AST]]:
    """Each name that a method binds on `self`, and the statement that does."""
    for node in ast.walk(method):
        for target in targets(node):
            if dotted(target)[:1] == ("self",) and len(dotted(target)) == 2:
                yield dotted(target)[1], node


def kept_arguments(method: Function) -> Iterator[tuple[str, ast.expr | None]]:
    """Each `self.NAME = ARGUMENT` of a method: the name, and the argument's annotation."""
    for name, node in set_on_self(method):
        if isinstance(node, ast.Assign):
            yield name, argument_annotation(method, node.value)


def signature(node: Function) -> Signature:
    """A definition's signature; every default is `...`, annotations are left out."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    first_default = len(positional) - len(arguments.defaults)
    parameters = [
        Parameter(
            arg.arg,
            Parameter.POSITIONAL_ONLY
            if index < len(arguments.posonlyargs)
            else Parameter.POSITIONAL_OR_KEYWORD,
            default=... if index >= first_default else Parameter.empty,
        )
        for index, arg in enumerate(positional)
    ]
    if arguments.vararg:
        parameters.append(Parameter(arguments.vararg.arg, Parameter.VAR_POSITIONAL))
    for arg, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parameters.append(
            Parameter(
                arg.arg, Parameter.KEYWORD_ONLY, default=Parameter.empty if default is None else ...
            )
        )
    if arguments.kwarg:
        parameters.append(Parameter(arguments.kwarg.arg, Parameter.VAR_KEYWORD))
    return Signature(parameters)


def without_first(found: Signature) -> Signature:
    """The signature as a caller of the bound method sees it."""
    return found.replace(parameters=list(found.parameters.values())[1:])


def shown(found: Signature) -> str:
    """As text that `parsed` reads: `(self, x, y=...)`."""
    return str(found).replace("Ellipsis", "...")


def parsed(text: str) -> Signature:
    """The signature that `shown` made."""
    (node,) = ast.parse(f"def _{text}: ...").body
    assert isinstance(node, ast.FunctionDef)
    return signature(node)


class Module:
    """One module: its top-level bindings, and its lazy names if it has a `__getattr__`."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.is_package = path.name == "__init__.py"
        self.tree = ast.parse(path.read_text(encoding="utf-8"))

    @cached_property
    def bindings(self) -> dict[str, ast.AST]:
        """Name -> what binds it; a definition is preferred to an assignment or an import."""
        found: dict[str, ast.AST] = {}
        for node in statements(self.tree.body):
            if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
                found[node.name] = node
            elif isinstance(node, ast.Import | ast.ImportFrom):
                for alias in node.names:
                    found.setdefault(alias.asname or alias.name.partition(".")[0], node)
            for target in targets(node):
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, node)
        return found

    @cached_property
    def lazy_names(self) -> frozenset[str]:
        """Strings of a module with a `__getattr__`: the names that it may answer to."""
        if not isinstance(self.bindings.get("__getattr__"), _FUNCTIONS):
            return frozenset()
        constants = (n.value for n in ast.walk(self.tree) if isinstance(n, ast.Constant))
        return frozenset(value for value in constants if isinstance(value, str))

    def imported_from(self, node: ast.ImportFrom) -> str:
        """The absolute name of the module that an import of this module names."""
        if node.level == 0:
            return node.module or ""
        parts = self.name.split(".")
        kept = parts[: len(parts) - node.level + (1 if self.is_package else 0)]
        return ".".join([*kept, *([node.module] if node.module else [])])


class CoreSource:
    """The package `vllm` in a folder (a checkout, an unpacked archive, or site-packages)."""

    def __init__(self, folder: Path) -> None:
        """folder: holds `vllm/`. Raises FileNotFoundError where it does not."""
        self.folder = folder
        if not (folder / "vllm" / "__init__.py").is_file():
            raise FileNotFoundError(f"{folder} holds no vllm/__init__.py")
        self._modules: dict[str, Module | None] = {}

    @cached_property
    def version(self) -> str:
        """As the core's own `_version.py` has it, "" where it has none."""
        path = self.folder / "vllm" / "_version.py"
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        found = re.search(r"^__version__\b.*= '([^']+)'", text, re.MULTILINE)
        return found[1] if found else ""

    def module(self, name: str) -> Module | None:
        """The module of that absolute name, or None where there is none."""
        if name not in self._modules:
            base = self.folder.joinpath(*name.split("."))
            files = (base / "__init__.py", base.with_suffix(".py"))
            path = next((file for file in files if file.is_file()), None)
            self._modules[name] = None if path is None else Module(name, path)
        return self._modules[name]

    def resolve(
        self, module_name: str, path: tuple[str, ...], _seen: frozenset[object] = frozenset()
    ) -> Found | None:
        """What `path` is in a module, or None where the core has no such name.

        The module itself for an empty path. Looks into values whose class the source tells.
        """
        module = self.module(module_name)
        if module is None or (module_name, path) in _seen:
            return None
        if not path:
            return Found("module", module_name)
        seen = _seen | {(module_name, path)}
        name, rest = path[0], path[1:]
        node = module.bindings.get(name)
        if isinstance(node, ast.ImportFrom):
            source = module.imported_from(node)
            if source.partition(".")[0] != "vllm":
                return Found("value", source) if not rest else None
            original = next(a.name for a in node.names if (a.asname or a.name) == name)
            return self.resolve(source, (original, *rest), seen)
        if isinstance(node, ast.Import):
            return Found("value", module_name, node) if not rest else None
        if isinstance(node, ast.ClassDef):
            rest = rest[1:] if rest[:1] == (RESULT,) else rest
            return self.member(module_name, node, rest) if rest else self._of(module_name, node)
        if node is not None:
            alias = dotted(node.value) if isinstance(node, ast.Assign) else ()
            if rest and alias and alias[0] in module.bindings:
                return self.resolve(module_name, (*alias, *rest), seen)
            return self._within(module_name, node, rest) if rest else self._of(module_name, node)
        if self.module(f"{module_name}.{name}") is not None:
            return self.resolve(f"{module_name}.{name}", rest, seen)
        if name in module.lazy_names and not rest:
            return Found("value", module_name)
        for star in statements(module.tree.body):
            if isinstance(star, ast.ImportFrom) and star.names[0].name == "*":
                source = module.imported_from(star)
                if found := self.resolve(source, path, seen):
                    return found
        return None

    def _of(self, module_name: str, node: ast.AST, owner: str = "") -> Found:
        kind: Kind = "value"
        if isinstance(node, ast.ClassDef):
            kind = "class"
        elif isinstance(node, _FUNCTIONS):
            is_property = decorators(node) & {"property", "cached_property"}
            kind = "property" if is_property else "function"
        return Found(kind, module_name, node, owner)

    def bases(self, module_name: str, node: ast.ClassDef) -> Iterator[Found]:
        """The base classes that are vLLM's own."""
        for base in node.bases:
            path = dotted(base)
            found = self.resolve(module_name, path) if path else None
            if found is not None and found.kind == "class" and found.node is not node:
                yield found

    def member(self, module_name: str, node: ast.ClassDef, path: tuple[str, ...]) -> Found | None:
        """What a class has under a name, its own or of a base that is vLLM's, or None."""
        name, rest = path[0], path[1:]
        own = _members(node).get(name)
        if own is not None:
            if not rest:
                return self._of(module_name, own, node.name)
            if isinstance(own, ast.ClassDef):
                return self.member(module_name, own, rest)
            return self._within(module_name, own, rest)
        for base in self.bases(module_name, node):
            assert isinstance(base.node, ast.ClassDef)
            if found := self.member(base.module, base.node, path):
                return found
        return None

    def abstract_names(self, of: Found) -> set[str]:
        """The methods that a class leaves to its subclasses, by `abstractmethod`."""
        assert isinstance(of.node, ast.ClassDef)
        found: set[str] = set()
        for owner in self._lineage(of.module, of.node):
            for name, node in _members(owner).items():
                (found.add if "abstractmethod" in decorators(node) else found.discard)(name)
        return found

    def _within(self, module_name: str, node: ast.AST, path: tuple[str, ...]) -> Found | None:
        """What an instance has under a name, by the class of the value that `node` binds."""
        if path[0] == ELEMENT:
            return self._annotated_has(module_name, element(self._annotation(node)), path[1:])
        if path[0] == RESULT and isinstance(node, _FUNCTIONS):
            return self._annotated_has(module_name, node.returns, path[1:])
        of = self.class_of(module_name, node)
        if of is None:
            return Found("unknown", module_name, node)
        assert isinstance(of.node, ast.ClassDef)
        return self.member(of.module, of.node, path)

    def _annotated_has(
        self, module_name: str, annotation: ast.expr | None, path: tuple[str, ...]
    ) -> Found | None:
        if path[:1] == (ELEMENT,):
            return self._annotated_has(module_name, element(annotation), path[1:])
        of = self.annotated(module_name, annotation)
        if of is None or not path:
            return Found("unknown", module_name, annotation)
        assert isinstance(of.node, ast.ClassDef)
        return self.member(of.module, of.node, path)

    def _annotation(self, node: ast.AST) -> ast.expr | None:
        """Of what is bound: its own, a property's, or that of the argument that it is."""
        if isinstance(node, ast.AnnAssign):
            return node.annotation
        if isinstance(node, _FUNCTIONS):
            return node.returns if self._of("", node).kind == "property" else None
        method: Function | None = getattr(node, "_method", None)
        if method is None or not isinstance(node, ast.Assign):
            return None
        return argument_annotation(method, node.value)

    def class_of(self, module_name: str, node: ast.AST) -> Found | None:
        """The class of vLLM that a bound value has: by its annotation, by that of the argument that
        it is, or by the call that makes it."""
        if (annotation := self._annotation(node)) is not None:
            return self.annotated(module_name, annotation)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            path = dotted(node.value.func)
            made = self.resolve(module_name, path) if path else None
            if made is not None and made.kind == "class":
                return made
            if made is not None and isinstance(made.node, _FUNCTIONS):
                return self.annotated(made.module, made.node.returns)
        return None

    def annotated(self, module_name: str, annotation: ast.expr | None) -> Found | None:
        """The class of vLLM that an annotation names, alone or as one that may be None."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = ast.parse(annotation.value, mode="eval").body
        if isinstance(annotation, ast.BinOp):
            left = self.annotated(module_name, annotation.left)
            return left or self.annotated(module_name, annotation.right)
        if isinstance(annotation, ast.Subscript) and dotted(annotation)[-1:] in _TRANSPARENT:
            return self.annotated(module_name, annotation.slice)
        path = dotted(annotation)
        found = self.resolve(module_name, path) if path else None
        return found if found is not None and found.kind == "class" else None

    def call_signature(self, found: Found) -> Signature | None:
        """How a caller may call it, or None where the source does not tell."""
        if found.kind == "function":
            assert isinstance(found.node, _FUNCTIONS)
            made = signature(found.node)
            return without_first(made) if found.is_classmethod else made
        if found.kind != "class":
            return None
        assert isinstance(found.node, ast.ClassDef)
        init = self.member(found.module, found.node, ("__init__",))
        if init is not None and isinstance(init.node, _FUNCTIONS):
            return without_first(signature(init.node))
        return self._dataclass_signature(found.module, found.node)

    def _dataclass_signature(self, module_name: str, node: ast.ClassDef) -> Signature | None:
        if "dataclass" not in decorators(node):
            return None
        fields: dict[str, ast.AnnAssign] = {}
        for owner in self._lineage(module_name, node):
            for line in statements(owner.body):
                if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name):
                    continue
                if dotted(line.annotation)[-1:] != ("ClassVar",):
                    fields[line.target.id] = line

        def made(kind: Any) -> Signature:
            return Signature(
                [
                    Parameter(name, kind, default=Parameter.empty if f.value is None else ...)
                    for name, f in fields.items()
                ]
            )

        try:
            return made(Parameter.POSITIONAL_OR_KEYWORD)
        except ValueError:  # a field without a default after one that has one: keywords only
            return made(Parameter.KEYWORD_ONLY)

    def _lineage(self, module_name: str, node: ast.ClassDef) -> Iterator[ast.ClassDef]:
        """The bases that are vLLM's, the farthest first, then the class."""
        for base in self.bases(module_name, node):
            assert isinstance(base.node, ast.ClassDef)
            yield from self._lineage(base.module, base.node)
        yield node

    @cached_property
    def defining_files(self) -> dict[str, list[str]]:
        """Name of a function or class -> files of the core that define one, in any scope."""
        found: dict[str, list[str]] = {}
        for path in sorted((self.folder / "vllm").rglob("*.py")):
            text = path.read_text(encoding="utf-8", errors="replace")
            for name in set(_DEFINITION.findall(text)):
                found.setdefault(name, []).append(path.relative_to(self.folder).as_posix())
        return found


def _members(node: ast.ClassDef) -> dict[str, ast.AST]:
    """Name -> definition in a class: its body's, then what its methods set on `self`."""
    cached: dict[str, ast.AST] | None = getattr(node, "_members", None)
    if cached is not None:
        return cached
    found: dict[str, ast.AST] = {}
    for line in statements(node.body):
        if isinstance(line, (*_FUNCTIONS, ast.ClassDef)):
            found[line.name] = line
        for target in targets(line):
            if isinstance(target, ast.Name):
                found.setdefault(target.id, line)
    for method in statements(node.body):
        if isinstance(method, _FUNCTIONS):
            for name, inner in set_on_self(method):
                inner._method = method  # type: ignore[attr-defined]
                found.setdefault(name, inner)
    node._members = found  # type: ignore[attr-defined]
    return found
