# SPDX-License-Identifier: Apache-2.0
"""Lists in pages. Every page but the last has a `Link` header with the URL of the next one.

A page begins after the last item of the page before, not at an index: items that are added or removed meanwhile don't
shift the pages.
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
"""The size of a page, if the request does not ask for less."""

Position = tuple[float, str]
"""The position of an item in a list: when it was created, and its id."""


class Page(Struct):
    """The page of a list that is requested."""

    limit: int = LIMIT
    cursor: str | None = None
    """The position of the last item of the page before, from its `Link` header."""

    def check(self) -> Position | None:
        """The position of the last item of the page before. Raises if the fields are wrong."""
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
            raise Problem(422, "cursor is not valid: use the link to the next page from the header `Link`")
        return created, id


def page_response(request: Request, lines: Sequence[Any], positions: Sequence[Position], limit: int) -> Response:
    """The first `limit` lines, and a link if there are more. `positions` has the position of each line."""
    response = Response(to_json(lines[:limit]), media_type="application/json")
    if len(lines) > limit:
        created, id = positions[limit - 1]
        url = request.url.include_query_params(limit=limit, cursor=f"{created!r},{id}")
        response.headers["link"] = f'<{url.path}?{url.query}>; rel="next"'
    return response
