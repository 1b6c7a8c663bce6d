# SPDX-License-Identifier: Apache-2.0
"""`andon top` in a real terminal: what its screen shows, what its keys do, and that the terminal is given back."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from andon import Agent, RunStatus, tool
from andon.cli.report import Cancelled
from andon.cli.screen import DELETE, DOWN, ENTER, ESCAPE, HOME, PAGE_UP, keys_in
from andon.cli.terminal import cells
from andon.cli.top_board import told_of
from andon.cli.top_feed import Shown, Update
from andon.cli.top_rows import COLUMNS, RunRows
from andon.core.receipt import CancelRequest, Receipt, ToolReceipt
from andon.core.selection import Selection
from andon.core.states import CancelMode, CancelOutcome, Phase, ToolOutcome
from andon.messages import Usage
from andon.models.scripted import Call, ScriptedModel, Stall
from tests.cli.terminal import _LAUNCH, CTRL_C, Terminal, alone, environment, interrupted
from tests.server.live import Live, serving, serving_on
from tests.support import HANG, Flag, Worker, eventually, forever

_TOKEN = re.compile(r"\x1b\[([?]?)([\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)|(.)", re.DOTALL)


FRAME_END = "\x1b[?2026l"


class Picture:
    """What a terminal shows: an emulator of the few sequences that `andon top` writes."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.cells = [[" "] * width for _ in range(height)]
        self.row = self.column = 0
        self.modes: dict[int, bool] = {}
        self.reversed = False
        self.reversed_rows: set[int] = set()

    @property
    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self.cells]

    @property
    def cursor_line(self) -> str:
        """The line of the run under the cursor."""
        return next((line for line in self.lines if line.startswith("> ")), "")

    def write(self, text: str) -> None:
        for found in _TOKEN.finditer(text):
            mode, numbers, command, line_end, plain, other = found.groups()
            assert other is None, f"the terminal got {text[found.start() : found.start() + 20]!r}"
            if plain is not None:
                self._put(plain)
            elif line_end is not None:
                self.column = 0
                self.row = min(self.row + (line_end == "\n"), self.height - 1)
            else:
                self._obey(mode, [int(each or 0) for each in numbers.split(";")], command)

    def _put(self, text: str) -> None:
        for char in text:
            width = cells(char)
            if self.row < self.height and self.column + width <= self.width and width:
                self.cells[self.row][self.column] = char
                if width == 2:
                    self.cells[self.row][self.column + 1] = ""
            self.column = min(self.column + width, self.width)

    def _obey(self, mode: str, numbers: list[int], command: str) -> None:
        if mode:
            self.modes |= dict.fromkeys(set(numbers) - {2026}, command == "h")
        elif command == "H":
            self.row, self.column = numbers[0] - 1, (numbers[1] if len(numbers) > 1 else 1) - 1
        elif command == "G":
            self.column = numbers[0] - 1
        elif command == "K":
            self.cells[self.row] = [" "] * self.width
        elif command == "J":
            self.cells = [[" "] * self.width for _ in range(self.height)]
        else:
            assert command == "m", command


