# SPDX-License-Identifier: Apache-2.0
"""Gemini's clients: shared, one per event loop, closed with it; Vertex; and the private names of the SDK."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from typing import Any

import google.auth.credentials
import httpx2
import pytest
from google import genai
from google.genai import types

from andon import Agent, RunStatus
from andon.errors import AuthenticationError, ConfigurationError
from andon.models.google import Gemini, endpoint, wire
from andon.models.google.clients import Settings, secrets_of
from andon.testing.providers import FakeGemini, stall, text
from tests.support import play
from tests.support.gemini import ID, model, public_way, way

__all__ = ["way"]

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


async def ask(agent: Agent, **options: Any) -> None:
    result = await agent.invoke_async("go", **options)
    assert result.status is RunStatus.completed, result.error


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


KEPT: list[genai.Client] = []
"""Clients that no test closes: when they are garbage, the SDK starts a task on the loop that runs then."""


def client_of(**options: Any) -> genai.Client:
    KEPT.append(genai.Client(**options))
    return KEPT[-1]


# -- the SDK ----------------------------------------------------------------------------------------------------------


def test_the_private_names_are_there() -> None:
    """If this fails, the SDK has changed: `wire` must be adapted. Until then, requests go the public, slower way."""
    client = client_of(api_key="key", http_options=types.HttpOptions(base_url="http://127.0.0.1:9"))
    api = wire.find_wire(client)
    assert api is not None
    request = api._build_request("post", wire.path_of(ID, vertex=False), {})
    assert request.url == f"http://127.0.0.1:9/v1/models/{ID}:streamGenerateContent?alt=sse"
    assert request.headers["x-goog-api-key"] == "key"
    assert secrets_of(client, Settings(), {}).hide("<the-key> key") == "<the-key> key"  # too short to be one


@pytest.mark.parametrize("name", ["_build_request", "_async_request"])
def test_without_them_a_log_line_says_so_once(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(endpoint, "_told", [])
    found = wire.find_wire
    monkeypatch.setattr(wire, "find_wire", lambda client: found(_Without(client, name)))
    with FakeGemini([[text("Fine.")]]) as fake, caplog.at_level(logging.WARNING, "andon"):
        for _ in range(2):
            assert Agent("Tester", model(fake)).run("go").content == "Fine."
    assert len([each for each in caplog.records if "public interface" in each.message]) == 1


class _Without:
    """A client whose inner part lacks one of its methods."""

    def __init__(self, client: Any, name: str) -> None:
        self._api_client = type("Inner", (), {"_build_request": print, "_async_request": print, name: None})()


def test_both_ways_send_the_same() -> None:
    bodies = []
    for public in (False, True):
        with FakeGemini() as fake:
            agent = Agent("Tester", model(fake, temperature=0.5, labels={"a": "b"}), instructions="Be brief.")
            if public:
                with public_way():
                    agent.run("go")
            else:
                agent.run("go")
            bodies.append(fake.requests[0])
    assert bodies[0] == bodies[1]


@pytest.mark.parametrize(
    ("id", "vertex", "path"),
    [
        (ID, False, f"models/{ID}"),
        ("models/x", False, "models/x"),
        ("tunedModels/x", False, "tunedModels/x"),
        (ID, True, f"publishers/google/models/{ID}"),
        ("acme/x", True, "publishers/acme/models/x"),
        ("projects/p/locations/l/endpoints/1", True, "projects/p/locations/l/endpoints/1"),
    ],
)
def test_paths(id: str, vertex: bool, path: str) -> None:
    assert wire.path_of(id, vertex=vertex) == f"{path}:streamGenerateContent?alt=sse"


# -- shared and closed ------------------------------------------------------------------------------------------------


def test_a_closed_client_leaves_no_task_that_fails() -> None:
    """The SDK's client starts a task of its own when it is garbage."""

    async def main() -> None:
        problems: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
        with FakeGemini([[text("Fine.")]]) as fake:
            mine = model(fake)
            await ask(Agent("Tester", mine))
            await mine.aclose()
            gc.collect()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert problems == []

    play(main)


def test_a_client_of_yours_is_used_as_it_is_and_stays_open(way: str) -> None:
    async def main() -> None:
        with FakeGemini([[text("Fine.")]]) as fake:
            http = httpx2.AsyncClient()
            options = types.HttpOptions(base_url=fake.base_url, httpx_async_client=http)
            client = client_of(api_key=fake.api_key, http_options=options)
            mine = Gemini(ID, client=client)
            await ask(Agent("Tester", mine))
            await mine.aclose()
            assert not http.is_closed
            await ask(Agent("Tester", mine))
            assert [each.connection for each in fake.served] == [1, 1]
            await http.aclose()

    play(main)


def test_a_client_of_yours_on_aiohttp() -> None:
    import aiohttp

    async def main() -> None:
        with FakeGemini([[text("Fine.")], [text("Half "), stall()], [text("Fine.")]]) as fake:
            async with aiohttp.ClientSession() as session:
                options = types.HttpOptions(base_url=fake.base_url, aiohttp_client=session)
                client = client_of(api_key=fake.api_key, http_options=options)
                agent = Agent("Tester", Gemini(ID, client=client))
                await ask(agent)
                async with agent.start("go") as run:
                    await fake.wait_for_async(1, at="stalled")
                    run.cancel()
                await fake.wait_for_async(1, at="left")
                await ask(agent)
                await client.aio.aclose()

    play(main)


