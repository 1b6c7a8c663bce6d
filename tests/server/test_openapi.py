# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document: it describes every route in full, and what the server says of runs has the shapes in it.

`test_schema` compares what it says with every kind of answer, and `tests/clients` makes a client of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from starlette.requests import HTTPConnection

from andon import Agent, ModelError, ProgressView, RunEvent, ToolContext, Trim, tool
from andon.models.scripted import Call, Fail, ScriptedModel, Stall, Think
from andon.server import create_app, openapi
from andon.server.adk_json import Invoke
from andon.server.response_types import EVENTS, CancelAnswer, CancelManyAnswer, RunLine, RunOutput, SessionEvent
from andon.tools.base import internals_of
from andon.tools.shell import Shell
from tests.server.live import Live, serving
from tests.support import Flag

RUNS = "/agents/helper/runs"


def document_of(**settings: Any) -> dict[str, Any]:
    return create_app(Agent("Helper", ScriptedModel()), **settings).openapi()


DOCUMENT = document_of(tokens="t")
OPERATIONS: list[tuple[str, dict[str, Any]]] = [
    (path, operation) for path, methods in DOCUMENT["paths"].items() for operation in methods.values()
]


def refs_in(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for value in part.values():
            yield from refs_in(value)
    elif isinstance(part, list):
        for value in part:
            yield from refs_in(value)


# -- the document -----------------------------------------------------------------------------------------------------


def test_every_route_is_described_and_nothing_else() -> None:
    """Whoever adds a route says in `OPERATIONS` what it takes and answers."""
    assert sorted(openapi.OPERATIONS) == sorted(operation["operationId"] for _, operation in OPERATIONS)


@pytest.mark.parametrize(("path", "operation"), OPERATIONS, ids=[each["operationId"] for _, each in OPERATIONS])
def test_a_route_says_all_that_a_client_needs(path: str, operation: dict[str, Any]) -> None:
    assert operation["summary"]
    (tag,) = operation["tags"]
    assert tag in {each["name"] for each in DOCUMENT["tags"]}
    answers = operation["responses"]
    assert any(code.startswith("2") for code in answers)
    for code, answer in answers.items():
        assert answer["description"]
        if code >= "400":
            schema = answer["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/ProblemDetail"}
        elif code != "204":
            for media, content in answer["content"].items():
                assert content["schema"], media
    assert ("401" in answers) == (path not in ("/health", "/ready"))
    assert {"403", "500", "503"} <= set(answers)
    names = [parameter["name"] for parameter in operation.get("parameters", ())]
    assert len(names) == len(set(names)), "none is both in the path and in the query"
    given = {parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "path"}
    assert given == {part.split("}")[0] for part in path.split("{")[1:]}


def test_all_that_is_referred_to_is_there_and_nothing_is_left_over() -> None:
    components = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert set(refs_in(DOCUMENT)) == components


OF_ONE_RUN = {
    *("start_run", "get_run", "read_events", "resume", "get_ticket", "cancel_run", "continue_run", "cancel_call"),
    *("run_whole", "run_streaming", "roll_back_run"),
}


def test_a_202_says_where_and_a_stream_which() -> None:
    for _, operation in OPERATIONS:
        answers = operation["responses"]
        if "202" in answers:
            assert {"Location", "Andon-Run-Id"} <= set(answers["202"]["headers"])
        named = {code for code, answer in answers.items() if "Andon-Run-Id" in answer.get("headers", {})}
        told = {code for code in answers if code < "300"} if operation["operationId"] in OF_ONE_RUN else set()
        assert named == told


def test_lists_have_pages_and_sessions_have_their_answers() -> None:
    def answers(path: str, method: str) -> Any:
        return DOCUMENT["paths"][path][method]["responses"]

    for path in ("/runs", "/agents/{agent_id}/runs", "/apps/{app}/users/{user}/sessions"):
        assert "Link" in answers(path, "get")["200"]["headers"]
        assert "422" in answers(path, "get")
        assert {"limit", "cursor"} <= {each["name"] for each in DOCUMENT["paths"][path]["get"]["parameters"]}
    session = "/agents/{agent_id}/sessions/{session_id}"
    assert answers(session, "delete")["204"]["description"] == "Done"
    assert answers("/agents/{agent_id}/runs/{run_id}/events", "get")["204"]["description"] == "No more events"
    for path, method in ((session, "put"), (f"{session}/fork", "post"), ("/apps/{app}/users/{user}/sessions", "post")):
        assert "429" in answers(path, method)
    for path, method in ((session, "put"), (f"{session}/fork", "post"), (session, "delete")):
        assert "user_id" in {each["name"] for each in DOCUMENT["paths"][path][method]["parameters"]}
        assert DOCUMENT["paths"][path][method]["tags"] == ["conversations"]


def test_every_event_is_one_of_the_union() -> None:
    union = DOCUMENT["components"]["schemas"]["RunStreamEvent"]
    assert union["discriminator"]["propertyName"] == "event"
    assert set(union["discriminator"]["mapping"]) == {kind.value for kind in RunEvent}
    frame = DOCUMENT["components"]["schemas"]["RunStreamEventFrame"]
    assert frame["properties"]["data"]["contentSchema"] == {"$ref": "#/components/schemas/RunStreamEvent"}
    for path, method in (
        (RUNS.replace("helper", "{agent_id}"), "post"),
        ("/agents/{agent_id}/runs/{run_id}/events", "get"),
    ):
        schema = DOCUMENT["paths"][path][method]["responses"]["200"]["content"]["text/event-stream"]["schema"]
        assert {"$ref": "#/components/schemas/RunStreamEventFrame"} in schema["anyOf"]


def test_parameters_are_there() -> None:
    def names(path: str, method: str) -> set[tuple[str, str]]:
        return {(each["in"], each["name"]) for each in DOCUMENT["paths"][path][method]["parameters"]}

    assert ("header", "Idempotency-Key") in names("/agents/{agent_id}/runs", "post")
    assert {("header", "Last-Event-ID"), ("query", "last_event_id")} < names(
        "/agents/{agent_id}/runs/{run_id}/events", "get"
    )
    assert {("query", "wait"), ("query", "mode")} < names("/agents/{agent_id}/runs/{run_id}/cancel", "post")
    assert {("query", "status"), ("query", "session_id")} < names("/runs", "get")


def test_lists_come_page_by_page() -> None:
    pages = {"/runs", "/agents/{agent_id}/runs", "/apps/{app}/users/{user}/sessions"}
    for path, methods in DOCUMENT["paths"].items():
        if (operation := methods.get("get")) is None:
            continue
        given = {each["name"] for each in operation.get("parameters", ())}
        assert ({"limit", "cursor"} <= given) == (path in pages)
        assert ("Link" in operation["responses"]["200"].get("headers", {})) == (path in pages)
        assert path not in pages or "422" in operation["responses"]


def test_whatever_makes_a_session_may_say_that_there_are_too_many() -> None:
    making = {"start_run", "create_session", "create_session_with_id", "replace_conversation", "fork_conversation"}
    for _, operation in OPERATIONS:
        if operation["operationId"] in making:
            assert "429" in operation["responses"]


def test_bodies_are_json_and_where_they_can_be_forms() -> None:
    forms = {"application/x-www-form-urlencoded", "multipart/form-data"}
    for _, operation in OPERATIONS:
        body = openapi.OPERATIONS[operation["operationId"]].body
        if body is None:
            assert "requestBody" not in operation
            continue
        taken = set(operation["requestBody"]["content"])
        assert taken == ({"application/json"} if body in openapi.JSON_ALONE else {"application/json", *forms})
    assert Invoke in openapi.JSON_ALONE


def test_it_is_made_once() -> None:
    app = create_app(Agent("Helper", ScriptedModel()))
    assert app.openapi() is app.openapi()


# -- security ---------------------------------------------------------------------------------------------------------


def test_a_ticket_is_another_way_to_the_events_alone() -> None:
    assert DOCUMENT["components"]["securitySchemes"]["ticket"]["name"] == "ticket"
    using = [each["operationId"] for _, each in OPERATIONS if {"ticket": []} in each.get("security", ())]
    assert using == ["read_events"]


def test_a_program_says_what_its_function_goes_by() -> None:
    async def authenticate(connection: HTTPConnection) -> None:
        return None

    session = {"session": {"type": "apiKey", "in": "cookie", "name": "session"}}
    document = document_of(authenticate=authenticate, security_schemes=session)
    assert document["security"] == [{"session": []}]
    assert document["components"]["securitySchemes"]["session"] == session["session"]
    assert document_of(authenticate=authenticate)["security"] == [{"bearer": []}]


def test_a_server_that_is_open_asks_for_nothing() -> None:
    document = document_of()
    assert "security" not in document
    assert "securitySchemes" not in document["components"]
    assert "401" not in document["paths"]["/runs"]["get"]["responses"]


# -- what the server says fits ----------------------------------------------------------------------------------------


@tool(approval=True)
async def delete() -> str:
    """Delete it."""
    return "deleted"


@tool
async def look() -> str:
    """Look around."""
    return "nothing"


def test_every_kind_of_event_has_its_shape() -> None:
    at_work = Flag()
    turns: list[Any] = [
        [Think("Hm."), "Let me see. ", Call("look", {}), Call("shell", {"command": "echo"}), Call("none", {})],
        Fail(ModelError("overloaded", retryable=True, retry_after=0)),
        Call("delete", {}),
        "Done.",
    ]
    agent = Agent("Helper", ScriptedModel(*turns), tools=[look, delete, Shell()])
    stalls = Agent("Stalls", ScriptedModel(Call("wait", {})), tools=[_waiting(at_work)])
    broken = Agent("Broken", ScriptedModel(then=Fail(RuntimeError("out of order"))))
    slow = Agent("Slow", ScriptedModel(Call("climb", {}), "Done."), tools=[Climb()])
    short = Agent("Short", ScriptedModel(then="Yes."), context=Trim(messages=2))
    told: set[str] = set()
    with serving(agent, stalls, broken, short, slow) as live:
        for _ in range(3):
            with live.stream("/agents/short/runs", message="Hi", session_id="s1", events="all") as stream:
                told |= {_checked(frame.data) for frame in stream}
        with live.stream(RUNS, message="Hi", run_id="r1", events="all") as stream:
            told |= {_checked(frame.data) for frame in stream}
        question = live.client.get(f"{RUNS}/r1").json()["interrupts"][0]["id"]
        with live.stream(f"{RUNS}/r1/continue", answers=f'{{"{question}": true}}', events="all") as stream:
            told |= {_checked(frame.data) for frame in stream}
        with live.stream("/agents/slow/runs", message="Hi", events="all") as stream:
            told |= {_checked(frame.data) for frame in stream}
        with live.stream("/agents/broken/runs", message="Hi") as stream:
            told |= {_checked(frame.data) for frame in stream}
        with live.stream("/agents/stalls/runs", message="Hi", run_id="r2", events="all") as stream:
            at_work.wait()
            live.client.post("/agents/stalls/runs/r2/cancel")
            told |= {_checked(frame.data) for frame in stream}
    assert told == {kind.value for kind in RunEvent} - {"StoreWaiting", "ToolUndoStarted"}


class Climb:
    """A tool that says how far it is."""

    name, description = "climb", "Climb."
    parameters: dict[str, Any] = {"type": "object", "properties": {}}  # noqa: RUF012 - as any tool has it

    def bind(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments

    async def invoke(self, bound: dict[str, Any], ctx: ToolContext) -> str:
        internals_of(ctx).show_progress(ProgressView(1, 2, "half"))
        return "up"


def _waiting(at_work: Flag) -> Any:
    @tool
    async def wait() -> str:
        """Wait for ever."""
        at_work.set()
        await Flag().arrived()
        return ""

    return wait


def _checked(data: dict[str, Any]) -> str:
    shape = msgspec.convert(data, EVENTS)
    named = {field.encode_name for field in msgspec.structs.fields(shape)} | {"event"}
    assert set(data) <= named, f"{data['event']} has more than its shape"
    return str(data["event"])


def _exactly(data: Any, kind: Any) -> None:
    """It can be read as that, and has nothing besides."""
    shape = msgspec.convert(data, kind)
    assert set(data) <= {field.encode_name for field in msgspec.structs.fields(shape)}, data


@pytest.mark.parametrize("stored", [False, True])
def test_a_run_has_its_shape_in_every_state(stored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    agents = [
        Agent("Helper", ScriptedModel([Call("look", {})], then="Done."), tools=[look]),
        Agent("Stalls", ScriptedModel(then=["One ", Stall()])),
        Agent("Asks", ScriptedModel(then=Call("delete", {})), tools=[delete]),
        Agent("Broken", ScriptedModel(then=Fail(RuntimeError("out of order")))),
    ]
    background = {"message": "Hi", "background": "true", "stream": "false"}
    with serving(*agents) as live:
        for agent in ("helper", "asks", "broken"):
            _exactly(live.post(f"/agents/{agent}/runs", message="Hi", stream="false", run_id="r1").json(), RunOutput)
        live.post("/agents/stalls/runs", **background, run_id="r1")
        _exactly(live.client.get("/agents/stalls/runs/r1").json(), RunOutput)
        for line in live.client.get("/runs").json():
            _exactly(line, RunLine)
        _exactly(live.client.post("/agents/stalls/runs/r1/cancel?wait=30").json(), CancelAnswer)
        _exactly(live.client.post("/runs/cancel?all=true&wait=30").json(), CancelManyAnswer)
        if stored:
            _forget(live)
        for agent in ("helper", "stalls", "asks", "broken"):
            _exactly(live.client.get(f"/agents/{agent}/runs/r1").json(), RunOutput)


def _forget(live: Live) -> None:
    """Of the runs only what the stores have is left."""
    for agent in live.app.state.andon.agents.values():
        agent.runtime.recent = lambda run_id: None


def test_a_session_has_its_shape() -> None:
    agent = Agent("Helper", ScriptedModel([Think("Hm."), Call("look", {})], ["Done."]), tools=[look])
    with serving(agent) as live:
        live.client.post("/apps/helper/users/ada/sessions/s1")
        said = {"userId": "ada", "sessionId": "s1", "newMessage": {"role": "user", "parts": [{"text": "Hi"}]}}
        events = live.client.post("/run", json={**said, "customMetadata": {"a": 1}}).json()
        assert len(events) == 3
        for event in events:
            _exactly(event, SessionEvent)
