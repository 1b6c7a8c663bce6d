# SPDX-License-Identifier: Apache-2.0
"""Context windows: what is sent to the model when a conversation has outgrown it.

`Agent(context=…)` takes a policy: a function that gets the messages and returns those to send. It is called before each
model call. Only what is sent is shortened; the session keeps the whole conversation.

What must stay true: what is sent is a valid conversation. It begins with a user's message. A tool call stays with its
result, and a message is left out completely or not at all. So messages are left out from the beginning on. If that
removes the prompt that the run works on, the prompt is put in front again.
"""

from __future__ import annotations

import bisect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from andon.core.records import Shortened
from andon.errors import ConfigurationError, ContextError, ModelError, describe
from andon.messages import Media, Message, Text, ToolCall, ToolResult, estimate_tokens, pieces_of
from andon.models.base import Model, check_model, check_setup

INSTRUCTIONS = (
    "You write summaries of conversations between a user and an assistant that uses tools. The assistant goes on with"
    " your summary in place of what you are shown, so keep what it needs: what the user wants, what was decided and"
    " done, what is still open, and every name, number, path and identifier that may be needed again. Answer with the"
    " summary alone."
)
STANDS_FOR = "The beginning of this conversation was left out. This is a summary of it:\n\n"
LONGEST_BLOCK = 8_000
"""How many characters of a block the model that summarises gets; of a longer block, the beginning and the end."""


class ContextWindow(Protocol):
    """What a policy knows of the run, and what it can do."""

    @property
    def run_id(self) -> str: ...

    @property
    def session_id(self) -> str: ...

    @property
    def agent_id(self) -> str: ...

    @property
    def user_id(self) -> str | None: ...

    def tokens(self, messages: Sequence[Message]) -> int:
        """How many tokens a model call with these messages has, its instructions and tools included.

        It is an estimate by the number of characters, corrected by the provider's count for the input of the run's last
        call.
        """
        ...

    def limit(self, tokens: int | None) -> int | None:
        """The most tokens to send: the given number, or less, if the provider has refused a call as too long."""
        ...

    async def recall(self) -> Shortened | None:
        """The last summary that was stored with this session, if the conversation still begins in the same way."""
        ...

    def remember(self, covers: int, summary: str) -> None:
        """Store a summary of the first `covers` messages with the session, for later calls, in other processes too."""
        ...

    async def ask(self, prompt: str, instructions: str | None = None, model: Model | None = None) -> str:
        """Ask a model, the agent's own by default, and return its text. It is part of the run: a cancel cuts it, and
        its tokens count in the run's usage and budget. The run's readers don't see the text.
        """
        ...

    @property
    def notes(self) -> dict[object, Any]:
        """A dict for the policy's own data. It is empty at first, and kept until the run ends."""
        ...

    def warn(self, text: str) -> None:
        """Report a problem: in the log, and in the result's warnings."""
        ...


class ContextPolicy(Protocol):
    """Decides what is sent: `Trim`, `Summarise`, or a function of your own, sync or async.

    It is given the whole conversation and returns the messages to send. It must not block the event loop.
    """

    def __call__(
        self, messages: list[Message], window: ContextWindow, /
    ) -> list[Message] | Awaitable[list[Message]]: ...


# -- ready ones -------------------------------------------------------------------------------------------------------


