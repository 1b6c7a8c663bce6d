# SPDX-License-Identifier: Apache-2.0
"""What is sent to Gemini. The fake refuses what Gemini refuses, unknown fields too."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from pydantic import BaseModel

from andon import Agent, File, Image, RunStatus, UnsupportedContentError, tool
from andon.errors import ConfigurationError, SetupError
from andon.messages import Message, Reasoning, Text, ToolCall, ToolResult, assistant, user
from andon.models.common.seals import write_seal
from andon.models.google import Gemini
from andon.models.google.answer import Seal
from andon.models.google.history import NO_SIGNATURE, contents, sent_name
from andon.models.google.schema import as_gemini
from andon.testing.providers import FakeGemini, call, raw, reasoning, text
from tests.support.gemini import ID, OLD, model

PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 20
CAT = Image(PNG)
THOUGHT, MORE = reasoning("Let me see.", 1, "c2lnMQ=="), "bW9yZQ=="
DATA = base64.b64encode(PNG).decode()


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def photo() -> Any:
    """Take a photo."""
    return ["A cat:", CAT]


def sent(id: str = ID, *, tools: list[Any] | None = None, **options: Any) -> dict[str, Any]:
    with FakeGemini(extra=options.pop("extra", ())) as fake:
        result = Agent("Tester", model(fake, id, **options), instructions="Be brief.", tools=tools or []).run("go")
        assert result.status is RunStatus.completed, result.error
        return fake.requests[0]


# -- options ----------------------------------------------------------------------------------------------------------


def test_what_is_left_out_is_not_sent() -> None:
    assert sent() == {
        "contents": [{"role": "user", "parts": [{"text": "go"}]}],
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "generationConfig": {"thinkingConfig": {"includeThoughts": True}},
    }
    assert sent(OLD).keys() == {"contents", "systemInstruction"}
    assert sent(include_thoughts=False)["generationConfig"] == {"thinkingConfig": {"includeThoughts": False}}
    assert "generationConfig" not in sent("gemini-3.1-flash-tts")


def test_all_options() -> None:
    safety = [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]
    body = sent(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        max_output_tokens=99,
        stop_sequences=("END",),
        seed=7,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        thinking_level="low",
        safety_settings=safety,
        labels={"team": "blue"},
        extra_body={"serviceTier": "flex", "generationConfig": {"topK": 41, "mediaResolution": "LOW"}},
    )
    assert body["generationConfig"] == {
        "temperature": 0.5,
        "topP": 0.9,
        "topK": 41,
        "maxOutputTokens": 99,
        "stopSequences": ["END"],
        "seed": 7,
        "presencePenalty": 0.1,
        "frequencyPenalty": 0.2,
        "thinkingConfig": {"includeThoughts": True, "thinkingLevel": "LOW"},
        "mediaResolution": "LOW",
    }
    assert (body["safetySettings"], body["labels"], body["serviceTier"]) == (safety, {"team": "blue"}, "flex")


def test_what_the_sdk_has_types_for_may_be_one_of_them() -> None:
    from google.genai import types

    category, threshold = types.HarmCategory.HARM_CATEGORY_HARASSMENT, types.HarmBlockThreshold.BLOCK_NONE
    setting: Any = types.SafetySetting(category=category, threshold=threshold)
    plain = {"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}
    assert sent(safety_settings=[setting])["safetySettings"] == [plain]


def test_what_is_cached_is_not_sent_again() -> None:
    body = sent(cached_content="cachedContents/1", tools=[add], tool_choice="any")
    assert body["cachedContent"] == "cachedContents/1"
    assert not body.keys() & {"systemInstruction", "tools", "toolConfig"}


@pytest.mark.parametrize(
    ("choice", "config"),
    [
        ("auto", {"mode": "AUTO"}),
        ("required", {"mode": "ANY"}),
        ("VALIDATED", {"mode": "VALIDATED"}),
        ("add", {"mode": "ANY", "allowedFunctionNames": ["add"]}),
        ({"mode": "NONE"}, {"mode": "NONE"}),
    ],
)
def test_tool_choice(choice: Any, config: dict[str, Any]) -> None:
    assert sent(tools=[add], tool_choice=choice)["toolConfig"] == {"functionCallingConfig": config}
    assert "toolConfig" not in sent(tool_choice="auto")


def test_headers_and_the_key_that_a_function_returns() -> None:
    async def key() -> str:
        return "sk-made"

    with FakeGemini(api_key="sk-made") as fake:
        known = Gemini(ID, key, fake.base_url, extra_headers={"X-Team": "blue"}, api_version="v1beta")
        assert Agent("Tester", known).run("go").status is RunStatus.completed
        assert fake.served[0].headers["x-team"] == "blue"


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": "hot"},
        {"top_k": True},
        {"max_output_tokens": 0},
        {"seed": 1.5},
        {"thinking_budget": "much"},
        {"timeout": -1},
        {"extra_headers": {"a b": "c"}},
        {"extra_body": []},
        {"labels": {"a": object()}},
        {"project": "p"},
        {"base_url": "localhost"},
    ],
)
def test_a_wrong_option_is_said_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(SetupError):
        Agent("Tester", Gemini(ID, "key", **options)).run("go")


@pytest.mark.parametrize("id", ["", "a b", "../models", "a?b", None])
def test_an_id_that_is_none(id: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"gemini-3\.8"):
        Gemini(id)


# -- conversations ----------------------------------------------------------------------------------------------------


def test_signatures_go_back_on_their_parts() -> None:
    words: list[Any] = [
        [
            reasoning("Let me see.", 1, "c2lnMQ=="),
            text("I look."),
            call("add", {"a": 1, "b": 2}, "c1", signature="Y2FsbA=="),
        ],
        [
            text("Three."),
            call("add", {"a": 3, "b": 4}, "c2", signature="bW9yZQ=="),
            call("add", {"a": 5, "b": 6}, "c3"),
        ],
        [text("All done.")],
        [text("Fine.")],
    ]
    with FakeGemini(words) as fake:
        agent = Agent("Tester", model(fake), tools=[add])
        assert agent.run("go").content == "I look.Three.All done."
        assert agent.run("and?").content == "Fine."
        (first, _, second, answers, last, _) = fake.requests[-1]["contents"][1:]
    assert first["parts"] == [
        {"text": "Let me see.", "thought": True, "thoughtSignature": "c2lnMQ=="},
        {"text": "I look."},
        {"functionCall": {"id": "c1", "name": "add", "args": {"a": 1, "b": 2}}, "thoughtSignature": "Y2FsbA=="},
    ]
    assert [part.get("thoughtSignature") for part in second["parts"]] == [None, MORE, None]
    assert answers["parts"][1]["functionResponse"] == {"id": "c3", "name": "add", "response": {"output": "11"}}
    assert last["parts"][0] == {"text": "All done."}
    assert last["parts"][1].keys() == {"text", "thoughtSignature"}


def test_a_signed_text_is_not_joined_with_the_text_before_it() -> None:
    seal = write_seal(Seal("c2ln", "text", ID, 4))
    history = [user("go"), assistant(Text("One. Two."), Reasoning("", seal), Text("Three.")), user("and?")]
    assert contents(history, ID, signed=True)[1]["parts"] == [
        {"text": "One. "},
        {"text": "Two.", "thoughtSignature": "c2ln"},
        {"text": "Three."},
    ]
    assert contents(history, "gemini-4-argon", signed=True)[1]["parts"] == [{"text": "One. Two."}, {"text": "Three."}]


def test_a_signed_text_that_is_blank_goes_back_as_it_was() -> None:
    """It is no block of its own, and must not take its place in another text."""
    parts: list[Any] = [
        {"text": "Hello."},
        {"text": "Hm.", "thought": True},
        {"text": "\n", "thoughtSignature": "c2lnMQ=="},
        {"text": "You\n"},
        {"text": "\n", "thoughtSignature": "c2lnMg=="},
    ]
    events = b"".join(
        b"data: %b\n\n" % json.dumps({"candidates": [{"content": {"parts": [p]}}]}).encode() for p in parts
    )
    with FakeGemini([[raw(events), text("!")], [text("Fine.")]]) as fake:
        agent = Agent("Tester", model(fake))
        agent.run("go")
        agent.run("and?")
        unsigned = {"text": "You\n"}
        assert fake.requests[1]["contents"][1]["parts"][:4] == [parts[0], parts[2], unsigned, parts[4]]


def test_the_first_call_of_a_step_of_this_turn_has_a_signature_or_a_word_in_its_place() -> None:
    """The calls are another model's, or were made without one."""
    steps = [
        assistant(ToolCall("1", "f", {}), ToolCall("2", "f", {})),
        Message("tool", [ToolResult("1", "f", "ok"), ToolResult("2", "f", "no", "error")]),
    ]
    history = [user("old"), *steps, assistant(Text("Done.")), user("go"), *steps]
    made = contents(history, ID, signed=True)
    signatures = [[part.get("thoughtSignature") for part in made[place]["parts"]] for place in (1, 5)]
    assert signatures == [[None, None], [NO_SIGNATURE, None]]
    assert made[6]["parts"][1]["functionResponse"]["response"] == {"error": "no"}
    assert "thoughtSignature" not in str(contents(history, OLD, signed=False))


