# SPDX-License-Identifier: Apache-2.0
"""How large the result of a tool may be. It goes into memory, the store, every event and the model's next request."""

from __future__ import annotations

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


def cut_short(text: str, limit: int) -> str:
    """What an error says, as far as there is room for it. There is always some, or nobody would know what is wrong."""
    limit = limit and max(limit, LEAST)
    if not limit or _size(text, limit) <= limit:
        return text
    return f"{text[: limit // 4]}… (cut here: it has {len(text):,} characters)"


def _size(text: str, limit: int) -> int:
    """In bytes; of a text that is surely small enough, the most that it could have."""
    return 4 * len(text) if 4 * len(text) <= limit else len(text.encode(errors="surrogatepass"))
