# SPDX-License-Identifier: Apache-2.0
"""Over HTTP, too, an answer says why it ended."""

from __future__ import annotations

from pathlib import Path

from andon import Agent, FinishReason
from andon.models.base import ModelRequest, Sink
from tests.server.live import serving_on

RUNS = "/agents/helper/runs"


class Short:
    """A model whose answers are cut at the limit of tokens."""

    id = "short"

    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        sink.text("Once upon")
        sink.finish(FinishReason.length)


def test_the_state_and_the_last_event_say_why_the_answer_ended(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    with serving_on(url, Agent("Helper", Short())) as live:
        with live.stream(RUNS, message="A story.", run_id="r1") as stream:
            last = list(stream)[-1].data
        assert (last["event"], last["finish_reason"]) == ("RunCompleted", "length")
        assert live.post(RUNS, message="Another.", stream=False).json()["finish_reason"] == "length"
        assert live.client.get(f"{RUNS}/r1").json()["finish_reason"] == "length"
    with serving_on(url, Agent("Helper", Short())) as later:  # from the store
        assert later.client.get(f"{RUNS}/r1").json()["finish_reason"] == "length"
