# SPDX-License-Identifier: Apache-2.0
"""Errors beside a scenario: warnings of Python, calls of the loop's exception handler, and entries in our own log.

What must stay true: while it watches, each of these is noted instead of printed. Afterwards all hooks are as they were
before.
"""

from __future__ import annotations

import gc
import logging
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from andon.errors import show

log = logging.getLogger("andon")

WATCHED = (RuntimeWarning, ResourceWarning)
"""`coroutine ... was never awaited` is the first, an unclosed file or socket the second."""


class Surroundings(logging.Handler):
    """Collects complaints."""

    def __init__(self) -> None:
        super().__init__(logging.CRITICAL)  # only a defect of Andon is critical; other entries are about the scenario
        self._complaints: list[str] = []

    def take(self, *, collect: bool) -> list[str]:
        """The complaints since the last call. Many are made only when garbage is collected."""
        if collect:
            gc.collect()
        complaints, self._complaints = self._complaints, []
        return list(dict.fromkeys(complaints))

    def freeze(self) -> None:
        """Let the collector skip all objects that exist already: this makes the many collections cheap."""
        gc.collect()
        gc.freeze()

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._complaints.append(f"the log says: {record.getMessage()}" + (f" ({show(error)})" if error else ""))

    def handle_loop(self, loop: object, context: dict[str, Any]) -> None:
        """The exception handler of a loop."""
        error = context.get("exception")
        subject = context.get("task") or context.get("handle") or context.get("asyncgen") or context.get("future")
        details = [show(each) for each in (error, subject) if each is not None]
        self._complaints.append(f"the loop's exception handler was called: {context['message']}: {', '.join(details)}")

    def _warned(self, message: Warning | str, category: type[Warning], *where: Any) -> None:
        if issubclass(category, WATCHED):
            self._complaints.append(f"{category.__name__}: {message}")
        else:
            self._show(message, category, *where)

    def _unraisable(self, args: Any) -> None:
        what = args.err_msg or "Exception ignored in"
        self._complaints.append(f"{what} {show(args.object)}: {show(args.exc_value)}")

    @contextmanager
    def watching(self) -> Iterator[None]:
        unraisable, dice = sys.unraisablehook, random.getstate()
        collecting, frozen = gc.isenabled(), gc.get_freeze_count() > 0
        gc.disable()  # an automatic collection would come at a moment that is not repeatable
        propagate, log.propagate = log.propagate, False  # the log of thousands of performances is of no use
        log.addHandler(self)
        try:
            with warnings.catch_warnings():
                for category in WATCHED:
                    warnings.simplefilter("always", category)
                self._show: Any = warnings.showwarning
                warnings.showwarning = self._warned  # type: ignore[assignment]  # it passes on other warnings
                sys.unraisablehook = self._unraisable
                yield
        finally:
            sys.unraisablehook = unraisable
            log.removeHandler(self)
            log.propagate = propagate
            random.setstate(dice)
            if not frozen:  # objects that the program has frozen must stay frozen, and unfreeze takes all
                gc.unfreeze()
            if collecting:
                gc.enable()
