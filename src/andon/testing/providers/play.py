# SPDX-License-Identifier: Apache-2.0
"""Plays one answer, word by word, to one client.

Each wait here is a plain `await`; if the client disconnects, it is cancelled. What must stay true: a state is marked
after the client can see it. Only the ends are marked before the last bytes are sent: as soon as a client has these, it
may close the connection, and that does not count as leaving.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Protocol

from andon.testing.providers.script import (
    Answer,
    Call,
    Cut,
    End,
    Fail,
    Finish,
    Pause,
    Raw,
    Reasoning,
    Silence,
    Spent,
    Stall,
    Text,
    Until,
    Word,
    grouped,
    words,
)
from andon.testing.providers.served import Served
from andon.testing.providers.server import head, pause

BATCH = 64 * 1024
"""Pieces without a pace are sent together, about so many bytes in one chunk, so that the fake is not the slow part."""

SSE = "text/event-stream; charset=utf-8"
_STREAM = {"cache-control": "no-cache", "transfer-encoding": "chunked"}
_JSON = {"content-type": "application/json"}


class Writer(Protocol):
    """A provider's wire format, for one answer: words as events of a stream, and the body of a plain answer.

    Each item of a list that a method returns is one event, whole. It may also have a method `failure_headers(word)`:
    the headers of an HTTP error, besides those of the script.
    """

    @property
    def content_type(self) -> str:
        """Of a stream."""
        ...

    def start(self) -> bytes: ...
    def text(self, word: Text) -> list[bytes]: ...
    def reasoning(self, word: Reasoning) -> list[bytes]: ...
    def calls(self, words: Sequence[Call]) -> list[bytes]: ...
    def spent(self, word: Spent) -> None: ...
    def finish(self, word: Finish) -> None: ...

    def failed(self, word: Fail) -> bytes:
        """The event of a stream that fails."""
        ...

    def failed_at_once(self, word: Fail) -> dict[str, Any]:
        """The body of an HTTP error."""
        ...

    def last(self) -> bytes: ...
    def whole(self) -> dict[str, Any]: ...


class Channel(Protocol):
    """Where a player writes: a client's connection, as a rule."""

    on_left: Callable[[], None] | None

    def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...
    def close(self, *, reset: bool = False) -> None: ...


