# SPDX-License-Identifier: Apache-2.0
"""The work of `andon top`: shows the runs, reacts to keys, and stops runs.

The main thread draws and reads keys, and waits for nothing else. Each stop waits in a thread of its own.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from queue import Empty, SimpleQueue

from msgspec import Struct

from andon.cli import screen as keys
from andon.cli.command_error import CommandError
from andon.cli.login import login_name
from andon.cli.report import Cancelled
from andon.cli.run_source import RunSource
from andon.cli.screen import Screen
from andon.cli.terminal import fit, milliseconds, one_line, styled
from andon.cli.top_feed import Away, Crashed, FeedThread, Key, Message, Shown, Update
from andon.cli.top_rows import RunRows
from andon.core.receipt import CancelRequest
from andon.core.selection import Selection
from andon.core.states import CancelCause, CancelMode, ToolOutcome
from andon.errors import AndonError

WAIT_SECONDS = 10.0
"""How long a stop waits for the end of its run."""

TICK_SECONDS = 1.0
"""How often the screen is drawn if nothing changes: the times on it go on."""

HINTS = "s stop · a stop after its tools · / filter · ? help · q quit"
HELP = """
  up, down, k, j          to the run above or below
  PageUp, PageDown        by a screen
  Home, End, g, G         to the newest or the oldest run
  s, Delete               stop the run under the cursor, now; asks first
  a                       stop it, but let its tools finish; asks first
  /                       show only runs with this text; Enter keeps it, Esc ends it
  ?                       this help
  q, Ctrl-C               quit; the runs go on

  A run that has ended is shown for ten seconds, with its end.
