# SPDX-License-Identifier: Apache-2.0
"""Running agents by session: what clients are told, what they may say, and what their leaving does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from andon import Agent, tool
from andon.core.states import CancelCause
from andon.errors import ModelError
from andon.messages import Usage
from andon.models.scripted import Call, Fail, Say, ScriptedModel, Spend, Think
from andon.testing import probe
from tests.server.by_session import ABORTED, Client, served, texts
from tests.support import Flag, Hold, Silence, eventually, forever


def test_a_plain_run_gives_whole_events() -> None:
    agent = Agent("Helper", ScriptedModel([Think("Hm. "), Say("Hello to you!"), Spend(Usage(7, 3))]))
    with served(agent) as client:
        client.create()
        (event,) = client.run("Hello")
        assert event["content"] == {
            "role": "model",
            "parts": [{"text": "Hm. ", "thought": True}, {"text": "Hello to you!"}],
        }
        assert event["author"] == "helper"
        assert event["usageMetadata"] == {"promptTokenCount": 7, "candidatesTokenCount": 3, "totalTokenCount": 10}
        assert event["actions"] == {
            "stateDelta": {},
            "artifactDelta": {},
            "requestedAuthConfigs": {},
            "requestedToolConfirmations": {},
        }
        record = agent.runtime.recent(event["invocationId"])
        assert record is not None
        assert record.user_id == "ada"


def test_what_is_unknown_is_left_out() -> None:
    with served(Agent("Helper", ScriptedModel("Hello!"))) as client:
        client.create()
        (event,) = client.run()
        assert "usageMetadata" not in event


def test_a_stream_gives_pieces_and_then_the_whole() -> None:
    with served(Agent("Helper", ScriptedModel([Think("Let me think. "), "One two three"]))) as client:
        client.create()
        with client.stream() as stream:
            *pieces, whole = stream
        assert all(piece["partial"] is True for piece in pieces)
        assert texts(pieces) == ["Let ", "me ", "think. ", "One ", "two ", "three"]
        assert [piece["content"]["parts"][0].get("thought") for piece in pieces] == [True] * 3 + [None] * 3
        assert "partial" not in whole
        assert texts([whole]) == ["Let me think. One two three"]
        assert {piece["id"] for piece in pieces} == {whole["id"]}
        assert client.get()["events"][1]["id"] == whole["id"]


def test_a_stream_without_streaming_gives_whole_events_only() -> None:
    with served(Agent("Helper", ScriptedModel("One two three"))) as client:
        client.create()
        with client.stream(streaming=False) as stream:
            assert texts(list(stream)) == ["One two three"]


def test_results_are_told_while_the_model_is_silent() -> None:
    """Nothing more comes before the test goes on, so they can't have waited for it."""
    go_on = Flag()

    @tool
    async def first() -> str:
        return "one"

    @tool
    async def second() -> str:
        raise ValueError("broken")

    model = ScriptedModel([Call("first"), Call("second")], [Hold(go_on), "Done."])
    with served(Agent("Helper", model, tools=[first, second])) as client:
        client.create()
        with client.stream(streaming=False) as stream:
            calls, results = next(stream), next(stream)
            assert [part["functionCall"]["name"] for part in calls["content"]["parts"]] == ["first", "second"]
            responses = [part["functionResponse"]["response"] for part in results["content"]["parts"]]
            assert responses == [{"result": "one"}, {"error": "ValueError: broken"}]
            go_on.set()
            (answer,) = stream
        assert texts([answer]) == ["Done."]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_cancelled_run_ends_with_an_abort(streaming: bool) -> None:
    silence = Silence()
    agent = Agent("Helper", ScriptedModel(["Once upon a time", silence], "And on."))
    with served(agent) as client:
        client.create()
        with client.stream(streaming=streaming) as stream:
            silence.reached.wait()
            (run_id,) = client.cancel()
            events = [event for event in stream if not event.get("partial")]
        assert texts(events) == ["Once upon a time", ABORTED]
        assert events[-1]["errorMessage"] == "Cancelled by user"
        assert {event["invocationId"] for event in events} == {run_id}
        assert silence.cuts == 1
        assert texts(client.run("Go on")) == ["And on."]
        assert texts(client.get()["events"]) == ["Hello", "Once upon a time", ABORTED, "Go on", "And on."]