class Player:
    """Plays the answer to one request. `play` returns whether the connection can be used again."""

    def __init__(
        self,
        connection: Channel,
        served: Served,
        writer: Writer,
        *,
        streams: bool,
        newline: bytes = b"\n",
        split: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        self._connection = connection
        self._served = served
        self._writer = writer
        self._streams = streams
        self._newline = newline
        self._split = split
        self._headers = headers or {}
        self._open = False  # the headers of a stream were sent
        self._body: bytes | None = None  # of a plain answer, if a script gave it

    async def play(self, answer: Answer) -> bool:
        for step in grouped(words(answer)):
            match step:
                case Fail():
                    return await self._fail(step)
                case Cut():
                    return await self._cut(step)
                case Raw(content_type=str()):
                    return await self._foreign(step)
                case End():
                    return await self._end(b"")
                case _:
                    await self._word(step)
            self._served.sent.extend(step if isinstance(step, list) else [step])
        return await self._end(self._writer.last() if self._streams else b"")

    async def _word(self, step: Word | list[Call]) -> None:
        writer = self._writer
        match step:
            case Text():
                await self._say("text", partial(writer.text, step), step.pace)
            case Reasoning():
                await self._say("reasoning", partial(writer.reasoning, step), step.pace)
            case list():
                await self._say("call", partial(writer.calls, step), step[0].pace)
            case Raw():
                await self._raw(step.data)
            case Spent():
                writer.spent(step)
            case Finish():
                writer.finish(step)
            case Pause():
                self._served.mark("paused")
                await pause(step.seconds)
            case Until():
                self._served.mark("held")
                await _set(step.event)
            case Silence():
                await self._for_ever("silent")
            case Stall():
                if self._streams:
                    await self._headers_sent()
                await self._for_ever("stalled")

    async def _for_ever(self, state: str) -> None:
        self._served.mark(state)
        await asyncio.get_running_loop().create_future()

    # -- saying

    async def _say(self, state: str, write: Callable[[], list[bytes]], pace: float) -> None:
        if not self._streams:
            write()  # for the answer as a whole
            return
        await self._headers_sent()
        events = write()  # not before: events are numbered as they are made
        marked = False
        for batch in _batches(events, 1 if pace else BATCH):
            if marked and pace:
                await pause(pace)
            await self._send(b"".join(batch))
            self._served.pieces_sent += len(batch)
            if not marked:
                self._served.mark(state)
                marked = True

    async def _raw(self, data: bytes) -> None:
        if self._streams:
            await self._headers_sent()
            await self._write(_chunk(data))
        else:
            self._body = (self._body or b"") + data
        self._served.mark("raw")

    async def _headers_sent(self) -> None:
        if not self._open:
            self._open = True
            await self._write(head(200, {"content-type": self._writer.content_type, **_STREAM, **self._headers}))
            await self._send(self._writer.start())

    async def _send(self, events: bytes) -> None:
        await self._write(self._chunks(events))

    def _chunks(self, events: bytes) -> bytes:
        if self._newline != b"\n" and self._writer.content_type.startswith("text/"):  # other streams have no lines
            events = events.replace(b"\n", self._newline)
        size = self._split or max(len(events), 1)
        return b"".join(_chunk(events[start : start + size]) for start in range(0, len(events), size))

    async def _write(self, data: bytes) -> None:
        self._connection.write(data)
        self._served.wrote(len(data))
        await self._connection.drain()

    # -- ending

    async def _end(self, last: bytes) -> bool:
        if self._streams:
            await self._headers_sent()
            self._over("finished")
            await self._write(self._chunks(last) + b"0\r\n\r\n")
        else:
            body = json.dumps(self._writer.whole()).encode() if self._body is None else self._body
            await self._whole(200, _JSON, body, "finished")
        return True

    async def _fail(self, word: Fail) -> bool:
        if self._open:
            events = self._writer.failed(word)
            self._over("failed")
            await self._write(self._chunks(events) + b"0\r\n\r\n")
        else:
            body = json.dumps(self._writer.failed_at_once(word)).encode()
            headers = {**_JSON, **_failure_headers(self._writer, word), **word.headers}
            await self._whole(word.status, headers, body, "failed")
        return True

    async def _foreign(self, word: Raw) -> bool:
        assert word.content_type is not None
        await self._whole(word.status, {"content-type": word.content_type}, word.data, "finished")
        return True

    async def _whole(self, status: int, headers: dict[str, str], body: bytes, state: str) -> None:
        headers = {**self._headers, **headers, "content-length": str(len(body))}
        self._over(state)
        await self._write(head(status, headers) + body)

    async def _cut(self, word: Cut) -> bool:
        if self._open and word.mid_chunk:
            await self._write(b"400\r\ndata")  # a few bytes of a large chunk: no whole event in any format
        self._over("cut")
        self._connection.close(reset=word.reset)
        return False

    def _over(self, state: str) -> None:
        self._connection.on_left = None
        self._served.mark(state)


def _failure_headers(writer: Writer, word: Fail) -> dict[str, str]:
    """The headers of an HTTP error. A writer has the method `failure_headers` if its provider has errors in headers."""
    find = getattr(writer, "failure_headers", None)
    return {} if find is None else find(word)


async def _set(event: threading.Event) -> None:
    # Polled, because a thread that waits for the event would go on waiting after the client has disconnected.
    while not event.is_set():  # noqa: ASYNC110
        await asyncio.sleep(0.002)


@lru_cache(maxsize=32)
def as_json(pieces: tuple[str, ...]) -> list[bytes]:
    """Each piece as JSON; cached, because the same word is played many times."""
    return [json.dumps(piece, ensure_ascii=False).encode() for piece in pieces]


def _batches(events: list[bytes], size: int) -> list[list[bytes]]:
    batches: list[list[bytes]] = []
    room = 0
    for event in events:
        if room <= 0:
            batches.append([])
            room = size
        batches[-1].append(event)
        room -= len(event)
    return batches


def _chunk(data: bytes) -> bytes:
    # An empty chunk would be the end of the body.
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
