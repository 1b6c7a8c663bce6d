# SPDX-License-Identifier: Apache-2.0
"""Each rule with a conversation that breaks it, and exactly the providers that mind."""

from __future__ import annotations

from typing import Any

import pytest

from andon.agent.settle import MARKERS
from andon.messages import Block, Message, Reasoning, Text, ToolCall, ToolResult, assistant, user
from andon.testing import validators
from andon.testing.validators import VALIDATORS, next_prompt_accepted, validate

PROVIDERS = {"openai_chat", "openai_responses", "anthropic", "bedrock", "gemini"}
STRICT = {"anthropic", "bedrock", "gemini"}
MARKER = Text("Cancelled by user")
HI = user("Hi")


def call(call_id: str = "1", name: str = "search", arguments: Any = None) -> ToolCall:
    return ToolCall(call_id, name, {} if arguments is None else arguments)


def result(call_id: str = "1", content: str = "found", **rest: Any) -> ToolResult:
    return ToolResult(call_id, "search", content, **rest)


def results(*blocks: Block) -> Message:
    return Message("tool", list(blocks))


def say(text: str = "Hello") -> Message:
    return assistant(Text(text))


ACCEPTED: dict[str, list[Message]] = {
    "a seal that no other provider is sent": [HI, assistant(Text("Hm"), Reasoning("", '{"of":"gemini"}')), HI],
    "nothing yet": [],
    "a prompt": [HI],
    "an answer": [HI, say()],
    "two prompts": [HI, say(), user("And?"), say("Well.")],
    "several text blocks": [Message("user", [Text("a"), Text("b")]), assistant(Text("a"), Text("b"))],
    "a tool": [HI, assistant(call()), results(result()), say()],
    "results still to be sent": [HI, assistant(call()), results(result())],
    "text and several tools, answered in another order": [
        HI,
        assistant(Text("Let me see."), call("1"), call("2", "a-b_C9", {"deep": {"x": [1]}})),
        results(result("2"), result("1")),
        say(),
    ],
    "turn after turn of tools": [
        HI,
        assistant(call("1")),
        results(result("1")),
        assistant(call("2")),
        results(result("2")),
        say(),
    ],
    "a result that is empty, and one that failed": [
        HI,
        assistant(call("1"), call("2")),
        results(result("1", ""), result("2", "no such file", status="error")),
        say(),
    ],
    "the longest name": [HI, assistant(call(name="n" * 64)), results(result()), say()],
    "reasoning before text and calls": [
        HI,
        assistant(Reasoning("hm", "s"), Text("I see"), Reasoning("so", "t"), call()),
        results(result()),
        assistant(Reasoning("ok", "u"), Text("Done")),
    ],
    "reasoning that adapters leave out": [HI, assistant(Reasoning("hm"), Text("Hello"), Reasoning("more"))],
    "cancelled before the model spoke": [HI, assistant(MARKER)],
    "cancelled in the text": [HI, assistant(Reasoning("hm", "s"), Text("Once upon"), MARKER)],
    "cancelled in a tool": [
        HI,
        assistant(Reasoning("hm"), call()),  # a finished turn keeps its reasoning
        results(result(content="cancelled while running, outcome unknown", status="error")),
        assistant(MARKER),
    ],
    "cancelled, and talked on": [HI, assistant(MARKER), user("Go on"), assistant(Reasoning("hm"), Text("Well."))],
    "a model that speaks of what was cancelled": [
        HI,
        assistant(Reasoning("hm"), Text("Cancelled flights: none."), call()),
        results(result()),
        assistant(Reasoning("hm"), Text("Cancelled by user request? No.")),
    ],
    "a person who types the marker": [user("Cancelled by user"), say()],
}