class TopTerminal(Terminal):
    """`andon top` at a terminal."""

    def __init__(self, here: Path, *arguments: str, columns: int = 120, env: dict[str, str] | None = None) -> None:
        super().__init__(here, "top", *arguments, columns=columns, env=env)
        self.picture = Picture(columns, 24)
        self._read = 0
        self.before = self.settings()

    def settings(self) -> list[Any]:
        return termios.tcgetattr(self._master)

    def resize(self, columns: int, lines: int) -> None:
        self.picture = Picture(columns, lines)
        self._read = len(self.screen)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def shows(self, holds: str | Callable[[Picture], object]) -> Picture:
        """Wait until the screen shows this now."""
        picture, deadline = self.picture, time.monotonic() + HANG
        while True:
            end = max(self.screen.rfind(FRAME_END), self._read)  # no frame that is half read
            picture.write(self.screen[self._read : end])
            self._read = end
            if holds in "\n".join(picture.lines) if isinstance(holds, str) else holds(picture):
                return picture
            assert time.monotonic() < deadline, "\n".join(["this never came; the screen is:", *picture.lines])
            assert self._more(), f"it has ended:\n{self.screen}"

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The terminal takes nothing, as after Ctrl-S: each write waits."""
        slave = os.open(f"/proc/{self.process.pid}/fd/1", os.O_RDWR | os.O_NOCTTY)
        try:
            termios.tcflow(slave, termios.TCOOFF)
            yield
            termios.tcflow(slave, termios.TCOON)
        finally:
            os.close(slave)

    def is_given_back(self) -> None:
        """The terminal is as it was."""
        self.picture.write(self.screen[self._read :].split("andon:")[0])
        assert self.settings() == self.before
        assert self.picture.modes == {1049: False, 25: True, 7: True}


class ShellTerminal(TopTerminal):
    """A shell at a terminal, with the same screen."""

    def __init__(self, here: Path, shell: str, script: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LAUNCH, shell, "-c", script],
            cwd=here,
            env=environment(TERM="xterm", NO_COLOR="1"),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.screen, self._read, self.picture = "", 0, Picture(120, 24)
        self.before = self.settings()


@contextmanager
def top(here: Path, *arguments: str, columns: int = 120, env: dict[str, str] | None = None) -> Iterator[TopTerminal]:
    terminal = TopTerminal(here, *arguments, columns=columns, env=env)
    try:
        yield terminal
        assert "Traceback" not in terminal.screen, terminal.screen
    finally:
        terminal.close()


def talker(name: str = "Talker") -> Agent:
    return Agent(name, ScriptedModel(then=["One ", Stall()]))


def start(live: Live, agent: Agent, run_id: str, **fields: Any) -> None:
    asked = {"message": "Hi", "stream": False, "background": True, "run_id": run_id, **fields}
    assert live.post(f"/agents/{agent.id}/runs", **asked).status_code == 202


def on_cursor(words: str) -> Callable[[Picture], bool]:
    return lambda picture: words in picture.cursor_line


def order(picture: Picture) -> list[str]:
    """The ids of the runs, from the top."""
    return [line[2:].split()[0] for line in picture.lines[2:-1] if line]


# -- a real server ----------------------------------------------------------------------------------------------------


def test_runs_are_shown_and_one_is_stopped(tmp_path: Path) -> None:
    agent = talker()
    with serving(agent) as live:
        start(live, agent, "r-one", user_id="ada")
        with top(tmp_path, "--url", live.url) as person:
            picture = person.shows(on_cursor("r-one"))
            assert picture.lines[0] == f"{live.url} · 1 run"
            assert re.fullmatch(r"  RUN +AGENT +USER +STATUS +AGE +TOKENS +DOING +SERVER", picture.lines[1])
            assert re.match(r"> r-one +talker +ada +RUNNING +\d+s +~1 +writing, \d+s +\S+", person.shows("~1").lines[2])
            start(live, agent, "r-two")
            assert order(person.shows("r-two")) == ["r-two", "r-one"]
            assert "r-one" in person.picture.cursor_line
            person.type("s")
            person.shows("stop r-one of talker now? y/n")
            person.type("n")
            person.shows("s stop")
            assert live.run_of(agent, "r-one").status is RunStatus.running
            person.type("s")
            person.shows("y/n")
            person.type("y")
            person.shows("r-one: cancelled in ")
            assert "it was streaming" in person.picture.lines[-1]
            person.shows(on_cursor("CANCELLED"))
            assert "user by" in person.shows("user by").cursor_line
            person.type("s")
            person.shows("r-one has ended already")
            person.type("kk")
            person.shows(on_cursor("r-two"))
            person.type("\x1b[3~y")
            person.shows("r-two: cancelled in ")
            person.shows(lambda picture: " · 0 runs" in picture.lines[0])
            person.type("q")
            assert person.end() == 0
            person.is_given_back()


def test_a_stop_after_the_tools_lets_them_finish(tmp_path: Path) -> None:
    at_work, go_on = Flag(), Flag()

    @tool
    async def search() -> str:
        """Search."""
        at_work.set()
        await go_on.arrived()
        return "found"

    agent = Agent("Searcher", ScriptedModel(then=Call("search")), tools=[search])
    with serving(agent) as live, top(tmp_path, "--url", live.url) as person:
        start(live, agent, "r-one")
        at_work.wait()
        person.shows("in search")
        person.type("a")
        person.shows("stop r-one of searcher after its tools? y/n")
        person.type("y")
        person.shows("CANCELLING")
        person.shows("stopping r-one…")
        go_on.set()
        assert "tools: search completed" in person.shows("r-one: cancelled in ").lines[-1]


def test_what_was_cut_is_said(tmp_path: Path) -> None:
    at_work = Flag()

    @tool
    async def search() -> str:
        """Search."""
        at_work.set()
        await forever()

    agent = Agent("Searcher", ScriptedModel(then=Call("search")), tools=[search])
    with serving(agent) as live, top(tmp_path, "--url", live.url) as person:
        start(live, agent, "r-one")
        at_work.wait()
        person.shows("in search")
        person.type("sy")
        assert "tools: search cut" in person.shows("r-one: cancelled in ").lines[-1]


def test_a_token(tmp_path: Path) -> None:
    agent = talker()
    with serving(agent, tokens="secret") as live:
        with top(tmp_path, "--url", live.url) as stranger:
            assert stranger.end() == 2
            assert "wants a token: give it with --token or ANDON_TOKEN" in stranger.screen
            assert "\x1b[?1049h" not in stranger.screen, "the screen was never taken"
        live.client.headers["authorization"] = "Bearer secret"
        start(live, agent, "r-one")
        with top(tmp_path, "--url", live.url, env={"ANDON_TOKEN": "secret"}) as person:
            person.shows(on_cursor("r-one"))
            person.type("sy")
            person.shows("r-one: cancelled in ")


def test_only_some_runs(tmp_path: Path) -> None:
    one, two = talker("One"), talker("Two")
    with serving(one, two) as live:
        start(live, one, "r-one", user_id="ada")
        start(live, two, "r-two", user_id="bob")
        with top(tmp_path, "--url", live.url, "--user", "bob") as person:
            assert order(person.shows(on_cursor("r-two"))) == ["r-two"]
        with top(tmp_path, "--url", live.url) as person:
            person.shows("r-one")
            person.type("/ADX\x7f")
            person.shows("only runs with: AD_")
            picture = person.shows(lambda picture: order(picture) == ["r-one"])
            person.type("\r")
            person.shows(lambda picture: "only with 'AD'" in picture.lines[0])
            person.type("\x1b")
            person.shows(lambda picture: order(picture) == ["r-two", "r-one"])
            person.type("/nothing")
            person.shows(lambda picture: order(picture) == [])
            person.type("\rs")
            person.shows("there is no run to stop")
            assert picture.lines[1].startswith("  RUN")
            person.type("?")
            assert "andon" not in person.shows("stop the run under the cursor, now").lines[-2]
            person.type("q")
            person.shows("DOING")
            person.type("q")
            assert person.end() == 0


def test_a_server_that_leaves_and_returns(tmp_path: Path) -> None:
    from tests.cli.test_serve import serving as serving_process

    demo = "--demo", "--drain", "0", "--db", "memory://"
    with serving_process(tmp_path, *demo) as served:
        port = served.url.rpartition(":")[2]
        served.client.post("/agents/storyteller/runs", data={"message": "Hi", "stream": False, "background": True})
        with top(tmp_path, "--url", served.url) as person:
            person.shows(on_cursor("storyteller"))
            assert served.end(signal.SIGTERM) == 0
            picture = person.shows("away for ")
            assert "trying again: " in picture.lines[0]
            assert picture.cursor_line, "what was known stays on the screen"
            person.type("?")
            person.shows("stop the run under the cursor")
            person.type(" ")
            with _again(tmp_path, port, *demo):
                person.shows(lambda picture: " · 0 runs" in picture.lines[0] and order(picture) == [])
                person.type("q")
                assert person.end() == 0


@contextmanager
def _again(here: Path, port: str, *arguments: str) -> Iterator[None]:
    command = [sys.executable, "-m", "andon", "serve", *arguments, "--port", port]
    with subprocess.Popen(command, cwd=here, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield
        finally:
            process.kill()


# -- a shared database ------------------------------------------------------------------------------------------------


def test_a_database(tmp_path: Path) -> None:
    agent, url = talker(), f"sqlite:///{tmp_path}/andon.db"
    with serving_on(url, agent) as live:
        start(live, agent, "r-one", user_id="ada")
        start(live, agent, "r-two")
        with top(tmp_path, "--db", url) as person:
            assert order(person.shows("r-one")) == ["r-two", "r-one"]
            assert person.picture.lines[0].startswith("sqlite:///")
            person.type("j")
            person.shows(on_cursor("r-one"))
            person.type("sy")
            person.shows("r-one: cancelled in ")
            person.shows(on_cursor("r-two"))
            person.type("q")
            assert person.end() == 0
            person.is_given_back()


def test_no_database(tmp_path: Path) -> None:
    with top(tmp_path, "--db", "sqlite:///nothing.db") as person:
        assert person.end() == 5
        assert "there is no database 'nothing.db'" in person.screen


# -- a server that sends what the test says ---------------------------------------------------------------------------


class Board:
    """A server with a board's stream only, or without one."""

    def __init__(self, *, old: bool = False) -> None:
        board = self
        self.messages: SimpleQueue[bytes | None] = SimpleQueue()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if old or self.path != "/board/events":
                    self.send_response(404)
                    self.end_headers()
                    self.wfile.write(b'{"detail": "Not Found"}')
                    return
                self.send_response(200)
                self.end_headers()
                while (message := board.messages.get()) is not None:
                    self.wfile.write(message)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._worker = Worker(self._server.serve_forever)

    def send(self, *runs: dict[str, Any], **more: Any) -> None:
        message = {"now": time.time(), "runs": runs, **more}
        self.messages.put(f": still here\n\nevent: runs\ndata: {json.dumps(message)}\n\n".encode())

    def close(self) -> None:
        self.messages.put(None)
        self._server.shutdown()
        self._server.server_close()
        self._worker.done()


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board()
    made.messages.put(b'event: hello\ndata: {"now": 1.5, "agents": []}\n\n')
    yield made
    made.close()


