# SPDX-License-Identifier: Apache-2.0
"""Functions in processes: what goes in and comes out, what is refused, which worker serves, and what it may use."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from andon import (
    Agent,
    BadResultError,
    Image,
    Limits,
    RunEvent,
    RunStatus,
    Runtime,
    ToolContext,
    ToolDefinitionError,
    ToolOutcome,
    tool,
)
from andon.models.scripted import Call, ScriptedModel
from andon.tools.base import ToolOutput
from andon.tools.process.call import SHOWN_BYTES
from andon.tools.process.channel import Channel
from andon.tools.process.pool import MAX_IDLE, pool
from andon.tools.process.protocol import (
    CALL,
    DONE,
    GONE,
    HELLO,
    READY,
    SPEC,
    Answer,
    Frames,
    Gone,
    Spec,
    encode,
    frame,
)
from andon.tools.process.tree import ROUND_SECONDS, Tree, everyone
from tests.support import HANG, Worker
from tests.support.processes import agent_with, at_work, below, check_gone, eventually_gone, kill, parent_of, run_loop
from tests.support.processes import told as told_async
from tests.tools import process_tools as tools

ROOT = Path(__file__).parents[2]


def told(each: Any, arguments: dict[str, Any] | None = None, **options: Any) -> str:
    answers = list[str]()

    async def main() -> None:
        answers.append(await told_async(each, arguments, **options))

    run_loop(main)
    return answers[0]


# -- what goes in and comes out ---------------------------------------------------------------------------------------


def test_a_function_gets_what_its_annotations_say() -> None:
    said = told(tools.kinds, {"point": {"x": 1}, "colour": "red"})
    assert said == '{"point":"Point","y":7,"colour":"Colour","times":2}'


def test_the_context_says_whose_call_it_is() -> None:
    said = told(
        tools.facts, {"word": "hé"}, session_id="s1", user_id="ada", timeout=60, metadata={"tenant": ["a", None]}
    )
    assert said == (
        '{"word":"hé","call_id":"c","session_id":"s1","user_id":"ada","deadline":true,'
        '"metadata":{"tenant":["a",null]},"cancelled":false}'
    )


def test_images_come_back() -> None:
    result = agent_with(tools.picture).run("go")
    (block,) = result.messages[2].tool_results
    assert block.content == "Look:"
    assert block.attachments == [Image(tools.PNG)]


def test_nothing_is_no_output() -> None:
    assert told(tools.nothing) == "(no output)"


def test_it_is_another_process_and_the_function_stays_callable() -> None:
    assert tools.whoami() == os.getpid()
    assert told(tools.whoami) != str(os.getpid())


def test_blocking_calls_work() -> None:
    assert agent_with(tools.whoami).run("go").status is RunStatus.completed


def test_a_question_crosses_and_so_does_its_answer() -> None:
    async def main() -> None:
        agent = agent_with(tools.ask)
        first = await agent.invoke_async("go")
        assert [(each.name, each.payload) for each in first.interrupts] == [("colour", {"choices": ["red", "blue"]})]
        result = await agent.continue_run(first.run_id, {first.interrupts[0].id: "blue"})
        assert result.messages[2].tool_results[0].content == "the answer is blue"

    run_loop(main)


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("each", "said"),
    [
        (tools.missing, "FileNotFoundError: no such thing"),
        (tools.odd, "ToolRaisedError: OddError: 1 and 2"),
        (tools.leave, "ToolRaisedError: SystemExit: 3"),
        (tools.end_early, "ToolProcessError: the process of end_early ended with exit code 4"),
        (
            tools.crash,
            "ToolProcessError: the process of crash was killed by SIGSEGV. The end of what it printed:\nlast words",
        ),
        (tools.eat, "MemoryError: the tool used more than 256 MB, its limit"),
        (
            tools.burn,
            "ToolProcessError: the process of burn was killed: it used more than 0.5 s of processor time, its limit",
        ),
    ],
)
def test_what_goes_wrong_is_told(each: Any, said: str) -> None:
    assert told(each) == said


def test_too_many_files_are_an_error_of_the_tool() -> None:
    assert "Too many open files" in told(tools.open_many)


def test_a_result_that_is_no_json_is_told() -> None:
    said = told(tools.unwritable)
    assert f"{BadResultError.__name__}: tool unwritable returned object, which can't be made into text" in said


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (
            "text",
            "BadResultError: tool large ran to its end, but its result has 200,000,000 bytes, and may have 1,048,576",
        ),
        (
            "image",
            "BadResultError: tool large ran to its end, but its images and files have 200,000,016 bytes,"
            " and may have 20,971,520",
        ),
        (
            "question",
            "BadResultError: tool large wanted to ask a person, but its question has 200,000,008 bytes,"
            " and may have 1,048,576",
        ),
        ("error", "ValueError: xxx"),
    ],
)
def test_what_is_too_large_never_leaves_its_process(kind: str, said: str) -> None:
    tracemalloc.start()
    try:
        assert told(tools.large, {"size": 200_000_000, "kind": kind}).startswith(said)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["text", "error"])
def test_what_is_large_enough_to_be_sent_is_whole(kind: str) -> None:
    said = told(tools.large, {"size": 2**20, "kind": kind})
    assert len(said) == 2**20 if kind == "text" else said.endswith("x… (cut here: it has 1,048,588 characters)")


def test_the_limit_of_the_runtime_is_kept_in_the_process() -> None:
    whole, refusal = "x" * 3_000_000, "its result has 101 bytes, and may have 100"
    for limit, size, said in ((100, 101, refusal), (0, len(whole), whole)):
        calls, runtime = [Call("large", {"size": size, "kind": "text"})], Runtime(max_result_bytes=limit)
        result = agent_with(tools.large, calls=calls, runtime=runtime).run("go")
        assert said in result.messages[2].tool_results[0].content


def test_deps_can_not_be_used() -> None:
    assert "ctx.deps can't be sent to the process of a tool" in told(tools.use_deps, deps=object())


def test_steps_can_not_be_registered() -> None:
    said = told(tools.use_steps)
    assert said.startswith("ToolError: ctx.on_undo can't be used in the process of a tool")
    assert "@tool(on_cancel=…)" in said


def test_arguments_that_do_not_fit_are_refused_here() -> None:
    assert told(tools.kinds, {"point": {"x": "one"}, "colour": "red"}).startswith("BadArgumentsError: ")


def test_the_traceback_of_the_process_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "andon"):
        told(tools.odd)
    assert "In the tool's process:" in caplog.text
    assert "raise OddError(1, 2)" in caplog.text


# -- definitions ------------------------------------------------------------------------------------------------------


def nested() -> Any:
    def inside() -> None: ...

    return inside


class Typed:
    pass


def wants_deps(ctx: ToolContext[Typed]) -> None: ...


def plain() -> None: ...


class Holder:
    def method(self) -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "why"),
    [
        (lambda: None, {"name": "it"}, "a lambda has no name to be found by"),
        (nested(), {}, "is defined inside a function, so it can't be imported"),
        (Holder().method, {}, "a method can't be found by a name"),
        (wants_deps, {}, "ctx.deps can't be sent"),
        (plain, {"limits": Limits(memory=1)}, "it is a whole number, 67,108,864 or more"),
        (plain, {"limits": Limits(cpu=0)}, "it is a number of seconds, more than 0"),
        (plain, {"limits": Limits(files=True)}, "it is a whole number, 16 or more"),
        (plain, {"limits": 5}, "write limits=Limits"),
        (plain, {"isolation": "thread"}, 'it is "process", or is left out'),
        (plain, {"isolation": None, "limits": Limits(cpu=1)}, 'add isolation="process"'),
    ],
)
def test_what_can_not_work_is_refused_where_it_is_defined(function: Any, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ToolDefinitionError, match=why.replace("(", r"\(")):
        tool(function, **{"isolation": "process", **options})


def test_what_was_typed_in_is_refused() -> None:
    code = "from andon import tool\n@tool(isolation='process')\ndef f() -> None: ...\n"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment())
    assert "it was typed in or made by exec, so there is no file to import" in ended.stderr


def test_a_name_that_leads_elsewhere_is_refused_by_the_agent() -> None:
    def impostor() -> None: ...

    impostor.__qualname__ = "plain"
    with pytest.raises(ToolDefinitionError, match="is something else, function"):
        Agent("T", ScriptedModel(), tools=[tool(impostor, isolation="process")])
    impostor.__qualname__ = "no_such_name"
    with pytest.raises(ToolDefinitionError, match="there is no no_such_name in"):
        Agent("T", ScriptedModel(), tools=[tool(impostor, isolation="process")])


def test_elsewhere_than_on_linux_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(ToolDefinitionError, match="needs Linux and /proc"):
        tool(plain, isolation="process")


# -- scripts ----------------------------------------------------------------------------------------------------------

SCRIPT = """
    import os
    from andon import Agent, tool
    from andon.models.scripted import Call, ScriptedModel

    @tool(isolation="process")
    def where(word: str) -> str:
        return f"{__name__} {word} {os.getppid() != PARENT}"

    PARENT = os.getpid()

    GUARD
        agent = Agent("T", ScriptedModel(Call("where", {"word": "hi"}), then="OK."), tools=[where])
        print(agent.run("go").messages[2].tool_results[0].content)
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}


