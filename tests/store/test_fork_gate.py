# SPDX-License-Identifier: Apache-2.0
"""A fork waits until no thread is writing to SQLite, and the child may write."""

from __future__ import annotations

import os
import threading

import pytest

from andon.store.sql import fork_gate
from andon.store.sql.fork_gate import ForkGate
from tests.support import HANG, Worker


def test_a_fork_waits_for_the_writes_that_have_begun_and_holds_up_new_ones() -> None:
    gate, order = ForkGate(), list[str]()
    begun, may_end, closed = threading.Event(), threading.Event(), threading.Event()

    def write(name: str) -> None:
        with gate:
            begun.set()
            assert may_end.wait(HANG)
            order.append(name)

    def fork() -> None:
        gate.close()
        order.append("fork")
        closed.set()

    first = Worker(lambda: write("first"))
    assert begun.wait(HANG)
    forking = Worker(fork)
    assert not closed.wait(0.05), "the fork did not wait"
    second = Worker(lambda: write("second"))
    may_end.set()
    forking.done()
    first.done()
    assert order == ["first", "fork"]
    gate.open()
    second.done()
    assert order == ["first", "fork", "second"]


def test_a_write_that_does_not_end_holds_a_fork_up_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_gate, "FORK_SECONDS", 0.01)
    gate = ForkGate()
    with gate:
        gate.close()
        gate.open()


def test_in_the_child_it_is_open() -> None:
    gate = fork_gate.gate
    begun, may_end = threading.Event(), threading.Event()

    def write() -> None:
        with gate:
            begun.set()
            assert may_end.wait(HANG)

    writing = Worker(write)
    assert begun.wait(HANG)
    threading.Timer(0.05, may_end.set).start()
    pid = os.fork()  # returns when the write has ended
    if pid == 0:
        with gate:
            os._exit(0 if may_end.is_set() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    writing.done()
