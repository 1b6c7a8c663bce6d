# SPDX-License-Identifier: Apache-2.0
"""The SDK's clients: shared by models, one per event loop, closed with it, and whole after any number of cancels."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from functools import partial
from typing import Any

import pytest

from andon import Agent, RunStatus
from andon.errors import ConfigurationError
from andon.models.openai import OpenAIChat
from andon.models.openai.clients import clients
from andon.testing.providers import FakeChat, silence, stall, text
from tests.support import Worker, eventually, play, until
from tests.support.openai import ID, Api, Fake, each_api


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def all_wait(fake: Fake, first: int) -> bool:
    return sum(each.state in ("silent", "stalled") for each in fake.served[first:]) == 50


async def ask(agent: Agent, **options: Any) -> None:
    result = await agent.invoke_async("go", **options)
    assert result.status is RunStatus.completed, result.error


@pytest.mark.no_cover  # half of its time would be the tracer's
@each_api
def test_a_thousand_cancelled_streams_on_one_client(api: Api) -> None:
    """1,000 for each interface, 50 at a time: silent, or stalled in mid-text."""

    async def main() -> None:
        answers = [[silence()], [text("Half "), stall()]]
        turns = iter(range(10**9))

        def script(body: dict[str, Any]) -> Any:
            return [text("Fine.")] if "fine" in str(body) else answers[next(turns) % 2]

        with api.fake(script) as fake:
            agent = Agent("Tester", api.model(fake))
            assert (await agent.invoke_async("fine")).content == "Fine."
            before = open_files()
            for _ in range(20):
                first = len(fake.served)
                runs = [await agent.start("go", session_id=os.urandom(8).hex()).__aenter__() for _ in range(50)]
                await fake.wait_until_async(partial(all_wait, fake, first))
                agent.cancel()
                for run in runs:
                    assert (await run.result()).status is RunStatus.cancelled
                    await run.__aexit__(None, None, None)
            await fake.wait_until_async(lambda: fake.open_connections <= 1)
            assert open_files() <= before + 1
            result = await agent.invoke_async("fine")
            assert result.content == "Fine."

    play(main)


def test_models_with_the_same_settings_share_a_client() -> None:
    async def main() -> None:
        with FakeChat([[text("Fine.")]]) as fake:
            models = [OpenAIChat(ID, base_url=fake.base_url, api_key=fake.api_key, temperature=n) for n in range(2)]
            for model in models:
                await ask(Agent("Tester", model))
            assert [each.connection for each in fake.served] == [1, 1]
            await models[0].aclose()
            await ask(Agent("Tester", models[1]))
            assert fake.served[-1].connection == 1, "it was closed under another model"
            await models[1].aclose()
            await fake.wait_until_async(lambda: fake.open_connections == 0)
            await ask(Agent("Tester", models[0]))  # opened anew
            await models[0].aclose()
            await models[0].aclose()

    play(main)


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


def test_many_loops_leave_nothing_behind() -> None:
    with FakeChat([[text("Fine.")]]) as fake:
        agent = Agent("Tester", OpenAIChat(ID, base_url=fake.base_url, api_key=fake.api_key))
        asyncio.run(ask(agent))
        fake.wait_until(lambda: fake.open_connections == 0)
        before, loops = open_files(), clients.loops
        for _ in range(50):
            asyncio.run(ask(agent))
        fake.wait_until(lambda: fake.open_connections == 0)
        eventually(lambda: open_files() <= before)  # the fake closes its end of a connection a moment later
        assert clients.loops == loops


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


@each_api
def test_several_loops_and_threads_at_once(api: Api) -> None:
    with api.fake([[text("Fine.")]]) as fake:
        agent = Agent("Tester", api.model(fake))

        async def several() -> None:
            await asyncio.gather(*(ask(agent, session_id=os.urandom(8).hex()) for _ in range(5)))

        def blocking() -> None:
            for _ in range(5):
                assert agent.run("go", session_id=os.urandom(8).hex()).content == "Fine."

        workers = [Worker(lambda: asyncio.run(several())) for _ in range(3)] + [Worker(blocking) for _ in range(3)]
        for worker in workers:
            worker.done()
        assert len(fake.served) == 30


def test_a_cancel_from_another_thread_reaches_the_provider() -> None:
    with FakeChat([[text("Half "), stall()], [text("Fine.")]]) as fake:
        agent = Agent("Tester", OpenAIChat(ID, base_url=fake.base_url, api_key=fake.api_key))
        worker = threading.Thread(target=lambda: (fake.wait_for(at="stalled"), agent.cancel()))
        worker.start()
        assert agent.run("go").status is RunStatus.cancelled
        worker.join()
        assert fake.wait_for(at="left").sent_after_left == 0
        assert agent.run("and now?").content == "Fine."


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


def test_without_the_sdk_the_error_names_what_to_install() -> None:
    program = (
        "import sys; sys.modules['openai'] = None\n"
        "from andon import Agent, MissingExtraError\n"
        "from andon.models.openai import OpenAIChat, OpenAIResponses\n"
        "for model in (OpenAIChat('x', api_key='k'), OpenAIResponses('x', api_key='k')):\n"
        "    try:\n"
        "        Agent('T', model).run('go')\n"
        "    except MissingExtraError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all('pip install "andon[openai]"' in line for line in lines)


def test_the_sdk_is_not_imported_before_the_first_request() -> None:
    program = (
        "import sys; from andon.models.openai import OpenAIChat, OpenAIResponses\n"
        "OpenAIChat('x'); OpenAIResponses('x')\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"openai", "httpx2", "pydantic", "anyio"}


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
