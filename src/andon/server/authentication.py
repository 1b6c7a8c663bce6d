# SPDX-License-Identifier: Apache-2.0
"""Calls the program's own function that finds the user of a request: `create_app(authenticate=…)`.

What must stay true: no request waits for an async function longer than `authenticate_seconds`, and the client does not
see the function's errors. A plain function is called on the event loop, so it must not block.

The function may read a cookie, and a browser sends cookies with the requests of every page. So `AuthMiddleware` checks
the origin of the page first, and `*` is not allowed as an origin here.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from andon.errors import ConfigurationError
from andon.server.access import Principal
from andon.server.body import check_user_id
from andon.server.problems import Problem

log = logging.getLogger(__name__)


class User(Struct, frozen=True):
    """The user of a request. An admin may see and do everything; other users only what concerns their own data."""

    id: str
    admin: bool = False


Found = User | str | None
"""A `User`, a user's id, or None if the user is unknown."""

Authenticate = Callable[[HTTPConnection], Awaitable[Found] | Found]
"""Finds the user of a request, or of the request that opens a WebSocket."""


class Authenticator:
    """Calls the function, with a timeout."""

    def __init__(self, ask: Authenticate, seconds: float) -> None:
        if not callable(ask):
            raise ConfigurationError(f"authenticate is of type {type(ask).__name__}: give a function of the request")
        if not seconds > 0:
            raise ConfigurationError(f"authenticate_seconds is {seconds!r}; it is a number of seconds, more than 0")
        self._ask, self._seconds = ask, seconds
        self._asking: set[asyncio.Task[object]] = set()  # a loop holds its tasks weakly

    async def find(self, connection: HTTPConnection) -> Principal | None:
        """The principal; None if unknown. Raises `Problem` if the function raises, or does not return in time."""
        # In a task of its own: a function that ignores its cancellation must not delay the request.
        task: asyncio.Task[object] = asyncio.create_task(self._answer(connection), name="andon-authenticate")
        self._asking.add(task)
        task.add_done_callback(self._ended)
        try:
            await asyncio.wait([task], timeout=self._seconds)
        finally:
            task.cancel()  # it took too long, or the request was cut
        if not task.done():
            log.error("authenticate has not answered within %g s, and was cancelled", self._seconds)
            raise Problem(503, "the server could not authenticate the request in time: try again", {"retry-after": "1"})
        try:
            return _principal(task.result())
        except HTTPException as refusal:  # the function's own response for the client
            headers = dict(refusal.headers or {})
            raise Problem(refusal.status_code, _as_json(refusal.detail), headers) from None
        except BaseException:  # nothing is awaited here, so the function raised it
            log.exception("authenticate failed")
            raise Problem(500, "the server could not authenticate the request; its log says why") from None

    async def _answer(self, connection: HTTPConnection) -> object:
        try:
            found = self._ask(connection)
            return await found if inspect.isawaitable(found) else found
        except SystemExit as error:  # out of a task, it would end the server
            raise RuntimeError(f"authenticate wants to end the process (SystemExit: {error.code})") from error

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._asking.discard(task)
        if not task.cancelled():
            task.exception()  # mark it as retrieved: the request may be over


def _as_json(detail: object) -> Any:
    """The detail as JSON if it can be written as JSON, else its `str`."""
    try:
        return json.loads(json.dumps(detail, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return str(detail)


def _principal(found: object) -> Principal | None:
    if found is None:
        return None
    user = User(found) if isinstance(found, str) else found
    if not isinstance(user, User):
        raise TypeError(
            f"authenticate returned an object of type {type(found).__name__}: return a User, a user's id, or None"
        )
    if not isinstance(user.id, str) or not user.id:
        raise TypeError(
            "authenticate returned a user whose id is no text, or empty: return None for a request without a valid user"
        )
    if not isinstance(user.admin, bool):  # a claim that is the text "false" must not make an admin
        raise TypeError(f"authenticate returned a user whose admin is of type {type(user.admin).__name__}: give a bool")
    try:
        check_user_id(user.id)
    except Problem as problem:
        raise ValueError(f"authenticate: {problem.detail}") from None
    return Principal(None if user.admin else user.id, user.admin, user.id)
