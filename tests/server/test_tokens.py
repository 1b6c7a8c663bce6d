# SPDX-License-Identifier: Apache-2.0
"""Tokens: what has none, or a wrong one, reaches no route; and what a token may be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from websockets.sync.client import connect

from andon import Agent, ConfigurationError
from andon.models.scripted import ScriptedModel, Stall
from andon.server import Token, create_app
from andon.server.access import Keyring
from tests.server.live import Live, serving, serving_app
from tests.server.people import OPEN, ROUTES, SECRETS, TOKENS, at, bearer, client_of, guarded, refusal_of
from tests.support import HANG

RUNS = "/agents/helper/runs"


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with guarded(Agent("Helper", ScriptedModel(then=Stall()))) as live:
        yield live


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("header", [None, "Bearer wrong", f"Basic {SECRETS['root']}", "Bearer", "Bearer é"])
def test_without_a_good_token_only_liveness_is_told(live: Live, method: str, path: str, header: str | None) -> None:
    headers = {} if header is None else {b"authorization": header.encode()}
    response = live.client.request(method, at(path, agent_id="helper", app="helper"), headers=headers)
    if (method, path) in OPEN:
        assert response.status_code == 200
        return
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    if method != "HEAD":
        assert "token" in response.json()["detail"]


def test_a_path_that_is_not_there_is_no_less_guarded(live: Live) -> None:
    for path in ("/nothing", "/health/", "/health/..%2Fruns", "/HEALTH", "/health%00"):
        assert live.client.get(path).status_code == 401


@pytest.mark.parametrize("name", ["root", "ada"])
def test_a_good_token_opens_it(live: Live, name: str) -> None:
    with client_of(live, name) as client:
        assert client.get("/agents").status_code == 200
        assert client.get("/agents", headers={"authorization": f"bearer  {SECRETS[name]}"}).status_code == 200


@pytest.mark.parametrize("protocols", [(), ("andon",), ("andon", "bearer.wrong"), ("bearer.",)])
def test_a_live_connection_needs_one_too(live: Live, protocols: tuple[str, ...]) -> None:
    code, detail = refusal_of(live, *protocols, app_name="helper", user_id="ada", session_id="s1")
    assert code == 401
    assert "token" in detail


@pytest.mark.parametrize("secret", [SECRETS["ada"], "with/slash=="])
@pytest.mark.parametrize("how", ["header", "subprotocol"])
def test_a_live_connection_brings_it_in_either_way(secret: str, how: str) -> None:
    with serving(Agent("Helper", ScriptedModel()), tokens=Token(secret, user_id="ada")) as live:
        headers = {"authorization": f"Bearer {secret}"}
        live.client.post("/apps/helper/users/ada/sessions/s1", headers=headers)
        protocols: Any = ["andon", f"bearer.{secret.replace('/', '%2F').replace('=', '%3D')}"]
        url = f"ws://127.0.0.1:{live.port}/run_live?app_name=helper&user_id=ada&session_id=s1"
        given = {"additional_headers": headers} if how == "header" else {"subprotocols": protocols}
        with connect(url, proxy=None, **given) as socket:
            assert socket.subprotocol == (None if how == "header" else "andon")
            socket.send(json.dumps({"content": {"parts": [{"text": "Hi"}]}}))
            assert "OK." in str(socket.recv(timeout=HANG))


def test_figures_and_records_are_for_admins(live: Live) -> None:
    for method, path in (("GET", "/metrics"), ("GET", "/blocks"), ("GET", "/cancels"), ("POST", "/unblock")):
        with client_of(live, "ada") as client:
            refused = client.request(method, path, json={"agent_id": "helper"} if method == "POST" else None)
            assert (refused.status_code, "admin" in refused.json()["detail"]) == (403, True)
    with client_of(live, "root") as client:
        assert client.get("/metrics").status_code == 200


def test_who_cancels_is_on_the_receipt(live: Live) -> None:
    wanted = {"message": "Hi", "background": True, "stream": False}

    def receipt(starter: str, canceller: str, **fields: str) -> Any:
        with client_of(live, starter) as client:
            run_id = client.post(RUNS, json=wanted).json()["run_id"]
        with client_of(live, canceller) as client:
            answer = client.post(f"{RUNS}/{run_id}/cancel?wait=30", json=fields)
            return answer.json()["receipt"] if answer.status_code == 200 else answer

    assert receipt("ada", "ada")["by"] == "ada"
    assert receipt("ada", "ada", by="ada")["by"] == "ada"
    assert receipt("ada", "root")["by"] == "admin"
    assert receipt("ada", "root", by="the night shift")["by"] == "the night shift"
    assert receipt("ada", "ada", by="bob").status_code == 403


def test_an_admin_can_have_a_name() -> None:
    agent = Agent("Helper", ScriptedModel(then=Stall()))
    with serving(agent, tokens=Token("secret", user_id="olga", admin=True)) as live:
        live.client.headers["authorization"] = "Bearer secret"
        live.post(RUNS, message="Hi", run_id="r1", user_id="ada", background="true", stream="false")
        assert live.client.post(f"{RUNS}/r1/cancel?wait=30").json()["receipt"]["by"] == "olga"
        assert live.client.get("/metrics").status_code == 200


def test_mounted_it_is_guarded_as_well() -> None:
    outer = FastAPI()
    outer.mount("/inner", create_app(Agent("Helper", ScriptedModel()), tokens=TOKENS))
    with serving_app(outer) as live:
        assert live.client.get("/inner/health").status_code == 200
        assert live.client.get("/inner/agents").status_code == 401
        assert live.client.get("/inner/agents", headers=bearer("ada")).status_code == 200


def test_behind_a_prefix_it_is_guarded_as_well() -> None:
    app = create_app(Agent("Helper", ScriptedModel()), tokens=TOKENS)
    with serving_app(app, root_path="/api") as live:
        assert live.client.get("/health").status_code == 200
        assert live.client.get("/agents").status_code == 401
        assert live.client.get("/agents", headers=bearer("ada")).status_code == 200


def test_the_document_says_that_a_token_is_needed(live: Live) -> None:
    document = live.client.get("/openapi.json", headers=bearer("ada")).json()
    assert document["security"] == [{"bearer": []}]
    assert document["components"]["securitySchemes"]["bearer"] == {"type": "http", "scheme": "bearer"}
    assert document["paths"]["/health"]["get"]["security"] == []


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ([], "empty"),
        ("", "token 1 is empty"),
        (["good", "not good"], "token 2"),
        (["good", "tökén"], "token 2"),
        ([b"good"], "token 1 is of type bytes"),
        ([Token("good", user_id="")], "without a name"),
        (["same", Token("same", user_id="ada")], "token 2 was given before"),
    ],
)
def test_what_can_not_be_a_token_is_refused_and_not_quoted(tokens: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        create_app(Agent("Helper", ScriptedModel()), tokens=tokens)
    for secret in ("good", "tökén", "same"):
        assert secret not in str(caught.value)


def test_a_token_does_not_show_itself() -> None:
    assert "secret" not in repr(Token("secret", user_id="ada"))
    assert "secret" not in repr(vars(Keyring(["secret"])))
