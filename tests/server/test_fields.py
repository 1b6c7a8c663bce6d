# SPDX-License-Identifier: Apache-2.0
"""What a request may have: limits of its own, a history, metadata; and no field that means nothing."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect

from andon import Agent, Budget, Usage, tool
from andon.messages import Text, assistant, user
from andon.models.scripted import Call, ScriptedModel, Spend
from andon.server import create_app
from tests.server.live import Live, serving
from tests.support import HANG

RUNS = "/agents/helper/runs"


@tool
async def again() -> str:
    return "again"


def endless(**options: Any) -> Agent:
    return Agent("Helper", ScriptedModel(then=[Call("again"), Spend(Usage(10, 10))]), tools=[again], **options)


def run(live: Live, **fields: Any) -> Any:
    response = live.client.post(RUNS, json={"message": "go", "stream": False, **fields})
    return response.json() if response.status_code == 200 else (response.status_code, response.json()["detail"])


def turns(output: Any) -> int:
    return sum(message["role"] == "assistant" and "tool_calls" in message for message in output["messages"])


# -- limits -----------------------------------------------------------------------------------------------------------


def test_a_client_may_limit_its_run() -> None:
    with serving(endless()) as live:
        output = run(live, max_turns=2)
        assert (output["stop_reason"], turns(output)) == ("max_turns", 2)
        for budget in (60, {"tool_calls": 3}, {"tokens": 60, "tool_calls": 9}):
            output = run(live, budget=budget)
            assert (output["receipt"]["cause"], output["status"]) == ("budget", "CANCELLED")
        form = live.post(RUNS, message="go", stream="false", max_turns="2", budget="1000").json()
        assert (form["stop_reason"], turns(form)) == ("max_turns", 2)
        form = live.post(RUNS, message="go", stream="false", budget='{"tool_calls": 3}').json()
        assert form["receipt"]["reason"] == "all 3 tool calls are spent"
        assert run(live, budget={"tokens": None, "tool_calls": 3})["receipt"]["reason"] == "all 3 tool calls are spent"
        assert run(live, timeout=0)["receipt"]["cause"] == "deadline"
        assert run(live)["stop_reason"] == "max_turns"
        assert turns(run(live, max_turns=None, budget=None, timeout=None)) == 50


def test_a_limit_in_the_url_is_refused_and_not_passed_over() -> None:
    with serving(endless()) as live:
        response = live.client.post(f"{RUNS}?max_turns=1&session_id=s1", json={"message": "go"})
        assert response.status_code == 422
        assert response.json()["detail"].startswith("max_turns, session_id: put it into the body")


def test_a_client_may_ask_for_less_than_the_agent_s_own_and_never_for_more() -> None:
    with serving(endless(max_turns=3, timeout=100, budget=Budget(tokens=1_000, tool_calls=10))) as live:
        assert turns(run(live)) == 3
        assert turns(run(live, max_turns=2, timeout=99, budget=999)) == 2
        allows = "this agent allows"
        assert run(live, max_turns=4) == (422, f"max_turns is 4; {allows} 3 at the most")
        assert run(live, timeout=101) == (422, f"timeout is 101.0; {allows} 100 at the most")
        assert run(live, budget=1_001) == (422, f"budget is 1001; {allows} 1000 at the most")
        assert run(live, budget={"tool_calls": 11}) == (422, f"budget's tool_calls is 11; {allows} 10 at the most")
    with serving(endless(budget=Budget(tool_calls=2))) as live:
        output = run(live, budget=1_000_000)
        assert output["receipt"]["reason"] == "all 2 tool calls are spent"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_turns": 0}, "max_turns is 0; it is a whole number, 1 or more"),
        ({"max_turns": "many"}, "max_turns"),
        ({"budget": -1}, "budget is -1; it is a whole number, 0 or more"),
        ({"budget": {"tool_calls": -1}}, "budget's tool_calls is -1; it is a whole number, 0 or more"),
        ({"budget": '{"tokens": 1.5}'}, "budget's tokens is 1.5; it is a whole number, 0 or more"),
        (
            {"budget": {"token": 5}},
            "budget has 'token'; it is a number of tokens, or an object with tokens, tool_calls",
        ),
        ({"budget": '{"token": 5}'}, "budget has 'token'; it is a number of tokens, or an object with tokens"),
        ({"budget": "much"}, "budget is not JSON"),
        ({"budget": "[5]"}, "budget must be a number of tokens, or an object with tokens, tool_calls or both"),
        ({"timeout": -1}, "timeout is -1; it is a number of seconds, 0 or more"),
        ({"timeout": "inf"}, "timeout is inf; it is a number of seconds, 0 or more"),
        ({"metadata": [1]}, "metadata"),
        ({"messages": {"role": "user"}}, "messages"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]}, "messages[1] has the"),
    ],
)
def test_what_means_nothing_is_a_422(fields: dict[str, Any], said: str) -> None:
    with serving(endless()) as live:
        status, detail = run(live, **fields)
        assert status == 422
        assert said in detail
        assert "None" not in detail  # there is none over HTTP
        assert live.client.get("/runs").json() == []


# -- a history and metadata -------------------------------------------------------------------------------------------


def test_a_client_may_bring_a_history_and_metadata() -> None:
    model = ScriptedModel(then="Yes.")
    history = [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "A lamp."}]
    said, metadata = [user("Who are you?"), assistant(Text("A lamp."))], {"ticket": 7}
    with serving(Agent("Helper", model)) as live:
        output = run(live, messages=history, metadata=metadata, session_id="s1")
        assert output["metadata"] == metadata
        assert live.client.get(f"{RUNS}/{output['run_id']}").json()["metadata"] == metadata
        assert list(model.requests[-1].messages) == [*said, user("go")]
        fields = {"messages": json.dumps(history), "metadata": json.dumps(metadata)}
        form = live.post(RUNS, message="go", stream="false", session_id="s1", **fields).json()
        assert form["metadata"] == metadata
        assert list(model.requests[-1].messages) == [*said, user("go")]
        for name in ("messages", "metadata", "budget", "output_schema"):
            refused = live.post(RUNS, message="go", **{name: "["})
            assert (refused.status_code, refused.json()["detail"].startswith(f"{name} is no")) == (422, True)


def test_the_same_key_with_another_limit_is_another_request() -> None:
    with serving(endless()) as live:
        headers = {"idempotency-key": "k1"}
        for fields, status in (({"max_turns": 1}, 200), ({"max_turns": 1}, 200), ({"max_turns": 2}, 422)):
            body = {"message": "go", "stream": False, **fields}
            assert live.client.post(RUNS, json=body, headers=headers).status_code == status


# -- fields that are not known ----------------------------------------------------------------------------------------

MESSAGE = {"role": "user", "parts": [{"text": "Hi"}]}
ADK = {"appName": "helper", "userId": "ada", "sessionId": "s1", "newMessage": MESSAGE}


@pytest.mark.parametrize(
    ("method", "path", "body", "known"),
    [
        ("POST", RUNS, {"message": "go"}, "message, stream"),
        ("POST", f"{RUNS}/r1/cancel", {}, "reason, by, mode, grace, force, wait"),
        ("POST", f"{RUNS}/r1/continue", {}, "answers, tools, run_id"),
        ("POST", f"{RUNS}/r1/resume", {}, "last_event_index, events"),
        ("POST", f"{RUNS}/r1/tools/c1/cancel", {}, "reason"),
        ("POST", "/runs/cancel", {"all": True}, "session_id, user_id, agent_id, all, block"),
        ("POST", "/unblock", {"user_id": "ada"}, "user_id, agent_id"),
        ("PUT", "/agents/helper/sessions/s1", {"messages": []}, "messages, user_id"),
        ("POST", "/agents/helper/sessions/s1/fork", {}, "session_id, user_id"),
        ("DELETE", "/agents/helper/sessions/s1", {}, "user_id"),
        ("POST", "/run", ADK, "user_id, session_id, new_message"),
        ("POST", "/run_sse", ADK, "user_id, session_id, new_message"),
        ("POST", "/apps/helper/users/ada/sessions", {}, "session_id, state, events"),
        ("PATCH", "/apps/helper/users/ada/sessions/s1", {"stateDelta": {}}, "state_delta"),
        ("POST", "/apps/helper/users/ada/sessions/s1:cancel", {}, "reason, by"),
    ],
)
def test_a_field_that_is_not_known_is_named(method: str, path: str, body: dict[str, Any], known: str) -> None:
    with serving(Agent("Helper", ScriptedModel(then="Yes."))) as live:
        live.client.post("/apps/helper/users/ada/sessions/s1")
        sent: list[dict[str, Any]] = [{"json": {**body, "timeOut": 5}}]
        if method == "POST" and path.startswith("/agents"):
            sent.append({"data": {**body, "timeOut": "5"}})
            sent.append({"files": {"timeOut": (None, "5"), **{name: (None, str(body[name])) for name in body}}})
        for each in sent:
            response = live.client.request(method, path, **each)
            assert response.status_code == 422
            assert "there is no field 'timeOut' in this request; there are: " in response.json()["detail"]
            assert known in response.json()["detail"]
            assert response.json()["unknown"] == ["timeOut"]
        assert live.client.get("/runs").json() == []


PROBED = ["/health", "/ready"]


def every_route() -> list[tuple[str, str]]:
    paths = create_app(Agent("Helper", ScriptedModel())).openapi()["paths"]
    paths = {path: methods for path, methods in paths.items() if path not in PROBED}
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


@pytest.mark.parametrize(("method", "path"), every_route())
def test_so_is_one_of_a_query(method: str, path: str) -> None:
    """`/runs?user=ada` would list everybody's runs, and `?last_event=1` would read all events again."""
    with serving(Agent("Helper", ScriptedModel(then="Yes."))) as live:
        filled = path.format(agent_id="helper", app="helper", user="ada", run_id="r1", call_id="c", **SESSION)
        response = live.client.request(method, filled, params={"last_event": "1"})
        assert response.status_code == 422
        assert response.json()["detail"].startswith("there is no query parameter 'last_event' in this request; ")
        assert response.json()["unknown"] == ["last_event"]


