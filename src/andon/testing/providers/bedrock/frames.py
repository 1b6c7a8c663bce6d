# SPDX-License-Identifier: Apache-2.0
"""Frames of AWS's event streams, as a server writes them. A frame has two checksums; `damaged` breaks one of them."""

from __future__ import annotations

import json
import struct
from functools import lru_cache
from typing import Any
from zlib import crc32

CONTENT_TYPE = "application/vnd.amazon.eventstream"


def event(kind: str, payload: bytes) -> bytes:
    """An event of the stream."""
    return frame(
        _headers((":event-type", kind), (":content-type", "application/json"), (":message-type", "event")), payload
    )


def exception(kind: str, payload: bytes) -> bytes:
    """An exception that the service knows. It ends the stream."""
    named = ((":exception-type", kind), (":content-type", "application/json"), (":message-type", "exception"))
    return frame(_headers(*named), payload)


def error(code: str, message: str) -> bytes:
    """Any other error: it has no payload."""
    return frame(_headers((":message-type", "error"), (":error-code", code), (":error-message", message)), b"")


def frame(headers: bytes, payload: bytes) -> bytes:
    lengths = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    start = crc32(lengths)
    checked = struct.pack(">I", start) + headers + payload
    return b"%b%b%b" % (lengths, checked, struct.pack(">I", crc32(checked, start)))


def damaged(frame: bytes, at: int) -> bytes:
    """The frame with one byte changed."""
    return b"%b%b%b" % (frame[:at], bytes([frame[at] ^ 0xFF]), frame[at + 1 :])


def as_payload(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@lru_cache(maxsize=64)
def _headers(*named: tuple[str, str]) -> bytes:
    written = []
    for name, value in named:
        data = value.encode()
        written.append(struct.pack(">B", len(name)) + name.encode() + struct.pack(">BH", 7, len(data)) + data)
    return b"".join(written)
