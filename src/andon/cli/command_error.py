# SPDX-License-Identifier: Apache-2.0
"""The error that commands raise for a mistake that the user can correct, and the exit codes."""

from __future__ import annotations

from enum import IntEnum

from andon.core.states import RunStatus
from andon.errors import AndonError, ConfigurationError, EmptyPromptError, Portable, SchemaError, StoreError


class Exit(IntEnum):
    """The exit codes, as docs/cli.md and `andon --help` list them."""

    ok = 0
    failed = 1
    usage = 2
    cancelled = 3
    paused = 4
    unreachable = 5
    interrupted = 130
    pipe_closed = 141

    @classmethod
    def of(cls, status: RunStatus) -> Exit:
        """The exit code of a command that followed a run. A run that has not ended is no failure."""
        return _CODES.get(status, cls.ok)


_CODES = {RunStatus.error: Exit.failed, RunStatus.cancelled: Exit.cancelled, RunStatus.paused: Exit.paused}


class CommandError(Portable, Exception):
    """One sentence that says what is wrong and what to do."""

    def __init__(self, text: str, code: Exit = Exit.usage, details: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.details = details
        """Printed before it: the traceback of an error in the user's own program."""


def command_error_of(error: AndonError) -> CommandError:
    """The error of a command for an error of Andon."""
    code = Exit.failed
    if isinstance(error, StoreError | SchemaError):
        code = Exit.unreachable
    elif isinstance(error, ConfigurationError | EmptyPromptError):
        code = Exit.usage
    return CommandError(str(error), code)
