# SPDX-License-Identifier: Apache-2.0
"""The header with the id of a run, and the path of its state.

A program may choose any text as the id of a run or an agent. Both are percent-encoded here.
"""

from __future__ import annotations

from urllib.parse import quote

from starlette.requests import HTTPConnection

RUN_ID = "Andon-Run-Id"
"""The header with the run's id, on every successful response about one run, also on a stream before its first event."""

_UNRESERVED = "~:@"


def run_headers(run_id: str) -> dict[str, str]:
    return {RUN_ID: _quoted(run_id)}


def run_path(connection: HTTPConnection, agent_id: str, run_id: str) -> str:
    """The path of a run's state for this client: with the prefix of a mount or of a proxy."""
    root = str(connection.scope.get("root_path", "")).rstrip("/")
    return f"{quote(root)}/agents/{_quoted(agent_id)}/runs/{_quoted(run_id)}"


def _quoted(name: str) -> str:
    return quote(name, safe=_UNRESERVED, errors="surrogatepass")
