# SPDX-License-Identifier: Apache-2.0
"""What workers take, and in which order; what they hand back; and jobs that come twice, late, or never."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest

from andon import Agent, ConfigurationError, Runtime
from andon.core.run.run import LocalRun
from andon.core.shared import claim
from andon.core.shared.run_queue import WINDOW, CutOff, QueuedStart
from andon.errors import MissingExtraError, SchemaError
from andon.models.openai import OpenAIResponses
from andon.models.scripted import Fail, ScriptedModel, Stall
from andon.scale import maintenance, service
from andon.scale.maintenance import QueueMaintenance, queue_of
from andon.scale.service import WorkerService
from andon.store.sql import SQLStore
from andon.store.sql.run_queue import SQLRunQueue
from tests.scale.parts import (
    Crew,
    accepting,
    cancel,
    ended,
    eventually_forgotten,
    pair,
    rows,
    start,
    state,
    told,
    waiting,
    working,
)
from tests.server.live import Live
from tests.store.admin import tell
from tests.store.server import Server
from tests.support import HANG, Flag, Hold, Reach, Silence, Worker, asked, eventually, play
from tests.support.clock import StoppedClock, time_is_up
from tests.support.flags import forever
from tests.support.till import DELETE, Till

# -- what is taken, and when ------------------------------------------------------------------------------------------


def test_a_worker_takes_the_runs_of_its_own_agents_and_queues(shared_url: str) -> None:
    made = {name: pair(name=name, queue=queue) for name, queue in (("a", "fast"), ("b", "slow"), ("c", "fast"))}
    with accepting(shared_url, *(server for server, _ in made.values())) as live:
        for name in made:
            start(live, f"q-{name}", agent=name)
        with working(shared_url, made["a"][1], made["b"][1], queues=["fast"]) as crew:
            assert crew.service.queues == ["fast"]
            assert ended(live, "q-a", "a")["content"] == "OK."
            assert [waiting(shared_url, f"q-{name}") for name in "bc"] == ["sent", "sent"]
        with working(shared_url, made["b"][1], made["c"][1]) as crew:
            assert crew.service.queues == ["slow", "fast"]
            for name in "bc":
                assert ended(live, f"q-{name}", name)["content"] == "OK."
        eventually_forgotten(shared_url)


def test_a_higher_priority_is_taken_first(shared_url: str) -> None:
    made = [pair(name=name, priority=priority) for name, priority in (("low", -1), ("mid", 0), ("high", 7))]
    with accepting(shared_url, *(server for server, _ in made)) as live:
        for server, _ in made:
            start(live, f"p-{server.id}", agent=server.id)
        with working(shared_url, *(agent for _, agent in made), concurrency=1):
            for server, _ in made:
                ended(live, f"p-{server.id}", server.id)
    order = rows(shared_url, "SELECT run_id FROM andon_runs WHERE starts_with(run_id, 'p-') ORDER BY ended")
    assert [run_id for (run_id,) in order] == ["p-high", "p-mid", "p-low"]


@pytest.mark.parametrize("name", ["Ein Agent mit einem sehr langen Namen, der nicht passt", "Ünï"])
def test_any_name_is_served(shared_url: str, name: str) -> None:
    server, agent = pair(name=name, queue="a" * 32)
    with accepting(shared_url, server) as live, working(shared_url, agent):
        start(live, f"n-{server.id}", agent=server.id, session_id=name)
        assert ended(live, f"n-{server.id}", server.id)["content"] == "OK."


def test_a_worker_does_no_more_than_so_many_at_once(shared_url: str) -> None:
    server, agent = pair(then=Stall())
    with accepting(shared_url, server) as live, working(shared_url, agent, concurrency=2) as crew:
        for number in range(WINDOW):
            start(live, f"c{number}")
        busy = "SELECT count(*) FROM andon_runs WHERE ended IS NULL AND owner IS NOT NULL"
        eventually(lambda: crew.service.state.runs == 2)
        assert rows(shared_url, busy) == [(2,)]
        for number in range(WINDOW):
            cancel(live, f"c{number}")
            assert rows(shared_url, busy)[0][0] <= 2


def test_an_agent_that_can_not_be_set_up_fails_its_runs_and_says_why(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    server, _ = pair()
    broken = Agent("Helper", OpenAIResponses("gpt-5"))
    with accepting(shared_url, server) as live, working(shared_url, broken):
        start(live, "k1", session_id="k")
        found = ended(live, "k1")
        assert found["status"] == "ERROR"
        assert "OPENAI_API_KEY" in found["error"]
        start(live, "k2", session_id="k")  # the session is free again
        assert ended(live, "k2")["status"] == "ERROR"
        assert [frame.event for frame in told(live, "k2")] == ["RunStarted", "RunError"]


def test_a_worker_reads_nothing_again_of_a_new_run(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(*_: Any) -> Any:
        raise AssertionError("its claim has brought that")

    server, agent = pair(then=lambda request: request.messages[-1].text)
    with accepting(shared_url, server) as live, working(shared_url, agent) as crew:
        with monkeypatch.context() as patched:
            for name in ("read_events", "history"):
                patched.setattr(crew.runtime.store, name, read)
            start(live, "new1", session_id="new", message="One")
            assert ended(live, "new1")["content"] == "One"
        start(live, "new2", session_id="new", message="Two")
        assert ended(live, "new2")["content"] == "Two"
    (_, second) = asked(agent)
    assert [message.text for message in second.messages] == ["One", "One", "Two"]


# -- jobs -------------------------------------------------------------------------------------------------------------


def send_job(url: str, run_id: str, channel: str = "andon:default:helper", lock: str = "again") -> None:
    values = f"""ROW('{channel}', 'andon.run', 0, NULL, '{lock}', '{{"run_id": "{run_id}"}}'::jsonb, NULL)"""
    tell(url, f"SELECT procrastinate_defer_jobs_v1(ARRAY[{values}]::procrastinate_job_to_defer_v1[])")


def test_jobs_that_come_twice_or_for_nothing_do_no_harm(shared_url: str) -> None:
    server, agent = pair("Once.", then=Fail(AssertionError("twice")))
    with accepting(shared_url, server) as live:
        start(live, "d1")
        for number in range(5):
            send_job(shared_url, "d1", lock=f"d{number}")
        send_job(shared_url, "unknown", lock="unknown")
        with working(shared_url, agent), working(shared_url, pair("Once.")[1]):
            assert ended(live, "d1")["content"] == "Once."
            send_job(shared_url, "d1", lock="late")
            eventually_forgotten(shared_url)
        assert [frame.event for frame in told(live, "d1")][-1] == "RunCompleted"


def test_a_job_that_was_lost_is_sent_again(shared_url: str) -> None:
    server, agent = pair()
    with accepting(shared_url, server, lease=2.0) as live:
        start(live, "j1")
        tell(shared_url, "DELETE FROM procrastinate_jobs")  # a worker has taken it, and died before its claim
        tell(shared_url, "UPDATE andon_waiting SET sent = sent - 100")
        with working(shared_url, agent):
            assert ended(live, "j1")["content"] == "OK."
        eventually_forgotten(shared_url)


def test_what_a_stopped_worker_has_taken_and_not_begun_is_for_another_one(shared_url: str) -> None:
    server, agent = pair(name="first")
    with accepting(shared_url, server) as live:
        with working(shared_url, agent) as crew:
            put_back = Flag()
            handle = crew.service._queue.put_back

            async def note(run_id: str) -> None:
                await handle(run_id)
                put_back.set()

            crew.service._queue.put_back = note  # type: ignore[method-assign]
            crew.service._slots = asyncio.Semaphore(0)  # as if it had as many as it takes
            start(live, "b1", agent="first")
            put_back.wait()
            assert asked(agent) == []
        with working(shared_url, pair(name="first")[1]):
            assert ended(live, "b1", "first")["content"] == "OK."


def test_a_job_that_the_store_does_not_take_back_holds_up_nothing(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        runtime = Runtime(SQLStore(postgres_url))
        agent = pair()[1]
        agent.move_to(runtime)
        service, reached = WorkerService([agent], runtime, concurrency=1), Flag()

        async def hang(run_id: str) -> None:
            reached.set()
            await forever()

        service._queue.put_back = hang  # type: ignore[method-assign]
        service.stop()
        try:
            handling = asyncio.ensure_future(service._handle("r1"))
            await time_is_up(reached)
            await handling
        finally:
            await runtime.close()

    play(main, loop=StoppedClock)
    assert "the job of run r1 could not be given back within 5 s" in caplog.text


class Noticed(dict[Any, Any]):
    """Says when it was looked through."""

    def __init__(self) -> None:
        self.looked = Flag()

    def __iter__(self) -> Iterator[Any]:
        self.looked.set()
        return super().__iter__()


class Slowly:
    """Does something at once, and answers later."""

    def __init__(self, do: Callable[..., Awaitable[Any]]) -> None:
        self._do, self.done, self.go = do, Flag(), Flag()

    async def __call__(self, *arguments: Any) -> Any:
        answer = await self._do(*arguments)
        self.done.set()
        await self.go.arrived()
        return answer


@contextlib.contextmanager
def stopping_at(crew: Crew, slowly: Slowly) -> Iterator[None]:
    """Begin this when the crew has got there. At its end the crew has cancelled all that it knows of."""
    slowly.done.wait()
    cutting = crew.service._runs = Noticed()
    crew.stop()
    cutting.looked.wait()
    yield
    slowly.go.set()


def test_a_run_that_begins_while_its_worker_stops_is_cut_too(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is being made when all the others are cancelled. It is cut at once, and holds nothing up."""
    monkeypatch.setattr(service, "SETTLE_SECONDS", 10 * HANG)
    server, agent = pair(then=["One ", Stall()])
    with accepting(shared_url, server) as live, working(shared_url, agent) as crew:
        [made] = crew.service._agents.values()
        slowly = Slowly(made.begin_queued)
        monkeypatch.setattr(made, "begin_queued", slowly)
        start(live, "r1")
        with stopping_at(crew, slowly):
            pass
        found = ended(live, "r1")
        assert (found["status"], found["receipt"]["cause"]) == ("CANCELLED", "shutdown")
        crew.over.wait()


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_run_that_was_claimed_and_has_not_begun_when_its_worker_stops_is_handed_back(
    shared_url: str, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    """Its claim is on its way when all the others are cancelled. If it was cancelled meanwhile, it ends."""
    monkeypatch.setattr(service, "SETTLE_SECONDS", 10 * HANG)
    run_id = f"r2-{is_cancelled}"
    server, agent = pair()
    with accepting(shared_url, server) as live:
        with working(shared_url, agent) as crew:
            slowly = Slowly(crew.service._queue.claim)
            monkeypatch.setattr(crew.service._queue, "claim", slowly)
            start(live, run_id)
            with stopping_at(crew, slowly):
                assert state(live, run_id)["status"] == "RUNNING"
                if is_cancelled:
                    live.client.post(f"/agents/helper/runs/{run_id}/cancel").raise_for_status()
            crew.over.wait()
        assert asked(agent) == []
        if is_cancelled:
            assert ended(live, run_id)["receipt"]["cause"] == "user"
            assert told(live, run_id)[0].event == "RunStarted"
        else:
            assert (state(live, run_id)["status"], waiting(shared_url, run_id)) == ("PENDING", "sent")
        with working(shared_url, pair()[1]):
            assert ended(live, run_id)["status"] == ("CANCELLED" if is_cancelled else "COMPLETED")
            eventually_forgotten(shared_url)


def test_a_worker_that_is_asked_to_drain_ends(shared_url: str) -> None:
    silence, go = Silence(), Flag()
    server, agent = pair(["One ", Reach(silence.reached), Hold(go), "two."])
    with accepting(shared_url, server) as live, working(shared_url, agent, drain=60.0, name="w1") as crew:
        start(live, "w1")
        silence.reached.wait()
        eventually(lambda: rows(shared_url, "SELECT name FROM andon_workers") == [("w1",)])
        tell(shared_url, "UPDATE andon_workers SET draining = true")
        eventually(crew.service._stopped.is_set)
        start(live, "w2")
        go.set()
        assert ended(live, "w1")["content"] == "One two."
        crew.over.wait()
        assert rows(shared_url, "SELECT name FROM andon_workers") == []
        assert state(live, "w2")["status"] == "PENDING"
        cancel(live, "w2")


def test_a_database_that_does_not_answer_holds_up_no_shutdown(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "SETTLE_SECONDS", 0.1)
    leaving = Flag()

    async def never(name: str) -> None:
        leaving.set()
        await asyncio.Event().wait()

    with working(shared_url, pair()[1], name="kept") as crew:
        eventually(lambda: rows(shared_url, "SELECT name FROM andon_workers WHERE name = 'kept'") != [])
        crew.service._queue.leave = never  # type: ignore[method-assign]
        crew.stop()
        leaving.wait()
        crew.over.wait()
    tell(shared_url, "DELETE FROM andon_workers")


def test_a_second_worker_of_a_name_says_so(shared_url: str, caplog: pytest.LogCaptureFixture) -> None:
    with working(shared_url, pair()[1], name="twin"):
        eventually(lambda: rows(shared_url, "SELECT name FROM andon_workers WHERE name = 'twin'") != [])
        with working(shared_url, pair()[1], name="twin"):
            eventually(lambda: re.search(r"a worker called twin has reported \d+ s ago", caplog.text) is not None)
    caplog.clear()
    with working(shared_url, pair()[1], name="twin") as crew:  # the others have left in good order
        eventually(lambda: crew.service.why_not_ready is None)
    assert "twin" not in caplog.text


def test_a_queue_that_no_agent_has_is_noticed(shared_url: str, caplog: pytest.LogCaptureFixture) -> None:
    agents = [pair(name="a", queue="fast")[1], pair(name="b", queue="slow")[1]]
    with working(shared_url, *agents, queues=["slow", "fsat", "slow"]) as crew:
        assert crew.service.queues == ["slow", "fsat"]
    (said,) = [each.getMessage() for each in caplog.records if "--queues" in each.getMessage()]
    assert said == "no agent of this worker names the queue fsat; they name fast, slow. Look at --queues"
    runtime = Runtime(SQLStore(shared_url))
    with pytest.raises(ConfigurationError, match="queue is 'fast slow'"):
        WorkerService([agents[0].on(runtime)], runtime, concurrency=1, queues=["fast slow"])
    for name in ('a "b"/c', "", "a" * 101):
        with pytest.raises(ConfigurationError, match=r"is not one of 1 to 100 letters, digits and \. _ - : @"):
            WorkerService([agents[0].on(runtime)], runtime, concurrency=1, name=name)
    asyncio.run(runtime.close())


def test_runs_go_on_while_postgres_is_started_again(own_server: Server) -> None:
    url = own_server.url("postgres")
    silence, go = Silence(), Flag()
    server, agent = pair(["One ", Reach(silence.reached), Hold(go), "two."])
    with accepting(url, server, lease=60.0) as live, working(url, agent, lease=60.0, concurrency=1):
        start(live, "o1")
        start(live, "o2")
        silence.reached.wait()
        own_server.kill()
        go.set()
        own_server.start()
        eventually(lambda: live.client.get("/agents/helper/runs/o2").status_code == 200)
        assert ended(live, "o1")["content"] == "One two."
        assert ended(live, "o2")["content"] == "OK."
        start(live, "o3")
        assert ended(live, "o3")["content"] == "OK."


# -- order ------------------------------------------------------------------------------------------------------------


def test_a_session_keeps_its_order_over_several_workers(shared_url: str) -> None:
    server, _ = pair()
    workers = [pair(then=lambda request: request.messages[-1].text)[1] for _ in range(3)]
    with accepting(shared_url, server) as live:
        for number in range(12):
            start(live, f"s{number}", session_id="s", on_busy="queue", message=f"m{number}")
        start(live, "s-no", session_id="s", status=409)
        with working(shared_url, workers[0]), working(shared_url, workers[1]), working(shared_url, workers[2]):
            for number in range(12):
                assert ended(live, f"s{number}")["content"] == f"m{number}"
    said = live_session(shared_url, "s")
    assert said == [text for number in range(12) for text in (f"m{number}", f"m{number}")]


def live_session(url: str, session: str) -> list[str]:
    async def load() -> list[str]:
        from andon import SessionKey

        store = SQLStore(url)
        try:
            return [message.text for message in await store.load(SessionKey("helper", None, session))]
        finally:
            await store.close()

    return asyncio.run(load())


def _asks(live: Live, run_id: str) -> str:
    start(live, run_id)
    assert told(live, run_id)[-1].event == "RunPaused"
    (question,) = state(live, run_id)["interrupts"]
    return str(question["id"])


def _answer(live: Live, run_id: str, question: str, value: Any = True, **more: Any) -> Any:
    body = {"answers": {question: value}, "background": True, "stream": False, **more}
    with live.another_client() as client:
        return client.post(f"/agents/helper/runs/{run_id}/continue", json=body)


def test_of_two_answers_at_once_one_wins_and_the_run_goes_on_once(shared_url: str) -> None:
    till = Till()
    server, agent = pair(DELETE, tools=till.tools)
    with accepting(shared_url, server) as live, accepting(shared_url, pair(tools=Till().tools)[0]) as there:
        with working(shared_url, agent):
            question = _asks(live, "a1")
        answers: list[Any] = []
        asking = [Worker(lambda at=at: answers.append(_answer(at, "a1", question))) for at in (live, there) * 3]  # type: ignore[misc]
        for each in asking:
            each.done()
        assert sorted(each.status_code for each in answers) == [202, 409, 409, 409, 409, 409]
        assert state(live, "a1")["status"] == "PENDING"
        another = pair(tools=till.tools)[1]
        with working(shared_url, another):
            assert ended(there, "a1")["content"] == "OK."
        assert till.did == ["all"]
        seqs = [frame.id for frame in told(live, "a1")]
        assert seqs == list(range(1, len(seqs) + 1))


def test_an_answered_run_that_waits_is_cancelled_at_once(shared_url: str) -> None:
    till = Till()
    server, agent = pair(DELETE, tools=till.tools)
    with accepting(shared_url, server) as live:
        with working(shared_url, agent):
            question = _asks(live, "x1")
        assert _answer(live, "x1", question).status_code == 202
        assert cancel(live, "x1", reason="no")["status"] == "CANCELLED"
        found = ended(live, "x1")
        assert (found["receipt"]["cause"], found["receipt"]["phase"]) == ("user", "paused")
        with working(shared_url, pair(then="More.")[1]):
            start(live, "x2", session_id="x1")
            assert ended(live, "x2")["content"] == "More."
        eventually_forgotten(shared_url)
    assert till.did == []


@pytest.mark.parametrize(("at", "given_back", "status"), [("enlist", 1, "PAUSED"), ("go", 0, "CANCELLED")])
def test_an_answered_run_that_can_not_go_on_is_given_back_once_or_ends(
    shared_url: str, monkeypatch: pytest.MonkeyPatch, at: str, given_back: int, status: str
) -> None:
    """Before it is let in, it stays paused. After that, it ends here, and nothing is given back."""
    run_id, left = f"back-{at}", list[str]()
    leave, go_on = claim._leave, getattr(LocalRun, at)

    def counted(link: Any, which: str, *rest: Any) -> None:
        left.append(which)
        leave(link, which, *rest)

    def breaks(run: LocalRun) -> None:
        if run.run_id == run_id:
            raise RuntimeError("broken, says the test")
        go_on(run)

    till = Till()
    server, agent = pair(DELETE, tools=till.tools)
    with accepting(shared_url, server) as live:
        with working(shared_url, agent):
            question = _asks(live, run_id)
        monkeypatch.setattr(claim, "_leave", counted)
        monkeypatch.setattr(LocalRun, at, breaks)
        assert _answer(live, run_id, question).status_code == 202
        with working(shared_url, pair(tools=till.tools)[1]) as crew:
            eventually(lambda: state(live, run_id)["status"] == status)
            eventually(lambda: not crew.service._executing)
        assert left == [run_id] * given_back
        monkeypatch.undo()
        cancel(live, run_id)
    assert till.did == []


# -- what is said -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"queue": ""}, "queue is ''"),
        ({"queue": "a,b"}, "queue is 'a,b'"),
        ({"queue": "a" * 33}, "1 to 32 letters"),
        ({"queue": None}, "queue is None"),
        ({"priority": "high"}, "priority is 'high'"),
        ({"priority": True}, "priority is True"),
        ({"priority": 10**7}, "at most 1000000"),
        ({"on_lost": "restart"}, 'use "end" or "continue"'),
        ({"on_lost": True}, "on_lost is True"),
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Agent("Helper", ScriptedModel(), **wrong)


def _prepare(url: str) -> None:
    async def prepare() -> None:
        runtime = Runtime(SQLStore(url))
        try:
            await queue_of(runtime).prepare()
        finally:
            await runtime.close()

    asyncio.run(prepare())


def test_tables_of_another_version_are_left_as_they_are(postgres_url: str) -> None:
    _prepare(postgres_url)
    _prepare(postgres_url)
    tell(postgres_url, "DROP FUNCTION procrastinate_fetch_job_v2")
    with pytest.raises(ConfigurationError, match=r"there is no procrastinate_fetch_job_v2\. Apply the migrations"):
        _prepare(postgres_url)
    tell(postgres_url, "UPDATE andon_queue_meta SET version = 99")
    with pytest.raises(SchemaError, match="a queue of version 99"):
        _prepare(postgres_url)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("andon.scale", "procrastinate"))]:
        monkeypatch.delitem(sys.modules, name)
    bring = builtins.__import__

    def without(name: str, *more: Any, **named: Any) -> Any:
        if name.partition(".")[0] == "procrastinate":
            raise ImportError("no procrastinate")
        return bring(name, *more, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r'pip install "andon\[scale\]"'):
        import andon.scale.service  # noqa: F401