def test_every_open_call_of_a_cancelled_run_is_answered() -> None:
    reached = Flag()

    @tool
    async def quick() -> str:
        return "done"

    @tool
    async def slow() -> None:
        reached.set()
        await forever()

    model = ScriptedModel([Call("quick"), Call("slow"), Call("slow")])
    with served(Agent("Helper", model, tools=[quick, slow], parallel_tools=False)) as client:
        client.create()
        with client.stream() as stream:
            reached.wait()
            client.cancel()
            calls, results, end = stream
        ids = [part["functionCall"]["id"] for part in calls["content"]["parts"]]
        responses = [part["functionResponse"] for part in results["content"]["parts"]]
        assert [response["id"] for response in responses] == ids
        assert responses[0]["response"] == {"result": "done"}
        assert "cancelled while it was running" in responses[1]["response"]["error"]
        assert "cancelled before it started" in responses[2]["response"]["error"]
        assert end["errorCode"] == ABORTED


def test_an_event_is_one_line_whatever_is_in_its_text() -> None:
    text = "One\u2028two\u2029three\u0085four\nfive\r\nsix"
    with served(Agent("Helper", ScriptedModel(Say(text, pieces=1)))) as client:
        client.create()
        with client.stream() as stream:
            assert texts(list(stream)) == [text, text]
        assert texts(client.get()["events"]) == ["Hello", text]


def test_a_failure_is_an_event_after_what_was_said() -> None:
    with served(Agent("Helper", ScriptedModel(["So far ", Fail(ModelError("overloaded"))], "Better."))) as client:
        client.create()
        said, end = client.run()
        assert texts([said]) == ["So far "]
        assert (end["errorCode"], end["errorMessage"]) == ("INVOCATION_FAILED", "ModelError: overloaded")
        assert texts(client.run()) == ["Better."]


@pytest.mark.parametrize("silent", [True, False])
@pytest.mark.parametrize("route", ["/run", "/run_sse"])
def test_a_client_that_leaves_cancels_its_run(route: str, silent: bool) -> None:
    silence = Silence()
    agent = Agent("Helper", ScriptedModel([silence] if silent else ["Once upon", silence]))
    with served(agent) as client:
        client.create()
        with client.connect(route):
            silence.reached.wait()
        eventually(lambda: silence.cuts == 1)
        client.settled()
        *_, end = client.get()["events"]
        assert end["errorMessage"] == "Cancelled: the client left"
        (run,) = agent.runtime.ended
        receipt = probe(run).result.receipt
        assert receipt is not None
        assert receipt.cause is CancelCause.disconnect


def test_a_busy_session_is_a_conflict() -> None:
    silence = Silence()
    with served(Agent("Helper", ScriptedModel(silence))) as client:
        client.create()
        with client.stream() as stream:
            silence.reached.wait()
            for route in ("/run", "/run_sse"):
                refused = client.http.post(route, json=client.body("Me too"))
                assert refused.status_code == 409
                assert "is busy" in refused.json()["detail"]
            client.create("s2")
            assert texts(client.run(session="s2")) == ["OK."]
            client.cancel()
            assert texts(list(stream)) == [ABORTED]
        assert texts(client.get()["events"]) == ["Hello", ABORTED]


def test_bodies_may_be_in_snake_case() -> None:
    with served(Agent("Helper", ScriptedModel("Hi."))) as client:
        client.create()
        message = {"parts": [{"text": "One"}, {"text": "two", "thought": None}]}
        body = {"app_name": "helper", "user_id": "ada", "session_id": "s1", "new_message": message}
        for route in ("/run", "/run_sse"):
            assert client.http.post(route, json=body).status_code == 200
        assert client.get()["events"][0]["content"] == {"role": "user", "parts": [{"text": "One\ntwo"}]}


def test_the_only_agent_needs_no_name() -> None:
    with served(Agent("Helper", ScriptedModel())) as client:
        client.create()
        body = client.body("Hello")
        del body["appName"]
        assert client.http.post("/run", json=body).status_code == 200
    with served(Agent("Helper", ScriptedModel()), Agent("Other", ScriptedModel())) as client:
        client.create()
        refused = client.http.post("/run", json=body)
        assert refused.status_code == 422
        assert "helper, other" in refused.json()["detail"]


