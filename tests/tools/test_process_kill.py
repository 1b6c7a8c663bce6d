# SPDX-License-Identifier: Apache-2.0
"""A cancel ends a tool in a process, with all that it has started, however hard that is made."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from andon import Agent, RunEvent, RunStatus, Runtime, Stopped, ToolOutcome
from andon.core.run.handle import local_run
from andon.models.scripted import Call, ScriptedModel
from andon.tools.process.pool import _START, Root, pool
from andon.tools.process.tree import Tree, everyone, listed_children
from tests.support import HANG, Worker, eventually, times, until
from tests.support.processes import (
    agent_with,
    at_work,
    below,
    check_gone,
    eventually_gone,
    is_dead,
    is_gone,
    kill,
    run_loop,
    told,
)
from tests.tools import process_tools as tools

ROOT = Path(__file__).parents[2]


async def check_cancel(tool: Any, arguments: dict[str, Any], stopped: Stopped, processes: int = 1) -> None:
    # Who ends when asked may take its time, on a busy machine.
    runtime = Runtime(kill_seconds=5) if stopped is Stopped.asked else None
    async with at_work(tool, arguments, runtime) as (run, pids):
        assert len(pids) == processes
        run.cancel("enough")
        result = await run.result()
        check_gone(*pids)
    assert result.status is RunStatus.cancelled
    assert result.receipt is not None
    assert [(each.outcome, each.stopped) for each in result.receipt.tools] == [(ToolOutcome.cut, stopped)]
    assert result.receipt.leftovers == []
    assert local_run(run).runtime.abandoned == {}


LADDER = pytest.mark.parametrize(
    ("tool", "arguments", "stopped", "processes"),
    [
        (tools.sleep, {}, Stopped.asked, 1),
        (tools.ignore, {}, Stopped.killed, 1),
        (tools.swallow, {}, Stopped.killed, 1),
        (tools.hang_in_c, {}, Stopped.killed, 1),
        (tools.family, {"ignores": False}, Stopped.asked, 3),
        (tools.family, {"ignores": True}, Stopped.killed, 3),
        (tools.other_session, {"ignores": False}, Stopped.asked, 2),
        (tools.other_session, {"ignores": True}, Stopped.killed, 2),
        (tools.daemon, {"ignores": False}, Stopped.asked, 2),
        (tools.daemon, {"ignores": True}, Stopped.killed, 2),
        (tools.threads, {"ignores": False}, Stopped.asked, 3),
        (tools.threads, {"ignores": True}, Stopped.killed, 3),
    ],
)


@LADDER
def test_nothing_survives(tool: Any, arguments: dict[str, Any], stopped: Stopped, processes: int) -> None:
    run_loop(lambda: check_cancel(tool, arguments, stopped, processes))


@pytest.fixture
def _a_kernel_without_lists(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The root and its keepers are told that the kernel does not list the children of a process."""
    pool.close()
    monkeypatch.setattr("andon.tools.process.pool._START", f"{WITHOUT_LISTS};{_START}")
    yield
    pool.close()


WITHOUT_LISTS = (
    "import json,sys;sys.path[:]=json.loads(sys.argv[1]);"
    "import andon.tools.process.tree as tree;tree.LISTED=False;tree.listed_children=lambda pid: []"
)


@LADDER
@pytest.mark.usefixtures("_a_kernel_without_lists")
def test_nothing_survives_where_the_kernel_has_no_lists(
    tool: Any, arguments: dict[str, Any], stopped: Stopped, processes: int
) -> None:
    run_loop(lambda: check_cancel(tool, arguments, stopped, processes))


