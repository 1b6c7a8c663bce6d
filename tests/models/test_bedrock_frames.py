# SPDX-License-Identifier: Apache-2.0
"""Frames of AWS's event streams: however they arrive, and however they are damaged."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from zlib import crc32

import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from andon.models.bedrock.frames import DAMAGED, MAX_FRAME_BYTES, MOST_REMEMBERED, Frame, FrameSplitter
from andon.testing.providers.bedrock import frames

KINDS = ["messageStart", "contentBlockDelta", "contentBlockStop", "metadata"]
written = st.lists(
    st.tuples(st.sampled_from(KINDS), st.binary(max_size=60)) | st.tuples(st.text(max_size=20), st.binary(max_size=3)),
    max_size=8,
)
cuts = st.lists(st.integers(0, 2_000), max_size=30)


def pieces(data: bytes, at: Iterable[int]) -> list[bytes]:
    """The data, cut at these places."""
    places = sorted({place for place in at if 0 < place < len(data)})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def fed(splitter: FrameSplitter, reads: Iterable[bytes]) -> list[Frame]:
    found = [frame for read in reads for frame in splitter.feed(read)]
    return [*found, *splitter.finish()]


def told(found: Iterable[Frame]) -> list[tuple[str, bytes]]:
    return [(meaning.kind, payload) for meaning, payload in found]


@given(written, cuts)
def test_any_split_gives_the_same_frames(events: list[tuple[str, bytes]], at: list[int]) -> None:
    data = b"".join(frames.event(*each) for each in events)
    found = fed(FrameSplitter(), pieces(data, at))
    assert told(found) == events
    assert not any(meaning.is_failure for meaning, _ in found)


def test_byte_by_byte() -> None:
    data = frames.event("messageStart", b"{}") + frames.event("contentBlockDelta", b'{"delta":{}}')
    found = fed(FrameSplitter(), (data[n : n + 1] for n in range(len(data))))
    assert told(found) == [("messageStart", b"{}"), ("contentBlockDelta", b'{"delta":{}}')]


@given(written.filter(bool), st.data())
def test_a_changed_byte_is_found(events: list[tuple[str, bytes]], data: st.DataObject) -> None:
    """What comes before it is good, nothing after it is taken, and no wrong frame is."""
    whole = b"".join(frames.event(*each) for each in events)
    at = data.draw(st.integers(0, len(whole) - 1))
    flip = data.draw(st.integers(1, 255))
    broken = whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :]
    found = fed(FrameSplitter(), pieces(broken, data.draw(cuts)))
    *good, (last, payload) = found
    assert (last.kind, last.is_failure, payload) == (DAMAGED, True, b"")
    assert told(good) == events[: len(good)]
    assert sum(len(frames.event(*each)) for each in events[: len(good)]) <= at


def test_a_frame_that_was_seen_before_is_checked_again() -> None:
    frame = frames.event("contentBlockDelta", b'{"delta":{"text":"a"}}')
    for at in range(len(frame)):
        splitter = FrameSplitter()
        assert told(splitter.feed(frame)) == [("contentBlockDelta", b'{"delta":{"text":"a"}}')]
        assert told(splitter.feed(frames.damaged(frame, at))) == [(DAMAGED, b"")], at
        assert splitter.feed(frame) == []


def lengths(size: int, headers_size: int) -> bytes:
    start = struct.pack(">II", size, headers_size)
    return start + struct.pack(">I", crc32(start))


@pytest.mark.parametrize(("size", "headers_size"), [(15, 0), (16, 1), (MAX_FRAME_BYTES + 1, 0), (100, 2**32 - 1)])
def test_lengths_that_can_not_be(size: int, headers_size: int) -> None:
    """They are refused at once: the rest of such a frame would be waited for, or held in memory."""
    assert told(FrameSplitter().feed(lengths(size, headers_size) + bytes(4))) == [(DAMAGED, b"")]


def header(name: bytes, kind: int, value: bytes) -> bytes:
    return bytes([len(name)]) + name + bytes([kind]) + value


def test_headers_of_all_types() -> None:
    values = [b"", b"", b"1", b"12", b"1234", b"12345678", b"\0\3abc", b"\0\3abc", b"12345678", b"1" * 16]
    others = b"".join(header(b"%d" % kind, kind, value) for kind, value in enumerate(values))
    event = header(b":message-type", 7, b"\0\5event") + header(b":event-type", 7, b"\0\4ping")
    ((meaning, payload),) = FrameSplitter().feed(frames.frame(others + event, b"{}"))
    assert (meaning.kind, meaning.is_failure, payload) == ("ping", False, b"{}")


@pytest.mark.parametrize("headers", [b"\x05ab", b"\x01a", b"\x01a\x0a", b"\x01a\x07\0\x09a", b"\x01\xff\x07\0\0"])
def test_headers_that_can_not_be_read(headers: bytes) -> None:
    ((meaning, _),) = FrameSplitter().feed(frames.frame(headers, b"{}"))
    assert (meaning.kind, meaning.message) == (DAMAGED, "its headers can't be read")


def test_failures() -> None:
    data = frames.exception("throttlingException", b"{}") + frames.error("InternalError", "broken")
    (one, _), (other, _) = FrameSplitter().feed(data)
    assert (one.kind, one.is_failure, one.message) == ("throttlingException", True, None)
    assert (other.kind, other.is_failure, other.message) == ("InternalError", True, "broken")


def test_what_is_remembered_is_bounded() -> None:
    splitter = FrameSplitter()
    for number in range(2 * MOST_REMEMBERED + 10):
        assert told(splitter.feed(frames.event(f"kind-{number}", bytes(number)))) == [(f"kind-{number}", bytes(number))]
    assert len(splitter._heads) <= MOST_REMEMBERED


@given(written)
def test_the_sdk_reads_the_fakes_frames_alike(events: list[tuple[str, bytes]]) -> None:
    buffer = EventStreamBuffer()
    buffer.add_data(b"".join(frames.event(*each) for each in events))
    assert [(each.headers[":event-type"], each.payload) for each in buffer] == events
