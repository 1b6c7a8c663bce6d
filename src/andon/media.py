# SPDX-License-Identifier: Apache-2.0
"""Images and files: what a prompt, or the result of a tool, can hold besides text.

What must stay true: exactly one of `data` and `url` is set, and data always has its media type. A mistake raises where
the block is made, not when it is sent.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar, Self

import msgspec

from andon.plain import Plain

_BEGINNINGS = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"BM": "image/bmp",
    b"%PDF-": "application/pdf",
}
_BRANDS = {
    **dict.fromkeys((b"heic", b"heix", b"heim", b"heis"), "image/heic"),
    **dict.fromkeys((b"mif1", b"msf1", b"heif"), "image/heif"),
    b"avif": "image/avif",
}
"""The kinds of a container that begins with its size, `ftyp` and one of these."""
IMAGE_TOKENS = 1_000
BYTES_PER_TOKEN = 50
"""For an estimate only: of an image, and of a file that is not text."""


class Image(Plain, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="image"):
    """An image for the model: its bytes, or the address of it.

    >>> agent.run(["What is this?", Image.read("cat.png")])
    >>> agent.run(["And this?", Image(url="https://example.com/cat.png")])

    Without `media_type`, the first bytes tell it.
    """

    type: ClassVar[str] = "image"
    data: bytes = b""
    media_type: str = ""
    url: str | None = None

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """An image from the disk."""
        return cls(Path(path).read_bytes())

    def __repr__(self) -> str:
        return _show(self)


class File(Plain, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="file"):
    """A document for the model, such as a PDF or a text: its bytes, or the address of it.

    >>> agent.run(["Sum this up.", File.read("report.pdf")])

    Without `media_type`, the first bytes or the ending of its `name` tell it.
    """

    type: ClassVar[str] = "file"
    data: bytes = b""
    media_type: str = ""
    url: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        _check(self, self.name)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """A file from the disk, with its name."""
        return cls(Path(path).read_bytes(), name=Path(path).name)

    def __repr__(self) -> str:
        return _show(self)

    @property
    def is_text(self) -> bool:
        return self.media_type.startswith("text/") or self.media_type in ("application/json", "application/xml")


Media = Image | File


def estimate_media(media: Media) -> int:
    """A rough count of its tokens. What an address leads to counts as one image."""
    if isinstance(media, File) and media.data:
        return len(media.data) // 4 if media.is_text else max(IMAGE_TOKENS, len(media.data) // BYTES_PER_TOKEN)
    return IMAGE_TOKENS


def _check(media: Media, name: str | None = None) -> None:
    kind = type(media).__name__
    if not isinstance(media.data, bytes):
        given = type(media.data).__name__
        raise TypeError(f"{kind}(data=…) takes bytes, not {given}; for a file on the disk: {kind}.read(path)")
    if not (isinstance(media.media_type, str) and isinstance(media.url, str | None) and isinstance(name, str | None)):
        raise TypeError(f"media_type, url and name of {kind} are text")
    if bool(media.data) == bool(media.url):
        given = "both are given" if media.data else "neither is given, or it is empty"
        raise ValueError(f"{kind} takes either data= or url=; here {given}")
    if media.url is not None and "://" not in media.url:
        raise ValueError(f"the url of {kind} is no address like https://…; for a file on the disk: {kind}.read(path)")
    if media.data and not media.media_type:
        if (found := _guess(media, name)) is None:
            example = _EXAMPLES[kind]
            raise ValueError(f"the data of {kind} are of no known kind: write {kind}(data, media_type={example!r})")
        msgspec.structs.force_setattr(media, "media_type", found)


_EXAMPLES = {"Image": "image/png", "File": "application/pdf"}


def _guess(media: Media, name: str | None) -> str | None:
    data = media.data
    for beginning, kind in _BEGINNINGS.items():
        if data.startswith(beginning):
            return kind
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    if data[4:8] == b"ftyp" and (found := _BRANDS.get(data[8:12])) is not None:
        return found
    if isinstance(media, Image):
        return None
    import mimetypes  # here, because few programs need it

    if name is not None and (guessed := mimetypes.guess_type(name)[0]) is not None:
        return guessed
    return "text/plain" if _reads_as_text(data) else None


def _reads_as_text(data: bytes) -> bool:
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


def _show(media: Media) -> str:
    """Without the data: they may be megabytes, and they end up in logs."""
    what = f"url={media.url!r}" if media.url else f"{len(media.data):,} bytes, {media.media_type!r}"
    return f"{type(media).__name__}({what})"
