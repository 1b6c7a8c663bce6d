# SPDX-License-Identifier: Apache-2.0
"""Images and files as Gemini takes them."""

from __future__ import annotations

from typing import Any

import msgspec

from andon.messages import Image, Media
from andon.models.common.media import MediaRules, in_base64, text_of

_IMAGES = frozenset({"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"})
_SOUNDS = ("aac", "aiff", "flac", "m4a", "mp3", "mp4", "mpeg", "ogg", "wav", "webm", "x-wav")
_FILMS = ("3gpp", "mp4", "mpeg", "quicktime", "webm", "x-flv", "x-ms-wmv", "x-msvideo")
_FILES = frozenset({"application/pdf", *(f"audio/{each}" for each in _SOUNDS), *(f"video/{each}" for each in _FILMS)})
_URLS = ("https://", "http://", "gs://")

RULES = MediaRules("Gemini", images=_IMAGES, files=_FILES, image_urls=_URLS, file_urls=_URLS)
OLD_RULES = msgspec.structs.replace(RULES, who="Gemini before its version 3", in_results=False)


def prompt_part(media: Media) -> dict[str, Any]:
    """A part of a prompt. A text file is a text with its name: not every kind of text is known to Gemini."""
    if not isinstance(media, Image) and media.data and media.is_text:
        return {"text": text_of(media)}
    return result_part(media)


def result_part(media: Media) -> dict[str, Any]:
    """A part of a function's response, which can't be text."""
    if media.url is not None:
        kind = media.media_type or _guess(media.url)
        return {"fileData": {"fileUri": media.url, **({"mimeType": kind} if kind else {})}}
    is_text = not isinstance(media, Image) and media.is_text
    return {"inlineData": {"mimeType": "text/plain" if is_text else media.media_type, "data": in_base64(media)}}


def _guess(url: str) -> str | None:
    import mimetypes  # here, because few programs need it

    return mimetypes.guess_type(url.partition("?")[0])[0]
