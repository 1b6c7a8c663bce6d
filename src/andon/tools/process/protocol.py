# SPDX-License-Identifier: Apache-2.0
"""What the host, a keeper and a worker say to each other: frames on stream sockets.

A frame is its length in four bytes, its kind in one, and its data. A keeper passes on whole frames only. So a worker
that is killed in the middle of one breaks nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from andon.core.states import Stopped
from andon.tools.base import ToolOutput
from andon.tools.process.limits import NO_LIMITS, Limits

SPEC, CALL = b"S", b"C"
"""From the host. `SPEC`: what the worker is, a `Spec`. `CALL`: eight bytes with the grace, then a `Call`."""
HELLO, READY, DONE, LAST, OUTPUT, GONE = b"H", b"R", b"D", b"L", b"O", b"G"
"""To the host. `HELLO`: the keeper is there. The host sends no `CALL` before. `READY`: the module is imported, or a
`Failure`. `DONE`: an `Answer`, and the worker can serve another call. `LAST`: an `Answer`, and the worker is being
ended. `OUTPUT`: four bytes with the number of bytes left out before it, and what was printed. `GONE`: a `Gone`,
nothing of the worker's tree is left.
"""

HELPERS = b"P"
"""From the worker to its keeper alone, before `READY`: the processes that the module has started when it was imported.
They are no call's.
"""

KEEP_BYTES = 64 * 1024
"""How much of what a call prints is kept: the end of it."""

HEAD = struct.Struct(">Ic")
GRACE = struct.Struct(">d")
MISSED = struct.Struct(">I")


class Spec(Struct, frozen=True, omit_defaults=True):
    """What a worker is: the interpreter for the tools of a module, or a command.

    What the system gave us is bytes, as `os.fsencode` makes them: it need not be UTF-8, and then it is no JSON.
    """

    cwd: bytes
    environment: dict[bytes, bytes]
    limits: Limits = NO_LIMITS
    grace: float = 0.0
    keep: int = KEEP_BYTES
    module: str = ""
    main: bytes = b""
    """The file of the script, or the module, that the host runs as `__main__`, if the tools are defined there."""
    main_is_file: bool = False
    path: list[bytes] = []
    arguments: list[bytes] = []
    """The host's `sys.argv`; or the command to execute, if there is no module."""


class Call(Struct, frozen=True, omit_defaults=True):
    """One call of a function, with what its context says."""

    name: str
    function: str
    arguments: dict[str, Any]
    call_id: str
    run_id: str
    session_id: str
    user_id: str | None
    deadline: float | None
    metadata: dict[str, Any]
    answers: list[Any] = []
    max_result: int = 0
    """How many bytes the answer may have; 0 sets no limit. The worker refuses more, so it is never sent."""
    max_attachments: int = 0


class Failure(Struct, frozen=True):
    """What the tool raised."""

    kind: str
    said: str
    text: str
    traceback: str


class Question(Struct, frozen=True):
    """What the tool asks a person."""

    name: str
    payload: Any


class Answer(Struct, frozen=True, omit_defaults=True):
    """How a call ended: with a result, a failure, or a question."""

    output: ToolOutput | None = None
    failure: Failure | None = None
    question: Question | None = None


class Gone(Struct, frozen=True, omit_defaults=True):
    """How a worker and its tree ended."""

    stopped: Stopped | None = None
    """How it was ended. None if it ended by itself."""
    status: int | None = None
    """The worker's exit code; minus the number of the signal that ended it."""
    cpu: float = 0.0
    """The seconds of processor time that the worker has used."""
    called: bool = True
    """A worker was given a call, and has not answered it with `DONE`."""
    begun: bool = True
    """The tool's own code may have begun in that call: its module was imported."""
    error: str = ""
    """Why it could not be started."""
    output: bytes = b""
    """The end of what it printed."""
    missed: int = 0
    """How many bytes of output came before that."""


def frame(kind: bytes, data: bytes = b"") -> bytes:
    return HEAD.pack(len(data), kind) + data


def encode(kind: bytes, value: object) -> bytes:
    return frame(kind, msgspec.json.encode(value))


class Frames:
    """Puts frames together from what was read."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The frames that are complete now."""
        self._data += data
        while len(self._data) >= HEAD.size:
            length, kind = HEAD.unpack_from(self._data)
            end = HEAD.size + length
            if len(self._data) < end:
                return
            body = bytes(self._data[HEAD.size : end])
            del self._data[:end]
            yield kind, body