# -- going on after a lost worker --------------------------------------------------------------------------------------


def test_a_run_that_was_cut_goes_on_before_what_came_meanwhile(shared_url: str) -> None:
    """Whatever is put behind it, before or after its end, keeps its order."""
    server, stalls = pair(then=["One ", Stall()], on_lost="continue")
    _, agent = pair(then="OK.", on_lost="continue")
    with accepting(shared_url, server) as live:
        with working(shared_url, stalls):
            start(live, "back1", session_id="back")
            eventually(lambda: waiting(shared_url, "back1") == "taken")
            for run_id in ("back2", "back3"):
                start(live, run_id, session_id="back", on_busy="queue", message=run_id)
        assert state(live, "back1")["receipt"]["cause"] == "shutdown"
        start(live, "back4", session_id="back", on_busy="queue", message="back4")
        eventually(lambda: waiting(shared_url, "back1~2") == "sent")
        assert [waiting(shared_url, run_id) for run_id in ("back2", "back3", "back4")] == ["held"] * 3
        with working(shared_url, agent):
            ended(live, "back4")
            order = rows(shared_url, "SELECT run_id FROM andon_runs WHERE session_id = 'back' ORDER BY ended")
            assert [run_id for (run_id,) in order] == ["back1", "back1~2", "back2", "back3", "back4"]
            assert state(live, "back1~2")["continues"] == "back1"
            for run_id in ("back2", "back3", "back4"):  # they have their events and messages still
                assert told(live, run_id)[0].event == "RunStarted"
            found = live.client.get("/agents/helper/sessions/back").json()["messages"]
            asked_for = [message["content"][0]["text"] for message in found if message["role"] == "user"]
            assert [text for text in asked_for if text.startswith("back")] == ["back2", "back3", "back4"]


