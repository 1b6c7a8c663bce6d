# SPDX-License-Identifier: Apache-2.0
"""Answers that the fake of Responses makes in the background: each is played once, with any number of readers.

A tape has the events of one answer. A player writes them, and any number of connections read them, from any event on.
What must stay true: a lost connection does not end the answer. Only its last word does, or its cancel. So the words
`cut` and `end` only drop the connections that are reading.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol
from urllib.parse import parse_qs

from andon.testing.providers.api import Json, Rejection
from andon.testing.providers.openai import rules
from andon.testing.providers.play import Player, Writer
from andon.testing.providers.script import Answer, Cut, End, Fail, Pause, Silence, Until, Word, words
from andon.testing.providers.served import Served
from andon.testing.providers.server import Connection, Request, head, pause

_ONE = re.compile(r"/v1/responses/(?P<id>[^/?]+)(?P<cancel>/cancel)?")
_STREAM = {"content-type": "text/event-stream; charset=utf-8", "transfer-encoding": "chunked"}
_LAST_CHUNK = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Drop:
    """The connection that reads is dropped before the event at this place."""

    place: int
    reset: bool = False
    in_order: bool = False
    """The body ends in order for HTTP."""
    before_headers: bool = False


class Tape:
    """The events of one answer. A player takes it for a connection, so it is given bytes of HTTP, and keeps events."""

    def __init__(self, response: str, record: Served) -> None:
        self.response, self.record = response, record
        self.on_left: Callable[[], None] | None = None  # a player sets it: no client of a tape leaves
        self.head: bytes | None = None
        """All of the response before its first event; for a response that is no stream, the whole of it."""
        self.is_stream = False
        self.events: list[bytes] = []
        self.status = "queued"
        self.drops: list[Drop] = []
        """The places at which the next connections that read are dropped, one each."""
        self.task: asyncio.Task[None] | None = None
        self._held = b""
        self._changed = asyncio.Event()

    @property
    def is_over(self) -> bool:
        return self.status not in ("queued", "in_progress")

    def end(self, status: str) -> None:
        self.status = status
        self._wake()

    async def changed(self) -> None:
        await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # -- what a player calls

    def write(self, data: bytes) -> None:
        if self.head is None:
            self.head, self.status = data, "in_progress"
            self.is_stream = b"transfer-encoding: chunked" in data
        elif data.endswith(_LAST_CHUNK):
            self._add(data.removesuffix(_LAST_CHUNK))
        else:
            self._add(data)
        self._wake()

    async def drain(self) -> None:
        await asyncio.sleep(0)

    def close(self, *, reset: bool = False, in_order: bool = False) -> None:
        self.drops.append(Drop(len(self.events), reset, in_order, self.head is None))
        self._wake()

    def _add(self, data: bytes) -> None:
        while data:
            size, _, data = data.partition(b"\r\n")
            if len(data) < (length := int(size, 16)):  # cut in the middle of a chunk: no part of any event
                return
            self._held += data[:length]
            data = data[length + 2 :]
        *events, self._held = self._held.split(b"\n\n")
        self.events += [event + b"\n\n" for event in events]


class ResponseWriter(Writer, Protocol):
    @property
    def id(self) -> str:
        """Of the response."""
        ...


class Background:
    """The tapes of one fake, and what it does with requests for one of them.

    `on_cancel` and `on_resume` are words for the requests of their kind, in order, the last one for all later ones:
    `fail`, `silence`, `until` or `pause`. What comes after the words is done as usual. Without words, that is all.
    With `drop_every`, each connection is dropped after so many events.
    """

    _words: ClassVar[tuple[type, ...]] = (Fail, Silence, Until, Pause)

    def __init__(
        self,
        writer: Callable[[Json], ResponseWriter],
        on_cancel: Sequence[Word] = (),
        on_resume: Sequence[Word] = (),
        drop_every: int | None = None,
    ) -> None:
        if wrong := [word for word in (*on_cancel, *on_resume) if not isinstance(word, self._words)]:
            raise TypeError(f"on_cancel and on_resume take fail, silence, until and pause, not {wrong[0]!r}")
        self.tapes: dict[str, Tape] = {}
        """By the id of the response."""
        self._writer = writer
        self._on_cancel, self._on_resume, self._drop_every = list(on_cancel), list(on_resume), drop_every

    def takes(self, body: Json) -> bool:
        """Whether this answer is made in the background, as a stream."""
        return body.get("background") is True and bool(body.get("stream"))

    def is_for(self, request: Request) -> bool:
        """Whether the request is for a response that exists already."""
        match = _ONE.fullmatch(request.path.partition("?")[0])
        return match is not None and request.method == ("POST" if match["cancel"] else "GET")

    # -- a new one

    async def serve(self, connection: Connection, record: Served, answer: Answer) -> bool:
        """Begin an answer, and read it to the client that asked for it."""
        writer = self._writer(record.body)
        tape = self.tapes[writer.id] = Tape(writer.id, record)
        record.response_id = writer.id
        headers = {"x-request-id": f"req_{record.number}"}
        player = Player(tape, record, writer, streams=True, headers=headers)
        tape.task = asyncio.create_task(_play(tape, player, answer))
        return await self._read(connection, tape, -1)

    # -- one that exists

    async def other(self, connection: Connection, request: Request, api_key: str) -> bool:
        path, _, query = request.path.partition("?")
        match = _ONE.fullmatch(path)
        assert match is not None
        try:
            rules.authorized(request.headers, api_key)
            tape = self._find(match["id"])
        except Rejection as rejected:
            return await _tell(connection, rejected.status, rejected.body)
        if match["cancel"]:
            return await self._cancel(connection, tape)
        asked = {name: values[-1] for name, values in parse_qs(query).items()}
        if asked.get("stream") != "true":
            return await _tell(connection, 200, self._object(tape))
        after = int(asked.get("starting_after", "-1"))
        tape.record.resumed.append(after)
        tape.record.notify()
        if (word := _next(self._on_resume)) is not None and await _instead(connection, word):
            return True
        return await self._read(connection, tape, after)

    def _find(self, id: str) -> Tape:
        if (tape := self.tapes.get(id)) is None:
            raise rules.Rejected(f"Response with id '{id}' not found.", "response_id", status=404)
        return tape

    async def _cancel(self, connection: Connection, tape: Tape) -> bool:
        tape.record.cancels += 1
        tape.record.notify()
        if (word := _next(self._on_cancel)) is not None and await _instead(connection, word):
            return True
        if not tape.is_over:
            assert tape.task is not None
            tape.task.cancel()
            tape.end("cancelled")
            tape.record.mark("cancelled")
        return await _tell(connection, 200, self._object(tape))

    def _object(self, tape: Tape) -> Json:
        return {"id": tape.response, "object": "response", "status": tape.status, "background": True, "usage": None}

    # -- reading

    async def _read(self, connection: Connection, tape: Tape, after: int) -> bool:
        """Send the events after this number, those to come as well. Returns whether the connection can be used again.

        The fake numbers its events from 0 without gaps, so an event's number is its place.
        """
        connection.on_left = lambda: tape.record.mark("left")
        while tape.head is None and not (tape.is_over or tape.drops):
            await tape.changed()
        if tape.drops and tape.drops[0].before_headers:
            return _drop(connection, tape.drops.pop(0))
        if tape.head is None:
            return _drop(connection, Drop(0))
        if not tape.is_stream:
            connection.on_left = None
            connection.write(tape.head)
            await connection.drain()
            return True
        connection.write(head(200, _STREAM))
        place, most = after + 1, float("inf") if self._drop_every is None else after + 1 + self._drop_every
        while True:
            stop = tape.drops[0].place if tape.drops else len(tape.events)
            if place < (until := int(min(stop, most))):
                connection.write(b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in tape.events[place:until]))
                place = until
            await connection.drain()
            if tape.drops and place >= tape.drops[0].place:
                return _drop(connection, tape.drops.pop(0))
            if place < len(tape.events) and place < most:
                continue
            if tape.is_over and place >= len(tape.events):
                return _drop(connection, Drop(place, in_order=True))
            if place >= most:
                return _drop(connection, Drop(place))
            await tape.changed()


def _drop(connection: Connection, drop: Drop) -> bool:
    connection.on_left = None
    if drop.in_order:
        connection.write(_LAST_CHUNK)
    else:
        connection.close(reset=drop.reset)
    return drop.in_order


async def _play(tape: Tape, player: Player, answer: Answer) -> None:
    """Play all of it. A word that ends a connection only drops those that read."""
    part: list[Word] = []
    for word in words(answer):
        part.append(word)
        if isinstance(word, Cut | End):
            await player.play(part)
            if isinstance(word, End):
                tape.close(in_order=True)
            part = []
    await player.play(part)
    tape.end("failed" if isinstance(part[-1] if part else None, Fail) else "completed")


def _next(scripted: list[Word]) -> Word | None:
    return None if not scripted else scripted[0] if len(scripted) == 1 else scripted.pop(0)


async def _instead(connection: Connection, word: Word) -> bool:
    """Do what the script says. True if that was the answer."""
    match word:
        case Fail():
            await connection.respond(word.status, {"content-type": "application/json", **word.headers}, _body(word))
            return True
        case Silence():
            await asyncio.get_running_loop().create_future()
        case Pause():
            await pause(word.seconds)
        case Until():
            while not word.event.is_set():  # noqa: ASYNC110 - a thread that waits would outlive the client
                await asyncio.sleep(0.002)
    return False


def _body(word: Fail) -> bytes:
    return json.dumps(rules.failure(word)).encode()


async def _tell(connection: Connection, status: int, body: dict[str, Any]) -> bool:
    await connection.respond(status, {"content-type": "application/json"}, json.dumps(body).encode())
    return True
