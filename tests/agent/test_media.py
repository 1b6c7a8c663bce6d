# SPDX-License-Identifier: Apache-2.0
"""Images and files in prompts, in results of tools, and in conversations that are given or stored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from andon import (
    Agent,
    Block,
    ConfigurationError,
    EmptyPromptError,
    File,
    Image,
    RunEvent,
    RunStatus,
    Runtime,
    Text,
    ToolOutput,
    ToolResult,
    UnsupportedContentError,
    Usage,
    tool,
)
from andon.media import IMAGE_TOKENS
from andon.models.base import ModelRequest, Sink
from andon.models.scripted import Call, ScriptedModel, Stall
from andon.store import open_store
from andon.testing import validate
from tests.support import asked, make, play, until

PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 20
CAT = Image(PNG)
REPORT = File(b"%PDF-1.7 and so on", name="report.pdf")


# -- prompts ----------------------------------------------------------------------------------------------------------


def test_a_prompt_is_text_images_and_files_in_their_order() -> None:
    agent = make("A cat.")
    result = agent.run(["What is this?", CAT, "And this?", REPORT])
    assert result.content == "A cat."
    blocks = [Text("What is this?"), CAT, Text("And this?"), REPORT]
    assert asked(agent)[0].messages[0].content == blocks == agent.messages[0].content
    assert validate(agent.messages) == []


def test_an_image_alone_is_a_prompt() -> None:
    agent = make("A cat.", "Two.")
    assert agent.run(CAT).status is RunStatus.completed
    assert agent.run(("", CAT, CAT)).status is RunStatus.completed
    assert [len(message.content) for message in agent.messages if message.role == "user"] == [1, 2]


@pytest.mark.parametrize(
    ("prompt", "error", "words"),
    [
        (["Look", b"bytes"], ConfigurationError, "Image and File, not of bytes"),
        ({"text": "x"}, ConfigurationError, "not dict"),
        (7, ConfigurationError, "not int"),
        ([], EmptyPromptError, "is empty"),
        (["", "  "], EmptyPromptError, "is empty"),
    ],
)
def test_what_is_no_prompt_is_refused_at_the_call(prompt: Any, error: type[Exception], words: str) -> None:
    agent = make("Hi.")
    with pytest.raises(error, match=words):
        agent.run(prompt)
    assert agent.messages == []


class Blind(ScriptedModel):
    """A model that takes text alone."""

    def check_content(self, blocks: Sequence[Block], *, in_result: bool) -> None:
        if any(isinstance(block, Image | File) for block in blocks):
            raise UnsupportedContentError(f"only text, please ({in_result})")


def test_what_the_model_cannot_take_keeps_the_run_from_starting() -> None:
    agent = Agent("Blind", Blind(then="OK."))
    with pytest.raises(UnsupportedContentError, match=r"only text, please \(False\)"):
        agent.run(["Look:", CAT])
    assert agent.messages == []
    assert agent.run("Look").content == "OK."


# -- results of tools -------------------------------------------------------------------------------------------------


@tool
async def photo(what: str) -> Any:
    """Take a photo."""
    returned = {"one": CAT, "several": ["Two:", CAT, {"size": 2}, REPORT], "made": ToolOutput("Made.", [CAT])}
    return returned[what]


@tool
def scan() -> Any:
    return (REPORT,)


@pytest.mark.parametrize(
    ("call", "text", "attachments"),
    [
        (Call("photo", {"what": "one"}), "(attached)", [CAT]),
        (Call("photo", {"what": "several"}), 'Two:\n\n{"size":2}', [CAT, REPORT]),
        (Call("photo", {"what": "made"}), "Made.", [CAT]),
        (Call("scan"), "(attached)", [REPORT]),
    ],
    ids=["one", "several", "made", "in-a-thread"],
)
def test_a_tool_returns_images_and_files(call: Call, text: str, attachments: list[Any]) -> None:
    agent = make(call, "Nice.", tools=[photo, scan])
    result = agent.run("Show me")
    assert result.status is RunStatus.completed, result.error
    (told,) = asked(agent)[-1].messages[-1].tool_results
    assert (told.content, told.attachments, told.status) == (text, attachments, "ok")
    assert validate(agent.messages) == []


def test_an_image_inside_a_dict_is_refused_with_words_for_the_model() -> None:
    @tool
    async def nested() -> dict[str, Any]:
        return {"image": CAT}

    agent = make(Call("nested"), tools=[nested])
    agent.run("Show me")
    (told,) = asked(agent)[-1].messages[-1].tool_results
    assert told.status == "error"
    assert "bytes are not text" in told.content


def test_what_the_model_cannot_take_as_a_result_is_an_error_result() -> None:
    agent = Agent("Blind", Blind(Call("scan"), then="Well."), tools=[scan])
    result = agent.run("Show me")
    assert (result.status, result.content) == (RunStatus.completed, "Well.")
    (told,) = agent.messages[2].tool_results
    assert told.status == "error"
    assert "only text, please (True)" in told.content
    assert told.attachments == []


def test_results_that_are_too_large_are_refused() -> None:
    agent = make(Call("scan"), tools=[scan], runtime=Runtime(max_attachment_bytes=10))
    agent.run("Show me")
    (told,) = asked(agent)[-1].messages[-1].tool_results
    assert told.status == "error"
    assert "have 18 bytes, and may have 10" in told.content
    unbounded = make(Call("scan"), tools=[scan], runtime=Runtime(max_attachment_bytes=0)).run("x")
    assert unbounded.messages[2].tool_results[0].attachments == [REPORT]


# -- conversations ----------------------------------------------------------------------------------------------------


def test_a_cut_keeps_the_prompt_and_the_estimate_counts_its_image() -> None:
    async def main() -> None:
        agent = make([Stall()], "Fine.")
        async with agent.start(["Look", CAT]) as run:
            await until(lambda: run.phase == "waiting")
            run.cancel()
            result = await run.result()
        assert result.messages[-2].content == [Text("Look"), CAT]
        assert result.usage == Usage(IMAGE_TOKENS + 1, 0, None, None, estimated=True)
        assert (await agent.invoke_async("So?")).content == "Fine."

    play(main)


def test_a_history_of_ones_own_may_have_them() -> None:
    agent = make("Indeed.", tools=[scan])
    history: list[dict[str, Any]] = [
        {"role": "user", "content": ["Look:", {"type": "image", "url": "https://x.org/cat.png"}]},
        {"role": "assistant", "content": [{"type": "tool_call", "id": "c", "name": "scan", "arguments": {}}]},
        {"role": "tool", "content": [ToolResult("c", "scan", "Here.", attachments=[REPORT])]},
        {"role": "assistant", "content": "A cat, and a report."},
    ]
    agent.run("So?", messages=history)
    seen = asked(agent)[0].messages
    assert seen[0].content[1] == Image(url="https://x.org/cat.png")
    assert seen[2].tool_results[0].attachments == [REPORT]
    with pytest.raises(Exception, match="image block, which the role 'assistant' can't have"):
        agent.run("So?", messages=[{"role": "assistant", "content": [CAT]}])


def test_they_are_stored(tmp_path: Path) -> None:
    async def main() -> None:
        url = f"sqlite:///{tmp_path}/a.db"
        store = open_store(url)
        agent = Agent("Keeper", ScriptedModel(Call("scan"), then="OK."), tools=[scan], runtime=Runtime(store))
        first = await agent.invoke_async(["Look", CAT], session_id="s")
        await agent.runtime.close()
        again = Agent("Keeper", ScriptedModel(then="OK."), tools=[scan], runtime=Runtime(open_store(url)))
        second = await again.invoke_async("So?", session_id="s")
        await again.runtime.close()
        assert second.messages[: len(first.messages)] == first.messages
        assert first.messages[2].tool_results[0].attachments == [REPORT]

    play(main)


def test_events_have_the_text_of_a_result_alone() -> None:
    agent = make(Call("photo", {"what": "several"}), tools=[photo])
    (event,) = [each for each in agent.run("go", stream=True) if each.event is RunEvent.tool_call_completed]
    assert event.tool is not None
    assert event.tool.result == 'Two:\n\n{"size":2}'


def test_a_model_of_ones_own_gets_them_without_more_words() -> None:
    class Own:
        id = "own"

        async def stream(self, request: ModelRequest, sink: Sink) -> None:
            sink.text(f"I see {request.messages[-1].content[-1]!r}")

    assert Agent("Own", Own()).run(["Look", CAT]).content == "I see Image(28 bytes, 'image/png')"
