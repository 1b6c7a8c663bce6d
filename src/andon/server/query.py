# SPDX-License-Identifier: Apache-2.0
"""Checks the query parameters of a request before the route runs.

An unknown parameter is refused: if `?last_event=1` were ignored, the events would be read from the beginning. The known
ones are in `OPERATIONS`. The OpenAPI document is made from that too, so it names all of them.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from starlette.requests import HTTPConnection

from andon.server.body import refuse_unknown
from andon.server.event_tickets import PARAMETER
from andon.server.ignored_fields import IGNORED_QUERY
from andon.server.openapi import OPERATIONS
from andon.server.problems import Problem

PROBED = frozenset({"health", "ready"})
"""Load balancers call these, some with their own parameters, and must not get an error."""


class _Known(NamedTuple):
    named: tuple[str, ...]
    """The parameters of the route."""
    ignored_fields: frozenset[str]
    in_body: tuple[str, ...]
    """The fields that belong into the body."""


async def check_query(connection: HTTPConnection) -> None:
    """Refuse unknown parameters. A live connection checks its own, because it reports errors when it closes."""
    if connection.scope["type"] != "http" or not connection.query_params:
        return
    if (name := connection.scope["route"].name) in PROBED:
        return
    known = _known(name)
    unknown = [name for name in connection.query_params if name not in known.named and name not in known.ignored_fields]
    if misplaced := sorted(name for name in unknown if name in known.in_body):
        raise Problem(422, f"{', '.join(misplaced)}: put it into the body of this request, not into its URL")
    refuse_unknown(unknown, known.named, "query parameter")


@functools.cache
def _known(name: str) -> _Known:
    operation = OPERATIONS[name]
    ignored: frozenset[str] = getattr(operation.query, "ignored_fields", frozenset())
    ignored |= IGNORED_QUERY.get(name, frozenset())
    if name == "read_events":
        ignored |= {PARAMETER}  # the ticket, which `AuthMiddleware` reads
    return _Known(_fields(operation.query), ignored, _fields(operation.body))


def _fields(kind: Any) -> tuple[str, ...]:
    return getattr(kind, "__struct_fields__", ())