@pytest.mark.parametrize("by_module", [False, True])
def test_a_script_can_have_such_tools(tmp_path: Path, by_module: bool) -> None:
    code = textwrap.dedent(SCRIPT).replace("GUARD", 'if __name__ == "__main__":')
    (tmp_path / "script.py").write_text(code)
    call = ["-m", "script"] if by_module else ["script.py"]
    ended = subprocess.run(
        [sys.executable, *call], cwd=tmp_path, capture_output=True, text=True, check=False, env=environment()
    )
    assert ended.stdout == "__andon_main__ hi True\n", ended.stderr


def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT).replace("GUARD", "if True:"))
    ended = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False, env=environment()
    )
    # The worker runs the script too; its own call is refused, and so the import of the worker ends well.
    assert ended.stdout == "__andon_main__ hi True\n", ended.stderr


# -- which worker serves ----------------------------------------------------------------------------------------------


def test_a_worker_serves_one_call_after_the_other() -> None:
    async def main() -> None:
        served = {await told_async(tools.whoami) for _ in range(10)}
        assert len(served) <= MAX_IDLE
        assert len(served) < 10

    run_loop(main)


def test_calls_at_the_same_time_have_a_worker_each() -> None:
    async def main() -> None:
        async with at_work(tools.sleep) as (one, first), at_work(tools.sleep) as (two, second):
            assert first != second
            one.cancel()
            two.cancel()
            await one.result()
            await two.result()

    run_loop(main)


