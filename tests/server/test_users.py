# SPDX-License-Identifier: Apache-2.0
"""One user's token and another user's runs and sessions, on every route that there is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from andon import Agent
from andon.models.scripted import ScriptedModel, Stall
from andon.server.adk_json import camel_case
from andon.server.app import ROUTERS
from andon.testing import probe
from tests.server.live import Live
from tests.server.people import ROUTES, at, bearer, client_of, close_of, guarded, refusal_of

RUNS = "/agents/helper/runs"
SAID = "what-bob-was-told"
BACKGROUND = {"message": "Hi", "background": True, "stream": False}


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """Bob's run, his session and his cancelled run are there, and must not notice any of it."""
    agent = Agent("Helper", ScriptedModel([SAID, Stall()], [SAID, Stall()], then="OK."))
    with guarded(agent) as live:
        with client_of(live, "bob") as bob:
            for run_id in ("cut", "held"):
                wanted = {**BACKGROUND, "run_id": run_id, "session_id": run_id}
                assert bob.post(RUNS, json=wanted, headers={"idempotency-key": "k1-" + run_id}).status_code == 202
                with bob.stream("GET", f"{RUNS}/{run_id}/events") as events:
                    assert any(SAID in line for line in events.iter_lines())
            assert bob.post(f"{RUNS}/cut/cancel?wait=30").status_code == 200
        yield live
        (run,) = agent.runtime.runs
        assert (run.run_id, probe(run).is_cancelling) == ("held", False)
        with client_of(live, "bob") as bob:
            assert [each["id"] for each in bob.get("/apps/helper/users/bob/sessions").json()] == ["cut", "held"]
            assert bob.post(f"{RUNS}/held/cancel?wait=30").status_code == 200


def ask(live: Live, method: str, path: str, name: str = "ada", **body: Any) -> httpx.Response:
    content: dict[str, Any] = {"json": body} if method in ("POST", "PUT", "PATCH") else {"params": body}
    return live.client.request(method, path, headers=bearer(name), **content)


def fitting(method: str, path: str, **fields: Any) -> dict[str, Any]:
    """Those of the fields that the route knows; it would refuse the others before it looks at anything."""
    described = [
        getattr(route, "openapi_extra", None)
        for router in ROUTERS
        for route in router.routes
        if (route.path, method in getattr(route, "methods", ())) == (path, True)  # type: ignore[attr-defined]
    ]
    if not (described and described[0]):
        return {name: fields[name] for name in fields if method == "GET" and name in ("user_id", "session_id")}
    known = described[0]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    return {name: fields[name] for name in fields if name in known or name in map(camel_case, known)}


WITH_IDS = [route for route in ROUTES if "{run_id}" in route[1] or "{user}" in route[1]]


@pytest.mark.parametrize(("method", "path"), WITH_IDS)
@pytest.mark.parametrize("name", ["held", "cut"])
def test_an_id_of_someone_else_is_like_one_that_is_not_there(live: Live, method: str, path: str, name: str) -> None:
    here = {"agent_id": "helper", "app": "helper"}
    body = fitting(method, path, state_delta={"a": 1})
    theirs = ask(live, method, at(path, **here, run_id=name, user="bob", session=name), **body)
    nobodys = ask(live, method, at(path, **here, run_id="nope", user="nobody", session="nope"), **body)
    assert theirs.status_code == nobodys.status_code == 404
    renamed = theirs.text.replace(f"'{name}'", "'nope'").replace("'bob'", "'nobody'")
    assert renamed == nobodys.text


def test_a_session_of_someone_else_is_missed_in_the_words_for_ones_own(live: Live) -> None:
    theirs = ask(live, "GET", "/apps/helper/users/bob/sessions/held").json()["detail"]
    own = ask(live, "GET", "/apps/helper/users/ada/sessions/nope").json()["detail"]
    assert theirs.replace("'bob'", "'ada'").replace("'held'", "'nope'") == own


