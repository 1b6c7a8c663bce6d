# SPDX-License-Identifier: Apache-2.0
"""The layout of the source: which way imports point, which class inherits from which, how long files are.

The tests read the source with `ast` and import nothing of it. Each list of exceptions may only become shorter: a test
also fails for an entry that is no longer needed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "andon"
FILES = sorted(SOURCE.rglob("*.py"))

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60

IN_CYCLES: set[str] = set()
"""Modules that import each other in a circle."""

MAY_LACK_METHODS: set[str] = set()
"""Public base classes that users subclass: only there may a method raise `NotImplementedError`."""

# -- the layers -------------------------------------------------------------------------------------------------------

_BELOW_MODELS = {"errors", "plain", "media", "messages", "core"}
_BELOW_SYNC = _BELOW_MODELS | {"models", "tools", "store"}
_BELOW_AGENT = _BELOW_SYNC | {"sync", "telemetry"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "plain": {"errors"},
    "media": {"errors", "plain"},
    "messages": {"errors", "plain", "media"},
    "core": {"errors", "plain", "messages"},
    "models": _BELOW_MODELS,
    "tools": _BELOW_MODELS,
    "store": _BELOW_MODELS,
    "sync": _BELOW_SYNC,
    "telemetry": _BELOW_SYNC | {"sync"},
    "agent": _BELOW_AGENT,
    "testing": _BELOW_AGENT | {"agent"},
    "scale": _BELOW_AGENT | {"agent"},
    "server": _BELOW_AGENT | {"andon", "agent", "testing", "scale"},
    "cli": _BELOW_AGENT | {"andon", "agent", "testing", "scale", "server"},
    "__main__": {"cli"},
    "run": {"core"},
    "surface": _BELOW_AGENT | {"agent"},
    "andon": {"surface"},  # the root itself
}
"""Each part of the package, lowest first, with the parts that it may import besides itself."""

CORE_LAYERS = {
    "data": "states events markers selection budget receipt records bounds store held",
    "mechanisms": "signal waiters event_log journal portal watchdog steps shielded session cord fork single_reader "
    "log_text jsonable source_lines process_name",
    "run": "run",
    "shared": "shared",
    "top": "runtime backend archive cancel_runs",
}
"""The layers of `core`, lowest first, with their modules; `run` and `shared` are folders.