@pytest.mark.parametrize(
    ("each", "arguments"),
    [(tools.keep_thread, {}), (tools.keep_child, {"apart": False}), (tools.keep_child, {"apart": True})],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_call_that_completes_leaves_nothing_behind(each: Any, arguments: dict[str, Any], first: bool) -> None:
    """Neither the first call of a process, nor a later one."""
    if first:
        pool.close()

    async def main() -> None:
        pids = [int(word) for word in (await told_async(each, arguments)).split()]
        check_gone(*pids)

    run_loop(main)


@pytest.mark.parametrize(
    ("each", "leaves"),
    [
        (tools.note_call, "nothing"),
        (tools.note_call, "a thread"),
        (tools.note_call, "a process"),
        (tools.note_limited_call, "nothing"),
    ],
)
def test_a_call_is_made_once_also_if_its_process_serves_no_other(each: Any, leaves: str, tmp_path: Path) -> None:
    assert told(each, {"path": str(tmp_path / "calls"), "leaves": leaves}) == "noted"
    assert (tmp_path / "calls").read_text() == "called\n"


def test_a_call_is_made_once_also_if_its_process_ends_right_after_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer and the end of its process are heard at the same moment."""
    ours, theirs = socket.socketpair()

    def answer_and_end() -> None:
        with theirs:
            theirs.sendall(frame(HELLO))
            frames = Frames()
            while CALL not in [kind for kind, _ in frames.feed(theirs.recv(2**20))]:
                pass
            gone = Gone(status=-signal.SIGKILL, called=False)
            theirs.sendall(encode(DONE, Answer(ToolOutput("once"))) + encode(GONE, gone))

    async def take(spec: Spec, fresh: bool = False) -> Channel:
        assert not fresh, "it is made again"
        return Channel(ours)

    monkeypatch.setattr(pool, "take", take)
    keeper = Worker(answer_and_end)
    assert told(tools.whoami) == "once"
    keeper.done()


def test_what_a_module_has_started_is_not_left_by_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANDON_TEST_HELPER", "1")
    assert told(tools.use_helper) == told(tools.use_helper)


def test_a_tool_that_returns_twice_answers_once() -> None:
    async def main() -> None:
        pid = int(await told_async(tools.fork_and_return))
        assert await told_async(tools.whoami) != str(pid)
        check_gone(pid)

    run_loop(main)


def test_after_a_crash_the_next_call_is_served() -> None:
    async def main() -> None:
        for _ in range(5):
            assert "SIGSEGV" in await told_async(tools.crash)
            assert (await told_async(tools.whoami)).isdigit()

    run_loop(main)


def is_worker(pid: int) -> bool:
    """Not a keeper, and not one that has just ended."""
    with contextlib.suppress(FileNotFoundError):
        return parent_of(parent_of(pid)) != os.getpid()
    return False


def test_a_waiting_worker_that_was_killed_is_not_used() -> None:
    async def main() -> None:
        pid = int(await told_async(tools.whoami))
        workers = [each for each in below(parent_of(parent_of(pid))) if is_worker(each)]
        assert pid in workers
        for each in workers:
            with contextlib.suppress(ProcessLookupError):  # a new one, that has ended by itself
                kill(each)
        eventually_gone(*workers)
        assert (await told_async(tools.whoami)).isdigit()

    run_loop(main)


def frames_of(script: str, sent: bytes) -> list[tuple[bytes, bytes]]:
    """What the keeper says, which this script is, if it is sent this; or the end, if that is nothing."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-c", script, str(theirs.fileno())]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]):
            theirs.close()
            ours.sendall(sent)
            if not sent:
                ours.shutdown(socket.SHUT_WR)
            return list(Frames().feed(b"".join(iter(lambda: ours.recv(4096), b""))))


