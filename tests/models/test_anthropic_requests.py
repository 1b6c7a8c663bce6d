# SPDX-License-Identifier: Apache-2.0
"""What is sent to Anthropic. The fake refuses what Anthropic refuses."""

from __future__ import annotations

import asyncio
import base64
import itertools
import logging
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, Field

from andon import Agent, File, FinishReason, Image, RunStatus, UnsupportedContentError, tool
from andon.errors import ConfigurationError, SetupError
from andon.messages import Message, Reasoning, Text, ToolCall, ToolResult, assistant, user
from andon.models.anthropic import Anthropic, limits
from andon.models.anthropic.conversation import conversation
from andon.models.anthropic.limits import AGAIN_SECONDS, FALLBACK_TOKENS
from andon.models.anthropic.schema import enforceable
from andon.models.scripted import ScriptedModel, Think
from andon.testing.providers import FakeAnthropic, call, finish, reasoning, text
from tests.support import play
from tests.support.anthropic import ID, OLDER, agent, errors, model

PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 20
CAT = Image(PNG)
SAID = {"type": "text", "text": "go"}


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


# -- options ----------------------------------------------------------------------------------------------------------


def sent(id: str = ID, *, tools: Any = (), extra: tuple[str, ...] = (), **options: Any) -> dict[str, Any]:
    with FakeAnthropic(extra=extra) as fake:
        result = agent(fake, id, tools=tools, instructions="Be brief.", **options).run("go")
        assert result.status is RunStatus.completed, result.error
        return fake.requests[0]


def test_what_is_sent() -> None:
    options: dict[str, Any] = {
        "max_tokens": 99,
        "effort": "low",
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "stop_sequences": ["END"],
        "metadata": {"user_id": "ann"},
        "service_tier": "auto",
    }
    said = sent(OLDER, **options)
    effort = options.pop("effort")
    assert said == options | {
        "model": OLDER,
        "stream": True,
        "system": "Be brief.",
        "output_config": {"effort": effort},
        "cache_control": {"type": "ephemeral"},
        "messages": [{"role": "user", "content": [SAID]}],
    }


def test_what_is_left_out_is_not_sent() -> None:
    assert sent().keys() == {"model", "stream", "max_tokens", "system", "cache_control", "messages"}


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"thinking": True}, "thinking", {"type": "adaptive", "display": "summarized"}),
        ({"thinking": False}, "thinking", {"type": "disabled"}),
        ({"thinking": {"type": "adaptive"}}, "thinking", {"type": "adaptive"}),
        ({"cache": "1h"}, "cache_control", {"type": "ephemeral", "ttl": "1h"}),
        ({"user": "ann"}, "metadata", {"user_id": "ann"}),
        ({"stop_sequences": "END"}, "stop_sequences", ["END"]),
    ],
)
def test_options_in_their_short_forms(options: dict[str, Any], field: str, value: Any) -> None:
    assert sent(**options)[field] == value


def test_the_cache_can_be_switched_off() -> None:
    assert "cache_control" not in sent(cache=False)


@pytest.mark.parametrize(
    ("options", "choice"),
    [
        ({}, None),
        ({"tool_choice": "auto"}, {"type": "auto"}),
        ({"tool_choice": "none"}, {"type": "none"}),
        ({"tool_choice": {"type": "auto"}}, {"type": "auto"}),
        ({"parallel_tool_calls": False}, {"type": "auto", "disable_parallel_tool_use": True}),
        ({"tool_choice": "required", "parallel_tool_calls": True}, {"type": "any", "disable_parallel_tool_use": False}),
        ({"tool_choice": "add", "parallel_tool_calls": False}, None),
        ({"tool_choice": "none", "parallel_tool_calls": False}, {"type": "none"}),
    ],
)
def test_options_of_tools_are_sent_with_tools_alone(options: dict[str, Any], choice: Any) -> None:
    if options.get("tool_choice") == "add":
        choice = {"type": "tool", "name": "add", "disable_parallel_tool_use": True}
    assert "tool_choice" not in sent(**options)
    said = sent(tools=[add], **options)
    assert said.get("tool_choice") == choice
    (told,) = said["tools"]
    assert told["name"] == "add"
    assert told["description"] == "Add two numbers."
    assert told["input_schema"]["type"] == "object"


