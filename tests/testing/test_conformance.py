# SPDX-License-Identifier: Apache-2.0
"""The conformance suite finds what is wrong with a model, and nothing wrong with a sound one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from andon.errors import SetupError
from andon.models.base import Model, ModelRequest, Sink
from andon.models.scripted import ScriptedModel
from andon.testing import check_model
from andon.testing.providers import text
from tests.support.openai import Api, each_api

STORY = "And so it went on and on, as such stories do, until the lamp was lit and the ships came home."


class Sound:
    """A model that keeps the protocol. The others break it in one place."""

    id = "sound"

    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        for word in STORY.split():
            sink.text(f"{word} ")
            await asyncio.sleep(0)
        sink.usage(input_tokens=1, output_tokens=1)


class Swallowing(Sound):
    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        for word in STORY.split():
            sink.text(f"{word} ")
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)


class Replacing(Sound):
    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        try:
            await super().stream(request, sink)
        except asyncio.CancelledError:
            raise ConnectionError("the request was aborted") from None


class Blocking(Sound):
    """It uses a client for blocking calls."""

    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        for word in STORY.split():
            sink.text(f"{word} ")
            time.sleep(0.011)  # noqa: ASYNC251


class Slow(Sound):
    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        try:
            await super().stream(request, sink)
        except asyncio.CancelledError:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(30)
            raise


class Stubborn(Sound):
    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        try:
            await super().stream(request, sink)
        except asyncio.CancelledError:
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(30)


class Stray(Sound):
    """A task of its own does the work, and is not stopped."""

    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        async def push() -> None:
            for word in STORY.split():
                sink.text(f"{word} ")
                await asyncio.sleep(0)

        self.task = asyncio.create_task(push())
        await asyncio.shield(self.task)


class LeavesTasks(Sound):
    def __init__(self) -> None:
        self.tasks: list[Any] = []

    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        self.tasks.append(asyncio.create_task(asyncio.Event().wait(), name="keep alive"))
        await super().stream(request, sink)


class LeavesSockets(Sound):
    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []

    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        opened = socket.socket()
        try:
            await super().stream(request, sink)
        except asyncio.CancelledError:
            self.sockets.append(opened)
            raise
        opened.close()


class OneLoop(Sound):
    def __init__(self) -> None:
        self.loop: Any = None

    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        self.loop = self.loop or asyncio.get_running_loop()
        if asyncio.get_running_loop() is not self.loop:
            raise RuntimeError("Event loop is closed")
        await super().stream(request, sink)


class OneAtATime(Sound):
    busy = False

    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        if self.busy:
            raise RuntimeError("busy")
        self.busy = True
        try:
            await super().stream(request, sink)
        finally:
            self.busy = False


class Breaks(Sound):
    """After a cancel it can't be used any more."""

    broken = False

    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        if self.broken:
            raise RuntimeError("the client is closed")
        try:
            await super().stream(request, sink)
        except asyncio.CancelledError:
            self.broken = True
            raise


class Short(Sound):
    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        sink.text("Hello.")


class Mute(Sound):
    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        await asyncio.sleep(0)


class Hangs(Sound):
    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        await asyncio.Event().wait()


class Nameless(Sound):
    id = ""


class AsyncSetup(Sound):
    async def check_setup(self) -> None: ...


class NotSetUp(Sound):
    def check_setup(self) -> None:
        raise SetupError("there is no key")


def test_a_sound_model_has_no_problems() -> None:
    assert check_model(Sound) == []
    assert check_model(lambda: ScriptedModel(then=STORY)) == []


@each_api
def test_our_own_models_have_none(api: Api) -> None:
    with api.fake([[text(STORY, pace=0.001)]]) as fake:
        assert check_model(lambda: api.model(fake)) == []


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Swallowing, "it went on and returned: it must let CancelledError through"),
        (Replacing, "it raised ConnectionError: the request was aborted instead: it must let CancelledError through"),
        (Blocking, "it waits for its provider without an await"),
        (Slow, "s to stop: close, and don't wait"),
        (Stubborn, "it did not stop: let CancelledError through"),
        (Stray, "it pushed to the sink after `stream` had ended"),
        (LeavesTasks, "tasks are left: keep alive"),
        (LeavesSockets, "more connections are open"),
        (OneLoop, "a request on a second event loop failed: RuntimeError: Event loop is closed"),
        (OneAtATime, "one of two requests at once failed: RuntimeError: busy"),
        (Breaks, "the next prompt, after a cancel before its first await, failed"),
        (Short, "its answer had 1 pushes"),
        (Mute, "the first request had no text"),
        (Hangs, "the first request did not end within 0.2 s"),
        (Nameless, "its id is no text"),
        (AsyncSetup, "its check_setup is async"),
        (NotSetUp, "there is no key"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_what_is_wrong_is_found(kind: Callable[[], Model], words: str) -> None:
    seconds = 0.2 if kind is Hangs else 10
    model = kind()
    problems = check_model(lambda: model, points=5, seconds=seconds)
    for each in getattr(model, "sockets", []):
        each.close()
    assert any(words in problem for problem in problems), problems


def test_what_is_no_model_is_said() -> None:
    (problem,) = check_model(lambda: object())  # type: ignore[arg-type,return-value]
    assert "is no model" in problem


def test_a_model_in_place_of_a_function_is_told() -> None:
    given: Any = ScriptedModel("Hi.")
    assert check_model(given) == ["give a function that makes the model: check_model(lambda: MyModel(…))"]
