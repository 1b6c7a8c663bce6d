# SPDX-License-Identifier: Apache-2.0
"""A client can't tell a server that executes its runs from one that leaves them to workers: each request is made to
both, with the same ids, and the answers are compared.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlencode

import httpx
import pytest
from websockets.sync.client import connect

from andon import Agent, ToolContext, tool
from andon.errors import ModelError
from andon.models.base import ModelRequest
from andon.models.scripted import Call, Fail, Say, ScriptedModel, Spend, Stall, Think
from tests.scale.parts import ExecutedHereError, accepting, working
from tests.server.live import Live, frames, serving_on
from tests.store.conftest import database
from tests.store.server import Server
from tests.support import HANG, forever

TIMES = {"created_at", "updated_at", "latency", "requested_at", "stopped_at", "timestamp", "lastUpdateTime"}
"""What differs from one time to the next."""

LIVE = {"warnings", "phase"}
"""What only the process knows that executes a run."""


@tool
async def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in the {where}"


@tool
async def boom() -> str:
    """Fail."""
    raise ValueError("it is broken")


@tool(approval=True)
async def delete(name: str) -> str:
    """Delete something."""
    return f"deleted {name}"


@tool
async def paint(ctx: ToolContext) -> str:
    """Paint it."""
    return f"painted it {ctx.interrupt('colour', {'choose': ['red', 'blue']})}"


@tool
async def hang() -> str:
    """Work for ever."""
    return await forever()


def _after(*calls: Call) -> Callable[[ModelRequest], Any]:
    """Make these calls, and then say what they gave."""

    def turn(request: ModelRequest) -> Any:
        said = [result.content for result in request.messages[-1].tool_results]
        return ["So: ", Say(" and ".join(said))] if said else ["Let me see. ", *calls]

    return turn


def _hang(request: ModelRequest) -> Any:
    """Make two calls, one of which never ends. Then say what they gave, and say no more."""
    said = [result.content for result in request.messages[-1].tool_results]
    calls = Call("hang", id="h"), Call("look", {"where": "sky"}, id="l")
    return [Say(" and ".join(said)), Stall()] if said else list(calls)


SCRIPTS: dict[str, tuple[Any, list[Any]]] = {
    "hello": ([Think("Hm."), Say("Hello there."), Spend(input_tokens=3, output_tokens=2)], []),
    "echo": (lambda request: f"<{request.messages[-1].text}>", []),
    "counting": (lambda request: f"{len(request.messages)} messages", []),
    "tooled": (_after(Call("look", {"where": "cellar"}, id="c1"), Call("boom", id="c2")), [look, boom]),
    "asker": (_after(Call("delete", {"name": "all"}, id="d")), [delete]),
    "painter": (_after(Call("paint", id="p"), Call("look", {"where": "sky"}, id="l")), [paint, look]),
    "hanging": (_hang, [hang, look]),
    "failing": (["Half a ", Fail(ModelError("the model is on fire"))], []),
    "stalled": (["One ", Stall()], []),
    "moody": (lambda request: ["Hm. ", Stall()] if request.messages[-1].text == "wait" else "Yes.", []),
    "shaped": ('{"size": 3}', []),
}


def _agents(*, executes: bool) -> list[Agent]:
    """As a worker has them; or as a server has them that executes nothing."""
    made = [
        Agent(name, ScriptedModel(then=said if executes else Fail(ExecutedHereError())), tools=tools)
        for name, (said, tools) in SCRIPTS.items()
    ]
    child = next(agent for agent in made if agent.id == "tooled")
    said = _after(Call("tooled", {"prompt": "help"}, id="f"))
    parent = Agent("parent", ScriptedModel(then=said if executes else Fail(ExecutedHereError())))
    asker = next(agent for agent in made if agent.id == "asker")
    said = _after(Call("asker", {"prompt": "help"}, id="f"))
    asking = Agent(
        "asking", ScriptedModel(then=said if executes else Fail(ExecutedHereError())), tools=[asker.as_tool()]
    )
    return [*made, Agent("parent", parent.model, tools=[child.as_tool()]), asking]


class Both(NamedTuple):
    """The server that executes its runs, and the one that does not."""

    plain: Live
    queued: Live


@pytest.fixture(scope="module")
def both(server: Server) -> Iterator[Both]:
    with (
        database(server) as url,
        database(server) as shared,
        serving_on(url, *_agents(executes=True)) as plain,
        accepting(shared, *_agents(executes=False)) as queued,
        working(shared, *_agents(executes=True)),
    ):
        yield Both(plain, queued)


# -- requests ---------------------------------------------------------------------------------------------------------


def _answer(response: httpx.Response) -> Any:
    headers = {name: response.headers.get(name) for name in ("content-type", "location", "content-location", "allow")}
    return response.status_code, headers, response.json() if response.content else None


def _post(live: Live, path: str, headers: dict[str, str] | None = None, **body: Any) -> Any:
    return _answer(live.client.post(path, json=body, headers=headers or {}))


def _stream(live: Live, path: str, headers: dict[str, str] | None = None, **body: Any) -> Any:
    with live.client.stream("POST", path, json=body, headers=headers or {}) as response:
        if response.status_code != 200:
            response.read()
            return _answer(response)
        return response.headers["content-type"], list(frames(response.iter_lines()))


def _lines(live: Live, path: str, **body: Any) -> Any:
    with live.client.stream("POST", path, json=body) as response:
        return response.status_code, [
            json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: ")
        ]


def _run(live: Live, agent: str, run_id: str, message: Any = "Hi", **body: Any) -> Any:
    return _post(live, f"/agents/{agent}/runs", message=message, run_id=run_id, stream=False, **body)


def _read(live: Live, agent: str, run_id: str, after: int | None = None) -> Any:
    headers = {} if after is None else {"last-event-id": str(after)}
    with live.client.stream("GET", f"/agents/{agent}/runs/{run_id}/events", headers=headers) as response:
        return response.status_code, list(frames(response.iter_lines())) if response.status_code == 200 else []


def _state(live: Live, agent: str, run_id: str) -> Any:
    """What the store has of a run; a server that executed it itself a moment ago also knows its tools and messages."""
    status, headers, state = _answer(live.client.get(f"/agents/{agent}/runs/{run_id}"))
    return status, headers, {key: value for key, value in state.items() if key not in ("tools", "messages")}


def _session(live: Live, agent: str, session: str, user: str = "ada") -> Any:
    return _answer(live.client.get(f"/agents/{agent}/sessions/{session}", params={"user_id": user}))


def a_stream(live: Live) -> Any:
    body: dict[str, Any] = {
        "message": "Hi",
        "run_id": "a1",
        "session_id": "a",
        "user_id": "ada",
        "metadata": {"x": [1]},
    }
    yield _stream(live, "/agents/hello/runs", **body)
    yield _stream(live, "/agents/hello/runs", **body | {"run_id": "a2", "events": "all"})
    yield _session(live, "hello", "a")
    yield _state(live, "hello", "a1")


def plain_answers(live: Live) -> Any:
    for name in ("hello", "tooled", "failing"):
        yield _run(live, name, f"b-{name}", session_id="b", user_id="ada")
        yield _state(live, name, f"b-{name}")
        yield _session(live, name, "b")
    yield _run(
        live, "shaped", "b-shaped", output_schema={"type": "object", "properties": {"size": {"type": "integer"}}}
    )
    yield _run(live, "shaped", "b-wrong", output_schema={"type": "object", "properties": {"size": {"type": "string"}}})
    yield _run(live, "tooled", "b-turns", max_turns=1)
    yield _run(live, "hello", "b-budget", budget={"tokens": 1})


def streams_of_tools_and_errors(live: Live) -> Any:
    for name in ("tooled", "failing", "parent"):
        yield _stream(live, f"/agents/{name}/runs", message="Hi", run_id=f"c-{name}", session_id="c", events="all")
        yield _read(live, name, f"c-{name}")
    yield _state(live, "parent", "c-parent.f")
    yield _read(live, "parent", "c-parent.f")


def in_the_background(live: Live) -> Any:
    yield _run(live, "hello", "d1", session_id="d", background=True)
    yield _read(live, "hello", "d1")
    for after in (1, 2, 3):
        yield _read(live, "hello", "d1", after)
    last = len(_read(live, "hello", "d1")[1])
    yield _read(live, "hello", "d1", last)
    yield _stream(live, "/agents/hello/runs/d1/resume", last_event_index=1)
    yield _state(live, "hello", "d1")


def history_and_prompts(live: Live) -> Any:
    yield _run(live, "counting", "e1", session_id="e")
    yield _run(live, "counting", "e2", session_id="e")
    earlier = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    yield _run(live, "counting", "e3", session_id="e", messages=earlier)
    yield _run(live, "counting", "e4", session_id="e")
    yield _run(live, "echo", "e5", message="é\u2028\U0001f600 \"'")
    yield _session(live, "counting", "e", user="")


def idempotency_keys(live: Live) -> Any:
    key = {"idempotency-key": "k1"}
    body = {"message": "Hi", "session_id": "k", "user_id": "ada"}
    yield _stream(live, "/agents/hello/runs", key, **body, run_id="k-run")
    yield _stream(live, "/agents/hello/runs", key, **body, run_id="k-run")
    yield _post(live, "/agents/hello/runs", key, **body, run_id="k-run", stream=False, background=True)
    yield _post(live, "/agents/hello/runs", key, **body | {"message": "Bye"}, run_id="k-run", stream=False)
    yield _session(live, "hello", "k")


def refusals(live: Live) -> Any:
    yield _run(live, "nothing", "r0")
    yield _run(live, "hello", "r1", message="")
    yield _run(live, "hello", "r2", timeout=-1)
    yield _run(live, "hello", "r3", max_turns=0)
    yield _run(live, "hello", "r4", output_schema={"type": 5})
    yield _run(live, "hello", "r5", messages=[{"role": "tool", "content": "x"}])
    yield _run(live, "hello", "r6", session_id="r")
    yield _run(live, "hello", "r6", session_id="r")  # its id is taken
    yield _run(live, "stalled", "r7", session_id="r", background=True)
    yield _run(live, "stalled", "r8", session_id="r")  # the session is busy
    yield _cancelled(live, "stalled", "r7")
    yield _post(live, "/agents/hello/runs/r9/cancel")
    yield _post(live, "/agents/hello/runs/r6/continue", stream=False)
    yield _answer(live.client.get("/agents/hello/runs/r8"))


def _cancelled(live: Live, agent: str, run_id: str, **body: Any) -> Any:
    """Cancel it when it has said something."""
    with live.watch(f"/agents/{agent}/runs/{run_id}/events") as stream:
        seen = [next(stream)]
        while seen[-1].event != "RunContent":
            seen.append(next(stream))
        path = f"/agents/{agent}/runs/{run_id}/cancel?wait=30"
        answer = live.client.post(path, json={"reason": "enough", "by": "ann", **body})
        return _answer(answer), [*seen, *stream]


def cancels(live: Live) -> Any:
    for mode in ("now", "after_tools", "after_turn"):
        yield _run(live, "stalled", f"x-{mode}", session_id=f"x-{mode}", background=True)
        grace = {} if mode != "after_turn" else {"grace": 0.0}
        yield _cancelled(live, "stalled", f"x-{mode}", mode=mode, **grace)
        yield _state(live, "stalled", f"x-{mode}")
        yield _session(live, "stalled", f"x-{mode}", user="")
        yield _post(live, f"/agents/stalled/runs/x-{mode}/cancel")
    yield _post(live, "/agents/stalled/runs/x-now/continue", stream=False, background=True, run_id="x-more")
    yield _cancelled(live, "stalled", "x-more")
    yield _post(live, "/agents/stalled/runs/x-more/rollback")
    yield _session(live, "stalled", "x-now", user="")


def cancels_of_one_call(live: Live) -> Any:
    path = "/agents/hanging/runs/y1/tools"
    yield _post(live, f"{path}/h/cancel")
    yield _run(live, "hanging", "y1", session_id="y", background=True)
    with live.watch("/agents/hanging/runs/y1/events") as stream:
        while (frame := next(stream)).event != "ToolCallCompleted":
            pass
        yield frame
        yield _post(live, f"{path}/other/cancel")
        yield _post(live, f"{path}/l/cancel")
        yield _post(live, f"{path}/h/cancel", reason="enough")
        while (frame := next(stream)).event != "RunContent":
            yield frame
        yield frame
        yield _post(live, f"{path}/h/cancel")
    yield _post(live, "/agents/hanging/runs/y1/cancel?wait=30")
    yield _post(live, f"{path}/h/cancel")
    yield _state(live, "hanging", "y1")
    yield _session(live, "hanging", "y", user="")


def lines(live: Live) -> Any:
    """Runs of one session that wait for each other."""
    yield _run(live, "stalled", "l1", session_id="l", background=True)
    for run_id in ("l2", "l3"):
        yield _run(live, "stalled", run_id, session_id="l", background=True, on_busy="queue", message=run_id)
    yield _post(live, "/agents/stalled/runs/l2/cancel?wait=30", reason="enough", by="ann")
    yield _read(live, "stalled", "l2")
    yield _state(live, "stalled", "l2")
    yield _cancelled(live, "stalled", "l1")
    with live.watch("/agents/stalled/runs/l3/events") as stream:
        assert "RunContent" in (frame.event for frame in stream)
    yield _run(live, "stalled", "l4", session_id="l", background=True, on_busy="cancel", message="l4")
    yield _read(live, "stalled", "l3")
    yield _state(live, "stalled", "l3")
    yield _cancelled(live, "stalled", "l4")
    yield _session(live, "stalled", "l", user="")


def questions(live: Live) -> Any:
    yield _stream(live, "/agents/asker/runs", message="Hi", run_id="q1", session_id="q1", user_id="ada")
    yield _state(live, "asker", "q1")
    (question,) = live.client.get("/agents/asker/runs/q1").json()["interrupts"]
    yield _post(live, "/agents/asker/runs/q1/continue", answers={"other": True})
    yield _stream(live, "/agents/asker/runs/q1/continue", answers={question["id"]: True})
    yield _post(live, "/agents/asker/runs/q1/continue", answers={question["id"]: True})
    yield _read(live, "asker", "q1")
    yield _session(live, "asker", "q1")
    yield _run(live, "painter", "q2", session_id="q2")
    (question,) = live.client.get("/agents/painter/runs/q2").json()["interrupts"]
    yield _post(
        live, "/agents/painter/runs/q2/continue", answers={question["id"]: {"choice": ["red", 1]}}, stream=False
    )
    yield _run(live, "asker", "q3", session_id="q3")
    (question,) = live.client.get("/agents/asker/runs/q3").json()["interrupts"]
    yield _post(live, "/agents/asker/runs/q3/continue", answers={question["id"]: {"deny": "no"}}, stream=False)
    yield _state(live, "asker", "q3")
    yield _run(live, "asker", "q4", session_id="q4")
    yield _post(live, "/agents/asker/runs/q4/cancel?wait=30", reason="no")
    yield _state(live, "asker", "q4")


def questions_of_sub_agents(live: Live) -> Any:
    yield _run(live, "asking", "s1", session_id="s1", user_id="ada")
    (question,) = live.client.get("/agents/asking/runs/s1").json()["interrupts"]
    yield _stream(live, "/agents/asking/runs/s1/continue", answers={question["id"]: True}, events="all")
    yield _session(live, "asking", "s1")
    for name in ("s1", "s1.f"):
        yield _read(live, "asking", name)


def _adk(agent: str, session: str, text: str = "Hello", **more: Any) -> dict[str, Any]:
    message = {"role": "user", "parts": [{"text": text}]}
    return {"appName": agent, "userId": "ada", "sessionId": session, "newMessage": message, **more}


def sessions_of_adk(live: Live) -> Any:
    for name in ("hello", "tooled", "failing", "asker"):
        at = f"/apps/{name}/users/ada/sessions/adk"
        yield _post(live, at, colour="red")
        yield _post(live, "/run", **_adk(name, "adk"))
        yield _lines(live, "/run_sse", **_adk(name, "adk"), streaming=True)
        yield _lines(live, "/run_sse", **_adk(name, "adk"), streaming=False)
        yield _answer(live.client.get(at))
    yield _post(live, "/run", **_adk("hello", "unknown"))


def talk_of_adk(live: Live) -> Any:
    for name in ("hello", "tooled"):
        yield _post(live, f"/apps/{name}/users/ada/sessions/talk")
        with _talking(live, name) as socket:
            for text in ("One", "Two"):
                socket.send(json.dumps({"content": {"role": "user", "parts": [{"text": text}]}}))
                yield _turn(socket)
        yield _answer(live.client.get(f"/apps/{name}/users/ada/sessions/talk"))


def talk_that_is_interrupted(live: Live) -> Any:
    yield _post(live, "/apps/stalled/users/ada/sessions/talk")
    with _talking(live, "stalled") as socket:
        for text in ("One", "Two"):
            socket.send(json.dumps({"content": {"role": "user", "parts": [{"text": text}]}}))
            while not (heard := json.loads(socket.recv(timeout=HANG))).get("partial"):
                yield heard
            yield heard
    while (answer := _answer(live.client.get("/apps/stalled/users/ada/sessions/talk")))[2]["events"][-1].get(
        "errorCode"
    ) is None:
        pass
    yield answer


def talk_beside_another_client(live: Live) -> Any:
    """A turn that is over is replaced by none: the next one waits for nobody, and cancels nobody."""
    yield _post(live, "/apps/moody/users/ada/sessions/talk")
    with _talking(live, "moody") as socket:
        for text in ("One", "Two", "Three"):
            if text == "Two":
                yield _run(
                    live, "moody", "w1", "wait", session_id="talk", user_id="ada", background=True, on_busy="queue"
                )
                with live.watch("/agents/moody/runs/w1/events") as stream:
                    assert "RunContent" in (frame.event for frame in stream)
            socket.send(json.dumps({"content": {"role": "user", "parts": [{"text": text}]}}))
            yield _turn(socket)
            if text == "Two":
                yield _post(live, "/agents/moody/runs/w1/cancel?wait=30")
    yield _answer(live.client.get("/apps/moody/users/ada/sessions/talk"))


@contextlib.contextmanager
def _talking(live: Live, agent: str) -> Iterator[Any]:
    query = {"app_name": agent, "user_id": "ada", "session_id": "talk", "modalities": "TEXT"}
    with connect(f"{live.url.replace('http', 'ws')}/run_live?{urlencode(query)}", proxy=None) as socket:
        yield socket


def _turn(socket: Any) -> list[Any]:
    heard = [json.loads(socket.recv(timeout=HANG))]
    while not heard[-1].get("turnComplete"):
        heard.append(json.loads(socket.recv(timeout=HANG)))
    return heard


REQUESTS = [
    a_stream,
    plain_answers,
    streams_of_tools_and_errors,
    in_the_background,
    history_and_prompts,
    idempotency_keys,
    refusals,
    cancels,
    cancels_of_one_call,
    lines,
    questions,
    questions_of_sub_agents,
    sessions_of_adk,
    talk_of_adk,
    talk_that_is_interrupted,
    talk_beside_another_client,
]

# -- comparing --------------------------------------------------------------------------------------------------------


WAITS = {"queued": "pending"}
"""The phase of a run that waits for another one of its session. In the queue it is as pending as every run there."""


def _shape(said: Any, names: dict[str, str]) -> Any:
    """Without times; made-up ids by the order in which they come."""
    if hasattr(said, "event"):
        return said.id, said.event, _shape(said.data, names)
    if isinstance(said, dict):
        if "agent_name" in said and "event" not in said:  # a run as it is, or as it was at its end
            said = {key: value for key, value in said.items() if value not in (None, []) and key not in LIVE}
            if said["status"] == "PAUSED":
                said = {key: value for key, value in said.items() if key not in ("usage", "metrics")}
        return {
            _name(key, names): "?"
            if key in TIMES and value is not None
            else _shape(WAITS.get(value, value) if key == "phase" else value, names)
            for key, value in said.items()
        }
    if isinstance(said, list | tuple):
        return [_shape(each, names) for each in said]
    return _name(said, names) if isinstance(said, str) else said


def _name(text: str, names: dict[str, str]) -> str:
    for word in set(_MADE_UP.findall(text)):
        text = text.replace(word, names.setdefault(word, f"id {len(names)}"))
    return text


_MADE_UP = re.compile(r"[0-9a-f]{32}|[0-9a-f-]{36}")


@pytest.mark.parametrize("requests", REQUESTS, ids=lambda each: each.__name__)
def test_each_answer_is_the_same(both: Both, requests: Callable[[Live], Any]) -> None:
    plain: dict[str, str] = {}
    queued: dict[str, str] = {}
    expected = [_shape(each, plain) for each in requests(both.plain)]
    found = [_shape(each, queued) for each in requests(both.queued)]
    assert len(expected) > 1
    for one, other in zip(expected, found, strict=True):
        differences = list(difflib.unified_diff(_written(one), _written(other), "executing", "queueing", n=4))
        assert not differences, "\n".join(differences)


def _written(shape: Any) -> list[str]:
    return json.dumps(shape, indent=1, sort_keys=True).splitlines()
