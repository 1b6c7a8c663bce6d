# SPDX-License-Identifier: Apache-2.0
"""The app inside another app: without its lifespan, which a mounted app doesn't get, and with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response

from andon import Agent, RunStatus
from andon.core.run.handle import local_run
from andon.core.run.waits import wait_settled_blocking
from andon.models.scripted import ScriptedModel, Stall
from andon.server import create_app
from andon.server.sse import EventResponse
from andon.testing import probe
from tests.server.live import NEVER, read_until, serving_app
from tests.support import Silence, eventually, play

RUNS = "/inner/agents/helper/runs"


def test_mounted_it_works_as_it_is() -> None:
    outer = FastAPI()
    agent = Agent("Helper", ScriptedModel("Hello!", then=Stall()))
    outer.mount("/inner", create_app(agent, heartbeat=NEVER))
    with serving_app(outer) as live:
        with live.stream(RUNS, message="Hi", run_id="r1") as stream:
            assert list(stream)[-1].event == "RunCompleted"
        with live.watch(f"{RUNS}/r1/events", 1) as stream:
            assert [frame.event for frame in stream] == ["RunContent", "RunCompleted"]
        with live.stream(RUNS, message="Hi", run_id="r2") as stream:
            next(stream)
        eventually(lambda: live.run_of(agent, "r2").status is RunStatus.cancelled)
        assert live.client.get("/inner/agents/nobody").json()["detail"]
        assert live.client.get("/agents").status_code == 404
        live.post(RUNS, message="Hi", run_id="r3", background="true", stream="false")
    # The loop's end ended it.
    assert live.run_of(agent, "r3").status is RunStatus.cancelled


@pytest.mark.parametrize("stream", ["true", "false"])
def test_a_leaving_client_is_noticed_through_middleware_of_the_usual_kind(stream: str) -> None:
    outer = FastAPI()
    answered: list[int | str] = []

    @outer.middleware("http")
    async def pass_on(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        try:
            response = await call_next(request)
        except RuntimeError as error:  # it had waited for an answer
            answered.append(str(error))
            raise
        answered.append(response.status_code)
        return response

    silence = Silence()
    agent = Agent("Helper", ScriptedModel(silence))
    outer.mount("/inner", create_app(agent, heartbeat=NEVER))
    with serving_app(outer) as live:
        bare = live.connect()
        live.send(bare, RUNS, message="Hi", run_id="r1", stream=stream)
        silence.reached.wait()
        bare.close()
        run = live.run_of(agent, "r1")
        assert wait_settled_blocking(local_run(run), 60)
        receipt = probe(run).result.receipt
        assert receipt is not None
        assert receipt.cause == "disconnect"
        eventually(lambda: answered != [])
    assert answered == [200 if stream == "true" else 499]


def test_a_response_begins_even_if_the_client_had_left_before() -> None:
    """Whoever is in between has to be told something; what it does with it is seen above."""

    async def main() -> None:
        sent: list[str] = []

        async def receive() -> dict[str, str]:
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            await asyncio.sleep(0)  # as a middleware's does, which hands it on to another task
            sent.append(message["type"])

        agent = Agent("Helper", ScriptedModel(then=Stall()))
        async with agent.start("Hi") as run:
            response = EventResponse(run.events(), lambda events: b"", heartbeat=NEVER, leave=local_run(run).cancel_for)
            await response({"type": "http"}, receive, send)
            assert (await run.result()).status is RunStatus.cancelled
        assert sent[0] == "http.response.start"

    play(main)


def test_with_its_lifespan_it_ends_in_order() -> None:
    agent = Agent("Helper", ScriptedModel(then=Stall()))
    inner = create_app(agent, heartbeat=NEVER, drain=0)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with inner.router.lifespan_context(inner):
            yield

    outer = FastAPI(lifespan=lifespan)
    outer.mount("/inner", inner)
    for run_id in ("r1", "r2"):  # and it can be started again
        with serving_app(outer) as live:
            assert live.client.get("/inner/ready").status_code == 200
            live.post(RUNS, message="Hi", run_id=run_id, background="true", stream="false")
        receipt = probe(live.run_of(agent, run_id)).result.receipt
        assert receipt is not None
        assert receipt.cause == "shutdown"
        assert inner.state.andon.draining


def test_a_server_that_gives_up_on_its_requests_ends_their_runs() -> None:
    """As uvicorn does when its time for a graceful end is over."""
    agent = Agent("Helper", ScriptedModel(then=Stall()))
    with (
        serving_app(create_app(agent, heartbeat=NEVER, drain=0), timeout_graceful_shutdown=0) as live,
        live.connect() as bare,
    ):
        live.send(bare, "/agents/helper/runs", message="Hi", run_id="r1")
        read_until(bare, b"RunStarted")
        live.server.down.set()
        assert probe(live.run_of(agent, "r1")).settled_blocking(60)
        receipt = probe(live.run_of(agent, "r1")).result.receipt
        assert receipt is not None
        assert receipt.cause == "shutdown"