@pytest.mark.parametrize("conversation", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted(conversation: list[Message]) -> None:
    assert validate(conversation) == []


# name: the conversation, who refuses it, and the problems as each of them puts it
REFUSED: dict[str, tuple[list[Message], set[str], list[str]]] = {
    "starts with the assistant": (
        [say()],
        PROVIDERS,
        ["message 0 (assistant) begins the conversation, which must start with a user message"],
    ),
    "an empty prompt": ([Message("user", [])], PROVIDERS, ["message 0 (user) has no content"]),
    "an empty answer": ([HI, assistant(), user("Hm?")], PROVIDERS, ["message 1 (assistant) has no content"]),
    "an answer of unsigned reasoning only": (
        [HI, assistant(Reasoning("hm"))],
        PROVIDERS,
        ["message 1 (assistant) has no content"],
    ),
    "reasoning in a prompt": (
        [Message("user", [Reasoning("hm", "s"), Text("Hi")])],
        PROVIDERS - {"openai_chat"},  # to which no reasoning is sent
        ["message 0 (user) holds a reasoning block, which this role can't have"],
    ),
    "a call in a prompt": (
        [Message("user", [Text("Hi"), call()])],
        PROVIDERS,
        ["message 0 (user) holds a tool_call block, which this role can't have"],
    ),
    "text among results": (
        [HI, assistant(call()), results(result(), Text("there"))],
        PROVIDERS,
        ["message 2 (tool) holds a text block, which this role can't have"],
    ),
    "a role that is not known": (
        [HI, say(), Message("system", [Text("Be good")]), say()],  # type: ignore[arg-type]
        PROVIDERS,
        ["message 2 (system) holds a text block, which this role can't have"],
    ),
    "a call that is never answered": (
        [HI, assistant(call())],
        PROVIDERS,
        ["message 1 (assistant) calls '1' without a result in the very next message"],
    ),
    "a call that is answered by a prompt": (
        [HI, assistant(call()), HI],
        PROVIDERS,
        ["message 1 (assistant) calls '1' without a result in the very next message"],
    ),
    "a result in a prompt": (
        [HI, assistant(call()), Message("user", [result()])],
        PROVIDERS,
        ["message 1 (assistant) calls '1' without a result in the very next message"],
    ),
    "one call of two without its result": (
        [HI, assistant(call("1"), call("2")), results(result("1"))],
        PROVIDERS,
        ["message 1 (assistant) calls '2' without a result in the very next message"],
    ),
    "two results for one call": (
        [HI, assistant(call()), results(result(), result())],
        PROVIDERS,
        ["message 1 (assistant) calls '1', which has 2 results"],
    ),
    "a result too many": (
        [HI, assistant(call()), results(result(), result("x"))],
        PROVIDERS,
        ["message 2 (tool) has a result for 'x', which the message before doesn't call"],
    ),
    "a call id twice in one message": (
        [HI, assistant(call(), call()), results(result())],
        PROVIDERS,
        ["message 1 (assistant) uses the call id '1' 2 times"],
    ),
    "a call id of an earlier turn": (
        [HI, assistant(call()), results(result()), assistant(call()), results(result())],
        {"openai_responses"},
        ["message 3 (assistant) uses the call id '1' of an earlier message"],
    ),
    "a call id that is no word": (
        [HI, assistant(call("a.b")), results(result("a.b"))],
        {"anthropic"},
        ["message 1 (assistant) uses the call id 'a.b', which may have letters, digits, _ and - only"],
    ),
    "arguments that are a list": (
        [HI, assistant(call(arguments=[1])), results(result())],
        PROVIDERS,
        ["message 1 (assistant) calls 'search' with arguments that are not an object"],
    ),
    "two answers in a row": (
        [HI, say(), say()],
        STRICT,
        ["message 2 (assistant) follows a message of the same side (assistant); roles must alternate"],
    ),
    "two prompts in a row": (
        [HI, HI],
        STRICT,
        ["message 1 (user) follows a message of the same side (user); roles must alternate"],
    ),
    "a prompt right after results": (
        [HI, assistant(call()), results(result()), HI],
        STRICT,
        ["message 3 (user) follows a message of the same side (tool); roles must alternate"],
    ),
    "a blank answer": (
        [HI, assistant(Text("Hm"), Text(" \n"))],
        {"anthropic", "bedrock"},
        ["message 1 (assistant) has a blank text block"],
    ),
    "an empty text": ([user("")], {"anthropic", "bedrock"}, ["message 0 (user) has a blank text block"]),
    "an error that says nothing": (
        [HI, assistant(call()), results(result(content=" ", status="error"))],
        {"anthropic", "bedrock"},
        ["message 2 (tool) has an error result for '1' that says nothing"],
    ),
    "signed reasoning at the end": (
        [HI, assistant(Text("Hm"), Reasoning("hm", "s")), HI],
        {"openai_responses", "anthropic"},
        ["message 1 (assistant) ends with reasoning; text or a tool call must follow it"],
    ),
    "signed reasoning at the end, but for what is left out": (
        [HI, assistant(Text("Hm"), Reasoning("hm", "s"), Reasoning("open"))],
        {"openai_responses", "anthropic"},
        ["message 1 (assistant) ends with reasoning; text or a tool call must follow it"],
    ),
    "cut reasoning": (
        [HI, assistant(Reasoning("hm"), Text("Once"), MARKER)],
        {"andon"},
        ["message 1 (assistant) was cancelled and keeps reasoning without its signature"],
    ),
    "cut reasoning, and talked on": (
        [HI, assistant(Reasoning("hm"), MARKER), user("Go on")],
        {"andon"},
        ["message 1 (assistant) was cancelled and keeps reasoning without its signature"],
    ),
    "words after the marker": (
        [HI, assistant(MARKER, Text("and yet"))],
        {"andon"},
        ["message 1 (assistant) was cancelled, but the marker is not its last block"],
    ),
    "an answer after the marker": (
        [HI, assistant(MARKER), say(), HI],
        {"andon", *STRICT},
        [
            "message 2 (assistant) follows the marker of a cancel; only the next prompt may",
            "message 2 (assistant) follows a message of the same side (assistant); roles must alternate",
        ],
    ),
}


@pytest.mark.parametrize(("conversation", "refused_by", "problems"), REFUSED.values(), ids=REFUSED)
def test_refused(conversation: list[Message], refused_by: set[str], problems: list[str]) -> None:
    found = {name: validator(conversation) for name, validator in VALIDATORS.items()}
    assert {name for name, said in found.items() if said} == refused_by
    for name in refused_by:
        assert found[name][0] in problems
    assert {problem for said in found.values() for problem in said} >= set(problems)


@pytest.mark.parametrize("name", ["", "a b", "a.b", "é", "n" * 65, "name\n"])
def test_names_that_no_tool_can_have(name: str) -> None:
    conversation = [HI, assistant(call(name=name)), results(result())]
    for provider in PROVIDERS:
        (problem,) = VALIDATORS[provider](conversation)
        assert problem.startswith(f"message 1 (assistant) calls {name!r}, which is no name for a tool")


def test_results_without_a_call_before_them() -> None:
    late = [HI, assistant(call()), results(result()), say(), results(result()), say()]
    for provider in PROVIDERS:
        assert VALIDATORS[provider](late) == [
            "message 4 (tool) has a result for '1', which the message before doesn't call"
        ]


def test_openai_does_not_see_how_results_were_grouped() -> None:
    split = [HI, assistant(call("1"), call("2")), results(result("1")), results(result("2")), say()]
    assert validators.openai_chat(split) == validators.openai_responses(split) == []
    for provider in STRICT:
        assert VALIDATORS[provider](split) == [
            "message 1 (assistant) calls '2' without a result in the very next message",
            "message 3 (tool) has a result for '2', which the message before doesn't call",
            "message 3 (tool) follows a message of the same side (tool); roles must alternate",
        ]


def test_a_message_of_results_without_any_is_told_also_among_others() -> None:
    conversation = [HI, assistant(call()), results(result()), results(), say()]
    assert validators.openai_chat(conversation) == ["message 3 (tool) has no content"]


def test_reasoning_alone_is_nothing_for_chat_and_something_for_gemini() -> None:
    thought = [HI, assistant(Reasoning("hm", "s"))]
    assert validators.openai_chat(thought) == ["message 1 (assistant) has no content"]
    assert validators.gemini(thought) == validators.bedrock(thought) == []


def test_problems_come_in_the_order_of_the_messages() -> None:
    problems = validators.bedrock([say(" "), say(), assistant()])
    assert [problem.split(" (")[0] for problem in problems] == [*["message 0"] * 2, "message 1", *["message 2"] * 2]


@pytest.mark.parametrize("marker", MARKERS.values())
def test_every_cause_has_a_marker_that_counts(marker: str) -> None:
    cut = [HI, assistant(Reasoning("hm"), Text("Once"), Text(marker))]
    assert validators.no_cut_reasoning(cut) != []
    assert validators.cancelled_ends_with_marker(cut) == []
    assert validators.cancelled_ends_with_marker([HI, assistant(Text(marker), Text("x"))]) != []


def test_results_after_the_marker_are_told() -> None:
    conversation = [HI, assistant(call(), MARKER), results(result()), say()]
    assert validate(conversation) == [
        "andon: message 2 (tool) follows the marker of a cancel; only the next prompt may"
    ]


def test_an_older_cancelled_answer_is_left_as_it_is() -> None:
    assert validators.no_cut_reasoning([HI, assistant(Reasoning("hm"), MARKER), HI, say()]) == []


def test_validate_names_the_provider_and_takes_a_choice_of_them() -> None:
    conversation = [HI, HI]
    assert {problem.split(": ")[0] for problem in validate(conversation)} == STRICT
    assert validate(conversation, ["openai_chat", "openai_responses"]) == []
    assert validate(conversation, ["gemini"]) == [f"gemini: {validators.gemini(conversation)[0]}"]


def test_validate_knows_its_providers() -> None:
    assert set(VALIDATORS) == {*PROVIDERS, "andon"}
    with pytest.raises(ValueError, match=r"no validator for acme; there are openai_chat, .*andon"):
        validate([HI], ["gemini", "acme"])


@pytest.mark.parametrize("conversation", [[], [HI, say()], ACCEPTED["cancelled in a tool"]])
def test_the_next_prompt_is_accepted(conversation: list[Message]) -> None:
    before = list(conversation)
    assert next_prompt_accepted(conversation) == []
    assert conversation == before


@pytest.mark.parametrize("conversation", [[HI], [say()], [HI, assistant(call())], ACCEPTED["results still to be sent"]])
def test_the_next_prompt_is_refused(conversation: list[Message]) -> None:
    assert next_prompt_accepted(conversation) != []
