# SPDX-License-Identifier: Apache-2.0
"""Images and files on their way to a provider: as base64, and checked against what the provider takes.

What must stay true: what a provider can't take is refused before anything is sent, with what it takes instead.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence

from msgspec import Struct

from andon.errors import UnsupportedContentError
from andon.messages import Block, File, Image, Media, Message, ToolResult, media_of

COMMON_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""The kinds of images that all providers take."""


class MediaRules(Struct, frozen=True):
    """What a provider takes. `who` begins its errors: "OpenAI's Chat Completions", or "Bedrock"."""

    who: str
    images: frozenset[str] = COMMON_IMAGES
    files: frozenset[str] | None = None
    """Media types of files, besides text; None for any."""
    image_urls: tuple[str, ...] = ("https://", "http://")
    """How the address of an image may begin; empty if it takes none."""
    file_urls: tuple[str, ...] = ("https://", "http://")
    in_results: bool = True
    """Whether the result of a tool may have images and files."""

    def check(self, blocks: Sequence[Block], *, in_result: bool = False) -> None:
        """Raise `UnsupportedContentError` for the first block that the provider can't take."""
        for block in blocks:
            if isinstance(block, Media):
                self._check_one(block, in_result)

    def check_messages(self, messages: Iterable[Message]) -> None:
        """The same for a whole conversation. The error says which message it is."""
        for number, message in enumerate(messages):
            if not media_of(message):
                continue
            try:
                self.check(message.content)
                for block in message.content:
                    if isinstance(block, ToolResult):
                        self.check(block.attachments, in_result=True)
            except UnsupportedContentError as error:
                raise UnsupportedContentError(f"message {number} of the conversation can't be sent: {error}") from None

    def _check_one(self, media: Media, in_result: bool) -> None:
        what = "an image" if isinstance(media, Image) else "a file"
        if in_result and not self.in_results:
            raise UnsupportedContentError(f"{self.who} can't take {what} as the result of a tool: return text")
        if media.url is not None:
            begin = self.image_urls if isinstance(media, Image) else self.file_urls
            if not media.url.startswith(begin or "\0"):
                how = f"only addresses that begin with {' or '.join(begin)}" if begin else "no addresses"
                raise UnsupportedContentError(
                    f"{self.who} takes {how} for {what}: give the bytes, {type(media).__name__}(data=…)"
                )
        elif isinstance(media, Image):
            if media.media_type not in self.images:
                takes = ", ".join(sorted(self.images))
                raise UnsupportedContentError(f"{self.who} takes no {media.media_type}: of images, it takes {takes}")
        elif self.files is not None and media.media_type not in self.files and not media.is_text:
            takes = ", ".join(["text", *sorted(self.files)])
            raise UnsupportedContentError(f"{self.who} takes no {media.media_type}: of files, it takes {takes}")


def in_base64(media: Media) -> str:
    return base64.b64encode(media.data).decode()


def data_url(media: Media) -> str:
    """The data as an address."""
    return f"data:{media.media_type};base64,{in_base64(media)}"


def text_of(file: File) -> str:
    """A text file, as text with its name, for a provider that takes no text files."""
    text = file.data.decode(errors="replace")
    return text if file.name is None else f"{file.name}:\n{text}"
