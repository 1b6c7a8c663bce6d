# SPDX-License-Identifier: Apache-2.0
"""The SDK's clients: shared by models, one per event loop, closed with it; and what is used of the SDK's inside."""

from __future__ import annotations

import gc
import threading
from typing import Any

import anthropic
import httpx2
import pytest

from andon import Agent, RunStatus
from andon.errors import ConfigurationError
from andon.models.anthropic import Anthropic
from andon.models.common.http import join_chunks, response_type
from andon.testing.providers import FakeAnthropic
from tests.support import play, until
from tests.support.anthropic import ID, agent, model


async def ask(tester: Agent, **options: Any) -> None:
    result = await tester.invoke_async("go", **options)
    assert result.status is RunStatus.completed, result.error


def test_clients_of_models_that_are_gone_are_closed() -> None:
    async def main() -> None:
        with FakeAnthropic() as fake:
            for _ in range(10):
                # Each has a function of its own, so no two models have the same settings.
                tester = agent(fake, http_client=lambda: httpx2.AsyncClient())
                await ask(tester)
                del tester
                gc.collect()
            await fake.wait_until_async(lambda: fake.open_connections <= 2)

    play(main)


def test_a_client_of_yours_is_used_as_it_is_and_stays_open() -> None:
    async def main() -> None:
        with FakeAnthropic() as fake:
            async with anthropic.AsyncAnthropic(base_url=fake.base_url, api_key=fake.api_key) as client:
                given = Anthropic(ID, client=client)
                await ask(Agent("Tester", given))
                await given.aclose()
                assert not client.is_closed()
                await ask(Agent("Tester", given))
                assert client.max_retries > 0
            assert [each.connection for each in fake.served] == [1, 1]
            assert fake.models_asked == [ID]

    play(main)


def test_a_client_for_another_platform_is_given_the_body() -> None:
    """It changes the body on its way, so it must not be given bytes."""

    class Platform(anthropic.AsyncAnthropic):
        async def _prepare_options(self, options: Any) -> Any:
            options = await super()._prepare_options(options)
            if options.json_data is not None:
                options.json_data = {**options.json_data, "service_tier": "auto"}
            return options

    async def main() -> None:
        with FakeAnthropic() as fake:
            async with Platform(base_url=fake.base_url, api_key=fake.api_key) as client:
                await ask(Agent("Tester", Anthropic(ID, client=client)))
            assert fake.requests[0]["service_tier"] == "auto"

    play(main)


def test_a_client_and_settings_for_another_one_are_a_contradiction() -> None:
    with pytest.raises(ConfigurationError, match="client="):
        Anthropic(ID, client=object(), auth_token="t")


def test_the_http_client_can_be_chosen() -> None:
    async def main() -> None:
        made: list[httpx2.AsyncClient] = []

        def make() -> httpx2.AsyncClient:
            made.append(httpx2.AsyncClient(headers={"x-proxy": "mine"}))
            return made[-1]

        with FakeAnthropic() as fake:
            chosen = model(fake, http_client=make)
            await ask(Agent("Tester", chosen))
            await ask(Agent("Tester", chosen))
            assert fake.served[0].headers["x-proxy"] == "mine"
            assert len(made) == 1
            await chosen.aclose()
            assert made[0].is_closed

    play(main)


def test_the_loop_goes_on_while_a_client_is_opened() -> None:
    """Importing the SDK takes more than a second; nothing else of the loop may wait for it."""

    async def main() -> None:
        entered, go_on = threading.Event(), threading.Event()

        def make() -> Any:
            entered.set()
            go_on.wait()
            return httpx2.AsyncClient()

        with FakeAnthropic() as fake:
            tester = agent(fake, http_client=make)
            async with tester.start("go") as run:
                await until(entered.is_set)
                run.cancel()
                assert (await run.result()).status is RunStatus.cancelled
            go_on.set()
            assert fake.served == []
            await ask(tester)

    play(main)


# -- canaries ---------------------------------------------------------------------------------------------------------


def test_the_way_to_the_bytes_is_still_there() -> None:
    """Of the SDK only public names are used. Below it, `join_chunks` uses private ones: without them it is slower."""

    async def main() -> None:
        with FakeAnthropic() as fake:
            async with anthropic.AsyncAnthropic(base_url=fake.base_url, api_key=fake.api_key) as client:
                body = b'{"model":"m","max_tokens":5,"stream":true,"messages":[{"role":"user","content":"go"}]}'
                response = await client.post("/v1/messages", cast_to=response_type(), content=body, stream=True)
                assert isinstance(response, httpx2.Response)
                assert join_chunks(response)
                assert b"message_stop" in b"".join([each async for each in response.aiter_bytes()])
                await response.aclose()
                asked = await client.get("/v1/models/m", cast_to=response_type())
                assert asked.json()["max_tokens"] == 64_000

    play(main)


def test_the_error_has_what_is_read_of_it() -> None:
    with FakeAnthropic() as fake:
        client = anthropic.Anthropic(base_url=fake.base_url, api_key=fake.api_key, max_retries=0)
        with client, pytest.raises(anthropic.BadRequestError) as caught:
            client.messages.create(model="m", max_tokens=0, messages=[{"role": "user", "content": "go"}])
        body: Any = caught.value.body
        assert body["error"] == {
            "type": "invalid_request_error",
            "message": "max_tokens: Input should be greater than or equal to 1",
        }
        assert body["request_id"].startswith("req_")
        assert "authorization" in caught.value.response.request.headers
