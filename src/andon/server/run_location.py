# SPDX-License-Identifier: Apache-2.0
"""Where a client finds a run: the header that names the run, and the path of its state.

A run's id may be any text where a program has chosen it, and so may an agent's. Both are percent-encoded here, as in a
path.
"""

from __future__ import annotations

from urllib.parse import quote

from starlette.requests import HTTPConnection

RUN_ID = "Andon-Run-Id"
"""Names the run on every answer that tells of one and is no error: also on a stream, before its first event."""

_UNRESERVED = "~:@"


def run_headers(run_id: str) -> dict[str, str]:
    return {RUN_ID: _quoted(run_id)}


def run_path(connection: HTTPConnection, agent_id: str, run_id: str) -> str:
    """The path of a run's state, as this client has to ask for it: with the prefix of a mount or of a proxy."""
    root = str(connection.scope.get("root_path", "")).rstrip("/")
    return f"{quote(root)}/agents/{_quoted(agent_id)}/runs/{_quoted(run_id)}"


def _quoted(name: str) -> str:
    return quote(name, safe=_UNRESERVED, errors="surrogatepass")
