# SPDX-License-Identifier: Apache-2.0
"""`andon serve --workers` and `--reload`: several real processes behind one port, and signals to the first of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from andon.cli import workers
from andon.cli.file_watcher import FileWatcher
from tests.cli.terminal import alone, environment
from tests.server.live import frames
from tests.support import HANG, eventually, until

PROGRAM = """
import os
from andon import Agent, tool
from andon.models.scripted import Call, Pause, ScriptedModel, Stall

@tool
async def who() -> str:
    "Which process this is."
    return str(os.getpid())

def answer(request):
    return "".join(result.content for result in request.messages[-1].tool_results) or Call("who")

helper = Agent("Helper", ScriptedModel(then=["One ", Stall()]))
brief = Agent("Brief", ScriptedModel(then=["One ", Pause(0.3), "done."]))
speaker = Agent("Speaker", ScriptedModel(then=answer), tools=[who])
agents = [helper, brief, speaker]
"""


class Group:
    """A parent and its workers."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.told: list[str] = []
        self.url = self.until(r"serving .* at (http://\S+)")[1]
        self.client = self.another_client()

    def another_client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=HANG, verify=False)

    def until(self, pattern: str) -> re.Match[str]:
        """Read on until a line says this."""
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            self.told.append(line.rstrip())
            if found := re.fullmatch(pattern, line.rstrip()):
                return found
        raise AssertionError(f"it never said {pattern!r}, but {self.told}")

    def pids(self) -> list[int]:
        return [int(each) for each in self.until(r"workers: \d+ processes \((.*)\), of \d+")[1].split(", ")]

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.client.close()
        self.process.send_signal(number)
        return self.process.wait(HANG)

    def ask(self, message: str = "Hi", agent: str = "speaker") -> str:
        """A run by whichever worker, on a connection of its own."""
        with self.another_client() as client:
            fields = {"message": message, "stream": False}
            return str(client.post(f"/agents/{agent}/runs", json=fields).json()["content"])

    def answered_by(self, count: int, but: str = "") -> set[str]:
        """Ask until so many workers have answered, and say which."""
        answered: set[str] = set()

        def ask() -> bool:
            answered.update({self.ask()} - {but})
            return len(answered) == count

        eventually(ask)
        return answered


@contextlib.contextmanager
def serving(here: Path, *options: str, complains: str = "", program: str = PROGRAM) -> Iterator[Group]:
    (here / "program.py").write_text(program)
    command = [sys.executable, "-m", "andon", "serve", "program:agents", "--port", "0", *options]
    with (
        open(here / "stderr", "w", encoding="utf-8") as stderr,
        subprocess.Popen(
            command, cwd=here, env=environment(), stdout=subprocess.PIPE, stderr=stderr, text=True
        ) as process,
    ):
        try:
            yield Group(process)
        finally:
            process.kill()
    told = (here / "stderr").read_text()
    assert re.fullmatch(complains, told), told


def is_alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    return False


# -- several ----------------------------------------------------------------------------------------------------------


