# SPDX-License-Identifier: Apache-2.0
"""Server-sent events, however they are cut and whatever ends their lines."""

from __future__ import annotations

import pytest

from andon.errors import ModelStreamError
from andon.models.common import sse
from andon.models.common.sse import SseSplitter

STREAM = (
    'event: x\ndata: {"a": "ä€𝄞"}\n\n: a comment\nid: 7\ndata:no blank\n\n'
    "retry: 1\ndata: two\ndata: lines\n\n\ndata\ndata: [DONE]\n\n"
)
PAYLOADS = ['{"a": "ä€𝄞"}', "no blank", "two\nlines", "[DONE]"]


def split(stream: bytes, size: int) -> list[str]:
    splitter = SseSplitter()
    found = [each for start in range(0, len(stream), size) for each in splitter.feed(stream[start : start + size])]
    return [each.decode() for each in [*found, *splitter.finish()]]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 64, 10_000])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_it_does_not_matter_where_it_is_cut(newline: str, size: int, bom: str) -> None:
    assert split((bom + STREAM).replace("\n", newline).encode(), size) == PAYLOADS


def test_each_event_comes_with_the_read_that_completes_it() -> None:
    splitter = SseSplitter()
    assert splitter.feed(b"data: one") == []
    assert splitter.feed(b"\r") == []
    assert splitter.feed(b"\n\r") == [b"one"]  # not held back for the line feed that may follow
    assert splitter.feed(b"\ndata: two\n\ndata: three\n\n") == [b"two", b"three"]
    assert splitter.finish() == []


def test_the_last_blank_line_may_be_missing() -> None:
    assert split(b"data: one\n\ndata: two", 4) == ["one", "two"]
    assert split(b"data: one\n\ndata: two\n", 100) == ["one", "two"]
    assert split(b"", 1) == []


def test_a_line_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_LINE_BYTES", 1000)
    splitter = SseSplitter()
    with pytest.raises(ModelStreamError, match="a line of more than"):
        for _ in range(200):
            splitter.feed(b"data: xxxxxxx")
