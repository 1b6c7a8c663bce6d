# SPDX-License-Identifier: Apache-2.0
"""`andon run`: at a real terminal, with real keys, and in pipes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from andon.cli.local_run import SignalHandler
from tests.cli.terminal import CTRL_C, CTRL_D, Andon, alone, at_terminal, environment, interrupted
from tests.support import HANG

# -- Ctrl-C -----------------------------------------------------------------------------------------------------------


@interrupted
def test_ctrl_c_cancels_and_shows_the_receipt(here: Path) -> None:
    with at_terminal(here, "run", "program:stall", "Hi") as terminal:
        terminal.until("One ")
        terminal.type(CTRL_C)
        assert terminal.end() == 3
        for words in ("cancelling (Ctrl-C)", "cancelled", "reason", "Ctrl-C", "streaming", "latency", "nothing"):
            assert words in terminal.screen
    assert (here / "ended").read_text() == "user"


@interrupted
def test_ctrl_c_in_a_tool_that_takes_no_notice(here: Path) -> None:
    with at_terminal(here, "run", "program:blocked", "Hi") as terminal:
        terminal.until("working")
        terminal.type(CTRL_C)
        assert terminal.end() == 3
        assert "abandoned, may still be running" in terminal.screen


@interrupted
@pytest.mark.parametrize(("name", "sign"), [("deaf", "Deaf. "), ("held", "working")])
def test_a_second_ctrl_c_leaves_at_once(here: Path, name: str, sign: str) -> None:
    with at_terminal(here, "run", f"program:{name}", "Hi") as terminal:
        terminal.until(sign)
        terminal.type(CTRL_C)
        terminal.until("another Ctrl-C leaves at once")
        terminal.type(CTRL_C)
        assert terminal.end() == 130
        assert "left at once" in terminal.screen


@interrupted
def test_ctrl_c_before_there_is_a_run(here: Path) -> None:
    (here / "slow.py").write_text("import time\nprint('importing', flush=True)\nwhile True:\n    time.sleep(0.01)\n")
    with at_terminal(here, "run", "slow:agent", "Hi") as terminal:
        terminal.until("importing")
        terminal.type(CTRL_C)
        assert terminal.end() == 130


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_cancel_too(here: Path, number: signal.Signals) -> None:
    with at_terminal(here, "run", "program:stall", "Hi") as terminal:
        terminal.until("One ")
        terminal.process.send_signal(number)
        assert terminal.end() == 3
        assert number.name in terminal.screen
    assert (here / "ended").read_text() == "shutdown"


# -- questions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("y\n", "deleted a.txt"),
        ("YES\n", "deleted a.txt"),
        ("\n", "A person refused this call"),
        ("n I need it\n", "I need it"),
        ("what?\n", "what?"),
    ],
)
def test_an_approval_is_asked_for(here: Path, typed: str, answer: str) -> None:
    with at_terminal(here, "run", "program:asker", "Hi") as terminal:
        terminal.until("[y/N, or n and why]")
        assert '"a.txt"' in terminal.screen
        terminal.type(typed)
        assert terminal.end() == 0
        assert answer in terminal.screen.partition("[y/N")[2]


@pytest.mark.parametrize(("typed", "answer"), [("red\n", "painted it 'red'"), ("\n[1]\n", "painted it [1]")])
def test_a_question_is_asked(here: Path, typed: str, answer: str) -> None:
    with at_terminal(here, "run", "program:painter", "Hi") as terminal:
        terminal.until("Answer (text, or JSON)")
        assert '"blue"' in terminal.screen
        terminal.type(typed)
        assert terminal.end() == 0
        assert answer in terminal.screen


@interrupted
def test_ctrl_c_at_a_question_cancels(here: Path) -> None:
    with at_terminal(here, "run", "program:asker", "Hi") as terminal:
        terminal.until("[y/N, or n and why]")
        terminal.type(CTRL_C)
        assert terminal.end() == 3
        assert "never started" in terminal.screen


def test_ctrl_d_at_a_question_leaves_it_open(here: Path) -> None:
    with at_terminal(here, "run", "program:asker", "Hi") as terminal:
        terminal.until("[y/N, or n and why]")
        terminal.type(CTRL_D)
        assert terminal.end() == 4


KEPT = ["--db", "sqlite:///andon.db"]


def _listed(here: Path) -> list[str]:
    return [line["status"] for line in json.loads(alone(here, "ps", "--json", *KEPT).stdout)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_leave_a_question_open_where_a_database_keeps_it(here: Path, number: signal.Signals) -> None:
    with at_terminal(here, "run", "program:asker", "Hi", *KEPT) as terminal:
        terminal.until("[y/N, or n and why]")
        terminal.process.send_signal(number)
        assert terminal.end() == 4
        assert "it is paused; to go on: andon continue" in terminal.screen
    assert _listed(here) == ["PAUSED"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_at_a_question_end_what_is_only_in_memory(here: Path, number: signal.Signals) -> None:
    with at_terminal(here, "run", "program:asker", "Hi") as terminal:
        terminal.until("[y/N, or n and why]")
        terminal.process.send_signal(number)
        assert terminal.end() == 3


def test_a_terminal_that_goes_away_at_a_question_leaves_it_open_where_a_database_keeps_it(here: Path) -> None:
    with at_terminal(here, "run", "program:asker", "Hi", *KEPT) as terminal:
        terminal.until("[y/N, or n and why]")
        terminal.hang_up()
        assert terminal.process.wait(HANG) != 0
    assert _listed(here) == ["PAUSED"]


@pytest.mark.parametrize("more", [["--no-input"], ["--json"]])
def test_nothing_is_asked_that_should_not_be(here: Path, more: list[str]) -> None:
    with at_terminal(here, "run", "program:asker", "Hi", *more) as terminal:
        assert terminal.end() == 4


def test_without_a_terminal_a_question_has_its_own_exit_code(here: Path) -> None:
    ended = alone(here, "run", "program:asker", "Hi")
    assert ended.returncode == 4
    assert 'delete wants to run: {"name":"a.txt"}' in ended.stderr
    assert "--db" in ended.stderr


# -- in and out -------------------------------------------------------------------------------------------------------


def test_the_text_is_all_there_is_on_stdout(here: Path) -> None:
    ended = alone(here, "run", "program:tooled", "Hi")
    assert (ended.returncode, ended.stdout) == (0, "Let me look. Sand.\n")
    assert '→ look {"where":"here"}' in ended.stderr
    assert "← look nothing but sand" in ended.stderr


def test_quiet(here: Path) -> None:
    ended = alone(here, "run", "program:tooled", "Hi", "--quiet")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "Let me look. Sand.\n", "")


def test_each_event_as_json_and_the_result_last(here: Path) -> None:
    ended = alone(here, "run", "program:hello", "Hi", "--json", "--session", "s1", "--user", "ada")
    *events, last = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert (events[0]["event"], events[-1]["event"]) == ("RunStarted", "RunCompleted")
    assert {event["session_id"] for event in events} == {"s1"}
    result = last["result"]
    assert (result["status"], result["content"], result["stop_reason"]) == ("COMPLETED", "Hello there.", "end_turn")
    assert result["usage"]["input_tokens"] == 3
    assert ended.stderr == ""


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_the_prompt_may_come_through_a_pipe(here: Path, arguments: list[str]) -> None:
    ended = alone(here, "run", "program:echo", *arguments, stdin="From afar\n")
    assert (ended.returncode, ended.stdout) == (0, "<From afar\n>\n")


def test_time_runs_out(here: Path) -> None:
    ended = alone(here, "run", "program:stall", "Hi", "--timeout", "2")
    assert (ended.returncode, ended.stdout) == (3, "One \n")
    assert "deadline" in ended.stderr


SHELLS = """
from andon import Agent
from andon.models.scripted import Call, ScriptedModel
from andon.tools.shell import Shell

