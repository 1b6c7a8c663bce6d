# SPDX-License-Identifier: Apache-2.0
"""A run in this process, with a person at the keyboard.

The first Ctrl-C cancels the run, and its end is printed as that of any run. The second Ctrl-C ends the process at once.
SIGTERM and SIGHUP cancel the run too, and so does a closed stdout (`| head -1`). A paused run that a database keeps is
different: only Ctrl-C cancels it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from types import FrameType
from typing import Any

from andon.agent.agent import Agent
from andon.cli.command_error import Exit
from andon.cli.event_printer import CTRL_C, EventPrinter
from andon.cli.login import login_name
from andon.cli.logs import ShownErrorsFilter, show_log
from andon.cli.questions import QuestionsAborted, ask, can_ask
from andon.cli.report import Report
from andon.cli.stdout_watch import on_stdout_closed
from andon.cli.terminal import note
from andon.core.portal import portal
from andon.core.run.handle import Run
from andon.core.run.run import LocalRun
from andon.core.run.waits import wait_result_blocking
from andon.core.states import CancelCause, RunStatus
from andon.errors import AnswersError, NotContinuableError

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
GONE = "the output is not read any more"


class SignalHandler:
    """Handles signals inside its `with` block: the first one cancels the run, the second one ends the process.

    A separate thread acts on them, because Python runs handlers in the main thread only, and not while it blocks: a
    signal right before a wait does not end the wait. Two signals at once count as two.
    """

    def __init__(self) -> None:
        self._cancel: Callable[[signal.Signals], object] | None = None
        self._asked: signal.Signals | None = None

    def on_first_signal(self, cancel: Callable[[signal.Signals], object]) -> None:
        """Call this at the first signal; if that has come already, now."""
        self._cancel = cancel
        if self._asked is not None:
            cancel(self._asked)

    def __enter__(self) -> SignalHandler:
        self._listening, self._telling = os.pipe()
        self.left, self._leaving = os.pipe()
        """Readable once a signal has cancelled the run: it ends the wait for an answer at the terminal."""
        os.set_blocking(self._telling, False)
        self._thread = threading.Thread(target=self._listen, name="andon-signals", daemon=True)
        self._thread.start()
        self._told_before = signal.set_wakeup_fd(self._telling, warn_on_full_buffer=False)
        self._before = {each: signal.signal(each, self._caught) for each in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)
        signal.set_wakeup_fd(self._told_before)
        os.close(self._telling)
        self._thread.join()
        os.close(self._listening)
        os.close(self.left)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        """Does nothing. Python only writes signals that have a handler to the pipe of the thread."""

    def _listen(self) -> None:
        while told := os.read(self._listening, 1):
            if told[0] in SIGNALS:
                self._act(signal.Signals(told[0]))
        if self._asked is None:
            os.close(self._leaving)

    def _act(self, number: signal.Signals) -> None:
        if self._asked is not None:
            # Nothing is flushed or closed: that might hang.
            os.write(2, b"\nandon: left at once\n")
            os._exit(Exit.interrupted)
        self._asked = number
        if self._cancel is not None:  # else `on_first_signal` will call it
            self._cancel(number)
        os.close(self._leaving)


def cancel_on_signal(run: LocalRun, number: signal.Signals) -> None:
    if number is signal.SIGINT:
        Run(run).cancel(reason=CTRL_C, by=login_name())
    else:
        _cancel_unless_kept(run, CancelCause.shutdown, number.name)


def _cancel_unless_kept(run: LocalRun, cause: CancelCause, why: str) -> None:
    """Cancel the run, because this process ends. A paused run that a database keeps stays paused."""
    if not run.may_be_elsewhere:
        run.cancel_for(cause, why)


def follow_local_run(
    agent: Agent,
    open_run: Callable[[], Coroutine[Any, Any, LocalRun]],
    printer: EventPrinter,
    *,
    no_input: bool,
    handle: LocalRun | None = None,
    run_id: str | None = None,
    after: int = 0,
) -> Report:
    """Follow a run to its end, or to a question that can't be asked. Events after number `after` are printed.

    With the `handle` of a run that has not begun, its start can be cancelled too, while a store makes it wait. `run_id`
    is the id of the run, if it is known before.
    """
    told = ShownErrorsFilter()
    show_log(told, quiet=printer.quiet)
    if not printer.quiet:
        told.run_id = run_id
    with SignalHandler() as signals:
        try:
            if handle is not None:
                signals.on_first_signal(partial(cancel_on_signal, handle))
            run = portal.submit(open_run).result()
            if not printer.quiet:
                told.run_id = run.run_id
            if handle is None:
                signals.on_first_signal(partial(cancel_on_signal, run))
            on_stdout_closed(lambda: _cancel_unless_kept(run, CancelCause.disconnect, GONE))
            report = _follow(agent, run, printer, signals, after, may_ask=not no_input)
        finally:
            portal.submit(agent.runtime.close).result()
        if report.receipt is not None and report.receipt.leftovers:
            portal.close()  # leftovers get a moment to end, and a second Ctrl-C still works
    return report


def _follow(
    agent: Agent, run: LocalRun, printer: EventPrinter, signals: SignalHandler, after: int, *, may_ask: bool
) -> Report:
    while True:
        gone = False
        try:
            after = _tell(run, after, printer)
        except OSError:  # a closed pipe or terminal
            gone = True
            _cancel_unless_kept(run, CancelCause.disconnect, GONE)
        report = Report.of_result(wait_result_blocking(run))
        if report.status is not RunStatus.paused or gone or not can_ask(printer.as_json, not may_ask):
            return report
        if not _answered(agent, run, report, signals):
            return report


def _tell(run: LocalRun, after: int, printer: EventPrinter) -> int:
    """Print events up to the end or the next question. Returns the number of the last event."""
    reader = run.read(after)
    while (event := reader.next_blocking()) is not None:
        after = event.seq
        printer.print_event(event, run.run_id)
    return after


def _answered(agent: Agent, run: LocalRun, report: Report, signals: SignalHandler) -> bool:
    """Ask the person, and continue the run. False if there is no answer: then the run stays paused."""
    while True:
        try:
            answers = ask(report.interrupts, signals.left)
        except QuestionsAborted:  # a signal, which may have cancelled the run
            return not run.is_paused
        except OSError:  # the terminal was closed
            _cancel_unless_kept(run, CancelCause.disconnect, GONE)
            return not run.is_paused
        if answers is None:
            return False
        try:
            portal.submit(partial(agent.resume_run, report.run_id, answers)).result()
        except AnswersError as error:
            note(f"andon: {error}", "yellow")
        except NotContinuableError:  # it was cancelled, or answered by another process, meanwhile
            return True
        else:
            return True
