# SPDX-License-Identifier: Apache-2.0
"""What is counted and timed."""

from __future__ import annotations

import asyncio
import threading

from andon import RunEvent, Runtime, tool
from andon.errors import ModelError
from andon.models.scripted import Call, Fail, ScriptedModel, Spend, Stall
from andon.testing import probe
from tests.support import HANG
from tests.telemetry.watching import Watch

MODEL = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "andon", "gen_ai.request.model": "scripted"}
A = {"gen_ai.agent.name": "A"}


def test_runs_by_status() -> None:
    watch = Watch()
    agent = watch.agent("A", ScriptedModel("Hello.", Fail(ModelError("gone")), "Hello.", Stall()))
    for _ in range(3):
        agent.run("Go")
    agent.run("Go", timeout=0.01)
    runs = {facts["andon.run.status"]: count for facts, count in watch.metric("andon.runs")}
    assert runs == {"completed": 2, "error": 1, "cancelled": 1}
    times = {
        facts["andon.run.status"]: (facts, count) for facts, (count, _) in watch.metric("gen_ai.invoke_agent.duration")
    }
    assert {status: count for status, (_, count) in times.items()} == runs
    assert times["error"][0] == {**A, "andon.run.status": "error", "error.type": "andon.errors.ModelError"}


def test_cancels_by_cause_and_what_they_took() -> None:
    watch = Watch()
    agent = watch.agent("A", ScriptedModel(then=["Well, ", Stall()]))
    first = agent.run("Go", timeout=0.01)

    async def main() -> float:
        async with agent.start("Go") as run:
            async for event in run:
                if event.event is RunEvent.run_content:
                    run.cancel()
        receipt = probe(run).result.receipt
        assert receipt is not None
        return receipt.latency

    second = asyncio.run(main())
    assert first.receipt is not None
    deadline, user = ({**A, "andon.cancel.cause": cause} for cause in ("deadline", "user"))
    assert sorted(watch.metric("andon.cancels"), key=str) == [(deadline, 1), (user, 1)]
    latencies = sorted(watch.metric("andon.cancel.latency"), key=str)
    assert latencies == [(deadline, (1, first.receipt.latency)), (user, (1, second))]


def test_tokens_by_type() -> None:
    watch = Watch()
    model = ScriptedModel(
        [Call("none"), Spend(input_tokens=10, output_tokens=5)], ["Hi.", Spend(input_tokens=20, output_tokens=1)], "Hm."
    )
    agent = watch.agent("A", model)
    agent.run("Go")
    agent.run("Go")  # of this one nobody knows, so nothing is said
    tokens = {
        facts.pop("gen_ai.token.type"): (facts, value) for facts, value in watch.metric("gen_ai.client.token.usage")
    }
    assert tokens == {"input": (MODEL, (2, 30)), "output": (MODEL, (2, 6))}
    ((facts, (count, _)),) = watch.metric("gen_ai.client.operation.duration")
    assert (facts, count) == (MODEL, 3)


def test_tokens_that_were_estimated_are_marked() -> None:
    watch = Watch()
    agent = watch.agent("A", ScriptedModel(["Well, I think ", Stall()]))
    for event in agent.run("Go on", stream=True):
        if event.event is RunEvent.run_content:
            agent.cancel()
    points = watch.metric("gen_ai.client.token.usage")
    assert {facts["gen_ai.token.type"]: value for facts, value in points} == {"input": (1, 2), "output": (1, 4)}
    assert all(facts["andon.usage.estimated"] is True for facts, _ in points)


def test_tools_are_timed() -> None:
    watch = Watch()

    @tool
    async def fail() -> str:
        raise ValueError

    watch.agent("A", ScriptedModel([Call("fail"), Call("fail")], "Oh."), tools=[fail]).run("Go")
    ((facts, (count, _)),) = watch.metric("gen_ai.execute_tool.duration")
    assert facts == {**A, "gen_ai.tool.name": "fail", "gen_ai.tool.type": "function", "error.type": "ValueError"}
    assert count == 2


def test_abandoned_threads_are_counted_until_they_end() -> None:
    watch = Watch()
    begun, gate = threading.Event(), threading.Event()

    @tool
    def block() -> str:
        begun.set()
        gate.wait(HANG)
        return "late"

    async def main() -> None:
        agents = [watch.agent("A", ScriptedModel([Call("block")]), tools=[block], runtime=Runtime()) for _ in range(2)]
        async with agents[0].start("Go") as run, agents[1].start("Go") as other:
            for each in (run, other):
                async for event in each:
                    if event.event is RunEvent.tool_call_started:
                        break
            await asyncio.to_thread(begun.wait, HANG)
            run.cancel()
            await run.result()
            assert watch.metric("andon.threads.abandoned") == [({}, 1)]
            other.cancel()
            await other.result()
            assert watch.metric("andon.threads.abandoned") == [({}, 2)]
            gate.set()
            for each in (run, other):
                await each.cancel_and_wait(HANG)
            assert watch.metric("andon.threads.abandoned") == [({}, 0)]

    asyncio.run(main())
