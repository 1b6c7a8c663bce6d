# SPDX-License-Identifier: Apache-2.0
"""The programs under "Recipes" in docs/tools.md, with a real server, database and browser: a cancel leaves nothing."""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from andon import Receipt, Run, RunEvent, RunStatus, Runtime, Stopped, ToolOutcome, ToolReceipt
from andon.models.scripted import Call
from bench.network import network_at_rest
from tests.support import HANG, Flag, Worker, play, until
from tests.support.processes import agent_with, below, check_gone, run_loop, told
from tests.test_docs import blocks_of

PAGE = "docs/tools.md"
NAMES = "fetching", "querying", "browsing", "downloading", "crunching"
START = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
BEGUN = START + b"the first bytes"
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntea"

Recipes = Callable[[str], Any]


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recipes]:
    """Imports a program of the page."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for block in blocks_of(PAGE):
        if block.file is not None:
            (folder / block.file).write_text(block.code, "utf-8")
    monkeypatch.syspath_prepend(folder)
    yield importlib.import_module
    for name in NAMES:
        sys.modules.pop(name, None)


class Silent:
    """A real HTTP server that reads one request, sends what it is given, and then waits for the client to leave."""

    def __init__(self, sends: bytes = b"") -> None:
        self.asked, self.left = Flag(), Flag()
        self._sends = sends
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(HANG)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        self._worker = Worker(self._serve)

    def _serve(self) -> None:
        with self._listener, self._listener.accept()[0] as connection:
            connection.settimeout(HANG)
            request = b""
            while not request.endswith(b"\r\n\r\n"):
                request += connection.recv(65536)
            connection.sendall(self._sends)
            self.asked.set()
            try:
                assert connection.recv(1) == b""
            except ConnectionResetError:
                pass
            self.left.set()

    def done(self) -> None:
        self._worker.done()


@asynccontextmanager
async def calling(tool: Any, arguments: dict[str, Any], runtime: Runtime | None = None) -> AsyncIterator[Run]:
    agent = agent_with(tool, calls=[Call(tool.name, arguments, id="c")], runtime=runtime)
    async with agent.start("go") as run:
        yield run


async def reached(site: Silent, run: Run) -> None:
    """Wait until the server has the request. A tool that fails before is not waited for."""
    waits = [asyncio.ensure_future(site.asked.arrived()), asyncio.ensure_future(run.result())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    ended = waits[1].done()
    for each in waits:
        each.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    assert not ended, waits[1]


async def cancelled(run: Run) -> tuple[ToolReceipt, Receipt]:
    """The receipt at the end of the run, and the one after all that was left has ended."""
    run.cancel("enough")
    result = await run.result()
    assert result.status is RunStatus.cancelled
    assert result.receipt is not None
    (tool,) = result.receipt.tools
    assert bool(result.receipt.leftovers) <= (tool.outcome is ToolOutcome.abandoned)
    later = await run.cancel_and_wait(timeout=HANG)
    assert later is not None
    return tool, later


# -- a blocking HTTP client -------------------------------------------------------------------------------------------


async def check_client(tool: Any, site: Silent, arguments: dict[str, Any] | None = None) -> ToolReceipt:
    async with calling(tool, {"url": site.url} | (arguments or {})) as run:
        await reached(site, run)
        assert not site.left.is_set()
        receipt, later = await cancelled(run)
        assert later.leftovers == []
        await site.left.arrived()
    site.done()
    return receipt


@pytest.mark.parametrize("sends", [b"", BEGUN], ids=["no answer", "half an answer"])
@pytest.mark.parametrize("name", ["fetch", "fetch_blocking"])
def test_an_http_client(recipes: Recipes, name: str, sends: bytes) -> None:
    async def main() -> None:
        receipt = await check_client(getattr(recipes("fetching"), name), Silent(sends))
        # The thread has 50 ms to end, which may be too little on a machine that is busy. Then the receipt names it.
        assert receipt.outcome in (ToolOutcome.cut, ToolOutcome.abandoned)

    play(main)


def test_an_http_client_in_a_process(recipes: Recipes) -> None:
    async def main() -> None:
        receipt = await check_client(recipes("fetching").fetch_in_process, Silent())
        assert receipt.outcome is ToolOutcome.cut
        assert receipt.stopped is not None

    run_loop(main)


@pytest.mark.parametrize("name", ["fetch", "fetch_blocking", "fetch_in_process"])
def test_an_http_client_gets_its_page(recipes: Recipes, name: str) -> None:
    async def main() -> None:
        site = Silent(WHOLE)
        assert await told(getattr(recipes("fetching"), name), {"url": site.url}) == "tea"
        site.done()

    run_loop(main)


# -- a database driver ------------------------------------------------------------------------------------------------

SLEEPS = "SELECT count(*) FROM pg_stat_activity WHERE query = 'select pg_sleep(600)'"
CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@pytest.mark.parametrize("name", ["query", "query_async"])
def test_a_database_driver(recipes: Recipes, name: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", postgres_url)

    async def main() -> None:
        with psycopg.connect(postgres_url, autocommit=True) as other:

            def count(query: bytes) -> int:
                row = other.execute(query).fetchone()
                assert row is not None
                return int(row[0])

            async with calling(getattr(recipes("querying"), name), {"sql": "select pg_sleep(600)"}) as run:
                await until(lambda: count(SLEEPS.encode()) == 1)
                receipt, later = await cancelled(run)
                await until(lambda: count(CONNECTIONS.encode()) == 0)
        assert receipt.outcome in (ToolOutcome.cut, ToolOutcome.abandoned)
        assert later.leftovers == []

    play(main)


@pytest.mark.parametrize("name", ["query", "query_async"])
def test_a_database_driver_gets_its_rows(
    recipes: Recipes, name: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", postgres_url)

    async def main() -> None:
        assert await told(getattr(recipes("querying"), name), {"sql": "select 7"}) == "[[7]]"

    play(main)


# -- a headless browser -----------------------------------------------------------------------------------------------


def processes_with(word: str) -> list[int]:
    """The processes that have this word in their command line."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                if word.encode() in (each / "cmdline").read_bytes():
                    found.append(int(each.name))
            except OSError:  # it is gone
                pass
    return found


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for all that a browser writes, where there is one. Its path has to be short, unlike pytest's."""
    if shutil.which("chromium") is None:
        pytest.skip("there is no chromium: `make browser` installs it")
    with network_at_rest(), tempfile.TemporaryDirectory(prefix="andon-") as folder:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)  # for this process, which has looked it up already
        yield Path(folder)