def test_headers_query_and_body() -> None:
    with FakeAnthropic(extra=["new_thing"]) as fake:
        options: dict[str, Any] = {
            "betas": ["one-2026", "two-2026"],
            "extra_headers": {"X-Team": "blue", "Anthropic-Beta": "zero-2026"},
            "extra_query": {"v": 1},
            "extra_body": {"new_thing": 5},
        }
        assert agent(fake, **options).run("go").status is RunStatus.completed
        assert fake.requests[0]["new_thing"] == 5
        headers = fake.served[0].headers
        assert headers["x-team"] == "blue"
        assert headers["anthropic-beta"] == "zero-2026,one-2026,two-2026"
        assert headers["authorization"] == f"Bearer {fake.api_key}"
        assert headers["content-type"] == "application/json"


def test_the_body_may_have_what_the_sdk_can_write() -> None:
    class Thing(BaseModel):
        a: int

    assert sent(extra=("thing",), extra_body={"thing": Thing(a=1)})["thing"] == {"a": 1}


@pytest.mark.parametrize(
    "options",
    [
        {"thinking": "yes"},
        {"cache": "2h"},
        {"block_binding": "maybe"},
        {"api_key": "a", "auth_token": "b"},
        {"client": object(), "base_url": "http://localhost"},
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Anthropic(ID, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"extra_headers": {"a b": "c"}}, "name that no header can have"),
        ({"extra_body": {"a": object()}}, "JSON"),
        ({"betas": ["x"], "extra_headers": 5}, "extra_headers"),
        ({"base_url": "nowhere"}, "base_url"),
    ],
)
def test_options_that_no_server_takes_are_refused_before_a_run(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SetupError, match=words):
        Agent("Tester", Anthropic(ID, **({"api_key": "k"} | options))).run("go")


@pytest.mark.parametrize("id", ["", "  ", None, 7])
def test_a_model_has_a_name(id: Any) -> None:
    with pytest.raises(ConfigurationError, match="claude-opus"):
        Anthropic(id)


# -- the limit of output tokens ---------------------------------------------------------------------------------------


def test_the_limit_is_asked_for_once() -> None:
    async def main() -> None:
        with FakeAnthropic(max_tokens=1234) as fake:
            tester = agent(fake)
            for _ in range(3):
                assert (await tester.invoke_async("go")).status is RunStatus.completed
            assert [each["max_tokens"] for each in fake.requests] == [1234] * 3
            assert fake.models_asked == [ID]
            await agent(fake, OLDER).invoke_async("go")
            await agent(fake, "my/model").invoke_async("go")
            assert fake.models_asked == [ID, OLDER, "my/model"]

    play(main)


def test_a_server_without_a_list_of_models(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        with FakeAnthropic(max_tokens=None) as fake, caplog.at_level(logging.WARNING, "andon"):
            tester = agent(fake)
            for _ in range(2):
                assert (await tester.invoke_async("go")).status is RunStatus.completed
            assert [each["max_tokens"] for each in fake.requests] == [FALLBACK_TOKENS] * 2
            assert fake.models_asked == [ID]
        assert [record.message for record in caplog.records if "pass max_tokens=" in record.message]

    play(main)


def test_a_given_limit_is_not_asked_for() -> None:
    with FakeAnthropic() as fake:
        agent(fake, max_tokens=5).run("go")
        agent(fake, extra_body={"max_tokens": 6}).run("go")
        assert [each["max_tokens"] for each in fake.requests] == [5, 6]
        assert fake.models_asked == []


# -- conversations ----------------------------------------------------------------------------------------------------


def test_a_conversation_with_all_there_is() -> None:
    calls = [call("add", {"a": 1, "b": n}, id=f"toolu_{n}", pieces=4, interleaved=True) for n in range(3)]
    first: Any = [reasoning("I must add.", signature="one"), text("Let me add. "), *calls]
    hidden = reasoning(redacted="gone")
    with FakeAnthropic([first, [hidden, reasoning("", signature="two"), text("Done.")], [text("Bye.")]]) as fake:
        tester = agent(fake, tools=[add], thinking=True)
        result = tester.run("go")
        assert result.status is RunStatus.completed, result.error
        assert result.content == "Let me add. Done."
        assert tester.run("and?").content == "Bye."
        assert errors(fake) == []
        assert len({each.connection for each in fake.served}) == 1, "the connection was not used again"
        last = fake.requests[-1]["messages"]
        assert last == [
            {"role": "user", "content": [SAID]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "I must add.", "signature": "one"},
                    {"type": "text", "text": "Let me add. "},
                    *[
                        {"type": "tool_use", "id": f"toolu_{n}", "name": "add", "input": {"a": 1, "b": n}}
                        for n in range(3)
                    ],
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": f"toolu_{n}", "content": str(1 + n)} for n in range(3)
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "redacted_thinking", "data": "gone"},
                    {"type": "thinking", "thinking": "", "signature": "two"},
                    {"type": "text", "text": "Done."},
                ],
            },
            {"role": "user", "content": [{"type": "text", "text": "and?"}]},
        ]


