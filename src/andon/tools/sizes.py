# SPDX-License-Identifier: Apache-2.0
"""Limits for the size of a tool's result, and of its questions to a person. Both go into memory, the store and events;
the result also goes into the model's next request. A tool in a process checks them there, before it sends anything.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from andon.core.receipt import Interrupt
from andon.errors import BadResultError
from andon.messages import Media
from andon.tools.base import ToolOutput

LEAST = 2_000
"""An error may always have this number of bytes, even if the limit is lower."""


def check_output(tool_name: str, output: ToolOutput, limit: int, attachments_limit: int) -> None:
    """Raise if the text of a result is too large, or its images and files are."""
    check_size(tool_name, output.text, limit)
    check_attachments(tool_name, output.attachments, attachments_limit)


def check_size(tool_name: str, text: str, limit: int) -> str:
    """Return the text, or raise if it is too large. It is not shortened: part of a result can mislead the model."""
    if limit and (size := _size(text, limit)) > limit:
        raise BadResultError(
            f"tool {tool_name} ran to its end, but its result has {size:,} bytes, and may have {limit:,}, so it is not"
            " shown. Ask for a part of it, or for less. (Runtime(max_result_bytes=…) allows more.)"
        )
    return text


def check_attachments(tool_name: str, attachments: Iterable[Media], limit: int) -> None:
    """Raise if the images and files of a result are too large."""
    size = sum(len(media.data) for media in attachments)
    if limit and size > limit:
        raise BadResultError(
            f"tool {tool_name} ran to its end, but its images and files have {size:,} bytes, and may have {limit:,}, so"
            " they are not shown. Ask for fewer, or smaller ones. (Runtime(max_attachment_bytes=…) allows more.)"
        )


def check_questions(tool_name: str, questions: Iterable[Interrupt], limit: int) -> None:
    """Raise if a question is too large. A question that has an id is a child run's, and was checked there."""
    for question in questions:
        if question.id or not limit:
            continue
        size = len(question.name.encode(errors="surrogatepass")) + len(msgspec.json.encode(question.payload))
        if size > limit:
            raise BadResultError(
                f"tool {tool_name} wanted to ask a person, but its question has {size:,} bytes, and may have {limit:,},"
                " so no person was asked. (Runtime(max_result_bytes=…) allows more.)"
            )


def cut_short(text: str, limit: int) -> str:
    """The text of an error, shortened to the limit, but never below `LEAST`: it has to say what is wrong."""
    limit = limit and max(limit, LEAST)
    if not limit or _size(text, limit) <= limit:
        return text
    return f"{text[: (limit - 100) // 4]}… (cut here: it has {len(text):,} characters)"


def _size(text: str, limit: int) -> int:
    """The size in bytes. For a short text an upper bound, which is faster."""
    return 4 * len(text) if 4 * len(text) <= limit else len(text.encode(errors="surrogatepass"))
