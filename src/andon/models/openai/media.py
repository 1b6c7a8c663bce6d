# SPDX-License-Identifier: Apache-2.0
"""Images and files as OpenAI's two interfaces take them."""

from __future__ import annotations

from typing import Any

from andon.messages import File, Image, Media
from andon.models.common.media import MediaRules, data_url, text_of

RESPONSES = MediaRules("OpenAI's Responses")
CHAT = MediaRules("Chat Completions", files=frozenset({"application/pdf"}), file_urls=(), in_results=False)


def responses_part(media: Media) -> dict[str, Any]:
    if isinstance(media, Image):
        return {"type": "input_image", "image_url": media.url or data_url(media), "detail": "auto"}
    if media.url is not None:
        return {"type": "input_file", "file_url": media.url}
    return {"type": "input_file", "filename": _name(media), "file_data": data_url(media)}


def chat_part(media: Media) -> dict[str, Any]:
    if isinstance(media, Image):
        return {"type": "image_url", "image_url": {"url": media.url or data_url(media)}}
    if media.is_text:  # the interface takes PDFs alone, and a text is a text
        return {"type": "text", "text": text_of(media)}
    return {"type": "file", "file": {"filename": _name(media), "file_data": data_url(media)}}


def _name(file: File) -> str:
    """Its name. A made-up one has the right ending, by which OpenAI tells what the file is."""
    if file.name:
        return file.name
    import mimetypes  # here, because few programs need it

    return f"file{mimetypes.guess_extension(file.media_type) or ('.txt' if file.is_text else '')}"
