# SPDX-License-Identifier: Apache-2.0
"""The shell tool: what it runs, what the command gets and may do, and how it ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from andon import Agent, Limits, RunEvent, Runtime, Stopped, ToolDefinitionError, ToolOutcome
from andon.models.scripted import Call, ScriptedModel
from andon.tools.base import Tool
from andon.tools.shell import Shell
from tests.support.processes import agent_with, at_work, check_gone, run_loop, told


def run(command: Any, **options: Any) -> str:
    answers = list[str]()

    async def main() -> None:
        answers.append(await told(Shell(**options), {"command": command}))

    run_loop(main)
    return answers[0]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("echo one; echo two >&2", "one\ntwo\n[exit code 0]"),
        ("exit 3", "(no output)\n[exit code 3]"),
        ("true", "(no output)\n[exit code 0]"),
        ("kill -SEGV $$", "(no output)\n[was killed by SIGSEGV]"),
        ("no-such-program-here 2>/dev/null", "(no output)\n[exit code 127]"),
        ("printf '\\377\\n'", "�\n[exit code 0]"),
        ("read line; echo $?", "1\n[exit code 0]"),  # stdin is empty
        ("ls -l /proc/self/fd | wc -l", "5\n[exit code 0]"),  # nothing else is open: a total, 0, 1, 2 and ls' own
    ],
)
def test_what_a_command_does_is_told(command: str, said: str) -> None:
    assert run(command) == said


def test_a_list_is_run_without_a_shell() -> None:
    assert run(["echo", "a  b", "$HOME;"], as_list=True) == "a  b $HOME;\n[exit code 0]"
    said = "could not be started: FileNotFoundError: [Errno 2] No such file or directory: '/no-such-program'"
    assert said in run(["/no-such-program"], as_list=True)
    said = "could not be started: FileNotFoundError: [Errno 2] No such file or directory: 'no-such-program-here'"
    assert said in run(["no-such-program-here"], as_list=True)


def test_it_begins_where_it_is_told(tmp_path: Path) -> None:
    assert run("pwd", cwd=tmp_path) == f"{tmp_path}\n[exit code 0]"
    assert run("pwd") == f"{Path.cwd()}\n[exit code 0]"


def test_the_environment_is_what_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANDON_TEST_KEY", "secret")
    monkeypatch.setenv("ANDON_TEST_WORD", "word")
    assert "secret" not in run("env")
    said = run("env", env=["ANDON_TEST_WORD", "NOT_SET_ANYWHERE"])
    assert "ANDON_TEST_WORD=word" in said
    assert "ANDON_TEST_KEY" not in said
    assert "HOME" not in said


def test_what_the_system_gives_need_not_be_utf_8(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANDON_TEST_WORD", os.fsdecode(b"caf\xe9"))
    folder = tmp_path / os.fsdecode(b"d\xe9")
    folder.mkdir()
    assert run("printf %s $ANDON_TEST_WORD | wc -c", env=["PATH", "ANDON_TEST_WORD"], cwd=folder) == "4\n[exit code 0]"


def test_long_output_is_bounded() -> None:
    said = run("yes | head -c 100000", max_output=10)
    assert said == "[the first 99,990 bytes are left out]\ny\ny\ny\ny\ny\n[exit code 0]"


def test_output_is_shown_while_it_runs() -> None:
    async def main() -> None:
        command = "echo up $$ .; while true; do sleep 1000; done"
        async with at_work(Shell(), {"command": command}) as (run, pids):
            run.cancel()
            result = await run.result()
            check_gone(*pids)
        assert result.receipt is not None
        assert result.receipt.tools[0].stopped is Stopped.asked

    run_loop(main)


@pytest.mark.parametrize(
    ("command", "stopped", "count"),
    [
        ("trap '' TERM; echo up $$ .; while true; do sleep 1000; done", Stopped.killed, 1),
        ("sleep 1000 & echo up $$ $! .; wait", Stopped.asked, 2),
        ("setsid sleep 1000 & sleep 1000 & echo up $$ $! .; wait", Stopped.asked, 2),
        (
            "(setsid sh -c 'trap \"\" TERM; echo up $$ .; while true; do sleep 1000; done' &); sleep 1000",
            Stopped.killed,
            1,
        ),
    ],
)
def test_it_is_ended_with_its_tree(command: str, stopped: Stopped, count: int) -> None:
    async def main() -> None:
        async with at_work(Shell(), {"command": command}) as (run, pids):
            assert len(pids) == count
            run.cancel()
            result = await run.result()
            check_gone(*pids)
        assert result.receipt is not None
        assert [(each.outcome, each.stopped) for each in result.receipt.tools] == [(ToolOutcome.cut, stopped)]

    run_loop(main)


def test_what_it_leaves_in_the_background_ends_with_it() -> None:
    said = run("setsid sleep 1000 >/dev/null 2>&1 & echo $!")
    pid, code = said.splitlines()
    assert code == "[exit code 0]"
    check_gone(int(pid))


@pytest.mark.parametrize("apart", ["", "setsid "])
def test_what_it_leaves_in_the_background_is_asked_to_end_before_it_is_killed(tmp_path: Path, apart: str) -> None:
    daemon = "trap 'echo asked >end; exit' TERM; echo >ready; while true; do sleep 0.01; done"
    command = f'{apart}sh -c "{daemon}" & until [ -e ready ]; do sleep 0.01; done'
    shell = Shell(cwd=tmp_path)
    runtime = Runtime(kill_seconds=20)

    async def main() -> None:
        agent = agent_with(shell, calls=[Call("shell", {"command": command})], runtime=runtime)
        await agent.invoke_async("go")

    run_loop(main)
    assert (tmp_path / "end").read_text() == "asked\n"


TIMED_OUT = "ToolTimeoutError: timed out after 2 s: it was cut; its outcome is unknown. It had printed:\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("echo one; echo two; sleep 1000", "one\ntwo"),
        ("sleep 1000", "(no output)"),
        ("yes | head -c 100000; sleep 1000", "[the first 99,990 bytes are left out]\ny\ny\ny\ny\ny"),
        ("trap 'echo end' TERM; echo begin; sleep 1000 & wait", "begin\nend"),
        ("trap '' TERM; echo begin; while true; do sleep 1000; done", "begin"),
    ],
)
def test_one_that_takes_too_long_is_ended_and_what_it_printed_is_told(command: str, said: str) -> None:
    run("true")  # from now on, a command begins within milliseconds
    assert run(command, timeout=2, max_output=10) == TIMED_OUT + said


def test_what_it_printed_is_not_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    run("true")
    assert "secret" in run("echo secret; sleep 1000", timeout=2)
    assert "timed out after 2 s: it was cut" in caplog.text
    assert "secret" not in caplog.text


def test_limits_are_kept() -> None:
    assert "[was killed: it used more than 1 s of processor time, its limit]" in run(
        "while true; do :; done", limits=Limits(cpu=1)
    )
    assert run("ulimit -n", limits=Limits(files=20)) == "20\n[exit code 0]"


def test_a_person_can_be_asked_first() -> None:
    async def main() -> None:
        agent = Agent(
            "T", ScriptedModel(Call("shell", {"command": "echo hi"}), then="OK."), tools=[Shell(approval=True)]
        )
        first = await agent.invoke_async("go")
        (question,) = first.interrupts
        assert question.payload == {"command": "echo hi"}
        result = await agent.continue_run(first.run_id, {question.id: True})
        assert result.messages[2].tool_results[0].content == "hi\n[exit code 0]"

    run_loop(main)


@pytest.mark.parametrize("command", [None, "", 5, ["ls"], "a\0b"])
def test_what_is_no_command_is_refused(command: Any) -> None:
    assert run(command).startswith("BadArgumentsError: shell")


@pytest.mark.parametrize("command", [None, [], "ls", [""], ["ls", 5]])
def test_what_is_no_list_is_refused(command: Any) -> None:
    assert run(command, as_list=True).startswith("BadArgumentsError: shell")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"cwd": "/no/such/place"}, "there is no such directory"),
        ({"timeout": -1}, "it is a number of seconds"),
        ({"env": "PATH"}, "env takes the names"),
        ({"env": {"KEY": "secret"}}, "env takes the names"),
        ({"env": ["KEY=secret"]}, "env takes names, not values; set the variable KEY"),
        ({"max_output": 0}, "it is a number of bytes"),
        ({"limits": Limits(files=1)}, "16 or more"),
    ],
)
def test_options_that_can_not_work_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ToolDefinitionError, match=why):
        Shell(**options)


def test_the_model_is_told_what_it_is() -> None:
    shell: Tool = Shell(name="sh")
    assert (shell.name, list(shell.parameters["properties"])) == ("sh", ["command"])
    assert "/bin/sh" in shell.description
    assert repr(shell) == "<tool sh>"
    assert Shell(as_list=True).parameters["properties"]["command"]["type"] == "array"
    assert os.environ.get("PATH")


def test_output_that_is_printed_slowly_comes_piece_by_piece() -> None:
    async def main() -> None:
        agent = Agent(
            "T",
            ScriptedModel(Call("shell", {"command": "cat $FIFO; echo over"}, id="c"), then="OK."),
            tools=[Shell(env=["PATH", "FIFO"])],
        )
        text = ""
        async with agent.start("go") as run:
            async for event in run:
                if event.event is RunEvent.tool_call_started:
                    os.write(fifo, b"first\n")
                if event.event is RunEvent.tool_output:
                    text += event.content
                    if "second" not in text:
                        assert text == "first\n"
                        os.write(fifo, b"second\n")
                        os.close(fifo)
        assert text == "first\nsecond\nover\n"

    path = Path(os.environ["FIFO"])
    fifo = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    run_loop(main)


@pytest.fixture(autouse=True)
def _fifo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setenv("FIFO", str(tmp_path / "fifo"))
