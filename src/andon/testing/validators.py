# SPDX-License-Identifier: Apache-2.0
"""The providers' rules for conversations, as functions that can be run.

Each validator takes a conversation of neutral messages and returns the objections of its provider, as sentences that
name the message by its index. An empty list means accepted. What must stay true: a validator never raises, never
changes its input, and never forbids what its provider accepts. The exception are the rules in `_COMMON`: every
conversation of ours keeps them, all providers accept that, and some demand it.

Validators see what adapters send. Adapters leave out reasoning without a signature, or with the seal of another
provider (OpenAI Chat has no reasoning at all), so the validators ignore it. A rule of our own says when it must not be
there: `no_cut_reasoning`. A `tool` message counts as the user's side, where Anthropic, Bedrock and Gemini put tool
results.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

from msgspec import Struct

from andon.agent.settle import MARKERS
from andon.messages import Block, File, Image, Message, Reasoning, Text, ToolCall, ToolResult, user
from andon.models.common.seals import seal_reader

Validator: TypeAlias = Callable[[Sequence[Message]], list[str]]

_Numbered: TypeAlias = list[tuple[int, Message]]  # messages with their index in the whole conversation
_Problems: TypeAlias = Iterator[tuple[int, str]]
_Rule: TypeAlias = Callable[[_Numbered], _Problems]

_BELONGS: dict[str, tuple[type[Block], ...]] = {
    "user": (Text, Image, File),
    "assistant": (Text, Reasoning, ToolCall),
    "tool": (ToolResult,),
}
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]+")


# -- the providers ----------------------------------------------------------------------------------------------------


def openai_chat(messages: Sequence[Message]) -> list[str]:
    """Chat Completions: every tool call has its result in the `tool` messages right after it."""
    return _check(_joined(_without(messages, lambda block: True)), *_COMMON)


def openai_responses(messages: Sequence[Message]) -> list[str]:
    """Responses: as Chat, call ids never repeat, and a reasoning item keeps the item that it led to."""
    return _check(_joined(_sent(messages, "openai")), *_COMMON, _ids_never_repeat, _reasoning_leads_on)


def anthropic(messages: Sequence[Message]) -> list[str]:
    """Messages: results in the very next message, no blank text, and no thinking block at the end of a message."""
    sent = _sent(messages, "anthropic")
    return _check(sent, *_COMMON, _roles_alternate, _no_blank_text, _errors_speak, _reasoning_leads_on, _ids_are_words)


def bedrock(messages: Sequence[Message]) -> list[str]:
    """Converse: roles alternate, results right after their calls and no more of them, nothing blank."""
    return _check(_sent(messages, "bedrock"), *_COMMON, _roles_alternate, _no_blank_text, _errors_speak)


def gemini(messages: Sequence[Message]) -> list[str]:
    """Gemini: as many function responses as calls, in the turn right after."""
    return _check(_sent(messages, "gemini"), *_COMMON, _roles_alternate)


# -- ours -------------------------------------------------------------------------------------------------------------


def no_cut_reasoning(messages: Sequence[Message]) -> list[str]:
    """The last answer of a cancelled conversation has no reasoning that was cut before its signature arrived."""
    return _check(list(enumerate(messages)), _no_cut_reasoning)


def cancelled_ends_with_marker(messages: Sequence[Message]) -> list[str]:
    """A cancelled answer ends with the marker, and only the next prompt may come after it."""
    return _check(list(enumerate(messages)), _marker_ends)


def andon(messages: Sequence[Message]) -> list[str]:
    """What Andon itself promises about a cancelled conversation, for every provider."""
    return [*no_cut_reasoning(messages), *cancelled_ends_with_marker(messages)]


# -- all of them ------------------------------------------------------------------------------------------------------

VALIDATORS: dict[str, Validator] = {
    "openai_chat": openai_chat,
    "openai_responses": openai_responses,
    "anthropic": anthropic,
    "bedrock": bedrock,
    "gemini": gemini,
    "andon": andon,
}


def validate(messages: Sequence[Message], providers: Iterable[str] | None = None) -> list[str]:
    """The objections of the named providers (by default all of them), each with the provider's name.

    In a test: `assert validate(agent.messages) == []`. The name `andon` stands for our own rules.
    """
    names = list(VALIDATORS if providers is None else providers)
    if unknown := [name for name in names if name not in VALIDATORS]:
        raise ValueError(f"no validator for {', '.join(unknown)}; there are {', '.join(VALIDATORS)}")
    return [f"{name}: {problem}" for name in names for problem in VALIDATORS[name](messages)]


def next_prompt_accepted(messages: Sequence[Message]) -> list[str]:
    """The objections to the conversation with one more prompt at its end. Empty means that it can continue."""
    return validate([*messages, user("next")])


# -- what is sent -----------------------------------------------------------------------------------------------------


class _Seal(Struct):
    of: str | None = None


_read_seal = seal_reader(_Seal)


def _sent(messages: Sequence[Message], provider: str) -> _Numbered:
    def left_out(block: Reasoning) -> bool:
        seal = _read_seal(block.signature)  # a signature that is no seal may be anybody's
        return block.signature is None or (seal is not None and seal.of not in (None, provider))

    return _without(messages, left_out)


def _without(messages: Sequence[Message], left_out: Callable[[Reasoning], bool]) -> _Numbered:
    def kept(block: Block) -> bool:
        return not (isinstance(block, Reasoning) and left_out(block))

    return [(index, Message(m.role, [block for block in m.content if kept(block)])) for index, m in enumerate(messages)]


def _joined(messages: _Numbered) -> _Numbered:
    """OpenAI has one message or item per result, so adjacent `tool` messages are the same as one."""
    joined: _Numbered = []
    for index, message in messages:
        if joined and message.role == "tool" and message.content and joined[-1][1].role == "tool":
            first, before = joined[-1]
            joined[-1] = first, Message("tool", [*before.content, *message.content])
        else:
            joined.append((index, message))
    return joined


# -- the rules --------------------------------------------------------------------------------------------------------


def _check(messages: _Numbered, *rules: _Rule) -> list[str]:
    roles = {index: message.role for index, message in messages}
    problems = [problem for rule in rules for problem in rule(messages)]
    problems.sort(key=lambda problem: problem[0])  # by message; within one, in the order of the rules
    return [f"message {index} ({roles[index]}) {problem}" for index, problem in problems]


def _starts_with_user(messages: _Numbered) -> _Problems:
    if messages and messages[0][1].role != "user":
        yield messages[0][0], "begins the conversation, which must start with a user message"


def _blocks_belong(messages: _Numbered) -> _Problems:
    for index, message in messages:
        if not message.content:
            yield index, "has no content"
        for block in message.content:
            if not isinstance(block, _BELONGS.get(message.role, ())):
                yield index, f"holds a {block.type} block, which this role can't have"


def _calls_are_well_formed(messages: _Numbered) -> _Problems:
    for index, message in messages:
        for call in message.tool_calls:
            if not _TOOL_NAME.fullmatch(call.name):
                yield index, f"calls {call.name!r}, which is no name for a tool (letters, digits, _ and -, up to 64)"
            if not isinstance(call.arguments, dict):
                yield index, f"calls {call.name!r} with arguments that are not an object"
        for call_id, times in Counter(call.id for call in message.tool_calls).items():
            if times > 1:
                yield index, f"uses the call id {call_id!r} {times} times"


def _calls_are_answered(messages: _Numbered) -> _Problems:
    for position, (index, message) in enumerate(messages):
        if message.role != "assistant":
            continue
        answers = messages[position + 1][1] if position + 1 < len(messages) else Message("tool", [])
        given = Counter(result.call_id for result in answers.tool_results if answers.role == "tool")
        for call_id in dict.fromkeys(call.id for call in message.tool_calls):
            if not given[call_id]:
                yield index, f"calls {call_id!r} without a result in the very next message"
            elif given[call_id] > 1:
                yield index, f"calls {call_id!r}, which has {given[call_id]} results"


def _results_were_asked_for(messages: _Numbered) -> _Problems:
    asked: set[str] = set()
    for index, message in messages:
        if message.role == "tool":
            for result in message.tool_results:
                if result.call_id not in asked:
                    yield index, f"has a result for {result.call_id!r}, which the message before doesn't call"
        asked = {call.id for call in message.tool_calls} if message.role == "assistant" else set()


_COMMON: tuple[_Rule, ...] = (
    _starts_with_user,
    _blocks_belong,
    _calls_are_well_formed,
    _calls_are_answered,
    _results_were_asked_for,
)


def _roles_alternate(messages: _Numbered) -> _Problems:
    for (_, before), (index, message) in pairwise(messages):
        if (before.role == "assistant") == (message.role == "assistant"):
            yield index, f"follows a message of the same side ({before.role}); roles must alternate"


def _no_blank_text(messages: _Numbered) -> _Problems:
    for index, message in messages:
        if any(isinstance(block, Text) and not block.text.strip() for block in message.content):
            yield index, "has a blank text block"


def _errors_speak(messages: _Numbered) -> _Problems:
    for index, message in messages:
        for result in message.tool_results:
            if result.status == "error" and not result.content.strip():
                yield index, f"has an error result for {result.call_id!r} that says nothing"


def _reasoning_leads_on(messages: _Numbered) -> _Problems:
    for index, message in messages:
        if message.content and isinstance(message.content[-1], Reasoning):
            yield index, "ends with reasoning; text or a tool call must follow it"


def _ids_never_repeat(messages: _Numbered) -> _Problems:
    seen: set[str] = set()
    for index, message in messages:
        ids = {call.id for call in message.tool_calls}
        for call_id in sorted(ids & seen):
            yield index, f"uses the call id {call_id!r} of an earlier message"
        seen |= ids


def _ids_are_words(messages: _Numbered) -> _Problems:
    for index, message in messages:
        for call in message.tool_calls:
            if not _ANTHROPIC_ID.fullmatch(call.id):
                yield index, f"uses the call id {call.id!r}, which may have letters, digits, _ and - only"


def _no_cut_reasoning(messages: _Numbered) -> _Problems:
    answers = [(index, message) for index, message in messages if message.role == "assistant" and message.content]
    for index, message in answers[-1:]:
        unsigned = any(isinstance(block, Reasoning) and block.signature is None for block in message.content)
        if unsigned and _is_marker(message.content[-1]):
            yield index, "was cancelled and keeps reasoning without its signature"


def _marker_ends(messages: _Numbered) -> _Problems:
    for position, (index, message) in enumerate(messages):
        if message.role != "assistant" or not any(map(_is_marker, message.content)):
            continue
        if not _is_marker(message.content[-1]):
            yield index, "was cancelled, but the marker is not its last block"
        for after, follower in messages[position + 1 : position + 2]:
            if follower.role != "user":
                yield after, "follows the marker of a cancel; only the next prompt may"


def _is_marker(block: Block) -> bool:
    # The whole text, because a model may begin an answer with the same word.
    return isinstance(block, Text) and block.text in MARKERS.values()
