# SPDX-License-Identifier: Apache-2.0
"""`andon serve`: real processes, real signals, and what users get wrong on the command line."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from andon import __version__
from andon.cli import main
from andon.cli.serve import bound
from tests.server.live import frames

HANG = 60
RUNS = "/agents/helper/runs"

PROGRAM = """
import asyncio
import threading
from andon import Agent, tool
from andon.models.scripted import Call, Pause, ScriptedModel, Stall

@tool
async def stubborn() -> str:
    "Take no notice of anything."
    print("working", flush=True)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

@tool
def block() -> str:
    "A thread that nobody can end."
    print("working", flush=True)
    threading.Event().wait()

agent = Agent("Helper", ScriptedModel(["One ", Stall()], then=["Two ", Stall()]))
brief = Agent("Brief", ScriptedModel(["One ", Pause(0.3), "done."]))
deaf = Agent("Deaf", ScriptedModel(Call("stubborn")), tools=[stubborn])
stuck = Agent("Stuck", ScriptedModel(Call("block")), tools=[block])
both = [agent, brief]
nobody_there = []
def make():
    return agent
without = Agent("Without")
"""


class Served:
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.output = process.stdout
        line = self.output.readline()
        found = re.search(r"at (http://\S+)$", line)
        assert found, line
        self.url = found[1]
        self.hint, self.docs, self.database = (self.output.readline() for _ in range(3))
        self.client = httpx.Client(base_url=self.url, timeout=HANG, verify=False)

    def end(self, *signals: signal.Signals) -> int:
        for each in signals:
            self.process.send_signal(each)
        return self.process.wait(HANG)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def andon(here: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "andon", *arguments],
        cwd=here,
        env={**os.environ, "PYTHONWARNINGS": "error"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def serving(here: Path, *arguments: str, complains: str = "") -> Iterator[Served]:
    with andon(here, "serve", *arguments, "--port", "0") as process:
        try:
            served = Served(process)
            with served.client:
                yield served
        finally:
            process.kill()
        assert process.stderr is not None
        told = process.stderr.read()
        assert re.fullmatch(complains, told), told


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_idle_server(here: Path, number: signal.Signals) -> None:
    with serving(here, "program:both", "program:deaf") as served:
        assert served.client.get("/health").json() == {"status": "ok"}
        assert [agent["id"] for agent in served.client.get("/agents").json()] == ["helper", "brief", "deaf"]
        assert f"{served.url}/agents/helper/runs" in served.hint
        assert served.docs == f"docs: {served.url}/docs\n"
        assert served.client.get("/docs").status_code == 200
        assert served.database == f"database: sqlite:///{here}/andon.db\n"
        assert served.end(number) == 0


def test_all_agents_are_on_one_runtime(here: Path) -> None:
    with serving(here, "program:agent", "program:deaf", "--drain", "0") as served:
        fields = {"message": "Hi", "run_id": "r1", "background": "true", "stream": "false"}
        answers = [served.client.post(f"/agents/{name}/runs", data=fields) for name in ("helper", "deaf")]
        assert [answer.status_code for answer in answers] == [202, 409], "a run's id means one run"
        assert served.end(signal.SIGTERM) == 0


def test_runs_may_finish_and_nothing_new_is_taken(here: Path) -> None:
    with serving(here, "program:brief", "--drain", "30") as served:
        path = "/agents/brief/runs"
        with served.client.stream("POST", path, data={"message": "Hi"}) as response:
            stream = frames(response.iter_lines())
            assert [next(stream).event for _ in range(2)] == ["RunStarted", "RunContent"]
            served.process.send_signal(signal.SIGTERM)
            with httpx.Client(base_url=served.url, verify=False) as other:
                while other.get("/ready").status_code != 503:
                    pass
                assert other.post(path, data={"message": "Hi"}).status_code == 503
            assert list(stream)[-1].data["content"] == "One done."
        assert served.process.wait(HANG) == 0
        (told,) = served.output.read().splitlines()
        assert re.fullmatch(r"shutting down: waiting up to 30 s for 1 run: \w+ \(brief\)\. Another .* at once", told)


def test_what_does_not_finish_is_cancelled_and_its_readers_are_told(here: Path) -> None:
    with serving(here, "program:agent", "--drain", "0.1") as served:
        with (
            served.client.stream("POST", RUNS, data={"message": "Hi", "run_id": "r1"}) as response,
            served.client.stream("GET", f"{RUNS}/r1/events") as watched,
        ):
            stream = frames(response.iter_lines())
            assert [next(stream).event for _ in range(2)] == ["RunStarted", "RunContent"]
            served.process.send_signal(signal.SIGTERM)
            last = list(stream)[-1].data
            assert (last["event"], last["receipt"]["cause"]) == ("RunCancelled", "shutdown")
            assert last["content"] == "One "
            assert list(frames(watched.iter_lines()))[-1].event == "RunCancelled"
        assert served.process.wait(HANG) == 0
        assert served.output.read().splitlines()[-1] == "time is up: cancelling 1 run: r1 (helper)"


def test_a_plain_request_is_told_too(here: Path) -> None:
    with serving(here, "program:agent", "--drain", "0") as served:
        bare = socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2])))
        with bare:
            body = "message=Hi&stream=false&run_id=r1"
            bare.sendall(
                f"POST {RUNS} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-www-form-urlencoded\r\n"
                f"content-length: {len(body)}\r\n\r\n{body}".encode()
            )
            while served.client.get(f"{RUNS}/r1").status_code != 200:
                pass
            served.process.send_signal(signal.SIGTERM)
            read = b""
            while part := bare.recv(65536):
                read += part
            assert b'"status":"CANCELLED"' in read
            assert b'"cause":"shutdown"' in read
        assert served.process.wait(HANG) == 0


@pytest.mark.parametrize(
    ("name", "complains"),
    [
        (
            "deaf",
            r"WARNING andon.* abandoned \[.*\]\nandon: still running at the end: tool stubborn \(call_1\)\n",
        ),
        ("stuck", ""),
    ],
    ids=["deaf", "stuck"],
)
def test_what_can_not_be_stopped_does_not_keep_the_server(here: Path, name: str, complains: str) -> None:
    with serving(here, f"program:{name}", "--drain", "0", complains=complains) as served:
        with served.client.stream("POST", f"/agents/{name}/runs", data={"message": "Hi"}) as response:
            stream = frames(response.iter_lines())
            next(stream)
            assert served.output.readline() == "working\n"
            served.process.send_signal(signal.SIGTERM)
            assert list(stream)[-1].event == "RunCancelled"
        assert served.process.wait(HANG) == 0
        assert served.output.readline().startswith("shutting down: cancelling 1 run: ")


def test_a_reader_that_has_stalled_does_not_keep_the_server(here: Path) -> None:
    (here / "flood.py").write_text(
        "from andon import Agent\nfrom andon.models.scripted import Burst, ScriptedModel, Stall\n"
        "agent = Agent('Helper', ScriptedModel([Burst('x' * 20_000, 1000), Stall()]))\n"
    )
    with serving(here, "flood:agent", "--drain", "0") as served, socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", int(served.url.rpartition(":")[2])))
        slow.sendall(
            f"POST {RUNS} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 15\r\n\r\n".encode() + b'{"message":"a"}'
        )
        while not served.client.get("/runs").json():
            pass
        assert served.end(signal.SIGTERM) == 0


def test_a_second_signal_is_immediate(here: Path) -> None:
    with (
        serving(here, "program:agent", "--drain", "3600") as served,
        served.client.stream("POST", RUNS, data={"message": "Hi"}) as response,
    ):
        reading = frames(response.iter_lines())  # kept: without it, httpx closes the connection, and the run ends
        next(reading)
        served.process.send_signal(signal.SIGTERM)
        with httpx.Client(base_url=served.url, verify=False) as other:
            while other.get("/ready").status_code != 503:
                pass
        assert served.end(signal.SIGTERM) == -signal.SIGTERM


def test_behind_a_prefix(here: Path) -> None:
    with serving(here, "program:agent", "--root-path", "/api") as served:
        port = served.url.removesuffix("/api").rpartition(":")[2]
        assert served.url.endswith("/api")
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", verify=False) as client:
            assert client.get("/agents").status_code == 200
            assert client.get("/openapi.json").json()["servers"] == [{"url": "/api"}]
        assert served.end(signal.SIGTERM) == 0


# -- what users get wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["program"], "write module:agent"),
        ([":agent"], "write module:agent"),
        (["nothing_here:agent"], "no module 'nothing_here'"),
        (["program:nobody"], "the agents in it are: agent, brief, deaf, stuck"),
        (["program:PROGRAM"], "'PROGRAM'"),
        (["program:asyncio"], "no Agent"),
        (["program:without"], "no model"),
        (["program:agent", "program:both"], "'helper'"),
        (["progam:agent"], "did you mean program:agent?"),
        (["program.py:agent"], "as in program:agent"),
        (["program:nothing.there"], "no 'nothing.there' in 'program'; the agents in it are: agent, "),
        (["program:stubborn"], "<tool stubborn>, which is no Agent"),
        (["program:make"], "as in agent = make()"),
        (["program:Agent"], "name an Agent, or a list of them"),
        (["program:nobody_there"], "is an empty list"),
        (["plain:agent"], "there is no agent in it: make one"),
        (["program:agent", "--prot", "80"], "andon serve takes no --prot; did you mean --port?"),
        (["program:agent", "--nonsense"], "`andon serve --help` lists what it takes"),
        (["program:agent", "--host", "203.0.113.1"], "can't listen on 203.0.113.1"),
        (["program:agent", "--host", "203.0.113.1"], "name an address of this machine with --host"),
        (["program:agent", "--host", "no such host"], "can't listen on no such host"),
        (["program:agent", "--host", "no such host"], "name an address of this machine with --host"),
        (["program:agent", "--db", "mysql://x"], "another database can be named with --db"),
        (["program:agent", "--db", "sqlite:///no/such/folder/a.db"], "Make it first"),
        (["program:agent", "--db", "sqlite:///locked/a.db"], "read-only for this user"),
        (["program:agent", "--port", "80x"], "0 to 65535, and not '80x'"),
        (["program:agent", "--max-runs", "many"], "a whole number, 0 or more, and not 'many'"),
        (["program:agent", "--port", "99999"], "0 to 65535"),
        (["program:agent", "--drain", "-1"], "0 or more"),
        (["program:agent", "--drain", "inf"], "0 or more"),
    ],
)
def test_mistakes_are_one_sentence(
    here: Path, arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "plain.py").write_text("")
    (here / "locked").mkdir(0o500)
    if "locked" in arguments[-1] and os.access(here / "locked", os.W_OK):  # the administrator may write everywhere
        monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    for name in ("program", "plain"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    try:
        code: int | str | None = main(["serve", *arguments])
    except SystemExit as error:  # argparse's own
        code = error.code
    assert code == 2
    told = capsys.readouterr().err
    assert words in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("program", "words", "frames"),
    [
        ("def f():\n    return 1 / 0\n\nf()\n", "ZeroDivisionError: division by zero", [4, 2]),
        ("import no_such_package\n", "No module named 'no_such_package'", [1]),
        ("import helpers\n", "KeyError: 'x'", [1]),
        ("from andon import Agent\nAgent('')\n", "ConfigurationError", [2]),
        ("x = 1\ndef f(:\n", "SyntaxError", [2]),
        ("import sys\nsys.exit('no key')\n", '`if __name__ == "__main__":`', [2]),
    ],
)
@pytest.mark.parametrize("command", [["serve"], ["run"]])
def test_the_traceback_of_a_program_that_fails_is_the_user_s_part_of_it(
    here: Path, program: str, words: str, frames: list[int], command: list[str]
) -> None:
    (here / "broken.py").write_text(program)
    (here / "helpers.py").write_text("{}['x']\n")
    with andon(here, *command, "broken:agent") as process:
        out, told = process.communicate(timeout=HANG)
    assert (process.returncode, out) == (2, "")
    *before, last = told.splitlines()
    assert last.startswith("andon: 'broken' can't be imported: ")
    assert words in told
    assert [int(each) for each in re.findall(r'broken\.py", line (\d+)', "\n".join(before))] == frames
    assert "importlib" not in told
    assert f"{os.sep}andon{os.sep}" not in told
    assert ("helpers.py" in told) is ("helpers" in program)


def test_a_port_in_use_is_named(here: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with andon(here, "serve", "program:agent", "--port", port) as process:
            _, told = process.communicate(timeout=HANG)
        assert process.returncode == 2
        assert port in told
        assert "--port" in told


def test_without_the_extra_it_is_named(here: Path) -> None:
    """In a process in which FastAPI can't be imported."""
    code = "import sys; sys.modules['fastapi'] = None; from andon.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "serve", "program:agent"]
    ended = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=HANG, check=False)
    assert ended.returncode == 2
    assert ended.stderr.count('pip install "andon[server]"') == 1
    assert "Traceback" not in ended.stderr


def test_the_version_is_told(here: Path) -> None:
    with andon(here, "--version") as process:
        told, _ = process.communicate(timeout=HANG)
    assert told == f"andon {__version__}\n"


def test_a_client_that_vanished_is_noticed_by_the_kernel() -> None:
    """What is set on the listener holds for every connection."""
    with bound("127.0.0.1", 0) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 120_000