class Trim:
    """Leave out the oldest messages, so that at most `tokens` tokens, or `messages` messages, are sent.

    >>> Agent(name="Helper", model=model, context=Trim(tokens=100_000))

    It leaves out a quarter of the limit at a time, so that the beginning of what is sent does not change with every
    call: providers charge less for a beginning that they have cached. The last prompt, and the last calls with their
    results, are always sent, however long they are.
    """

    def __init__(self, *, tokens: int | None = None, messages: int | None = None) -> None:
        if tokens is messages is None:
            raise ConfigurationError("Trim needs a limit: Trim(tokens=…), Trim(messages=…), or both")
        self.tokens, self.messages = _limit("tokens", tokens), _limit("messages", messages)

    def __repr__(self) -> str:
        return f"Trim(tokens={self.tokens}, messages={self.messages})"

    def __call__(self, messages: list[Message], window: ContextWindow) -> list[Message]:
        measures: list[tuple[Callable[[Sequence[Message]], int], int | None]] = [
            (window.tokens, window.limit(self.tokens)),
            (len, self.messages),
        ]
        aims = [(measure, _aim(measure(messages), most)) for measure, most in measures if most is not None]

        def fits(place: int) -> bool:
            sent = leave_out(messages, place)
            return all(measure(sent) <= aim for measure, aim in aims)

        return leave_out(messages, _first([0, *places(messages)], fits))


