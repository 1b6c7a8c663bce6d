# SPDX-License-Identifier: Apache-2.0
"""Starting runs: as a stream, for a plain answer, in the background; and reading them, also from the middle."""

from __future__ import annotations

from typing import Any

import pytest

from andon import Agent, ModelError, RunStatus, Trim, tool
from andon.models.scripted import Call, Fail, Say, ScriptedModel, Spend, Think
from andon.server import idempotency_keys
from andon.store import memory
from tests.server.live import Frame, frames, serving
from tests.support import Do, Flag, Hold, Silence, Worker

RUNS = "/agents/helper/runs"
SPENT = Spend(input_tokens=10, output_tokens=5)


def helper(*turns: Any, then: Any = "OK.", **options: Any) -> Agent:
    return Agent("Helper", ScriptedModel(*turns, then=then), **options)


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def boom() -> str:
    """Fail."""
    raise ValueError("it broke")


def kinds(read: list[Frame]) -> list[str]:
    return [frame.event for frame in read]


# -- the stream -------------------------------------------------------------------------------------------------------


def test_a_stream_has_the_fields_of_its_family_and_our_own() -> None:
    agent = helper(
        [Think("Hm, numbers."), Call("add", {"a": 2, "b": 3}), Call("boom")], ["It is 5.", SPENT], tools=[add, boom]
    )
    with serving(agent) as live, live.stream(RUNS, message="2 + 3?", session_id="s1", user_id="ada") as stream:
        read = list(stream)
    assert [frame.id for frame in read] == list(range(1, len(read) + 1))
    for frame in read:
        data = frame.data
        assert data["event"] == frame.event
        assert data["agent_id"] == "helper"
        assert data["agent_name"] == "Helper"
        assert data["session_id"] == "s1"
        assert data["run_id"] == read[0].data["run_id"]
        assert isinstance(data["created_at"], int)
        assert data["seq"] == frame.id
        assert data["event_index"] == frame.id - 1
    first, last = read[0].data, read[-1].data
    assert (first["event"], first["model"], first["model_provider"]) == ("RunStarted", "scripted", "Andon")
    thoughts = [frame.data["reasoning_content"] for frame in read if frame.event == "ReasoningContentDelta"]
    assert "".join(thoughts) == "Hm, numbers."
    said = [frame.data for frame in read if frame.event == "RunContent"]
    assert {data["content_type"] for data in said} == {"str"}
    assert "".join(data["content"] for data in said) == "It is 5."
    started = next(frame.data["tool"] for frame in read if frame.event == "ToolCallStarted")
    assert started.pop("created_at") > 0
    assert started == {"tool_call_id": "call_1", "tool_name": "add", "tool_args": {"a": 2, "b": 3}}
    done = next(frame.data["tool"] for frame in read if frame.event == "ToolCallCompleted")
    assert (done["result"], done["tool_call_error"], done["outcome"]) == ("5", False, "completed")
    failed = next(frame.data["tool"] for frame in read if frame.event == "ToolCallError")
    assert failed["tool_call_error"] is True
    assert "it broke" in failed["result"]
    assert (last["event"], last["status"], last["content"]) == ("RunCompleted", "COMPLETED", "It is 5.")
    assert last["usage"]["output_tokens"] is None, "unknown is not zero"
    assert "output_tokens" not in last["metrics"]


def test_a_retry_is_told_to_clients_that_ask_for_all_events() -> None:
    overloaded = Fail(ModelError("overloaded", retryable=True, retry_after=0))
    for events, told in (("all", [("ModelRetry", "ModelError: overloaded", 0.0)]), (None, [])):
        with serving(helper(overloaded)) as live, live.stream(RUNS, message="Hello", events=events or "") as stream:
            read = [frame.data for frame in stream]
        assert [(each["event"], each["error"], each["delay"]) for each in read if each["event"] == "ModelRetry"] == told
        assert read[-1]["content"] == "OK."


