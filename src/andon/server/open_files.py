# SPDX-License-Identifier: Apache-2.0
"""The limit on open files and connections of this process. The default limit is low, and a process may raise it up to
the hard limit of the system.
"""

from __future__ import annotations

import contextlib
import logging
import sys

log = logging.getLogger(__name__)

CONNECTIONS = 4000
"""The default limit of a server: four connections for each run that it accepts."""

MOST = 2**20
"""The limit is not raised further: some programs that tools may start close every descriptor up to the limit."""


def raise_open_file_limit() -> int | None:
    """Raise the limit as far as possible, and return it. None if there is no limit."""
    if sys.platform == "win32":
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    for wanted in (MOST if hard == unlimited else min(hard, MOST), 10_240):  # macOS may refuse its own hard limit
        if soft != unlimited and soft < wanted:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                return wanted
    return None if soft == unlimited else soft


def connection_limit(connections: int | None) -> int:
    """This many connections, but at most half of the open files: runs, tools and the database need the rest."""
    limit, wanted = raise_open_file_limit(), CONNECTIONS if connections is None else connections
    if limit is None or wanted <= limit // 2:
        return wanted
    if connections is not None:
        log.warning(
            "this process may have %d files and connections open: it takes %d connections at once, and not %d. "
            "Raise the limit with `ulimit -n`, or lower --max-connections",
            limit,
            limit // 2,
            connections,
        )
    return limit // 2
