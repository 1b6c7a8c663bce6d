# SPDX-License-Identifier: Apache-2.0
"""A worker that is a command: it becomes that command at once."""

from __future__ import annotations

import os
import resource
import signal
import socket

from andon.tools.process.limits import Limits
from andon.tools.process.protocol import READY, Failure, Spec, encode


def limit(limits: Limits) -> None:
    """Set the limits of this process, and of all that it starts."""
    if limits.memory is not None:
        _limit(resource.RLIMIT_DATA, limits.memory)
    if limits.files is not None:
        _limit(resource.RLIMIT_NOFILE, limits.files)
    if (seconds := limits.cpu_seconds) is not None:
        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        # SIGXCPU ends it; if it does not, SIGKILL does a second later.
        _limit(resource.RLIMIT_CPU, int(used) + seconds, 1)


def _limit(which: int, most: int, more: int = 0) -> None:
    hard = resource.getrlimit(which)[1]
    highest = most + more if hard == resource.RLIM_INFINITY else min(hard, most + more)
    resource.setrlimit(which, (min(most, highest), highest))


def execute(spec: Spec, line: socket.socket) -> None:
    """Become the command. An error that prevents that is sent on the line, which the command does not inherit."""
    try:
        os.chdir(os.fsdecode(spec.cwd))
        limit(spec.limits)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        words = [os.fsdecode(each) for each in spec.arguments]
        try:
            os.execvpe(words[0], words, spec.environment)
        except FileNotFoundError as error:  # it names the last place where it looked
            raise FileNotFoundError(error.errno, error.strerror, words[0]) from None
    except Exception as error:  # noqa: BLE001 - the boundary: the host raises it
        text = f"{type(error).__name__}: {error}"
        line.sendall(encode(READY, Failure(type(error).__name__, str(error), text, "")))
        os._exit(127)
