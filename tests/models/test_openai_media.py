# SPDX-License-Identifier: Apache-2.0
"""Images and files on their way to OpenAI, and the reasons with which its answers end."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from andon import Agent, File, FinishReason, Image, RunStatus, UnsupportedContentError, tool
from andon.messages import Message, Text, ToolCall, ToolResult, assistant
from andon.models.openai import OpenAIChat
from andon.testing.providers import FakeChat, FakeResponses, call, finish, raw, text
from tests.support.openai import APIS, ID, Api, each_api

PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 20
CAT, FAR_CAT = Image(PNG), Image(url="https://x.org/cat.png")
REPORT, NOTES = File(b"%PDF-1.7", name="report.pdf"), File(b"Buy milk.", name="notes.txt")
CAT_URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
REPORT_URL = f"data:application/pdf;base64,{base64.b64encode(REPORT.data).decode()}"


@tool
async def photo() -> Any:
    return ["A cat:", CAT]


def test_a_prompt_for_chat() -> None:
    with FakeChat() as fake:
        model = OpenAIChat(ID, base_url=fake.base_url, api_key=fake.api_key)
        assert Agent("Tester", model).run(["Look", CAT, FAR_CAT, REPORT, NOTES]).status is RunStatus.completed
        assert fake.requests[0]["messages"][0]["content"] == [
            {"type": "text", "text": "Look"},
            {"type": "image_url", "image_url": {"url": CAT_URL}},
            {"type": "image_url", "image_url": {"url": FAR_CAT.url}},
            {"type": "file", "file": {"filename": "report.pdf", "file_data": REPORT_URL}},
            {"type": "text", "text": "notes.txt:\nBuy milk."},
        ]


def test_a_prompt_and_a_result_for_responses() -> None:
    with FakeResponses([[call("photo", {}, id="call_1")], [text("Nice.")]]) as fake:
        api = next(each for each in APIS if each.name == "responses")
        agent = Agent("Tester", api.model(fake), tools=[photo])
        result = agent.run(["Look", CAT, FAR_CAT, REPORT, File(url="https://x.org/a.pdf")])
        assert result.status is RunStatus.completed, result.error
        image = {"type": "input_image", "image_url": CAT_URL, "detail": "auto"}
        assert fake.requests[0]["input"][0]["content"] == [
            {"type": "input_text", "text": "Look"},
            image,
            image | {"image_url": FAR_CAT.url},
            {"type": "input_file", "filename": "report.pdf", "file_data": REPORT_URL},
            {"type": "input_file", "file_url": "https://x.org/a.pdf"},
        ]
        assert fake.requests[1]["input"][-1]["output"] == [{"type": "input_text", "text": "A cat:"}, image]


@pytest.mark.parametrize(
    ("media_type", "name"),
    [
        ("application/pdf", "file.pdf"),
        ("text/csv", "file.csv"),
        ("application/json", "file.json"),
        ("text/x-odd", "file.txt"),
    ],
)
def test_a_file_without_a_name_gets_one_with_its_ending(media_type: str, name: str) -> None:
    with FakeResponses() as fake:
        api = next(each for each in APIS if each.name == "responses")
        check = Agent("Tester", api.model(fake)).run(["Look", File(b"1,2", media_type=media_type)])
        assert check.status is RunStatus.completed, check.error
        assert fake.requests[0]["input"][0]["content"][1]["filename"] == name


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (Image(b"BM and more"), "takes no image/bmp: of images, it takes image/gif"),
        (File(url="https://x.org/a.pdf"), r"no addresses for a file: give the bytes, File\(data=…\)"),
        (File(b"PK\x03\x04\x00", name="table.xlsx"), r"takes no application/.*: of files, it takes text"),
        (Image(url="gs://bucket/cat.png"), "addresses that begin with https://"),
    ],
    ids=["bmp", "file-url", "xlsx", "gs"],
)
def test_what_chat_cannot_take_is_said_before_anything_is_sent(block: Image | File, words: str) -> None:
    with FakeChat() as fake:
        agent = Agent("Tester", OpenAIChat(ID, base_url=fake.base_url, api_key=fake.api_key))
        with pytest.raises(UnsupportedContentError, match=words):
            agent.run(["Look", block])
        assert fake.requests == []
        assert agent.messages == []


def test_chat_takes_no_image_as_a_result() -> None:
    with FakeChat([[call("photo", {})], [text("I can't see it.")]]) as fake:
        agent = Agent("Tester", OpenAIChat(ID, base_url=fake.base_url, api_key=fake.api_key), tools=[photo])
        assert agent.run("Show me").content == "I can't see it."
        told = fake.requests[1]["messages"][-1]["content"]
        assert "can't take an image as the result of a tool: return text" in told


def test_what_an_older_conversation_has_does_not_end_it() -> None:
    """Another model was asked with it. A text stands for what this one can't take."""
    with FakeChat([[call("photo", {})], [text("A cat.")]]) as fake:
        agent = Agent("Tester", OpenAIChat(ID, base_url=fake.base_url, api_key=fake.api_key), tools=[photo])
        movie = File(b"0000ftypmp42", "video/mp4", name="cat.mp4")
        history = [
            Message("user", [Text("Show me"), movie, CAT]),
            assistant(ToolCall("c1", "photo", {})),
            Message("tool", [ToolResult("c1", "photo", "Here.", attachments=[CAT])]),
            assistant(Text("A cat.")),
        ]
        result = agent.run("So?", messages=history)
        assert result.content == "A cat.", result.error
        prompt, _, told, *_ = fake.requests[0]["messages"]
        assert prompt["content"][1] == {"type": "text", "text": "[file cat.mp4, not shown to this model]"}
        assert prompt["content"][2]["type"] == "image_url"
        assert told["content"] == "Here.\n[image, not shown to this model]"
        (left_out,) = result.warnings  # it is so in both turns, and is told once
        assert left_out.startswith("2 images or files of the conversation were not sent, because Chat Completions")
        assert agent.messages[0].content[1] == movie, "the conversation itself has it still"