@pytest.mark.parametrize(
    ("kill_seconds", "stopped"), [(HANG, Stopped.asked), (0.0, Stopped.killed)], ids=["asked", "killed"]
)
def test_a_headless_browser(recipes: Recipes, kill_seconds: float, stopped: Stopped, temporary: Path) -> None:
    async def main() -> None:
        site = Silent(START)
        async with calling(recipes("browsing").title_of, {"url": site.url}, Runtime(kill_seconds=kill_seconds)) as run:
            await reached(site, run)
            browser = processes_with(str(temporary))
            assert len(browser) > 1
            tree = {*browser, *(below_each for pid in browser for below_each in below(pid))}
            receipt, later = await cancelled(run)
            check_gone(*tree)
            assert processes_with(str(temporary)) == []
            await site.left.arrived()
        assert (receipt.outcome, receipt.stopped) == (ToolOutcome.compensated, stopped)
        assert later.leftovers == []
        assert os.listdir(temporary) == []
        site.done()

    run_loop(main)


def test_a_headless_browser_opens_its_page(recipes: Recipes, temporary: Path) -> None:
    async def main() -> None:
        assert await told(recipes("browsing").title_of, {"url": "data:text/html,<title>Tea</title>"}) == "Tea"
        assert processes_with(str(temporary)) == []
        assert os.listdir(temporary) == []

    run_loop(main)


# -- a download -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "run"), [("download", play), ("download_in_process", run_loop)])
def test_a_download(recipes: Recipes, name: str, run: Callable[..., None], tmp_path: Path) -> None:
    async def main() -> None:
        site, file = Silent(BEGUN), tmp_path / "report.pdf"
        part = tmp_path / "report.pdf.part"

        async with calling(getattr(recipes("downloading"), name), {"url": site.url, "path": str(file)}) as handle:
            await reached(site, handle)
            await until(part.exists)
            receipt, later = await cancelled(handle)
            await site.left.arrived()
        site.done()
        assert receipt.outcome is ToolOutcome.cut
        assert later.leftovers == []
        assert not part.exists()
        assert not file.exists()

    run(main)


@pytest.mark.parametrize("name", ["download", "download_in_process"])
def test_a_download_gets_its_file(recipes: Recipes, name: str, tmp_path: Path) -> None:
    async def main() -> None:
        site, file = Silent(WHOLE), tmp_path / "tea.txt"
        assert await told(getattr(recipes("downloading"), name), {"url": site.url, "path": str(file)}) == str(file)
        site.done()

    run_loop(main)
    assert (tmp_path / "tea.txt").read_text() == "tea"
    assert not (tmp_path / "tea.txt.part").exists()


# -- a library that ignores signals -----------------------------------------------------------------------------------


def hangs(name: str) -> bool:
    """Is a thread in the function that calls the C code?"""
    return any(frame.f_code.co_name == name for frame in sys._current_frames().values())


def test_c_code_in_a_thread_is_named(recipes: Recipes) -> None:
    async def main() -> None:
        program = recipes("crunching")
        async with calling(program.crunch, {}) as run:
            await until(lambda: hangs("crunch"))
            run.cancel()
            result = await run.result()
            assert result.receipt is not None
            assert [each.outcome for each in result.receipt.tools] == [ToolOutcome.abandoned]
            assert result.receipt.leftovers == ["thread of crunch (c)"]
            program.libc.sem_post(program.answer)
            later = await run.cancel_and_wait(timeout=HANG)
            assert later is not None
            assert later.leftovers == []

    play(main)


def test_c_code_in_a_process_is_killed(recipes: Recipes) -> None:
    async def main() -> None:
        async with calling(recipes("crunching").crunch_in_process, {}) as run:
            async for event in run:
                if event.event is RunEvent.tool_output:
                    pid = int(event.content.split()[-1])
                    break
            receipt, later = await cancelled(run)
            check_gone(pid)
        assert (receipt.outcome, receipt.stopped) == (ToolOutcome.cut, Stopped.killed)
        assert later.leftovers == []

    run_loop(main)
