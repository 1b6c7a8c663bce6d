# SPDX-License-Identifier: Apache-2.0
"""An agent's sessions over HTTP: read, replaced, forked and deleted, each by whose it is."""

from __future__ import annotations

from typing import Any

import pytest

from andon import Agent, tool
from andon.messages import ToolCall, ToolResult, user
from andon.models.scripted import Call, ScriptedModel, Think
from tests.server.live import serving
from tests.server.people import client_of, guarded
from tests.support import Silence

RUNS, SESSIONS = "/agents/helper/runs", "/agents/helper/sessions"
PLAIN = [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "A lamp."}]
BLOCKS = [{**each, "content": [{"type": "text", "text": each["content"]}]} for each in PLAIN]


@tool
async def look() -> str:
    return "a lamp"


def helper(*turns: Any) -> tuple[ScriptedModel, Agent]:
    model = ScriptedModel(*turns, then="Yes.")
    return model, Agent("Helper", model, tools=[look])


def test_what_was_read_can_be_sent_back() -> None:
    model, agent = helper([Think("hm", "sig"), Call("look")])
    with serving(agent) as live:
        live.post(RUNS, message="go", stream="false", session_id="s1", user_id="ada")
        path = f"{SESSIONS}/s1"
        session = live.client.get(path, params={"user_id": "ada"}).json()
        assert (session["agent_id"], session["user_id"], session["session_id"]) == ("helper", "ada", "s1")
        assert (session["state"], len(session["messages"])) == ({}, 4)
        assert live.client.get(path).status_code == 404
        put = live.client.put(f"{SESSIONS}/s2", json={"user_id": "ada", "messages": session["messages"]})
        assert put.status_code == 200
        assert put.json()["messages"] == session["messages"]
        live.post(RUNS, message="And?", stream="false", session_id="s2", user_id="ada")
        sent = list(model.requests[-1].messages)
        assert (sent[1].tool_calls, sent[2].tool_results) == (
            [ToolCall("call_1", "look", {})],
            [ToolResult("call_1", "look", "a lamp")],
        )
        assert sent[-1] == user("And?")


def test_a_session_is_replaced_and_shown_to_adk_s_clients_too() -> None:
    model, agent = helper()
    with serving(agent) as live:
        live.post(RUNS, message="go", stream="false", session_id="s1", user_id="ada")
        replaced = live.client.put(f"{SESSIONS}/s1", json={"messages": PLAIN, "user_id": "ada"}).json()
        assert replaced["messages"] == BLOCKS
        adk = live.client.get("/apps/helper/users/ada/sessions/s1").json()
        assert [event["content"]["parts"] for event in adk["events"]] == [
            [{"text": "Who are you?"}],
            [{"text": "A lamp."}],
        ]
        assert {event["invocationId"] for event in adk["events"]} == {"history"}
        live.post(RUNS, message="Really?", stream="false", session_id="s1", user_id="ada")
        assert [message.text for message in model.requests[-1].messages] == ["Who are you?", "A lamp.", "Really?"]


def test_a_session_is_forked() -> None:
    model, agent = helper()
    with serving(agent) as live:
        live.client.put(f"{SESSIONS}/s1", json={"messages": PLAIN})
        forked = live.client.post(f"{SESSIONS}/s1/fork", json={"session_id": "s2"})
        assert forked.status_code == 201
        assert (forked.json()["session_id"], forked.json()["messages"]) == ("s2", BLOCKS)
        assert live.client.post(f"{SESSIONS}/s1/fork", json={"session_id": "s2"}).status_code == 409
        fresh = live.client.post(f"{SESSIONS}/s1/fork").json()["session_id"]
        assert fresh not in ("s1", "s2")
        assert live.client.post(f"{SESSIONS}/nothing/fork").status_code == 404
        live.post(RUNS, message="Really?", stream="false", session_id=fresh)
        assert [message.text for message in model.requests[-1].messages] == ["Who are you?", "A lamp.", "Really?"]


