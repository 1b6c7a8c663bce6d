# SPDX-License-Identifier: Apache-2.0
"""Retries: only for errors that say so, and only before anything was shown. Cancelling one: `test_situations.py`."""

from __future__ import annotations

import pytest

from andon import RunEvent, RunStatus
from andon.errors import ModelError
from andon.messages import Text, assistant, user
from andon.models.scripted import Fail, Think, Turn
from tests.support import asked, check_events, make

BUSY = Fail(ModelError("overloaded", retryable=True, retry_after=0))


def test_a_call_that_may_work_is_tried_again() -> None:
    agent = make(BUSY, BUSY, "Now it works.")
    events = list(agent.run("go", stream=True))
    check_events(events)
    assert [event.event for event in events if event.event is not RunEvent.run_content] == [
        RunEvent.run_started,
        RunEvent.model_retry,
        RunEvent.model_retry,
        RunEvent.run_completed,
    ]
    told = [event for event in events if event.event is RunEvent.model_retry]
    assert {(event.error, event.delay) for event in told} == {("ModelError: overloaded", 0)}
    assert len(asked(agent)) == 3
    assert asked(agent)[0] == asked(agent)[2]
    assert agent.messages == [user("go"), assistant(Text("Now it works."))]


def test_it_is_not_tried_for_ever() -> None:
    agent = make(*[BUSY] * 100)
    result = agent.run("go")
    assert result.status is RunStatus.error
    assert isinstance(result.error, ModelError)
    assert 1 < len(asked(agent)) < 20


@pytest.mark.parametrize("error", [ModelError("bad request"), ValueError("a defect")])
def test_an_error_that_does_not_say_so_is_final(error: Exception) -> None:
    agent = make(Fail(error))
    assert agent.run("go").error is error
    assert len(asked(agent)) == 1


@pytest.mark.parametrize("shown", ["Half a ", Think("Hm. ")])
def test_what_was_shown_is_not_said_twice(shown: str | Think) -> None:
    turn: Turn = [shown, BUSY]
    agent = make(turn)
    result = agent.run("go")
    assert result.status is RunStatus.error
    assert len(asked(agent)) == 1
    assert result.content == ("Half a " if isinstance(shown, str) else "")
    assert agent.run("and now?").status is RunStatus.completed


def test_a_longer_wait_than_is_sane_is_told_at_once() -> None:
    error = ModelError("come back tomorrow", retryable=True, retry_after=86_400)
    agent = make(Fail(error))
    assert agent.run("go").error is error
    assert len(asked(agent)) == 1
