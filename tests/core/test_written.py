# SPDX-License-Identifier: Apache-2.0
"""What is to be written of a run, and what is written: text may wait a little, all else is written at once."""

from __future__ import annotations

from andon.core.event_log import EventLog
from andon.core.events import RunEvent
from andon.core.shared.store import Lease, Progress
from andon.core.shared.written import EVENTS_AT_ONCE, TEXT_SECONDS, News, Written
from andon.messages import Message, Text

LEASE = Lease("r1", 1)


class Run:
    def __init__(self) -> None:
        self.log, self.messages = EventLog("r1", "s", "a"), list[Message]()
        self.written = Written(self.log, lambda: self.messages)

    def say(self, *pieces: str) -> None:
        for piece in pieces:
            stretch = self.log.open or self.log.begin(RunEvent.run_content)
            stretch.times.append(1.0)
            assert stretch.texts is not None
            stretch.texts.append(piece)

    def tell(self, kind: RunEvent) -> None:
        self.log.append(self.log.draft(kind, len(self.log) + 1, 1.0))

    def note(self, news: News, now: float) -> None:
        self.written.note(Progress(LEASE, news.messages, news.events), now)


def news_of(run: Run, now: float, *, hurried: bool = False) -> News:
    news = run.written.news(now, hurried=hurried)
    assert news is not None
    return news


def test_what_was_noted_is_not_new_any_more() -> None:
    run = Run()
    run.tell(RunEvent.run_started)
    run.messages.append(Message("user", [Text("Hi")]))
    news = news_of(run, 10)
    assert [event.seq for event in news.events] == [1]
    assert news.messages == run.messages
    run.note(news, 10)
    assert run.written.news(20, hurried=False) is None
    assert run.written.rest() == []


def test_text_waits_unless_the_run_is_in_a_hurry() -> None:
    run = Run()
    run.tell(RunEvent.run_started)
    run.note(news_of(run, 10), 10)
    run.say("Well, ", "well.")
    soon = 10 + TEXT_SECONDS / 2
    assert run.written.news(soon, hurried=False) is None
    assert run.written.has_waiting_text
    assert len(news_of(run, soon, hurried=True).events) == 2
    assert not run.written.has_waiting_text
    assert run.written.news(soon, hurried=False) is None
    assert len(news_of(run, 10 + TEXT_SECONDS).events) == 2


def test_text_does_not_wait_if_anything_else_is_new() -> None:
    run = Run()
    run.tell(RunEvent.run_started)
    run.note(news_of(run, 10), 10)
    run.say("Well.")
    run.tell(RunEvent.tool_call_started)
    assert [event.seq for event in news_of(run, 10).events] == [2, 3]
    assert [event.seq for event in run.written.rest()] == [2, 3]


def test_very_much_text_does_not_wait_and_comes_in_parts() -> None:
    run = Run()
    run.tell(RunEvent.run_started)
    run.note(news_of(run, 10), 10)
    run.say(*["x"] * (EVENTS_AT_ONCE + 1))
    news = news_of(run, 10)
    assert len(news.events) == EVENTS_AT_ONCE
    run.note(news, 10)
    assert len(run.written.rest()) == 1


def test_messages_that_a_run_waits_for() -> None:
    run = Run()
    run.messages.append(Message("user", [Text("Hi")]))
    are_written = run.written.check_messages()
    assert not are_written()
    run.note(news_of(run, 10), 10)
    run.messages.append(Message("assistant", [Text("Hello.")]))
    assert are_written()
    assert not run.written.check_messages()()
    news = news_of(run, 10)
    assert (news.events, news.messages) == ([], run.messages)
