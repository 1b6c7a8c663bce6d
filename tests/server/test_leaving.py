# SPDX-License-Identifier: Apache-2.0
"""Clients that leave, in every state and in every way, that stall, or that only ever listened.

No heartbeat comes in these tests, and nothing is sent that would fail: what is noticed is noticed by listening.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from andon import Agent, Run, RunStatus, ToolContext, tool
from andon.models.scripted import Burst, Call, ScriptedModel, Stall
from andon.server.agentos_json import EventWriter
from andon.testing import probe
from tests.server.live import Live, frames, read_until, reset, serving
from tests.support import Do, Flag, Hold, Reach, eventually, forever

RUNS = "/agents/helper/runs"


@dataclass
class State:
    """An agent that comes into one state and stays there, and what to wait for."""

    agent: Agent
    reached: Flag
    phase: str
    queued: bool = False


def silent() -> State:
    reached = Flag()
    return State(Agent("Helper", ScriptedModel([Reach(reached), Stall()])), reached, "waiting")


def stalled() -> State:
    reached = Flag()
    return State(Agent("Helper", ScriptedModel(["Once upon", Reach(reached), Stall()])), reached, "streaming")


def streaming() -> State:
    reached = Flag()

    def endless() -> object:
        while True:
            yield "word "
            reached.set()

    model = ScriptedModel(lambda request: endless(), pace=0.001)  # type: ignore[arg-type,return-value]
    return State(Agent("Helper", model), reached, "streaming")


def in_a_tool() -> State:
    reached = Flag()

    @tool
    async def wait() -> None:
        reached.set()
        await forever()

    return State(Agent("Helper", ScriptedModel(Call("wait")), tools=[wait]), reached, "tools")


def in_a_blocking_tool() -> State:
    reached = Flag()

    @tool
    def wait(ctx: ToolContext) -> None:
        told = threading.Event()
        ctx.on_cancel(told.set)
        reached.set()
        told.wait()

    return State(Agent("Helper", ScriptedModel(Call("wait")), tools=[wait]), reached, "tools")


def queued() -> State:
    state = silent()
    state.queued, state.phase = True, "queued"
    return state


STATES = [silent, stalled, streaming, in_a_tool, in_a_blocking_tool, queued]
LEAVINGS: list[Callable[[socket.socket], None]] = [
    socket.socket.close,
    reset,
    lambda bare: bare.shutdown(socket.SHUT_WR),
]


def arrive(live: Live, state: State, bare: socket.socket, **fields: str) -> Run:
    """Start a run over this connection, and wait until it is in its state."""
    more = {"message": "Hi", "session_id": "s1", "run_id": "r1", **fields}
    if state.queued:
        live.post(RUNS, message="Hi", session_id="s1", run_id="r0", background="true", stream="false")
        more["on_busy"] = "queue"
    live.send(bare, RUNS, **more)
    state.reached.wait()
    eventually(lambda: (run := state.agent.runtime.run("r1")) is not None and run.phase == state.phase)
    return live.run_of(state.agent, "r1")


def ended(run: Run) -> Run:
    assert probe(run).settled_blocking(60)
    return run


@pytest.mark.parametrize("stream", ["true", "false"])
@pytest.mark.parametrize("make", STATES)
def test_who_started_a_run_and_leaves_cancels_it(make: Callable[[], State], stream: str) -> None:
    state = make()
    with serving(state.agent) as live:
        bare = live.connect()
        run = arrive(live, state, bare, stream=stream)
        bare.close()
        result = probe(ended(run)).result
        assert result.status is RunStatus.cancelled
        assert result.receipt is not None
        assert result.receipt.cause == "disconnect"
        assert result.receipt.phase == state.phase
        assert result.receipt.leftovers == []
        if state.queued:
            assert live.run_of(state.agent, "r0").status is RunStatus.running
            live.client.post(f"{RUNS}/r0/cancel?wait=5")
        # The session goes on.
        state.agent.model = ScriptedModel("Here again.")
        output = live.post(RUNS, message="And now?", session_id="s1", stream="false").json()
        assert output["content"] == "Here again."
        assert "Cancelled: the client left" in str(output["messages"])


@pytest.mark.parametrize("leave", LEAVINGS, ids=["closed", "reset", "half-closed"])
def test_there_are_several_ways_to_leave(leave: Callable[[socket.socket], None]) -> None:
    state = silent()
    with serving(state.agent) as live, live.connect() as bare:
        run = arrive(live, state, bare)
        leave(bare)
        receipt = probe(ended(run)).result.receipt
        assert receipt is not None
        assert receipt.cause == "disconnect"
        eventually(lambda: live.connections == 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"on_disconnect": "continue"},
        {"on_disconnect": "continue", "stream": "false"},
        {"background": "true"},
    ],
    ids=["stream", "plain", "background stream"],
)
def test_a_run_goes_on_without_its_client_where_it_was_told_to(fields: dict[str, str]) -> None:
    reached, go = Flag(), Flag()
    agent = Agent("Helper", ScriptedModel(["One, ", Reach(reached), Hold(go), "two."]))
    state = State(agent, reached, "streaming")
    with serving(agent) as live:
        bare = live.connect()
        run = arrive(live, state, bare, **fields)
        bare.close()
        eventually(lambda: not live.server.server_state.tasks)
        assert run.status is RunStatus.running
        go.set()
        assert probe(ended(run)).result.content == "One, two."


def test_in_the_background_too_a_client_may_tie_the_run_to_itself() -> None:
    state = silent()
    with serving(state.agent) as live:
        bare = live.connect()
        run = arrive(live, state, bare, background="true", on_disconnect="cancel")
        bare.close()
        assert ended(run).status is RunStatus.cancelled


def test_a_watcher_that_leaves_does_not_matter() -> None:
    reached, go = Flag(), Flag()
    agent = Agent("Helper", ScriptedModel(["One, ", Reach(reached), Hold(go), "two."]))
    with serving(agent) as live, live.stream(RUNS, message="Hi", run_id="r1") as stream:
        reached.wait()
        for path in (f"{RUNS}/r1/events", f"{RUNS}/r1/events?last_event_id=1"):
            with live.watch(path) as watched:
                next(watched)
        with live.stream(f"{RUNS}/r1/resume") as watched:
            next(watched)
        eventually(lambda: live.connections == 1)
        go.set()
        assert list(stream)[-1].event == "RunCompleted"


def test_one_who_waits_for_a_cancel_may_leave_too() -> None:
    reached, go = Flag(), Flag()

    @tool
    async def stubborn() -> str:
        """Take the cancel, and stay a while."""
        reached.set()
        try:
            await forever()
        finally:
            await go.arrived()

    agent = Agent("Helper", ScriptedModel(Call("stubborn")), tools=[stubborn])
    with serving(agent) as live:
        live.post(RUNS, message="Hi", run_id="r1", background="true", stream="false")
        reached.wait()
        run = live.run_of(agent, "r1")
        with live.connect() as bare:
            live.send(bare, f"{RUNS}/r1/cancel?wait=60")
            eventually(lambda: probe(run).is_cancelling)
        eventually(lambda: not live.server.server_state.tasks)
        go.set()
        assert ended(run).status is RunStatus.cancelled


def test_a_slow_reader_does_not_slow_others_and_misses_nothing() -> None:
    # More than all the buffers between the two can hold.
    agent = Agent("Helper", ScriptedModel([Burst("x" * 20_000, 500)]))
    with serving(agent) as live, live.connect(receive_buffer=4096) as slow:
        live.send(slow, RUNS, message="Hi", run_id="r1")
        eventually(lambda: agent.runtime.recent("r1") is not None)
        assert ended(live.run_of(agent, "r1")).status is RunStatus.completed
        with live.watch(f"{RUNS}/r1/events") as stream:
            whole = sum(1 for _ in stream)
        assert whole == 502
        # And now it reads all that has waited for it.
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        read_until(slow, b"event: RunCompleted")


def test_one_who_leaves_while_stalled_leaves_nothing() -> None:
    agent = Agent("Helper", ScriptedModel([Burst("x" * 20_000, 500), Stall()]))
    with serving(agent) as live:
        slow = live.connect(receive_buffer=4096)
        live.send(slow, RUNS, message="Hi", run_id="r1")
        eventually(lambda: (run := agent.runtime.run("r1")) is not None and len(probe(run).events) > 500)
        run = live.run_of(agent, "r1")
        reset(slow)
        assert ended(run).status is RunStatus.cancelled
        eventually(lambda: live.connections == 0)


def test_a_client_that_never_finishes_its_request_starts_nothing() -> None:
    agent = Agent("Helper", ScriptedModel())
    with serving(agent) as live:
        with live.connect() as bare:
            bare.sendall(b"POST /agents/helper/runs HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n{")
            eventually(lambda: live.connections == 1)
        eventually(lambda: live.connections == 0)
        assert agent.runtime.runs == []
        assert agent.runtime.ended == []


def test_the_reader_of_a_cancelled_run_reads_its_end() -> None:
    """A cancel over another connection: the stream ends by itself, and is complete."""
    flag = Flag()
    agent = Agent("Helper", ScriptedModel(["One", Do(flag.set), Stall()]))
    with serving(agent) as live, live.client.stream("POST", RUNS, data={"message": "Hi", "run_id": "r1"}) as response:
        flag.wait()
        with live.another_client() as other:
            assert other.post(f"{RUNS}/r1/cancel").json()["outcome"] == "requested"
        read = list(frames(response.iter_lines()))
        assert read[-1].event == "RunCancelled"
        assert read[-1].data["receipt"]["cause"] == "user"


def test_a_run_that_can_not_be_told_of_is_not_left_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of ours in the middle of a stream."""

    def fail(writer: EventWriter, events: object) -> bytes:
        raise RuntimeError("can't be written")

    monkeypatch.setattr(EventWriter, "__call__", fail)
    state = silent()
    with serving(state.agent) as live, live.connect() as bare:
        live.send(bare, RUNS, message="Hi", run_id="r1")
        eventually(lambda: state.agent.runtime.recent("r1") is not None)
        assert ended(live.run_of(state.agent, "r1")).status is RunStatus.cancelled