def test_a_shortened_context_is_told_to_clients_that_ask_for_all_events() -> None:
    with serving(helper(context=Trim(messages=1))) as live:
        live.post(RUNS, message="Hello", session_id="s", stream="false")
        for events in ("all", ""):
            with live.stream(RUNS, message="Hello again", session_id="s", events=events) as stream:
                told = [frame.data["context"] for frame in stream if frame.event == "ContextReduced"]
            assert [set(each) for each in told] == ([FIELDS] if events else [])


FIELDS = {"messages_before", "messages_after", "tokens_before", "tokens_after"}


def test_a_stream_is_not_to_be_buffered_or_cached() -> None:
    with serving(helper("Hello!")) as live, live.client.stream("POST", RUNS, data={"message": "Hi"}) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache, no-transform"
        assert response.headers["x-accel-buffering"] == "no"
        assert kinds(list(frames(response.iter_lines())))[-1] == "RunCompleted"


def test_events_come_when_they_happen() -> None:
    go = Flag()
    with serving(helper(["One ", Hold(go), "two."])) as live, live.stream(RUNS, message="Count.") as stream:
        assert next(stream).event == "RunStarted"
        assert next(stream).data["content"] == "One "
        go.set()
        assert kinds(list(stream)) == ["RunContent", "RunCompleted"]


def test_a_failed_run_says_why() -> None:
    agent = helper(["Well, ", Fail(ModelError("no credit"))])
    with serving(agent) as live:
        with live.stream(RUNS, message="Hi") as stream:
            last = list(stream)[-1].data
        state = live.client.get(f"{RUNS}/{last['run_id']}").json()
    assert (last["event"], last["status"]) == ("RunError", "ERROR")
    assert last["error"] == last["content"] == "ModelError: no credit"
    assert (state["status"], state["content"], state["error"]) == ("ERROR", "Well, ", "ModelError: no credit")


@pytest.mark.parametrize("text", ["a\u2028b\u2029c\u0085d", "\r\n\x0b\x0c\x1c", "half \ud83d of a pair", "\x00"])
def test_no_text_breaks_a_line(text: str) -> None:
    with serving(helper([Say(text, pieces=1)])) as live, live.stream(RUNS, message="Hi") as stream:
        told = text.replace("\ud83d", "?")  # half a character can't be written down
        assert [frame.data["content"] for frame in stream if frame.event == "RunContent"] == [told]


def test_silence_is_filled_with_comments() -> None:
    go = Flag()
    agent = helper([Hold(go), "Done."])
    with serving(agent, heartbeat=0.01) as live, live.client.stream("POST", RUNS, data={"message": "Hi"}) as response:
        beats = 0
        lines = []
        for line in response.iter_lines():
            lines.append(line)
            beats += line.startswith(":")
            if beats == 3:
                go.set()
    assert kinds(list(frames(lines))) == ["RunStarted", "RunContent", "RunCompleted"]


# -- plain, and in the background -------------------------------------------------------------------------------------