def line(run_id: str, age: float = 60.0, **more: Any) -> dict[str, Any]:
    fields = {"run_id": run_id, "agent_id": "talker", "session_id": "s", "status": "RUNNING"}
    return {**fields, "created_at": time.time() - age, **more}


def test_a_server_without_a_board(tmp_path: Path) -> None:
    old = Board(old=True)
    with top(tmp_path, "--url", old.url) as person:
        assert person.end() == 1
        assert f"{old.url} has no board: it is older than this command" in person.screen
    old.close()


def test_the_cursor_stays_on_its_run(tmp_path: Path, board: Board) -> None:
    board.send(*(line(f"r-{number}", 100 - number) for number in range(50)), reset=True)
    with top(tmp_path, "--url", board.url) as person:
        assert order(person.shows("r-49"))[0] == "r-49"
        person.type("jj\x1bOB")
        person.shows(on_cursor("r-46"))
        board.send(*(line(f"new-{number}", 10 - number) for number in range(5)))
        assert "r-46" in person.shows("new-4").cursor_line
        person.type("\x1b[6~\x1b[6~")
        person.shows(on_cursor("r-6 "))
        board.send(line("newest", 0))
        person.shows("56 runs")
        assert "r-6 " in person.picture.cursor_line
        assert len(person.picture.lines) == 24
        board.send(gone=[["talker", "r-6"]])
        person.shows("55 runs")
        assert "r-5 " in person.shows(lambda picture: picture.cursor_line).cursor_line
        person.type("G")
        person.shows(on_cursor("r-0 "))
        person.type("\x1b[5~\x1b[1~")
        person.shows(on_cursor("newest"))
        board.send(line("other"), reset=True)
        person.shows(on_cursor("other"))
        board.send(line("other"), more=7)
        person.shows("1 run, and more that are not listed")