def test_a_conversation_with_another_models_calls_goes_on() -> None:
    history = [
        user("go"),
        assistant(ToolCall("1", "add", {"a": 1, "b": 2})),
        Message("tool", [ToolResult("1", "add", "3")]),
        assistant(Text("Three.")),
    ]
    with FakeGemini([[call("add", {"a": 1, "b": 2})], [text("Fine.")]]) as fake:
        result = Agent("Tester", model(fake), tools=[add]).run("again", messages=history)
        assert result.status is RunStatus.completed, result.error


def test_names_that_begin_with_a_digit() -> None:
    @tool(name="2fast")
    async def look(query: str) -> str:
        """Look."""
        return f"found {query}"

    with FakeGemini([[call("_2fast", {"query": "a"})], [text("Fine.")]]) as fake:
        agent = Agent("Tester", model(fake), tools=[look])
        result = agent.run("go")
        assert (result.status, result.content) == (RunStatus.completed, "Fine."), result.error
        assert [each.name for each in result.messages[1].tool_calls] == ["2fast"]
        assert fake.requests[1]["contents"][2]["parts"][0]["functionResponse"]["name"] == "_2fast"
    assert [sent_name(name) for name in ("a1", "_a", "-a", "9")] == ["a1", "_a", "_-a", "_9"]


