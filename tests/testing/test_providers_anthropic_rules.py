# SPDX-License-Identifier: Apache-2.0
"""What the fake of Anthropic rejects, by the shape of things and by what it remembers; asked by the real SDK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from andon.testing.providers import FakeAnthropic, call, fail, finish, raw, reasoning, text, usage
from tests.support.anthropic import ID, OLDER

Json = dict[str, Any]

USER: Json = {"role": "user", "content": "Hi"}
SAID: Json = {"role": "assistant", "content": "Yes?"}
CALL: Json = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
RESULT: Json = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "done"}
CALLED: Json = {"role": "assistant", "content": [CALL]}
ANSWERED: Json = {"role": "user", "content": [RESULT]}
PNG = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
IMAGE: Json = {"type": "image", "source": PNG}
DOCUMENT: Json = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Hi."}}
TOOL: Json = {"name": "f", "input_schema": {"type": "object", "properties": {}}}
BETA = {"anthropic-beta": "thinking-binding-controls-2026-08-01"}
DROP: Json = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}


def block(given: Json) -> Json:
    return {"role": "user", "content": [given]}


def form(schema: Any) -> Json:
    return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeAnthropic]:
    with FakeAnthropic() as fake:
        yield fake


def ask(fake: FakeAnthropic, *messages: Json, headers: Any = None, **body: Any) -> Any:
    """The answer, by the SDK. What its method has no name for goes into the body as it is."""
    whole = {"model": ID, "max_tokens": 99, "messages": list(messages), **body}
    whole = {name: value for name, value in whole.items() if value is not None}
    with anthropic.Anthropic(base_url=fake.base_url, api_key=fake.api_key, max_retries=0) as client:
        return client.post(
            "/v1/messages", cast_to=anthropic.types.Message, body=whole, options={"headers": headers or {}}
        )


def rejected(fake: FakeAnthropic, *messages: Json, **body: Any) -> str:
    """What is wrong with a request, in the provider's own form."""
    before = len(fake.served)
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(fake, *messages, **body)
    said: Any = caught.value.body
    assert said.keys() == {"type", "error", "request_id"}
    assert said["type"] == "error"
    assert said["error"].keys() == {"type", "message"}
    assert said["error"]["type"] == "invalid_request_error"
    assert fake.served[before].state == "rejected"
    assert fake.served[before].error == said["error"]
    return str(said["error"]["message"])


# -- the shape of things ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "body"),
    [
        ([USER], {}),
        ([USER, SAID, USER], {"system": "Be kind."}),
        ([USER, USER, SAID, SAID, USER], {"system": [{"type": "text", "text": "Be kind."}]}),
        ([USER, CALLED, ANSWERED], {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "f"}}),
        ([USER, CALLED, {"role": "user", "content": [RESULT, {"type": "text", "text": "And?"}]}], {}),
        ([USER, CALLED, ANSWERED, USER], {}),
        ([block(IMAGE)], {"cache_control": {"type": "ephemeral", "ttl": "1h"}}),
        ([block(DOCUMENT)], {"metadata": {"user_id": "a"}, "service_tier": "auto"}),
        ([USER, CALLED, block({**RESULT, "content": [IMAGE, DOCUMENT]})], {}),
        ([USER], {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "max"}}),
        (
            [USER],
            {
                "model": OLDER,
                "temperature": 0.5,
                "thinking": {"type": "enabled", "budget_tokens": 1024},
                "max_tokens": 2000,
            },
        ),
        ([USER, SAID], {"model": OLDER}),
        ([USER], form({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False})),
    ],
)
def test_accepted(fake: FakeAnthropic, messages: list[Json], body: Json) -> None:
    assert ask(fake, *messages, **body).stop_reason == "end_turn"


OBJECT = {"type": "object", "additionalProperties": False}