def make(name, command):
    return Agent(name, ScriptedModel(Call(name, {"command": command}), then="never"), tools=[Shell(name=name)])

polite = make("polite", "exec sleep 600")
deaf = make("deaf", "trap '' TERM; while true; do sleep 600; done")
"""


@pytest.mark.parametrize(
    ("name", "said"), [("polite", "its processes ended at SIGTERM"), ("deaf", "its processes were killed")]
)
def test_the_receipt_says_how_processes_ended(here: Path, name: str, said: str) -> None:
    (here / "shells.py").write_text(SHELLS)
    ended = alone(here, "run", f"shells:{name}", "Hi", "--timeout", "5")
    assert ended.returncode == 3
    assert f"{name}: cut while it ran; {said}" in ended.stderr


def test_a_run_that_fails(here: Path) -> None:
    ended = alone(here, "run", "program:failing", "Hi")
    assert (ended.returncode, ended.stdout) == (1, "Half a \n")
    assert ended.stderr.count("the model is on fire") == 1


BROKEN = """
from andon import Agent, tool
from andon.models.scripted import Call, ScriptedModel

@tool
async def look() -> str:
    raise ValueError("\\x1b[2J not there")

agent = Agent("Broken", ScriptedModel(Call("look"), then="Oh."), tools=[look])
"""


@pytest.mark.parametrize(
    ("setup", "options", "traces"),
    [("", [], 1), ("", ["--quiet"], 0), ("import logging; logging.basicConfig(level=logging.CRITICAL)", [], 0)],
)
def test_what_a_tool_raised_is_shown_with_its_traceback(
    here: Path, setup: str, options: list[str], traces: int
) -> None:
    """Whoever wrote the tool wants to know its line. A log of the program's own is left as it is."""
    (here / "broken.py").write_text(setup + BROKEN)
    command = [sys.executable, "-m", "andon", "run", "broken:agent", "Hi", *options]
    ended = subprocess.run(
        command, cwd=here, env=environment(), capture_output=True, text=True, timeout=HANG, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "Oh.\n")
    assert ended.stderr.count("Traceback") == ended.stderr.count("broken.py") == traces
    assert "\x1b[2J" not in ended.stderr