# -- the end of an answer ---------------------------------------------------------------------------------------------


@each_api
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([text("Hi.")], FinishReason.end_turn),
        ([text("Hi."), finish("length")], FinishReason.length),
        ([text("Hi."), finish("content_filter")], FinishReason.content_filter),
    ],
    ids=["stop", "length", "filter"],
)
def test_reasons(api: Api, words: list[Any], reason: FinishReason) -> None:
    with api.fake([words]) as fake:
        assert Agent("Tester", api.model(fake)).run("go").finish_reason is reason


@each_api
def test_calls_are_a_reason_too(api: Api) -> None:
    with api.fake([[call("photo", {})]]) as fake:
        result = Agent("Tester", api.model(fake), tools=[photo], max_turns=1).run("go")
        assert result.finish_reason is FinishReason.tool_calls


@pytest.mark.parametrize("api_name", ["chat", "responses"])
def test_a_refusal(api_name: str) -> None:
    chat = (
        b'data: {"choices":[{"index":0,"delta":{"refusal":"No."}}]}\n\n'
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    )
    responses = (
        b'data: {"type":"response.refusal.delta","delta":"No."}\n\n'
        b'data: {"type":"response.completed","response":{"id":"r","status":"completed"}}\n\n'
    )
    api = next(each for each in APIS if each.name == api_name)
    said = {"chat": chat, "responses": responses}[api_name]
    with api.fake([[raw(said)], [text("Fine.")]]) as fake:
        agent = Agent("Tester", api.model(fake))
        result = agent.run("go")
        assert (result.content, result.finish_reason) == ("No.", FinishReason.refusal)
        assert agent.run("Something else").content == "Fine."
