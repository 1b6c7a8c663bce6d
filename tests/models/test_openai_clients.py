# SPDX-License-Identifier: Apache-2.0
"""The SDK's clients: shared by models, one per event loop, closed with it, and whole after any number of cancels."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from typing import Any

import openai
import pytest

from andon import Agent, RunStatus
from andon.errors import ConfigurationError
from andon.models.openai import OpenAIChat
from andon.testing.providers import FakeChat, text
from tests.support import eventually, play, until
from tests.support.openai import ID, Api, each_api


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def ask(agent: Agent, **options: Any) -> None:
    result = await agent.invoke_async("go", **options)
    assert result.status is RunStatus.completed, result.error


def test_clients_of_models_that_are_gone_are_closed() -> None:
    async def main() -> None:
        with FakeChat([[text("Fine.")]]) as fake:
            for n in range(20):
                model = OpenAIChat(ID, base_url=fake.base_url, api_key=fake.api_key, organization=f"org-{n}")
                await ask(Agent("Tester", model))
                del model
                gc.collect()
            await fake.wait_until_async(lambda: fake.open_connections <= 2)

    play(main)


@pytest.mark.filterwarnings("ignore:unclosed resource <TCPTransport:ResourceWarning")  # uvloop's, when it is closed
def test_a_loop_that_was_closed_without_a_word() -> None:
    """Its connections can't be closed properly by anyone; the next loop works, and nothing is said or left."""
    with FakeChat([[text("Fine.")]]) as fake:
        agent = Agent("Tester", OpenAIChat(ID, base_url=fake.base_url, api_key=fake.api_key))
        asyncio.run(ask(agent))
        fake.wait_until(lambda: fake.open_connections == 0)
        before = open_files()
        for _ in range(3):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(ask(agent))
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
        asyncio.run(ask(agent))
        fake.wait_until(lambda: fake.open_connections == 0)
        eventually(lambda: open_files() <= before)  # the fake closes its end of a connection a moment later


def test_a_client_of_yours_is_used_as_it_is_and_stays_open() -> None:
    async def main() -> None:
        import openai

        with FakeChat([[text("Fine.")]]) as fake:
            async with openai.AsyncOpenAI(base_url=fake.base_url, api_key=fake.api_key) as client:
                model = OpenAIChat(ID, client=client)
                await ask(Agent("Tester", model))
                await model.aclose()
                assert not client.is_closed()
                await ask(Agent("Tester", model))
                assert client.max_retries > 0
            assert [each.connection for each in fake.served] == [1, 1]

    play(main)


@each_api
def test_a_client_for_another_platform_is_given_the_body(api: Api) -> None:
    """It looks into the body on its way, as Azure's does for the model, so it must not be given bytes."""

    class Platform(openai.AsyncOpenAI):
        async def _prepare_options(self, options: Any) -> Any:
            options = await super()._prepare_options(options)
            options.json_data = {**options.json_data, "service_tier": "auto"}
            return options

    async def main() -> None:
        with api.fake(extra=["top_k"]) as fake:
            async with Platform(base_url=fake.base_url, api_key=fake.api_key) as client:
                model = api.make_model(ID, client=client, extra_body={"top_k": 5})
                assert (await Agent("Tester", model).invoke_async("go")).status is RunStatus.completed
            assert (fake.requests[0]["service_tier"], fake.requests[0]["top_k"]) == ("auto", 5)

    play(main)


def test_a_client_and_settings_for_another_one_are_a_contradiction() -> None:
    with pytest.raises(ConfigurationError, match="client="):
        OpenAIChat(ID, client=object(), base_url="http://localhost/v1")


def test_the_http_client_can_be_chosen() -> None:
    async def main() -> None:
        import httpx2

        made: list[httpx2.AsyncClient] = []

        def make() -> httpx2.AsyncClient:
            made.append(httpx2.AsyncClient(headers={"x-proxy": "mine"}))
            return made[-1]

        with FakeChat([[text("Fine.")]]) as fake:
            model = OpenAIChat(ID, base_url=fake.base_url, api_key=fake.api_key, http_client=make)
            await ask(Agent("Tester", model))
            await ask(Agent("Tester", model))
            assert fake.served[0].headers["x-proxy"] == "mine"
            assert len(made) == 1
            await model.aclose()
            assert made[0].is_closed

    play(main)


def test_a_client_that_can_not_be_opened_is_tried_anew() -> None:
    async def main() -> None:
        import httpx2

        broken = [True]

        def make() -> httpx2.AsyncClient:
            if broken.pop() if broken else False:
                raise OSError("no certificates")
            return httpx2.AsyncClient()

        with FakeChat([[text("Fine.")]]) as fake:
            agent = Agent("T", OpenAIChat(ID, base_url=fake.base_url, api_key=fake.api_key, http_client=make))
            assert str((await agent.invoke_async("go")).error) == "no certificates"
            await ask(agent)

    play(main)


def test_the_loop_goes_on_while_a_client_is_opened() -> None:
    """Importing the SDK takes most of a second; nothing else of the loop may wait for it."""

    async def main() -> None:
        entered, go_on = threading.Event(), threading.Event()

        def make() -> Any:
            import httpx2

            entered.set()
            go_on.wait()
            return httpx2.AsyncClient()

        with FakeChat([[text("Fine.")]]) as fake:
            agent = Agent("T", OpenAIChat(ID, base_url=fake.base_url, api_key=fake.api_key, http_client=make))
            async with agent.start("go") as run:
                await until(entered.is_set)
                run.cancel()
                assert (await run.result()).status is RunStatus.cancelled
            go_on.set()
            assert fake.served == []
            await ask(agent)

    play(main)