def test_a_reader_of_the_output_that_leaves_cancels(here: Path) -> None:
    """Also while there is nothing to write: nobody would notice by writing."""
    process = subprocess.Popen(
        [sys.executable, "-m", "andon", "run", "program:liner", "Hi"],
        cwd=here,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        assert process.stdout.readline() == "One\n"
        process.stdout.close()
        told = process.stderr.read()
        assert process.wait(HANG) == 141
    assert "Traceback" not in told
    assert "cancelled" not in told
    assert (here / "ended").read_text() == "disconnect"


def test_head_takes_one_line(here: Path) -> None:
    story = f"{sys.executable} -m andon run andon.cli.demo_agents:storyteller Hi -q"
    command = f'{story} | head -c 20; echo " $PIPESTATUS"'
    ended = subprocess.run(
        ["bash", "-c", command], cwd=here, env=environment(), capture_output=True, text=True, timeout=HANG, check=False
    )
    assert ended.stdout == "On night 1 of that w 141\n"
    assert ended.stderr == ""


# -- colour -----------------------------------------------------------------------------------------------------------


def test_a_model_can_not_steer_the_terminal(here: Path) -> None:
    with at_terminal(here, "run", "program:colourful", "Hi", env={"NO_COLOR": "1"}) as terminal:
        assert terminal.end() == 0
        assert "�[31mred� �31m" in terminal.screen
        assert "\x1b" not in terminal.screen
        assert "\x07" not in terminal.screen
    assert alone(here, "run", "program:colourful", "Hi", "-q").stdout == "\x1b[31mred\x07 \x9b31m\tfine\n"


def test_colour_is_for_terminals(here: Path) -> None:
    with at_terminal(here, "run", "program:tooled", "Hi") as terminal:
        assert terminal.end() == 0
        assert "\x1b[2m→ look" in terminal.screen
        assert "Let me look. \r\n" in terminal.screen, "a note begins its own line"
    with at_terminal(here, "run", "program:tooled", "Hi", env={"TERM": "dumb"}) as terminal:
        assert terminal.end() == 0
        assert "\x1b" not in terminal.screen
    assert "\x1b" not in alone(here, "run", "program:tooled", "Hi").stderr


@interrupted
def test_a_narrow_terminal(here: Path) -> None:
    with at_terminal(here, "run", "program:stall", "Hi", columns=30, env={"NO_COLOR": "1"}) as terminal:
        terminal.until("One ")
        terminal.type(CTRL_C)
        assert terminal.end() == 3
        lines = terminal.screen.splitlines()
        assert max(len(line.replace("^C", "")) for line in lines) <= 30


# -- what users get wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["program"], 2, "write module:agent"),
        (["nothing_here:agent", "Hi"], 2, "no module 'nothing_here'"),
        (["program:nobody", "Hi"], 2, "the agents in it are"),
        (["program:both", "Hi"], 2, "a list of agents (hello, echo)"),
        (["program:hello", "  "], 2, "the prompt is empty"),
        (["program:hello", "Hi", "--timeout", "0"], 2, "more than 0"),
        (["program:hello", "Hi", "--timeout", "soon"], 2, "a number of seconds"),
        (["program:hello", "Hi", "--session", ""], 2, "it is empty"),
    ],
)
@pytest.mark.usefixtures("here")
def test_mistakes_are_one_sentence(andon: Andon, arguments: list[str], code: int, words: str) -> None:
    told, out, err = andon("run", *arguments)
    assert (told, out) == (code, "")
    assert words in err


def test_a_terminal_without_a_prompt(here: Path) -> None:
    with at_terminal(here, "run", "program:hello") as terminal:
        assert terminal.end() == 2
        assert "there is no prompt" in terminal.screen


def test_a_prompt_that_is_no_text(here: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "andon", "run", "program:hello"],
        cwd=here,
        env=environment(),
        input=b"\xff\xfe",
        capture_output=True,
        timeout=HANG,
        check=False,
    )
    assert ended.returncode == 2
    assert b"is no text" in ended.stderr


def test_a_signal_that_comes_before_its_run_is_not_lost() -> None:
    asked: list[signal.Signals] = []
    before = signal.getsignal(signal.SIGINT)
    with SignalHandler() as hands:
        signal.raise_signal(signal.SIGINT)
        hands.on_first_signal(asked.append)
    assert asked == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is before
