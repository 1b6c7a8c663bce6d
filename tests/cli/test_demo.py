# SPDX-License-Identifier: Apache-2.0
"""`andon serve --demo`, as a real process, and the other commands against it from real terminals."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from andon import Agent
from andon.cli import demo_agents
from tests.cli.terminal import CTRL_C, CTRL_D, PROGRAM, alone, at_terminal, interrupted
from tests.cli.test_serve import serving


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("demo"), "--demo", "--drain", "0") as served:
        yield served.url
        assert served.end(signal.SIGTERM) == 0


def start(url: str, agent: str, run_id: str) -> None:
    """A run in the background that has begun to speak, or waits for an answer."""
    fields = {"message": "Hi", "run_id": run_id, "background": "true"}
    with httpx.stream("POST", f"{url}/agents/{agent}/runs", data=fields, verify=False) as response:
        lines = response.iter_lines()
        while "RunContent" not in next(lines):
            pass


def wait(here: Path, url: str, run_id: str) -> None:
    """Until it has ended, or is paused."""
    assert alone(here, "watch", run_id, "--url", url).returncode in (0, 3, 4)


def test_there_are_agents_to_try(url: str) -> None:
    names = [agent["id"] for agent in httpx.get(f"{url}/agents", verify=False).json()]
    assert names == ["storyteller", "researcher", "janitor"]


def test_listed_in_any_width(url: str, tmp_path: Path) -> None:
    start(url, "storyteller", "a-run-with-a-rather-long-name")
    for columns in (20, 45, 80, 200):
        with at_terminal(tmp_path, "ps", "--url", url, columns=columns, env={"NO_COLOR": "1"}) as terminal:
            assert terminal.end() == 0
            lines = terminal.screen.splitlines()
            assert max(map(len, lines)) <= columns
            assert any(line.startswith("a-run-w") for line in lines)
            assert ("SESSION" in lines[0]) == (columns >= 80)
    ended = alone(tmp_path, "ps", "--url", url)
    assert "a-run-with-a-rather-long-name" in ended.stdout, "without a terminal, nothing is cut"


@interrupted
def test_watching_is_left_and_the_run_goes_on(url: str, tmp_path: Path) -> None:
    start(url, "storyteller", "watched")
    with at_terminal(tmp_path, "watch", "watched", "--url", url) as terminal:
        terminal.until("On night 1")
        terminal.type(CTRL_C)
        assert terminal.end() == 130
        assert "the run goes on; andon cancel watched" in terminal.screen
    with at_terminal(tmp_path, "watch", "watc", "--url", url) as terminal:
        terminal.until("On night 1")
        ended = alone(tmp_path, "cancel", "watched", "--wait", "--reason", "enough", "--url", url)
        assert ended.returncode == 0
        assert terminal.end() == 3
        assert "cancelling (enough)" in terminal.screen


def test_a_question_is_answered_at_the_terminal(url: str, tmp_path: Path) -> None:
    start(url, "janitor", "tidy")
    wait(tmp_path, url, "tidy")
    with at_terminal(tmp_path, "continue", "tidy", "--url", url) as terminal:
        terminal.until("[y/N, or n and why]")
        terminal.type(CTRL_D)
        assert terminal.end() == 4
    with at_terminal(tmp_path, "continue", "tidy", "--url", url) as terminal:
        terminal.until("[y/N, or n and why]")
        terminal.type("y\n")
        assert terminal.end() == 0
        assert "the three files are gone" in terminal.screen


@interrupted
def test_ctrl_c_cancels_a_run_that_was_continued(tmp_path: Path) -> None:
    """And the second one leaves: the server is stopped, so that nobody can answer the first one."""
    (tmp_path / "program.py").write_text(PROGRAM)
    # It may be stopped for longer than its lease.
    late = "(WARNING andon.core.shared.leases: stopped as lost, because .*\n)?"
    with serving(tmp_path, "program:stall", "--drain", "0", complains=late) as served:
        start(served.url, "stall", "first")
        assert alone(tmp_path, "cancel", "first", "--wait", "--url", served.url).returncode == 0
        with at_terminal(tmp_path, "continue", "first", "--url", served.url) as terminal:
            terminal.until("Two ")
            run_id = re.findall("run ([0-9a-f]{32}) of", terminal.screen)[0]
            terminal.type(CTRL_C)
            assert terminal.end() == 3
            assert "cancelling (Ctrl-C)" in terminal.screen
        with at_terminal(tmp_path, "continue", run_id, "--url", served.url) as terminal:
            terminal.until("Two ")
            served.process.send_signal(signal.SIGSTOP)
            terminal.type(CTRL_C)
            terminal.until("another Ctrl-C leaves at once")
            terminal.type(CTRL_C)
            assert terminal.end() == 130
        served.process.send_signal(signal.SIGCONT)
        assert served.end(signal.SIGTERM) == 0


def test_nothing_to_serve(tmp_path: Path) -> None:
    ended = alone(tmp_path, "serve")
    assert ended.returncode == 2
    assert "--demo" in ended.stderr


# -- the agents themselves --------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_agents, "SEARCH_SECONDS", 0.0)
    monkeypatch.setattr(demo_agents, "ARCHIVE_SECONDS", 0.0)
    for agent in (demo_agents.researcher, demo_agents.fact_checker, demo_agents.janitor):
        monkeypatch.setattr(agent.model, "pace", 0.0)


@pytest.mark.usefixtures("quick")
def test_the_researcher_answers_any_number_of_prompts() -> None:
    for prompt in ("Who drew the map?", "And when? " * 20):
        result = demo_agents.researcher.run(prompt, session_id="s")
        assert result.status.name == "completed"
        names = [call.name for message in result.messages for call in message.tool_calls]
        assert names[-3:] == ["search", "read_archive", "fact-checker"]
        assert all(each.status == "ok" for message in result.messages for each in message.tool_results)
        assert result.content.count("Here is what I found") == 1


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("answer", "words"), [(True, "are gone"), (False, "left the files")])
def test_the_janitor_asks_each_time(answer: bool, words: str) -> None:
    async def tidy(agent: Agent) -> str:
        paused = await agent.invoke_async("Tidy up.", session_id=f"s-{answer}")
        assert paused.status.name == "paused"
        (question,) = paused.interrupts
        return (await agent.continue_run(paused.run_id, {question.id: answer})).content

    async def twice() -> None:
        for _ in range(2):
            assert words in await tidy(demo_agents.janitor)

    asyncio.run(twice())


@interrupted
def test_a_slow_tool_ends_with_its_run(tmp_path: Path) -> None:
    with at_terminal(tmp_path, "run", "andon.cli.demo_agents:researcher", "Who drew the map?") as terminal:
        terminal.until("→ read_archive")
        terminal.type(CTRL_C)
        assert terminal.end() == 3
        assert "read_archive: cut while it ran" in " ".join(terminal.screen.split())


def test_json_for_scripts(url: str, tmp_path: Path) -> None:
    start(url, "storyteller", "scripted")
    lines = json.loads(alone(tmp_path, "ps", "--json", "--url", url).stdout)
    (line,) = [line for line in lines if line["run_id"] == "scripted"]
    assert line.keys() == {*("run_id", "agent_id", "session_id", "user_id", "status", "created_at", "phase", "held_by")}
    (told,) = json.loads(alone(tmp_path, "cancel", "scripted", "--wait", "--json", "--url", url).stdout)
    assert told.keys() == {"run_id", "outcome", "status", "receipt"}
    last = alone(tmp_path, "watch", "scripted", "--json", "--url", url).stdout.splitlines()[-1]
    assert json.loads(last)["result"].keys() == {
        *("run_id", "agent_id", "session_id", "status", "stop_reason", "finish_reason", "content"),
        *("usage", "interrupts", "receipt", "error", "warnings"),
    }
