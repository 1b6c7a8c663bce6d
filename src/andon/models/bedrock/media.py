# SPDX-License-Identifier: Apache-2.0
"""Images and documents as Converse takes them. A document has a name, which must fit rules and be unique."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from andon.errors import UnsupportedContentError
from andon.messages import Block, File, Image, Media
from andon.models.common.media import MediaRules

_WORD = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
_SHEET = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
_DOCUMENTS = {
    "application/pdf": "pdf",
    "application/msword": "doc",
    _WORD: "docx",
    "application/vnd.ms-excel": "xls",
    _SHEET: "xlsx",
    "text/csv": "csv",
    "text/html": "html",
    "text/markdown": "md",
}
_IMAGES = ("gif", "jpeg", "png", "webp")
_BUCKET = "s3://"

RULES = MediaRules("Bedrock", files=frozenset(_DOCUMENTS), image_urls=(_BUCKET,), file_urls=(_BUCKET,))
_NAME_LENGTH = 180
_NOT_IN_A_NAME = r"[^a-zA-Z0-9\s\-()\[\]]+"


def check(blocks: Sequence[Block], *, in_result: bool = False) -> None:
    """Raise `UnsupportedContentError` for the first block that can't be sent."""
    RULES.check(blocks, in_result=in_result)
    for block in blocks:
        if isinstance(block, Media) and _format(block) is None:
            kind = type(block).__name__
            raise UnsupportedContentError(
                f"Bedrock must be told what is at the address of {kind}: give media_type=, or an address with an ending"
            )


class MediaWriter:
    """Writes the images and documents of one request. Names are given in their order, so old ones stay as they are."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def block(self, media: Media) -> dict[str, Any]:
        source = {"bytes": media.data} if media.url is None else {"s3Location": {"uri": media.url}}
        if isinstance(media, Image):
            return {"image": {"format": _format(media), "source": source}}
        return {"document": {"format": _format(media), "name": self._name(media), "source": source}}

    def _name(self, file: File) -> str:
        given = file.name or (PurePosixPath(urlsplit(file.url).path).name if file.url else "")
        words = re.sub(_NOT_IN_A_NAME, " ", given.rpartition(".")[0] or given).split()
        plain = " ".join(words)[:_NAME_LENGTH].strip() or "document"
        name, number = plain, 1
        while name in self._names:
            number += 1
            name = f"{plain} {number}"
        self._names.add(name)
        return name


def _format(media: Media) -> str | None:
    kind = media.media_type
    ending = PurePosixPath(urlsplit(media.url).path).suffix[1:].lower() if media.url else ""
    if isinstance(media, Image):
        found = kind.removeprefix("image/") if kind else {"jpg": "jpeg"}.get(ending, ending)
        return found if found in _IMAGES else None
    if kind:
        return _DOCUMENTS.get(kind) or ("txt" if media.is_text else None)
    return ending if ending in (*_DOCUMENTS.values(), "txt") else None
