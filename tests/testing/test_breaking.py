# SPDX-License-Identifier: Apache-2.0
"""A call is broken off exactly where it should be, and the thread that made it is afterwards as it was before."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from andon import CancelOutcome, Runtime
from andon.core.receipt import CancelRequest
from andon.core.signal import CancelSignal
from andon.testing.breaking import AtLine, BrokenOff, FramesLeft, trace_call


def cancel() -> CancelOutcome:
    return CancelSignal().cancel(CancelRequest.make())


class Watched:
    """A call that says how far it came."""

    def __init__(self) -> None:
        self.returned = False
        self.raised: BaseException | None = None

    def __call__(self) -> None:
        try:
            cancel()
            self.returned = True
        except BaseException as error:
            self.raised = error
            raise


def test_a_call_is_seen_line_by_line() -> None:
    trace = trace_call(cancel)
    assert trace == trace_call(cancel)
    functions = list(dict.fromkeys(where.rpartition(" ")[2] for where in trace.lines))
    assert functions[:3] == ["__init__", "make", "is_seconds"]
    assert any(where.startswith("signal.py:") and where.endswith(" in cancel") for where in trace.lines)
    assert trace.frames >= 3  # this module's own, that of `make`, that of `is_seconds`


def test_code_of_others_and_of_the_explorer_has_no_lines() -> None:
    assert trace_call(lambda: sorted([3, 1, 2], key=lambda n: -n)).lines == ()
    assert trace_call(lambda: str(AtLine(1, "here"))).lines == ()


def test_it_is_broken_off_at_each_line_once() -> None:
    lines = trace_call(cancel).lines
    for number, where in enumerate(lines, 1):
        call = Watched()
        assert AtLine(number, where).make(call)
        assert isinstance(call.raised, BrokenOff)
        assert _raised_at(call.raised) == where
    call = Watched()
    assert not AtLine(len(lines) + 1, "nowhere").make(call)
    assert call.returned


def _raised_at(error: BaseException) -> str:
    explorers = ("andon/testing/", "tests/testing/")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(folder in frame.filename for folder in explorers)
    ]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}"


def test_what_cleans_up_after_it_is_left_alone() -> None:
    told: list[CancelOutcome] = []

    def careful() -> None:
        try:
            cancel()
        finally:
            told.append(cancel())

    assert AtLine(3, "").make(careful)
    assert told == [CancelOutcome.requested]


def test_with_few_frames_left_it_gets_a_recursion_error() -> None:
    came_through = []
    for left in range(1, trace_call(cancel).frames + 10):
        call = Watched()
        assert FramesLeft(left).make(call)
        came_through.append(call.returned)
        assert call.returned or call.raised is None or isinstance(call.raised, RecursionError)
    assert came_through[0] is False
    assert came_through[-1] is True
    assert came_through == sorted(came_through)


def test_a_recursion_error_that_the_call_handles_goes_on() -> None:
    """The room stays as small as it is: what is tried instead has no more of it."""
    seen: list[str] = []

    def deep(levels: int) -> None:
        if levels:
            deep(levels - 1)

    def stubborn() -> None:
        for _ in range(3):
            try:
                deep(50)
            except RecursionError:
                seen.append("again")

    FramesLeft(10).make(stubborn)
    assert seen == ["again"] * 3


# -- what was there before --------------------------------------------------------------------------------------------


def tracer(frame: FrameType, event: str, arg: object) -> Any:
    return None


@pytest.fixture
def traced() -> Iterator[None]:
    """As a debugger would have it, or coverage."""
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        yield
    finally:
        if sys.gettrace() is tracer:  # else coverage has begun again
            sys.settrace(before)


def broken() -> None:
    raise ValueError("of its own")


@pytest.mark.usefixtures("traced")
@pytest.mark.no_cover  # which would trace here, too
def test_tracer_and_recursion_limit_are_put_back() -> None:
    limit = sys.getrecursionlimit()
    for way in (trace_call, AtLine(1, "").make, AtLine(10_000, "").make, FramesLeft(1).make, FramesLeft(100).make):
        way(cancel)
        assert (sys.gettrace(), sys.getrecursionlimit()) == (tracer, limit)
        if way != FramesLeft(1).make:
            with pytest.raises(ValueError, match="of its own"):
                way(broken)
        assert (sys.gettrace(), sys.getrecursionlimit()) == (tracer, limit)


def test_other_threads_are_not_touched() -> None:
    told: list[object] = []

    def elsewhere() -> None:
        told.extend([cancel(), sys.gettrace()])

    def call() -> None:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    before = threading.gettrace()
    threading.settrace(None)  # coverage's, which would come with it
    try:
        assert not AtLine(1, "").make(call)
    finally:
        threading.settrace(before)
    assert told == [CancelOutcome.requested, None]


def test_a_call_that_ends_in_another_way_ends_in_that_way() -> None:
    def unknown() -> None:
        assert Runtime().cancel_run("none", CancelRequest.make()) is CancelOutcome.unknown

    assert not AtLine(10_000, "").make(unknown)
