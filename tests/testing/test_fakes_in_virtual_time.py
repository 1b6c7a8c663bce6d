# SPDX-License-Identifier: Apache-2.0
"""A client with a virtual clock and a fake with a real one: the clock waits for what the fake can still send."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from andon import Agent, CancelCause, RunResult, RunStatus
from andon.models.openai import OpenAIChat
from andon.testing import virtual, virtual_run
from andon.testing.providers import Answer, FakeChat, Word, pause, silence, stall, text
from tests.support.providers import PROVIDERS, Provider, each_provider

HANG_SECONDS = 8.0
"""Less than the clock would wait for a fake that is blocked."""
LONGER = 0.3
"""Several times as long as the clock waits for a thread of which it knows nothing."""


HELLO = [text("Hello.")]


def ask_twice(fake: FakeChat, **options: Any) -> RunResult[Any]:
    """The result of the second run. The first one opens the client, in a thread, which a timer might not wait for."""

    async def main() -> RunResult[Any]:
        agent = Agent("Tester", OpenAIChat("gpt-5.2", fake.api_key, fake.base_url))
        assert (await agent.invoke_async("go")).content == "Hello."
        result: RunResult[Any] = await agent.invoke_async("go", **options)
        return result

    return virtual_run(main())


def is_out_of_time(result: RunResult[Any]) -> bool:
    return result.receipt is not None and result.receipt.cause is CancelCause.deadline


@pytest.fixture(scope="module", autouse=True)
def _sdks_are_there() -> None:
    """To import them takes seconds on a busy machine, and a virtual clock does not wait so long for a thread."""
    for provider in PROVIDERS:
        with provider.serve(lambda body: HELLO) as fake:
            assert Agent("Tester", provider.model(fake)).run("go").content == "Hello."


@each_provider
def test_a_fake_whose_thread_has_no_turn_for_a_while_is_waited_for(provider: Provider) -> None:
    """As on a busy machine. The model's read timeout is the only timer then."""

    def script(body: dict[str, Any]) -> Answer:
        threading.Event().wait(LONGER)
        return [text("Here I am.")]

    with provider.serve(script) as fake:
        result = virtual_run(Agent("Tester", provider.model(fake)).invoke_async("go"))
    assert (result.status, result.content) == (RunStatus.completed, "Here I am."), result.error


def test_a_pause_in_an_answer_is_waited_for() -> None:
    with FakeChat([HELLO, [text("Once "), pause(LONGER), text("upon a time", pieces=3, pace=LONGER)]]) as fake:
        result = ask_twice(fake)
    assert (result.status, result.content) == (RunStatus.completed, "Once upon a time"), result.error


@pytest.mark.parametrize(("words", "state"), [([text("Once "), stall()], "stalled"), ([silence()], "silent")])
def test_a_fake_that_has_nothing_more_to_send_is_not_waited_for(words: list[Word], state: str) -> None:
    began = time.monotonic()
    with FakeChat([HELLO, words]) as fake:
        assert is_out_of_time(ask_twice(fake, timeout=60))
        assert state in fake.served[1].reached
    assert time.monotonic() - began < HANG_SECONDS


def test_a_timer_that_ends_before_a_pause_comes_first() -> None:
    with FakeChat([HELLO, [text("Once "), pause(3600)]]) as fake:
        result = ask_twice(fake, timeout=LONGER)
    assert is_out_of_time(result)
    assert result.content == "Once "


def test_a_fake_whose_thread_is_blocked_delays_the_clock_and_does_not_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    answers: list[Answer] = [HELLO]

    def script(body: dict[str, Any]) -> Answer:
        if answers:
            return answers.pop()
        monkeypatch.setattr(virtual, "STANDSTILL_SECONDS", LONGER)
        go_on.wait()
        return [text("Late.")]

    with FakeChat(script) as fake:
        try:
            assert is_out_of_time(ask_twice(fake, timeout=60))
            assert len(fake.served) == 2
        finally:
            go_on.set()