@pytest.mark.parametrize(
    ("messages", "body", "says"),
    [
        # the request
        ([USER], {"max_tokens": None}, "max_tokens: Field required"),
        ([USER], {"max_tokens": 0}, "greater than or equal to 1"),
        ([USER], {"max_tokens": "9"}, "valid integer"),
        ([USER], {"max_tokens": 10**6}, "maximum allowed number of output tokens"),
        ([USER], {"model": None}, "model: Field required"),
        ([USER], {"top_z": 1}, "top_z: Extra inputs are not permitted"),
        ([USER], {"temperature": 1.0}, "`temperature` is not supported"),
        ([USER], {"top_p": 0.9}, "`top_p` is not supported"),
        ([USER], {"top_k": 5}, "`top_k` is not supported"),
        ([USER], {"model": OLDER, "temperature": 2}, "temperature"),
        ([USER], {"model": OLDER, "top_p": "much"}, "valid number"),
        ([USER], {"thinking": {"type": "much"}}, "thinking: Input tag"),
        ([USER], {"thinking": {"type": "enabled", "budget_tokens": 2000}}, "not supported for this model"),
        ([USER], {"model": OLDER, "thinking": {"type": "enabled", "budget_tokens": 9}}, "1024"),
        ([USER], {"model": OLDER, "thinking": {"type": "enabled", "budget_tokens": 2000}}, "must be greater"),
        ([USER], {"thinking": {"type": "adaptive", "display": "all"}}, "display"),
        ([USER], {"thinking": {"type": "disabled", "display": "omitted"}}, "Extra inputs"),
        ([USER], {"thinking": DROP}, "thinking.adaptive.block_binding: Extra inputs"),
        ([USER], {"system": 5}, "system: Input should be a valid string"),
        ([USER], {"cache_control": {"type": "ephemeral", "ttl": "2h"}}, "cache_control"),
        ([USER], {"metadata": {"name": "x"}}, "metadata.name: Extra inputs"),
        ([USER], {"service_tier": "gold"}, "service_tier"),
        ([USER], {"stop_sequences": [" "]}, "non-whitespace"),
        ([USER], {"tools": [5]}, "tools.0"),
        ([USER], {"tools": [{**TOOL, "parameters": {}}]}, "tools.0.custom.parameters: Extra inputs"),
        ([USER], {"tools": [{"input_schema": {}}]}, "tools.0.custom.name: Field required"),
        ([USER], {"tools": [{**TOOL, "name": "a b"}]}, "pattern"),
        ([USER], {"tools": [{"name": "f"}]}, "input_schema: Field required"),
        ([USER], {"tools": [{**TOOL, "input_schema": {"type": "string"}}]}, "should be 'object'"),
        ([USER], {"tools": [TOOL, TOOL]}, "must be unique"),
        ([USER], {"tool_choice": {"type": "auto"}}, "while providing `tools`"),
        ([USER], {"tools": [TOOL], "tool_choice": {"type": "all"}}, "tool_choice"),
        ([USER], {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "Tool 'g' not found"),
        ([USER], {"output_config": {"effort": "huge"}}, "effort"),
        ([USER], {"output_config": {"style": "x"}}, "Extra inputs"),
        ([5], {}, "messages.0: Input should be a valid dictionary"),
        # schemas
        ([USER], {"output_config": {"format": 5}}, "valid dictionary"),
        ([USER], {"output_config": {"format": {"type": "json_schema"}}}, "schema: Field required"),
        ([USER], form({**OBJECT, "properties": {"a": 5}}), "valid dictionary"),
        ([USER], form({"type": "object"}), "'additionalProperties' must be explicitly set to false"),
        ([USER], form({**OBJECT, "properties": {"a": {"type": "object"}}}), "'additionalProperties' must be"),
        ([USER], form({**OBJECT, "properties": {"a": {"type": "integer", "minimum": 1}}}), "minimum are not supported"),
        ([USER], form({**OBJECT, "properties": {"a": {}}}), "type is required"),
        ([USER], form({**OBJECT, "properties": {"a": {"type": "array", "items": {"type": "object"}}}}), "additional"),
        ([USER], form({"$ref": "#/$defs/A", "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}]}}}), "Circular"),
        ([USER], form({"$ref": "#/$defs/B"}), "can't be resolved"),
        ([USER], form("text"), "valid dictionary"),
        ([USER], {"output_config": {"format": {"type": "text"}}}, "json_schema"),
        # messages
        ([], {"messages": None}, "messages: Field required"),
        ([], {"messages": "Hi"}, "valid list"),
        ([], {}, "at least one message"),
        ([SAID, USER], {}, 'first message must use the "user" role'),
        ([{"role": "system", "content": "x"}, USER], {}, "top-level `system`"),
        ([USER, SAID], {}, "does not support assistant message prefill"),
        ([{**USER, "name": "x"}], {}, "messages.0.name: Extra inputs"),
        ([{"role": "user", "content": ""}], {}, "must be non-empty"),
        ([{"role": "user", "content": " \n"}], {}, "non-whitespace text"),
        ([{"role": "user", "content": []}], {}, "non-empty content"),
        ([{"role": "user"}], {}, "valid list"),
        # blocks
        ([block({"text": "x"})], {}, "messages.0.content.0.type: Field required"),
        ([block({"type": "text"})], {}, "text.text: Field required"),
        ([block({"type": "text", "text": "x", "y": 1})], {}, "text.y: Extra inputs"),
        ([block({"type": "text", "text": 5})], {}, "valid string"),
        ([block(CALL)], {}, "Input tag 'tool_use'"),
        ([USER, {"role": "assistant", "content": [DOCUMENT]}, USER], {}, "Input tag 'document'"),
        ([USER, {"role": "assistant", "content": [IMAGE]}, USER], {}, "Input tag 'image'"),
        ([block({"type": "image", "source": {**PNG, "media_type": "image/bmp"}})], {}, "media_type"),
        ([block({"type": "image", "source": {**PNG, "data": "%"}})], {}, "invalid base64"),
        ([block({"type": "image", "source": {**PNG, "data": ""}})], {}, "empty data"),
        ([block({"type": "image", "source": {"type": "url", "url": "file:///x"}})], {}, "HTTP"),
        ([block({"type": "document", "source": PNG})], {}, "application/pdf"),
        (
            [block({"type": "document", "source": {"type": "text", "media_type": "text/html", "data": "x"}})],
            {},
            "plain",
        ),
        ([block(5)], {}, "valid dictionary"),  # type: ignore[arg-type]
        ([block({"type": "image", "source": 5})], {}, "valid dictionary"),
        ([block({"type": "image", "source": {"type": "file"}})], {}, "Input tag 'file'"),
        ([block({**DOCUMENT, "source": {"type": "text", "media_type": "text/plain", "data": ""}})], {}, "data: Field"),
        ([USER, CALLED, block({**RESULT, "content": 5})], {}, "valid string"),
        # calls and results
        ([USER, CALLED], {}, "prefill"),
        ([USER, CALLED], {"model": OLDER}, "`tool_use` ids were found without `tool_result` blocks immediately after"),
        ([USER, CALLED, USER], {}, "`tool_use` ids were found without `tool_result` blocks immediately after: toolu_1"),
        ([USER, CALLED, {"role": "user", "content": [{"type": "text", "text": "x"}, RESULT]}], {}, "immediately after"),
        ([USER, ANSWERED], {}, "unexpected `tool_use_id`"),
        ([USER, CALLED, ANSWERED, SAID, ANSWERED], {}, "unexpected `tool_use_id`"),
        ([USER, CALLED, {"role": "user", "content": [RESULT, RESULT]}], {}, "single result"),
        ([USER, CALLED, ANSWERED, CALLED, ANSWERED], {}, "must be unique"),
        ([USER, {**CALLED, "content": [CALL, {"type": "text", "text": "x"}]}, ANSWERED], {}, "may not follow"),
        ([USER, {**CALLED, "content": [{**CALL, "id": "a:b"}]}, ANSWERED], {}, "pattern '^[a-zA-Z0-9_-]+$'"),
        ([USER, {**CALLED, "content": [{**CALL, "name": "a b"}]}, ANSWERED], {}, "name: String should match"),
        ([USER, {**CALLED, "content": [{**CALL, "input": "{}"}]}, ANSWERED], {}, "input: Input should be a valid dict"),
        ([USER, CALLED, block({**RESULT, "content": "", "is_error": True})], {}, "cannot be empty"),
        ([USER, CALLED, block({**RESULT, "content": [CALL]})], {}, "Input tag 'tool_use'"),
        ([USER, {**SAID, "content": [{**CALL, "type": "server_tool_use"}]}, USER], {}, "without a corresponding"),
    ],
)
def test_rejected(fake: FakeAnthropic, messages: list[Json], body: Json, says: str) -> None:
    assert says in rejected(fake, *messages, **body)


@pytest.mark.parametrize(("sent", "says"), [("Basic x", "header is required"), ("Bearer wrong", "invalid x-api-key")])
def test_a_wrong_key(fake: FakeAnthropic, sent: str, says: str) -> None:
    with pytest.raises(anthropic.AuthenticationError, match=says):
        ask(fake, USER, headers={"authorization": sent})


def test_other_paths(fake: FakeAnthropic) -> None:
    with anthropic.Anthropic(base_url=fake.base_url, api_key=fake.api_key, max_retries=0) as client:
        assert client.models.retrieve("a/b").max_tokens == 64_000
        with pytest.raises(anthropic.NotFoundError):
            client.get("/v1/other", cast_to=object)
        assert fake.models_asked == ["a/b"]


def test_no_version_and_no_json(fake: FakeAnthropic) -> None:
    import httpx2

    url, key = f"{fake.base_url}/v1/messages", {"x-api-key": fake.api_key}
    assert "anthropic-version" in httpx2.post(url, content=b"{}", headers=key).text
    headers = {**key, "anthropic-version": "2026-10-21"}
    for content in (b"{", b"[]"):
        assert httpx2.post(url, content=content, headers=headers).status_code == 400


# -- what it remembers ------------------------------------------------------------------------------------------------

THOUGHT = reasoning("Hm. Well.", signature="one")


def answer(fake: FakeAnthropic, *messages: Json, **body: Any) -> Json:
    """An answer, as the message that is sent back."""
    said = ask(fake, *messages, **body)
    keep = {"type", "text", "thinking", "signature", "data", "id", "name", "input"}
    content = [{k: v for k, v in each.to_dict().items() if k in keep} for each in said.content]
    return {"role": "assistant", "content": content}


def changed(message: Json, place: int, **fields: Any) -> Json:
    content = list(message["content"])
    content[place] = {**content[place], **fields}
    return {**message, "content": content}


@pytest.mark.parametrize("model", [ID, OLDER])
def test_thinking_goes_back_as_it_came(model: str) -> None:
    with FakeAnthropic([[THOUGHT, reasoning(redacted="gone"), text("A.")]]) as fake:
        said = answer(fake, USER, model=model)
        kinds = [each["type"] for each in said["content"]]
        assert kinds == ["thinking", "redacted_thinking", "text"]
        ask(fake, USER, said, USER, model=model)
        for place, fields, words in (
            (0, {"thinking": "Other."}, "Invalid `signature` in `thinking` block"),
            (0, {"signature": "made up"}, "Invalid `signature` in `thinking` block"),
            (1, {"data": "made up"}, "Invalid `data` in `redacted_thinking` block"),
        ):
            assert words in rejected(fake, USER, changed(said, place, **fields), USER, model=model)


def test_thinking_is_bound_to_what_precedes_it() -> None:
    with FakeAnthropic([[THOUGHT, text("A.")], [reasoning("So.", signature="two"), text("B.")]]) as fake:
        body: Json = {"system": "Be kind.", "tools": [TOOL]}
        first = answer(fake, USER, **body)
        second = answer(fake, USER, first, USER, **body)
        whole = [USER, first, USER, second, USER]
        ask(fake, *whole, **body)
        ask(fake, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}, *whole[1:], **body)
        ask(fake, *whole, **body, cache_control={"type": "ephemeral"})
        without = {**first, "content": first["content"][1:]}
        other = {"role": "user", "content": "Ho"}
        for messages, changes in (
            (whole, {"system": "Be rude."}),
            (whole, {"tools": [TOOL, {**TOOL, "name": "g"}]}),
            ([other, *whole[1:]], {}),
            ([USER, without, USER, second, USER], {}),
            (whole[2:], {}),
        ):
            words = rejected(fake, *messages, **{**body, **changes})
            assert "The block is bound to a different conversation" in words
            ask(fake, *messages, **{**body, **changes, "thinking": DROP}, headers=BETA)
            ask(fake, *messages, **{**body, **changes, "model": OLDER})


def test_a_block_is_known_when_it_is_done() -> None:
    with FakeAnthropic([[THOUGHT, fail(500, "Broken.")]]) as fake:
        with (
            anthropic.Anthropic(base_url=fake.base_url, api_key=fake.api_key, max_retries=0) as client,
            pytest.raises(anthropic.APIError),
        ):
            given: Any = [USER]
            for _ in client.messages.create(model=ID, max_tokens=9, messages=given, stream=True):
                pass
        thought = {"type": "thinking", "thinking": "Hm. Well.", "signature": "one"}
        said = {"role": "assistant", "content": [thought, {"type": "text", "text": "A."}]}
        assert "Invalid `signature`" in rejected(fake, USER, said, USER)


def test_what_the_leave_may_say() -> None:
    thinking = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "maybe"}}
    with FakeAnthropic() as fake, pytest.raises(anthropic.BadRequestError, match="prefix_mismatch_behavior"):
        ask(fake, USER, thinking=thinking, headers=BETA)


def test_a_refused_turn_is_not_taken_again() -> None:
    with FakeAnthropic([[text("A.")], [text("I"), finish("refusal")], [text("B.")]]) as fake:
        first = answer(fake, USER)
        bad = {"role": "user", "content": "Do it."}
        refused = ask(fake, USER, first, bad)
        assert refused.stop_reason == "refusal"
        assert refused.stop_details.category == "general_harms"
        said = {"role": "assistant", "content": "I"}
        assert "messages.2: this turn was refused" in rejected(fake, USER, first, bad, said, USER)
        ask(fake, USER, first, USER)
        ask(fake, USER, first, bad)  # another try of the same prompt


def test_only_a_paused_answer_may_be_the_last_message() -> None:
    with FakeAnthropic([[text("I look."), finish("pause_turn")], [text("Found.")]]) as fake:
        said = answer(fake, USER)
        search = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
        assert "prefill" in rejected(fake, USER, SAID, USER, said)
        ask(fake, USER, changed({**said, "content": [*said["content"], search]}, 0))


# -- how it answers ---------------------------------------------------------------------------------------------------

WORDS: list[Any] = [
    THOUGHT,
    reasoning("More.", signature="two"),
    reasoning(redacted="gone"),
    text("I look. "),
    call("f", {"a": 1}, id="toolu_1", pieces=3, interleaved=True),
    call("f", "", id="toolu_2", interleaved=True),
    usage(100, 50, cached_tokens=40, reasoning_tokens=20),
]


def test_a_stream_has_the_content_of_a_plain_answer() -> None:
    with FakeAnthropic([WORDS]) as fake:
        with anthropic.Anthropic(base_url=fake.base_url, api_key=fake.api_key, max_retries=0) as client:
            given: Any = [USER]
            with client.messages.stream(model=ID, max_tokens=9, messages=given) as stream:
                streamed = stream.get_final_message()
        plain = ask(fake, USER)
        assert [each.to_dict() for each in streamed.content] == [each.to_dict() for each in plain.content]
        assert [each.type for each in plain.content] == [
            "thinking",
            "thinking",
            "redacted_thinking",
            "text",
            "tool_use",
            "tool_use",
        ]
        for each in (streamed, plain):
            assert each.stop_reason == "tool_use"
            assert (each.usage.input_tokens, each.usage.cache_read_input_tokens) == (60, 40)
            assert each.usage.output_tokens == 50
            assert each.usage.output_tokens_details is not None
            assert each.usage.output_tokens_details.thinking_tokens == 20


def test_a_mistake_in_a_script_is_an_error_of_the_server() -> None:
    with (
        FakeAnthropic(lambda body: body["nothing"]) as fake,
        pytest.raises(anthropic.InternalServerError, match="script"),
    ):
        ask(fake, USER)


def test_errors_that_a_script_asks_for() -> None:
    with FakeAnthropic([[fail(529, "Overloaded", code="busy")], [raw(b"data: 1\n\n")]]) as fake:
        with pytest.raises(anthropic.InternalServerError) as caught:
            ask(fake, USER)
        assert caught.value.type == "overloaded_error"
        assert caught.value.error_code == "busy"
