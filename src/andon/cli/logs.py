# SPDX-License-Identifier: Apache-2.0
"""The log of a command that runs an agent in this process: on stderr, for the author of the agent.

An error of a tool, a hook or a model is printed in one line with the events of the run. Its traceback is only in the
log.
"""

from __future__ import annotations

import logging
from typing import Any

from andon.core.log_text import cut_line, cut_traceback, escaped
from andon.errors import AndonError


class LineFormatter(logging.Formatter):
    """Escapes line breaks and control characters, so that no text fakes a log line. Very long lines are cut."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        return escaped(cut_line(super().formatMessage(record)))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the library's name
        lines = cut_traceback(super().formatException(ei)).splitlines()
        return "\n".join(f"    {escaped(line)}" for line in lines)


class ShownErrorsFilter:
    """Leaves out Andon's own errors of the run on the screen: its events have printed them already."""

    def __init__(self) -> None:
        self.run_id: str | None = None
        """The run whose events are printed; None while there is none."""

    def filter(self, record: logging.LogRecord) -> bool:
        ours = record.exc_info and isinstance(record.exc_info[1], AndonError)
        return not ours or getattr(record, "facts", {}).get("run_id") != self.run_id


def show_log(told: ShownErrorsFilter, *, quiet: bool) -> None:
    """Log warnings to stderr; with `quiet`, errors only. If the program has configured logging itself, this does
    nothing. Handlers that write nothing (`NullHandler`) don't count.
    """
    root, ours = logging.getLogger(), logging.getLogger("andon")
    if all(isinstance(each, logging.NullHandler) for each in [*root.handlers, *ours.handlers]):
        handler = logging.StreamHandler()
        handler.setFormatter(LineFormatter("%(levelname)s %(name)s: %(message)s"))
        handler.setLevel(logging.ERROR if quiet else logging.WARNING)
        handler.addFilter(told)
        root.addHandler(handler)