KEEPER = """
import socket, sys
from andon.tools.process.keeper import keep

keep(socket.socket(fileno=int(sys.argv[1])), None)
"""


def test_a_keeper_that_was_given_nothing_to_do_says_so() -> None:
    frames = frames_of(KEEPER, b"")
    assert [kind for kind, _ in frames] == [HELLO, GONE]
    assert not msgspec.json.decode(frames[1][1], type=Gone).called


SLOW_FORK = """
import os, socket, sys
from andon.tools.process.keeper import keep

fork = os.fork

def slow_fork():
    pid = fork()
    if pid:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid

os.fork = slow_fork
keep(socket.socket(fileno=int(sys.argv[1])), None)
"""


@pytest.mark.parametrize("module", ["", "no_such_module"])
def test_the_last_word_of_a_process_is_heard_before_its_end(module: str) -> None:
    """On a busy machine a keeper finds out both at the same moment: here it looks only when its worker has ended."""
    path = [os.fsencode(each) for each in sys.path]
    spec = Spec(b"/", {}, module=module, path=path, arguments=[b"/no/such/program"])
    frames = frames_of(SLOW_FORK, encode(SPEC, spec))
    assert [kind for kind, _ in frames] == [HELLO, READY, GONE]
    assert b"no_such_module" in frames[1][1] or b"/no/such/program" in frames[1][1]


def test_a_change_of_the_environment_reaches_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    before = told(tools.variable, {"name": "ANDON_TEST_WORD"})
    monkeypatch.setenv("ANDON_TEST_WORD", "new")
    assert (before, told(tools.variable, {"name": "ANDON_TEST_WORD"})) == ("None", "new")


def test_what_a_call_changes_does_not_reach_the_next_one(tmp_path: Path) -> None:
    async def main() -> None:
        found = [(await told_async(tools.change_all, {"folder": str(tmp_path)})).rsplit(" ", 1) for _ in range(6)]
        os.umask(umask := os.umask(0o077))
        assert {before for before, _ in found} == {f"{Path.cwd()} None 0 {umask:o}"}
        assert len({pid for _, pid in found}) < 6

    run_loop(main)


def test_what_the_system_gives_need_not_be_utf_8(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANDON_TEST_WORD", os.fsdecode(b"caf\xe9"))
    folder = tmp_path / os.fsdecode(b"d\xe9")
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [os.fsdecode(b"\xe9")])
    assert told(tools.system) == repr((b"caf\xe9", os.fsencode(folder), b"\xe9"))