def test_reasoning_of_another_provider_stays_here() -> None:
    with FakeAnthropic([[text("B.")]]) as fake:
        tester = Agent("Tester", ScriptedModel([Think("Hm.", signature="EqQBCgIYAh=="), "A."]))
        tester.run("go")
        tester.model = model(fake)
        assert tester.run("and?").content == "B."
        assert fake.requests[0]["messages"][1] == {"role": "assistant", "content": [{"type": "text", "text": "A."}]}


def said(*messages: Message) -> list[Any]:
    return [(each["role"], [block["type"] for block in each["content"]]) for each in conversation(messages)]


def test_results_come_first_and_text_before_calls() -> None:
    """As another provider, or a history of one's own, may not have it."""
    made = conversation(
        [
            user("go"),
            assistant(ToolCall("a:1", "add", {}), Text("So."), ToolCall("a/1", "add", {})),
            Message("tool", [ToolResult("a/1", "add", "x"), ToolResult("a:1", "add", " ", "error")]),
            user("and?"),
        ]
    )
    assert [block["type"] for block in made[1]["content"]] == ["text", "tool_use", "tool_use"]
    assert [block.get("id") for block in made[1]["content"]] == [None, "a_1", "a_1_"]
    assert made[2]["content"] == [
        {"type": "tool_result", "tool_use_id": "a_1_", "content": "x"},
        {"type": "tool_result", "tool_use_id": "a_1", "is_error": True, "content": "error"},
        {"type": "text", "text": "and?"},
    ]


def test_it_never_ends_with_the_assistant_and_has_no_blank_text() -> None:
    assert said(user("go"), assistant(Text("A."), Text("  "))) == [
        ("user", ["text"]),
        ("assistant", ["text"]),
        ("user", ["text"]),
    ]
    assert said(user("go"), assistant(Reasoning("Hm."))) == [("user", ["text"])]


def test_what_was_sent_is_sent_again_as_it_was() -> None:
    """Each request begins with the messages of the one before it: thinking is bound to them."""
    turns = itertools.count()

    def script(body: dict[str, Any]) -> Any:
        number = next(turns)
        if number == 3:
            return [reasoning("No."), text("I"), finish("refusal")]
        return (
            [reasoning(f"Hm {number}."), call("add", {"a": 1, "b": 2})] if number % 2 else [reasoning("?"), text("A.")]
        )

    with FakeAnthropic(script) as fake:
        tester = agent(fake, tools=[add], thinking=True)
        for prompt in "abcdef":
            tester.run(prompt)
        assert errors(fake) == []
        kept = [each["messages"] for number, each in enumerate(fake.requests) if number != 3]
        assert all(kept[-1][: len(each)] == each for each in kept)


def test_results_come_before_what_is_said_with_them() -> None:
    called = assistant(ToolCall("c1", "add", {}))
    said = Message("user", [Text("Look:"), ToolResult("c1", "add", "3")])
    sent = conversation([user("go"), called, said])
    assert [each["type"] for each in sent[-1]["content"]] == ["tool_result", "text"]


# -- refused turns ----------------------------------------------------------------------------------------------------


def test_a_refused_turn_is_not_sent_again() -> None:
    answers: list[Any] = [[text("A.")], [reasoning("Hm."), text("Well"), finish("refusal")], [text("C.")]]
    with FakeAnthropic(answers) as fake:
        tester = agent(fake)
        tester.run("one")
        result = tester.run("two")
        assert (result.status, result.finish_reason) == (RunStatus.completed, FinishReason.refusal)
        (warning,) = result.warnings
        assert "declined to answer: general_harms: It could do harm." in warning
        assert tester.run("three").content == "C."
        assert errors(fake) == []
        texts = [each["content"][0]["text"] for each in fake.requests[-1]["messages"]]
        assert texts == ["one", "A.", "three"]


def test_a_refused_turn_is_not_sent_again_when_its_run_failed() -> None:
    """A refusal is no JSON, so a run that needs some fails."""
    with FakeAnthropic([[text("No."), finish("refusal")], [text("[1]")]]) as fake:
        tester = agent(fake)
        assert tester.run("one", output_type=list[int]).status is RunStatus.error
        assert tester.run("two").content == "[1]"
        assert [each["content"][0]["text"] for each in fake.requests[-1]["messages"]] == ["two"]


