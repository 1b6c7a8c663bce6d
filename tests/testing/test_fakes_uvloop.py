# SPDX-License-Identifier: Apache-2.0
"""The fakes of providers in a program whose event loops are uvloop's."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from andon import Agent, RunStatus
from andon.agent.retry import Retry
from andon.errors import ModelError
from andon.testing.providers import connect_never, cut, fail, silence, stall, text, until
from tests.support import HANG, play
from tests.support.openai import Api, each_api

uvloop: Any = pytest.importorskip("uvloop", reason="there is no uvloop for this platform")


@pytest.fixture(autouse=True)
def _policy() -> Iterator[None]:
    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    uvloop.new_event_loop().close()  # the first one of a process opens a pipe that stays, before files are counted
    yield
    asyncio.set_event_loop_policy(before)


def play_on_uvloop(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def checked() -> None:
        assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
        await main()

    play(checked)


@each_api
def test_whole_answers_by_one_connection(api: Api) -> None:
    async def main() -> None:
        with api.fake([[text("Hello.")], [text("x" * 1_000_000)]]) as fake:
            agent = Agent("Tester", api.model(fake))
            assert (await agent.invoke_async("go")).content == "Hello."
            assert len((await agent.invoke_async("on")).content) == 1_000_000
            assert [(served.connection, served.state) for served in fake.served] == [(1, "finished")] * 2

    play_on_uvloop(main)


CUTS = [cut(), cut(mid_chunk=True), cut(reset=True), cut(reset=True, mid_chunk=True)]


@each_api
@pytest.mark.parametrize("word", CUTS, ids=repr)
def test_a_stream_that_is_cut(api: Api, word: Any) -> None:
    async def main() -> None:
        with api.fake([[text("Half an "), word], [text("Fine.")]]) as fake:
            agent = Agent("Tester", api.model(fake), retry=Retry(attempts=1))
            result = await agent.invoke_async("go")
            assert result.status is RunStatus.error
            assert isinstance(result.error, ModelError)
            # A cut comes after what was sent before it; a reset may throw away what the client has not read yet.
            assert result.content == "Half an " or (word.reset and "Half an ".startswith(result.content))
            assert (fake.served[0].state, fake.served[0].left_at) == ("cut", None)
            assert (await agent.invoke_async("on")).content == "Fine."

    play_on_uvloop(main)


@each_api
def test_a_failure_and_cuts_before_anything_came(api: Api) -> None:
    async def main() -> None:
        with api.fake([[fail(500, "broken")], [cut()], [cut(reset=True)], [text("Fine.")]]) as fake:
            agent = Agent("Tester", api.model(fake), retry=Retry(attempts=4, base_seconds=0))
            assert (await agent.invoke_async("go")).content == "Fine."
            assert [served.state for served in fake.served] == ["failed", "cut", "cut", "finished"]

    play_on_uvloop(main)


LEFT: dict[str, Any] = {
    "silent": silence(),
    "stalled": stall(),
    "text": text(" ".join(["word"] * 100_000), pace=0.001),
}


@each_api
@pytest.mark.parametrize("at", LEFT)
def test_a_client_that_leaves_is_seen(api: Api, at: str) -> None:
    async def main() -> None:
        with api.fake([[LEFT[at]], [text("Fine.")]]) as fake:
            agent = Agent("Tester", api.model(fake))
            async with agent.start("go") as run:
                await fake.wait_for_async(0, at=at)
                run.cancel()
                assert (await run.result()).status is RunStatus.cancelled
            served = await fake.wait_for_async(0, at="left")
            assert (served.finished, served.sent_after_left) == (False, 0)
            assert (await agent.invoke_async("on")).content == "Fine."

    play_on_uvloop(main)


@each_api
def test_an_answer_is_held(api: Api) -> None:
    async def main() -> None:
        go_on = threading.Event()
        with api.fake([[text("One "), until(go_on), text("two.")]]) as fake:
            task = asyncio.create_task(Agent("Tester", api.model(fake)).invoke_async("go"))
            await fake.wait_for_async(0, at="held")
            go_on.set()
            assert (await task).content == "One two."

    play_on_uvloop(main)


@each_api
def test_a_tls_handshake_that_is_never_answered(api: Api) -> None:
    async def main() -> None:
        with connect_never(tls=True) as nowhere:
            async with Agent("Tester", api.model(nowhere)).start("go") as run:
                await nowhere.wait_connected_async()
                run.cancel()
                assert (await run.result()).status is RunStatus.cancelled
            await nowhere.wait_left_async()

    play_on_uvloop(main)


BLOCKING = """
import asyncio, uvloop
asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
from andon import Agent
from andon.models.openai import OpenAIChat
from andon.testing.providers import FakeChat, text
with FakeChat([[text("Hello.")]]) as fake:
    print(Agent("A", OpenAIChat("m", base_url=fake.base_url, api_key=fake.api_key)).run("go", timeout=30).content)
"""


def test_a_blocking_call_in_a_program_that_uses_uvloop() -> None:
    command = [sys.executable, "-W", "error", "-c", BLOCKING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert (done.stdout, done.stderr) == ("Hello.\n", "")