class Summarise:
    """Replace the oldest messages by a summary, which a model writes, once there are more than `tokens` tokens.

    >>> Agent(name="Helper", model=model, context=Summarise(tokens=100_000, model=OpenAIResponses("gpt-5-mini")))

    Without `model` the agent's own model writes it. The newest messages are sent unchanged, up to half of the limit.
    The summary is stored with the session, and a new one is made only when the messages after it are too long again. If
    it can't be made, the oldest messages are left out without one, and the result has a warning. The model is asked
    again when what is sent is too long again, or in the session's next run.
    """

    def __init__(self, *, tokens: int, model: Model | None = None, instructions: str = INSTRUCTIONS) -> None:
        limit = _limit("tokens", tokens)
        if limit is None:
            raise ConfigurationError("Summarise needs a limit: Summarise(tokens=…)")
        if model is not None:
            check_model(model)
        if not isinstance(instructions, str):
            raise ConfigurationError(f"the instructions of Summarise must be text, not {type(instructions).__name__}")
        self.tokens, self.model, self.instructions = limit, model, instructions

    def check_setup(self) -> None:
        """Raise if the model for summaries is not set up. Called when a run is made, as for the agent's own model."""
        check_setup(self.model)

    def __repr__(self) -> str:
        return f"Summarise(tokens={self.tokens})"

    async def __call__(self, messages: list[Message], window: ContextWindow) -> list[Message]:
        limit = window.limit(self.tokens) or self.tokens
        if window.tokens(messages) <= limit:
            return messages
        known, found = await window.recall(), places(messages)
        covers, summary = 0, ""
        if known is not None and known.covers in found:  # else another policy has stored it
            covers, summary = known.covers, known.summary
        bare: int = window.notes.get(self, 0)  # how many were left out without a summary
        sent = leave_out(messages, bare) if bare > covers else leave_out(messages, covers, summary)
        if window.tokens(sent) <= limit:
            return sent
        later = [place for place in found if place > max(bare, covers)]
        if not later:
            return sent
        place = _first(later, lambda place: window.tokens(leave_out(messages, place)) <= limit // 2)
        try:
            summary = await self._summarise(summary, messages[covers:place], limit * 3 // 4, window)
        except Exception as error:  # noqa: BLE001 - the boundary: the run goes on without a summary, and says so
            if not bare:  # one warning is enough
                why = describe(error)
                window.warn(f"the conversation could not be summarised, so its beginning is left out: {why}")
            window.notes[self] = place
            return leave_out(messages, place)
        window.remember(place, summary)
        return leave_out(messages, place, summary)

    async def _summarise(self, summary: str, messages: Sequence[Message], most: int, window: ContextWindow) -> str:
        """Summarise in several calls if needed: the messages may be longer than the model can read."""
        part: list[str] = []
        size = 0
        for line in [*_lines(messages), None]:
            if part and (line is None or size + estimate_tokens([line]) > most):
                before = f"The summary so far:\n\n{summary}\n\nWhat was said after it:\n\n" if summary else ""
                summary = (await window.ask(before + "\n\n".join(part), self.instructions, self.model)).strip()
                if not summary:
                    raise ModelError("the model answered with nothing")
                part, size = [], 0
            if line is not None:
                part.append(line)
                size += estimate_tokens([line])
        return summary


# -- the parts of it --------------------------------------------------------------------------------------------------


def places(messages: Sequence[Message]) -> list[int]:
    """The numbers of first messages that may be left out: up to each prompt, and up to each later answer of a run.

    Not up to a tool's result, which would lose its call. The last message always stays.
    """
    roles = [message.role for message in messages]
    first = roles.index("user") if "user" in roles else len(roles)
    return [
        place
        for place in range(first + 1, len(roles))
        if roles[place] == "user" or (roles[place] == "assistant" and roles[place - 1] != "user")
    ]


def leave_out(messages: Sequence[Message], covers: int, summary: str = "") -> list[Message]:
    """The messages without the first `covers`, one of `places`; or 0.

    The first message that is sent is a prompt. A summary is put in front of its text.
    """
    rest = list(messages[covers:])
    if covers and rest[0].role != "user":
        rest.insert(0, messages[_prompt(messages, covers)])
    if covers and summary:
        rest[0] = Message("user", [Text(f"{STANDS_FOR}{summary}\n\n"), *rest[0].content])
    return rest


def check_sendable(messages: object, by: str) -> list[Message]:
    """Return what a policy returned, or raise if it can't be sent, and say why."""
    if not isinstance(messages, list) or not all(isinstance(each, Message) for each in messages):
        given = "a list with something else in it" if isinstance(messages, list) else type(messages).__name__
        raise ContextError(f"{by} returned {given}: it must return a list of messages")
    if not messages or messages[0].role != "user":
        wrong = "the first message is not a user's"
        raise ContextError(f"{by} returned messages that can't be sent: {wrong}. Keep a prompt at the beginning")
    if messages[-1].role == "assistant":
        raise ContextError(f"{by} returned messages that end with an answer: keep the last of those that it was given")
    before: set[str] = set()
    for number, message in enumerate(messages):
        results = {block.call_id for block in message.content if isinstance(block, ToolResult)}
        if results != before:
            lost = ", ".join(sorted(before ^ results))
            raise ContextError(f"{by} parted calls from their results, around message {number}: {lost}. Keep both")
        before = {block.id for block in message.content if isinstance(block, ToolCall)}
    return messages


def _prompt(messages: Sequence[Message], place: int) -> int:
    """The index of the prompt that the message at this place belongs to."""
    return next(number for number in range(place, -1, -1) if messages[number].role == "user")


def _first(candidates: Sequence[int], fits: Callable[[int], bool]) -> int:
    """The first place that fits, or else the last one. The later a place, the less is sent."""
    return candidates[min(bisect.bisect_left(candidates, True, key=fits), len(candidates) - 1)]


def _aim(total: int, most: int) -> int:
    """How much to send: less than there is, by a whole number of quarters of the limit."""
    step = max(1, most // 4)
    return total if total <= most else total + (most - total) // step * step


def _limit(name: str, given: object) -> int | None:
    if given is not None and not (isinstance(given, int) and not isinstance(given, bool) and given >= 1):
        raise ConfigurationError(f"{name} is {given!r}; it is a whole number, 1 or more")
    return given


def _lines(messages: Sequence[Message]) -> list[str]:
    """A conversation as lines of text. For the model that reads it, it is one prompt."""
    lines = []
    for message in messages:
        for block in message.content:
            if isinstance(block, Text):
                lines.append(f"{message.role}: {_short(block.text)}")
            elif isinstance(block, Media):
                lines.append(f"{message.role}: [{block!r}]")
            elif isinstance(block, ToolCall):
                arguments = "".join(pieces_of(Message("assistant", [block]))).removeprefix(block.name)
                lines.append(f"assistant calls {block.name}: {_short(arguments)}")
            elif isinstance(block, ToolResult):
                lines.append(f"{block.name} answers ({block.status}): {_short(block.content)}")
    return lines


def _short(text: str) -> str:
    if len(text) <= LONGEST_BLOCK:
        return text
    half = LONGEST_BLOCK // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"