@pytest.mark.parametrize("tool", [tools.spawner, tools.spawn_when_asked])
def test_a_tool_that_goes_on_starting_processes(tool: Any) -> None:
    mark = f"{tools.FOREVER}.{os.getpid()}"

    async def main() -> None:
        async with at_work(tool, {"mark": mark}) as (run, pids):
            run.cancel()
            result = await run.result()
            assert result.receipt is not None
            assert [(each.outcome, each.stopped) for each in result.receipt.tools] == [
                (ToolOutcome.cut, Stopped.asked if tool is tools.spawner else Stopped.killed)
            ]
            assert result.receipt.leftovers == []
            check_gone(*pids)
        assert not [pid for pid in everyone() if mark.encode() in _line_of(pid)]

    run_loop(main)


def test_what_ends_a_call_looks_at_its_own_processes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many others there are, or have begun meanwhile: else 500 calls would look 500 times at 500."""
    pool.close()  # its processes are below this one too
    eventually(lambda: not below(os.getpid()))
    looked = list[int]()

    def note(pid: int) -> list[int]:
        looked.append(pid)
        return listed_children(pid)

    monkeypatch.setattr("andon.tools.process.tree.listed_children", note)
    monkeypatch.setattr("andon.tools.process.tree.parent_of", lambda pid: looked.append(pid))
    tree = Tree()
    code = "import os, time; os.fork(); os.write(1, b'up\\n'); time.sleep(1000)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as child:
        try:
            assert child.stdout is not None
            assert [child.stdout.readline() for _ in range(2)] == [b"up\n"] * 2
            found = tree.all()
        finally:
            os.killpg(child.pid, signal.SIGKILL)
    assert found[0] == child.pid
    assert len(found) == 2
    assert looked == [os.getpid(), *found]


def test_a_pool_of_multiprocessing() -> None:
    async def main() -> None:
        async with at_work(tools.pooled) as (run, pids):
            run.cancel()
            result = await run.result()
            assert result.receipt is not None
            assert result.receipt.tools[0].outcome is ToolOutcome.cut
            check_gone(*set(pids))

    run_loop(main)


@pytest.mark.parametrize("cleans", [True, False])
def test_a_tool_in_the_middle_of_a_file_can_clean_up(tmp_path: Path, cleans: bool) -> None:
    path = tmp_path / "half"
    run_loop(lambda: check_cancel(tools.write_half, {"path": str(path), "cleans": cleans}, Stopped.asked))
    assert path.exists() is not cleans


def test_an_async_tool_can_clean_up(tmp_path: Path) -> None:
    path = tmp_path / "async"
    run_loop(lambda: check_cancel(tools.sleep_async, {"path": str(path)}, Stopped.asked))
    assert path.read_text() == "cleaned up"


def test_a_tool_that_is_out_of_time_is_gone_and_the_run_goes_on() -> None:
    async def main() -> None:
        await told(tools.whoami)  # from now on, a process waits for the call
        async with at_work(tools.too_slow) as (run, pids):
            result = await run.result()
            check_gone(*pids)
        assert result.content == "OK."
        said = result.messages[2].tool_results[0].content
        assert said == "ToolTimeoutError: timed out after 2 s: it was cut; its outcome is unknown"

    run_loop(main)


def test_what_does_not_end_in_time_is_named_until_it_is_gone() -> None:
    async def main() -> None:
        runtime = Runtime(cut_seconds=0, abandon_seconds=0, kill_seconds=0.5)
        async with at_work(tools.ignore, runtime=runtime) as (run, pids):
            run.cancel()
            result = await run.result()
            assert not is_gone(pids[0])
            assert result.receipt is not None
            assert result.receipt.tools[0].outcome is ToolOutcome.abandoned
            assert "process of ignore (c)" in result.receipt.leftovers
            now = await run.cancel_and_wait(timeout=HANG)
            assert now is not None
            assert now.leftovers == []
            check_gone(*pids)

    run_loop(main)


def test_the_grace_is_the_runtimes() -> None:
    async def main() -> None:
        async with at_work(tools.ignore, runtime=Runtime(kill_seconds=0)) as (run, pids):
            run.cancel()
            result = await run.result()
            check_gone(*pids)
        assert result.receipt is not None
        assert result.receipt.tools[0].stopped is Stopped.killed
        assert result.receipt.latency < 0.2  # the default's grace

    run_loop(main)


@pytest.mark.no_cover  # many repetitions of what other tests cover
def test_five_hundred_at_once() -> None:
    kinds: list[Any] = [tools.sleep, tools.ignore, tools.hang_in_c, tools.other_session, tools.daemon]
    count = times(500)

    async def main() -> None:
        calls = [
            Call(kind.name, {"ignores": number % 2 == 0} if kind in kinds[3:] else {}, id=f"c{number}")
            for number, kind in zip(range(count), itertools.cycle(kinds), strict=False)
        ]
        agent = agent_with(*kinds, calls=calls, runtime=Runtime(cut_seconds=20, abandon_seconds=30))
        text: dict[str, str] = {}
        pids = list[int]()
        async with agent.start("go") as run:
            async for event in run:
                if event.call_id is not None:
                    text[event.call_id] = text.get(event.call_id, "") + event.content
                    if len(text) == count and all(each.rstrip().endswith(".") for each in text.values()):
                        break
            pids += [int(word) for each in text.values() for word in each.split() if word.isdigit()]
            assert len(pids) == count + count // 5 * 2
            run.cancel()
            result = await run.result()
        check_gone(*pids)
        assert result.receipt is not None
        assert {each.outcome for each in result.receipt.tools} == {ToolOutcome.cut}
        assert len(result.receipt.tools) == count
        assert result.receipt.leftovers == []

    run_loop(main)
    pool.close()
    eventually(lambda: not [pid for pid in below(os.getpid()) if b"tools.process.root" in _line_of(pid)])


def _line_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


# -- the ends of hosts ------------------------------------------------------------------------------------------------

HOST = """
    import asyncio, os, sys
    from andon import Agent, RunEvent
    from andon.models.scripted import Call, ScriptedModel
    from tests.tools import process_tools as tools

    async def main():
        agent = Agent("T", ScriptedModel([Call("ignore"), Call("daemon", {"ignores": True}), Call("sleep")]),
                      tools=[tools.ignore, tools.daemon, tools.sleep])
        async with agent.start("go") as run:
            text = ""
            async for event in run:
                if event.event is RunEvent.tool_output:
                    text += event.content
                    if text.count(".") == 3:
                        print(text.replace("\\n", " "), flush=True)
                        END

    asyncio.run(main())
