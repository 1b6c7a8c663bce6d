# SPDX-License-Identifier: Apache-2.0
"""`create_app(authenticate=…)`: a program's own function says who asks; what it may say, and what if it fails."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi import FastAPI, HTTPException
from starlette.requests import HTTPConnection
from starlette.testclient import TestClient
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from andon import Agent, ConfigurationError
from andon.models.scripted import ScriptedModel, Stall
from andon.server import User, bearer_token, create_app
from andon.server.authentication import Authenticate
from tests.server.live import Live, serving, serving_app
from tests.server.people import ROUTES, TOKENS, at, bearer
from tests.support import HANG, Flag, Worker

RUNS = "/agents/helper/runs"
PAGE = "https://page.example"
USERS: dict[str, User | str | None] = {"ada": "ada", "bob": User("bob"), "olga": User("olga", admin=True), "none": None}


async def by_cookie(connection: HTTPConnection) -> User | str | None:
    return USERS.get(connection.cookies.get("session", ""))


def cookie(name: str) -> dict[str, str]:
    return {"cookie": f"session={name}"}


@contextmanager
def asked(authenticate: Authenticate, *turns: Any, **settings: Any) -> Iterator[Live]:
    with serving(Agent("Helper", ScriptedModel(*turns, then="OK.")), authenticate=authenticate, **settings) as live:
        yield live


# -- who asks ---------------------------------------------------------------------------------------------------------


def test_a_user_sees_what_is_theirs_and_an_admin_all() -> None:
    with asked(by_cookie) as live:

        def ask(name: str, method: str, path: str, **fields: str) -> Any:
            return live.client.request(method, path, headers=cookie(name), data=fields or None)

        started = ask("ada", "POST", RUNS, message="Hi", run_id="r1", stream="false")
        assert (started.status_code, started.json()["user_id"]) == (200, "ada")
        assert [ask(name, "GET", f"{RUNS}/r1").status_code for name in ("ada", "bob", "olga")] == [200, 404, 200]
        assert [ask(name, "GET", "/metrics").status_code for name in ("ada", "bob", "olga")] == [403, 403, 200]
        assert ask("bob", "POST", RUNS, message="Hi", user_id="ada").status_code == 403


def test_an_admin_has_a_name_on_receipts() -> None:
    with asked(by_cookie, Stall()) as live:
        live.client.post(
            RUNS, data={"message": "Hi", "run_id": "r1", "background": "true", "stream": "false"}, headers=cookie("ada")
        )
        gone = live.client.post(f"{RUNS}/r1/cancel?wait=30", headers=cookie("olga"))
        assert gone.json()["receipt"]["by"] == "olga"


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_without_a_token_no_route_is_reached(method: str, path: str) -> None:
    app = create_app(Agent("Helper", ScriptedModel()), authenticate=by_cookie)
    answer = TestClient(app).request(method, at(path, agent_id="helper"), headers=cookie("none"))
    open_to_all = path in ("/health", "/ready")
    assert answer.status_code == (200 if open_to_all else 401)


def test_probes_do_not_ask_who_they_are() -> None:
    async def never(connection: HTTPConnection) -> str:
        raise AssertionError("who asks for liveness is nobody's business")

    with asked(never) as live:
        assert live.client.get("/health").status_code == 200


def test_tokens_go_first_and_everything_else_is_asked_for() -> None:
    seen = []

    async def by_bearer(connection: HTTPConnection) -> str | None:
        seen.append(bearer_token(connection))
        return "carol" if seen[-1] == "jwt" else None

    with asked(by_bearer, tokens=TOKENS) as live:
        assert live.client.get("/metrics", headers=bearer("root")).status_code == 200
        assert seen == []
        assert live.client.get("/agents", headers={"authorization": "Bearer jwt"}).status_code == 200
        assert live.client.get("/agents", headers={"authorization": "Bearer other"}).status_code == 401
        assert live.client.get("/agents").status_code == 401
        assert seen == ["jwt", "other", None]


def test_a_live_connection_is_asked_about_too() -> None:
    with asked(by_cookie) as live:
        live.client.post("/apps/helper/users/ada/sessions/s1", headers=cookie("ada"))
        url = f"ws://127.0.0.1:{live.port}/run_live?app_name=helper&user_id=ada&session_id=s1"
        for headers, status in (({"Cookie": "session=none"}, 401), ({"Cookie": "session=ada", "Origin": PAGE}, 403)):
            with pytest.raises(InvalidStatus) as refused, connect(url, proxy=None, additional_headers=headers):
                pass
            assert refused.value.response.status_code == status
        with connect(url, proxy=None, additional_headers={"Cookie": "session=ada"}) as socket:
            socket.send(json.dumps({"content": {"parts": [{"text": "Hi"}]}}))
            assert "OK." in str(socket.recv(timeout=HANG))


def test_mounted_it_sees_what_the_outer_app_has_left() -> None:
    async def by_middleware(connection: HTTPConnection) -> str | None:
        user: str | None = connection.scope.get("signed_in")
        return user

    outer = FastAPI()
    outer.mount("/ai", create_app(Agent("Helper", ScriptedModel()), authenticate=by_middleware))

    class SignIn:
        def __init__(self, app: Any) -> None:
            self._app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await self._app({**scope, "signed_in": "ada"} if scope["type"] == "http" else scope, receive, send)

    outer.add_middleware(SignIn)
    with serving_app(outer) as live:
        answer = live.client.post(f"/ai{RUNS}", data={"message": "Hi", "stream": "false"})
        assert answer.json()["user_id"] == "ada"


# -- pages ------------------------------------------------------------------------------------------------------------


def test_a_foreign_page_changes_nothing_with_a_users_cookie() -> None:
    with asked(by_cookie) as live:
        form = {"message": "Hi", "stream": "false"}
        assert live.client.post(RUNS, data=form, headers=cookie("ada")).status_code == 200
        for origin in (PAGE, "null"):
            assert live.client.post(RUNS, data=form, headers={**cookie("ada"), "origin": origin}).status_code == 403
        read = live.client.get("/runs", headers={**cookie("ada"), "origin": PAGE})
        assert "access-control-allow-origin" not in read.headers  # so the page can't read it


def test_a_page_that_was_allowed_may_bring_its_cookie() -> None:
    with asked(by_cookie, cors_origins=[PAGE]) as live:
        answer = live.client.post(RUNS, data={"message": "Hi"}, headers={**cookie("ada"), "origin": PAGE})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["access-control-allow-credentials"] == "true"


def test_not_every_page_can_be_allowed() -> None:
    with pytest.raises(ConfigurationError, match="cookie"):
        create_app(Agent("Helper", ScriptedModel()), tokens="t", authenticate=by_cookie, cors_origins=["*"])


# -- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (7, "returned an object of type int: return a User"),
        ({"sub": "ada"}, "returned an object of type dict"),
        ("", "no text, or empty"),
        (User(None), "no text, or empty"),  # type: ignore[arg-type]
        ("a\nb", "control character"),
        ("a" * 300, "longer than"),
        (RuntimeError("the password is geheim"), "RuntimeError: the password is geheim"),
        (asyncio.CancelledError(), "CancelledError"),
        (SystemExit(3), "wants to end the process"),
        (BaseExceptionGroup("both", [asyncio.CancelledError()]), "both"),
        (User("ada", admin="false"), "admin is of type str"),  # type: ignore[arg-type]
    ],
)
def test_what_means_nothing_is_a_500_that_tells_nothing(
    found: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(connection: HTTPConnection) -> Any:
        if isinstance(found, BaseException):
            raise found
        return found

    with asked(broken) as live:
        answer = live.client.get("/agents")
        assert (answer.status_code, answer.json()) == (
            500,
            {"detail": "the server could not authenticate the request; its log says why"},
        )
    assert words in caplog.text


class ByCookie:
    async def __call__(self, connection: HTTPConnection) -> User | str | None:
        return await by_cookie(connection)


@pytest.mark.parametrize(
    "ask",
    [
        lambda connection: connection.cookies.get("session"),
        lambda connection: by_cookie(connection),
        functools.partial(by_cookie),
        ByCookie(),
    ],
    ids=["plain", "wrapped", "partial", "object"],
)
def test_whatever_can_be_called_can_be_asked(ask: Any) -> None:
    """A function that has nothing to wait for need not be async, and one that only wraps an async one isn't."""
    with asked(ask) as live:
        assert live.client.get("/agents").status_code == 401
        assert live.client.get("/agents", headers={"cookie": "session=ada"}).status_code == 200


