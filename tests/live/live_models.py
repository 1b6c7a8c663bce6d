# SPDX-License-Identifier: Apache-2.0
"""Cancels, tools and structured output with real providers: `make test-live`, outside `make test`.

Each interface needs its key and a model's id, from the environment; what has none is left out, and says so.

    OPENAI_API_KEY   ANDON_LIVE_OPENAI_MODEL                                      Responses, also in the background
    OPENAI_API_KEY   ANDON_LIVE_CHAT_MODEL                                        Chat Completions
    ANTHROPIC_API_KEY   ANDON_LIVE_ANTHROPIC_MODEL                                Anthropic
    AWS_REGION   ANDON_LIVE_BEDROCK_MODEL   (and AWS's usual credentials)         Bedrock
    GEMINI_API_KEY   ANDON_LIVE_GEMINI_MODEL                                      Gemini
    GOOGLE_CLOUD_PROJECT   GOOGLE_CLOUD_LOCATION   ANDON_LIVE_VERTEX_MODEL        Gemini on Vertex
    ANDON_LIVE_COMPATIBLE_BASE_URL   ANDON_LIVE_COMPATIBLE_MODEL   ANDON_LIVE_COMPATIBLE_API_KEY (if it needs one)

A test costs a few hundred tokens.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from andon import Agent, Image, Run, RunEvent, RunStatus, tool
from andon.models.anthropic import Anthropic
from andon.models.base import Model
from andon.models.bedrock import Bedrock
from andon.models.google import Gemini
from andon.models.openai import OpenAIChat, OpenAIResponses
from andon.testing import probe
from tests.support import Ended, Flag, check_cancelled, cut, forever, play


def _variables(*names: str) -> list[str]:
    if missing := [name for name in names if not os.environ.get(name)]:
        pytest.skip(f"left out: set {', '.join(missing)}")
    return [os.environ[name] for name in names]


def _responses() -> Model:
    _, id = _variables("OPENAI_API_KEY", "ANDON_LIVE_OPENAI_MODEL")
    return OpenAIResponses(id, reasoning_summary="auto") if id.startswith(("gpt-5", "o")) else OpenAIResponses(id)


def _chat() -> Model:
    _, id = _variables("OPENAI_API_KEY", "ANDON_LIVE_CHAT_MODEL")
    return OpenAIChat(id)


def _background() -> Model:
    _, id = _variables("OPENAI_API_KEY", "ANDON_LIVE_OPENAI_MODEL")
    return OpenAIResponses(id, background=True)


def _anthropic() -> Model:
    _, id = _variables("ANTHROPIC_API_KEY", "ANDON_LIVE_ANTHROPIC_MODEL")
    return Anthropic(id, thinking=True)


def _bedrock() -> Model:
    _, id = _variables("AWS_REGION", "ANDON_LIVE_BEDROCK_MODEL")
    return Bedrock(id)


def _gemini() -> Model:
    _, id = _variables("GEMINI_API_KEY", "ANDON_LIVE_GEMINI_MODEL")
    return Gemini(id)


def _vertex() -> Model:
    project, location, id = _variables("GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION", "ANDON_LIVE_VERTEX_MODEL")
    return Gemini(id, vertex=True, project=project, location=location)


def _compatible() -> Model:
    base_url, id = _variables("ANDON_LIVE_COMPATIBLE_BASE_URL", "ANDON_LIVE_COMPATIBLE_MODEL")
    return OpenAIChat(id, base_url=base_url, api_key=os.environ.get("ANDON_LIVE_COMPATIBLE_API_KEY"))


MODELS = [_responses, _background, _chat, _anthropic, _bedrock, _gemini, _vertex, _compatible]

each = pytest.mark.parametrize("make_model", MODELS, ids=lambda make_model: make_model.__name__.strip("_"))
STORY = "Tell me a story of a lighthouse keeper, about five hundred words long."


async def goes_on(agent: Agent) -> None:
    result = await agent.invoke_async("Thank you. Say just: OK")
    assert result.status is RunStatus.completed, result.error
    assert result.content


def shown(kind: RunEvent) -> Callable[[Run], bool]:
    return lambda run: any(event.event is kind for event in probe(run).events)


async def stopped(agent: Agent, when: Callable[[Run], bool] | Flag, prompt: str = STORY) -> Ended:
    """Cancelled there; or it had an answer for us before that came, which is no failure of ours."""
    ended = await cut(agent, when, prompt=prompt)
    assert ended.result.status is RunStatus.cancelled, ended.result.error
    return ended


@each
def test_waiting_for_the_first_byte(make_model: Callable[[], Model]) -> None:
    model = make_model()

    async def main() -> None:
        agent = Agent("Live", model)
        check_cancelled(await stopped(agent, lambda run: run.phase == "waiting"), phase="waiting")
        await goes_on(agent)

    play(main)


@each
def test_mid_text(make_model: Callable[[], Model]) -> None:
    model = make_model()

    async def main() -> None:
        agent = Agent("Live", model)
        ended = await stopped(agent, shown(RunEvent.run_content))
        check_cancelled(ended, phase="streaming")
        assert ended.result.content
        await goes_on(agent)

    play(main)


@each
def test_in_a_tool_after_which_the_results_go_back(make_model: Callable[[], Model]) -> None:
    model = make_model()

    async def main() -> None:
        reached = Flag()

        @tool
        async def weather(city: str) -> str:
            """The weather in a city, right now."""
            reached.set()
            await forever()
            return ""

        agent = Agent("Live", model, tools=[weather], instructions="Use the tools that you have.")
        ended = await stopped(agent, reached, "What is the weather in Oslo and in Rome? Ask for both at once.")
        assert ended.result.receipt is not None
        assert ended.result.receipt.tools
        await goes_on(agent)

    play(main)


@each
def test_tools_reasoning_and_usage(make_model: Callable[[], Model]) -> None:
    model = make_model()

    async def main() -> None:
        @tool
        async def weather(city: str) -> str:
            """The weather in a city, right now."""
            return f"Rain in {city}."

        agent = Agent("Live", model, tools=[weather], instructions="Use the tools that you have.")
        result = await agent.invoke_async("What is the weather in Oslo?")
        assert result.status is RunStatus.completed, result.error
        assert "rain" in result.content.lower()
        assert (result.usage.input_tokens or 0) > 0
        await goes_on(agent)

    play(main)


@each
def test_structured_output(make_model: Callable[[], Model]) -> None:
    model = make_model()

    class Capital(BaseModel):
        country: str
        city: str

    async def main() -> None:
        result = await Agent("Live", model).invoke_async("The capital of Norway?", output_type=Capital)
        assert result.status is RunStatus.completed, result.error
        output: Any = result.output
        assert output.city == "Oslo"

    play(main)


@each
def test_an_image(make_model: Callable[[], Model]) -> None:
    model = make_model()

    async def main() -> None:
        agent = Agent("Live", model)
        result = await agent.invoke_async(["Which colour is this image? One word.", Image(red_square())])
        assert result.status is RunStatus.completed, result.error
        assert "red" in result.content.lower()
        await goes_on(agent)

    play(main)


def red_square() -> bytes:
    """A PNG of 64 × 64 red pixels."""

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0)
    pixels = zlib.compress((b"\0" + b"\xff\0\0" * 64) * 64)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", pixels) + part(b"IEND", b"")
