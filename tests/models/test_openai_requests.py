# SPDX-License-Identifier: Apache-2.0
"""What is sent to OpenAI, and what its errors become. The fakes refuse parameters that OpenAI doesn't know."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from andon import Agent, RunEvent, RunStatus, Usage, tool
from andon.errors import (
    AuthenticationError,
    BadRequestError,
    ConfigurationError,
    ContextLengthError,
    ModelConnectionError,
    ModelError,
    RateLimitError,
    SetupError,
)
from andon.messages import Reasoning, Text, ToolCall, ToolResult
from andon.models.openai import OpenAIChat, OpenAIResponses
from andon.testing.providers import FakeChat, FakeResponses, call, fail, raw, reasoning, stall, text, usage
from tests.support import HANG, play
from tests.support.openai import ID, Api, each_api


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


# -- options ----------------------------------------------------------------------------------------------------------

COMMON: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "service_tier": "flex",
    "metadata": {"a": "b"},
    "user": "ann",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
}


def sent(api: Api, *, tools: list[Any] | None = None, extra: tuple[str, ...] = (), **options: Any) -> dict[str, Any]:
    with api.fake(extra=extra) as fake:
        result = Agent("Tester", api.model(fake, **options), instructions="Be brief.", tools=tools or []).run("go")
        assert result.status is RunStatus.completed, result.error
        return fake.requests[0]


def test_what_chat_is_sent() -> None:
    options = COMMON | {"reasoning_effort": "low", "verbosity": "low", "seed": 7, "store": True, "stop": ["END"]}
    options |= {"presence_penalty": 0.1, "frequency_penalty": 0.2}
    with FakeChat() as fake:
        model = OpenAIChat(
            ID, base_url=fake.base_url, api_key=fake.api_key, max_output_tokens=99, tool_choice="auto", **options
        )
        Agent("Tester", model, instructions="Be brief.").run("go")
        assert fake.requests == [
            options
            | {
                "model": ID,
                "stream": True,
                "stream_options": {"include_usage": True},
                "max_completion_tokens": 99,
                "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "go"}],
            }
        ]


def test_what_responses_is_sent() -> None:
    with FakeResponses() as fake:
        model = OpenAIResponses(
            ID,
            base_url=fake.base_url,
            api_key=fake.api_key,
            max_output_tokens=99,
            reasoning_effort="low",
            reasoning_summary="auto",
            verbosity="low",
            truncation="auto",
            **COMMON,
        )
        Agent("Tester", model, instructions="Be brief.").run("go")
        assert fake.requests == [
            COMMON
            | {
                "model": ID,
                "stream": True,
                "store": False,
                "include": ["reasoning.encrypted_content"],
                "instructions": "Be brief.",
                "max_output_tokens": 99,
                "reasoning": {"effort": "low", "summary": "auto"},
                "text": {"verbosity": "low"},
                "truncation": "auto",
                "input": [{"role": "user", "content": [{"type": "input_text", "text": "go"}]}],
            }
        ]


@each_api
def test_prompts_that_became_one_message_stand_apart(api: Api) -> None:
    with api.fake() as fake:
        history = [{"role": "user", "content": "Who are you?"}, {"role": "user", "content": "Hello?"}]
        Agent("Tester", api.model(fake)).run("go", messages=history)
        parts = [{"type": "input_text", "text": "Who are you?"}, {"type": "input_text", "text": "Hello?"}]
        where, content = {"chat": ("messages", "Who are you?\n\nHello?"), "responses": ("input", parts)}[api.name]
        assert fake.requests[0][where][0] == {"role": "user", "content": content}


@each_api
def test_what_is_left_out_is_not_sent(api: Api) -> None:
    plain = {"chat": {"model", "messages", "stream", "stream_options"}}
    plain["responses"] = {"model", "input", "instructions", "stream", "store", "include"}
    assert sent(api).keys() == plain[api.name]


@each_api
def test_options_of_tools_are_sent_with_tools_alone(api: Api) -> None:
    options: dict[str, Any] = {"parallel_tool_calls": False, "tool_choice": "auto"}
    assert not sent(api, **options).keys() & {"tools", *options}
    with_tools = sent(api, tools=[add], **options)
    assert options.items() <= with_tools.items()
    assert len(with_tools["tools"]) == 1


@each_api
def test_extra_headers_query_and_body(api: Api) -> None:
    with api.fake(extra=["top_k"]) as fake:
        model = api.model(fake, extra_headers={"X-Team": "blue"}, extra_query={"v": 1}, extra_body={"top_k": 5})
        assert Agent("Tester", model).run("go").status is RunStatus.completed
        assert fake.requests[0]["top_k"] == 5
        assert fake.served[0].headers["x-team"] == "blue"
        assert fake.served[0].headers["authorization"] == f"Bearer {fake.api_key}"


@each_api
def test_the_body_may_have_what_the_sdk_can_write(api: Api) -> None:
    class Thing(BaseModel):
        a: int
        b: int = 2

    with api.fake(extra=["thing", "at"]) as fake:
        extra = {"thing": Thing(a=1), "at": datetime(2026, 1, 2, 3, 4, 5)}
        Agent("Tester", api.model(fake, extra_body=extra)).run("go").raise_for_error()
        assert fake.requests[0]["thing"] == {"a": 1}
        assert fake.requests[0]["at"] == "2026-01-02T03:04:05"
        assert fake.served[0].headers["content-type"] == "application/json"


def test_usage_need_not_be_asked_for() -> None:
    with FakeChat() as fake:
        model = OpenAIChat(ID, base_url=fake.base_url, api_key=fake.api_key, include_usage=False)
        result = Agent("Tester", model).run("go")
        assert "stream_options" not in fake.requests[0]
        assert result.usage == Usage(None, None, None, None)


@pytest.mark.parametrize(
    ("id", "asked"),
    [
        ("gpt-5.2", True),
        ("gpt-5-mini", True),
        ("o3", True),
        ("o4-mini", True),
        ("codex-mini-latest", True),
        ("openai/gpt-5.2", True),
        ("gpt-10", True),
        ("gpt-5-chat-latest", False),
        ("gpt-5.2-chat-latest", False),
        ("gpt-4.1", False),
        ("gpt-4o", False),
        ("llama-3.3", False),
    ],
)
def test_only_models_that_reason_are_asked_for_it(id: str, asked: bool) -> None:
    with FakeResponses() as fake:
        Agent("Tester", OpenAIResponses(id, base_url=fake.base_url, api_key=fake.api_key)).run("go")
        assert ("include" in fake.requests[0]) is asked


def test_store_and_include_can_be_chosen() -> None:
    with FakeResponses() as fake:
        model = OpenAIResponses(ID, base_url=fake.base_url, api_key=fake.api_key, store=True, include=[])
        Agent("Tester", model).run("go")
        assert fake.requests[0]["store"] is True
        assert "include" not in fake.requests[0]


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="temprature"):
        OpenAIChat(ID, temprature=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("id", ["", "  ", None, 7])
def test_a_model_has_a_name(id: Any) -> None:
    with pytest.raises(ConfigurationError, match="gpt-5"):
        OpenAIResponses(id)


@each_api
def test_it_says_who_it_is_and_not_its_key(api: Api) -> None:
    model = api.make_model(ID, api_key="sk-very-secret")
    assert (model.id, model.provider) == (ID, "OpenAI")
    assert "secret" not in repr(model)


# -- conversations ----------------------------------------------------------------------------------------------------


@each_api
def test_a_conversation_with_all_there_is(api: Api) -> None:
    calls = [call("add", {"a": 1, "b": n}, id=f"call_{n}", pieces=4, interleaved=True) for n in range(3)]
    first: Any = [
        reasoning("I must add."),
        text("Let me add. "),
        *calls,
        usage(50, 20, cached_tokens=30, reasoning_tokens=8),
    ]
    script = [first, [reasoning(""), text("Done."), usage(80, 5, cached_tokens=60)], [text("Bye.")]]
    with api.fake(script) as fake:
        agent = Agent("Tester", api.model(fake), tools=[add])
        result = agent.run("go")
        assert result.status is RunStatus.completed, result.error
        assert result.content == "Let me add. Done."
        assert result.usage == Usage(130, 25, 90, 8)
        assert [block for block in result.messages[1].content if not isinstance(block, Reasoning)] == [
            Text("Let me add. "),
            *[ToolCall(f"call_{n}", "add", {"a": 1, "b": n}) for n in range(3)],
        ]
        assert result.messages[2].content == [ToolResult(f"call_{n}", "add", str(1 + n)) for n in range(3)]
        (thought, *_) = result.messages[1].content
        assert isinstance(thought, Reasoning)
        assert thought.text == "I must add."
        assert agent.run("and?").content == "Bye."
        assert [each.error for each in fake.served] == [None] * 3
        assert len({each.connection for each in fake.served}) == 1, "the connection was not used again"


def test_reasoning_goes_back_to_responses_as_it_came() -> None:
    first: Any = [reasoning("Hm.", signature="one"), text("A. "), reasoning("", signature="two"), text("B.")]
    with FakeResponses([first, [text("C.")]]) as fake:
        agent = Agent("Tester", OpenAIResponses(ID, base_url=fake.base_url, api_key=fake.api_key))
        agent.run("go")
        assert agent.run("and?").content == "C."
        items = fake.requests[1]["input"]
        kinds = [item.get("type", item.get("role")) for item in items]
        assert kinds == ["user", "reasoning", "assistant", "reasoning", "assistant", "user"]
        assert [items[n]["encrypted_content"] for n in (1, 3)] == ["one", "two"]
        assert [items[n]["summary"] for n in (1, 3)] == [[{"type": "summary_text", "text": "Hm."}], []]
        assert all(items[n]["id"].startswith("rs_") for n in (1, 3))
        assert not any("id" in item for item in items if item.get("type") != "reasoning")


def test_reasoning_of_another_provider_stays_here() -> None:
    from andon.models.scripted import ScriptedModel, Think

    with FakeResponses([[text("B.")]]) as fake:
        agent = Agent("Tester", ScriptedModel([Think("Hm.", signature="EqQBCgIYAh=="), "A."]))
        agent.run("go")
        agent.model = OpenAIResponses(ID, base_url=fake.base_url, api_key=fake.api_key)
        assert agent.run("and?").content == "B."
        assert [item.get("role") for item in fake.requests[0]["input"]] == ["user", "assistant", "user"]


def test_reasoning_that_led_nowhere_stays_here() -> None:
    with FakeResponses([[reasoning("Hm.")], [text("B.")]]) as fake:
        agent = Agent("Tester", OpenAIResponses(ID, base_url=fake.base_url, api_key=fake.api_key))
        assert agent.run("go").message.content[-1] == Text("(no answer)")
        assert agent.run("and?").content == "B."


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_of_compatible_servers_is_shown_and_not_sent(field: str) -> None:
    with FakeChat([[reasoning("Hm. "), text("A.")], [text("B.")]], reasoning_field=field) as fake:
        agent = Agent("Tester", OpenAIChat("qwen3", base_url=fake.base_url, api_key=fake.api_key))
        events = list(agent.run("go", stream=True))
        assert "".join(event.content for event in events if event.event is RunEvent.reasoning) == "Hm. "
        assert agent.run("and?").content == "B."
        assert fake.requests[1]["messages"][1] == {"role": "assistant", "content": "A."}


def delta(**delta: Any) -> Any:
    import json

    chunk = {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    return raw(b"data: " + json.dumps(chunk).encode() + b"\n\n")


def tool_delta(name: str | None = None, arguments: Any = None, **piece: Any) -> Any:
    return delta(tool_calls=[piece | {"function": {"name": name, "arguments": arguments}}])


@pytest.mark.parametrize(
    "pieces",
    [
        [tool_delta("add", '{"a": 1,', index=0), tool_delta(None, ' "b": 2}', index=0)],
        [tool_delta("add", '{"a": 1,', index=0, id=""), tool_delta("", ' "b": 2}', index=0, id="")],
        [tool_delta("add", {"a": 1, "b": 2}, index=0, id="call_x")],
        [tool_delta("add", '{"a": 1, "b": 2}', id="call_x")],
        [tool_delta("add", "", index=0, id="call_x"), tool_delta("add", '{"a": 1, "b": 2}', index=0, id="call_x")],
    ],
    ids=["no-id", "empty-id", "whole-arguments", "no-index", "id-again"],
)
def test_calls_as_compatible_servers_send_them(pieces: list[Any]) -> None:
    with FakeChat([pieces, [text("3.")]]) as fake:
        agent = Agent("Tester", OpenAIChat("any", base_url=fake.base_url, api_key=fake.api_key), tools=[add])
        result = agent.run("go")
        assert result.content == "3.", result.error
        assert [each.content for each in result.messages[2].tool_results] == ["3"]
        assert [each.error for each in fake.served] == [None, None]


@pytest.mark.parametrize("index", [0, None])
def test_several_calls_that_all_count_as_the_first(index: int | None) -> None:
    count = {} if index is None else {"index": index}
    pieces = [tool_delta("add", f'{{"a": 1, "b": {n}}}', id=f"call_{n}", **count) for n in range(3)]
    with FakeChat([pieces, [text("Done.")]]) as fake:
        agent = Agent("Tester", OpenAIChat("any", base_url=fake.base_url, api_key=fake.api_key), tools=[add])
        result = agent.run("go")
        assert result.content == "Done.", result.error
        assert [each.content for each in result.messages[2].tool_results] == ["1", "2", "3"]


def test_a_refusal_is_text() -> None:
    with FakeChat([[delta(refusal="I can't "), delta(refusal="do that.")]]) as fake:
        result = Agent("Tester", OpenAIChat("any", base_url=fake.base_url, api_key=fake.api_key)).run("go")
        assert result.content == "I can't do that."


def test_usage_that_can_not_be_read_costs_no_answer() -> None:
    odd = raw(b'data: {"choices": [], "usage": {"prompt_tokens": "many"}}\n\n')
    with FakeChat([[text("Fine."), odd]]) as fake:
        model = OpenAIChat("any", base_url=fake.base_url, api_key=fake.api_key, include_usage=False)
        result = Agent("Tester", model).run("go")
        assert result.content == "Fine."
        assert result.usage.input_tokens is None


# -- errors -----------------------------------------------------------------------------------------------------------


@each_api
@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, None, BadRequestError),
        (400, "context_length_exceeded", ContextLengthError),
        (401, "invalid_api_key", AuthenticationError),
        (403, None, AuthenticationError),
        (404, "model_not_found", BadRequestError),
        (422, None, BadRequestError),
        (429, "insufficient_quota", RateLimitError),
    ],
)
def test_what_can_not_work_is_tried_once(api: Api, status: int, code: str | None, kind: type[ModelError]) -> None:
    with api.fake([[fail(status, "No, because.", code=code)], [text("Fine.")]]) as fake:
        agent = Agent("Tester", api.model(fake))
        result = agent.run("go")
        error = result.error
        assert type(error) is kind
        assert str(error) == f"{status}: No, because."
        assert not error.retryable
        assert error.status == status
        assert error.request_id == "req_0"
        if code:
            assert error.code == code
        assert len(fake.served) == 1
        assert result.usage == Usage()
        assert agent.run("and now?").content == "Fine."


@each_api
@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_what_may_work_is_tried_again(api: Api, status: int) -> None:
    with api.fake([[fail(status, "Not now.", headers={"retry-after-ms": "1"})], [text("Fine.")]]) as fake:
        events = list(Agent("Tester", api.model(fake)).run("go", stream=True))
        (retry,) = [event for event in events if event.event is RunEvent.model_retry]
        assert f"{status}: Not now." in (retry.error or "")
        assert retry.delay == 0.001
        assert events[-1].content == "Fine."
        assert len(fake.served) == 2


@each_api
def test_the_provider_has_the_last_word_on_retries(api: Api) -> None:
    with api.fake([[fail(500, "Never.", headers={"x-should-retry": "false"})]]) as fake:
        assert isinstance(Agent("Tester", api.model(fake)).run("go").error, ModelError)
        assert len(fake.served) == 1


@each_api
def test_a_connection_that_is_refused_is_tried_again_and_told(api: Api) -> None:
    from andon import Retry

    with api.fake() as fake:
        model = api.model(fake)
    result = Agent("Tester", model, retry=Retry(attempts=2, base_seconds=0.001)).run("go")
    assert type(result.error) is ModelConnectionError
    assert "can't be reached" in str(result.error)


@each_api
def test_a_provider_that_does_not_answer_in_time(api: Api) -> None:
    from andon import Retry

    with api.fake([[stall()]]) as fake:
        model = api.model(fake, timeout=openai.Timeout(HANG, read=0.1))
        result = Agent("Tester", model, retry=Retry(attempts=2, base_seconds=0.001)).run("go")
        assert type(result.error) is ModelConnectionError
        assert result.error.retryable
        fake.wait_for(request=1, at="left")
        assert len(fake.served) == 2, "nothing was shown, so it was to be tried again"


@each_api
def test_the_key_is_in_no_error(api: Api) -> None:
    key = "sk-abcdefgh-secret"
    with api.fake([[fail(401, f"Incorrect API key provided: {key}. Find yours at …")]], api_key=key) as fake:
        error = Agent("Tester", api.model(fake)).run("go").error
        assert isinstance(error, AuthenticationError)
        assert "provided: ***. Find" in str(error)
        seen: BaseException | None = error
        while seen is not None:
            assert key not in str(seen)
            seen = seen.__cause__ or seen.__context__


@each_api
def test_without_a_key_the_error_says_what_to_do(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(SetupError) as caught:
        Agent("Tester", api.make_model(ID)).run("go")
    assert "OPENAI_API_KEY" in str(caught.value)
    assert "api_key=" in str(caught.value)


@each_api
def test_the_environment_is_used(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    with api.fake() as fake:
        monkeypatch.setenv("OPENAI_API_KEY", fake.api_key)
        monkeypatch.setenv("OPENAI_BASE_URL", fake.base_url)
        assert Agent("Tester", api.make_model(ID)).run("go").status is RunStatus.completed


@each_api
def test_a_server_of_your_own_needs_no_key(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with api.fake(api_key="none") as fake:
        assert Agent("Tester", api.make_model(ID, base_url=fake.base_url)).run("go").status is RunStatus.completed


def test_retries_may_be_cancelled_by_time() -> None:
    """A time limit ends a back-off as a cancel does."""

    async def main() -> None:
        with FakeChat([[fail(429, "Slow down.", headers={"retry-after": "60"})]]) as fake:
            agent = Agent("Tester", OpenAIChat(ID, base_url=fake.base_url, api_key=fake.api_key))
            result = await agent.invoke_async("go", timeout=0.3)
            assert result.receipt is not None
            assert result.receipt.cause == "deadline"

    play(main)
