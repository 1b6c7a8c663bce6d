# SPDX-License-Identifier: Apache-2.0
"""The clients of all SDKs: shared by models, one per event loop, closed with it, whole after any number of cancels."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import subprocess
import sys
import threading
from functools import partial
from typing import Any

import pytest

from andon import Agent, MissingExtraError, RunStatus
from andon.models.common.clients import ClientCache
from andon.testing.providers import Answer, call, reasoning, silence, stall, text
from tests.support import Worker, eventually, play
from tests.support.providers import AnyFake, Provider, each_provider

pytestmark = pytest.mark.no_cover  # many repetitions of what other tests cover

FINE: Answer = [text("Fine.")]
KEYS = ("OPENAI_", "ANTHROPIC_", "AWS_", "GOOGLE_", "GEMINI_")
SDKS = [
    ("openai", "openai", "OpenAIChat"),
    ("openai", "openai", "OpenAIResponses"),
    ("anthropic", "anthropic", "Anthropic"),
    ("bedrock", "aiobotocore", "Bedrock"),
    ("google", "google.genai", "Gemini"),
]
each_sdk = pytest.mark.parametrize(("extra", "module", "name"), SDKS)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def clients_of(model: object) -> ClientCache[Any, Any]:
    package = type(model).__module__.rpartition(".")[0]
    found = importlib.import_module(f"{package}.clients").clients
    assert isinstance(found, ClientCache)
    return found


async def ask(agent: Agent, **options: Any) -> None:
    result = await agent.invoke_async("go", **options)
    assert result.status is RunStatus.completed, result.error


# -- the SDK ----------------------------------------------------------------------------------------------------------


@each_sdk
def test_without_the_sdk_the_error_names_what_to_install(
    extra: str, module: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if there is no key: that comes next."""
    for variable in list(os.environ):
        if variable.startswith(KEYS):
            monkeypatch.delenv(variable)
    model = getattr(importlib.import_module(f"andon.models.{extra}"), name)("some-model")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf'pip install "andon\[{extra}\]"'):
        Agent("Tester", model).run("go")


@each_sdk
def test_the_sdk_is_not_imported_before_the_first_request(extra: str, module: str, name: str) -> None:
    options = {"api_key": "k"} | ({"region": "us-east-1"} if extra == "bedrock" else {})
    program = (
        f"import sys; from andon.models.{extra} import {name}\n"
        f"{name}('x', **{options}).check_setup()\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {module, "botocore", "aiohttp", "httpx2", "pydantic", "anyio"}


# -- shared and closed ------------------------------------------------------------------------------------------------


@each_provider
def test_models_with_the_same_settings_share_a_client(provider: Provider) -> None:
    async def main() -> None:
        with provider.serve([FINE]) as fake:
            one, other = provider.model(fake), provider.model(fake)
            for each in (one, other):
                await ask(Agent("Tester", each))
            assert [each.connection for each in fake.served] == [1, 1]
            await close(one)
            await ask(Agent("Tester", other))
            assert fake.served[-1].connection == 1, "it was closed under another model"
            await close(other)
            await fake.wait_until_async(lambda: fake.open_connections == 0)
            await ask(Agent("Tester", one))  # opened anew
            await close(one)
            await close(one)

    async def close(model: Any) -> None:
        await model.aclose()

    play(main)


@each_provider
def test_many_loops_leave_nothing_behind(provider: Provider) -> None:
    with provider.serve([FINE]) as fake:
        agent = Agent("Tester", provider.model(fake))
        clients = clients_of(agent.model)
        asyncio.run(ask(agent))
        fake.wait_until(lambda: fake.open_connections == 0)
        before, loops = open_files(), clients.loops
        for _ in range(10):
            asyncio.run(ask(agent))
        fake.wait_until(lambda: fake.open_connections == 0)
        gc.collect()
        eventually(lambda: open_files() <= before)  # the fake closes its end of a connection a moment later
        assert clients.loops == loops


@each_provider
def test_several_loops_and_threads_at_once(provider: Provider) -> None:
    with provider.serve([FINE]) as fake:
        agent = Agent("Tester", provider.model(fake))

        async def several() -> None:
            await asyncio.gather(*(ask(agent, session_id=os.urandom(8).hex()) for _ in range(5)))

        def blocking() -> None:
            for _ in range(5):
                assert agent.run("go", session_id=os.urandom(8).hex()).content == "Fine."

        workers = [Worker(lambda: asyncio.run(several())) for _ in range(3)] + [Worker(blocking) for _ in range(3)]
        for worker in workers:
            worker.done()
        assert len(fake.served) == 30


# -- cancels ----------------------------------------------------------------------------------------------------------


@each_provider
def test_a_cancel_from_another_thread_reaches_the_provider(provider: Provider) -> None:
    with provider.serve([[text("Half "), stall()], FINE]) as fake:
        agent = Agent("Tester", provider.model(fake))
        worker = threading.Thread(target=lambda: (fake.wait_for(at="stalled"), agent.cancel()))
        worker.start()
        assert agent.run("go").status is RunStatus.cancelled
        worker.join()
        assert fake.wait_for(at="left").sent_after_left == 0
        assert agent.run("and now?").content == "Fine."


def all_wait(fake: AnyFake, first: int) -> bool:
    return sum(each.state in ("silent", "stalled") for each in fake.served[first:]) == 50


@each_provider
def test_a_thousand_cancelled_streams_on_one_client(provider: Provider) -> None:
    """50 at a time: silent, in thinking, in text, in a call."""

    async def main() -> None:
        answers: list[Answer] = [
            [silence()],
            [reasoning("Hm."), stall()],
            [text("Half "), stall()],
            [call("search", {"query": "the tall ships of the sea"}, pieces=4, send=2), stall()],
        ]
        turns = iter(range(10**9))

        def script(body: dict[str, Any]) -> Any:
            return FINE if "fine" in str(body) else answers[next(turns) % 4]

        with provider.serve(script) as fake:
            agent = Agent("Tester", provider.model(fake))
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
            assert len(fake.served) == 1_001
            await fake.wait_until_async(lambda: fake.open_connections <= 1)
            assert open_files() <= before + 1
            assert (await agent.invoke_async("fine")).content == "Fine."
            assert [each.error for each in fake.served if each.error] == []

    play(main)