"""


class Told(Struct):
    """A text for the last line of the screen."""

    text: str
    style: str = ""


class Stopped(Struct):
    """A stop has ended, with success or without."""

    key: Key
    told: Told


class Inbox:
    """The messages of other threads to the main thread."""

    def __init__(self) -> None:
        self._messages: SimpleQueue[Message | Stopped | Told] = SimpleQueue()
        self.wake: Callable[[], None] = lambda: None

    def put(self, message: Message | Stopped | Told) -> None:
        self._messages.put(message)
        self.wake()

    def first(self) -> Message | Stopped | Told:
        """Wait for the first message."""
        return self._messages.get()

    def taken(self) -> list[Message | Stopped | Told]:
        """The messages since the last call."""
        messages = []
        try:
            while True:
                messages.append(self._messages.get_nowait())
        except Empty:
            return messages


class LogLine(logging.Handler):
    """Shows warnings of the log in the last line: on stderr they would spoil the screen."""

    def __init__(self, inbox: Inbox) -> None:
        super().__init__(logging.WARNING)
        self._inbox = inbox

    def emit(self, record: logging.LogRecord) -> None:
        self._inbox.put(Told(record.getMessage(), "yellow"))


class Top:
    """The screen and what is on it."""

    def __init__(self, name: str, rows: RunRows, inbox: Inbox, open_source: Callable[[], RunSource]) -> None:
        self._name, self._rows, self._inbox, self._open_source = name, rows, inbox, open_source
        self._told = Told("")
        self._asked: tuple[Shown, CancelMode] | None = None
        """The run that a question is about, and how it would be stopped."""
        self._stopping: dict[Key, str] = {}
        self._typing = False
        self._help = False
        self._away: tuple[float, str] | None = None

    def start(self, feed: FeedThread) -> None:
        """Wait for the first runs, or raise the error of their source. Then show the runs until the user quits."""
        self._take(self._inbox.first())
        log = logging.getLogger("andon")
        handler, passes_on = LogLine(self._inbox), log.propagate
        log.addHandler(handler)
        log.propagate = False
        try:
            with Screen() as screen:
                self._inbox.wake = screen.wake
                self._show(screen)
        finally:
            self._inbox.wake = lambda: None
            log.propagate = passes_on
            log.removeHandler(handler)
            feed.stop()

    def _show(self, screen: Screen) -> None:
        while True:
            for message in self._inbox.taken():
                self._take(message)
            self._rows.arrange()
            width, height = screen.size()
            screen.draw(self._draw(width, height))
            for key in screen.wait(TICK_SECONDS - time.time() % TICK_SECONDS):
                if not self._press(key, height):
                    return

    def _take(self, message: Message | Stopped | Told) -> None:
        match message:
            case Update():
                self._away = None
                self._rows.update(message)
            case Away():
                self._away = (self._away or (time.monotonic(), ""))[0], message.why
            case Crashed():
                raise message.error
            case Stopped():
                self._stopping.pop(message.key, None)
                self._told = message.told
            case Told():
                self._told = message

    # -- keys ---------------------------------------------------------------------------------------------------------

    def _press(self, key: str, height: int) -> bool:
        """Obey a key. False: the user quits."""
        if self._help:
            self._help = False
        elif self._asked is not None:
            asked, self._asked = self._asked, None
            if key in ("y", "Y"):
                self._stop(*asked)
        elif self._typing:
            self._type(key)
        elif key == "q":
            return False
        else:
            self._told = Told("")
            self._obey(key, max(1, height - 4))
        return True

    def _type(self, key: str) -> None:
        """A key while the filter is typed."""
        if key in (keys.ENTER, keys.ESCAPE):
            self._typing = False
            self._rows.filter = self._rows.filter if key == keys.ENTER else ""
        elif key == keys.BACKSPACE:
            self._rows.filter = self._rows.filter[:-1]
        elif len(key) == 1:
            self._rows.filter += key

    def _obey(self, key: str, page: int) -> None:
        moves = {keys.UP: -1, "k": -1, keys.DOWN: 1, "j": 1, keys.PAGE_UP: -page, keys.PAGE_DOWN: page}
        moves |= dict.fromkeys((keys.HOME, "g"), -(10**9)) | dict.fromkeys((keys.END, "G"), 10**9)
        if key in moves:
            self._rows.move(moves[key])
        elif key in ("s", keys.DELETE):
            self._ask(CancelMode.now)
        elif key == "a":
            self._ask(CancelMode.after_tools)
        elif key == "/":
            self._typing = True
        elif key == keys.ESCAPE:
            self._rows.filter = ""
        elif key == "?":
            self._help = True

    def _ask(self, mode: CancelMode) -> None:
        run = self._rows.current
        if run is None:
            self._told = Told("there is no run to stop")
        elif not run.live:
            self._told = Told(f"{run.run_id} has ended already")
        else:
            self._asked = run, mode

    # -- stopping -----------------------------------------------------------------------------------------------------

    def _stop(self, run: Shown, mode: CancelMode) -> None:
        self._told = Told("")
        self._stopping[run.key] = run.run_id
        threading.Thread(target=self._wait_for, args=(run, mode), name="andon-top-stop", daemon=True).start()

    def _wait_for(self, run: Shown, mode: CancelMode) -> None:
        try:
            with closing(self._open_source()) as source:
                request = CancelRequest.make(CancelCause.user, by=login_name(), mode=mode)
                cancelled = source.cancel(Selection(run.run_id, agent_id=run.agent_id), request, wait=WAIT_SECONDS)
            told = told_of(cancelled[0], mode) if cancelled else Told(f"{run.run_id} is not there any more", "yellow")
        except (CommandError, AndonError) as error:
            told = Told(f"{run.run_id}: {error}", "red")
        except Exception as error:  # noqa: BLE001 - the main thread raises it, when the terminal is as it was
            self._inbox.put(Crashed(error))
            return
        self._inbox.put(Stopped(run.key, told))

    # -- drawing ------------------------------------------------------------------------------------------------------

    def _draw(self, width: int, height: int) -> list[str]:
        lines = [self._head(width)]
        if self._help:
            lines += [fit(line, width).rstrip() for line in HELP.splitlines()]
            lines = lines[: height - 1] + [""] * (height - 1 - len(lines))
        else:
            lines += self._rows.draw(width, max(1, height - 3), away=self._away is not None)
            lines += [""] * (height - 1 - len(lines))
        return [*lines, self._last_line(width)][:height]

    def _head(self, width: int) -> str:
        if self._away is not None:
            since, why = self._away
            return _styled_fit(f"away for {int(time.monotonic() - since)} s, trying again: {why}", width, "red")
        kept = f" · only with {self._rows.filter!r}" if self._rows.filter else ""
        return _styled_fit(f"{self._name} · {self._rows.counts()}{kept}", width, "bold")

    def _last_line(self, width: int) -> str:
        if self._asked is not None:
            run, mode = self._asked
            how = "now" if mode is CancelMode.now else "after its tools"
            return _styled_fit(f"stop {run.run_id} of {run.agent_id} {how}? y/n ", width, "yellow")
        if self._typing:
            return _styled_fit(f"only runs with: {self._rows.filter}_", width, "cyan")
        if self._told.text:
            return _styled_fit(self._told.text, width, self._told.style)
        if self._stopping:
            return _styled_fit(f"stopping {', '.join(self._stopping.values())}…", width, "yellow")
        return _styled_fit(HINTS, width, "dim")


def told_of(cancelled: Cancelled, mode: CancelMode) -> Told:
    """How long a stop took, and what it cut."""
    receipt, run_id = cancelled.receipt, cancelled.run_id
    if receipt is not None:
        tools = [f"{each.name} {each.outcome.replace('_', ' ')}" for each in receipt.tools]
        words = [f"{run_id}: cancelled in {milliseconds(receipt.latency)}"]
        words.append(f"it was {receipt.phase}" if not tools else f"tools: {', '.join(tools)}")
        words += [f"left over: {', '.join(receipt.leftovers)}"] if receipt.leftovers else []
        loose = receipt.leftovers or any(each.outcome is ToolOutcome.abandoned for each in receipt.tools)
        return Told("; ".join(words), "yellow" if loose else "green")
    if cancelled.status is not None and cancelled.status.final:
        return Told(f"{run_id} had ended already: {cancelled.status}", "yellow")
    if not cancelled.outcome and cancelled.status is None:
        return Told(f"{run_id}: {cancelled.outcome.replace('_', ' ')}", "yellow")
    how = " after its tools" if mode is CancelMode.after_tools else ""
    return Told(f"{run_id}: asked to stop{how}, but it has not ended within {WAIT_SECONDS:g} s", "yellow")


def _styled_fit(text: str, width: int, style: str) -> str:
    text = fit(one_line(text[:2000]), width).rstrip()
    return styled(text, style, sys.stdout) if style else text
