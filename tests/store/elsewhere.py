# SPDX-License-Identifier: Apache-2.0
"""Another process with the same database, which does what it is told, line by line, and can be killed or stopped."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from typing import Any

import msgspec

from andon.core.receipt import CancelRequest
from andon.core.selection import Selection
from andon.core.shared.store import Lease, Progress
from andon.core.states import RunStatus
from andon.store.sql import SQLStore
from tests.store.making import asking, events, record, said


class Elsewhere:
    """Starts it, and talks to it."""

    def __init__(self) -> None:
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        program = [sys.executable, "-m", "tests.store.elsewhere"]
        return subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def ensure_running(self) -> None:
        if not self.is_running:
            self._process = self._start()

    def tell(self, command: str, *arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode([command, *arguments]).decode() + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the other process is gone"
        return msgspec.json.decode(line)

    def ask(self, command: str, *arguments: Any) -> Any:
        self.tell(command, *arguments)
        return self.answer()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def leave(self) -> None:
        """It goes when nobody talks to it any more, if it was not killed."""
        self._process.communicate()


async def obey(store: SQLStore, command: str, *arguments: Any) -> Any:
    if command == "enter":
        run_id, seconds = arguments
        return await store.enter(record(run_id), "elsewhere", seconds, "queue")
    if command == "write":
        run_id, epoch, count = arguments
        return await store.write([Progress(Lease(run_id, epoch), said(run_id), events(run_id, range(1, count + 1)))])
    if command == "finish":
        run_id, epoch, status = arguments
        answer = await store.finish(Lease(run_id, epoch), record(run_id, RunStatus(status)), said("there"), [])
        return "asked to stop" if isinstance(answer, CancelRequest) else answer and answer.status
    if command == "cancel":
        return await store.request_cancel(Selection(run_id=arguments[0]), asking(by="elsewhere"))
    raise AssertionError(command)


async def main() -> None:
    loop = asyncio.get_running_loop()
    store: SQLStore | None = None
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command, *arguments = msgspec.json.decode(line)
        answer = None
        if command == "open":
            store = SQLStore(*arguments)
            await store.ping()
        elif command == "close":
            assert store is not None
            await store.close()
        else:
            assert store is not None
            answer = await obey(store, command, *arguments)
        print(msgspec.json.encode(answer).decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
