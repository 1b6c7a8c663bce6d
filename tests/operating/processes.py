# SPDX-License-Identifier: Apache-2.0
"""Servers and workers as operators have them: processes, which are started and stopped like services."""

from __future__ import annotations

import contextlib
import io
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import httpx

from andon.cli import main
from tests.support import HANG
from tests.support.flags import eventually as eventually_here

PROGRAM = '''
import asyncio
import pathlib

from andon import Agent, tool
from andon.models.scripted import Call, Pause, ScriptedModel, Stall


@tool(approval=True)
async def delete(name: str) -> str:
    """Delete it."""
    with open("deleted", "a") as file:
        file.write(f"{name}\\n")
    return f"deleted {name}"


@tool
async def wait(name: str) -> str:
    """Wait until there is a file of this name."""
    pathlib.Path(f"{name}.waits").touch()
    while not pathlib.Path(name).exists():
        await asyncio.sleep(0.01)
    return "it is there"


def calls(name, argument, id):
    """A model whose answers depend on the conversation alone: another process may go on with a run."""
    def turn(request):
        return "Done." if request.messages[-1].tool_results else Call(name, {"name": argument}, id=id)
    return ScriptedModel(then=turn)


helper = Agent("Helper", ScriptedModel(then="All is well."), queue="fast")
storyteller = Agent("Storyteller", ScriptedModel(then=["Once upon a time ", Stall()]), queue="slow")
janitor = Agent("Janitor", calls("delete", "all", "d"), tools=[delete])
waiter = Agent("Waiter", calls("wait", "go", "w"), tools=[wait])
agents = [helper, storyteller, janitor, waiter]
'''


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until this holds. Other processes are asked for it, so they are not asked without a pause."""
    eventually_here(holds, every=0.05)


class Process:
    """A process, and the lines that it prints. Whatever it says goes to one place, for the message of a failure."""

    def __init__(
        self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], python_path: str | None = None
    ) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ANDON_")}
        if python_path is not None:
            inherited["PYTHONPATH"] = python_path
        self.popen = subprocess.Popen(
            list(arguments),
            cwd=folder,
            env={**inherited, "PYTHONUNBUFFERED": "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.printed: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self.printed.append(line)
            self._lines.put(line)
        self._lines.put(None)

    def said(self, pattern: str) -> re.Match[str]:
        """Wait until it prints a line with this."""
        while (line := self._lines.get(timeout=HANG)) is not None:
            if (found := re.search(pattern, line)) is not None:
                return found
        raise AssertionError(f"it has ended, and never said {pattern!r}:\n{''.join(self.printed)}")

    @property
    def has_ended(self) -> bool:
        return self.popen.poll() is not None

    def stop(self, number: signal.Signals = signal.SIGTERM, within: float = HANG) -> int:
        """Send the signal, and wait for its end. Returns the exit code."""
        self.popen.send_signal(number)
        return self.ended(within)

    def ended(self, within: float = HANG) -> int:
        code = self.popen.wait(within)
        self._reading.join(HANG)
        return code

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.popen.kill()
        self.ended()
        if self.popen.stdout is not None:
            self.popen.stdout.close()


class Site:
    """Processes in one folder and on one database. All of them are ended with the block."""

    def __init__(self, folder: Path, url: str, program: str = PROGRAM) -> None:
        self.folder, self.url = folder, url
        (folder / "main.py").write_text(program)
        self._stack = contextlib.ExitStack()

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str] | None = None, python_path: str | None = None
    ) -> Process:
        process = Process(arguments, self.folder, environment or {}, python_path)
        self._stack.callback(process.kill)
        return process

    def andon(self, *arguments: str, python_path: str | None = None, **environment: str) -> Process:
        """`andon …` on this database."""
        command = [sys.executable, "-P", "-m", "andon", *arguments]
        return self.start(command, {"ANDON_DB": self.url, **environment}, python_path)

    def serve(self, *arguments: str, python_path: str | None = None, **environment: str) -> Client:
        process = self.andon("serve", "main:agents", "--port", "0", *arguments, python_path=python_path, **environment)
        return self.client(process.said(r"at (http://\S+)$")[1], process)

    def client(self, url: str, process: Process, **headers: str) -> Client:
        http = httpx.Client(base_url=url, timeout=HANG, verify=False, headers=headers)
        self._stack.enter_context(http)
        return Client(url, http, process)

    def worker(self, name: str, *arguments: str, **environment: str) -> Process:
        process = self.andon("worker", "main:agents", "--name", name, *arguments, **environment)
        process.said(rf"^worker {name} serves ")
        return process

    def call(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """Run a command to its end. Returns its exit code, and what it printed."""
        process = self.andon(*arguments, **environment)
        code = process.ended()
        return code, "".join(process.printed)

    def ask(self, *arguments: str) -> tuple[int, str]:
        """The same for commands that need no process of their own, such as `andon ps`."""
        printed, others = io.StringIO(), {name for name in os.environ if name.startswith("ANDON_")}
        with (
            mock.patch.dict(os.environ, dict.fromkeys(others, "") | {"ANDON_DB": self.url}),
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
        ):
            code = main(arguments)
        return code, printed.getvalue()

    def close(self) -> None:
        self._stack.close()


class Client:
    """A server, as its clients see it."""

    def __init__(self, url: str, http: httpx.Client, process: Process) -> None:
        self.url, self.http, self.process = url, http, process

    def start(self, agent: str, run_id: str, session_id: str | None = None, **more: Any) -> None:
        body = {"message": "Hi", "run_id": run_id, "session_id": session_id or run_id, "background": True, **more}
        answer = self.http.post(f"/agents/{agent}/runs", json={"stream": False, **body})
        assert answer.status_code == 202, answer.text

    def state(self, agent: str, run_id: str) -> dict[str, Any]:
        answer = self.http.get(f"/agents/{agent}/runs/{run_id}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def follow(self, agent: str, run_id: str, until: str = "") -> list[str]:
        """The kinds of its events, to its end or its pause, or up to the first of this kind."""
        kinds: list[str] = []
        with self.http.stream("GET", f"/agents/{agent}/runs/{run_id}/events") as stream:
            for line in stream.iter_lines():
                if line.startswith("event:"):
                    kinds.append(line[6:].strip())
                    if kinds[-1] == until:
                        break
        return kinds

    def cancel(self, agent: str, run_id: str) -> dict[str, Any]:
        answer = self.http.post(f"/agents/{agent}/runs/{run_id}/cancel?wait=30", json={})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def answer(self, agent: str, run_id: str) -> dict[str, Any]:
        """Say yes to all that it asks, and wait for its end."""
        answers = {each["id"]: True for each in self.state(agent, run_id)["interrupts"]}
        body = {"answers": answers, "stream": False}
        answer = self.http.post(f"/agents/{agent}/runs/{run_id}/continue", json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def metrics(self) -> dict[str, float]:
        text = self.http.get("/metrics").text
        return {
            line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if not line.startswith("#")
        }

    def workers(self) -> dict[str, Any]:
        answer = self.http.get("/workers")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


@contextlib.contextmanager
def site(folder: Path, url: str, program: str = PROGRAM) -> Iterator[Site]:
    made = Site(folder, url, program)
    try:
        yield made
    finally:
        made.close()
