# SPDX-License-Identifier: Apache-2.0
"""What is sent to Bedrock: options, tools, structured output, media, reasoning, and conversations of all kinds."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from typing import Any

import pytest
from pydantic import BaseModel, Field

from andon import Agent, File, FinishReason, Image, Message, RunStatus, tool
from andon.errors import SetupError, UnsupportedContentError
from andon.messages import Block, Reasoning, Text, ToolCall, ToolResult, assistant, user
from andon.models.base import ModelRequest, OutputSpec
from andon.models.bedrock import Bedrock
from andon.models.bedrock.family import family_of
from andon.models.bedrock.history import messages_of
from andon.testing.providers import FakeBedrock, call, finish, reasoning, text
from tests.support.bedrock import BINDING, CLAUDE, LLAMA, NOVA, model_of

POINT = {"cachePoint": {"type": "default"}}
PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 20


@tool
async def search(query: str = "") -> str:
    """Look something up."""
    return f"found {query}"


def sent(options: dict[str, Any] | None = None, id: str = CLAUDE, **agent: Any) -> dict[str, Any]:
    """The request of one prompt."""
    with FakeBedrock([[text('{"name": "a", "masts": 3}')]]) as fake:
        result = Agent("Tester", model_of(fake, id, **(options or {})), **agent).run("go")
        assert result.status is RunStatus.completed, result.error
        return fake.requests[0]


# -- options ----------------------------------------------------------------------------------------------------------


def test_what_is_left_out_is_not_sent() -> None:
    assert sent(id=LLAMA) == {"modelId": LLAMA, "messages": [{"role": "user", "content": [{"text": "go"}]}]}


def test_options() -> None:
    body = sent(
        {
            "max_tokens": 100,
            "temperature": 0,
            "top_p": 0.5,
            "stop_sequences": ["END"],
            "guardrail": {"guardrailIdentifier": "abc", "guardrailVersion": "1"},
            "performance": "optimized",
            "service_tier": "flex",
            "effort": "low",
            "request_metadata": {"team": "a"},
            "thinking": 2000,
            "additional_model_request_fields": {"top_k": 5},
            "cache": False,
        },
        instructions="Be brief.",
    )
    assert body["inferenceConfig"] == {"maxTokens": 100, "temperature": 0, "topP": 0.5, "stopSequences": ["END"]}
    assert body["guardrailConfig"] == {"guardrailIdentifier": "abc", "guardrailVersion": "1"}
    assert body["performanceConfig"] == {"latency": "optimized"}
    assert body["serviceTier"] == {"type": "flex"}
    assert body["outputConfig"] == {"effort": "low"}
    assert body["requestMetadata"] == {"team": "a"}
    assert body["additionalModelRequestFields"] == {"top_k": 5, "thinking": {"type": "enabled", "budget_tokens": 2000}}
    assert body["system"] == [{"text": "Be brief."}]


@pytest.mark.parametrize(
    ("given", "kind"), [(True, "adaptive"), (False, "disabled"), ({"type": "enabled", "budget_tokens": 9}, "enabled")]
)
def test_thinking(given: Any, kind: str) -> None:
    assert sent({"thinking": given})["additionalModelRequestFields"]["thinking"]["type"] == kind


def test_thinking_that_is_bound_is_let_go_where_the_conversation_has_changed() -> None:
    more = sent({"thinking": True, "additional_model_request_fields": {"anthropic_beta": ["a"]}}, BINDING)
    fields = more["additionalModelRequestFields"]
    assert fields["thinking"] == {
        "type": "adaptive",
        "block_binding": {"prefix_mismatch_behavior": "drop_block"},
    }
    assert fields["anthropic_beta"] == ["a", "thinking-binding-controls-2026-08-01"]


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        ("auto", {"auto": {}}),
        ("required", {"any": {}}),
        ("search", {"tool": {"name": "search"}}),
        ({"any": {}}, {"any": {}}),
    ],
)
def test_tool_choice(given: Any, choice: Any) -> None:
    body = sent({"tool_choice": given, "cache": False}, tools=[search])
    assert body["toolConfig"]["toolChoice"] == choice
    (spec,) = body["toolConfig"]["tools"]
    assert (spec["toolSpec"]["name"], spec["toolSpec"]["description"]) == ("search", "Look something up.")
    assert "toolConfig" not in sent({"tool_choice": given})


WRONG: list[dict[str, Any]] = [
    {"temperature": "hot"},
    {"top_p": "much"},
    {"max_tokens": 0},
    {"stop_sequences": "END"},
    {"stop_sequences": [""]},
    {"timeout": 0},
    {"timeout": "long"},
    {"max_connections": 0},
    {"guardrail": "abc"},
    {"request_metadata": ["a"]},
    {"additional_model_request_fields": "x"},
    {"additional_model_request_fields": {"a": b"bytes"}},
    {"tool_choice": {"none": {}}},
    {"thinking": "much"},
    {"api_key": "key\n"},
    {"base_url": "localhost"},
]


@pytest.mark.parametrize("options", WRONG, ids=str)
def test_wrong_options_are_told_before_a_run(options: dict[str, Any]) -> None:
    with FakeBedrock() as fake:
        model = Bedrock(CLAUDE, **{"base_url": fake.base_url, "api_key": fake.api_key, **options})
        with pytest.raises(SetupError):
            Agent("Tester", model).run("go")
        assert not fake.served


# -- what is known of models ------------------------------------------------------------------------------------------

OLD = "anthropic.claude-3-haiku-20240307-v1:0"
ARN = "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-sonnet-4-5-20250929-v1:0"
HIDDEN = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abc123def456"


@pytest.mark.parametrize(
    ("id", "name", "caches", "has_output", "binds"),
    [
        (CLAUDE, "anthropic", True, True, False),
        (f"global.{CLAUDE}", "anthropic", True, True, False),
        (ARN, "anthropic", True, True, False),
        (OLD, "anthropic", False, False, False),
        ("us.anthropic.claude-3-7-sonnet-20250219-v1:0", "anthropic", True, False, False),
        ("anthropic.claude-3-5-sonnet-20240620-v1:0", "anthropic", False, False, False),
        ("anthropic.claude-opus-4-1-20250805-v1:0", "anthropic", True, False, False),
        ("anthropic.claude-opus-4-6-v1", "anthropic", True, True, False),
        (BINDING, "anthropic", True, True, True),
        ("anthropic.claude-fable-5-1-v1", "anthropic", True, True, True),
        ("anthropic.claude-opus-5-v1", "anthropic", True, True, False),
        (NOVA, "amazon", False, False, False),
        (LLAMA, "meta", False, False, False),
        ("openai.gpt-oss-120b-1:0", "openai", False, True, False),
        (HIDDEN, None, False, False, False),
    ],
)
def test_families(id: str, name: str | None, caches: bool, has_output: bool, binds: bool) -> None:
    found = family_of(id)
    assert (found.name, found.caches, found.has_output, found.binds_thinking) == (name, caches, has_output, binds)


def test_an_arn_that_hides_its_model() -> None:
    assert family_of(HIDDEN, "anthropic").name == "anthropic"
    body = sent({"family": "anthropic", "cache": False, "native_output": True}, HIDDEN)
    assert body["modelId"] == HIDDEN


def test_the_cache_is_on_for_claude() -> None:
    body = sent(instructions="Be brief.", tools=[search])
    assert body["toolConfig"]["tools"][-1] == body["system"][-1] == body["messages"][-1]["content"][-1] == POINT
    assert "cachePoint" not in json.dumps(sent(id=NOVA, tools=[search]))
    assert "cachePoint" not in json.dumps(sent({"cache": False}))
    assert sent({"cache": "1h"})["messages"][0]["content"][-1] == {"cachePoint": {"type": "default", "ttl": "1h"}}


# -- structured output ------------------------------------------------------------------------------------------------


class Ship(BaseModel):
    name: str = Field(min_length=1)
    masts: int = 3


class Tree(BaseModel):
    branches: list[Tree]


def test_output_is_enforced_by_the_service() -> None:
    shape = sent(output_type=Ship)["outputConfig"]["textFormat"]
    schema = json.loads(shape["structure"]["jsonSchema"]["schema"])
    assert shape["type"] == "json_schema"
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["name", "masts"]
    assert "minLength" not in json.dumps(schema)


@pytest.mark.parametrize("id", [NOVA, LLAMA, OLD])
def test_models_without_it_are_told_the_schema(id: str) -> None:
    body = sent(id=id, output_type=Ship, instructions="Be brief.")
    assert "outputConfig" not in body
    assert '"masts"' in body["system"][1]["text"]


def test_a_schema_that_can_not_be_enforced() -> None:
    model = Bedrock(CLAUDE)
    for schema in (
        Tree.model_json_schema(),
        {"type": "object"},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
    ):
        body = model._body(ModelRequest([user("go")], None, [], OutputSpec("Tree", schema)))
        assert "outputConfig" not in body
        assert "JSON schema" in body["system"][0]["text"]
    assert "outputConfig" in Bedrock(NOVA, native_output=True)._body(
        ModelRequest([user("go")], None, [], OutputSpec("Ship", Ship.model_json_schema()))
    )


# -- images and documents ---------------------------------------------------------------------------------------------


def content_of(*blocks: Block) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = messages_of([Message("user", list(blocks))], family_of(CLAUDE))[0]["content"]
    return found


def test_documents_have_names_that_fit_and_differ() -> None:
    names = ["re_port.v1.pdf", "re port v1.pdf", "a  (b) [c]-d.pdf", "日本.pdf", None, "x" * 300 + ".pdf"]
    blocks = content_of(*[File(b"%PDF-1.7", name=name) for name in names], Text("What is it?"))
    assert [block["document"]["name"] for block in blocks[:-1]] == [
        "re port v1",
        "re port v1 2",
        "a (b) [c]-d",
        "document",
        "document 2",
        "x" * 180,
    ]


def test_formats() -> None:
    files = [
        File(b"a,b", name="a.csv"),
        File(b"<p>", name="a.html"),
        File(b"{}", name="a.json"),
        File(b"# a", "text/markdown"),
    ]
    assert [block["document"]["format"] for block in content_of(*files)[:-1]] == ["csv", "html", "txt", "md"]
    cat = content_of(Image(PNG))[0]["image"]
    assert cat == {"format": "png", "source": {"bytes": PNG}}
    far = content_of(Image(url="s3://bucket/cat.jpg"), File(url="s3://bucket/a.pdf"), Text("Look."))
    assert far[0]["image"] == {"format": "jpeg", "source": {"s3Location": {"uri": "s3://bucket/cat.jpg"}}}
    assert far[1]["document"]["name"] == "a"


@pytest.mark.parametrize(
    "block",
    [
        Image(url="https://example.com/cat.png"),
        Image(b"BM", "image/bmp"),
        Image(url="s3://bucket/cat"),
        File(b"\0", "application/zip"),
        File(url="s3://bucket/a"),
    ],
    ids=repr,
)
def test_what_can_not_be_sent_is_told_before(block: Any) -> None:
    with FakeBedrock() as fake:
        with pytest.raises(UnsupportedContentError, match="Bedrock"):
            Agent("Tester", model_of(fake)).run(["Look:", block])
        assert not fake.served


def test_a_document_stands_beside_text() -> None:
    assert content_of(File(b"%PDF-1.7"))[-1] == {"text": "See the document."}
    assert content_of(Text(" "), Image(PNG)) == [{"image": {"format": "png", "source": {"bytes": PNG}}}]


# -- reasoning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", [CLAUDE, BINDING])
def test_reasoning_goes_back_in_place_byte_for_byte_every_time(id: str) -> None:
    thought = reasoning("Hm. ü€😀\n ", signature="c2lnbmVk")
    words: list[Any] = [thought, reasoning(redacted="secret"), text("I look."), call("search", {"query": "a"}, id="c1")]
    with FakeBedrock([words, [reasoning("So."), text("Fine.")], [text("Yes.")]]) as fake:
        agent = Agent("Tester", model_of(fake, id), tools=[search])
        for prompt in ("go", "and now?", "and then?"):
            result = agent.run(prompt)
            assert result.status is RunStatus.completed, result.error
        first = fake.requests[-1]["messages"][1]["content"]
        assert first == [
            {"reasoningContent": {"reasoningText": {"text": "Hm. ü€😀\n ", "signature": "c2lnbmVk"}}},
            {"reasoningContent": {"redactedContent": base64.b64encode(b"secret").decode()}},
            {"text": "I look."},
            {"toolUse": {"toolUseId": "c1", "name": "search", "input": {"query": "a"}}},
        ]
        assert json.dumps(fake.requests[-1]).count('"reasoningContent"') == 3
        assert [each.error for each in fake.served if each.error] == []


def changing(fake: FakeBedrock, **options: Any) -> Agent:
    counter = itertools.count()
    model = model_of(fake, BINDING, cache=False, **options)
    return Agent("Tester", model, instructions=lambda ctx: f"Run {next(counter)}.")


THINKS: list[Any] = [[reasoning("Hm."), text("Fine.")]]
BETA = "thinking-binding-controls-2026-08-01"


def test_changed_instructions_let_bound_thinking_go() -> None:
    with FakeBedrock(THINKS) as fake:
        agent = changing(fake, thinking=True, additional_model_request_fields={"anthropic_beta": [BETA]})
        assert [agent.run(prompt).status for prompt in "ab"] == [RunStatus.completed] * 2
        assert [each.error for each in fake.served if each.error] == []
        assert fake.requests[-1]["additionalModelRequestFields"]["anthropic_beta"] == [BETA]


def test_without_an_option_for_thinking_the_leave_is_given_after_the_first_refusal() -> None:
    with FakeBedrock(THINKS) as fake:
        agent = changing(fake, additional_model_request_fields={"anthropic_beta": ["one"]})
        for prompt in "abc":
            result = agent.run(prompt)
            assert (result.status, result.content) == (RunStatus.completed, "Fine."), result.error
        assert [bool(each.error) for each in fake.served] == [False, True, False, False]
        asked = [each["additionalModelRequestFields"] for each in fake.requests]
        drop = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
        assert asked == [{"anthropic_beta": ["one"]}] * 2 + [{"anthropic_beta": ["one", BETA], "thinking": drop}] * 2


def test_where_the_leave_has_no_place_thinking_is_left_out() -> None:
    with FakeBedrock(THINKS) as fake:
        agent = changing(fake, thinking=False)
        assert [agent.run(prompt).status for prompt in "abc"] == [RunStatus.completed] * 3
        assert sum(bool(each.error) for each in fake.served) == 1
        assert "reasoningContent" not in json.dumps(fake.requests[-1])


def test_the_leave_is_not_given_to_those_who_want_the_error() -> None:
    with FakeBedrock(THINKS) as fake:
        strict = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "error"}}
        agent = changing(fake, thinking=strict, additional_model_request_fields={"anthropic_beta": [BETA]})
        agent.run("a")
        assert "bound to a different conversation" in str(agent.run("b").error)
        assert len(fake.requests) == 2


def test_reasoning_of_others_stays_out() -> None:
    foreign = ['{"of":"openai","id":"rs_1"}', '{"of":"anthropic","signature":"x"}', "plain", None]
    other = '{"of":"bedrock","family":"amazon","signature":"x"}'
    blocks = [Reasoning("Hm.", seal) for seal in [*foreign, other]]
    (_, message) = messages_of([user("a"), assistant(*blocks, Text("b"))], family_of(CLAUDE))
    assert message["content"] == [{"text": "b"}]


# -- conversations ----------------------------------------------------------------------------------------------------

CALL = ToolCall("c1", "search", {"query": "a"})
DONE = Message("tool", [ToolResult("c1", "search", "found")])
ODD: dict[str, list[Message]] = {
    "assistant first": [assistant(Text("Hello.")), user("go")],
    "two prompts": [user("a"), user("b")],
    "two answers": [user("a"), assistant(Text("b")), assistant(Text("c")), user("d")],
    "blank": [Message("user", [Text(" ")]), assistant(Text("\n")), user("a")],
    "blank result": [user("a"), assistant(CALL), Message("tool", [ToolResult("c1", "search", " ", "error")])],
    "result and prompt": [user("a"), assistant(CALL), DONE, user("b")],
    "no such call": [user("a"), assistant(CALL), Message("tool", [*DONE.content, ToolResult("c9", "search", "x")])],
    "results of nothing": [user("a"), assistant(Text("b")), DONE, user("c")],
    "text after a call": [user("a"), assistant(CALL, Text("b")), DONE],
    "only foreign reasoning": [user("a"), assistant(Reasoning("x", "y")), user("b")],
    "document in a result": [
        user("a"),
        assistant(CALL),
        Message("tool", [ToolResult("c1", "search", "", attachments=[File(b"%PDF-1"), Image(PNG)])]),
    ],
}


@pytest.mark.parametrize("id", [CLAUDE, NOVA, LLAMA])
@pytest.mark.parametrize("what", ODD)
def test_odd_conversations_are_accepted(what: str, id: str) -> None:
    class Sink:
        def __getattr__(self, name: str) -> Any:
            return lambda *values, **named: None

    with FakeBedrock() as fake:
        model = model_of(fake, id)
        asyncio.run(model.stream(ModelRequest(ODD[what], None, []), Sink()))
        assert fake.served[0].error is None
        assert fake.served[0].finished


def test_tools_that_are_gone_are_named_all_the_same() -> None:
    with FakeBedrock([[call("search", {"query": "a"})], [text("Fine.")]]) as fake:
        agent = Agent("Tester", model_of(fake, cache=False), tools=[search])
        agent.run("go")
        agent = Agent("Tester", model_of(fake, cache=False))
        result = agent.run("and now?", messages=[user("a"), assistant(CALL), DONE, assistant(Text("b"))])
        assert result.status is RunStatus.completed, result.error
        (spec,) = fake.requests[-1]["toolConfig"]["tools"]
        assert spec["toolSpec"]["name"] == "search"
        assert "no longer" in spec["toolSpec"]["description"]


def test_an_error_of_a_tool_has_its_status_where_the_model_takes_it() -> None:
    failed = [user("a"), assistant(CALL), Message("tool", [ToolResult("c1", "search", "no", "error")])]
    for id, status in ((CLAUDE, "error"), (NOVA, "error"), (LLAMA, None)):
        result = messages_of(failed, family_of(id))[-1]["content"][0]["toolResult"]
        assert result.get("status") == status


def test_a_refused_turn_is_left_out_with_all_that_led_to_it() -> None:
    with FakeBedrock([[text("Hi.")], [call("search")], [text("I can't"), finish("refusal")], [text("Fine.")]]) as fake:
        agent = Agent("Tester", model_of(fake, cache=False), tools=[search])
        agent.run("hello")
        assert agent.run("bad").finish_reason is FinishReason.refusal
        result = agent.run("good")
        assert result.content == "Fine.", result.error
        assert fake.requests[-1]["messages"] == [
            {"role": "user", "content": [{"text": "hello"}]},
            {"role": "assistant", "content": [{"text": "Hi."}]},
            {"role": "user", "content": [{"text": "good"}]},
        ]
