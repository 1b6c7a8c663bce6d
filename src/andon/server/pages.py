# SPDX-License-Identifier: Apache-2.0
"""Lists come page by page. A page that is not the last one says in its `Link` header where the next one is.

A page begins where the one before ended, and not at a number: what comes or goes meanwhile shifts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fastapi import Request
from msgspec import Struct
from starlette.responses import Response

from andon.server.problems import Problem
from andon.server.responses import to_json

LIMIT = 1000
"""How many a page has, unless less are wanted."""

Position = tuple[float, str]
"""Where a page ends: when the last one on it was made, and its id."""


class Page(Struct):
    """Which page of a list is wanted."""

    limit: int = LIMIT
    cursor: str | None = None
    """Where the page before ended, as its `Link` header says it."""

    def check(self) -> Position | None:
        """Where the page before ended; or raise, if this is no page."""
        if not 1 <= self.limit <= LIMIT:
            raise Problem(422, f"limit is {self.limit}; it is a number from 1 to {LIMIT}")
        if self.cursor is None:
            return None
        at, _, id = self.cursor.partition(",")
        try:
            created = float(at)
        except ValueError:
            created = math.nan
        if not math.isfinite(created) or not id:
            raise Problem(422, "cursor is none of ours: use the link to the next page as it is in the header `Link`")
        return created, id


def page_response(request: Request, lines: Sequence[Any], positions: Sequence[Position], limit: int) -> Response:
    """So many of these, which may be more, as they are; `positions` says where each of them is."""
    response = Response(to_json(lines[:limit]), media_type="application/json")
    if len(lines) > limit:
        created, id = positions[limit - 1]
        url = request.url.include_query_params(limit=limit, cursor=f"{created!r},{id}")
        response.headers["link"] = f'<{url.path}?{url.query}>; rel="next"'
    return response
