# SPDX-License-Identifier: Apache-2.0
"""Event streams of AWS, from bytes to events. A frame holds one event, and runs through here once per token.

A frame: its length, the length of its headers, a checksum of these two; the headers; the payload; a checksum of all
before. What must stay true: both checksums are checked before anything of a frame is used, and a read may end anywhere.
"""

from __future__ import annotations

import struct
from zlib import crc32

from msgspec import Struct

DAMAGED = "damaged"
"""The kind of a frame that must not be used; its message says why. After it, nothing more is read."""

MAX_FRAME_BYTES = 25 * 1024 * 1024
"""AWS sends at most 24 MB of payload and 128 KB of headers."""

_PRELUDE = struct.Struct(">III")
_unpack_checksum = struct.Struct(">I").unpack_from
_SHORTEST = _PRELUDE.size + 4

MOST_REMEMBERED = 1_000
_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""How many bytes a header's value has, by its type; that of bytes (6) and of text (7) begins with its length."""


class Meaning(Struct, frozen=True, gc=False):
    """What the headers of a frame say."""

    kind: str
    """The type of the event or of the exception, or the code of the error."""
    is_failure: bool = False
    message: str | None = None
    """Of an error: it has no payload."""


Frame = tuple[Meaning, bytes]
"""What a frame is, and its payload: JSON."""

Head = tuple[int, int, int, Meaning | None]
"""How a frame begins: its size, the size of lengths and headers, their checksum so far, and what the headers say if
they can be read."""


class FrameSplitter:
    """Takes the bytes of each read, and returns the frames that are complete by then."""

    __slots__ = ("_head_size", "_heads", "_held", "_is_damaged", "_missing")

    def __init__(self) -> None:
        self._held: list[bytes] = []  # the pieces of a frame that has not ended yet
        self._missing = 0  # how many bytes must come before there is something to do
        self._is_damaged = False
        # Lengths and headers come again and again. What is in here was checked.
        self._heads: dict[bytes, Head] = {}
        self._head_size = 0  # that of the last frame: most likely that of the next one

    def feed(self, read: bytes) -> list[Frame]:
        """The frames that this read completes."""
        if self._is_damaged:
            return []
        if self._held:
            self._held.append(read)
            self._missing -= len(read)
            if self._missing > 0:
                return []
            read = b"".join(self._held)
            self._held.clear()
        frames: list[Frame] = []
        heads, head_size = self._heads, self._head_size
        start, end = 0, len(read)
        while (there := end - start) >= _SHORTEST:
            found = heads.get(read[start : start + head_size]) or self._learn(read, start)
            if found is None:
                return self._end(frames, "its lengths do not fit their checksum, or each other")
            size, head_size, checked, meaning = found
            if size > there:
                break
            stop = start + size
            payload = read[start + head_size : stop - 4]
            if (crc32(payload, checked),) != _unpack_checksum(read, stop - 4):
                return self._end(frames, "it does not fit its checksum")
            if meaning is None:
                return self._end(frames, "its headers can't be read")
            frames.append((meaning, payload))
            start = stop
        self._head_size = head_size
        if there:
            self._held.append(read[start:])
            self._missing = (size if there >= _SHORTEST else _SHORTEST) - there
        return frames

    def finish(self) -> list[Frame]:
        """A frame that has not ended by now was cut."""
        return []

    def _learn(self, read: bytes, start: int) -> Head | None:
        """The head of the frame that begins here; None if its lengths can't be right. It is remembered only if the
        whole frame is there and fits its checksum: nothing else may be understood.
        """
        size, headers_size, expected = _PRELUDE.unpack_from(read, start)
        if crc32(read[start : start + 8]) != expected or not 16 + headers_size <= size <= MAX_FRAME_BYTES:
            return None
        head_size, stop = _PRELUDE.size + headers_size, start + size
        head = read[start : start + head_size]
        if stop > len(read) or (crc32(read[start : stop - 4]),) != _unpack_checksum(read, stop - 4):
            return size, head_size, crc32(head), None
        try:
            meaning = _meaning(head[_PRELUDE.size :])
        except (IndexError, KeyError, struct.error, UnicodeDecodeError):
            return size, head_size, crc32(head), None
        if len(self._heads) >= MOST_REMEMBERED:
            self._heads.clear()
        found = self._heads[head] = (size, head_size, crc32(head), meaning)
        return found

    def _end(self, frames: list[Frame], why: str) -> list[Frame]:
        # An exception would take the good frames before it along.
        self._is_damaged = True
        return [*frames, (Meaning(DAMAGED, True, why), b"")]


def _meaning(headers: bytes) -> Meaning:
    named = _headers(headers)
    if named.get(":message-type") == "exception":
        return Meaning(named.get(":exception-type", ""), True)
    if named.get(":message-type") == "error":
        return Meaning(named.get(":error-code", ""), True, named.get(":error-message", ""))
    return Meaning(named.get(":event-type", ""))


def _headers(data: bytes) -> dict[str, str]:
    """The headers whose values are text."""
    named: dict[str, str] = {}
    at = 0
    while at < len(data):
        name_end = at + 1 + data[at]
        name, kind = data[at + 1 : name_end].decode(), data[name_end]
        at = name_end + 1
        if kind in (6, 7):
            size = int(struct.unpack_from(">H", data, at)[0])
            at += 2
        else:
            size = _SIZES[kind]
        if at + size > len(data):
            raise IndexError
        if kind == 7:
            named[name] = data[at : at + size].decode()
        at += size
    return named
