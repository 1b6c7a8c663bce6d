# SPDX-License-Identifier: Apache-2.0
"""What is logged while a command runs an agent here: on stderr, for whoever wrote the agent.

What a tool, a hook or a model raised is told in one line with the run's events. Its traceback is only in the log.
"""

from __future__ import annotations

import logging
from typing import Any

from andon.core.cutting import cut_line, cut_traceback
from andon.core.escaping import escaped
from andon.errors import AndonError


class LineFormatter(logging.Formatter):
    """Nothing that anybody wrote can look like a line of its own, or steer the terminal. What is very long is cut."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        return escaped(cut_line(super().formatMessage(record)))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the library's name
        lines = cut_traceback(super().formatException(ei)).splitlines()
        return "\n".join(f"    {escaped(line)}" for line in lines)


class ShownErrorsFilter:
    """Leaves out what the events of the run on the screen have told already: one line says all of an error of ours."""

    def __init__(self) -> None:
        self.run_id: str | None = None
        """The run whose events are told; None while there is none."""

    def filter(self, record: logging.LogRecord) -> bool:
        ours = record.exc_info and isinstance(record.exc_info[1], AndonError)
        return not ours or getattr(record, "facts", {}).get("run_id") != self.run_id


def show_log(told: ShownErrorsFilter, *, quiet: bool) -> None:
    """Write warnings to stderr; with `quiet`, errors alone. A program's own log comes first: where it has set up one,
    that is what there is. A handler that writes nothing, as libraries add them, is no log.
    """
    root, ours = logging.getLogger(), logging.getLogger("andon")
    if all(isinstance(each, logging.NullHandler) for each in [*root.handlers, *ours.handlers]):
        handler = logging.StreamHandler()
        handler.setFormatter(LineFormatter("%(levelname)s %(name)s: %(message)s"))
        handler.setLevel(logging.ERROR if quiet else logging.WARNING)
        handler.addFilter(told)
        root.addHandler(handler)