A module imports its own layer and those below it. So `core/run` never imports `core/shared`.
"""


NOT_NAMED_IN_CORE = {"agent", "model", "provider", "postgres", "sql", "sqlite"}
"""What the core does not know. No name in its code has one of these words, but for the names below."""

MAY_BE_NAMED_IN_CORE = {"agent_id", "model_retry", "abandoned_threads", "abandoned_user_threads", "max_agent_runs"}
"""Public names: an agent's id is part of a session's key, an event tells of a retry, and the runtime has the limits."""

THREADS_OF_THE_CORE = {"threading", "call_soon_threadsafe"}
"""Above its mechanisms and beside the shared store, the core has no threads: it locks, and hands over to a loop."""


# -- reading the source -----------------------------------------------------------------------------------------------


def module_of(file: Path) -> str:
    """The name of a file's module, without `andon.`; the root is `andon`."""
    parts = list(file.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "andon"


@cache
def trees() -> dict[str, ast.Module]:
    """Every module's code. Not at the import: each of the workers imports this file, and few run its tests."""
    return {module_of(file): ast.parse(file.read_text("utf-8")) for file in FILES}


PACKAGES = {module_of(file) for file in FILES if file.name == "__init__.py"}


@dataclass(frozen=True)
class Imported:
    """One name that a module imports: `origin` is a module of ours, `attribute` a name in it, or None for all of it."""

    line: int
    bound: str
    origin: str
    attribute: str | None


def own_module(dotted: str) -> str | None:
    """`andon.core.run` → `core.run`; None for a module that is not ours."""
    if dotted == "andon":
        return "andon"
    name = dotted.removeprefix("andon.")
    return name if name != dotted and name in trees() else None


@cache
def imports_of(module: str) -> list[Imported]:
    """What a module imports of ours: at its top, under TYPE_CHECKING, in functions, and by `import_module`."""
    found = []
    for node in ast.walk(trees()[module]):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "andon":
                    origin = own_module(alias.name)
                    assert origin is not None, f"{module}:{node.lineno} imports {alias.name}, which is not there"
                    found.append(Imported(node.lineno, alias.asname or alias.name, origin, None))
        elif isinstance(node, ast.ImportFrom):
            found += list(_names_from(module, node))
        elif isinstance(node, ast.Call) and (origin := _imported_by_call(node)) is not None:
            found.append(Imported(node.lineno, "", origin, None))
    return found


def _imported_by_call(call: ast.Call) -> str | None:
    """The module of ours that `import_module("andon.…")` imports."""
    match call:
        case ast.Call(args=[ast.Constant(value=str(name)), *_]):
            called = ast.unparse(call.func).split(".")[-1]
            return own_module(name) if called in ("import_module", "__import__") else None
    return None


def _names_from(module: str, node: ast.ImportFrom) -> Iterator[Imported]:
    package = ("andon" if module == "andon" else f"andon.{module}").split(".")
    levels = node.level - 1 if module in PACKAGES else node.level
    above = package[: len(package) - levels] if node.level else []
    base = ".".join([*above, *([node.module] if node.module else [])])
    if base.split(".")[0] != "andon":
        return
    for alias in node.names:
        submodule, origin = own_module(f"{base}.{alias.name}"), own_module(base)
        bound = alias.asname or alias.name
        if submodule is not None:  # `from package import submodule` needs the submodule, not what the package defines
            yield Imported(node.lineno, bound, submodule, None)
        else:
            assert origin is not None, f"{module}:{node.lineno} imports {base}, which is not there"
            yield Imported(node.lineno, bound, origin, alias.name)


def place(module: str, line: int = 1) -> str:
    return f"{module}:{line}"


# -- lengths ----------------------------------------------------------------------------------------------------------


def test_files_are_short() -> None:
    lines = {module_of(file): len(file.read_text("utf-8").splitlines()) for file in FILES}
    assert not {module: count for module, count in lines.items() if count > MAX_FILE_LINES}


def test_functions_are_short() -> None:
    long = []
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    long.append(f"{place(module, node.lineno)} {node.name} has {lines} lines")
    assert not long, "\n".join(long)


# -- imports ----------------------------------------------------------------------------------------------------------


def part_of(module: str) -> str:
    """The part of the package: `core.signal` → `core`."""
    return module.split(".")[0]


def test_every_part_has_its_place_in_the_order() -> None:
    assert {part_of(module) for module in trees()} == set(MAY_IMPORT)


def test_imports_point_one_way() -> None:
    wrong = [
        f"{place(module, each.line)} imports {each.origin}"
        for module in trees()
        for each in imports_of(module)
        if part_of(each.origin) not in MAY_IMPORT[part_of(module)] | {part_of(module)}
    ]
    assert not wrong, "\n".join(wrong)


LAYERS = [(name, modules.split()) for name, modules in CORE_LAYERS.items()]


def layer_of(module: str) -> int | None:
    """The number of a core module's layer. The package `core` itself has none."""
    names = module.split(".")
    if names[0] != "core" or len(names) == 1:
        return None
    numbers = [number for number, (_, modules) in enumerate(LAYERS) if names[1] in modules]
    assert numbers, f"{module} has no layer: enter it in CORE_LAYERS"
    return numbers[0]


def test_every_module_of_the_core_has_one_layer() -> None:
    listed = [name for _, modules in LAYERS for name in modules]
    assert sorted(listed) == sorted({module.split(".")[1] for module in trees() if module.startswith("core.")})


def test_the_architecture_page_has_the_same_layers() -> None:
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text("utf-8")
    rows = re.findall(r"^\| (?:data|mechanisms|`runtime`) \|[^|]*\|([^|]*)\|$", page, re.MULTILINE)
    shown = [set(re.findall(r"`(\w+)`", row)) for row in rows]
    assert shown == [set(CORE_LAYERS[name].split()) for name in ("data", "mechanisms", "top")]


def test_the_layers_of_the_core_import_downwards() -> None:
    wrong = []
    for module in trees():
        if (layer := layer_of(module)) is None:
            continue
        for each in imports_of(module):
            other = layer_of(each.origin)
            if other is not None and other > layer:
                names = LAYERS[layer][0], LAYERS[other][0]
                wrong.append(f"{place(module, each.line)} ({names[0]}) imports {each.origin} ({names[1]})")
    assert not wrong, "\n".join(wrong)


def test_the_packages_of_the_core_import_nothing_of_ours() -> None:
    """So an import through them hides no layer."""
    assert not [package for package in ("core", "core.run", "core.shared") if imports_of(package)]


def words_of(name: str) -> set[str]:
    """`RemoteRun` and `remote_run` have the words `remote` and `run`; an `s` at the end does not count."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return {word.lower().removesuffix("s") for word in words}


def names_used_in(module: str) -> set[str]:
    """Every name that a module defines or uses. Texts and comments do not count."""
    names = set()
    for node in ast.walk(trees()[module]):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.arg() | ast.keyword():
                names.add(node.arg or "")
            case ast.Name():
                names.add(node.id)
            case ast.Attribute():
                names.add(node.attr)
            case ast.alias():
                names |= {node.name, node.asname or ""}
    return names


def test_the_core_names_no_agents_models_or_databases() -> None:
    used = {name.lstrip("_") for module in trees() if module.startswith("core.") for name in names_used_in(module)}
    found = {name for name in used if words_of(name) & NOT_NAMED_IN_CORE}
    assert found == {name for name in MAY_BE_NAMED_IN_CORE if words_of(name) & NOT_NAMED_IN_CORE}


def test_the_core_names_no_threads_of_tools() -> None:
    """Threads of its own are mechanisms, or parts of the shared store. A call's thread is a resource that it holds."""
    mechanisms = [*CORE_LAYERS["mechanisms"].split(), "shared"]
    others = [each for each in trees() if each.startswith("core.") and each.split(".")[1] not in mechanisms]
    used = {name.lstrip("_") for module in others for name in names_used_in(module)}
    found = {name for name in used if "thread" in name.lower()} - THREADS_OF_THE_CORE
    assert found == {name for name in MAY_BE_NAMED_IN_CORE if "thread" in name}


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The groups of modules that reach each other."""
    reach: dict[str, set[str]] = {}
    for module in graph:
        seen: set[str] = set()
        ahead = list(graph[module])
        while ahead:
            each = ahead.pop()
            if each not in seen:
                seen.add(each)
                ahead += graph[each]
        reach[module] = seen
    groups = {frozenset({m for m in reach[each] if each in reach[m]}) for each in graph if each in reach[each]}
    return [set(group) for group in groups]


def test_no_module_is_in_an_import_cycle() -> None:
    """Imports under TYPE_CHECKING and in functions count too."""
    graph = {module: {each.origin for each in imports_of(module)} for module in trees()}
    found = circles(graph)
    assert set().union(*found) == IN_CYCLES, f"the cycles are {sorted(map(sorted, found))}"


# -- classes ----------------------------------------------------------------------------------------------------------

STATE_ASIDE = {
    "typing.NamedTuple",
    "typing.TypedDict",
    "msgspec.Struct",
    "enum.Enum",
    "enum.IntEnum",
    "enum.StrEnum",
    "enum.Flag",
    "enum.IntFlag",
}
"""A class that inherits from one of these, at any distance, is a struct or an enum. Errors are aside too."""


@dataclass(frozen=True)
class Class:
    """One class of ours."""

    module: str
    name: str
    line: int
    has_state: bool
    bases: list[str] = field(compare=False)
    """As full names: `core.run.run.LocalRun`, or `asyncio.Task` of another package."""

    @property
    def full_name(self) -> str:
        return f"{self.module}.{self.name}"


@cache
def names_in(module: str) -> dict[str, str]:
    """What the names at the top of a module stand for."""
    names: dict[str, str] = {}
    for node in ast.walk(trees()[module]):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ClassDef):
            names[node.name] = f"{module}.{node.name}"
    for each in imports_of(module):
        names[each.bound] = each.origin if each.attribute is None else f"{each.origin}.{each.attribute}"
    return names


def _where_defined(name: str) -> str:
    """The full name of a thing, followed through the modules that only pass it on."""
    seen = set()
    while name not in seen:
        seen.add(name)
        module, _, last = name.rpartition(".")
        name = names_in(module).get(last, name) if module in trees() else name
    return name


def _full_name(module: str, base: ast.expr) -> str:
    if isinstance(base, ast.Subscript):  # Generic[T], Task[Any]
        return _full_name(module, base.value)
    words = ast.unparse(base).split(".")
    names = names_in(module)
    for end in range(len(words), 0, -1):  # `import a.b` binds "a.b"
        if (known := names.get(".".join(words[:end]))) is not None:
            return _where_defined(".".join([known, *words[end:]]))
    return ast.unparse(base)


def _has_state(node: ast.ClassDef) -> bool:
    """Slots, declared attributes (so the fields of a dataclass), or attributes of `self` that a method sets."""
    return any(_names_state(statement) for statement in node.body)


def _names_state(statement: ast.stmt) -> bool:
    match statement:
        case ast.Assign(targets=[ast.Name(id="__slots__")]):
            slots = ast.literal_eval(statement.value)
            return bool({slots} if isinstance(slots, str) else set(slots) - {"__weakref__", "__dict__"})
        case ast.AnnAssign():
            return not ast.unparse(statement.annotation).startswith("ClassVar")
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return _sets_attributes(statement)
    return False


def _sets_attributes(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    parameters = [*method.args.posonlyargs, *method.args.args]
    if not parameters or any(ast.unparse(each) in ("classmethod", "staticmethod") for each in method.decorator_list):
        return False
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == parameters[0].arg
        for node in ast.walk(method)
    )


@cache
def all_classes() -> dict[str, Class]:
    found: dict[str, Class] = {}
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                bases = [_full_name(module, base) for base in node.bases]
                made = Class(module, node.name, node.lineno, _has_state(node), bases)
                assert found.setdefault(made.full_name, made) is made, f"{made.full_name} is defined twice"
    return found


def ancestors(name: str) -> Iterator[str]:
    """The full names of all base classes, ours and others'."""
    for base in all_classes()[name].bases if name in all_classes() else ():
        yield base
        yield from ancestors(base)


def is_aside(name: str) -> bool:
    """Errors, enums, structs, NamedTuples; and a Protocol itself, but not the classes that inherit from it."""
    above = set(ancestors(name))
    return "typing.Protocol" in all_classes()[name].bases or bool(above & STATE_ASIDE) or any(map(_is_exception, above))


def _is_exception(name: str) -> bool:
    return name.endswith(("Error", "Exception"))


def test_no_class_with_state_inherits_from_another_one_of_ours() -> None:
    stateful = {name: each for name, each in all_classes().items() if each.has_state and not is_aside(name)}
    wrong = [
        f"{place(each.module, each.line)} {each.name} inherits from {base}"
        for name, each in stateful.items()
        for base in ancestors(name)
        if base in stateful
    ]
    assert not wrong, "\n".join(wrong)


# -- what is not written ----------------------------------------------------------------------------------------------


def test_a_method_that_is_missing_is_abstract() -> None:
    """`NotImplementedError` is for public base classes that users subclass."""
    found = set()
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id == "NotImplementedError":
                found.add(f"{module}.{_class_around(tree, node)}")
    assert found == MAY_LACK_METHODS


def _class_around(tree: ast.Module, inner: ast.AST) -> str:
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and inner in ast.walk(node)]
    return classes[-1].name if classes else "<module>"


def calls_of(function: str) -> Iterator[tuple[str, ast.Call]]:
    """Every call of a function by this name, with the place where it stands."""
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == function:
                yield place(module, node.lineno), node


def test_no_part_pretends_to_be_the_whole_run() -> None:
    """No `cast("Run", self)`."""
    casts = [(where, ast.unparse(call.args[0]).strip("'\"").split("[")[0]) for where, call in calls_of("cast")]
    assert casts  # the test sees the other casts
    assert not [(where, target) for where, target in casts if target.split(".")[-1] in ("Run", "LocalRun")]


def test_a_run_has_its_work_or_none() -> None:
    """No `getattr(run, "_work", None)`: `work` is always there, and None once the run has ended."""
    names = [(where, ast.unparse(call.args[1]).strip("'\"")) for where, call in calls_of("getattr")]
    assert names
    assert not [(where, name) for where, name in names if name in ("_work", "work")]
