# SPDX-License-Identifier: Apache-2.0
"""Sessions over HTTP: made, listed, changed, deleted, and cancelled whatever runs in them."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from andon import Agent, MemoryStore, RunStatus, Runtime, tool
from andon.core.records import SessionKey, SessionRecord
from andon.models.scripted import Call, ScriptedModel, Stall
from andon.server import adk_routes
from andon.testing import probe
from tests.server.by_session import ABORTED, Client, served, texts
from tests.support import Flag, Silence, Worker, eventually, forever

SESSION = {"id", "appName", "userId", "state", "events", "lastUpdateTime"}


def test_a_session_is_made_read_and_listed() -> None:
    with served(Agent("Helper", ScriptedModel())) as client:
        made = client.create(a=1)
        assert made.keys() == SESSION
        assert (made["id"], made["appName"], made["userId"]) == ("s1", "helper", "ada")
        assert (made["state"], made["events"]) == ({"a": 1}, [])
        assert client.get() == made
        sessions = client.http.get("/apps/helper/users/ada/sessions").json()
        assert sessions == [{**made, "state": {}}]  # states are large: whoever wants one asks for that session
        assert client.http.get("/apps/helper/users/bob/sessions").json() == []


def test_a_session_without_an_id_gets_a_fresh_one() -> None:
    with served(Agent("Helper", ScriptedModel())) as client:
        path = "/apps/helper/users/ada/sessions"
        first, second = client.http.post(path).json(), client.http.post(path, json={"state": {"b": 2}}).json()
        assert first["id"] != second["id"]
        assert second["state"] == {"b": 2}
        named = client.http.post(path, json={"sessionId": "mine"})
        assert named.json()["id"] == "mine"
        assert texts(client.run(session="mine")) == ["OK."]


def test_a_session_is_made_once() -> None:
    with served(Agent("Helper", ScriptedModel())) as client:
        client.create(a=1)
        for response in (
            client.http.post(client.path(), json={}),
            client.http.post("/apps/helper/users/ada/sessions", json={"session_id": "s1"}),
        ):
            assert response.status_code == 409
            assert "exists already" in response.json()["detail"]
        assert client.get()["state"] == {"a": 1}


def test_two_users_and_two_agents_never_meet() -> None:
    other = Agent("Other", ScriptedModel())
    with served(Agent("Helper", ScriptedModel()), other) as client:
        client.create()
        client.run("Mine")
        for path in ("/apps/helper/users/bob/sessions/s1", "/apps/other/users/ada/sessions/s1"):
            assert client.http.get(path).status_code == 404
            assert client.http.post(path).status_code == 200
            assert client.http.get(path).json()["events"] == []


@pytest.mark.parametrize("session", ["s1:cancel", "a/b", "a\x00b", "a\nb", "..", "x" * 257])
def test_an_id_that_could_not_be_addressed_is_refused(session: str) -> None:
    with served(Agent("Helper", ScriptedModel())) as client:
        for refused in (
            client.http.post("/apps/helper/users/ada/sessions", json={"sessionId": session}),
            client.http.post("/agents/helper/runs", data={"message": "Hello", "session_id": session}),
        ):
            assert refused.status_code == 422
            assert "can't be the id of a session" in refused.json()["detail"]
        assert client.agent.runtime.runs == client.agent.runtime.ended == []


@pytest.mark.parametrize("user", ["a\x00b", "a\x1bb", "x" * 257])
def test_a_user_that_could_not_be_one_is_refused(user: str) -> None:
    with served(Agent("Helper", ScriptedModel())) as client:
        for refused in (
            client.http.post(f"/apps/helper/users/{quote(user)}/sessions"),
            client.http.post("/agents/helper/runs", data={"message": "Hello", "user_id": user}),
        ):
            assert refused.status_code == 422
            assert "can't be the id of a user" in refused.json()["detail"]


def test_a_session_is_not_made_of_events() -> None:
    with served(Agent("Helper", ScriptedModel())) as client:
        refused = client.http.post("/apps/helper/users/ada/sessions", json={"sessionId": "s1", "events": [{}]})
        assert refused.status_code == 422
        assert client.http.get(client.path()).status_code == 404


def test_the_state_is_patched() -> None:
    with served(Agent("Helper", ScriptedModel())) as client:
        made = client.create(a=1, b=1, c=None)
        assert made["state"] == {"a": 1, "b": 1, "c": None}, "nothing is a state too"
        for name, delta in (("stateDelta", {"b": 2}), ("state_delta", {"c": [3]})):
            patched = client.http.patch(client.path(), json={name: delta})
            assert patched.status_code == 200
        assert patched.json()["state"] == client.get()["state"] == {"a": 1, "b": 2, "c": [3]}
        assert patched.json()["lastUpdateTime"] > made["lastUpdateTime"]
        assert client.http.patch(client.path(), json={}).status_code == 422
        assert client.http.patch(client.path("s9"), json={"stateDelta": {}}).status_code == 404
        assert client.http.patch(client.path(), json={"stateDelta": None}).status_code == 422


def test_what_is_read_twice_is_the_same() -> None:
    @tool
    async def look() -> str:
        return "seen"

    with served(Agent("Helper", ScriptedModel(Call("look"), "Done."), tools=[look])) as client:
        client.create()
        told = client.run()
        events = client.get()["events"]
        assert client.get()["events"] == events
        assert [event["id"] for event in events[1:]] == [event["id"] for event in told]
        assert texts(events) == ["Hello", "<functionCall>", "<functionResponse>", "Done."]
        assert len({event["id"] for event in events}) == 4


def test_a_session_shows_what_is_complete_of_a_run_in_it() -> None:
    silence = Silence()

    @tool
    async def look() -> str:
        return "seen"

    model = ScriptedModel([Call("look")], ["Half of the ans", silence])
    with served(Agent("Helper", model, tools=[look])) as client:
        client.create()
        with client.stream() as stream:
            silence.reached.wait()
            assert texts(client.get()["events"]) == ["Hello", "<functionCall>", "<functionResponse>"]
            client.cancel()
            told = [event for event in stream if not event.get("partial")]
        assert [event["id"] for event in client.get()["events"][1:]] == [event["id"] for event in told]


def test_a_session_of_a_run_that_was_started_by_its_agent_is_there_too() -> None:
    silence = Silence()
    with served(Agent("Helper", ScriptedModel(silence, "And on."))) as client:
        fields = {"message": "Hello", "session_id": "s1", "user_id": "ada", "background": "true", "stream": "false"}
        run_id = client.http.post("/agents/helper/runs", data=fields).json()["run_id"]
        silence.reached.wait()
        assert texts(client.get()["events"]) == ["Hello"]
        assert [each["id"] for each in client.http.get("/apps/helper/users/ada/sessions").json()] == ["s1"]
        assert client.http.post(client.path(), json={}).status_code == 409
        patched = client.http.patch(client.path(), json={"stateDelta": {"a": 1}})
        assert patched.json()["state"] == {"a": 1}
        assert client.cancel() == [run_id]
        client.settled()
        assert texts(client.run("Go on")) == ["And on."]
        session = client.get()
        assert texts(session["events"]) == ["Hello", ABORTED, "Go on", "And on."]
        assert session["state"] == {"a": 1}


def test_a_store_that_knows_no_sessions_says_so() -> None:
    class Runs:
        """The methods that a store must have."""

        def __init__(self) -> None:
            kept = MemoryStore()
            self.load, self.save, self.find = kept.load, kept.save, kept.find
            self.added, self.rollback = kept.added, kept.rollback

    with served(Agent("Helper", ScriptedModel("Hi."), runtime=Runtime(Runs()))) as client:
        refused = client.http.post(client.path())
        assert refused.status_code == 501
        assert "keeps runs and no sessions" in refused.json()["detail"]
        by_run = client.http.post("/agents/helper/runs", data={"message": "Hello", "stream": "false"})
        assert by_run.json()["content"] == "Hi."


# -- cancelling -------------------------------------------------------------------------------------------------------


def test_a_cancel_finds_nothing_where_nothing_runs() -> None:
    with served(Agent("Helper", ScriptedModel())) as client:
        client.create()
        assert client.cancel() == []
        client.run()
        assert client.cancel() == []
        assert texts(client.run()) == ["OK."]  # and leaves nothing behind


def test_a_cancel_of_a_session_that_is_not_there_is_a_404() -> None:
    with served(Agent("Helper", ScriptedModel())) as client:
        for path in (f"{client.path()}:cancel", "/apps/nobody/users/ada/sessions/s1:cancel"):
            missing = client.http.post(path)
            assert missing.status_code == 404
            assert missing.json()["detail"]
        assert client.http.get("/apps/helper/users/ada/sessions").json() == []


def test_a_cancel_takes_those_that_wait_too_and_no_others() -> None:
    first = Silence()
    agent = Agent("Helper", ScriptedModel(first, then=Stall()))
    with served(agent) as client:
        client.create()
        client.create("s2")
        fields = {"message": "Hello", "background": "true", "stream": "false", "on_busy": "queue"}

        def start(session: str, user: str = "ada") -> str:
            wanted = fields | {"session_id": session, "user_id": user}
            run_id = client.http.post("/agents/helper/runs", data=wanted).json()["run_id"]
            assert isinstance(run_id, str)
            return run_id

        running = start("s1")
        first.reached.wait()
        queued = start("s1")
        elsewhere, another = start("s2"), start("s1", "bob")
        assert set(client.cancel()) == {running, queued}
        eventually(lambda: {run.run_id for run in agent.runtime.runs} == {elsewhere, another})
        assert texts(client.get()["events"]) == ["Hello", ABORTED, "Hello", ABORTED]
        assert client.cancel("s2") == [elsewhere]
        assert Client(client.live, agent, "bob").cancel() == [another]
        client.settled()


def test_who_waits_for_a_session_gets_the_receipts() -> None:
    silence = Silence()
    with served(Agent("Helper", ScriptedModel(silence))) as client:
        client.create()
        with client.connect("/run_sse"):
            silence.reached.wait()
            answer = client.http.post(f"{client.path()}:cancel?wait=30", json={"reason": "enough"}).json()
        (run,) = answer["runs"]
        assert answer == {"session_id": "s1", "cancelled": [run["run_id"]], "runs": [run]}
        assert (run["agent_id"], run["outcome"], run["status"]) == ("helper", "requested", "CANCELLED")
        assert (run["receipt"]["reason"], run["receipt"]["leftovers"]) == ("enough", [])
        assert client.http.post(f"{client.path()}:cancel", json={"wait": "long"}).status_code == 422


def test_a_cancel_may_say_why_and_how() -> None:
    silence = Silence()
    agent = Agent("Helper", ScriptedModel(silence))
    with served(agent) as client:
        client.create()
        with client.stream() as stream:
            silence.reached.wait()
            path = f"{client.path()}:cancel"
            assert client.http.post(path, json={"mode": "sometime"}).status_code == 422
            assert client.http.post(path, json={"reason": "enough", "by": "ada"}).status_code == 200
            assert [event["errorMessage"] for event in stream] == ["Cancelled by user"]
        (run,) = agent.runtime.ended
        receipt = probe(run).result.receipt
        assert receipt is not None
        assert (receipt.reason, receipt.by) == ("enough", "ada")


# -- deleting ---------------------------------------------------------------------------------------------------------


def test_a_deleted_session_is_gone() -> None:
    with served(Agent("Helper", ScriptedModel())) as client:
        client.create(a=1)
        client.run()
        deleted = client.http.delete(client.path())
        assert (deleted.status_code, deleted.json()) == (200, None)
        assert client.http.get(client.path()).status_code == 404
        assert client.http.delete(client.path()).status_code == 404
        assert client.create()["state"] == {}
        client.run("Anew")
        assert texts(client.get()["events"]) == ["Anew", "OK."]


def test_deleting_a_session_cancels_what_runs_in_it_first() -> None:
    silence = Silence()
    with served(Agent("Helper", ScriptedModel(silence))) as client:
        client.create()
        with client.stream() as stream:
            silence.reached.wait()
            assert client.http.delete(client.path()).status_code == 200
            assert texts(list(stream)) == [ABORTED]
        assert client.http.get(client.path()).status_code == 404  # and nothing was written into it afterwards


def test_a_change_does_not_bring_a_deleted_session_back() -> None:
    class Fleeting(MemoryStore):
        """It is deleted when someone has just found it."""

        async def find_session(self, session: SessionKey) -> SessionRecord | None:
            found = await super().find_session(session)
            await self.delete_session(session)
            return found

    with served(Agent("Helper", ScriptedModel(), runtime=Runtime(Fleeting()))) as client:
        client.create()
        assert client.http.patch(client.path(), json={"stateDelta": {"a": 1}}).status_code == 404
        assert client.http.get(client.path()).status_code == 404


def test_a_run_that_begins_while_its_session_is_deleted_is_cancelled_too() -> None:
    reached, go, cancelled = Flag(), Flag(), Flag()

    @tool
    async def slow() -> None:
        reached.set()
        try:
            await forever()
        finally:
            cancelled.set()
            await go.arrived()

    agent = Agent("Helper", ScriptedModel(Call("slow"), then=Stall()), tools=[slow])
    with served(agent) as client:
        client.create()
        with client.connect("/run_sse"):
            reached.wait()
            with client.live.another_client() as other:
                deleted: list[int] = []
                deleting = Worker(lambda: deleted.append(other.delete(client.path()).status_code))
                cancelled.wait()
                fields = {"message": "Me too", "session_id": "s1", "user_id": "ada", "run_id": "late"}
                client.live.post("/agents/helper/runs", **fields, background="true", stream="false")
                go.set()
                deleting.done()
        assert deleted == [200]
        assert client.live.run_of(agent, "late").status is RunStatus.cancelled
        assert client.http.get(client.path()).status_code == 404


def test_a_session_whose_run_does_not_end_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adk_routes, "DELETE_SECONDS", 0)
    silence = Silence()
    with served(Agent("Helper", ScriptedModel(silence))) as client:
        client.create()
        with client.stream() as stream:
            silence.reached.wait()
            refused = client.http.delete(client.path())
            assert refused.status_code == 409
            assert "has not ended yet" in refused.json()["detail"]
            assert texts(list(stream)) == [ABORTED]
        assert texts(client.get()["events"]) == ["Hello", ABORTED]
        assert client.http.delete(client.path()).status_code == 200


def test_the_apps_and_the_version_are_known() -> None:
    with served(Agent("Helper", ScriptedModel()), Agent("Other", ScriptedModel())) as client:
        assert client.http.get("/list-apps").json() == ["helper", "other"]
        assert client.http.get("/version").json().keys() == {"version", "language", "language_version"}
        assert client.http.get("/health").json() == {"status": "ok"}
