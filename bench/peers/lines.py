# SPDX-License-Identifier: Apache-2.0
"""A process that is spoken to in lines of JSON.

What must stay true: no wait is without a timeout, and the process is gone when its block is left.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

Json = dict[str, Any]

ROOT = Path(__file__).parent.parent.parent
ERRORS_KEPT = 40


class PeerError(Exception):
    """A process did not do what it was asked to do: what it said last is in the message."""


class Lines:
    """The process, while `speaking` holds it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._answers: queue.Queue[Json | None] = queue.Queue()
        self._events: queue.Queue[Json | None] = queue.Queue()
        self._errors: list[str] = []
        self._reading = [
            threading.Thread(target=target, args=(stream,), daemon=True)
            for target, stream in ((self._read, process.stdout), (self._listen, process.stderr))
        ]
        for thread in self._reading:
            thread.start()

    def ask(self, do: str, *, patience: float = 30, **arguments: Any) -> Json:
        """Give a command, and wait for its answer."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self.process.stdin.flush()
        except OSError:
            raise PeerError(f"{do}: the process has ended. {self._last_words()}") from None
        answer = self._take(self._answers, patience, do)
        if "error" in answer:
            raise PeerError(f"{do}: {answer['error']}")
        return answer

    def event(self, kind: str, /, *, patience: float = 30, **like: Any) -> Json:
        """The next event of this name whose values are these."""
        until = time.monotonic() + patience
        while True:
            event = self._take(self._events, max(0, until - time.monotonic()), kind)
            if event["event"] == kind and all(event.get(key) == value for key, value in like.items()):
                return event

    def _take(self, source: queue.Queue[Json | None], patience: float, what: str) -> Json:
        try:
            line = source.get(timeout=patience)
        except queue.Empty:
            raise PeerError(f"{what}: nothing came for {patience:.0f} s. {self._last_words()}") from None
        if line is None:
            source.put(None)
            self._reading[1].join(1)  # its last words may still be on the way
            raise PeerError(f"{what}: the process has ended. {self._last_words()}")
        return line

    def forget_events(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._events.get_nowait()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            said = json.loads(line)
            (self._events if "event" in said else self._answers).put(said)
        self._answers.put(None)
        self._events.put(None)

    def _listen(self, stream: IO[str]) -> None:
        for line in stream:
            self._errors.append(line.rstrip())
            del self._errors[:-ERRORS_KEPT]

    def _last_words(self) -> str:
        return " | ".join(line for line in self._errors[-3:] if line)[:400]


@contextlib.contextmanager
def speaking(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[Lines]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield Lines(process)
        finally:
            process.kill()
