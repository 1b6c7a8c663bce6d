# SPDX-License-Identifier: Apache-2.0
"""The explorer tries every step, says what it found and where, and has nothing to say of what is sound."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import random
import re
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from andon import Agent, Run, RunEvent, RunStatus, tool
from andon.core.run.handle import local_run
from andon.errors import InsideEventLoopError
from andon.models.scripted import Call, ScriptedModel, Stall
from andon.testing import Cancel, explore, probe, reading, virtual_run
from andon.testing.explorer import Kind
from tests.testing.explorable import found, hello, raising, sound, sound_stream

# -- what it reports --------------------------------------------------------------------------------------------------


def test_a_sound_scenario_is_tried_at_every_step() -> None:
    calls: list[tuple[int, int]] = []
    report = explore(sound_stream, cancels=["now", "after_turn"], progress=lambda *call: calls.append(call))
    report.raise_for_problems()
    assert report.ok
    assert report.repeatable
    assert report.missed == 0
    assert report.injections == len(calls) == calls[-1][1] > 4 * report.steps
    assert str(report) == f"sound_stream: no problem in {report.injections} injections, {report.steps} steps"
    assert report.seconds > 0


def test_two_explorations_are_alike() -> None:
    def trace() -> tuple[list[str], int]:
        seen: list[str] = []

        def note(runs: Sequence[Run]) -> None:
            seen.append(" ".join(event.event for run in runs for event in probe(run).events))

        return seen, explore(sound_stream, check=note).steps

    assert trace() == trace()


@pytest.mark.parametrize("kind", ["cancel", "host", "teardown"])
def test_one_kind_is_injected_at_every_step(kind: Any) -> None:
    report = explore(sound, inject=kind)
    report.raise_for_problems()
    # Before the run begins there is nothing of ours to cancel; after the scenario has ended, nothing of the host's.
    assert report.injections == report.steps if kind == "teardown" else 0 < report.injections < report.steps


def test_every_cancel_comes_at_a_step_of_its_own() -> None:
    """The cut comes later and later, until the run completes and is cancelled too late."""
    lengths: list[int] = []
    ends: list[str] = []

    def note(runs: Sequence[Run]) -> None:
        lengths.append(len(local_run(runs[0]).journal.events))
        ends.append(runs[0].status.name)

    explore(sound, inject="cancel", check=note).raise_for_problems()
    cancelled, completed = lengths[2:][: ends[2:].count("cancelled")], ends[2:].count("completed")
    assert cancelled == sorted(cancelled)
    assert {3, 4, 5} <= set(cancelled)  # before any text came, after the first piece of it, and after the last
    assert completed > 0
    assert ends[2:] == ["cancelled"] * len(cancelled) + ["completed"] * completed


def test_where_a_library_raises_the_line_that_called_it_is_named() -> None:
    def parse(text: str) -> object:
        return json.loads(text)

    async def careless() -> None:
        parse((await hello().invoke_async("Hi")).content)

    report = explore(careless, max_problems=1)
    found(report, r"the scenario raised JSONDecodeError: .* \(in parse, test_explorer.py:\d+\)")


def test_a_problem_says_where_it_was() -> None:
    async def picky() -> None:
        result = await hello().invoke_async("Hi")
        assert result.status is RunStatus.completed, "not completed"

    report = explore(picky, inject="cancel", name="my scenario", max_problems=3)
    found(report, r"the scenario raised AssertionError: not completed \(in picky, test_explorer.py:\d+\)")
    assert len(report.problems) == 3
    problem = report.problems[0]
    assert problem.scenario == "my scenario"
    assert re.match(r"cancel \(now\) of run 1 before step \d+ \(andon run\)$", str(problem.injection))
    assert problem.events == ("run 1 (cancelled): run_started, cancel_requested, run_cancelled",)
    assert str(report).startswith("my scenario: 3 problem(s) in 3 injections, ")
    assert str(problem) in str(report)


@pytest.mark.parametrize("inject", ["cancel", "host", "teardown", "leave"])
def test_a_problem_names_the_line_of_the_user_s_own(inject: Kind) -> None:
    @tool
    async def fetch() -> str:
        await asyncio.sleep(1)  # in the tool
        return "fetched"

    async def scenario() -> None:
        agent = Agent("Fetcher", ScriptedModel(Call("fetch"), then="Done."), tools=[fetch])
        async for _ in reading(agent.stream_async("Hi")):  # in the scenario
            pass

    def refuse(runs: Sequence[Run]) -> None:
        assert runs[0].status is RunStatus.completed, "not completed"

    report = explore(scenario, inject=inject, check=refuse, next_prompt=None, max_problems=1000)
    with open(__file__, encoding="utf-8") as file:
        lines = dict(enumerate(file, 1))
    in_tool, in_scenario = (
        next(number for number, line in lines.items() if line.rstrip().endswith(f"# in the {place}"))
        for place in ("tool", "scenario")
    )
    named = {problem.line for problem in report.problems}
    expected = {
        f"{__file__}:{in_scenario}, in scenario: {lines[in_scenario].strip()}",
        f"{__file__}:{in_tool}, in fetch: {lines[in_tool].strip()}",
    }
    assert expected - named == set()
    assert {str(line).partition(":")[0] for line in named} == {__file__}
    assert f"\n    at {__file__}:{in_tool}, in fetch: await asyncio.sleep(1)" in str(report)


def test_who_waits_is_told_with_the_line_of_the_user_s_own() -> None:
    async def scenario() -> None:
        lock = asyncio.Lock()

        @tool
        async def book() -> str:
            await lock.acquire()  # never released
            return "booked"

        agent = Agent("Booking", ScriptedModel([Call("book"), Call("book")], then="Done."), tools=[book])
        await agent.invoke_async("Hi")

    with open(__file__, encoding="utf-8") as file:
        line = next(number for number, text in enumerate(file, 1) if text.rstrip().endswith("# never released"))
    told = rf"in acquire \(locks.py:\d+\) called by book \(test_explorer.py:{line}\)"
    found(explore(scenario), rf"tool book \(call_2\) {told}")


def test_what_would_try_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"steps=\[100000\] would try nothing: the scenario takes the steps 1 to \d+"):
        explore(sound, steps=[100_000])
    with pytest.raises(TypeError, match=r"give the async function itself, explore\(scenario\)"):
        explore(sound())  # type: ignore[arg-type]


def test_single_steps_can_be_tried() -> None:
    report = explore(sound, inject=["cancel", "host"], steps=[5, 7])
    report.raise_for_problems()
    assert report.injections == 4


def test_a_check_of_ones_own() -> None:
    def check(runs: Sequence[Run]) -> None:
        assert all(run.status is not RunStatus.cancelled for run in runs), "it was cancelled"

    found(explore(sound, check=check), "the check failed: AssertionError: it was cancelled")


@pytest.mark.parametrize(
    ("cancel", "words"),
    [
        (Cancel(), "cancel (now)"),
        (Cancel("after_turn", grace=0.5), "cancel (after_turn) with grace 0.5"),
        (Cancel("after_turn", again="now", later=3), "cancel (after_turn), again (now) 3 steps later"),
    ],
)
def test_a_cancel_in_words(cancel: Cancel, words: str) -> None:
    assert str(cancel) == words


def test_injections_in_words() -> None:
    async def broken() -> None:
        async for _ in reading(hello().stream_async("Hi")):
            pass

    def fail(runs: Sequence[Run]) -> None:
        assert runs[0].status is not RunStatus.cancelled

    report = explore(broken, check=fail, max_problems=1000)
    words = {re.sub(r"\d+ \(.*|\d+ events", "N", str(problem.injection)) for problem in report.problems}
    assert words == {
        "cancel (now) of run 1 before step N",
        "task.cancel() by the host before step N",
        "the loop is torn down before step N",
        "stream 1 is closed from outside before step N",
        "the reader of stream 1 leaves by break after N",
        "the reader of stream 1 leaves by aclose after N",
    }


# -- what it refuses --------------------------------------------------------------------------------------------------


def test_it_needs_a_scenario_that_begins_a_run() -> None:
    async def idle() -> None:
        await asyncio.sleep(1)

    report = explore(idle)
    found(report, "the scenario began no run, so there is nothing to explore")
    assert report.injections == 0


def test_it_is_not_for_the_inside_of_a_loop() -> None:
    async def main() -> None:
        explore(sound)

    with pytest.raises(InsideEventLoopError, match="call it from a function that is not async"):
        virtual_run(main())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"inject": "cancle"}, "there is no injection cancle; there are cancel, host, leave, teardown"),
        ({"cancels": "later"}, "mode is 'later'"),
    ],
)
def test_options_that_mean_nothing(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        explore(sound, **options)


def test_cancels_that_mean_nothing() -> None:
    with pytest.raises(ValueError, match="later is -1"):
        Cancel(again="now", later=-1)
    with pytest.raises(ValueError, match="grace is -1"):
        Cancel("after_turn", grace=-1)
    with pytest.raises(ValueError, match="mode is 'soon'"):
        Cancel(again="soon")


def test_a_scenario_is_an_async_function() -> None:
    with pytest.raises(TypeError, match="a scenario is an async function without parameters"):
        explore(lambda: None)  # type: ignore[arg-type, return-value]


def test_it_leaves_its_surroundings_as_they_were() -> None:
    def surroundings() -> tuple[object, ...]:
        return sys.unraisablehook, warnings.showwarning, gc.isenabled(), random.getstate()

    random.seed(42)
    before = surroundings()
    explore(sound)
    with pytest.raises(KeyboardInterrupt):
        explore(functools.partial(raising, KeyboardInterrupt()))
    assert surroundings() == before


@pytest.mark.parametrize("frozen", [True, False])
def test_what_the_program_has_frozen_stays_frozen(frozen: bool) -> None:
    gc.freeze() if frozen else gc.unfreeze()
    try:
        explore(sound)
        assert (gc.get_freeze_count() > 0) is frozen
    finally:
        gc.freeze()  # as tests/conftest.py has it


def test_other_warnings_pass_through() -> None:
    async def old_fashioned() -> None:
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        await hello().invoke_async("Hi")

    with pytest.warns(DeprecationWarning, match="old"):
        explore(old_fashioned, steps=[]).raise_for_problems()


# -- scenarios that hang, or differ -----------------------------------------------------------------------------------


async def stalled() -> None:
    agent = Agent("A", ScriptedModel(then=lambda request: Stall() if len(request.messages) == 1 else "OK."))
    await agent.invoke_async("Hi")


def test_a_standstill_is_a_problem() -> None:
    found(
        explore(stalled), r"came to a standstill: .*waiting: the model in play.*; if it is meant to wait .* stalls=True"
    )


def test_a_standstill_that_is_meant_is_explored() -> None:
    report = explore(stalled, stalls=True, within=0)
    report.raise_for_problems()
    assert report.injections >= 3 * report.steps - 3


def test_a_scenario_that_waits_on_after_its_run_is_a_problem() -> None:
    async def wait_on() -> None:
        await hello().invoke_async("Hi")
        await asyncio.Event().wait()

    report = explore(wait_on, inject="cancel", stalls=True, max_problems=3)
    found(report, r"came to a standstill: .*scenario in wait \(locks.py:\d+\)")


def test_no_end_is_a_problem() -> None:
    async def endless() -> None:
        await Agent("A", ScriptedModel.story()).invoke_async("Hi")

    found(explore(endless, max_steps=500), "the scenario did not end: no end after .* max_steps= allows more")


def test_a_scenario_that_differs_is_reported_as_such() -> None:
    times = iter(range(100, 0, -1))

    async def shorter_and_shorter() -> None:
        for _ in range(next(times, 0)):
            await asyncio.sleep(0)
        await hello().invoke_async("Hi")

    report = explore(shorter_and_shorter, inject="host")
    assert report.ok
    assert not report.repeatable
    assert report.missed > 0
    assert f"{report.missed} missed" in str(report)
    assert "not the same ones every time" in str(report)


@pytest.mark.parametrize("kind", ["cancel", "leave"])
def test_what_can_not_be_done_is_missed(kind: Any) -> None:
    times = iter([True, True])

    async def lazy() -> None:
        if next(times, False):
            await sound_stream()
        await asyncio.sleep(1)
        await asyncio.sleep(1)

    report = explore(lazy, inject=kind)
    assert report.ok
    assert report.injections == 0
    assert report.missed > 0


# -- reading ----------------------------------------------------------------------------------------------------------


def test_reading_is_transparent_outside_an_exploration() -> None:
    async def main() -> tuple[list[str], list[str]]:
        agent = hello()
        plain = [event.event.name async for event in agent.stream_async("Hi")]
        return plain, [event.event.name async for event in reading(agent.stream_async("Hi"))]

    plain, read = virtual_run(main())
    assert plain == read


def test_a_reading_can_be_closed() -> None:
    async def main() -> RunStatus:
        agent = hello()
        stream = agent.stream_async("Hi")
        read = reading(stream)
        await anext(read)
        await read.aclose()
        assert [event async for event in read] == []
        return stream.run.status

    assert virtual_run(main()) is RunStatus.cancelled


def test_a_break_in_the_scenario_means_the_same_in_an_exploration() -> None:
    ends: list[RunStatus] = []

    async def scenario() -> None:
        async for event in reading(hello().stream_async("Hi")):
            if event.event is RunEvent.run_content:
                break

    report = explore(scenario, check=lambda runs: ends.extend(run.status for run in runs))
    report.raise_for_problems()
    assert set(ends) == {RunStatus.cancelled}


def test_problems_can_be_compared() -> None:
    async def picky() -> None:
        raise ValueError("never mind")

    problem = explore(picky).problems[0]
    assert str(problem).startswith("picky, undisturbed: the scenario raised ValueError: never mind")
    assert replace(problem) == problem
