# SPDX-License-Identifier: Apache-2.0
"""The programs of the README and the documentation run, have correct types, and every link has a target.

Each page is one program: its blocks of Python run in order and share their names. `python alone` in the line that opens
a block gives that block names of its own. `python file=name.py` makes the block a file, which later blocks can import:
the tools of processes have to be in one. A block may `await` at its top level; all such blocks of a page share one
event loop. A block of `text` right after a block of Python is what that block prints. `…` in it stands for any text,
and a number with four decimals or more stands for any such number.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib
import inspect
import io
import itertools
import operator
import os
import re
import runpy
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from andon import CancelCause, CancelMode, CancelOutcome, Phase, RunEvent, RunResult, RunStatus, StopReason
from andon.agent.options import RunOptions
from andon.core.markers import MARKERS

pytestmark = pytest.mark.no_cover  # the pages show what other tests cover

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
HANG_SECONDS = 60

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of Python, where it stands, and what it is to print."""

    code: str
    line: int
    alone: bool
    prints: str | None
    file: str | None = None


def blocks_of(page: str) -> Iterator[Block]:
    text = (ROOT / page).read_text("utf-8")
    fences = list(_FENCE.finditer(text))
    for number, fence in enumerate(fences):
        language, *marks = fence["info"].split() or [""]
        if language != "python":
            continue
        files = [mark.removeprefix("file=") for mark in marks if mark.startswith("file=")]
        assert set(marks) <= {"alone", *(f"file={name}" for name in files)}, f"{page}: what is {' '.join(marks)!r}?"
        after = fences[number + 1] if number + 1 < len(fences) else fence
        follows = after["info"].strip() == "text" and not text[fence.end() : after.start()].strip()
        prints = after["body"] if follows else None
        yield Block(fence["body"], text.count("\n", 0, fence.start()) + 1, "alone" in marks, prints, *files)


# -- running a page, in a process of its own --------------------------------------------------------------------------


def run_page(page: str) -> None:
    shared: dict[str, Any] = {"__name__": "__main__"}
    with asyncio.Runner() as runner, tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        for block in blocks_of(page):
            if block.file is not None:
                Path(folder, block.file).write_text(block.code, "utf-8")
                continue
            printed = run_block(page, block, {"__name__": "__main__"} if block.alone else shared, runner)
            if block.prints is not None and not fits(printed, block.prints):
                raise AssertionError(f"{page}, line {block.line}: printed\n{printed}\ninstead of\n{block.prints}")


