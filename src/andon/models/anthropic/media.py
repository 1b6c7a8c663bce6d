# SPDX-License-Identifier: Apache-2.0
"""Images and files as Anthropic takes them."""

from __future__ import annotations

from typing import Any

from andon.messages import Image, Media
from andon.models.common.media import MediaRules, in_base64

RULES = MediaRules("Anthropic", files=frozenset({"application/pdf"}))


def part(media: Media) -> dict[str, Any]:
    """The block for it: an image or a document."""
    source: dict[str, Any]
    if media.url is not None:
        source = {"type": "url", "url": media.url}
    elif not isinstance(media, Image) and media.is_text:
        source = {"type": "text", "media_type": "text/plain", "data": media.data.decode(errors="replace")}
    else:
        source = {"type": "base64", "media_type": media.media_type, "data": in_base64(media)}
    if isinstance(media, Image):
        return {"type": "image", "source": source}
    return {"type": "document", "source": source} | ({"title": media.name} if media.name else {})