def test_a_session_is_deleted() -> None:
    _, agent = helper()
    with serving(agent) as live:
        live.client.put(f"{SESSIONS}/s1", json={"messages": PLAIN})
        assert live.client.delete(f"{SESSIONS}/s1", params={"user_id": "ada"}).status_code == 404
        assert live.client.delete(f"{SESSIONS}/s1").status_code == 204
        for method in ("GET", "DELETE"):
            response = live.client.request(method, f"{SESSIONS}/s1")
            assert response.status_code == 404
            assert response.json()["detail"] == "agent 'helper' has no session 's1'"


def test_while_a_run_is_there_it_is_a_409_that_names_it() -> None:
    silence = Silence()
    _, agent = helper(["Half ", silence])
    with serving(agent) as live:
        begun = live.post(RUNS, message="go", stream="false", background="true", session_id="s1").json()
        silence.reached.wait()
        for method, body in (("PUT", {"messages": PLAIN}), ("DELETE", {})):
            response = live.client.request(method, f"{SESSIONS}/s1", json=body)
            assert response.status_code == 409
            assert response.json()["run_id"] == begun["run_id"]
        assert live.client.get(f"{SESSIONS}/s1").json()["messages"] == [
            {"role": "user", "content": [{"type": "text", "text": "go"}]}
        ]
        live.client.post(f"{RUNS}/{begun['run_id']}/cancel", params={"wait": 10})
        assert live.client.delete(f"{SESSIONS}/s1").status_code == 204


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"messages": 7}, 422),
        ({"messages": [{"role": "robot", "content": "x"}]}, 422),
        ({"messages": "{"}, 422),
        ({"messages": [], "user_id": "a\nb"}, 422),
    ],
)
def test_what_is_no_conversation_is_refused(body: dict[str, Any], status: int) -> None:
    _, agent = helper()
    with serving(agent) as live:
        response = live.client.put(f"{SESSIONS}/s1", json=body)
        assert response.status_code == status
        assert live.client.get(f"{SESSIONS}/s1").status_code == 404
        assert live.client.put(f"{SESSIONS}/s1:cancel", json={"messages": []}).status_code == 422


def test_the_query_may_say_whose_session_it_is() -> None:
    _, agent = helper()
    with serving(agent) as live:
        ada = {"user_id": "ada"}
        assert live.client.put(f"{SESSIONS}/s1", params=ada, json={"messages": PLAIN}).json()["user_id"] == "ada"
        forked = live.client.post(f"{SESSIONS}/s1/fork", params=ada).json()
        assert (forked["user_id"], forked["messages"]) == ("ada", BLOCKS)
        assert live.client.get(f"{SESSIONS}/s1").status_code == 404
        for path, method in ((f"{SESSIONS}/s1", "PUT"), (f"{SESSIONS}/s1/fork", "POST")):
            body: dict[str, Any] = {"messages": []} if method == "PUT" else {}
            wrong = live.client.request(method, path, params={"user": "ada"}, json=body)
            assert (wrong.status_code, wrong.json()["unknown"]) == (422, ["user"])


def test_a_user_has_no_part_in_another_one_s_sessions() -> None:
    _, agent = helper()
    with guarded(agent) as live, client_of(live, "ada") as ada, client_of(live, "root") as root:
        assert ada.put(f"{SESSIONS}/s1", json={"messages": PLAIN}).json()["user_id"] == "ada"
        assert root.put(f"{SESSIONS}/s1", json={"messages": [], "user_id": "bob"}).json()["user_id"] == "bob"
        assert ada.get(f"{SESSIONS}/s1").json()["messages"] == BLOCKS
        assert ada.get(f"{SESSIONS}/s1", params={"user_id": "bob"}).status_code == 403
        assert ada.put(f"{SESSIONS}/s1", json={"messages": [], "user_id": "bob"}).status_code == 403
        assert ada.post(f"{SESSIONS}/s1/fork", json={"user_id": "bob"}).status_code == 403
        assert ada.delete(f"{SESSIONS}/s1", params={"user_id": "bob"}).status_code == 403
        assert ada.delete(f"{SESSIONS}/s1").status_code == 204
        assert root.get(f"{SESSIONS}/s1", params={"user_id": "bob"}).status_code == 200
