# SPDX-License-Identifier: Apache-2.0
"""Over HTTP: runs that ask a person, going on after a cut, and the cancel of one call."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from andon import Agent, ModelError, RunStatus, Runtime, ToolContext, tool
from andon.core.run.handle import local_run
from andon.core.run.waits import wait_settled_blocking
from andon.models.scripted import Call, Fail, ScriptedModel
from andon.store.sql import SQLStore
from andon.testing import probe
from tests.server.live import Live, frames, serving, serving_on
from tests.support import Flag, Silence, Worker, eventually, forever

RUNS = "/agents/helper/runs"


@tool(approval=True)
async def delete(path: str) -> str:
    return f"deleted {path}"


@tool
async def paint(ctx: ToolContext) -> str:
    return f"painted it {ctx.interrupt('colour', {'of': ['red', 'blue']})}"


@tool
async def look() -> str:
    return "seen"


def helper(*turns: Any, **options: Any) -> Agent:
    return Agent("Helper", ScriptedModel(*turns, then="OK."), tools=[delete, paint], **options)


def pause(live: Live, run_id: str = "r") -> list[dict[str, Any]]:
    """Start a run that asks, and return what it asks."""
    with live.stream(RUNS, message="Go", run_id=run_id, session_id="s") as stream:
        last = list(stream)[-1]
    assert last.event == "RunPaused"
    interrupts: list[dict[str, Any]] = last.data["interrupts"]
    return interrupts


BOTH = [Call("delete", {"path": "x"}, id="c1"), Call("paint", id="c2")]


def test_a_paused_run_says_what_it_asks_in_both_shapes() -> None:
    with serving(helper(BOTH)) as live:
        with live.stream(RUNS, message="Go", run_id="r", session_id="s") as stream:
            paused = list(stream)[-1].data
        assert [(each["name"], each["payload"]) for each in paused["interrupts"]] == [
            ("delete", {"path": "x"}),
            ("colour", {"of": ["red", "blue"]}),
        ]
        assert [each["tool_call_id"] for each in paused["tools"]] == ["c1", "c2"]
        assert paused["tools"][0]["tool_args"] == {"path": "x"}
        assert paused["tools"][0]["requires_confirmation"] is True
        assert [each["id"] for each in paused["requirements"]] == [each["id"] for each in paused["interrupts"]]
        state = live.client.get(f"{RUNS}/r").json()
        assert (state["status"], state["stop_reason"]) == ("PAUSED", "interrupt")
        assert state["interrupts"] == paused["interrupts"]
        calls = [(each["tool_call_id"], each["tool_name"], each["requires_confirmation"]) for each in state["tools"]]
        assert sorted(calls) == [("c1", "delete", True), ("c2", "colour", True)], "each call is there once"
        busy = live.post(RUNS, message="Hello?", session_id="s")
        assert busy.status_code == 409
        assert "continue_run" in busy.json()["detail"]


def test_our_answers() -> None:
    with serving(helper(BOTH)) as live:
        first, second = pause(live)
        answers = {first["id"]: True, second["id"]: "blue"}
        with live.client.stream("POST", f"{RUNS}/r/continue", json={"answers": answers}) as response:
            text = response.read().decode()
        assert text.startswith("id: ")
        assert "event: RunContinued" in text
        assert "painted it blue" in text
        assert "event: RunCompleted" in text
        with live.watch(f"{RUNS}/r/events") as watched:
            read = list(watched)
        assert [frame.id for frame in read] == list(range(1, len(read) + 1))


@pytest.mark.parametrize("tool", [1, [], {"tool_call_id": [1]}, {"tool_call_id": {"a": 1}, "confirmed": True}])
def test_what_is_no_tool_of_the_family_is_refused(tool: Any) -> None:
    with serving(helper(BOTH)) as live:
        pause(live)
        refused = live.client.post(f"{RUNS}/r/continue", json={"tools": [tool]})
        assert (refused.status_code, "tool_call_id" in refused.json()["detail"]) == (400, True)
        assert live.client.get(f"{RUNS}/r").json()["status"] == "PAUSED"


def test_the_familys_form() -> None:
    with serving(helper(BOTH)) as live:
        pause(live)
        tools = [
            {"tool_call_id": "c1", "tool_name": "delete", "confirmed": False, "confirmation_note": "too risky"},
            {"tool_call_id": "c2", "tool_name": "colour", "result": "red"},
        ]
        done = live.post(f"{RUNS}/r/continue", tools=json.dumps(tools), stream="false", session_id="s", user_id="")
        assert done.status_code == 200, done.text
        body = done.json()
        assert body["status"] == "COMPLETED"
        results = {each["tool_call_id"]: each["content"] for each in body["messages"] if each["role"] == "tool"}
        assert "too risky" in results["c1"]
        assert results["c2"] == "painted it red"


def test_the_familys_form_for_a_call_that_asks_several_things() -> None:
    below = Agent("Below", ScriptedModel([Call("delete", {"path": path}, id=path) for path in "xy"]), tools=[delete])
    agent = Agent("Helper", ScriptedModel(Call("below", {"prompt": "Go"}, id="c1")), tools=[below.as_tool()])
    with serving(agent) as live:
        assert [each["payload"] for each in pause(live)] == [{"path": "x"}, {"path": "y"}]
        tools = [{"tool_call_id": "c1", "confirmed": False}, {"tool_call_id": "c1", "confirmed": True}]
        short = live.client.post(f"{RUNS}/r/continue", json={"tools": tools[:1], "stream": False})
        assert (short.status_code, "no answer to 'c1-1'" in short.text) == (400, True)
        done = live.client.post(f"{RUNS}/r/continue", json={"tools": tools, "stream": False})
        assert done.json()["status"] == "COMPLETED"
        told = {each.call_id: each.content for each in below.model.requests[-1].messages[-1].tool_results}  # type: ignore[union-attr]
        assert "refused" in told["x"]
        assert told["y"] == "deleted y"


def test_the_family_sends_back_every_call_that_it_knows() -> None:
    """Finished ones with their results, and those that it has nothing to say about as they were."""
    turn = [Call("look", id="c0"), *BOTH]
    agent = Agent("Helper", ScriptedModel(turn, BOTH[1], then="OK."), tools=[delete, paint, look])
    with serving(agent) as live:
        pause(live)
        tools = live.client.get(f"{RUNS}/r").json()["tools"]
        by_id = {each["tool_call_id"]: each for each in tools}
        assert set(by_id) == {"c0", "c1", "c2"}
        assert by_id["c0"]["result"] == "seen"
        by_id["c1"]["confirmed"] = True
        refused = live.post(f"{RUNS}/r/continue", tools=json.dumps(tools))
        assert (refused.status_code, [each["call_id"] for each in refused.json()["interrupts"]]) == (400, ["c1", "c2"])
        by_id["c2"]["result"] = "red"
        again = live.post(f"{RUNS}/r/continue", tools=json.dumps(tools), stream="false").json()
        # It asks once more, and what was answered before is sent along.
        assert again["status"] == "PAUSED"
        (asked,) = again["interrupts"]
        tools += [{"tool_call_id": asked["call_id"], "result": "blue"}]
        done = live.post(f"{RUNS}/r/continue", tools=json.dumps(tools), stream="false").json()
        assert done["status"] == "COMPLETED"
        results = [each["content"] for each in done["messages"] if each["role"] == "tool"]
        assert results == ["seen", "deleted x", "painted it red", "painted it blue"]


def test_an_answer_that_comes_after_the_cancel_starts_nothing() -> None:
    with serving(helper(BOTH[0])) as live:
        pause(live)
        live.client.post(f"{RUNS}/r/cancel?wait=30")
        late = live.post(f"{RUNS}/r/continue", tools=json.dumps([{"tool_call_id": "c1", "confirmed": True}]))
        assert (late.status_code, "waits for an answer" in late.json()["detail"]) == (400, True)


def test_a_refusal_with_a_reason() -> None:
    with serving(helper(BOTH[0])) as live:
        (asked,) = pause(live)
        answers = {asked["id"]: {"deny": "not today"}}
        done = live.client.post(f"{RUNS}/r/continue", json={"answers": answers, "stream": False}).json()
        assert "not today" in next(each["content"] for each in done["messages"] if each["role"] == "tool")


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        ({}, 400, "no answer to"),
        ({"answers": {"x": True}}, 400, "no question 'x'"),
        ({"answers": "{"}, 400, "not JSON"),
        ({"answers": "[]"}, 400, "an object"),
        ({"tools": "{}"}, 400, "a list"),
        ({"tools": ["c1"]}, 400, "an object"),
        ({"tools": [{"tool_call_id": "c9", "confirmed": True}]}, 400, "no answer to"),
        ({"tools": [{"tool_call_id": "c1"}]}, 400, "no answer to"),
        ({"tools": [{"tool_call_id": "c1", "confirmed": None, "result": None}]}, 400, "no answer to"),
    ],
)
def test_answers_that_are_none_change_nothing(fields: dict[str, Any], code: int, says: str) -> None:
    agent = helper(BOTH[0])
    with serving(agent) as live:
        pause(live)
        refused = live.client.post(f"{RUNS}/r/continue", json=fields)
        assert refused.status_code == code, refused.text
        assert says in refused.json()["detail"]
        assert live.run_of(agent, "r").status is RunStatus.paused


def test_what_can_not_be_continued() -> None:
    with serving(helper("Done.")) as live:
        assert live.post(f"{RUNS}/nobody/continue").status_code == 404
        assert live.post(RUNS, message="Go", run_id="r", stream="false").json()["status"] == "COMPLETED"
        refused = live.post(f"{RUNS}/r/continue")
        assert refused.status_code == 409
        assert "send another prompt" in refused.json()["detail"]


def test_cancelling_a_paused_run() -> None:
    with serving(helper(BOTH)) as live:
        pause(live)
        cancelled = live.client.post(f"{RUNS}/r/cancel?wait=30").json()
        assert (cancelled["outcome"], cancelled["status"]) == ("requested", "CANCELLED")
        ends = {each["call_id"]: each["outcome"] for each in cancelled["receipt"]["tools"]}
        assert ends == {"c1": "not_started", "c2": "cut"}
        done = live.post(RUNS, message="Hello?", session_id="s", stream="false")
        assert done.json()["content"] == "OK."


def test_going_on_after_a_cut() -> None:
    silence = Silence()
    with serving(helper(["Once upon ", silence], "a time.")) as live:
        started = live.post(RUNS, message="Go", run_id="r", background="true", stream="false", session_id="s")
        assert started.status_code == 202
        silence.reached.wait()
        assert live.client.post(f"{RUNS}/r/cancel?wait=30").status_code == 200
        done = live.post(f"{RUNS}/r/continue", stream="false").json()
        assert (done["status"], done["content"], done["continues"]) == ("COMPLETED", "a time.", "r")


# -- a retry that names its run ---------------------------------------------------------------------------------------


def cut_short(live: Live, silence: Silence, run_id: str = "r", **fields: Any) -> None:
    """Start a run, and cancel it when it has come so far."""
    wanted = {"message": "Go", "run_id": run_id, "session_id": "s", "background": True, "stream": False, **fields}
    assert live.client.post(RUNS, json=wanted).status_code == 202
    silence.reached.wait()
    assert live.client.post(f"{RUNS}/{run_id}/cancel?wait=30").status_code == 200


def test_the_run_that_goes_on_after_a_cut_has_the_id_that_was_asked_for() -> None:
    first, second = Silence(), Silence()
    with serving(helper(["Once upon ", first], ["a time.", second])) as live:
        cut_short(live, first)
        wanted = {"run_id": "n", "background": True, "stream": False}
        done = live.client.post(f"{RUNS}/r/continue", json=wanted)
        assert (done.status_code, done.json()["run_id"]) == (202, "n")
        second.reached.wait()
        for status in ("RUNNING", "CANCELLED"):  # sent again: it says which run that has made, whatever became of it
            again = live.client.post(f"{RUNS}/r/continue", json=wanted)
            assert again.status_code == 409
            assert (again.json()["run_id"], again.json()["status"]) == ("n", status)
            assert "If this request was sent before, it made run 'n'" in again.json()["detail"]
            assert live.client.post(f"{RUNS}/n/cancel?wait=30").status_code == 200
        assert live.client.get(f"{RUNS}/n").json()["continues"] == "r"
        assert {run["run_id"] for run in live.client.get("/runs").json()} == {"r", "n"}
        done = live.post(f"{RUNS}/n/continue", stream="false", run_id="m")  # a form does as well
        assert (done.json()["run_id"], done.json()["continues"], done.json()["content"]) == ("m", "n", "OK.")


def test_an_id_that_is_taken_by_another_session_s_run_is_not_said_to_be_this_one_s() -> None:
    silence = Silence()
    with serving(helper("Hello.", ["Once upon ", silence])) as live:
        assert live.post(RUNS, message="Hi", run_id="other", session_id="t", stream="false").status_code == 200
        cut_short(live, silence)
        refused = live.client.post(f"{RUNS}/r/continue", json={"run_id": "other"})
        assert refused.status_code == 409
        assert "run id 'other' is taken" in refused.json()["detail"]
        assert "run_id" not in refused.json()
        own = live.client.post(f"{RUNS}/r/continue", json={"run_id": "r"})
        assert (own.status_code, "give that one an id of its own" in own.json()["detail"]) == (409, True)
        for odd in ("a b", "a/b", "é", "n" * 257):
            assert live.client.post(f"{RUNS}/r/continue", json={"run_id": odd}).status_code == 422
        assert live.post(f"{RUNS}/r/continue", stream="false", run_id="n" * 256).json()["content"] == "OK."


def test_a_paused_run_goes_on_under_its_own_id() -> None:
    with serving(helper(BOTH[0])) as live:
        (asked,) = pause(live)
        wanted = {"answers": {asked["id"]: True}, "stream": False}
        refused = live.client.post(f"{RUNS}/r/continue", json={**wanted, "run_id": "n"})
        assert refused.status_code == 422
        assert "goes on under its own id, not as 'n'" in refused.json()["detail"]
        assert live.client.get(f"{RUNS}/r").json()["status"] == "PAUSED"
        assert live.client.get(f"{RUNS}/n").status_code == 404
        done = live.client.post(f"{RUNS}/r/continue", json={**wanted, "run_id": "r"})
        assert (done.json()["run_id"], done.json()["status"]) == ("r", "COMPLETED")


def test_the_same_key_goes_on_once() -> None:
    first, second = Silence(), Silence()
    agent = helper(["Once upon ", first], ["a time.", second])
    with serving(agent) as live:
        cut_short(live, first)
        headers = {"idempotency-key": "k"}

        def go_on(**fields: Any) -> Any:
            return live.client.post(f"{RUNS}/r/continue", json={"stream": False, **fields}, headers=headers)

        made = go_on(background=True).json()["run_id"]
        second.reached.wait()
        again = go_on(background=True)
        assert (again.status_code, again.json()["run_id"]) == (202, made)
        for other in ({"run_id": "n"}, {"answers": {"x": True}}):
            assert go_on(**other).status_code == 422
        start = live.client.post(RUNS, json={"message": "Hi", "session_id": "s"}, headers=headers)
        assert (start.status_code, "was used for a different request" in start.json()["detail"]) == (422, True)
        with live.client.stream("POST", f"{RUNS}/r/continue", headers=headers) as response:  # only watches
            assert next(frames(response.iter_lines())).data["run_id"] == made
        assert live.run_of(agent, made).status is RunStatus.running
        live.client.post(f"{RUNS}/{made}/cancel?wait=30")
        assert (go_on().json()["run_id"], go_on().json()["status"]) == (made, "CANCELLED")


def test_the_same_key_answers_a_paused_run_once() -> None:
    with serving(helper(BOTH[0], BOTH[1])) as live:
        (asked,) = pause(live)
        headers, body = {"idempotency-key": "k"}, {"tools": [{"tool_call_id": "c1", "confirmed": True}]}

        def go_on() -> list[tuple[int, str]]:
            with live.client.stream("POST", f"{RUNS}/r/continue", json=body, headers=headers) as response:
                assert response.status_code == 200, response.read()
                return [(frame.id, frame.event) for frame in frames(response.iter_lines())]

        wrong = live.client.post(f"{RUNS}/r/continue", json={"answers": {}}, headers=headers)
        assert wrong.status_code == 400  # and what was refused is not known by its key
        first = go_on()
        assert [first[0][1], first[-1][1]] == ["RunContinued", "RunPaused"]
        assert go_on() == first  # though it asks something else by now
        (other,) = live.client.get(f"{RUNS}/r").json()["interrupts"]
        assert other["id"] != asked["id"]


def test_of_several_requests_with_the_same_key_at_once_one_goes_on(tmp_path: Path) -> None:
    """Also where going on has to wait, for a database."""
    silence, entered, free = Silence(), Flag(), Flag()
    runtime = Runtime(SQLStore(f"sqlite:///{tmp_path}/andon.db"))
    agent = helper(["Once upon ", silence], runtime=runtime)
    with serving(agent) as live:
        cut_short(live, silence)
        added = runtime.store.added  # type: ignore[union-attr]

        async def slowly(run_id: str) -> Any:
            entered.set()
            await free.arrived()
            return await added(run_id)

        runtime.store.added = slowly  # type: ignore[method-assign, union-attr]

        def go_on() -> None:
            with live.another_client() as client:
                answer = client.post(f"{RUNS}/r/continue", json={"stream": False}, headers={"idempotency-key": "k"})
                answers.append((answer.status_code, answer.json().get("run_id")))

        answers: list[tuple[int, str]] = []
        workers = [Worker(go_on) for _ in range(4)]
        entered.wait()
        eventually(lambda: live.connections >= 4)
        free.set()
        for worker in workers:
            worker.done()
        assert [code for code, _ in answers] == [200] * 4, answers
        assert len({run_id for _, run_id in answers}) == 1
    asyncio.run(runtime.close())


def test_leaving_a_run_that_one_has_continued_cancels_it() -> None:
    silence = Silence()
    agent = helper(BOTH[0], silence)
    with serving(agent) as live:
        (asked,) = pause(live)
        body = {"answers": {asked["id"]: True}}
        with live.client.stream("POST", f"{RUNS}/r/continue", json=body) as response:
            assert response.status_code == 200
            silence.reached.wait()
        run = live.run_of(agent, "r")
        assert wait_settled_blocking(local_run(run), 60)
        assert probe(run).result.receipt.cause == "disconnect"  # type: ignore[union-attr]


def test_cancelling_one_call() -> None:
    reached = Flag()

    @tool
    async def stuck() -> str:
        reached.set()
        await forever()

    agent = Agent("Helper", ScriptedModel(Call("stuck", id="c"), then="Then not."), tools=[stuck])
    with serving(agent) as live:
        assert live.post(RUNS, message="Go", run_id="r", background="true", stream="false").status_code == 202
        reached.wait()
        path = f"{RUNS}/r/tools/c/cancel"
        assert live.client.post(f"{RUNS}/r/tools/other/cancel").status_code == 404
        assert live.client.post(path, json={"reason": "x" * 10_001}).status_code == 422
        asked = live.client.post(path, json={"reason": "takes too long"})
        assert (asked.status_code, asked.json()["outcome"]) == (200, "requested")
        run = live.run_of(agent, "r")
        assert wait_settled_blocking(local_run(run), 60)
        assert run.status is RunStatus.completed
        assert live.client.post(path).status_code == 409
        assert live.client.get(f"{RUNS}/r").json()["content"] == "Then not."


def test_paused_runs_take_no_room() -> None:
    with serving(helper(BOTH[0], BOTH[0]), max_runs=1) as live:
        pause(live)
        with live.stream(RUNS, message="Go", session_id="other") as stream:
            assert list(stream)[-1].event == "RunPaused"


def test_a_reader_that_comes_back_to_a_paused_run_is_told_to_ask_no_more() -> None:
    with serving(helper(BOTH[0])) as live:
        pause(live)
        with live.watch(f"{RUNS}/r/events") as watched:
            last = list(watched)[-1].id
        assert live.client.get(f"{RUNS}/r/events", headers={"last-event-id": str(last)}).status_code == 204
        assert live.client.get(f"{RUNS}/r/events", headers={"last-event-id": "9" * 5000}).status_code == 400


def test_answers_that_are_nested_too_deep() -> None:
    with serving(helper(BOTH[0])) as live:
        pause(live)
        assert live.post(f"{RUNS}/r/continue", answers="[" * 100_000).status_code == 400


def test_a_sub_agent_that_shows_its_events_is_no_part_of_an_invocation() -> None:
    young = Agent("Young", ScriptedModel(["I see. ", Fail(ModelError("broken"))]))
    old = Agent("Helper", ScriptedModel(Call("young", {"prompt": "look"}), "Well."), tools=[young.as_tool(events=True)])
    with serving(old) as live:
        path = "/apps/helper/users/ada/sessions"
        assert live.client.post(path, json={"sessionId": "s"}).status_code == 200
        message = {"role": "user", "parts": [{"text": "Go"}]}
        body = {"appName": "helper", "userId": "ada", "sessionId": "s", "newMessage": message}
        events = live.client.post("/run", json=body)
        assert events.status_code == 200, events.text
        texts = [part.get("text") for event in events.json() for part in event.get("content", {}).get("parts", [])]
        assert texts[-1] == "Well."
        assert "I see. " not in texts
        state = live.client.get(f"{RUNS}/{events.json()[-1]['invocationId']}").json()
        assert state["content"] == "Well."


# -- limits and a schema for the run that goes on ---------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
OTHER = {"type": "object", "properties": {"y": {"type": "integer"}}, "required": ["y"]}


def test_a_schema_is_kept_for_the_run_that_goes_on_after_a_cut() -> None:
    """And for the run after that one."""
    first, second = Silence(), Silence()
    agent = Agent("Helper", ScriptedModel(["Once ", first], ["No JSON", second], then='{"x": 1}'))
    with serving(agent) as live:
        cut_short(live, first, output_schema=SCHEMA)
        go_on_and_cut(live, second)
        assert output_of(live, "n") == {"x": 1}


def test_a_database_keeps_it_for_another_server(tmp_path: Path) -> None:
    first, second, url = Silence(), Silence(), f"sqlite:///{tmp_path / 'a.db'}"
    with serving_on(url, Agent("Helper", ScriptedModel(["Once ", first], ["No JSON", second]))) as live:
        cut_short(live, first, output_schema=SCHEMA)
        go_on_and_cut(live, second)
    with serving_on(url, Agent("Helper", ScriptedModel(then='{"x": 1}'))) as live:
        assert output_of(live, "r") is None, "its session has gone on"
        assert output_of(live, "n") == {"x": 1}


def go_on_and_cut(live: Live, silence: Silence) -> None:
    assert live.post(f"{RUNS}/r/continue", run_id="n", background="true", stream="false").status_code == 202
    silence.reached.wait()
    assert live.client.post(f"{RUNS}/n/cancel?wait=30").status_code == 200


def output_of(live: Live, run_id: str) -> Any:
    return live.post(f"{RUNS}/{run_id}/continue", stream="false").json().get("output")


def test_a_run_that_goes_on_after_a_cut_takes_a_schema_and_limits_of_its_own() -> None:
    first = Silence()
    agent = Agent("Helper", ScriptedModel(["Once ", first], '{"y": 2}', then=BOTH[0]), tools=[look], max_turns=5)
    with serving(agent) as live:
        cut_short(live, first, output_schema=SCHEMA)
        for fields, says in (
            ({"max_turns": 6}, "max_turns is 6; this agent allows 5 at the most"),
            ({"timeout": -1}, "timeout is -1"),
            ({"budget": {"token": 1}}, "budget has 'token'"),
            ({"output_schema": {"type": "object", "nonsense": 1}}, "nonsense"),
        ):
            refused = live.client.post(f"{RUNS}/r/continue", json=fields)
            assert (refused.status_code, says in refused.json()["detail"]) == (422, True)
        done = live.client.post(f"{RUNS}/r/continue", json={"stream": False, "output_schema": OTHER}).json()
        assert done["output"] == {"y": 2}


@pytest.mark.parametrize(
    ("fields", "ended"),
    [({"max_turns": 1}, "max_turns"), ({"timeout": 0}, "deadline"), ({"budget": {"tool_calls": 0}}, "budget")],
)
def test_its_limits_hold(fields: dict[str, Any], ended: str) -> None:
    first = Silence()
    agent = Agent("Helper", ScriptedModel(["Once ", first], then=Call("look")), tools=[look])
    with serving(agent) as live:
        cut_short(live, first)
        done = live.client.post(f"{RUNS}/r/continue", json={"stream": False, **fields}).json()
        assert ended == (done["receipt"]["cause"] if done["receipt"] else done["stop_reason"])


@pytest.mark.parametrize("fields", [{"timeout": 9}, {"max_turns": 1}, {"budget": 9}, {"output_schema": SCHEMA}])
def test_a_paused_run_keeps_its_options(fields: dict[str, Any]) -> None:
    with serving(helper(BOTH[0])) as live:
        (asked,) = pause(live)
        wanted = {"answers": {asked["id"]: True}, "stream": False}
        refused = live.client.post(f"{RUNS}/r/continue", json={**wanted, **fields})
        (name,) = fields
        assert refused.status_code == 422
        assert refused.json()["detail"].startswith(f"run 'r' is paused, and keeps its options: leave out {name}.")
        assert live.client.get(f"{RUNS}/r").json()["status"] == "PAUSED"
        assert live.client.post(f"{RUNS}/r/continue", json=wanted).json()["status"] == "COMPLETED"


def test_nor_does_one_that_is_at_work_take_any() -> None:
    silence = Silence()
    with serving(helper(["Once ", silence])) as live:
        live.post(RUNS, message="Go", run_id="r", background="true", stream="false")
        silence.reached.wait()
        refused = live.client.post(f"{RUNS}/r/continue", json={"max_turns": 1})
        assert (refused.status_code, "is running: wait for its end" in refused.json()["detail"]) == (409, True)
