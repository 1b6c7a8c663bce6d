# SPDX-License-Identifier: Apache-2.0
"""How a board says in words how a run ended."""

from __future__ import annotations

import msgspec
import pytest

from andon import Agent
from andon.core.receipt import Receipt, ToolReceipt
from andon.core.states import CancelCause, CancelMode, Phase, RunStatus, Stopped, ToolOutcome
from andon.messages import Usage
from andon.models.scripted import Call, ScriptedModel, Stall
from andon.server.board.words import CAUSES, MOST_NAMES, OUTCOMES, describe_end, describe_receipt, duration
from tests.server.boards import board_of
from tests.server.live import serving

RECEIPT = Receipt(CancelCause.user, None, None, CancelMode.now, 100.0, 100.0, 0.0021, Phase.tools, [], Usage(), [])


def receipt(**facts: object) -> Receipt:
    return msgspec.structs.replace(RECEIPT, **facts)


def call(name: str, outcome: ToolOutcome = ToolOutcome.cut, **facts: object) -> ToolReceipt:
    return msgspec.structs.replace(ToolReceipt("c", name, outcome), **facts)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 µs"),
        (0.00085, "850 µs"),
        (0.000_999_9, "1 ms"),
        (0.0021, "2.1 ms"),
        (0.0123, "12 ms"),
        (0.9999, "1 s"),
        (1.44, "1.4 s"),
        (30, "30 s"),
        (59.99, "1 min 00 s"),
        (125, "2 min 05 s"),
        (4320, "1 h 12 min"),
    ],
)
def test_a_time_span(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_an_end_in_one_line() -> None:
    assert describe_end(RunStatus.completed, None, None) == "completed"
    assert describe_end(RunStatus.cancelled, None, None) == "cancelled"
    assert describe_end(RunStatus.error, None, None) == "failed"
    assert describe_end(RunStatus.error, None, "it broke") == "it broke"
    assert describe_end(RunStatus.cancelled, RECEIPT, None) == "stopped in 2.1 ms on request"
    tools = [
        call("search"),
        call("fetch"),
        call("pay", ToolOutcome.not_started),
        call("book", ToolOutcome.compensated),
        call("look", ToolOutcome.completed),
    ]
    told = receipt(by="ada", reason="wrong city", tools=tools, leftovers=["thread of fetch"])
    assert describe_end(RunStatus.cancelled, told, None) == (
        "stopped in 2.1 ms by ada (wrong city); cut search, fetch; never started pay; undone book; "
        "left over: thread of fetch"
    )


def test_a_line_names_only_some_of_many_calls() -> None:
    told = receipt(tools=[call(f"t{number}") for number in range(MOST_NAMES + 2)])
    assert describe_end(RunStatus.cancelled, told, None).endswith("t7 and 2 more")


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_is_told_in_words(cause: CancelCause) -> None:
    told = receipt(cause=cause)
    assert describe_end(RunStatus.cancelled, told, None) == f"stopped in 2.1 ms {CAUSES[cause]}"
    assert describe_receipt(told)[0] == f"Cancelled {CAUSES[cause]}."


def test_a_new_cause_needs_no_words_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(CAUSES, CancelCause.budget)
    told = receipt(cause=CancelCause.budget)
    assert describe_end(RunStatus.cancelled, told, None) == "stopped in 2.1 ms with the cause budget"
    assert describe_receipt(told)[0] == "Cancelled with the cause budget."


def test_a_receipt_in_sentences() -> None:
    inner = receipt(cause=CancelCause.parent, latency=0.0005, phase=Phase.streaming, tools=[call("dig")])
    told = receipt(
        cause=CancelCause.deadline,
        by="the gateway",
        reason="too slow",
        mode=CancelMode.after_tools,
        tools=[
            call("look", ToolOutcome.completed),
            call("post", ToolOutcome.completed, let_finish=True),
            call("build", stopped=Stopped.killed, undo="it has no time left"),
            call("helper", receipt=inner),
        ],
        leftovers=["thread of a", "thread of b"],
    )
    assert describe_receipt(told) == [
        "Cancelled because its time was over by the gateway: “too slow” (mode after_tools).",
        "It ended 2.1 ms after the cancel, which found it in the phase “tools”.",
        "look: finished.",
        "post: was let finish.",
        "build: cut; its process was killed; not undone: it has no time left.",
        "helper: cut.",
        "Inside helper: Cancelled with the run that started it.",
        "Inside helper: It ended 500 µs after the cancel, which found it in the phase “streaming”.",
        "Inside helper: dig: cut.",
        "Inside helper: Nothing is left over.",
        "Left over: thread of a, thread of b.",
    ]


@pytest.mark.parametrize("outcome", ToolOutcome)
def test_every_outcome_has_words(outcome: ToolOutcome) -> None:
    words = OUTCOMES.get(outcome, outcome.value)
    assert "_" not in words
    assert f"x: {words}." in describe_receipt(receipt(tools=[call("x", outcome)]))


def test_the_server_tells_them() -> None:
    inner = Agent("Inner", ScriptedModel([Stall()]))
    agent = Agent("Helper", ScriptedModel(Call("inner", {"prompt": "dig"}, id="c")), tools=[inner.as_tool()])
    with serving(agent) as live, board_of(live.client) as board:
        body = {"message": "Find it", "run_id": "r", "background": "true", "stream": "false"}
        assert live.client.post("/agents/helper/runs", data=body).status_code == 202
        board.shows("r", doing="in inner")
        path = "/board/runs/helper/r"
        told = live.client.get(path).json()
        assert (told["prompt"], told["receipt"]) == ("Find it", [])
        assert "ending" not in told["runs"][0]
        live.client.post("/agents/helper/runs/r/cancel", params={"wait": 30}, json={"reason": "enough"})
        ending = board.shows("r", status="CANCELLED")["ending"]
        assert ending.startswith("stopped in ")
        assert ending.endswith("on request (enough); cut inner")
        told = live.client.get(path).json()
        assert told["prompt"] == "Find it"
        assert told["receipt"][0] == "Cancelled on request: “enough”."
        assert "inner: cut." in told["receipt"]
        assert [each["status"] for each in told["runs"]] == ["CANCELLED", "CANCELLED"]
        assert live.client.get("/board/runs/inner/r.c").json()["prompt"] == "dig"
