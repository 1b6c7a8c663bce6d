# SPDX-License-Identifier: Apache-2.0
"""Images and files as blocks: their kinds, their mistakes, and what they look like as plain data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import TypeAdapter

from andon import Block, File, Image, Message
from andon.media import IMAGE_TOKENS, estimate_media
from andon.messages import Text, ToolResult, estimate_messages, media_of

PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 20
PDF = b"%PDF-1.7\n" + b"x" * 20


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0 and more", "image/jpeg"),
        (b"GIF89a and more", "image/gif"),
        (b"GIF87a and more", "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp"),
        (b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00", "image/heic"),
        (b"\x00\x00\x00\x18ftypmif1\x00\x00\x00\x00", "image/heif"),
    ],
)
def test_the_first_bytes_tell_the_kind_of_an_image(data: bytes, kind: str) -> None:
    assert Image(data).media_type == kind
    assert Image(data, "image/other").media_type == "image/other"


@pytest.mark.parametrize(
    ("data", "name", "kind"),
    [
        (PDF, None, "application/pdf"),
        (PDF, "notes.txt", "application/pdf"),
        (b"a,b\n1,2", "table.csv", "text/csv"),
        (b"\x00\x01", "song.mp3", "audio/mpeg"),
        ("Grüße".encode(), None, "text/plain"),
    ],
)
def test_bytes_or_name_tell_the_kind_of_a_file(data: bytes, name: str | None, kind: str) -> None:
    assert File(data, name=name).media_type == kind


def test_they_are_read_from_the_disk(tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(PNG)
    (tmp_path / "report.pdf").write_bytes(PDF)
    assert Image.read(tmp_path / "cat.png") == Image(PNG, "image/png")
    assert File.read(str(tmp_path / "report.pdf")) == File(PDF, "application/pdf", name="report.pdf")


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Image(), ValueError, "either data= or url=; here neither"),
        (lambda: Image(b""), ValueError, "or it is empty"),
        (lambda: File(PDF, url="https://x.org/a.pdf"), ValueError, "both are given"),
        (lambda: Image(url="cat.png"), ValueError, r"Image\.read\(path\)"),
        (lambda: Image("cat.png"), TypeError, r"takes bytes, not str; .*Image\.read\(path\)"),  # type: ignore[arg-type]
        (lambda: Image(b"what is this"), ValueError, "media_type='image/png'"),
        (lambda: File(b"\x00\x01\x02"), ValueError, "media_type='application/pdf'"),
        (lambda: File(PDF, name=7), TypeError, "are text"),  # type: ignore[arg-type]
    ],
)
def test_a_mistake_raises_where_the_block_is_made(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()


@pytest.mark.parametrize(
    "block",
    [
        Image(PNG),
        Image(url="https://x.org/cat.png"),
        File(PDF, name="a.pdf"),
        ToolResult("c1", "draw", "Here.", attachments=[Image(PNG), File(PDF)]),
    ],
    ids=repr,
)
def test_they_survive_every_form(block: Any) -> None:
    assert msgspec.json.decode(msgspec.json.encode(block), type=Block) == block
    assert msgspec.convert(block.to_dict(), Block) == block
    plain = TypeAdapter(Message).dump_json(Message("user", [block]))
    assert TypeAdapter(Message).validate_json(plain) == Message("user", [block])


def test_a_result_that_was_stored_before_there_were_attachments_is_read() -> None:
    stored = b'{"type":"tool_result","call_id":"c","name":"n","content":"x","status":"ok"}'
    assert msgspec.json.decode(stored, type=Block) == ToolResult("c", "n", "x")


def test_a_repr_has_no_data() -> None:
    assert repr(Image(PNG)) == "Image(28 bytes, 'image/png')"
    assert repr(File(url="https://x.org/a")) == "File(url='https://x.org/a')"


def test_estimates() -> None:
    assert estimate_media(Image(PNG)) == IMAGE_TOKENS
    assert estimate_media(File(b"four" * 100)) == 100
    assert estimate_media(File(PDF)) == IMAGE_TOKENS
    assert estimate_media(File(b"%PDF-" + b"x" * 1_000_000)) > 10 * IMAGE_TOKENS
    result = ToolResult("c", "n", "four", attachments=[Image(PNG)])
    messages = [Message("user", [Text("four"), Image(PNG)]), Message("tool", [result])]
    assert estimate_messages(messages) == 2 + 2 * IMAGE_TOKENS
    assert [media_of(message) for message in messages] == [[Image(PNG)], [Image(PNG)]]
