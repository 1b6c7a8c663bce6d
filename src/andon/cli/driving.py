# SPDX-License-Identifier: Apache-2.0
"""A run in this process, with a person at the keyboard.

The first Ctrl-C cancels the run, gracefully, and its end is told as that of any other; the second leaves at once,
whatever the process is doing. Whoever reads our output and leaves (`| head -1`) cancels the run too.
"""

from __future__ import annotations

import getpass
import logging
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from types import FrameType
from typing import Any

from andon.agent.agent import Agent
from andon.cli.asking import ask, can_ask
from andon.cli.mistake import Exit
from andon.cli.report import Report
from andon.cli.show import note
from andon.cli.telling import CTRL_C, Teller
from andon.core.portal import portal
from andon.core.run import Run
from andon.core.states import CancelCause, RunStatus
from andon.errors import AnswersError, NotContinuableError

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
GONE = "nobody reads the output any more"


class Leaving(BaseException):
    """Ends the wait for a person's answer. No Exception, because no `except` on the way is meant."""


class Hands:
    """What a person's signals do while this is entered: the first one cancels, the second one leaves."""

    def __init__(self) -> None:
        self.cancel: Callable[[signal.Signals], object] | None = None
        """What the first one does; before it is known, there is nothing to cancel."""
        self.asking = False
        """A question waits for an answer at the terminal, and a signal is to end that wait."""
        self._before: dict[signal.Signals, Any] = {}
        self._asked = False

    def __enter__(self) -> Hands:
        self._before = {each: signal.signal(each, self._caught) for each in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        if self.cancel is None:
            raise KeyboardInterrupt
        if self._asked:
            # Nothing is flushed or closed: any of it might be what hangs.
            os.write(2, b"\nandon: left at once\n")
            os._exit(Exit.interrupted)
        self._asked = True
        self.cancel(signal.Signals(number))
        if self.asking:
            raise Leaving


def drive(
    agent: Agent, open_run: Callable[[], Coroutine[Any, Any, Run]], teller: Teller, *, no_input: bool, after: int = 0
) -> Report:
    """Do a run to its end, or to a question that nobody is there to answer; tell what comes after that event."""
    _quieten_the_log()
    with Hands() as hands:
        run = portal.submit(open_run).result()
        hands.cancel = lambda number: (
            run.cancel(reason=CTRL_C, by=who())
            if number is signal.SIGINT
            else run.cancel_for(CancelCause.shutdown, number.name)
        )
        on_reader_gone(lambda: run.cancel_for(CancelCause.disconnect, GONE))
        while True:
            try:
                after = _tell(run, after, teller)
            except OSError:  # a closed pipe, or a terminal that has gone
                run.cancel_for(CancelCause.disconnect, GONE)
            report = Report.of_result(run.result_blocking())
            if report.status is not RunStatus.paused or not can_ask(teller.as_json, no_input):
                break
            if not _answered(agent, report, hands):
                break
        portal.submit(agent.runtime.close).result()
        if report.receipt is not None and report.receipt.leftovers:
            portal.close()  # what is left gets a moment to end in, and a second Ctrl-C still works meanwhile
    return report


def _tell(run: Run, after: int, teller: Teller) -> int:
    """Tell what comes, up to the end or to the next question. Returns the number of the last event."""
    reader = run.events(after)
    while (event := reader.next_blocking()) is not None:
        after = event.seq
        teller.tell(event, run.run_id)
    return after


def _answered(agent: Agent, report: Report, hands: Hands) -> bool:
    """Ask, and go on. False if the person has left: then the run stays paused."""
    while True:
        try:
            hands.asking = True
            answers = ask(report.interrupts)
        except Leaving:  # and so it was cancelled
            return True
        finally:
            hands.asking = False
        if answers is None:
            return False
        try:
            portal.submit(partial(agent.resume_run, report.run_id, answers)).result()
        except AnswersError as error:
            note(f"andon: {error}", "yellow")
        except NotContinuableError:  # it was cancelled, or answered elsewhere, meanwhile
            return True
        else:
            return True


def who() -> str | None:
    """Whoever sits at the keyboard."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return None


def on_reader_gone(act: Callable[[], object]) -> None:
    """Do this when whoever reads our stdout through a pipe has left, also while there is nothing to write."""
    if not hasattr(select, "poll"):
        return
    try:
        file = sys.stdout.fileno()
        if not stat.S_ISFIFO(os.fstat(file).st_mode):
            return
    except (OSError, ValueError, AttributeError):  # there is no stdout
        return

    def watch() -> None:
        poll = select.poll()
        poll.register(file, 0)  # errors are told without being asked for
        poll.poll()
        act()

    threading.Thread(target=watch, name="andon-stdout", daemon=True).start()


def _quieten_the_log() -> None:
    """That a run failed is told anyway. Where nobody has set up logging, only what is worse is shown."""
    log = logging.getLogger("andon")
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setLevel(logging.ERROR)
        log.addHandler(handler)