def test_a_turn_that_is_refused_after_a_call_goes_as_a_whole() -> None:
    answers: list[Any] = [[call("add", {"a": 1, "b": 2})], [finish("refusal")], [text("C.")]]
    with FakeAnthropic(answers) as fake:
        tester = agent(fake, tools=[add])
        assert tester.run("one").finish_reason is FinishReason.refusal
        assert tester.run("two").content == "C."
        assert fake.requests[-1]["messages"] == [{"role": "user", "content": [{"type": "text", "text": "two"}]}]


# -- preserved thinking -----------------------------------------------------------------------------------------------


def changing(fake: FakeAnthropic, **options: Any) -> Agent:
    counter = itertools.count()
    return agent(fake, instructions=lambda ctx: f"Run {next(counter)}.", thinking=True, **options)


THINKS: list[Any] = [[reasoning("Hm."), text("A.")]]


def test_instructions_that_change_are_allowed_to_drop_thinking() -> None:
    with FakeAnthropic(THINKS) as fake:
        tester = changing(fake, betas=["one-2026"])
        for prompt in "abc":
            result = tester.run(prompt)
            assert (result.status, result.content) == (RunStatus.completed, "A."), result.error
        assert len(errors(fake)) == 1
        assert len(fake.requests) == 4, "after the first time, the leave is given at once"
        asked = [each["thinking"].get("block_binding") for each in fake.requests]
        drop = {"prefix_mismatch_behavior": "drop_block"}
        assert asked == [None, None, drop, drop]
        beta = "thinking-binding-controls-2026-08-01"
        assert fake.served[2].headers["anthropic-beta"] == f"one-2026,{beta}"


def test_the_leave_can_be_given_at_once_or_never() -> None:
    with FakeAnthropic(THINKS) as fake:
        tester = changing(fake, block_binding="drop_block")
        assert [tester.run(prompt).status for prompt in "ab"] == [RunStatus.completed] * 2
        assert errors(fake) == []
    with FakeAnthropic(THINKS) as fake:
        tester = changing(fake, block_binding="error")
        tester.run("a")
        assert "bound to a different conversation" in str(tester.run("b").error)


def test_the_leave_needs_no_option_for_thinking() -> None:
    """Models that bind their thinking think without being asked."""
    with FakeAnthropic(THINKS) as fake:
        tester = agent(fake)
        tester.run("a")
        tester.instructions = "Something else."
        assert tester.run("b").status is RunStatus.completed
        assert fake.requests[-1]["thinking"]["type"] == "adaptive"


@pytest.mark.parametrize("thinking", [False, {"type": "between_tools"}])
def test_thinking_is_left_out_where_the_leave_has_no_place(thinking: Any) -> None:
    with FakeAnthropic(THINKS) as fake:
        tester = agent(fake, thinking=thinking)
        tester.run("a")
        tester.instructions = "Something else."
        assert tester.run("b").status is RunStatus.completed
        assert tester.run("c").status is RunStatus.completed
        assert len(errors(fake)) == 1
        kinds = [block["type"] for each in fake.requests[-1]["messages"] for block in each["content"]]
        assert kinds == ["text"] * 5


def test_a_conversation_that_is_not_changed_needs_no_leave() -> None:
    with FakeAnthropic(THINKS) as fake:
        tester = agent(fake, thinking=True, instructions="Be brief.")
        for prompt in "abc":
            tester.run(prompt)
        assert errors(fake) == []
        kinds = [block["type"] for each in fake.requests[-1]["messages"] for block in each["content"]]
        assert kinds.count("thinking") == 2


# -- images and files -------------------------------------------------------------------------------------------------


@tool
async def photo() -> Any:
    """Take a photo."""
    return ["A cat:", CAT]


def test_a_prompt_and_a_result() -> None:
    with FakeAnthropic([[call("photo", id="toolu_1")], [text("Nice.")]]) as fake:
        prompt: list[Any] = [
            "Look",
            CAT,
            Image(url="https://x.org/cat.png"),
            File(b"%PDF-1.7", name="report.pdf"),
            File(url="https://x.org/a.pdf"),
            File(b"Buy milk.", name="notes.txt"),
        ]
        result = agent(fake, tools=[photo]).run(prompt)
        assert result.status is RunStatus.completed, result.error
        image = {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()},
        }
        pdf = {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(b"%PDF-1.7").decode()}
        notes = {"type": "text", "media_type": "text/plain", "data": "Buy milk."}
        assert fake.requests[0]["messages"][0]["content"] == [
            {"type": "text", "text": "Look"},
            image,
            {"type": "image", "source": {"type": "url", "url": "https://x.org/cat.png"}},
            {"type": "document", "source": pdf, "title": "report.pdf"},
            {"type": "document", "source": {"type": "url", "url": "https://x.org/a.pdf"}},
            {"type": "document", "source": notes, "title": "notes.txt"},
        ]
        (told,) = fake.requests[1]["messages"][-1]["content"]
        assert told["content"] == [{"type": "text", "text": "A cat:"}, image]