"""


def host(end: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A program with three tools at work, and the processes below it."""
    code = textwrap.dedent(HOST).replace("END", end)
    program = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
    )
    assert program.stdout is not None
    words = program.stdout.readline().split()
    pids = [int(word) for word in words if word.isdigit()]
    assert len(pids) == 4
    return program, pids


def test_after_kill_9_of_the_host_nothing_survives() -> None:
    program, pids = host("await asyncio.sleep(1000)")
    with program:
        everything = {*pids, *below(program.pid)}
        assert len(everything) > len(pids)
        kill(program.pid)
    eventually_gone(*everything)


def test_a_host_that_was_copied_and_killed_leaves_nothing() -> None:
    """The copy, made past Python, has the sockets too: they are not closed."""
    program, pids = host("import ctypes; ctypes.CDLL(None).fork() or os.execvp('sleep', ['sleep', '20'])")
    with program:
        everything = {*pids, *below(program.pid)}
        kill(program.pid)
    eventually_gone(*pids)
    for each in everything:
        if not is_gone(each) and b"sleep" in _line_of(each):
            kill(each)


def test_when_the_host_exits_nothing_survives() -> None:
    program, pids = host("sys.exit(0)")
    with program:
        pass
    eventually_gone(*pids)


def test_when_the_host_is_interrupted_nothing_survives() -> None:
    program, pids = host("os.kill(os.getpid(), 2); await asyncio.sleep(1000)")
    with program:
        pass
    eventually_gone(*pids)


# -- the ends of others -----------------------------------------------------------------------------------------------