def test_a_plain_answer_is_the_result() -> None:
    agent = helper([Call("add", {"a": 2, "b": 3}), SPENT], ["It is 5.", SPENT], tools=[add])
    with serving(agent) as live:
        response = live.post(RUNS, message="2 + 3?", stream="false", session_id="s1", user_id="ada")
    output = response.json()
    assert response.status_code == 200
    assert output["content"] == "It is 5."
    assert (output["status"], output["stop_reason"], output["receipt"]) == ("COMPLETED", "end_turn", None)
    assert (output["agent_id"], output["agent_name"]) == ("helper", "Helper")
    assert (output["session_id"], output["user_id"]) == ("s1", "ada")
    assert [message["role"] for message in output["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert output["messages"][1]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a":2,"b":3}'}
    assert output["messages"][2]["tool_call_id"] == "call_1"
    assert [each["result"] for each in output["tools"]] == ["5"]
    assert output["metrics"] == {"input_tokens": 20, "output_tokens": 10, "total_tokens": 30}
    assert (output["model"], output["content_type"]) == ("scripted", "str")


def test_json_works_as_well_as_a_form() -> None:
    with serving(helper("Hello!")) as live:
        asked = {"message": "Hi", "stream": False, "session_id": None, "timeout": 30}
        assert live.client.post(RUNS, json=asked).json()["content"] == "Hello!"
        parts = {"message": (None, "Hi"), "stream": (None, "False")}
        assert live.client.post(RUNS, files=parts).json()["content"] == "OK."


def test_without_a_session_each_request_has_its_own() -> None:
    agent = helper()
    with serving(agent) as live:
        answers = [
            live.post(RUNS, message="Hi", stream="false", **more).json() for more in ({}, {"session_id": ""}, {})
        ]
        users = [live.post(RUNS, message="Hi", stream="false", user_id="ada").json() for _ in range(2)]
    sessions = {each["session_id"] for each in answers + users}
    assert len(sessions) == 5
    assert agent.session_id not in sessions
    assert agent.messages == []


def test_a_session_goes_on() -> None:
    with serving(helper("One.", "Two.")) as live:
        live.post(RUNS, message="First", stream="false", session_id="s1")
        output = live.post(RUNS, message="Second", stream="false", session_id="s1").json()
        other = live.post(RUNS, message="Third", stream="false", session_id="s1", user_id="ada").json()
    assert [message["content"] for message in output["messages"]] == ["First", "One.", "Second", "Two."]
    assert len(other["messages"]) == 2


def test_in_the_background_the_answer_comes_at_once() -> None:
    go = Flag()
    agent = helper([Hold(go), "Done."])
    with serving(agent) as live:
        response = live.post(RUNS, message="Hi", background="true", stream="false", run_id="r1", session_id="s1")
        assert response.status_code == 202
        assert response.json() == {"run_id": "r1", "session_id": "s1", "status": "PENDING"}
        with live.watch(f"{RUNS}/r1/events") as stream:
            assert next(stream).event == "RunStarted"
            assert live.client.get(f"{RUNS}/r1").json()["status"] == "RUNNING"
            go.set()
            assert kinds(list(stream)) == ["RunContent", "RunCompleted"]
        assert live.client.get(f"{RUNS}/r1").json()["content"] == "Done."


def test_a_timeout_ends_a_run() -> None:
    with serving(helper(Silence())) as live:
        output = live.post(RUNS, message="Hi", stream="false", timeout="0.05").json()
    assert (output["status"], output["receipt"]["cause"]) == ("CANCELLED", "deadline")


# -- watching ---------------------------------------------------------------------------------------------------------


def test_a_reader_goes_on_where_it_was_also_after_the_end() -> None:
    with serving(helper([Say("a b c d", pieces=4)])) as live:
        with live.stream(RUNS, message="Hi", run_id="r1") as stream:
            whole = list(stream)
        for after in range(len(whole)):
            with live.watch(f"{RUNS}/r1/events", after) as stream:
                assert list(stream) == whole[after:]
        with live.watch(f"{RUNS}/r1/events?last_event_id=2") as stream:
            assert list(stream) == whole[2:]
        # A browser that comes back after the end is told to stop asking.
        assert live.client.get(f"{RUNS}/r1/events", headers={"last-event-id": str(len(whole))}).status_code == 204


def test_the_family_reattaches_by_index() -> None:
    with serving(helper([Say("a b c d", pieces=4)])) as live:
        with live.stream(RUNS, message="Hi", run_id="r1") as stream:
            whole = list(stream)
        for fields, rest in (({"last_event_index": 2}, whole[3:]), ({}, whole)):
            with live.stream(f"{RUNS}/r1/resume", **fields) as stream:
                assert list(stream) == rest


def test_many_watch_one_run_and_leave_as_they_like() -> None:
    go, here = Flag(), Flag()
    agent = helper(["One ", Do(here.set), Hold(go), "two."])
    with serving(agent) as live:
        live.post(RUNS, message="Count.", background="true", stream="false", run_id="r1")
        here.wait()
        read: list[list[str]] = []

        def watch() -> None:
            with live.another_client() as client, client.stream("GET", f"{RUNS}/r1/events") as response:
                read.append(kinds(list(frames(response.iter_lines()))))

        watchers = [Worker(watch) for _ in range(20)]
        for _ in range(5):
            with live.watch(f"{RUNS}/r1/events") as stream:
                assert next(stream).event == "RunStarted"
        go.set()
        for watcher in watchers:
            watcher.done()
    assert read == [["RunStarted", "RunContent", "RunContent", "RunCompleted"]] * 20
    assert live.run_of(agent, "r1").status is RunStatus.completed


def test_events_that_the_family_does_not_know_are_for_who_asks() -> None:
    silence = Silence()
    agent = helper(then=silence)
    with serving(agent) as live:
        for run_id, more in (("r1", {}), ("r2", {"events": "all"})):
            with live.stream(RUNS, message="Hi", run_id=run_id, **more) as stream:
                assert next(stream).event == "RunStarted"
                silence.reached.wait()
                live.client.post(f"{RUNS}/{run_id}/cancel")
                rest = kinds(list(stream))
                assert rest == (["CancelRequested", "RunCancelled"] if more else ["RunCancelled"])
        with live.watch(f"{RUNS}/r1/events") as stream:
            assert kinds(list(stream)) == ["RunStarted", "CancelRequested", "RunCancelled"]


# -- once more --------------------------------------------------------------------------------------------------------


def test_the_same_key_is_the_same_run() -> None:
    agent = helper("One.", "Two.", "Three.")
    with serving(agent) as live:

        def ask(key: str, **more: str) -> dict[str, Any]:
            fields = {"message": "Hi", "stream": "false", **more}
            answer: dict[str, Any] = live.client.post(RUNS, data=fields, headers={"idempotency-key": key}).json()
            return answer

        first, again, other, ada = ask("k1"), ask("k1"), ask("k2"), ask("k1", user_id="ada")
        with live.client.stream("POST", RUNS, data={"message": "Hi"}, headers={"idempotency-key": "k1"}) as response:
            assert {frame.data["run_id"] for frame in frames(response.iter_lines())} == {first["run_id"]}
    assert again == first
    assert [each["content"] for each in (first, other, ada)] == ["One.", "Two.", "Three."]


def test_the_same_key_is_not_another_request() -> None:
    with serving(helper("One.")) as live:

        def ask(message: str, **more: str) -> Any:
            fields = {"message": message, "stream": "false", **more}
            return live.client.post(RUNS, data=fields, headers={"idempotency-key": "k1"})

        first = ask("Hi", session_id="s1").json()
        for other in (ask("Bye", session_id="s1"), ask("Hi", session_id="s2"), ask("Hi", session_id="s1", timeout="5")):
            assert other.status_code == 422
            assert "'k1' was used for a different request" in other.json()["detail"]
        assert ask("Hi", session_id="s1").json()["run_id"] == first["run_id"]


def test_a_key_whose_run_is_not_known_any_more_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been a payment: to forget how it went is no reason to pay twice."""
    monkeypatch.setattr(memory, "RECORDS_KEPT", 0)
    agent = helper("One.", "Two.")
    agent.runtime.keep_ended(seconds=0)
    with serving(agent) as live:

        def ask(key: str) -> Any:
            fields = {"message": "Hi", "stream": "false"}
            return live.client.post(RUNS, data=fields, headers={"idempotency-key": key})

        first, again = ask("k1").json(), ask("k1")
        assert (again.status_code, again.json()["run_id"]) == (409, first["run_id"])
        assert "of which nothing is kept: use a new one" in again.json()["detail"]
        assert (first["content"], ask("k2").json()["content"]) == ("One.", "Two.")


def test_keys_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency_keys, "KEYS_OF_A_USER", 2)
    with serving(helper()) as live:

        def ask(key: str) -> str:
            answer = live.client.post(RUNS, json={"message": "Hi", "stream": False}, headers={"idempotency-key": key})
            return str(answer.json()["run_id"])

        long = live.client.post(RUNS, json={"message": "Hi"}, headers={"idempotency-key": "k" * 257})
        assert long.status_code == 422
        first, second, third = map(ask, ("k1", "k2", "k3"))
        assert (ask("k2"), ask("k3")) == (second, third)
        assert ask("k1") != first
