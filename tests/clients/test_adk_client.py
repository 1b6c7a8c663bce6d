# SPDX-License-Identifier: Apache-2.0
"""ADK's own client against our server: it starts, streams, cancels, leaves, and goes on."""

from typing import Any

import pytest

from tests.clients.driving import drive

ANSWER = "Good to hear from you!"

Shape = dict[str, Any]


@pytest.fixture(scope="module")
def seen() -> Any:
    return drive("adk", "adk")


def texts(events: list[Shape]) -> list[str]:
    """The text of each event; of the others, the code of their error."""
    return [
        event.get("errorCode") or "".join(part.get("text", "") for part in event["content"]["parts"])
        for event in events
    ]


def check_cut(events: list[Shape], marker: str) -> str:
    """The invocation ended with its partial text as a whole event, and then with the abort. Returns that text."""
    *_, whole, end = events
    assert end["errorCode"] == "INVOCATION_ABORTED"
    assert end["errorMessage"] == marker
    assert "content" not in end
    assert "partial" not in whole
    assert len({event["invocationId"] for event in events}) == 1
    (said,) = texts([whole])
    assert said
    return said


def check_answer(events: list[Shape]) -> None:
    (event,) = events
    assert texts(events)[0].startswith(ANSWER)
    assert "errorCode" not in event
    assert event["usageMetadata"]["totalTokenCount"] > 0


def test_cancels_a_stream_and_goes_on(seen: Any) -> None:
    seen = seen["streaming"]
    pieces = [event for event in seen["events"] if event.get("partial")]
    said = check_cut(seen["events"], "Cancelled by user")
    assert "".join(texts(pieces)) == said
    assert {piece["id"] for piece in pieces} == {seen["events"][-2]["id"]}
    run_id = seen["events"][0]["invocationId"]
    assert seen["cancel"] == {
        "status": 200,
        "body": {"session_id": seen["session"]["id"], "cancelled": [run_id]},
    }
    check_answer(seen["after"])
    assert seen["again"]["body"]["cancelled"] == []


def test_finds_the_partial_text_in_the_session(seen: Any) -> None:
    session, events = seen["streaming"]["session"], seen["streaming"]["events"]
    cut = events[-2:]
    assert texts(session["events"]) == [
        "Tell me a story.",
        *texts(cut),
        "Are you there?",
        *texts(seen["streaming"]["after"]),
    ]
    assert [event["id"] for event in session["events"][1:3]] == [event["id"] for event in cut]
    assert [event["author"] for event in session["events"]] == ["user", "story", "story", "user", "story"]
    assert session["state"] == {"mood": "calm"}


def test_cancels_an_invocation_without_streaming_and_goes_on(seen: Any) -> None:
    seen = seen["whole"]
    assert len(seen["events"]) <= 2
    assert seen["events"][-1]["errorCode"] == "INVOCATION_ABORTED"
    check_answer(seen["after"])


def test_leaves_and_goes_on(seen: Any) -> None:
    seen = seen["left"]
    assert check_cut(seen["events"][1:], "Cancelled: the client left").startswith(seen["seen"])
    check_answer(seen["after"])


def test_sees_calls_and_their_results(seen: Any) -> None:
    seen = seen["tools"]
    asked, answered, told = [event for event in seen["events"] if not event.get("partial")]
    calls = [part["functionCall"] for part in asked["content"]["parts"] if "functionCall" in part]
    results = [part["functionResponse"] for part in answered["content"]["parts"]]
    assert [(call["name"], call["args"]) for call in calls] == [("weather", {"city": "Oslo"}), ("volcano", {})]
    assert [result["id"] for result in results] == [call["id"] for call in calls]
    assert results[0]["response"] == {"result": "rain in Oslo"}
    assert "there is no tool 'volcano'" in results[1]["response"]["error"]
    assert texts([told]) == ["It rains."]
    kept = seen["session"]["events"][1:]
    assert [(event["id"], event["content"]) for event in kept] == [
        (event["id"], event["content"]) for event in (asked, answered, told)
    ]


def test_sees_a_failure_as_an_event(seen: Any) -> None:
    (event,) = seen["failing"]
    assert event["errorCode"] == "INVOCATION_FAILED"
    assert event["errorMessage"] == "ModelError: out of order"


def test_keeps_sessions(seen: Any) -> None:
    assert seen["version"]["language"] == "python"
    seen = seen["sessions"]
    assert seen["created"]["state"] == {"a": 1}
    assert seen["patched"]["state"] == {"a": 1, "b": 2}
    assert seen["patched"]["id"] == seen["created"]["id"]
    assert seen["gone"] == seen["run in it"] == 404
