# SPDX-License-Identifier: Apache-2.0
"""Reading an answer to its end: by server-sent events, or by events of any other form."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import httpx2
import pytest

from andon.errors import ModelError, ModelStreamError
from andon.models.common.errors import ErrorTable, QuotingError
from andon.models.common.stream import EVENTS_PER_TURN, EXCERPT_BYTES, read_events, read_sse
from tests.support import play


class Numbers:
    """Frames of two bytes each, which are a number: what a splitter may be besides that of SSE."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, read: bytes) -> list[int]:
        data = self._rest + read
        end = len(data) // 2 * 2
        self._rest = data[end:]
        return [int.from_bytes(data[n : n + 2]) for n in range(0, end, 2)]

    def finish(self) -> list[int]:
        if self._rest:
            raise ModelStreamError("a frame was cut")
        return []


class Until:
    """Takes numbers until one is the last. With None, the end of the stream is the end of the answer."""

    def __init__(self, last: int | None = 0, on_take: Callable[[], None] = lambda: None) -> None:
        self.taken: list[int] = []
        self.finished = False
        self.ended = 0
        self._last = last
        self._on_take = on_take

    def take(self, events: list[int]) -> None:
        self._on_take()
        self.taken += events
        self.finished = self._last in events

    def end(self) -> None:
        self.ended += 1
        self.finished = self.finished or (self._last is None and bool(self.taken))


class Reads:
    """Reads of a network, and whether they were closed."""

    def __init__(self, *reads: bytes | BaseException | None) -> None:
        self._reads = reads
        self.left = list(reads)
        self.is_closed = False

    async def __call__(self) -> AsyncGenerator[bytes, None]:
        try:
            for read in self._reads:
                if read is None:
                    await asyncio.get_running_loop().create_future()
                elif isinstance(read, BaseException):
                    raise read
                else:
                    self.left.remove(read)
                    yield read
        finally:
            self.is_closed = True


def read_all(reads: Reads, decoder: Until) -> None:
    try:
        play(lambda: read_events(reads(), Numbers(), decoder))
    finally:
        assert reads.is_closed


def test_events_are_taken_as_reads_complete_them() -> None:
    reads, decoder = Reads(b"\0\1\0", b"", b"\2\0\3\0\0"), Until()
    read_all(reads, decoder)
    assert decoder.taken == [1, 2, 3, 0]
    assert decoder.ended == 1


def test_a_stream_that_ends_before_the_answer_is_a_failure() -> None:
    decoder = Until()
    with pytest.raises(ModelStreamError, match="ended early") as caught:
        read_all(Reads(b"\0\1"), decoder)
    assert caught.value.retryable
    assert decoder.ended == 1


def test_the_end_of_the_stream_may_be_the_end_of_the_answer() -> None:
    decoder = Until(None)
    read_all(Reads(b"\0\1\0\2"), decoder)
    assert decoder.taken == [1, 2]


def test_a_last_event_that_was_cut_is_an_early_end() -> None:
    with pytest.raises(ModelStreamError, match="ended early"):
        read_all(Reads(b"\0\1\0"), Until())


def test_after_the_answer_the_rest_is_read_and_a_broken_connection_does_not_matter() -> None:
    reads = Reads(b"\0\0", b"rest", OSError("reset"))
    read_all(reads, Until())
    assert reads.left == [reads._reads[-1]]


def test_after_the_answer_a_stream_that_stays_open_is_left() -> None:
    read_all(Reads(b"\0\0", None), Until())


def test_an_error_of_the_connection_goes_through() -> None:
    with pytest.raises(OSError, match="reset"):
        read_all(Reads(b"\0\1", OSError("reset")), Until())


def test_a_cancel_closes_what_is_read() -> None:
    async def main() -> None:
        waits = asyncio.Event()
        reads, decoder = Reads(b"\0\1", None), Until(on_take=waits.set)
        reading = asyncio.ensure_future(read_events(reads(), Numbers(), decoder))
        await waits.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert reads.is_closed
        assert decoder.taken == [1]

    play(main)


def test_other_tasks_run_while_events_keep_coming() -> None:
    async def main() -> None:
        turns: list[int] = []
        reads, decoder = Reads(*[b"\0\1"] * EVENTS_PER_TURN * 3, b"\0\0"), Until()
        asyncio.get_running_loop().call_soon(lambda: turns.append(len(decoder.taken)))
        await read_events(reads(), Numbers(), decoder)
        assert turns == [EVENTS_PER_TURN]

    play(main)


# -- server-sent events over HTTP -------------------------------------------------------------------------------------


class Texts:
    """Takes payloads until `[DONE]`."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.finished = False

    def take(self, events: list[bytes]) -> None:
        self.taken += events
        self.finished = b"[DONE]" in events

    def end(self) -> None:
        pass


def read(body: bytes, **headers: str) -> list[bytes]:
    decoder = Texts()
    response = httpx2.Response(200, headers={key.replace("_", "-"): headers[key] for key in headers}, content=body)
    play(lambda: read_sse(response, decoder, ErrorTable()))
    return decoder.taken


@pytest.mark.parametrize("kind", ["text/event-stream; charset=utf-8", "Text/Plain", "application/octet-stream"])
def test_a_stream_by_any_of_its_names(kind: str) -> None:
    assert read(b"data: one\n\ndata: [DONE]\n\n", content_type=kind) == [b"one", b"[DONE]"]


def test_a_stream_without_a_content_type() -> None:
    assert read(b"data: one\n\ndata: [DONE]") == [b"one", b"[DONE]"]


def test_a_page_is_refused_and_not_read_for_ever() -> None:
    with pytest.raises(QuotingError, match="text/html") as caught:
        read(b"x" * EXCERPT_BYTES * 1000, content_type="text/html", x_request_id="req_1")
    assert caught.value.request_id == "req_1"


def test_an_error_in_json_is_told() -> None:
    with pytest.raises(ModelError, match="No such model"):
        read(b'{"error": {"message": "No such model"}}', content_type="application/json")
