# SPDX-License-Identifier: Apache-2.0
"""How large the result of a tool may be, and what it asks a person. Both go into memory, the store and events, and the
result into the model's next request.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from andon.core.receipt import Interrupt
from andon.errors import BadResultError

LEAST = 2_000
"""The bytes that an error may have, whatever the limit is."""


def check_size(tool_name: str, text: str, limit: int) -> str:
    """The same text. Raises if it is larger than that: part of a result may be worse than none."""
    if limit and (size := _size(text, limit)) > limit:
        raise BadResultError(
            f"tool {tool_name} ran to its end, but its result has {size:,} bytes, and may have {limit:,}, so it is not"
            " shown. Ask for a part of it, or for less. (Runtime(max_result_bytes=…) allows more.)"
        )
    return text


def check_questions(tool_name: str, questions: Iterable[Interrupt], limit: int) -> None:
    """Raise if one of them is larger than that. Those of another run, which have an id, were checked there."""
    for question in questions:
        if question.id or not limit:
            continue
        size = len(question.name.encode(errors="surrogatepass")) + len(msgspec.json.encode(question.payload))
        if size > limit:
            raise BadResultError(
                f"tool {tool_name} wanted to ask a person, but its question has {size:,} bytes, and may have {limit:,},"
                " so nobody was asked. (Runtime(max_result_bytes=…) allows more.)"
            )


def cut_short(text: str, limit: int) -> str:
    """What an error says, as far as there is room for it. There is always some, or nobody would know what is wrong."""
    limit = limit and max(limit, LEAST)
    if not limit or _size(text, limit) <= limit:
        return text
    return f"{text[: limit // 4]}… (cut here: it has {len(text):,} characters)"


def _size(text: str, limit: int) -> int:
    """In bytes; of a text that is surely small enough, the most that it could have."""
    return 4 * len(text) if 4 * len(text) <= limit else len(text.encode(errors="surrogatepass"))