def test_when_the_keeper_is_killed_the_call_fails_and_nothing_survives() -> None:
    async def main() -> None:
        async with at_work(tools.daemon, {"ignores": True}) as (run, pids):
            kill(_parent(pids[0]))
            result = await run.result()
        assert result.content == "OK."
        said = result.messages[2].tool_results[0].content
        assert said.startswith("ToolProcessError: the process of daemon was lost: its keeper was killed")
        eventually_gone(*pids)

    run_loop(main)


def test_when_the_root_is_killed_calls_go_on_and_the_next_one_has_another() -> None:
    async def main() -> None:
        async with at_work(tools.daemon, {"ignores": True}) as (run, pids):
            root = _parent(_parent(pids[0]))
            kill(root)
            await until(lambda: is_dead(root))
            async with at_work(tools.sleep) as (other, others):
                assert _parent(_parent(others[0])) != root
                other.cancel()
                await other.result()
                check_gone(*others)
            run.cancel()
            result = await run.result()
            assert result.receipt is not None
            assert result.receipt.tools[0].outcome is ToolOutcome.cut
            check_gone(*pids)
        while not is_gone(root):  # the next call buries it
            assert (await told(tools.whoami)).isdigit()

    run_loop(main)


def test_a_root_that_is_killed_while_it_starts_is_replaced() -> None:
    async def main() -> None:
        pool.close()
        agent = agent_with(tools.whoami)
        async with agent.start("go") as run:
            async for event in run:
                if event.event is RunEvent.tool_call_started:
                    await until(lambda: bool(_roots()))
                    for each in _roots():
                        kill(each)
            result = await run.result()
        assert result.messages[2].tool_results[0].content.isdigit()

    run_loop(main)


def _roots() -> list[int]:
    return [pid for pid in below(os.getpid()) if b"tools.process.root" in _line_of(pid)]


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_root_that_takes_long_to_end_is_buried_all_the_same() -> None:
    root = Root()
    pid = root._process.pid
    root.end(0)
    del root
    eventually_gone(pid)


def test_when_the_loop_of_the_call_is_closed_its_process_ends() -> None:
    pids = list[int]()

    async def main() -> None:
        agent = Agent("T", ScriptedModel(Call("ignore"), then="OK."), tools=[tools.ignore])
        run = agent.start("go")
        await run.begin()
        from tests.support.processes import pids_of

        pids.extend(await pids_of(run))
        runs.append(run)

    runs = list[Any]()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    runs[0].cancel()
    Worker(lambda: eventually_gone(*pids)).done()
    eventually(lambda: runs[0].leftovers == [])


def test_signals_of_the_group_do_not_reach_the_host() -> None:
    async def main() -> None:
        async with at_work(tools.sleep) as (run, pids):
            assert os.getsid(pids[0]) == pids[0]
            assert os.getpgid(pids[0]) == pids[0] != os.getpgrp()
            os.killpg(pids[0], signal.SIGTERM)
            result = await run.result()
        assert "was killed" in result.messages[2].tool_results[0].content or "exit code" in (
            result.messages[2].tool_results[0].content
        )

    run_loop(main)


def test_a_call_that_is_cut_before_its_process_is_there_is_not_undone() -> None:
    """The tool's own code has not begun, so there is nothing to undo, and no process was ended."""

    async def main() -> None:
        pool.close()
        agent = agent_with(tools.draw, calls=[Call("draw", {"point": {"x": 1}}, id="c")])
        async with agent.start("go") as run:
            async for event in run:
                if event.event is RunEvent.tool_call_started:
                    await until(lambda: bool(_roots()))
                    run.cancel()
            result = await run.result()
        assert result.receipt is not None
        assert [(each.outcome, each.undo, each.stopped) for each in result.receipt.tools] == [
            (ToolOutcome.cut, None, None)
        ]

    tools.UNDONE.clear()
    run_loop(main)
    assert tools.UNDONE == []


