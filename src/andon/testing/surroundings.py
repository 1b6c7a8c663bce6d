# SPDX-License-Identifier: Apache-2.0
"""What goes wrong beside a scenario, where nobody looks: complaints of Python, of the loop, and of our own log.

What must stay true: while it watches, every such complaint is noted instead of printed, and when it is left, all hooks
are as they were before.
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
        super().__init__(logging.CRITICAL)  # only a defect of ours is critical; the rest belongs to the scenario
        self._complaints: list[str] = []

    def take(self, *, collect: bool) -> list[str]:
        """What was complained of since the last time. Much of it is found only when garbage is collected."""
        if collect:
            gc.collect()
        complaints, self._complaints = self._complaints, []
        return list(dict.fromkeys(complaints))

    def freeze(self) -> None:
        """Have the collector pass over what is there already: this makes the many collections cheap."""
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
        gc.disable()  # a collection at a moment of its own choosing would not be repeatable
        propagate, log.propagate = log.propagate, False  # what is logged in thousands of performances helps nobody
        log.addHandler(self)
        try:
            with warnings.catch_warnings():
                for category in WATCHED:
                    warnings.simplefilter("always", category)
                self._show: Any = warnings.showwarning
                warnings.showwarning = self._warned  # type: ignore[assignment]  # it passes on what it is not for
                sys.unraisablehook = self._unraisable
                yield
        finally:
            sys.unraisablehook = unraisable
            log.removeHandler(self)
            log.propagate = propagate
            random.setstate(dice)
            if not frozen:  # what the program has frozen is not ours to thaw, and one can't be thawed without the other
                gc.unfreeze()
            if collecting:
                gc.enable()