def test_what_a_run_says_of_itself(tmp_path: Path, board: Board) -> None:
    now = time.time()
    board.send(
        line("waits", 9, doing="asks a person: delete", since=now - 125, status="PAUSED", tokens=12_345),
        line("stopped", 8, status="CANCELLED", ended_at=now + HANG, cause="deadline", latency=0.0123, tokens=7),
        line("failed", 7, status="ERROR", ended_at=now + HANG, error="it broke"),
        line("forgotten", 6, status="COMPLETED", ended_at=now - 60),
        line("done", 5, status="COMPLETED", ended_at=now + HANG),
        reset=True,
    )
    with top(tmp_path, "--url", board.url) as person:
        text = "\n".join(person.shows("waits").lines)
        assert "1 run, 1 paused" in text
        assert re.search(r"PAUSED +\d+s +12,345 +asks a person: delete, 2m", text)
        assert "deadline in 12.3 ms" in text
        assert "it broke" in text
        assert order(person.picture) == ["done", "failed", "stopped", "waits"]
        assert "\x1b[33mPAUSED\x1b[0m" in person.screen


def test_no_colour_where_none_is_wanted(tmp_path: Path, board: Board) -> None:
    board.send(line("waits", 9, status="PAUSED"), line("works"), reset=True)
    with top(tmp_path, "--url", board.url, env={"NO_COLOR": "1"}) as person:
        person.shows("waits")
        assert not re.search(r"\x1b\[3\dm", person.screen)