def test_a_run_that_was_cut_does_not_go_on_behind_one_that_has_begun(
    shared_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server, agent = pair(then=Stall(), on_lost="continue")
    with accepting(shared_url, server) as live:
        with working(shared_url, agent):
            start(live, "e1", session_id="e")
            eventually(lambda: waiting(shared_url, "e1") == "taken")
            start(live, "e2", session_id="e", on_busy="queue")
            tell(shared_url, "UPDATE andon_runs SET owner = 'a server', status = 'RUNNING' WHERE run_id = 'e2'")
        eventually(lambda: "run e1 was cut off, and can't go on: another run has its session" in caplog.text)
        assert waiting(shared_url, "e1~2") is None
        tell(shared_url, "UPDATE andon_runs SET owner = NULL, status = 'PENDING' WHERE run_id = 'e2'")
        cancel(live, "e2")


def _continue(live: Live, run_id: str) -> httpx.Response:
    return live.client.post(f"/agents/helper/runs/{run_id}/continue", json={"stream": False, "background": True})


def test_a_run_that_goes_on_by_itself_is_not_continued_a_second_time(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one could only fail when it begins: a person who asks for it is told so at once."""
    server, stalls = pair(then=["One ", Stall()], on_lost="continue")
    _, agent = pair(then="OK.", on_lost="continue")
    decide, decides = QueueMaintenance._decide, Flag()

    async def later(looks_after: QueueMaintenance, cut: CutOff) -> None:
        if decides.is_set():
            await decide(looks_after, cut)

    monkeypatch.setattr(QueueMaintenance, "_decide", later)
    with accepting(shared_url, server) as live:
        with working(shared_url, stalls):
            start(live, "itself1", session_id="itself")
            eventually(lambda: waiting(shared_url, "itself1") == "taken")
        refused = _continue(live, "itself1")
        assert (refused.status_code, "will soon go on by itself" in refused.text) == (409, True), refused.text
        decides.set()
        eventually(lambda: waiting(shared_url, "itself1~2") == "sent")
        refused = _continue(live, "itself1")
        assert (refused.status_code, "goes on as run 'itself1~2' already" in refused.text) == (409, True), refused.text
        with working(shared_url, agent):
            assert ended(live, "itself1~2")["content"] == "OK."
        found = rows(shared_url, "SELECT run_id FROM andon_runs WHERE session_id = 'itself'")
        assert {run_id for (run_id,) in found} == {"itself1", "itself1~2"}


def test_a_run_that_has_gone_on_is_not_continued_a_second_time(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That was so when a server asked, and is not any more when it puts the run into the queue."""
    put, asks, go = SQLRunQueue.put, Flag(), Flag()

    async def slowly(queue: SQLRunQueue, start: QueuedStart) -> bool:
        if not asks.is_set():
            asks.set()
            await go.arrived()
        return await put(queue, start)

    streams = Flag()
    server, agent = pair(["One ", Reach(streams), Stall()], then="OK.")
    with accepting(shared_url, server) as live, working(shared_url, agent):
        start(live, "gone1", session_id="gone")
        streams.wait()
        cancel(live, "gone1")
        monkeypatch.setattr(SQLRunQueue, "put", slowly)
        answers: list[httpx.Response] = []
        late = Worker(lambda: answers.append(_continue(live, "gone1")))
        asks.wait()
        run_id = _continue(live, "gone1").json()["run_id"]
        assert ended(live, run_id)["status"] == "COMPLETED"
        go.set()
        late.done()
        assert answers[0].status_code == 409
        assert f"goes on as run '{run_id}' already" in answers[0].text


def test_of_two_who_continue_a_run_at_once_one_is_refused(shared_url: str) -> None:
    streams = Flag()
    server, agent = pair(["One ", Reach(streams), Stall()], then="OK.")
    with accepting(shared_url, server) as live:
        with working(shared_url, agent):
            start(live, "both1", session_id="both")
            streams.wait()
            cancel(live, "both1")
        first, second = _continue(live, "both1"), _continue(live, "both1")
        assert (first.status_code, second.status_code) == (202, 409), second.text
        run_id = first.json()["run_id"]
        assert f"goes on as run '{run_id}' already" in second.text
        with working(shared_url, agent):
            assert ended(live, run_id)["status"] == "COMPLETED"


def test_a_cancel_by_a_person_does_not_hold_up_the_next_run(shared_url: str) -> None:
    """Only a run that may go on does, until that is decided."""
    streams = Flag()
    server, agent = pair(["One ", Reach(streams), Stall()], then="OK.", on_lost="continue")
    with accepting(shared_url, server) as live, working(shared_url, agent):
        start(live, "u1", session_id="u")
        streams.wait()
        start(live, "u2", session_id="u", on_busy="cancel")
        assert ended(live, "u2")["content"] == "OK."
        assert state(live, "u1")["receipt"]["cause"] == "superseded"
        assert live.client.get("/agents/helper/runs/u1~2").status_code == 404


def test_a_defect_does_not_hold_up_the_next_run(
    shared_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(cut: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(maintenance, "continuing_start", broken)
    server, stalls = pair(then=["One ", Stall()], on_lost="continue")
    _, agent = pair(then="OK.", on_lost="continue")
    with accepting(shared_url, server) as live:
        with working(shared_url, stalls):
            start(live, "v1", session_id="v")
            eventually(lambda: waiting(shared_url, "v1") == "taken")
            start(live, "v2", session_id="v", on_busy="queue")
        with working(shared_url, agent):
            assert ended(live, "v2")["content"] == "OK."
    assert "run v1 was cut off, and can't go on: ZeroDivisionError" in caplog.text