SESSION = {"session": "s1", "session_id": "s1", "name": "w1"}


@pytest.mark.parametrize("path", PROBED)
def test_a_load_balancer_may_add_what_it_likes_to_its_probe(path: str) -> None:
    with serving(Agent("Helper", ScriptedModel())) as live:
        assert live.client.get(f"{path}?cache=1").status_code == 200


def test_a_query_s_own_parameters_are_named() -> None:
    with serving(Agent("Helper", ScriptedModel(then="Yes."))) as live:

        def says(path: str) -> str:
            return str(live.client.get(path).json()["detail"]).partition("; ")[2]

        assert says("/config?a=1") == "it takes none"
        assert says(f"{RUNS}/r1/events?last_event=1") == "there are: last_event_id"
        assert says("/runs?a=1&b=2") == "there are: limit, cursor, session_id, user_id, status, agent_id"
        assert says(f"{RUNS}?agent_id=other") == "there are: limit, cursor, session_id, user_id, status"
        ignored_fields = [f"{RUNS}/r1?session_id=s1", f"{RUNS}/r1/events?ticket=t", "/list-apps?relative_path=./"]
        assert [live.client.get(path).status_code for path in ignored_fields] == [404, 404, 200]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/agents/helper/sessions/s1", {"messages": []}),
        ("POST", "/agents/helper/sessions/s1/fork", {}),
        ("DELETE", "/agents/helper/sessions/s1", {}),
        ("POST", "/runs/cancel", {}),
    ],
)
def test_a_field_says_one_thing_in_the_url_and_in_the_body(method: str, path: str, body: dict[str, Any]) -> None:
    with serving(Agent("Helper", ScriptedModel(then="Yes."))) as live:
        live.client.put("/agents/helper/sessions/s1", json={"messages": [], "user_id": "ada"})

        def ask(**fields: Any) -> httpx.Response:
            return live.client.request(method, f"{path}?user_id=bob", json={**body, **fields})

        refused = ask(user_id="ada")
        said = "user_id is 'bob' in the URL and 'ada' in the body: leave one of them out"
        assert (refused.status_code, refused.json()["detail"]) == (422, said)
        assert ask(user_id="bob").status_code in (200, 404), "the same is no contradiction"
        assert ask(user_id=None).status_code in (200, 404)


