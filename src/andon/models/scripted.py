# SPDX-License-Identifier: Apache-2.0
"""A model that plays a script: offline, with the same answers each time. It stalls or fails when the script says so.

    ScriptedModel("Hello!")                                     # text
    ScriptedModel([Think("Hm."), Call("search", {"q": "x"})],   # reasoning and a tool call, then, in the next turn,
                  lambda request: f"It says: {request.messages[-1].tool_results[0].content}")
    ScriptedModel(["One moment", Stall()])                      # a stream that stalls; Stall() alone is silence
    ScriptedModel(Fail(ModelError("overloaded", retryable=True)), "Now it works.")

What must stay true: every wait is a plain `await` and nothing here catches a cancel, so a cut arrives where it
happens. One model serves any number of runs, threads and event loops at once. An endless turn takes no memory.
"""

from __future__ import annotations

import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import count, repeat
from typing import Any, TypeAlias

from andon.messages import Usage, estimate_tokens
from andon.models.base import ModelRequest, Sink

REQUESTS_KEPT = 1000
"""A request holds its whole conversation, so only the last ones are kept."""

_WORD = re.compile(r"\s*\S+\s*")


class Item(ABC):
    """One thing that a model does in its turn. Your own items work as well: they only need `play`."""

    __slots__ = ()

    @abstractmethod
    async def play(self, sink: Sink, model: ScriptedModel) -> None:
        """Do it: push to the sink, wait, or fail."""


Turn: TypeAlias = "str | Item | Sequence[str | Item] | Callable[[ModelRequest], Turn | Iterator[str | Item]]"
"""What answers one model call: text, an item, several of them, or a function of the request that returns one of these.

What a function returns may also be a generator, and endless.
"""


@dataclass(frozen=True, slots=True)
class Say(Item):
    """Text, word by word, or in as many `pieces` as you ask for; `pace` seconds between two of them."""

    text: str
    pace: float | None = None
    pieces: int | None = None

    def __post_init__(self) -> None:
        _check_pieces(self.pieces)

    async def play(self, sink: Sink, model: ScriptedModel) -> None:
        def push(piece: str, _last: bool) -> None:
            sink.text(piece)

        pieces = _words(self.text) if self.pieces is None else _slices(self.text, self.pieces)
        await _stream(pieces, _either(self.pace, model.pace), push)


@dataclass(frozen=True, slots=True)
class Think(Item):
    """Reasoning, word by word. The signature comes with the last piece; with None the block is never completed."""

    text: str
    signature: str | None = "sig"
    pace: float | None = None

    async def play(self, sink: Sink, model: ScriptedModel) -> None:
        def push(piece: str, last: bool) -> None:
            sink.reasoning(piece, self.signature if last else None)

        await _stream(_words(self.text), _either(self.pace, model.pace), push)


@dataclass(frozen=True, slots=True)
class Call(Item):
    """A tool call, its arguments streamed as JSON text in `pieces` pieces.

    A str is sent as it is, so arguments can be as broken as a real model's. Without an `id` the calls are numbered:
    call_1, call_2, …, and no number is used twice.
    """

    name: str
    arguments: dict[str, Any] | str = field(default_factory=dict)
    id: str | None = None
    pieces: int = 1
    pace: float | None = None

    def __post_init__(self) -> None:
        _check_pieces(self.pieces)

    async def play(self, sink: Sink, model: ScriptedModel) -> None:
        call_id = model.next_call_id() if self.id is None else self.id
        text = self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)

        def push(piece: str, last: bool) -> None:
            sink.tool_call(call_id, self.name, piece, done=last)

        await _stream(_slices(text, self.pieces), _either(self.pace, model.pace), push)


@dataclass(frozen=True, slots=True)
class Pause(Item):
    """Nothing, for some seconds."""

    seconds: float

    async def play(self, sink: Sink, model: ScriptedModel) -> None:
        await asyncio.sleep(self.seconds)


@dataclass(frozen=True, slots=True)
class Stall(Item):
    """Nothing, without an end: only a cancel ends it."""

    async def play(self, sink: Sink, model: ScriptedModel) -> None:
        # A bare future has no timer, so ten thousand stalled runs cost the loop nothing.
        await asyncio.get_running_loop().create_future()


@dataclass(frozen=True, slots=True)
class Fail(Item):
    """The call fails with this error: a `ModelError`, say, or anything that a broken client might raise."""

    error: BaseException

    async def play(self, sink: Sink, model: ScriptedModel) -> None:
        # Otherwise an error that is raised many times would keep the traceback, with its frames, of each time.
        raise self.error.with_traceback(None)


@dataclass(frozen=True, slots=True)
class Spend(Item):
    """A report of usage: `Spend(Usage(10, 5))` or `Spend(input_tokens=10, output_tokens=5)`.

    Numbers that are left out are unknown. A turn without this item reports none, like a stream that was cut.
    """

    usage: Usage | None = None
    _: KW_ONLY
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None

    async def play(self, sink: Sink, model: ScriptedModel) -> None:
        sink.usage(
            self.usage,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=self.cached_tokens,
            reasoning_tokens=self.reasoning_tokens,
        )


@dataclass(frozen=True, slots=True)
class Burst(Item):
    """The same piece of text, `count` times, as fast as it can: for benchmarks.

    Other tasks run after every `every` pieces, as with a client that finds this many pieces in one network read.
    """

    text: str
    count: int
    every: int = 50

    async def play(self, sink: Sink, model: ScriptedModel) -> None:
        push = sink.text
        for start in range(0, self.count, self.every):
            for text in repeat(self.text, min(self.every, self.count - start)):
                push(text)
            await asyncio.sleep(0)


