# SPDX-License-Identifier: Apache-2.0
"""A cancel of one tool call, over a server that executes nothing: what it answers when no worker can say."""

from __future__ import annotations

from typing import Any

import pytest

from andon import tool
from andon.core.shared import call_cancels
from andon.models.scripted import Call, Stall
from tests.scale.parts import accepting, cancel, ended, pair, start, state, told, working
from tests.server.live import Live
from tests.support import Flag, forever
from tests.support.till import DELETE, Till


def cancel_call(live: Live, run_id: str, call_id: str, status: int) -> dict[str, Any]:
    response = live.client.post(f"/agents/helper/runs/{run_id}/tools/{call_id}/cancel", json={})
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()
    return found


def test_a_run_that_no_worker_has_begun_has_no_calls(shared_url: str) -> None:
    server, _ = pair()
    with accepting(shared_url, server) as live:
        start(live, "n1")
        assert "no tool call" in cancel_call(live, "n1", "c", 404)["detail"]
        cancel(live, "n1")
        assert cancel_call(live, "n1", "c", 409)["outcome"] == "already_finished"


def test_a_run_that_waits_for_a_person_or_then_for_a_worker_says_what_to_do(shared_url: str) -> None:
    server, agent = pair([DELETE], "Good.", tools=Till().tools)
    with accepting(shared_url, server) as live:
        with working(shared_url, agent):
            start(live, "p1")
            assert told(live, "p1")[-1].event == "RunPaused"
        assert "refuse the call in an answer" in cancel_call(live, "p1", "d", 409)["detail"]
        [question] = state(live, "p1")["interrupts"]
        body = {"answers": {question["id"]: True}, "background": True, "stream": False}
        assert live.client.post("/agents/helper/runs/p1/continue", json=body).status_code == 202
        assert "waits for a worker process" in cancel_call(live, "p1", "d", 409)["detail"]
        with working(shared_url, agent):
            assert ended(live, "p1")["status"] == "COMPLETED"


def test_a_worker_that_does_not_answer_in_time_cancels_the_call_when_it_can(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = Flag()

    @tool
    async def hang() -> str:
        begun.set()
        return await forever()

    server, agent = pair(Call("hang", id="h"), then=Stall(), tools=[hang])
    monkeypatch.setattr(call_cancels, "ANSWER_SECONDS", 0.05)
    with accepting(shared_url, server) as live, working(shared_url, agent) as crew:
        start(live, "w1")
        begun.wait()
        worker = crew.runtime.worker
        assert worker is not None
        with monkeypatch.context() as deaf:
            deaf.setattr(worker.leases, "look", lambda run_ids=(): None)
            assert "repeat this request" in cancel_call(live, "w1", "h", 503)["detail"]
        worker.look()
        with live.watch("/agents/helper/runs/w1/events") as stream:
            assert "ToolCallCancelled" in (frame.event for frame in stream)
        monkeypatch.undo()
        assert cancel_call(live, "w1", "h", 409)["outcome"] == "already_finished"
        cancel(live, "w1")