def test_an_empty_field_is_not_said_to_be_missing() -> None:
    with serving(Agent("Helper", ScriptedModel(then="Yes."))) as live:
        empty = [live.post(RUNS, message="", stream="false"), live.client.post(RUNS, json={"message": None})]
        assert [each.json()["detail"] for each in empty] == ["message is empty: this request needs it"] * 2
        assert live.post(RUNS, stream="false").json()["detail"] == "there is no field `message`"


def test_several_fields_that_are_not_known() -> None:
    with serving(Agent("Helper", ScriptedModel(then="Yes."))) as live:
        detail = live.client.post(RUNS, json={"message": "go", "max_turn": 1, "foo": 2}).json()["detail"]
        assert detail.startswith("there are no fields 'max_turn' and 'foo' in this request; there are: message, ")


@pytest.mark.parametrize("said", [{"contnt": {}}, {"content": None, "stateDelt": {}}])
def test_a_live_connection_with_an_unknown_field_is_closed(said: dict[str, Any]) -> None:
    with serving(Agent("Helper", ScriptedModel(then="Yes."))) as live:
        live.client.post("/apps/helper/users/ada/sessions/s1")
        query = "app_name=helper&user_id=ada&session_id=s1"
        with connect(f"ws://127.0.0.1:{live.port}/run_live?{query}") as socket:
            socket.send(json.dumps(said))
            with pytest.raises(ConnectionClosedError) as closed:
                socket.recv(HANG)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1007
        assert closed.value.rcvd.reason.startswith(f"there is no field {list(said)[-1]!r} in this request")


