# SPDX-License-Identifier: Apache-2.0
"""AgentOS's own client against our server: it starts, streams, cancels, leaves, and goes on."""

from typing import Any

import pytest

from tests.clients.driving import drive

ANSWER = "Good to hear from you!"

Shape = dict[str, Any]


@pytest.fixture(scope="module")
def seen() -> Any:
    return drive("agno", "agentos")


def kinds(events: list[Shape]) -> list[str]:
    """The events' names, repetitions left out."""
    names = [event["event"] for event in events]
    return [name for number, name in enumerate(names) if number == 0 or names[number - 1] != name]


def check_cut(run: Shape, marker: str) -> None:
    assert run["status"] == "CANCELLED"
    assert run["content"]
    last = run["messages"][-1]
    assert last["role"] == "assistant"
    assert last["content"].startswith(run["content"])
    assert last["content"].endswith(marker)


def check_answer(run: Shape, partial: str) -> None:
    """The next prompt was answered, in a conversation that has what was said before the cut."""
    assert run["status"] == "COMPLETED"
    assert run["content"].startswith(ANSWER)
    first, cut, second, _ = run["messages"]
    assert [first["content"], second["content"]] == ["Tell me a story.", "Are you there?"]
    assert cut["content"].startswith(partial)


def test_finds_the_agents(seen: Any) -> None:
    seen = seen["found"]
    assert seen["config"] == [agent["id"] for agent in seen["agents"]] == ["story", "tools", "broken"]
    assert seen["agents"][0]["description"] == seen["agent"]["description"] == "Tells stories."
    assert seen["agents"][0]["model"] == {"id": "story", "provider": "Andon"}


def test_cancels_a_stream_and_goes_on(seen: Any) -> None:
    seen = seen["streaming"]
    assert kinds(seen["events"]) == ["RunStarted", "RunContent", "RunCancelled"]
    said = "".join(event["content"] for event in seen["events"] if event["event"] == "RunContent")
    assert seen["events"][-1]["content"] == seen["run"]["content"] == said
    check_cut(seen["run"], "Cancelled by user")
    check_answer(seen["after"], said)
    assert seen["after"]["user_id"] == "ada"


def test_raises_for_a_cancel_that_is_too_late(seen: Any) -> None:
    seen = seen["streaming"]
    assert seen["again"] is None  # it was cancelled: that is what was wanted
    assert seen["finished"] == 409
    assert seen["unknown"] == 404


def test_cancels_a_run_in_the_background_and_goes_on(seen: Any) -> None:
    seen = seen["background"]
    assert seen["started"]["status"] in ("PENDING", "RUNNING")
    assert seen["started"]["session_id"] == "s2"
    assert seen["started"]["run_id"] in seen["listed"]
    check_cut(seen["run"], "Cancelled by user")
    check_answer(seen["after"], seen["run"]["content"])


def test_leaves_and_goes_on(seen: Any) -> None:
    seen = seen["left"]
    check_cut(seen["run"], "Cancelled: the client left")
    check_answer(seen["after"], seen["run"]["content"])


def test_works_as_a_remote_agent(seen: Any) -> None:
    seen = seen["remote"]
    assert (seen["events"][0], seen["events"][-1]) == ("RunStarted", "RunCancelled")
    assert seen["cancelled"] is True
    assert seen["after"]["content"].startswith(ANSWER)
    assert seen["late"] is False


def test_sees_calls_and_their_results(seen: Any) -> None:
    events, plain = seen["tools"]["events"], seen["tools"]["plain"]
    assert kinds(events)[-2:] == ["RunContent", "RunCompleted"]
    ended = {event["event"]: event["tool"] for event in events if "tool" in event}
    assert ended["ToolCallCompleted"]["result"] == "rain in Oslo"
    assert ended["ToolCallCompleted"]["tool_args"] == {"city": "Oslo"}
    assert ended["ToolCallError"]["tool_call_error"] is True
    assert plain["content"] == events[-1]["content"] == "Let me look. It rains."
    assert [call["tool_name"] for call in plain["tools"]] == ["weather", "volcano"]


def test_sees_a_failure(seen: Any) -> None:
    assert kinds(seen["failing"]["events"]) == ["RunStarted", "RunError"]
    assert seen["failing"]["events"][-1]["content"] == "ModelError: out of order"
    assert seen["failing"]["unknown"] == 404
