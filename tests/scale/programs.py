# SPDX-License-Identifier: Apache-2.0
"""Workers and servers as processes of their own, that are stopped, killed, and started again."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.cli.terminal import environment
from tests.server.live import frames
from tests.support import HANG

PROGRAM = '''
import asyncio
import os
import pathlib

from andon import Agent, tool
from andon.models.scripted import Call, ScriptedModel, Stall

def note(line):
    with open(pathlib.Path(__file__).parent / "notes", "a") as file:
        file.write(line + "\\n")

async def answered():
    while not pathlib.Path(__file__).parent.joinpath("answer").exists():
        await asyncio.sleep(0.01)

class Where:
    """Says which process executes it."""
    def __call__(self, request):
        note(f"began {os.getpid()}")
        return f"by {os.getpid()}"

@tool(idempotent=True)
async def ask() -> str:
    note(f"ask {os.getpid()}")
    await answered()
    return "asked"

@tool
async def charge() -> str:
    note(f"charge {os.getpid()}")
    await answered()
    return "charged"

def calling(name):
    def turn(request):
        said = [result.content for result in request.messages[-1].tool_results]
        return " ".join(said) if said else Call(name, id="c1")
    return turn

where = Agent("Where", ScriptedModel(then=Where()))
stall = Agent("Stall", ScriptedModel(then=["One ", Stall()]))
goes_on = Agent("Goeson", ScriptedModel(then=["One ", Stall()]), on_lost="continue")
asking = Agent("Asking", ScriptedModel(then=calling("ask")), tools=[ask], on_lost="continue")
charging = Agent("Charging", ScriptedModel(then=calling("charge")), tools=[charge], on_lost="continue")
agents = [where, stall, goes_on, asking, charging]
'''


class Program:
    """A process of the command."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process, self.log = process, log

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        return line

    def until(self, pattern: str) -> re.Match[str]:
        while True:
            if found := re.search(pattern, self.line()):
                return found

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def done(self) -> int:
        return self.process.wait(HANG)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.send(number)
        return self.done()


class Site:
    """A folder with agents, and a database."""

    def __init__(self, here: Path, url: str) -> None:
        self.here, self.url = here, url
        (here / "program.py").write_text(PROGRAM)
        self._count = 0

    def notes(self, word: str) -> list[str]:
        """What the processes did."""
        path = self.here / "notes"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(word)]

    def answer(self) -> None:
        """From now on tools return."""
        (self.here / "answer").touch()

    @contextlib.contextmanager
    def run(self, *arguments: str) -> Iterator[Program]:
        self._count += 1
        log = self.here / f"log-{self._count}"
        command = [sys.executable, "-m", "andon", *arguments, "--db", self.url]
        with (
            open(log, "w", encoding="utf-8") as stderr,
            subprocess.Popen(
                command, cwd=self.here, env=environment(), stdout=subprocess.PIPE, stderr=stderr, text=True
            ) as process,
        ):
            try:
                yield Program(process, log)
            finally:
                process.kill()
        assert "Traceback" not in log.read_text(), log.read_text()

    @contextlib.contextmanager
    def worker(self, *options: str, agents: str = "program:agents") -> Iterator[Program]:
        """A worker process that is up."""
        with self.run("worker", agents, "--lease", "2", "--drain", "0", *options) as program:
            program.until("worker .* serves")
            yield program

    @contextlib.contextmanager
    def server(self, *options: str) -> Iterator[Client]:
        """A server that executes nothing."""
        arguments = ("serve", "program:agents", "--no-execute", "--port", "0", "--lease", "2", *options)
        with self.run(*arguments) as program:
            found = program.until(r"serving .* at (http://\S+)")
            with httpx.Client(base_url=found[1], timeout=HANG, verify=False) as client:
                yield Client(program, client)


class Client:
    """A client of a server that runs."""

    def __init__(self, program: Program, http: httpx.Client) -> None:
        self.program, self.http = program, http

    def start(self, agent: str, run_id: str, **fields: Any) -> None:
        body = {"message": "Hi", "run_id": run_id, "session_id": run_id, "background": True, "stream": False, **fields}
        response = self.http.post(f"/agents/{agent}/runs", json=body)
        assert response.status_code == 202, response.text

    def until(self, agent: str, run_id: str, kind: str) -> None:
        """Wait until the run has come so far."""
        with self.http.stream("GET", f"/agents/{agent}/runs/{run_id}/events") as response:
            assert any(frame.event == kind for frame in frames(response.iter_lines())), kind

    def ended(self, agent: str, run_id: str) -> dict[str, Any]:
        with self.http.stream("GET", f"/agents/{agent}/runs/{run_id}/events") as response:
            assert response.status_code == 200, response.read()
            kinds = [frame.event for frame in frames(response.iter_lines())]
        ends = [kind for kind in kinds if kind in ("RunCompleted", "RunCancelled", "RunError")]
        assert ends == kinds[-1:], kinds
        found: dict[str, Any] = self.http.get(f"/agents/{agent}/runs/{run_id}").json()
        return found

    def exists(self, agent: str, run_id: str) -> bool:
        return self.http.get(f"/agents/{agent}/runs/{run_id}").status_code == 200