def test_many_of_them_are_named_in_a_few_words() -> None:
    with serving(Agent("Helper", ScriptedModel(then="Yes."))) as live:
        response = live.client.post(RUNS, json={"message": "go", **{f"{n:03}" * 200: n for n in range(50)}})
        assert response.status_code == 422
        assert "and 40 more" in response.json()["detail"]
        assert len(response.json()["detail"]) < 4_000
        assert len(response.content) < 12_000


def test_what_other_frameworks_clients_send_is_passed_over() -> None:
    from andon.server.ignored_fields import AGENTOS_CANCEL, AGENTOS_CONTINUE, AGENTOS_RESUME, AGENTOS_START

    with serving(Agent("Helper", ScriptedModel(then="Yes."))) as live:
        sent = dict.fromkeys(AGENTOS_START, "1")
        output = live.post(RUNS, message="go", stream="false", metadata='{"a": 1}', **sent)
        assert output.status_code == 200, output.text
        path = f"{RUNS}/{output.json()['run_id']}"
        said = [
            live.client.post(f"{path}/cancel", params=dict.fromkeys(AGENTOS_CANCEL, "s1")),
            live.post(f"{path}/continue", tools="[]", **dict.fromkeys(AGENTOS_CONTINUE, "s1")),
            live.post(f"{path}/resume", **dict.fromkeys(AGENTOS_RESUME, "s1")),
        ]
        assert [each.status_code for each in said] == [409, 409, 200]
        live.client.post("/apps/helper/users/ada/sessions/s1")
        adk = {**ADK, "streaming": False, "stateDelta": {"a": 1}, "customMetadata": {"b": 2}, "serviceTier": "flex"}
        assert live.client.post("/run", json=adk).status_code == 200
        query = "app_name=helper&user_id=ada&session_id=s1&modalities=TEXT&save_live_blob=false&proactive_audio=true"
        with connect(f"ws://127.0.0.1:{live.port}/run_live?{query}") as socket:
            socket.send(json.dumps({"content": MESSAGE, "activity_start": {}}))
            while not json.loads(socket.recv(HANG)).get("turnComplete"):
                pass
