# SPDX-License-Identifier: Apache-2.0
"""The words of a script: what a fake provider does to answer one request.

    [text("Hello, you."), stall()]                              # three pieces, and then nothing more
    [reasoning("Hm."), call("search", {"q": "x"}), usage(input_tokens=10, output_tokens=5)]
    [fail(429, "Slow down.", headers={"retry-after": "1"})]     # first: an HTTP error; later: an error in the stream

What must stay true: a word is data and knows no provider, so every fake plays the same scripts.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

_WORD = re.compile(r"\s*\S+\s*")


@dataclass(frozen=True, slots=True)
class Text:
    pieces: tuple[str, ...]
    pace: float = 0.0


@dataclass(frozen=True, slots=True)
class Reasoning:
    pieces: tuple[str, ...]
    pace: float = 0.0
    signature: str | None = None
    redacted: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: str
    id: str | None = None
    pieces: int = 1
    pace: float = 0.0
    send: int | None = None
    interleaved: bool = False
    signature: str | None = None

    @property
    def whole(self) -> bool:
        """Whether all of its pieces are sent."""
        return self.send is None or self.send >= self.pieces

    @property
    def parts(self) -> list[str]:
        """The pieces of its arguments that are sent."""
        size = len(self.arguments)
        ends = [size * number // self.pieces for number in range(self.pieces + 1)]
        return [self.arguments[a:b] for a, b in pairwise(ends)][: self.send]


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Stall:
    pass


@dataclass(frozen=True, slots=True)
class Silence:
    pass


@dataclass(frozen=True, slots=True)
class Fail:
    status: int
    message: str
    code: str | None = None
    type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    event: str = "error"


@dataclass(frozen=True, slots=True)
class Cut:
    reset: bool = False
    mid_chunk: bool = False


@dataclass(frozen=True, slots=True)
class Raw:
    data: bytes
    content_type: str | None = None
    status: int = 200


@dataclass(frozen=True, slots=True)
class Until:
    event: threading.Event


@dataclass(frozen=True, slots=True)
class Spent:
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int


@dataclass(frozen=True, slots=True)
class Finish:
    reason: str


@dataclass(frozen=True, slots=True)
class End:
    pass


Word: TypeAlias = (
    Text | Reasoning | Call | Pause | Stall | Silence | Fail | Cut | Raw | Until | Spent | Finish | End
)  # fmt: skip
Answer: TypeAlias = "str | Word | Sequence[str | Word]"
"""What answers one request: text, a word, or several of them."""
Script: TypeAlias = "Sequence[Answer] | Callable[[dict[str, Any]], Answer]"
"""One answer per request, the last one for all later requests; or a function of the request's body."""


# -- what a model says ------------------------------------------------------------------------------------------------


def text(text: str = "", pieces: int | Sequence[str] | None = None, pace: float = 0.0) -> Text:
    """Text, word by word, or in as many or just those `pieces`; `pace` seconds between two of them."""
    return Text(_pieces(text, pieces), _seconds("pace", pace))


def reasoning(
    text: str = "",
    pieces: int | Sequence[str] | None = None,
    signature: str | None = None,
    pace: float = 0.0,
    *,
    redacted: str | None = None,
) -> Reasoning:
    """Reasoning, in pieces as text is. With `redacted`, it is a block without text, and with these data.

    Responses: the summary of a reasoning item, whose `encrypted_content` is the signature (made up unless given).
    Chat: `reasoning_content`, as compatible servers send it; it has no place for a signature.
    """
    return Reasoning(_pieces(text, pieces), _seconds("pace", pace), signature, redacted)


def call(
    name: str,
    arguments: Mapping[str, Any] | str | None = None,
    id: str | None = None,
    pieces: int = 1,
    *,
    pace: float = 0.0,
    send: int | None = None,
    interleaved: bool = False,
    signature: str | None = None,
) -> Call:
    """A tool call whose arguments come in so many pieces; several calls in one answer are parallel calls.

    With `send`, only so many of the pieces are sent and the call stays open: what a stall or a cut in the middle of a
    call leaves behind. Calls in a row that are `interleaved` take turns, piece by piece. A string is sent as it is.
    `signature` is what Gemini sends with a call; other providers have none.
    """
    if pieces < 1:
        raise ValueError(f"pieces must be at least 1, not {pieces}")
    if send is not None and not 0 <= send <= pieces:
        raise ValueError(f"send is {send}: of {pieces} pieces, 0 to {pieces} can be sent; give pieces= too")
    given = arguments if isinstance(arguments, str) else json.dumps(dict(arguments or {}), ensure_ascii=False)
    return Call(name, given, id, pieces, _seconds("pace", pace), send, interleaved, signature)