def test_what_has_ended_is_shown_for_a_while() -> None:
    now, rows = time.time(), RunRows(Selection())
    rows.update(Update([Shown("r", "a", "COMPLETED", now, ended_at=now - 11), Shown("l", "a", "RUNNING", now)], now))
    assert len(rows.draw(80, 9, away=False)) == 2, "the head, and the run that goes on"


def test_nothing_in_a_run_controls_the_terminal(tmp_path: Path, board: Board) -> None:
    evil = "x\x1b[2J\x1b]0;owned\x07\x9b31m\r\n\u202eabc\u2028\x00"
    more = dict.fromkeys(("agent_id", "user_id", "doing", "server", "status"), evil)
    board.send(line("good", 1), line(evil, 2, **{**more, "status": "RUNNING"}), reset=True)
    with top(tmp_path, "--url", board.url) as person:
        person.shows("good")
        person.type("j")
        person.shows(on_cursor("x [2J"))
        person.type("s")
        person.shows("stop x [2J")
        person.type("y")
        person.shows(lambda picture: "s stop" not in picture.lines[-1] and "y/n" not in picture.lines[-1])
        for each in ("\x07", "\x9b", "\u202e", "\u2028", "\x00", "\x1b]", "owned\r"):
            assert each not in person.screen
        assert "\x1b[2J" not in person.screen.partition("\x1b[?7l\x1b[2J")[2], "only the first one is ours"
        assert order(person.picture) == ["good", "x"]


@pytest.mark.parametrize("columns", [20, 33, 60, 80, 200])
def test_wide_characters_move_nothing(tmp_path: Path, board: Board, columns: int) -> None:
    names = "日本語のエージェントの名前", "👩‍💻🏳️‍🌈", "e\u0301a\u0308" * 9, "plain"
    board.send(*(line(f"r-{n}", n, agent_id=name, user_id=name, doing=name) for n, name in enumerate(names)))
    with top(tmp_path, "--url", board.url, columns=columns) as person:
        picture = person.shows("r-3")
        assert all(len(row) == columns for row in picture.cells)
        assert all(sum(map(cells, row)) <= columns for row in picture.cells)
        for head in ("STATUS", "AGE"):
            if (place := picture.lines[1].find(head)) >= 0:
                value = {"STATUS": "RUNNING", "AGE": ""}[head]
                for row in picture.cells[2:6]:
                    assert "".join(row[place:]).startswith(value)
                    assert row[place - 1] == " "
        assert "STATUS" in picture.lines[1] or columns < 33


def test_it_follows_the_size_of_the_terminal(tmp_path: Path, board: Board) -> None:
    board.send(*(line(f"r-{number}", number) for number in range(40)), reset=True)
    with top(tmp_path, "--url", board.url) as person:
        assert len(order(person.shows("r-20"))) == 21
        person.resize(50, 10)
        seven = [f"r-{number}" for number in range(7)]
        person.shows(lambda picture: "s stop" in picture.lines[-1] and order(picture) == seven)
        person.type("G")
        assert order(person.shows(on_cursor("r-39")))[0] == "r-33"
        person.resize(20, 3)
        person.shows(on_cursor("r-39"))
        person.resize(200, 50)
        person.shows(lambda picture: len(order(picture)) == 40)
        assert "SERVER" in person.picture.lines[1]


def test_a_stop_that_fails_is_said(tmp_path: Path, board: Board) -> None:
    board.send(line("r-one"), reset=True)
    with top(tmp_path, "--url", board.url) as person:
        person.shows("r-one")
        person.type("sy")
        assert person.shows("r-one: ").lines[-1].startswith("r-one: what answers at")
        person.type("\x1b[99~j")
        person.shows("s stop")


def test_a_stream_that_can_not_be_read(tmp_path: Path, board: Board) -> None:
    board.messages.put(b'event: runs\ndata: {"runs": 1}\n\n')
    with top(tmp_path, "--url", board.url) as person:
        assert person.end() == 5
        assert f"can't read the stream of {board.url}" in person.screen