def test_metadata_and_state_come_along() -> None:
    with served(Agent("Helper", ScriptedModel())) as client:
        client.create(a=1)
        (event,) = client.run(customMetadata={"trace": "t1"}, stateDelta={"b": 2})
        assert event["customMetadata"] == {"trace": "t1"}
        session = client.get()
        assert session["state"] == {"a": 1, "b": 2}
        assert all(each["customMetadata"] == {"trace": "t1"} for each in session["events"])


@pytest.fixture(scope="module")
def idle() -> Iterator[Client]:
    """A client to an agent that nobody may run."""
    with served(Agent("Helper", ScriptedModel())) as client:
        client.create()
        yield client


CALL = {"functionCall": {"name": "search", "args": {}}}


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"appName": "nobody"}, 404, "there is no agent 'nobody'"),
        ({"sessionId": "s9"}, 404, "user 'ada' has no session 's9'"),
        ({"userId": "bob"}, 404, "user 'bob' has no session 's1'"),
        ({"sessionId": None}, 422, "session_id"),
        ({"newMessage": None}, 422, "new_message"),
        ({"newMessage": "Hello"}, 422, "new_message"),
        ({"newMessage": {"parts": "Hello"}}, 422, "a message is"),
        ({"newMessage": {"role": "model", "parts": [{"text": "I said"}]}}, 422, "a message is"),
        ({"newMessage": {"parts": [{"text": "Look:"}, CALL]}}, 415, "functionCall"),
        ({"newMessage": {"parts": ["Hello"]}}, 415, "where text, inline_data or file_data is taken"),
        ({"newMessage": {"parts": [{"text": 5}]}}, 415, "where text, inline_data or file_data is taken"),
        ({"newMessage": {"parts": []}}, 422, "the prompt is empty"),
        ({"newMessage": {"parts": [{"text": " "}]}}, 422, "the prompt is empty"),
        ({"streaming": "perhaps"}, 422, "streaming"),
        ({"stateDelta": [1]}, 422, "state_delta"),
        ({"invocationId": "r1"}, 422, "can't be resumed"),
        ({"functionCallEventId": "e1"}, 422, "can't be resumed"),
    ],
)
@pytest.mark.parametrize("route", ["/run", "/run_sse"])
def test_bad_input_is_refused_before_anything_runs(
    route: str, change: dict[str, Any], status: int, said: str, idle: Client
) -> None:
    refused = idle.http.post(route, json=idle.body("Hello") | change)
    assert refused.status_code == status
    assert said in refused.json()["detail"]
    assert idle.get()["events"] == []
    assert idle.agent.runtime.ended == []


@pytest.mark.parametrize("route", ["/run", "/run_sse", "/apps/helper/users/ada/sessions"])
@pytest.mark.parametrize(("body", "status"), [(b"{", 400), (b"[]", 422), (b'"text"', 422), (b"\xff", 400)])
def test_a_body_that_is_no_object_is_refused(route: str, body: bytes, status: int, idle: Client) -> None:
    refused = idle.http.post(route, content=body, headers={"content-type": "application/json"})
    assert refused.status_code == status
    assert refused.json()["detail"]


@tool(approval=True)
async def delete(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


@tool
async def look() -> str:
    """Look."""
    return "seen"


@pytest.mark.parametrize("beside", [[], [Call("look", id="c2")]], ids=["alone", "beside another"])
def test_a_run_that_asks_a_person_says_which_calls_wait(beside: list[Call]) -> None:
    script = ScriptedModel(["Well. ", Call("delete", {"path": "x"}, id="c1"), *beside], then="Gone.")
    with served(Agent("Helper", script, tools=[delete, look])) as client:
        client.create()
        events = client.run()
        assert texts(events[:1]) == ["".join(["Well. ", "<functionCall>", *["<functionCall>"] * len(beside)])]
        assert events[-1]["longRunningToolIds"] == ["c1"]
        assert len(events) == 1 + len(beside), "it is told with its turn, if that was not told before"
        run_id = events[0]["invocationId"]
        refused = client.http.post("/run", json=client.body("Hello?"))
        assert refused.status_code == 409
        assert f"/runs/{run_id}/continue" in refused.json()["detail"]
        answers = {"answers": {"c1-1": True}, "stream": False}
        assert (
            client.http.post(f"/agents/helper/runs/{run_id}/continue", json=answers).json()["content"] == "Well. Gone."
        )
