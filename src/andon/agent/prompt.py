# SPDX-License-Identifier: Apache-2.0
"""A prompt: text, or a list of text, images and files. What can't be one is refused before a run is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from andon.errors import ConfigurationError, EmptyPromptError
from andon.messages import Block, File, Image, Media, Message, Text, sendable

Prompt: TypeAlias = str | Image | File | Sequence[str | Image | File]
"""What an agent is asked: `"Hello"`, or `["What is this?", Image.read("cat.png")]`."""


def read_prompt(prompt: Prompt) -> Message:
    """The prompt as a message. Blank text is left out, because providers refuse it."""
    parts = [prompt] if isinstance(prompt, str | Media) else prompt
    if not isinstance(parts, list | tuple):
        raise ConfigurationError(f"the prompt must be text, or a list with text, not {type(prompt).__name__}")
    blocks: list[Block] = []
    for part in parts:
        if isinstance(part, Media):
            blocks.append(part)
        elif not isinstance(part, str):
            kind = type(part).__name__
            raise ConfigurationError(f"a prompt is made of text, Image and File, not of {kind}")
        elif part.strip():
            blocks.append(Text(sendable(part)))
    if not blocks:
        raise EmptyPromptError("the prompt is empty: give the agent some text to answer")
    return Message("user", blocks)
