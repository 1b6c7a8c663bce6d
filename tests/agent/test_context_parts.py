# SPDX-License-Identifier: Apache-2.0
"""What is left out of a conversation: whatever it is, what is sent is one that every provider accepts."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andon import Agent, ContextError, ContextWindow, Message, Summarise, Trim
from andon.agent.context import STANDS_FOR, check_sendable, leave_out, places
from andon.core.records import Shortened
from andon.errors import ConfigurationError
from andon.messages import Block, Reasoning, Text, ToolCall, ToolResult, assistant, estimate_tokens, pieces_of, user
from andon.models.base import Model, ModelRequest
from andon.models.openai.chat import _messages as chat_messages
from andon.models.openai.responses import _items as responses_items
from andon.testing.providers.openai import chat_rules, responses_rules
from andon.testing.providers.openai.memory import Memory
from andon.testing.validators import validate


class Desk:
    """A window that counts as the library does, and writes summaries itself."""

    run_id = session_id = agent_id = "x"
    user_id: str | None = None

    def __init__(self, refused: int | None = None) -> None:
        self.refused = refused
        self.kept: Shortened | None = None
        self.asked: list[str] = []
        self.notes: dict[object, Any] = {}

    def tokens(self, messages: Sequence[Message]) -> int:
        return estimate_tokens(piece for message in messages for piece in pieces_of(message))

    def limit(self, tokens: int | None) -> int | None:
        return min((each for each in (tokens, self.refused) if each is not None), default=None)

    async def recall(self) -> Shortened | None:
        return self.kept

    def remember(self, covers: int, summary: str) -> None:
        self.kept = Shortened(covers, "", summary)

    async def ask(self, prompt: str, instructions: str | None = None, model: Model | None = None) -> str:
        self.asked.append(prompt)
        return "In short."

    def warn(self, text: str) -> None:
        raise AssertionError(text)


def asked(policy: Any, messages: list[Message], window: ContextWindow) -> list[Message]:
    answer: list[Message] | Coroutine[Any, Any, list[Message]] = policy(messages, window)
    return answer if isinstance(answer, list) else asyncio.run(answer)


# -- random conversations ---------------------------------------------------------------------------------------------

words = st.integers(1, 120).map(lambda length: "w" * length)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Prompts, each with any number of rounds of tools and, but for the last one, an answer: as before a model call."""
    numbers, messages = itertools.count(), list[Message]()
    exchanges = draw(st.integers(1, 5))
    for exchange in range(exchanges):
        messages.append(user(draw(words)))
        for _ in range(draw(st.integers(0, 4))):
            blocks: list[Block] = []
            if draw(st.booleans()):
                blocks.append(Reasoning(draw(words), draw(st.none() | st.just("sig"))))
            if draw(st.booleans()):
                blocks.append(Text(draw(words)))
            calls = [ToolCall(f"c{next(numbers)}", "look", {"at": draw(words)}) for _ in range(draw(st.integers(1, 3)))]
            messages.append(assistant(*blocks, *calls))
            status = st.sampled_from(["ok", "error"])
            results: list[Block] = [ToolResult(call.id, "look", draw(words), draw(status)) for call in calls]  # type: ignore[arg-type]
            messages.append(Message("tool", results))
        if exchange < exchanges - 1:
            last = draw(st.sampled_from(["Done.", "Cancelled by user"]))
            messages.append(assistant(Text(draw(words)), Text(last)))
    return messages


def check_sent(sent: list[Message], whole: list[Message]) -> None:
    """It is valid for everybody, the end is untouched, and what there is of it is in the order that it was said."""
    assert validate(sent) == []
    assert sent[-1].content[-1] == whole[-1].content[-1]
    check_sendable(sent, "x")
    rest = iter(whole)
    assert all(any(message.content[-1] == other.content[-1] for other in rest) for message in sent)
    body = {"model": "m", "stream": True}
    chat_rules.check({**body, "messages": chat_messages(ModelRequest(sent, None, []))}, ())
    plain = [Message(each.role, [block for block in each.content if not isinstance(block, Reasoning)]) for each in sent]
    responses_rules.check({**body, "input": responses_items(plain, False)}, (), Memory())


@given(conversations(), st.integers(1, 400), st.none() | st.integers(1, 400))
@settings(max_examples=80, deadline=None)
def test_trimming_to_tokens(whole: list[Message], limit: int, refused: int | None) -> None:
    assert validate(whole) == []
    desk = Desk(refused)
    sent = asked(Trim(tokens=limit), whole, desk)
    check_sent(sent, whole)
    if desk.tokens(sent) > min(limit, refused or limit):  # then there is nothing that could be left out
        assert leave_out(whole, (places(whole) or [0])[-1]) == sent