# -- the terminal -----------------------------------------------------------------------------------------------------


@interrupted
@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda person: person.type(CTRL_C), 130),
        (lambda person: person.process.send_signal(signal.SIGTERM), -signal.SIGTERM),
        (lambda person: person.process.send_signal(signal.SIGHUP), -signal.SIGHUP),
        (lambda person: person.type("q"), 0),
    ],
    ids=["ctrl-c", "sigterm", "sighup", "q"],
)
def test_the_terminal_is_given_back(
    tmp_path: Path, board: Board, act: Callable[[TopTerminal], None], code: int
) -> None:
    board.send(line("r-one"), reset=True)
    with top(tmp_path, "--url", board.url) as person:
        person.shows("r-one")
        assert person.picture.modes == {1049: True, 25: False, 7: False}
        assert person.settings() != person.before
        act(person)
        assert person.end() == code
        person.is_given_back()


@interrupted
def test_ctrl_c_while_the_server_says_nothing(tmp_path: Path, board: Board) -> None:
    with top(tmp_path, "--url", board.url) as person:
        eventually(board.messages.empty)
        person.type(CTRL_C)
        assert person.end() == 130
        assert person.settings() == person.before


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGHUP, -signal.SIGHUP)],
    ids=["sigint", "sigterm", "sighup"],
)
def test_a_terminal_that_does_not_read_keeps_no_signal_from_ending_it(
    tmp_path: Path, board: Board, number: signal.Signals, code: int
) -> None:
    board.send(line("r-one"), reset=True)
    with top(tmp_path, "--url", board.url) as person:
        person.shows("r-one")
        with person.stopped():
            board.send(line("r-two"))
            eventually(board.messages.empty)
            person.process.send_signal(number)
            assert person.process.wait(HANG) == code
        assert person.settings() == person.before


def test_a_terminal_that_reads_again_shows_what_came_meanwhile(tmp_path: Path, board: Board) -> None:
    board.send(line("r-one"), reset=True)
    with top(tmp_path, "--url", board.url) as person:
        person.shows("r-one")
        with person.stopped():
            for number in range(40):
                board.send(line(f"r-{number}", number))
            eventually(board.messages.empty)
        person.shows("r-20")
        person.type("q")
        assert person.end() == 0
        person.is_given_back()


def test_a_terminal_that_may_not_be_opened_once_more(tmp_path: Path, board: Board) -> None:
    """As after `su`: it belongs to another user."""
    board.send(line("r-one"), reset=True)
    (tmp_path / "sitecustomize.py").write_text(
        "import os\ndef refuse(number): raise PermissionError(number)\nos.ttyname = refuse\n"
    )
    with top(tmp_path, "--url", board.url, env={"PYTHONPATH": str(tmp_path)}) as person:
        person.shows("r-one")
        person.type("q")
        assert person.end() == 0
        person.is_given_back()


def test_the_terminal_is_given_back_after_a_defect(tmp_path: Path, board: Board) -> None:
    board.send(line("r-one"), reset=True)
    (tmp_path / "sitecustomize.py").write_text(
        "import andon.cli.top_rows as rows\n"
        "def broken(self): raise ZeroDivisionError('a defect')\n"
        "rows.RunRows.counts = broken\n"
    )
    terminal = TopTerminal(tmp_path, "--url", board.url, env={"PYTHONPATH": str(tmp_path)})
    try:
        assert terminal.end() == 1
        assert "ZeroDivisionError: a defect" in terminal.screen.partition("\x1b[?1049l")[2]
        assert terminal.settings() == terminal.before
    finally:
        terminal.close()


def test_a_window_that_is_closed_ends_it(tmp_path: Path, board: Board) -> None:
    board.send(line("r-one"), reset=True)
    with top(tmp_path, "--url", board.url) as person:
        person.shows("r-one")
        person.hang_up()
        assert person.process.wait(HANG) == -signal.SIGHUP