def test_a_plain_function_that_wants_to_end_the_process_does_not(caplog: pytest.LogCaptureFixture) -> None:
    with asked(lambda connection: sys.exit(3)) as live:
        assert live.client.get("/agents").status_code == 500
    assert "wants to end the process" in caplog.text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"authenticate": "ada"}, "give a function of the request"),
        ({"authenticate": by_cookie, "authenticate_seconds": 0}, "more than 0"),
    ],
)
def test_what_can_not_be_asked_is_refused_at_once(settings: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        create_app(Agent("Helper", ScriptedModel()), **settings)


@pytest.mark.parametrize(
    "error",
    [
        HTTPException(403, "your account is closed"),
        HTTPException(429, "slow down", {"retry-after": "9"}),
        HTTPException(403, {"code": "closed", "since": [2026, None]}),
    ],
)
def test_what_the_function_wants_to_say_is_said(error: HTTPException) -> None:
    async def refusing(connection: HTTPConnection) -> None:
        raise error

    with asked(refusing) as live:
        answer = live.client.get("/agents")
        assert (answer.status_code, answer.json()["detail"]) == (error.status_code, error.detail)
        assert answer.headers.get("retry-after") == (error.headers or {}).get("retry-after")


def test_what_json_can_not_say_is_said_as_text() -> None:
    async def refusing(connection: HTTPConnection) -> None:
        raise HTTPException(403, {"at": {1, 2}})

    with asked(refusing) as live:
        assert live.client.get("/agents").json() == {"detail": "{'at': {1, 2}}"}


def test_a_star_is_refused_in_the_same_words_with_tokens_and_without() -> None:
    for tokens in (None, "secret"):
        with pytest.raises(ConfigurationError, match="name the pages that may ask"):
            create_app(Agent("Helper", ScriptedModel()), authenticate=by_cookie, tokens=tokens, cors_origins=["*"])


@pytest.mark.parametrize("stubborn", [False, True])
def test_it_is_not_waited_for_for_ever(stubborn: bool, caplog: pytest.LogCaptureFixture) -> None:
    cut, release = Flag(), Flag()

    async def silent(connection: HTTPConnection) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cut.set()
            if stubborn:
                await release.arrived()
                raise RuntimeError("too late to be told to anybody")
        return "ada"

    with asked(silent, authenticate_seconds=0.05) as live:
        answer = live.client.get("/agents")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "in time" in answer.json()["detail"]
        cut.wait()
        release.set()
        assert live.client.get("/health").status_code == 200
    assert "authenticate has not answered" in caplog.text
    assert "too late" not in caplog.text


def test_a_server_that_goes_down_cuts_it() -> None:
    begun, cut = Flag(), Flag()

    async def silent(connection: HTTPConnection) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cut.set()
        return "ada"

    app = create_app(Agent("Helper", ScriptedModel()), authenticate=silent, authenticate_seconds=HANG)

    async def main() -> None:
        scope = {"type": "http", "method": "GET", "path": "/agents", "headers": [], "query_string": b"", "app": app}
        request = asyncio.ensure_future(app(scope, _nothing, _nothing))
        await begun.arrived()
        request.cancel()
        await asyncio.wait([request])
        assert request.cancelled()
        await cut.arrived()

    asyncio.run(main())


async def _nothing(*message: Any) -> Any:
    await asyncio.Event().wait()


def test_one_that_waits_does_not_hold_others_up() -> None:
    begun, release = Flag(), Flag()

    async def slow_for_ada(connection: HTTPConnection) -> str | None:
        if connection.cookies.get("session") == "ada":
            begun.set()
            await release.arrived()
        return connection.cookies.get("session")

    with asked(slow_for_ada, authenticate_seconds=HANG) as live, live.another_client() as other:
        answers: list[int] = []
        waiting = Worker(lambda: answers.append(other.get("/agents", headers=cookie("ada")).status_code))
        begun.wait()
        assert live.client.get("/agents", headers=cookie("bob")).status_code == 200
        release.set()
        waiting.done()
        assert answers == [200]
