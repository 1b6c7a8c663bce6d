# SPDX-License-Identifier: Apache-2.0
"""A provider made of the common parts alone: what CONTRIBUTING.md says that a new one needs, and no more.

Its "SDK" is the HTTP library, and it talks to the fake of Chat Completions.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Any, NamedTuple

import httpx2
import msgspec
import pytest

from andon import Agent, Retry, RunStatus
from andon.errors import (
    BadRequestError,
    MissingExtraError,
    ModelConnectionError,
    ModelError,
    ModelStreamError,
    SetupError,
)
from andon.models.base import ModelRequest, Sink
from andon.models.common.clients import ClientCache
from andon.models.common.errors import UNREADABLE, ErrorTable, mended, of_connection, report, retry_after, unreachable
from andon.models.common.http import client_options
from andon.models.common.sdk import Sdk
from andon.models.common.secrets import Secrets, in_client
from andon.models.common.setup import ApiKey, check_id, check_key, check_url, from_environment
from andon.models.common.stream import read_sse
from andon.testing.providers import FakeChat, cut, end, fail, raw, stall, text
from tests.support import play

SDK = Sdk("Acme", module="httpx2", package="httpx2", extra="acme")
TABLE = ErrorTable(permanent=frozenset({"insufficient_quota"}))


class Settings(NamedTuple):
    api_key: ApiKey | None = None
    base_url: str | None = None

    def resolved(self) -> Settings:
        key = check_key(self.api_key or from_environment("ACME_KEY"), "Acme", "ACME_KEY")
        return Settings(key, self.base_url or "https://acme.example/v1")


def _open(settings: Settings) -> httpx2.AsyncClient:
    headers = {"authorization": f"Bearer {settings.api_key}"}
    client: httpx2.AsyncClient = SDK.load().AsyncClient(base_url=settings.base_url, headers=headers, **client_options())
    return client


CLIENTS = ClientCache(_open, httpx2.AsyncClient.aclose)


class Answer:
    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.finished = False

    def take(self, events: list[bytes]) -> None:
        for event in events:
            if event == b"[DONE]":
                self.finished = True
                return
            try:
                chunk = msgspec.json.decode(event)
            except UNREADABLE as error:
                self.take([mended(event, error)])
                continue
            if "error" in chunk:
                raise TABLE.in_stream(chunk["error"])
            for choice in chunk["choices"]:
                self._sink.text(choice["delta"].get("content") or "")

    def end(self) -> None:
        pass


class Acme:
    provider = "Acme"

    def __init__(self, id: str, api_key: ApiKey | None = None, base_url: str | None = None) -> None:
        self.id = check_id(id, 'Acme("a-1")')
        self._settings = Settings(api_key, base_url)

    def check_setup(self) -> None:
        SDK.check()
        check_url(self._settings.resolved().base_url)

    async def aclose(self) -> None:
        await CLIENTS.release(self._settings.resolved(), self)

    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        client = await CLIENTS.get(self._settings.resolved(), self)
        await report(
            self._send(client, request, Answer(sink)),
            self._translate,
            lambda: Secrets(in_client(client, keys=[], headers=[client.headers])),
        )

    async def _send(self, client: httpx2.AsyncClient, request: ModelRequest, answer: Answer) -> None:
        messages = [{"role": each.role, "content": each.text} for each in request.messages]
        body = {"model": self.id, "messages": messages, "stream": True}
        sent = client.build_request("POST", "chat/completions", json=body)
        async with contextlib.aclosing(await client.send(sent, stream=True)) as response:
            if response.status_code != 200:
                await response.aread()
                response.raise_for_status()
            await read_sse(response, answer, TABLE)

    @staticmethod
    def _translate(error: Exception, secrets: Secrets) -> ModelError | None:
        if isinstance(error, httpx2.HTTPStatusError):
            said = error.response.json()["error"]
            wait = retry_after(error.response.headers)
            code = said["code"]
            status = error.response.status_code
            return TABLE.of_status(status, said["message"], code=code, retry_after=wait, secrets=secrets)
        if isinstance(error, httpx2.ConnectError):
            return unreachable(error, secrets)
        return of_connection(error, secrets)


def agent(fake: FakeChat, **options: Any) -> Agent:
    return Agent("Tester", Acme("a-1", fake.api_key, fake.base_url), **options)


def test_it_answers_and_a_failure_that_may_pass_is_tried_again() -> None:
    first = [fail(503, "Not now.", headers={"retry-after-ms": "1"})]
    with FakeChat([first, [raw(rb'data: {"choices": [{"delta": {"content": "\ud83d!"}}]}' + b"\n\n")]]) as fake:
        result = agent(fake).run("go")
        assert result.content == "\ufffd!", result.error
        assert len(fake.served) == 2


def test_a_cancel_closes_the_connection_and_the_next_prompt_is_answered() -> None:
    async def main() -> None:
        with FakeChat([[text("Half "), stall()], [text("Fine.")]]) as fake:
            tester = agent(fake)
            async with tester.start("go") as run:
                await fake.wait_for_async(at="stalled")
                run.cancel()
                assert (await run.result()).status is RunStatus.cancelled
            assert (await fake.wait_for_async(at="left")).sent_after_left == 0
            assert (await tester.invoke_async("and now?")).content == "Fine."

    play(main)


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        ([fail(400, "Bad sk-the-key!")], BadRequestError, "400: Bad ***!"),
        ([text("Half "), fail(500, "Broke.")], ModelError, "the provider reported an error: Broke."),
        ([text("Half "), end()], ModelStreamError, "ended early"),
        ([text("Half "), cut()], ModelConnectionError, "the connection to the provider broke"),
        ([text("Half "), raw(b"data: {sk-the-key\n\n")], ModelStreamError, "can't be read"),
        ([raw(b"<p>sk-the-key", content_type="text/html")], ModelStreamError, "<p>***; is base_url right?"),
    ],
)
def test_its_errors_are_ours(answer: Any, kind: type[ModelError], words: str) -> None:
    with FakeChat([answer], api_key="sk-the-key") as fake:
        error = agent(fake, retry=Retry(attempts=1)).run("go").error
    assert type(error) is kind
    assert words in str(error)
    assert "sk-the-key" not in str(error)


def test_a_server_that_is_not_there() -> None:
    with FakeChat() as fake:
        tester = agent(fake, retry=Retry(attempts=1))
    assert "can't be reached" in str(tester.run("go").error)


def test_it_is_closed_by_the_last_model_that_uses_it() -> None:
    async def main() -> None:
        with FakeChat() as fake:
            model = Acme("a-1", fake.api_key, fake.base_url)
            await Agent("Tester", model).invoke_async("go")
            assert fake.open_connections == 1
            await model.aclose()
            await fake.wait_until_async(lambda: fake.open_connections == 0)

    play(main)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACME_KEY", raising=False)
    with pytest.raises(SetupError, match="set ACME_KEY, or pass api_key="):
        Agent("Tester", Acme("a-1")).run("go")
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(MissingExtraError, match=r'pip install "andon\[acme\]"'):
        Agent("Tester", Acme("a-1", "key")).run("go")


def test_its_connections_end_with_the_loop() -> None:
    with FakeChat() as fake:
        tester = agent(fake)

        async def ask() -> None:
            assert (await tester.invoke_async("go")).status is RunStatus.completed

        asyncio.run(ask())
        fake.wait_until(lambda: fake.open_connections == 0)