# -- images and files -------------------------------------------------------------------------------------------------


def test_a_prompt_with_media() -> None:
    prompt: list[str | Image | File] = [
        "Look",
        CAT,
        Image(url="https://x.org/a.jpeg?b"),
        File(b"%PDF-1", name="a.pdf"),
        File(b"Buy.", name="n.txt"),
        File(url="gs://b/film", media_type="video/mp4"),
    ]
    with FakeGemini() as fake:
        result = Agent("Tester", model(fake)).run(prompt)
        assert result.status is RunStatus.completed, result.error
        assert fake.requests[0]["contents"][0]["parts"] == [
            {"text": "Look"},
            {"inlineData": {"mimeType": "image/png", "data": DATA}},
            {"fileData": {"fileUri": "https://x.org/a.jpeg?b", "mimeType": "image/jpeg"}},
            {"inlineData": {"mimeType": "application/pdf", "data": base64.b64encode(b"%PDF-1").decode()}},
            {"text": "n.txt:\nBuy."},
            {"fileData": {"fileUri": "gs://b/film", "mimeType": "video/mp4"}},
        ]


def test_a_result_with_an_image() -> None:
    with FakeGemini([[call("photo", id="c")], [text("A cat.")]]) as fake:
        assert Agent("Tester", model(fake), tools=[photo]).run("go").content == "A cat."
        assert fake.requests[1]["contents"][2]["parts"][0]["functionResponse"] == {
            "id": "c",
            "name": "photo",
            "response": {"output": "A cat:"},
            "parts": [{"inlineData": {"mimeType": "image/png", "data": DATA}}],
        }


def test_older_models_take_no_image_as_a_result() -> None:
    with FakeGemini([[call("photo")], [text("I can't see it.")]]) as fake:
        assert Agent("Tester", model(fake, OLD), tools=[photo]).run("go").content == "I can't see it."
        assert "before its version 3 can't take an image" in str(fake.requests[1])


@pytest.mark.parametrize("block", [Image(b"GIF89a"), File(b"PK\x03\x04\x00", name="t.xlsx"), Image(url="ftp://x/y")])
def test_what_it_cannot_take_is_said_before_anything_is_sent(block: Image | File) -> None:
    with FakeGemini() as fake:
        with pytest.raises(UnsupportedContentError, match="Gemini takes"):
            Agent("Tester", model(fake)).run(["Look", block])
        assert fake.requests == []


# -- structured output ------------------------------------------------------------------------------------------------


class Mast(BaseModel):
    height: int


class Ship(BaseModel):
    name: str
    mast: Mast


def test_structured_output_with_and_without_tools() -> None:
    said = text('{"name": "Gorch Fock", "mast": {"height": 45}}')
    for id, tools in ((ID, [add]), (ID, []), (OLD, []), (OLD, [add])):
        with FakeGemini([[said]]) as fake:
            result = Agent("Tester", model(fake, id), output_type=Ship, tools=tools).run("Which?")
            assert result.output == Ship(name="Gorch Fock", mast=Mast(height=45)), result.error
            config = fake.requests[0].get("generationConfig", {})
            assert ("responseJsonSchema" in config) is (id == ID or not tools)
            assert "height" in str(fake.requests[0])


def test_schemas() -> None:
    schema = {
        "type": "object",
        "properties": {
            "const": {"const": "a", "title": "A"},
            "$ref": {"$ref": "#/$defs/X", "description": "gone"},
            "list": {"type": "array", "items": {"anyOf": [{"const": 1}, {"type": "null"}]}, "default": [{"const": 1}]},
        },
        "$defs": {"X": {"type": "object", "additionalProperties": {"const": 2}}},
    }
    assert as_gemini(schema) == {
        "type": "object",
        "properties": {
            "const": {"enum": ["a"], "title": "A"},
            "$ref": {"$ref": "#/$defs/X"},
            "list": {"type": "array", "items": {"anyOf": [{"enum": [1]}, {"type": "null"}]}, "default": [{"const": 1}]},
        },
        "$defs": {"X": {"type": "object", "additionalProperties": {"enum": [2]}}},
    }