class ScriptedModel:
    """A model that plays a script, one turn per model call, in order.

    After the last turn every further call gets `then`. `pace` is the number of seconds between two pieces, for the
    items that don't set their own; with 0, each item is pushed at once, and other tasks run after it.
    """

    provider = "Andon"

    def __init__(self, *turns: Turn, then: Turn = "OK.", pace: float = 0.0, id: str = "scripted") -> None:
        self.id = id
        self.pace = pace
        self.requests: deque[ModelRequest] = deque(maxlen=REQUESTS_KEPT)
        """The requests, oldest first; the last 1000."""
        self._turns = [_prepared(turn) for turn in turns]
        self._then = _prepared(then)
        # `next` of a count is atomic: runs on several threads never get the same turn, or the same id.
        self._turn_numbers = count()
        self._call_numbers = count(1)

    @classmethod
    def story(cls, pace: float = 0.02) -> ScriptedModel:
        """Endless for the first prompt of a conversation, short for later ones.

        The answer depends on the request alone, so any number of sessions can share the model.
        """
        return cls(then=partial(_story, pace), pace=pace, id="story")

    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        self.requests.append(request)
        number = next(self._turn_numbers)
        turn = self._turns[number] if number < len(self._turns) else self._then
        for item in _items(turn, request):
            await item.play(sink, self)

    def next_call_id(self) -> str:
        """An id for a tool call that has none of its own."""
        return f"call_{next(self._call_numbers)}"


_Prepared: TypeAlias = "tuple[Item, ...] | Callable[[ModelRequest], Turn | Iterator[str | Item]]"


def _prepared(turn: Turn) -> _Prepared:
    """The turn, checked: a mistake raises where the script is written, not in the middle of a run."""
    if isinstance(turn, str | Item):
        return (_item(turn),)
    if isinstance(turn, Sequence):
        return tuple(map(_item, turn))
    # A class is callable too, but `Stall` for `Stall()` is a slip. A bare generator would serve one call only.
    if callable(turn) and not isinstance(turn, type):
        return turn
    raise TypeError(f"a turn is text, an item, a sequence of these or a function of the request, not {turn!r}")


def _items(turn: _Prepared, request: ModelRequest) -> Iterable[Item]:
    while not isinstance(turn, tuple):
        answer = turn(request)
        if isinstance(answer, Iterator):
            return map(_item, answer)
        turn = _prepared(answer)
    return turn


def _item(part: str | Item) -> Item:
    if isinstance(part, str):
        return Say(part)
    if isinstance(part, Item):
        return part
    raise TypeError(f"a turn is made of text and items, not of {part!r}")


async def _stream(pieces: Sequence[str], pace: float, push: Callable[[str, bool], None]) -> None:
    last = len(pieces) - 1
    for number, piece in enumerate(pieces):
        if number and pace > 0:
            await asyncio.sleep(pace)
        push(piece, number == last)
    # With any pace, an endless turn of short items must not block the loop.
    await asyncio.sleep(0)


def _words(text: str) -> list[str]:
    """Each word with the blanks after it. A text without words is one piece: providers send such pieces too."""
    return _WORD.findall(text) or [text]


def _slices(text: str, pieces: int) -> list[str]:
    """Exactly `pieces` pieces, about equally long; some are empty if there are more pieces than characters."""
    size = len(text)
    return [text[size * n // pieces : size * (n + 1) // pieces] for n in range(pieces)]


def _check_pieces(pieces: int | None) -> None:
    if pieces is not None and pieces < 1:
        raise ValueError(f"pieces must be at least 1, not {pieces}")


def _either(own: float | None, default: float) -> float:
    return default if own is None else own


# -- the story --------------------------------------------------------------------------------------------------------

_WINDS = ("from the north", "straight off the ice", "out of a clear sky", "with sleet in its teeth", "in long sighs")
_GUESTS = ("a gull with one grey feather", "the harbour master's boy", "a drifting rowing boat", "no one at all")
_FINDS = ("a brass button", "half a letter", "a bottle of green glass", "someone's left boot", "a coil of tarred rope",
          "a child's wooden whale", "three oranges")  # fmt: skip
_SENTENCES = (
    "On night {night} of that winter the wind came {wind}, and the keeper climbed the stairs without his coat. ",
    "He counted the steps aloud, as he always did, and lost count at a hundred and twelve. ",
    "The great lamp turned, and its beam went out over the water like a slow hand over a sleeping cat. ",
    "Toward midnight there was {guest} at the door, which he noted in the log in his smallest letters. ",
    "The tide had left {find} on the landing stones, and he put it on the sill beside the others. ",
    "Far out a ship answered with two short flashes; he answered with one, and for a while neither was alone.\n\n",
)
_ANSWER = "Good to hear from you! The lamp is lit, the sea is calm, and all is well up here."


def _story(pace: float, request: ModelRequest) -> Turn | Iterator[Item]:
    prompts = sum(message.role == "user" for message in request.messages)
    if prompts <= 1:
        return _nights(pace)
    asked = estimate_tokens(message.text for message in request.messages)
    return [Say(_ANSWER), Spend(Usage(asked, estimate_tokens([_ANSWER])))]


def _nights(pace: float) -> Iterator[Item]:
    # The lists differ in length, so it takes many nights until one is repeated.
    night = 0
    while True:
        night += 1
        wind, guest, find = (each[night % len(each)] for each in (_WINDS, _GUESTS, _FINDS))
        for sentence in _SENTENCES:
            yield Say(sentence.format(night=night, wind=wind, guest=guest, find=find))
            yield Pause(pace)