@pytest.mark.parametrize(
    "block", [Image(b"BM and more"), File(b"PK\x03\x04\x00", name="t.xlsx"), Image(url="gs://a/b")]
)
def test_what_cannot_be_taken_is_said_before_anything_is_sent(block: Any) -> None:
    with FakeAnthropic() as fake:
        with pytest.raises(UnsupportedContentError, match="Anthropic takes"):
            agent(fake).run(["Look", block])
        assert fake.requests == []


# -- structured output ------------------------------------------------------------------------------------------------


class Mast(BaseModel):
    height: float = Field(gt=0, lt=100)


class Ship(BaseModel):
    name: str = Field(min_length=1, pattern="[A-Z].*")
    masts: list[Mast] = Field(max_length=5)
    note: str | None = None


class Tree(BaseModel):
    name: str
    children: list[Tree] = []


def test_output_is_enforced_where_it_can_be() -> None:
    with FakeAnthropic([[text('{"name": "A", "masts": [{"height": 3}], "note": null}')]]) as fake:
        tester = Agent("Tester", model(fake, effort="low"), output_type=Ship)
        assert tester.run("go").output == Ship(name="A", masts=[Mast(height=3)])
        config = fake.requests[0]["output_config"]
        assert config["effort"] == "low"
        assert config["format"]["schema"]["required"] == ["name", "masts", "note"]
        assert errors(fake) == []


@pytest.mark.parametrize(("kind", "answer"), [(Tree, '{"name": "A"}'), (dict[str, int], '{"a": 1}')])
def test_output_is_asked_for_where_it_cannot_be_enforced(kind: Any, answer: str) -> None:
    with FakeAnthropic([[text(answer)]]) as fake:
        tester = Agent("Tester", model(fake), output_type=kind, instructions="Be brief.")
        assert tester.run("go").output in (Tree(name="A"), {"a": 1})
        assert "output_config" not in fake.requests[0]
        assert fake.requests[0]["system"].startswith("Be brief.\n\nAnswer with nothing but JSON")


def test_a_definition_that_is_used_twice_is_not_recursive() -> None:
    both = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"$ref": "#/$defs/A"}}}
    made = enforceable({**both, "$defs": {"A": {"type": "string", "maxLength": 3}}})
    assert made is not None
    assert made["$defs"] == {"A": {"type": "string"}}
    assert enforceable({**both, "$defs": {"A": {"type": "array", "items": {"$ref": "#/$defs/A"}}}}) is None


# -- a limit that is not answered -------------------------------------------------------------------------------------


def test_a_list_that_never_answers_is_not_waited_for_with_each_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        go_on, asked = threading.Event(), list[str]()
        with FakeAnthropic([[text("Fine.")]]) as fake, caplog.at_level(logging.WARNING, "andon"):
            other = fake.api.other

            def silent(request: Any) -> Any:
                asked.append(request.path)
                go_on.wait(10)
                return other(request)

            fake.api.other = silent  # type: ignore[method-assign]
            tester = agent(fake)
            for _ in range(3):
                assert (await tester.invoke_async("go")).content == "Fine."
            assert [each["max_tokens"] for each in fake.requests] == [FALLBACK_TOKENS] * 3
            assert len(asked) == 1
            go_on.set()
            monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + AGAIN_SECONDS))
            await tester.invoke_async("go")
            assert fake.requests[-1]["max_tokens"] not in (None, FALLBACK_TOKENS)
        (line,) = [record.message for record in caplog.records if "pass max_tokens=" in record.message]
        assert "TimeoutError" in line

    monkeypatch.setattr(limits, "SECONDS", 0.05)
    play(main)


def test_a_cancel_while_the_limit_is_asked_for() -> None:
    async def main() -> None:
        asked, go_on = threading.Event(), threading.Event()
        with FakeAnthropic([[text("Fine.")]]) as fake:
            other = fake.api.other

            def slow(request: Any) -> Any:
                asked.set()
                go_on.wait(10)
                return other(request)

            fake.api.other = slow  # type: ignore[method-assign]
            tester = agent(fake)
            async with tester.start("go") as run:
                await asyncio.to_thread(asked.wait)
                run.cancel()
                assert (await run.result()).status is RunStatus.cancelled
            go_on.set()
            assert fake.served == []
            assert (await tester.invoke_async("go")).content == "Fine."

    play(main)
