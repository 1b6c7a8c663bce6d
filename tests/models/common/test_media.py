# SPDX-License-Identifier: Apache-2.0
"""Images and files that a model can't take: refused in the prompt, replaced in what came before it."""

from __future__ import annotations

from typing import Any

import pytest

from andon import File, Image, UnsupportedContentError
from andon.messages import Block, Message, Text, ToolCall, ToolResult, assistant, user
from andon.models.base import ModelRequest
from andon.models.common.media import MediaRules, fit_media

RULES = MediaRules("Acme", files=frozenset(), image_urls=(), in_results=False)
CAT, FAR_CAT = Image(b"\x89PNG\r\n\x1a\n"), Image(url="https://x.org/cat.png")
MOVIE = File(b"0", "video/mp4", name="cat.mp4")


class Warnings:
    def __init__(self) -> None:
        self.told: list[str] = []

    def warn(self, text: str) -> None:
        self.told.append(text)


def fit(*messages: Message) -> tuple[list[Message], list[str]]:
    sink: Any = Warnings()
    return fit_media(ModelRequest(list(messages), None, []), RULES.check, sink).messages, sink.told


def prompt(*blocks: Block) -> Message:
    return Message("user", list(blocks))


def test_what_fits_stays_as_it_is() -> None:
    messages = [prompt(Text("Look"), CAT), assistant(Text("A cat.")), prompt(CAT)]
    assert fit(*messages) == (messages, [])


def test_a_text_stands_for_what_came_before_and_does_not_fit() -> None:
    before = prompt(Text("Look"), FAR_CAT, CAT, MOVIE)
    (fitted, answer, last), told = fit(before, assistant(Text("A cat.")), user("Sure?"))
    assert fitted.content == [
        Text("Look"),
        Text("[image https://x.org/cat.png, not shown to this model]"),
        CAT,
        Text("[file cat.mp4, not shown to this model]"),
    ]
    assert (answer.text, last.text) == ("A cat.", "Sure?")
    assert told == [f"2 images or files of the conversation were not sent, because {told[0].partition('because ')[2]}"]
    assert "Acme takes no addresses for an image" in told[0]
    assert before.content[1] is FAR_CAT


def test_results_of_tools_too() -> None:
    call, result = assistant(ToolCall("c", "photo", {})), ToolResult("c", "photo", "Here.", attachments=[CAT])
    messages, told = fit(user("Go"), call, Message("tool", [result]), assistant(Text("Done.")), user("Sure?"))
    (fitted,) = messages[2].tool_results
    assert (fitted.content, fitted.attachments) == ("Here.\n[image, not shown to this model]", [])
    assert len(told) == 1


@pytest.mark.parametrize(
    "messages",
    [
        [prompt(Text("Look"), MOVIE)],
        [user("Hi"), assistant(Text("Hi.")), prompt(FAR_CAT)],
        [
            user("Go"),
            assistant(ToolCall("c", "f", {})),
            Message("tool", [ToolResult("c", "f", ".", attachments=[CAT])]),
        ],
    ],
)
def test_the_prompt_and_what_follows_it_must_fit(messages: list[Message]) -> None:
    with pytest.raises(UnsupportedContentError):
        fit(*messages)