def test_it_is_suspended_and_goes_on(tmp_path: Path, board: Board) -> None:
    """With a shell, because a process without a parent in its session can't be suspended by Ctrl-Z."""
    shell = shutil.which("bash")
    assert shell is not None
    board.send(line("r-one"), reset=True)
    script = f"""
set -m
{sys.executable} -m andon top --url {board.url}
echo suspended; read -r line; echo "got $line"
fg >/dev/null
echo ended $?
"""
    person = ShellTerminal(tmp_path, shell, script)
    try:
        person.shows("r-one")
        person.type("\x1a")
        person.until("suspended")
        person.is_given_back()
        person.type("hello\n")
        person.until("got hello")
        person.shows("r-one")
        person.type("q")
        person.until("ended 0")
    finally:
        person.close()


def test_without_a_terminal(tmp_path: Path) -> None:
    ended = alone(tmp_path, "top", "--url", "http://127.0.0.1:1")
    assert ended.returncode == 2
    assert ended.stderr == (
        "andon: andon top needs a terminal, for its screen and its keys: use `andon ps` to list the runs\n"
    )
    with top(tmp_path, env={"TERM": "dumb"}) as person:
        assert person.end() == 2


def test_nobody_is_there(tmp_path: Path) -> None:
    with top(tmp_path, "--url", "http://127.0.0.1:1") as person:
        assert person.end() == 5
        assert "can't reach http://127.0.0.1:1" in person.screen


# -- the parts --------------------------------------------------------------------------------------------------------


def test_keys() -> None:
    assert keys_in("a\x1b[B\x1bOBk") == (["a", DOWN, DOWN, "k"], "")
    assert keys_in("\x1b[3~\x1b[1~\x1b[5~\r") == ([DELETE, HOME, PAGE_UP, ENTER], "")
    assert keys_in("é\x1b[") == (["é"], "\x1b[")
    assert keys_in("x\x1b") == (["x"], "\x1b")
    assert keys_in("\x1b[200~\x1bq\x01s") == (["s"], ""), "what is unknown presses nothing"
    assert ESCAPE not in keys_in("\x1b[A")[0]


def receipt(latency: float = 0.002, **more: Any) -> Receipt:
    made = Receipt.of(CancelRequest.make(), CancelMode.now, Phase.tools, [], Usage(1, 2), [])
    return Receipt(**{name: getattr(made, name) for name in made.__struct_fields__} | {"latency": latency, **more})


def test_how_a_stop_is_told() -> None:
    def told(*given: Any, mode: CancelMode = CancelMode.now) -> tuple[str, str]:
        answer = told_of(Cancelled("r", *given), mode)
        return answer.text, answer.style

    done, status = CancelOutcome.requested, RunStatus.cancelled
    assert told(done, status, receipt()) == ("r: cancelled in 2.0 ms; it was tools", "green")
    calls = [ToolReceipt("1", "search", ToolOutcome.not_started), ToolReceipt("2", "read", ToolOutcome.abandoned)]
    assert told(done, status, receipt(tools=calls, leftovers=["thread 1"])) == (
        "r: cancelled in 2.0 ms; tools: search not started, read abandoned; left over: thread 1",
        "yellow",
    )
    assert told(CancelOutcome.already_finished, RunStatus.completed)[0] == "r had ended already: COMPLETED"
    assert told(CancelOutcome.unknown)[0] == "r: unknown"
    assert told(done, RunStatus.cancelling)[0] == "r: asked to stop, but it has not ended within 10 s"
    after = told(done, RunStatus.cancelling, mode=CancelMode.after_tools)[0]
    assert after == "r: asked to stop after its tools, but it has not ended within 10 s"


def test_the_most_important_columns_stay() -> None:
    rows = RunRows(Selection())
    run = Shown("r", "agent", "RUNNING", time.time(), doing="writing")
    rows.update(Update([run], time.time(), reset=True))
    heads = {width: rows.draw(width, 5, away=False)[0] for width in (1, 10, 25, 40, 300)}
    assert "AGENT" not in heads[10]
    assert "STATUS" in heads[40]
    assert all(column.title in heads[300] for column in COLUMNS)


def test_what_a_run_does_is_more_important_than_its_server() -> None:
    rows = RunRows(Selection())
    asks = "asks a person: delete_files"
    run = Shown("letters.call_7", "fact-checker", "RUNNING", time.time(), user_id="grace", doing=asks, server="vm:1")
    rows.update(Update([run], time.time(), reset=True))
    narrow, wide = ("\n".join(rows.draw(width, 5, away=False)) for width in (80, 120))
    assert "asks a person: d" in narrow
    assert "SERVER" not in narrow
    assert "SERVER" in wide