def usage(input_tokens: int = 0, output_tokens: int = 0, *, cached_tokens: int = 0, reasoning_tokens: int = 0) -> Spent:
    """The usage that the answer reports. Without this word: its pieces, and a quarter of the request's characters."""
    return Spent(input_tokens, output_tokens, cached_tokens, reasoning_tokens)


def finish(reason: str) -> Finish:
    """Why the answer ends, in the provider's own word; for Chat Completions `"length"` or `"content_filter"`."""
    return Finish(reason)


# -- what a provider does ---------------------------------------------------------------------------------------------


def pause(seconds: float) -> Pause:
    """Nothing for a while. As the first word, it delays the headers too."""
    return Pause(_seconds("seconds", seconds))


def until(event: threading.Event) -> Until:
    """Nothing until the event is set: a test knows that the answer is at this point (`at="held"`)."""
    return Until(event)


def stall() -> Stall:
    """Headers, if none were sent, and then nothing more until the client disconnects."""
    return Stall()


def silence() -> Silence:
    """The request is received and never answered."""
    return Silence()


def fail(
    status: int,
    message: str,
    code: str | None = None,
    type: str | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    event: str = "error",
) -> Fail:
    """An HTTP error; after other words, an error in the stream.

    Responses has three forms of it: `event="error"`, as documented, `"nested"`, as often seen, and `"response.failed"`.
    """
    if not 400 <= status <= 599:
        raise ValueError(f"an error's status is 400 to 599, not {status}")
    if event not in ("error", "nested", "response.failed"):
        raise ValueError(f"a stream fails by 'error', 'nested' or 'response.failed', not by {event!r}")
    return Fail(status, message, code, type, dict(headers or {}), event)


def cut(*, reset: bool = False, mid_chunk: bool = False) -> Cut:
    """Closes the connection before the answer is complete: in order, by a `reset`, or in the middle of a chunk."""
    return Cut(reset, mid_chunk)


def raw(data: bytes, *, content_type: str | None = None, status: int = 200) -> Raw:
    """Bytes that are put into the body as they are.

    With a content type it is the first and only word: a whole response of another kind, such as a proxy's HTML page.
    """
    return Raw(bytes(data), content_type, status)


def end() -> End:
    """The body ends here, in order for HTTP, but without the provider's last events."""
    return End()


# -- checking ---------------------------------------------------------------------------------------------------------


def words(answer: Answer) -> list[Word]:
    """An answer as a list of words; a str becomes text."""
    if isinstance(answer, str):
        return [text(answer)]
    if isinstance(answer, Word):
        return [answer]
    if not isinstance(answer, Sequence):
        raise TypeError(f"an answer is text, a word or a list of these, not {answer!r}")
    listed: list[Word] = []
    for part in answer:
        if isinstance(part, str):
            listed.append(text(part))
        elif isinstance(part, Word):
            listed.append(part)
        else:
            raise TypeError(f"an answer is made of text and words, not of {part!r}")
    return listed


def grouped(answer: Sequence[Word]) -> list[Word | list[Call]]:
    """The words, with interleaved calls in lists."""
    groups: list[Word | list[Call]] = []
    for word in answer:
        if not isinstance(word, Call):
            groups.append(word)
        elif word.interleaved and groups and isinstance(last := groups[-1], list) and last[-1].interleaved:
            last.append(word)
        else:
            groups.append([word])
    return groups


def _pieces(whole: str, pieces: int | Sequence[str] | None) -> tuple[str, ...]:
    if pieces is None:
        return tuple(_WORD.findall(whole)) or ((whole,) if whole else ())
    if isinstance(pieces, int):
        if pieces < 1:
            raise ValueError(f"pieces must be at least 1, not {pieces}")
        size = len(whole)
        return tuple(whole[size * n // pieces : size * (n + 1) // pieces] for n in range(pieces))
    if isinstance(pieces, str):
        raise TypeError("pieces is a number or a list of strings; a string alone is given as the text")
    if whole and "".join(pieces) != whole:
        raise ValueError("the pieces don't make up the text; give one of the two")
    return tuple(pieces)


def _seconds(name: str, seconds: float) -> float:
    if not seconds >= 0:
        raise ValueError(f"{name} is a number of seconds, not {seconds!r}")
    return float(seconds)
