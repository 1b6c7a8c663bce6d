# SPDX-License-Identifier: Apache-2.0
"""Images and files on their way to a provider: as base64, and checked against what the provider takes.

What must stay true: what a provider can't take is refused before anything is sent, with what it takes instead. Only in
an older part of the conversation, which another model may have been asked, a text takes its place.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from andon.errors import UnsupportedContentError
from andon.messages import Block, File, Image, Media, Message, Text, ToolResult, media_of
from andon.models.base import ModelRequest, Sink

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


class ContentCheck(Protocol):
    """Raises `UnsupportedContentError` for the first image or file that a model can't take."""

    def __call__(self, blocks: Sequence[Block], *, in_result: bool = False) -> None: ...


def fit_media(request: ModelRequest, check: ContentCheck, sink: Sink) -> ModelRequest:
    """The request with images and files that the model can take.

    The prompt, and all after it, must be as it is: raises `UnsupportedContentError`. What came before may have been
    another model's to answer. There, a text stands for each image and file that this one can't take, with a warning.
    """
    messages = request.messages
    if not any(map(media_of, messages)):
        return request
    prompt = max((place for place, message in enumerate(messages) if message.role == "user"), default=0)
    fitting = _Fitting(check)
    fitted = [fitting.message(message) if place < prompt else message for place, message in enumerate(messages)]
    for message in messages[prompt:]:
        check(message.content)
        for result in message.tool_results:
            check(result.attachments, in_result=True)
    if fitting.left_out:
        count = len(fitting.left_out)
        sink.warn(f"{count} images or files of the conversation were not sent, because {fitting.left_out[0]}")
    return msgspec.structs.replace(request, messages=fitted)


class _Fitting:
    """Replaces what a model can't take."""

    def __init__(self, check: ContentCheck) -> None:
        self._check = check
        self.left_out: list[str] = []
        """Why, for each that was replaced."""

    def message(self, message: Message) -> Message:
        return Message(message.role, [self._block(block) for block in message.content])

    def _block(self, block: Block) -> Block:
        if isinstance(block, Media):
            return block if self._takes(block, in_result=False) else Text(_stand_in(block))
        if not isinstance(block, ToolResult) or not block.attachments:
            return block
        kept = [media for media in block.attachments if self._takes(media, in_result=True)]
        gone = [_stand_in(media) for media in block.attachments if media not in kept]
        return msgspec.structs.replace(block, content="\n".join([block.content, *gone]), attachments=kept)

    def _takes(self, media: Media, *, in_result: bool) -> bool:
        try:
            self._check([media], in_result=in_result)
        except UnsupportedContentError as error:
            self.left_out.append(str(error))
            return False
        return True


def _stand_in(media: Media) -> str:
    what = "image" if isinstance(media, Image) else "file"
    name = media.url or (media.name if isinstance(media, File) else None)
    return f"[{what}{f' {name}' if name else ''}, not shown to this model]"


def in_base64(media: Media) -> str:
    return base64.b64encode(media.data).decode()


def data_url(media: Media) -> str:
    """The data as an address."""
    return f"data:{media.media_type};base64,{in_base64(media)}"


def text_of(file: File) -> str:
    """A text file, as text with its name, for a provider that takes no text files."""
    text = file.data.decode(errors="replace")
    return text if file.name is None else f"{file.name}:\n{text}"