def test_the_http_client_can_be_chosen() -> None:
    async def main() -> None:
        made: list[httpx2.AsyncClient] = []

        def make() -> httpx2.AsyncClient:
            made.append(httpx2.AsyncClient(headers={"x-proxy": "mine"}))
            return made[-1]

        with FakeGemini([[text("Fine.")]]) as fake:
            mine = model(fake, http_client=make)
            await ask(Agent("Tester", mine))
            await ask(Agent("Tester", mine))
            assert fake.served[0].headers["x-proxy"] == "mine"
            await mine.aclose()
            assert len(made) == 1
            assert made[0].is_closed

    play(main)


def test_contradictions() -> None:
    with pytest.raises(ConfigurationError, match="client="):
        Gemini(ID, client=object(), base_url="http://localhost")
    with pytest.raises(ConfigurationError, match="enterprise="):
        Gemini(ID, vertex=True, enterprise=False)


# -- Vertex and the environment ---------------------------------------------------------------------------------------


class Credentials(google.auth.credentials.Credentials):
    """Fake ones, whose token is the fake's key."""

    def __init__(self, token: str, error: Exception | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made, self.error = token, error

    def refresh(self, request: Any) -> None:
        if self.error is not None:
            raise self.error
        self.token = self.made


def test_vertex_with_credentials(way: str) -> None:
    with FakeGemini([[text("Fine.")]]) as fake:
        mine = Gemini(
            ID, base_url=fake.base_url, vertex=True, project="p", location="l", credentials=Credentials(fake.api_key)
        )
        result = Agent("Tester", mine).run("go")
        assert result.content == "Fine.", result.error
        assert fake.served[0].headers["authorization"] == f"Bearer {fake.api_key}"


def test_vertex_with_the_wrong_token() -> None:
    secret = "ya29.a-secret-token"
    with FakeGemini() as fake:
        mine = Gemini(ID, base_url=fake.base_url, enterprise=True, project="p", credentials=Credentials(secret))
        error = Agent("Tester", mine).run("go").error
        assert type(error) is AuthenticationError, error
        assert secret not in str(error)


def test_vertex_with_credentials_that_can_not_be_used() -> None:
    with FakeGemini() as fake:
        broken = Credentials("", google.auth.exceptions.RefreshError("revoked"))  # type: ignore[no-untyped-call]
        mine = Gemini(ID, base_url=fake.base_url, vertex=True, project="p", credentials=broken)
        error = Agent("Tester", mine).run("go").error
        assert type(error) is AuthenticationError, error
        assert "gcloud auth application-default login" in str(error)
        assert "revoked" in str(error)
        assert fake.served == []


def test_vertex_with_a_key() -> None:
    with FakeGemini([[text("Fine.")]]) as fake:
        result = Agent("Tester", Gemini(ID, fake.api_key, fake.base_url, vertex=True)).run("go")
        assert result.content == "Fine.", result.error
        assert fake.served[0].headers["x-goog-api-key"] == fake.api_key


VARIABLES = {
    "GOOGLE_API_KEY": "first",
    "GEMINI_API_KEY": "second",
    "GOOGLE_GEMINI_BASE_URL": "http://gemini",
    "GOOGLE_VERTEX_BASE_URL": "http://vertex",
    "GOOGLE_CLOUD_PROJECT": "project",
    "GOOGLE_CLOUD_LOCATION": "location",
    "GOOGLE_GENAI_API_VERSION": "beta",
}


@pytest.mark.parametrize(
    ("more", "without", "given", "resolved"),
    [
        ({}, "", Settings(), Settings("first", "http://gemini", False, api_version="v1beta")),
        ({}, "GOOGLE_API_KEY", Settings(), Settings("second", "http://gemini", False, api_version="v1beta")),
        ({}, "", Settings("k", "http://x", api_version="v2"), Settings("k", "http://x", False, api_version="v2")),
        (
            {"GOOGLE_GENAI_USE_VERTEXAI": "true"},
            "",
            Settings(),
            Settings(None, "http://vertex", True, "project", "location", None, "v1beta1"),
        ),
        (
            {"GOOGLE_GENAI_USE_ENTERPRISE": "1", "GOOGLE_GENAI_USE_VERTEXAI": "false"},
            "GOOGLE_CLOUD_LOCATION",
            Settings(project="mine"),
            Settings(None, "http://vertex", True, "mine", "global", None, "v1beta1"),
        ),
        (
            {"GOOGLE_GENAI_USE_ENTERPRISE": "0", "GOOGLE_GENAI_USE_VERTEXAI": "true"},
            "",
            Settings(),
            Settings("first", "http://gemini", False, api_version="v1beta"),
        ),
        (
            {"GOOGLE_GENAI_USE_VERTEXAI": "1"},
            "GOOGLE_CLOUD_PROJECT",
            Settings(),
            Settings("first", "http://vertex", True, api_version="v1beta1"),
        ),
        ({}, "", Settings("k", vertex=True), Settings("k", "http://vertex", True, api_version="v1beta1")),
    ],
)
def test_the_environment(
    more: dict[str, str], without: str, given: Settings, resolved: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (VARIABLES | more).items():
        monkeypatch.setenv(name, value)
    if without:
        monkeypatch.delenv(without)
    assert given.resolved() == resolved