def below_unused(pid: int, count: int) -> int:
    """The number below so many process ids that nobody has, all lower than this one."""
    used = set(everyone())
    return next(low for low in range(pid - count - 1, 0, -1) if used.isdisjoint(range(low + 1, low + count + 1)))


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("age", [0.0, ROUND_SECONDS])
@pytest.mark.parametrize("after", [0, 1, 50])
def test_processes_are_found_when_process_ids_have_begun_anew(
    monkeypatch: pytest.MonkeyPatch, after: int, age: float, listed: bool
) -> None:
    """Then the last id is near that of the tree, or the system says 0, and the process has a higher one."""
    monkeypatch.setattr("andon.tools.process.tree.LISTED", listed)
    with subprocess.Popen(["sleep", "100"]) as child:
        try:
            first = 0 if after == 0 else below_unused(child.pid, after)
            monkeypatch.setattr("andon.tools.process.tree.last_pid", lambda: first)
            tree, now = Tree(), time.monotonic() + age
            monkeypatch.setattr("andon.tools.process.tree.last_pid", lambda: first + after)
            monkeypatch.setattr("andon.tools.process.tree.time", SimpleNamespace(monotonic=lambda: now))
            assert child.pid in tree.all()
            if age or not first:
                assert not tree.is_quiet
                assert child.pid in tree.children([os.getpid()])
        finally:
            child.kill()


def test_several_loops_at_once_and_one_after_the_other() -> None:
    def one() -> None:
        for _ in range(2):
            run_loop(call)

    async def call() -> None:
        assert (await told_async(tools.whoami)).isdigit()

    workers = [Worker(one) for _ in range(4)]
    for worker in workers:
        worker.done()


def test_a_forked_child_has_its_own_processes() -> None:
    async def call() -> None:
        assert (await told_async(tools.whoami)).isdigit()

    run_loop(call)
    read, write = os.pipe()
    if not (child := os.fork()):
        try:
            run_loop(call)
            pool.close()
            os.write(write, b"served")
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"served"
    os.close(read)
    run_loop(call)  # and the parent's are as they were


def test_nothing_is_open_when_all_are_closed() -> None:
    pool.close()
    files = set(os.listdir("/proc/self/fd"))
    run_loop(lambda: _some_calls())
    pool.close()
    assert set(os.listdir("/proc/self/fd")) == files


async def _some_calls() -> None:
    await asyncio.gather(*(told_async(each) for each in (tools.whoami, tools.crash, tools.nothing, tools.odd)))


# -- what is printed --------------------------------------------------------------------------------------------------


async def printed(agent: Agent) -> tuple[list[str], str]:
    async with agent.start("go") as run:
        events = [event async for event in run]
        result = await run.result()
    shown = [event for event in events if event.event is RunEvent.tool_output]
    assert {event.call_id for event in shown} <= {"c"}
    kinds = [event.event for event in events]
    assert shown == [] or kinds.index(RunEvent.tool_call_completed) > max(
        place for place, kind in enumerate(kinds) if kind is RunEvent.tool_output
    )
    return [event.content for event in shown], result.messages[2].tool_results[0].content


def test_what_a_tool_prints_becomes_events() -> None:
    async def main() -> None:
        shown, content = await printed(agent_with(tools.flood, calls=[Call("flood", {"count": 3}, id="c")]))
        assert "".join(shown) == "line 000000000\nline 000000001\nline 000000002\n"
        assert content == "3"

    run_loop(main)


def test_a_flood_is_bounded_and_says_so() -> None:
    async def main() -> None:
        shown, content = await printed(agent_with(tools.flood, calls=[Call("flood", {"count": 500_000}, id="c")]))
        text = "".join(shown)
        assert "bytes are left out here]" in text
        assert len(text) < 2 * SHOWN_BYTES
        assert content == "500000"

    run_loop(main)


def test_a_call_in_a_process_is_cut_while_its_worker_starts() -> None:
    async def main() -> None:
        pool.close()
        agent = agent_with(tools.sleep)
        async with agent.start("go") as run:
            async for event in run:
                if event.event is RunEvent.tool_call_started:
                    break
            run.cancel()
            result = await run.result()
        assert result.receipt is not None
        assert result.receipt.tools[0].outcome is ToolOutcome.cut
        assert (await run.cancel_and_wait(timeout=HANG)) is not None
        assert run.leftovers == []

    run_loop(main)