SLOW = """
import os, time
from pathlib import Path
from andon import tool

UNDONE = []

@tool(isolation="process", on_cancel=lambda call_id: UNDONE.append(call_id))
def draw() -> str:
    return "drawn"

if file := os.environ.get("ANDON_TEST_IMPORTED"):
    Path(file).touch()
    time.sleep(10_000)
"""


def test_a_call_that_is_cut_while_its_module_is_imported_is_not_undone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "slow_to_import.py").write_text(SLOW)
    monkeypatch.syspath_prepend(str(tmp_path))
    slow = importlib.import_module("slow_to_import")
    monkeypatch.setenv("ANDON_TEST_IMPORTED", str(tmp_path / "imported"))

    async def main() -> None:
        async with agent_with(slow.draw).start("go") as run:
            await until(lambda: (tmp_path / "imported").exists())
            run.cancel()
            result = await run.result()
        assert result.receipt is not None
        assert [(each.outcome, each.undo) for each in result.receipt.tools] == [(ToolOutcome.cut, None)]

    run_loop(main)
    assert slow.UNDONE == []


def test_a_call_is_undone_here_with_the_values_that_its_annotations_say() -> None:
    async def main() -> None:
        async with at_work(tools.draw, {"point": {"x": 1}}) as (run, pids):
            run.cancel()
            result = await run.result()
            check_gone(*pids)
        assert result.receipt is not None
        assert [(each.outcome, each.undo) for each in result.receipt.tools] == [(ToolOutcome.compensated, None)]
        [undone] = tools.UNDONE
        assert undone == (os.getpid(), tools.Point(x=1), tools.Colour.blue, "c")

    tools.UNDONE.clear()
    run_loop(main)


def test_a_call_that_completes_at_the_cancel_is_undone() -> None:
    """Its answer comes too late to be kept, and it was made: so it must not count as one that never began."""

    async def main() -> None:
        async with at_work(tools.book_at_the_cancel) as (run, pids):
            run.cancel()
            result = await run.result()
            check_gone(*pids)
        assert result.receipt is not None
        assert [(each.outcome, each.undo) for each in result.receipt.tools] == [(ToolOutcome.compensated, None)]

    tools.BOOKED_BACK.clear()
    run_loop(main)
    assert list(tools.BOOKED_BACK) == ["c"]


def test_never_undone_and_kept_at_once() -> None:
    """A cancel and the answer of the process come in the same instant. Each call is either kept or undone."""
    kept = set[str]()

    async def race(number: int, usual: float) -> None:
        call_id = f"b{number}"
        agent = agent_with(tools.book, calls=[Call("book", {}, id=call_id)])
        async with agent.start("go") as run:
            async for event in run:
                if event.event is RunEvent.tool_call_started:
                    at = time.perf_counter() + usual * (number % 20) / 10
                    while time.perf_counter() < at:  # noqa: ASYNC110 - a timer is coarser than a call is long
                        await asyncio.sleep(0)
                    run.cancel()
                    break
            result = await run.result()
        [answer] = [each for message in result.messages for each in message.tool_results]
        if answer.status == "ok":
            kept.add(call_id)
        if result.receipt is not None and result.receipt.tools:
            [call] = result.receipt.tools
            assert (call.outcome is ToolOutcome.completed) is (answer.status == "ok")
            assert (call.outcome is ToolOutcome.compensated) is (call_id in tools.BOOKED_BACK)
            assert result.receipt.leftovers == []

    async def races() -> None:
        for number in range(120):
            for _ in range(2):  # the second one finds a process that waits, as the race does
                began = time.perf_counter()
                assert await told(tools.book) == "booked"
            await race(number, time.perf_counter() - began)

    tools.BOOKED_BACK.clear()
    run_loop(races)
    assert not kept & tools.BOOKED_BACK
    assert kept, "no call won the race"
    assert tools.BOOKED_BACK, "no cancel won the race"