def run_block(page: str, block: Block, names: dict[str, Any], runner: asyncio.Runner) -> str:
    # Moved down to its place in the page, so that a traceback names the right line.
    source = "\n" * block.line + block.code
    code = compile(source, str(ROOT / page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if code.co_flags & inspect.CO_COROUTINE:
            runner.run(eval(code, names))
        else:
            exec(code, names)
    return printed.getvalue()


def fits(printed: str, shown: str) -> bool:
    pattern = ""
    for number, part in enumerate(re.split(r"(…|\d+\.\d{4,})", shown.strip())):
        if number % 2 == 0:
            pattern += re.escape(part)
        else:
            pattern += ".*?" if part == "…" else r"\d+\.\d+(e-\d+)?"
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_is_true(page: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-P", "-W", "error", __file__, page],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if key != "OPENAI_API_KEY"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


# -- types ------------------------------------------------------------------------------------------------------------

BROKEN = Block("from andon import Agent\n\nAgent(name=1)\n", line=1, alone=True, prints=None)


def as_function(blocks: Iterable[Block]) -> str:
    """The blocks as one async function, where `await` is allowed. Each line keeps its number in the page."""
    source = "async def page() -> None:\n"
    for block in blocks:
        source += "\n" * (block.line - source.count("\n")) + textwrap.indent(block.code, "    ")
    return source


def test_the_programs_have_correct_types(tmp_path: Path) -> None:
    """All of them in one run of mypy, as strict as the package itself, together with one that is wrong on purpose."""
    sources = {"broken": as_function([BROKEN])}
    for page in PAGES:
        name = page.removesuffix(".md").replace("/", "_")
        every = list(blocks_of(page))
        sources |= {block.file.removesuffix(".py"): block.code for block in every if block.file is not None}
        blocks = [block for block in every if block.file is None]
        sources |= {f"{name}_{block.line}": as_function([block]) for block in blocks if block.alone}
        if shared := [block for block in blocks if not block.alone]:
            sources[name] = as_function(shared)
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source, "utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    found = [re.sub(r"^\S*/", "", line) for line in ended.stdout.splitlines()]  # mypy's cache has older folders in it
    wrong = 'broken.py:4: error: Argument "name" to "Agent" has incompatible type "int"; expected "str"  [arg-type]'
    assert found == [wrong], ended.stdout + ended.stderr


# -- links ------------------------------------------------------------------------------------------------------------


def anchors_of(page: Path) -> set[str]:
    """The names that headings get, as the usual renderers make them."""
    text = _FENCE.sub("", page.read_text("utf-8"))
    words = (re.sub(r"[^\w\- ]", "", heading[1].lower()) for heading in _HEADING.finditer(text))
    return {each.replace(" ", "-") for each in words}


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_lead_somewhere(page: str) -> None:
    here = ROOT / page
    for link in _LINK.findall(_FENCE.sub("", here.read_text("utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (here.parent / path).resolve() if path else here
        assert target.exists(), f"{page} links to {link}, which is not there"
        assert not anchor or anchor in anchors_of(target), f"{page} links to {link}, but no heading is called so"


def test_every_page_can_be_found() -> None:
    """The documentation's index leads to each of its pages."""
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    linked = {link.partition("#")[0] for link in _LINK.findall(index)}
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"} <= linked


# -- the picture -----------------------------------------------------------------------------------------------------


def test_the_picture_shows_a_real_run() -> None:
    drawing = runpy.run_path(str(ROOT / "scripts" / "draw.py"))
    drawn, stored = (
        re.sub(r"\d+\.\d ms", "", each) for each in (drawing["draw"](), drawing["FILE"].read_text("utf-8"))
    )
    assert drawn == stored, "python scripts/draw.py makes it again"


# -- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("docs/cancelling.md", [*CancelCause, *CancelMode, *CancelOutcome, *(status.name for status in RunStatus)]),
        ("docs/cancelling.md", [phase for phase in Phase if phase is not Phase.ending]),
        ("docs/cancelling.md", [*MARKERS.values()]),
        ("docs/agents.md", [*(event.name for event in RunEvent), *RunEvent, *StopReason]),
        ("docs/agents.md", [*RunOptions.__annotations__]),
        ("docs/agents.md", [*RunResult.__struct_fields__]),
    ],
)
def test_a_page_has_all_the_words_that_there_are(page: str, names: list[str]) -> None:
    """A table that was written before the last of them is no longer true."""
    text = (ROOT / page).read_text("utf-8")
    assert not [name for name in names if f"`{name}`" not in text]


def test_every_module_of_the_core_is_named() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    core = ROOT / "src" / "andon" / "core"
    modules = {path.relative_to(core).with_suffix("").as_posix() for path in core.rglob("*.py")}
    modules = {name for name in modules if not name.endswith("__init__")}
    named_before = {"signal", "run/run", "runtime", "events", "journal", "receipt"}
    assert not [name for name in modules - named_before if f"`{name}`" not in page]


def test_every_wait_of_a_run_is_named() -> None:
    """There are few of them. A new one has to be explained."""
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    waits = ast.parse((ROOT / "src" / "andon" / "core" / "run" / "waits.py").read_text("utf-8"))
    names = {each.name for each in waits.body if isinstance(each, ast.AsyncFunctionDef) and each.name[:5] == "wait_"}
    assert names == set(re.findall(r"`(wait_\w+)`", page.split("\n## States and waits\n")[1].split("\n## ")[0]))


# -- walks ------------------------------------------------------------------------------------------------------------

SOURCE = ROOT / "src" / "andon"
MAX_CHANGES_OF_A_CANCEL = 12

_WALK = re.compile(r"^## Walk: (?P<name>[^\n]+)\n(?P<body>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_STEP = re.compile(r"^\d+\. `([\w.]+)`", re.MULTILINE)
_FUNCTION = re.compile(r"`((?:agent|core|models|server|store)\.[\w.]+)`")
_CHANGES = re.compile(r"^Files change (\d+) times", re.MULTILINE)


def walks_of(text: str) -> dict[str, str]:
    return {walk["name"]: walk["body"] for walk in _WALK.finditer(text)}


def architecture_walks() -> dict[str, str]:
    return walks_of((ROOT / "docs" / "architecture.md").read_text("utf-8"))


def module_of(name: str) -> str | None:
    """The module in which something is that a walk names: `core.signal` for `core.signal.CancelSignal.cancel`."""
    parts = name.split(".")
    while parts and not SOURCE.joinpath(*parts).with_suffix(".py").is_file():
        parts.pop()
    return ".".join(parts) or None


def exists(name: str) -> bool:
    """Is there a function of this name?"""
    module = module_of(name)
    if module is None or module == name:
        return False
    try:
        found = operator.attrgetter(name.removeprefix(f"{module}."))(importlib.import_module(f"andon.{module}"))
    except AttributeError:
        return False
    return callable(found)


def changes_of_file(walk: str) -> int:
    """How often one step of a walk is in another file than the step before it."""
    modules = map(module_of, _STEP.findall(walk))
    return sum(before != after for before, after in itertools.pairwise(modules))


def test_every_function_of_a_walk_exists() -> None:
    walks = architecture_walks()
    assert list(walks) == ["a cancel over HTTP", "a token", "a run on a shared store", "a run through the queue"]
    for name, walk in walks.items():
        lines = re.findall(r"^\d+\. ", walk, re.MULTILINE)
        assert len(lines) == len(_STEP.findall(walk)) > 5, f"{name}: a step does not begin with a function"
        assert not [each for each in _FUNCTION.findall(walk) if not exists(each)], name


def test_a_walk_counts_its_changes_of_file() -> None:
    walks = architecture_walks()
    for name, walk in walks.items():
        assert _CHANGES.findall(walk) == [str(changes_of_file(walk))], name
    assert changes_of_file(walks["a cancel over HTTP"]) <= MAX_CHANGES_OF_A_CANCEL


def test_a_wrong_walk_is_found() -> None:
    """What the two tests above would not notice, they would not test."""
    wrong = (
        "core.signal.CancelSignal.pull",
        "core.signals.CancelSignal.cancel",
        "core.signal",
        "core.run.run.LocalRun.task",
    )
    steps = "core.signal.CancelSignal.cancel", "core.signal.wake_all", "core.cord.Cord.pull", "core.signal.wake_all"
    text = "".join(f"{number}. `{step}` does it.\n" for number, step in enumerate(steps, 1))
    assert list(walks_of(f"## Walk: one\n\n{text}\n## Else\n")) == ["one"]
    assert changes_of_file(text) == 2
    assert all(map(exists, steps))
    assert not any(map(exists, wrong))


if __name__ == "__main__":
    run_page(sys.argv[1])
