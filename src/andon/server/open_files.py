# SPDX-License-Identifier: Apache-2.0
"""How many files and connections this process may have open. The usual limit is one of long ago, and the process may
raise it by itself as far as the system's administrator lets it.
"""

from __future__ import annotations

import contextlib
import logging
import sys

log = logging.getLogger(__name__)

CONNECTIONS = 4000
"""So many a server takes, unless it is told otherwise: four for each of the runs that it takes."""

MOST = 2**20
"""More is never asked for: some programs, which tools may start, close every number up to the limit one by one."""


def raise_open_file_limit() -> int | None:
    """Raise the limit as far as it goes, and return it. None where there is none."""
    if sys.platform == "win32":
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    for wanted in (MOST if hard == unlimited else min(hard, MOST), 10_240):  # macOS may say more than it gives
        if soft != unlimited and soft < wanted:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                return wanted
    return None if soft == unlimited else soft


def connection_limit(connections: int | None) -> int:
    """So many connections, or as many as there is room for: runs, tools and the database need the other half."""
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