@given(conversations(), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_trimming_to_messages(whole: list[Message], limit: int) -> None:
    sent = asked(Trim(messages=limit), whole, Desk())
    check_sent(sent, whole)
    assert len(sent) <= max(limit, 3), "a prompt, calls, and their results always stay"
    assert (sent == whole) is (len(whole) <= limit or not places(whole))


@given(conversations(), st.integers(1, 400))
@settings(max_examples=60, deadline=None)
def test_summarising(whole: list[Message], limit: int) -> None:
    desk = Desk()
    sent = asked(Summarise(tokens=limit), whole, desk)
    check_sent(sent, whole)
    if sent == whole:
        assert desk.tokens(whole) <= limit or not places(whole)
    else:
        assert sent[0].text.startswith(f"{STANDS_FOR}In short.")
        assert desk.asked
        once = len(desk.asked)
        again = asked(Summarise(tokens=10_000), whole, desk)
        assert again == whole, "what fits is sent whole, whatever is remembered"
        assert len(desk.asked) == once


@given(conversations(), st.data())
@settings(max_examples=60, deadline=None)
def test_every_place_leaves_a_valid_conversation(whole: list[Message], data: st.DataObject) -> None:
    sizes = [Desk().tokens(leave_out(whole, place)) for place in [0, *places(whole)]]
    assert sizes == sorted(sizes, reverse=True), "the later the place, the less is sent"
    if found := places(whole):
        check_sent(
            leave_out(whole, data.draw(st.sampled_from(found)), data.draw(st.sampled_from(["", "Short."]))), whole
        )


def test_the_beginning_stays_the_same_for_a_while() -> None:
    """A provider's cache is of use only if what is sent does not begin elsewhere with every call."""
    whole, firsts = list[Message](), []
    for number in range(60):
        whole += [user(f"question {number:04}" * 4), assistant(Text("answer" * 6))]
        sent = asked(Trim(tokens=400), [*whole, user("now?")], Desk())
        assert Desk().tokens(sent) <= 400
        firsts.append(sent[0].text)
    changes = sum(before != after for before, after in itertools.pairwise(firsts))
    assert 4 <= changes <= 15


def test_the_prompt_of_a_long_run_stays() -> None:
    whole = [user("Count the files.")]
    for number in range(50):
        call = ToolCall(f"c{number}", "look", {"at": "x" * 100})
        whole += [assistant(call), Message("tool", [ToolResult(call.id, "look", "y" * 100)])]
    sent = asked(Trim(tokens=300), whole, Desk())
    assert sent[0] == whole[0]
    assert sent[1:] == whole[-len(sent) + 1 :]
    assert 3 <= len(sent) < 15


def test_a_long_beginning_is_summarised_in_pieces() -> None:
    whole = [message for number in range(20) for message in (user(f"u{number} " + "x" * 400), assistant(Text("ok")))]
    whole.append(user("And?"))
    desk = Desk()
    asked(Summarise(tokens=800), whole, desk)
    assert len(desk.asked) > 2
    assert all(len(prompt) < 800 * 4 for prompt in desk.asked)
    assert "In short." in desk.asked[-1]
    assert "u0 " in desk.asked[0]


def test_a_long_block_is_shown_by_its_ends() -> None:
    whole = [user("a" + "x" * 20_000 + "z"), assistant(Text("ok")), user("And?")]
    desk = Desk()
    asked(Summarise(tokens=5_000), whole, desk)
    (prompt,) = desk.asked
    assert "user: ax" in prompt
    assert "xz" in prompt
    assert "12002 characters left out" in prompt


# -- what can't be sent -----------------------------------------------------------------------------------------------

CALL = ToolCall("c1", "look", {})
RESULT = ToolResult("c1", "look", "seen")


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (None, "returned NoneType"),
        ("hello", "returned str"),
        ([user("Hi"), "more"], "something else in it"),
        ([], "the first message is not a user's"),
        ([assistant(Text("Hi"))], "the first message is not a user's"),
        ([Message("tool", [RESULT])], "the first message is not a user's"),
        ([user("Hi"), assistant(Text("Hello"))], "end with an answer"),
        ([user("Hi"), assistant(CALL), user("Well?")], "parted calls from their results, around message 2: c1"),
        ([user("Hi"), Message("tool", [RESULT])], "parted calls from their results, around message 1: c1"),
    ],
)
def test_what_is_wrong_is_said(messages: Any, words: str) -> None:
    with pytest.raises(ContextError, match=words):
        check_sendable(messages, "context shorter")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Trim(),
        lambda: Trim(tokens=0),
        lambda: Trim(messages=-1),
        lambda: Trim(tokens=True),
        lambda: Trim(tokens="many"),  # type: ignore[arg-type]
        lambda: Summarise(tokens=None),  # type: ignore[arg-type]
        lambda: Summarise(tokens=1.5),  # type: ignore[arg-type]
        lambda: Agent("A", context=Trim),  # type: ignore[arg-type]
        lambda: Agent("A", context=3),  # type: ignore[arg-type]
    ],
)
def test_a_policy_that_means_nothing_is_refused(make: Any) -> None:
    with pytest.raises(ConfigurationError):
        make()