@pytest.mark.parametrize(("method", "path"), [route for route in ROUTES if route not in WITH_IDS])
def test_whatever_is_named_nothing_of_someone_else_is_told_or_touched(live: Live, method: str, path: str) -> None:
    """That it isn't touched, the fixture looks after."""
    fields: dict[str, Any] = {"session_id": "held", "sessionId": "held", "stream": False, "all": True}
    fields |= {"message": "Hi", "newMessage": {"role": "user", "parts": [{"text": "Hi"}]}, "messages": []}
    for named in ({}, {"user_id": "bob"}, {"userId": "bob"}, {"by": "bob"}):
        body = fitting(method, path, **fields, **named)
        response = ask(live, method, at(path, agent_id="helper", session_id="held"), **body)
        assert response.status_code < 500
        assert SAID not in response.text
        assert '"held"' not in response.text.replace('"session_id":"held"', "")


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("POST", RUNS, "user_id"),
        ("POST", "/runs/cancel", "user_id"),
        ("POST", "/runs/cancel", "by"),
        ("POST", "/run", "userId"),
        ("POST", "/run_sse", "user_id"),
        ("GET", "/runs", "user_id"),
        ("GET", RUNS, "user_id"),
    ],
)
@pytest.mark.parametrize("other", ["bob", "nobody", ""])
def test_a_body_that_names_someone_else_is_refused(live: Live, method: str, path: str, field: str, other: str) -> None:
    if method == "GET" and not other:
        return  # an empty filter is none
    fields: dict[str, Any] = {field: other, "session_id": "held"}
    if method == "POST":
        fields |= {"message": "Hi", "newMessage": {}, "all": True}
    response = ask(live, method, path, **fields)
    assert response.status_code == 403
    assert "another user" in response.json()["detail"]


def test_a_live_connection_to_someone_else_is_refused(live: Live) -> None:
    code, detail = refusal_of(live, headers=bearer("ada"), app_name="helper", user_id="bob", session_id="held")
    assert (code, "another user" in detail) == (403, True)
    code, reason = close_of(live, headers=bearer("ada"), app_name="helper", session_id="nope")
    assert code == 1002  # her own
    assert "'ada'" in reason


def test_what_one_starts_is_ones_own(live: Live) -> None:
    with client_of(live, "ada") as ada, client_of(live, "root") as root:
        started = ada.post(RUNS, json={**BACKGROUND, "session_id": "held", "run_id": "ours"})
        assert started.status_code == 202  # bob's session of that name is another one
        assert root.get(f"{RUNS}/ours").json()["user_id"] == "ada"
        assert [each["run_id"] for each in ada.get("/runs").json() if each["user_id"] != "ada"] == []
        assert {"held", "ours"} <= {each["run_id"] for each in root.get("/runs").json()}


def test_a_taken_run_id_does_not_say_whose(live: Live) -> None:
    for name in ("held", "cut"):
        refused = ask(live, "POST", RUNS, message="Hi", run_id=name)
        assert refused.status_code == 409
        assert "bob" not in refused.text


def test_an_idempotency_key_is_ones_own(live: Live) -> None:
    with client_of(live, "ada") as ada:
        for _ in range(2):
            wanted = {**BACKGROUND, "run_id": "hers", "session_id": "hers"}
            answer = ada.post(RUNS, json=wanted, headers={"idempotency-key": "k1-held"})
            assert answer.json()["run_id"] == "hers"


def test_all_that_one_cancels_is_ones_own(live: Live) -> None:
    with client_of(live, "ada") as ada:
        for wanted in ({"all": True}, {"agent_id": "helper"}, {"session_id": "held"}, {"user_id": "ada"}):
            assert "held" not in {each["run_id"] for each in ada.post("/runs/cancel", json=wanted).json()["cancelled"]}
        assert ada.post("/runs/cancel", json={}).status_code == 400


def test_an_admin_sees_and_reads_it_all(live: Live) -> None:
    with client_of(live, "root") as root:
        assert SAID in root.get(f"{RUNS}/held").text
        assert SAID in root.get(f"{RUNS}/cut/events").text
        assert root.get("/apps/helper/users/bob/sessions/held").status_code == 200
        assert "held" in {each["run_id"] for each in root.get("/runs?user_id=bob").json()}