def test_two_processes_serve_one_port_and_end_with_one_signal(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", "2") as group:
        pids = group.pids()
        assert f"database: sqlite:///{tmp_path}/andon.db" in group.told
        assert group.answered_by(2) == {str(pid) for pid in pids}
        assert group.process.pid not in pids
        assert group.end(signal.SIGINT) == 0
        assert not any(map(is_alive, pids))


def test_a_cancel_reaches_the_worker_that_has_the_run(tmp_path: Path) -> None:
    """Eight connections reach both workers, and every cancel but those of one's own goes through the store."""
    with serving(tmp_path, "--workers", "2", "--drain", "0") as group, contextlib.ExitStack() as stack:
        group.pids()
        streams = {}
        for number in range(8):
            client = stack.enter_context(group.another_client())
            fields = {"message": "Hi", "run_id": f"r{number}"}
            response = stack.enter_context(client.stream("POST", "/agents/helper/runs", data=fields))
            streams[f"r{number}"] = frames(response.iter_lines())
            assert [next(streams[f"r{number}"]).event for _ in range(2)] == ["RunStarted", "RunContent"]
        for run_id, stream in streams.items():
            with group.another_client() as client:
                answer = client.post(f"/agents/helper/runs/{run_id}/cancel?wait=30").json()
            assert (answer["outcome"], answer["status"]) == ("requested", "CANCELLED")
            assert list(stream)[-1].event == "RunCancelled"
        assert group.end() == 0


def test_one_signal_drains_all_workers_and_says_for_what(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", "2", "--drain", "30") as group, contextlib.ExitStack() as stack:
        group.pids()
        streams = []
        for number in range(6):
            client = stack.enter_context(group.another_client())
            fields = {"message": "Hi", "run_id": f"r{number}"}
            streams.append(
                frames(stack.enter_context(client.stream("POST", "/agents/brief/runs", data=fields)).iter_lines())
            )
            next(streams[-1])
        group.process.send_signal(signal.SIGTERM)
        assert [list(stream)[-1].data["content"] for stream in streams] == ["One done."] * 6, "they could finish"
        assert group.process.wait(HANG) == 0
        group.until(
            r"worker \d: shutting down: waiting up to 30 s for \d runs?: r\d \(brief\).* ends the server at once"
        )


def test_a_signal_to_every_process_drains_all_workers(tmp_path: Path) -> None:
    """As systemd does it, with the parent as the last one."""
    with serving(tmp_path, "--workers", "2", "--drain", "30") as group, contextlib.ExitStack() as stack:
        pids, streams = group.pids(), []
        for _ in range(6):
            client = stack.enter_context(group.another_client())
            response = stack.enter_context(client.stream("POST", "/agents/brief/runs", data={"message": "Hi"}))
            streams.append(frames(response.iter_lines()))
            next(streams[-1])
        for pid in (*pids, group.process.pid):
            os.kill(pid, signal.SIGTERM)
        assert [list(stream)[-1].data["content"] for stream in streams] == ["One done."] * 6, "they could finish"
        assert group.process.wait(HANG) == 0


@contextlib.contextmanager
def draining(group: Group) -> Iterator[None]:
    """While it waits for the run of a client that reads on."""
    with group.client.stream("POST", "/agents/helper/runs", data={"message": "Hi"}) as response:
        reading = frames(response.iter_lines())  # kept: without it, httpx closes the connection, and the run ends
        next(reading)
        group.process.send_signal(signal.SIGTERM)
        group.until(r"worker \d: shutting down: .*")
        yield


def test_a_worker_that_is_killed_while_it_drains_is_a_failure(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", "2", "--drain", "3600") as group:
        pids = group.pids()
        with draining(group):

            def gone() -> bool:
                for pid in filter(is_alive, pids):
                    os.kill(pid, signal.SIGTERM)
                return not any(map(is_alive, pids))

            eventually(gone)
        group.client.close()
        assert group.process.wait(HANG) == 1


class Fake:
    """A worker without a process. It serves until it is asked to end."""

    pid, is_ready = 1, True

    def __init__(self) -> None:
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def ready(self) -> str:
        return "serving"

    def drain(self) -> None:
        if not self.code.done():
            self.code.set_result(0)

    async def ended(self) -> int:
        return await self.code


@pytest.mark.parametrize("number", [1, 2])
def test_a_worker_that_can_not_be_started_is_tried_again(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[tuple[int, Fake]] = []
    failing = 0

    async def start(number: int, *_: object) -> Fake:
        nonlocal failing
        if failing:
            failing -= 1
            raise OSError(24, "Too many open files")
        started.append((number, Fake()))
        return started[-1][1]

    async def main() -> int:
        nonlocal failing
        with socket.socket() as listener:
            group = workers.Workers([], listener)
            keeping = asyncio.create_task(group.keep(2))
            await until(lambda: len(started) == 2)
            failing = 2
            started[number - 1][1].code.set_result(-signal.SIGKILL)
            await until(lambda: len(started) == 3)
            assert started[2][0] == number
            group._caught(signal.SIGTERM)
            return await keeping

    monkeypatch.setattr(workers.Worker, "start", start)
    monkeypatch.setattr(workers, "RESTART_SECONDS", 0.001)
    assert asyncio.run(main()) == 0
    told = capsys.readouterr().err.splitlines()
    assert told == [
        f"andon: worker {number} has ended (SIGKILL); starting another in 0.001 s",
        f"andon: worker {number} could not be started ([Errno 24] Too many open files); starting another in 0.002 s",
        f"andon: worker {number} could not be started ([Errno 24] Too many open files); starting another in 0.004 s",
    ]


def test_a_first_worker_that_can_not_be_started_is_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def start(*_: object) -> Fake:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(workers.Worker, "start", start)
    with socket.socket() as listener:
        assert asyncio.run(workers.Workers([], listener).keep(2)) == 1
    assert capsys.readouterr().err == "andon: the server could not be started ([Errno 12] Cannot allocate memory)\n"


def test_a_second_signal_ends_all_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", "2", "--drain", "3600") as group:
        pids = group.pids()
        with draining(group):
            assert group.end() == -signal.SIGTERM
        eventually(lambda: not any(map(is_alive, pids)))


def test_a_worker_that_dies_is_replaced(tmp_path: Path) -> None:
    complains = r"(andon: )?.*worker 2 has ended \(SIGKILL\); starting another in 1 s\n"
    with serving(tmp_path, "--workers", "2", complains=complains) as group:
        first, second = group.pids()
        os.kill(second, signal.SIGKILL)
        assert str(first) in group.answered_by(2, but=str(second))
        assert group.end() == 0


def test_workers_do_not_outlive_their_parent(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", "2", "--drain", "0") as group:
        pids = group.pids()
        group.process.kill()
        eventually(lambda: not any(map(is_alive, pids)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["program:agents", "--workers", "2", "--db", "memory://"], "--workers needs a database"),
        (["own:agent", "--workers", "2"], "--workers needs a database"),
        (["program:agents", "--workers", "2", "--reload"], "give one of them"),
        (["program:agents", "--workers", "0"], "1 or more"),
        (["program:agents", "--workers", "inf"], "1 or more, and not 'inf'"),
        (["program:nobody", "--workers", "2"], "there is no 'nobody'"),
        (["--workers", "2"], "no agent to serve"),
    ],
)
def test_what_can_not_be_served_so(tmp_path: Path, options: list[str], words: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "own.py").write_text(
        "from andon import Agent, Runtime\nfrom andon.models.scripted import ScriptedModel\n"
        "agent = Agent('Own', ScriptedModel(), runtime=Runtime())\n"
    )
    ended = alone(tmp_path, "serve", *options, "--port", "0")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count(words) == 1, ended.stderr


# -- one, and again ---------------------------------------------------------------------------------------------------


def test_a_changed_program_is_served_anew(tmp_path: Path) -> None:
    with serving(tmp_path, "--reload") as group:
        group.until("database: .*")
        with group.another_client() as client:
            fields = {"message": "Hi", "run_id": "r1"}
            with client.stream("POST", "/agents/helper/runs", data=fields) as response:
                stream = frames(response.iter_lines())
                next(stream)
                (tmp_path / "program.py").write_text(PROGRAM.replace('"One "', '"Another "'))
                last = list(stream)[-1].data
        assert (last["event"], last["receipt"]["cause"]) == ("RunCancelled", "shutdown")
        group.until(r"changed: program\.py; starting again")
        assert group.until(r"serving .* at (http://\S+)")[1] == group.url
        assert group.ask(agent="brief") == "Another done."
        with group.another_client() as client:
            assert client.get("/agents/helper/runs/r1").json()["status"] == "CANCELLED", "the database has kept it"
        assert group.end(signal.SIGINT) == 0


def test_a_signal_while_a_changed_program_drains_does_not_cut_it_off(tmp_path: Path) -> None:
    slow = PROGRAM.replace("Pause(0.3)", "Pause(2.0)")
    with serving(tmp_path, "--reload", "--drain", "30", program=slow) as group:
        group.until("database: .*")
        with group.client.stream("POST", "/agents/brief/runs", data={"message": "Hi"}) as response:
            stream = frames(response.iter_lines())
            next(stream)
            (tmp_path / "program.py").write_text(PROGRAM)
            group.until(r"shutting down: .*")
            group.process.send_signal(signal.SIGTERM)
            assert list(stream)[-1].data["content"] == "One done."
        group.client.close()
        assert group.process.wait(HANG) == 0


def test_a_broken_program_is_shown_and_mended(tmp_path: Path) -> None:
    complains = (
        r"(?s)Traceback .*program\.py\", line 1.*ZeroDivisionError.*can't be imported.*has ended \(exit code 2\).*"
    )
    with serving(tmp_path, "--reload", complains=complains) as group:
        group.until("database: .*")
        (tmp_path / "program.py").write_text("1 / 0\n")
        group.until(r"changed: .*")
        eventually(lambda: "starts it again" in (tmp_path / "stderr").read_text())
        (tmp_path / "program.py").write_text(PROGRAM)
        group.until(r"serving .*")
        assert group.ask(agent="brief") == "One done."
        assert group.end() == 0


def test_only_the_program_s_files_count(tmp_path: Path) -> None:
    for name in (".hidden", "venv", "package", "node_modules"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text("")
    (tmp_path / "venv" / "pyvenv.cfg").write_text("")
    (tmp_path / "main.py").write_text("")
    (tmp_path / "andon.db").write_text("")
    files = FileWatcher(str(tmp_path))
    assert sorted(name for name, _ in files._look()) == ["main.py", os.path.join("package", "a.py")]
    before = time.time_ns()
    os.utime(tmp_path / "main.py", ns=(before, before))
    assert {name for name, _ in dict(files._look()).items() ^ files._seen.items()} <= {"main.py"}
