# SPDX-License-Identifier: Apache-2.0
"""The connection to a server on one event loop. It opens a session at the first use, and again when that has broken.

What must stay true: one task, the owner, opens a session and closes it. It belongs to the loop and to no run, so no
cancel of a run reaches it. But a session is only opened for a caller: if the last caller that waits for it is
cancelled, the owner ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from typing import Any

from andon.errors import AndonError, ToolSourceError
from andon.tools.mcp.content import describe_errors
from andon.tools.mcp.session import Session
from andon.tools.mcp.settings import Address, Behaviour

log = logging.getLogger(__name__)

ATTEMPTS = 3
CLOSED = "Connection closed"
"""What the SDK says when the server has gone."""

FIRST_DELAY = 0.2
"""Seconds before the second attempt to connect. It doubles with each further one."""


class Connection:
    """Made for one loop. Its methods are called there, `leave` from anywhere."""

    __slots__ = (
        "__weakref__",
        "_address",
        "_behaviour",
        "_loop",
        "_name",
        "_opening",
        "_owner",
        "_session",
        "_waiting",
    )

    def __init__(self, name: str, address: Address, behaviour: Behaviour) -> None:
        self._name, self._address, self._behaviour = name, address, behaviour
        self._loop = asyncio.get_running_loop()
        self._session: Session | None = None
        self._owner: asyncio.Task[None] | None = None
        self._opening: asyncio.Future[Session] | None = None
        self._waiting = 0

    @property
    def session(self) -> Session | None:
        """The session, if one is open."""
        return self._session if self._session is not None and self._session.broken is None else None

    @property
    def last(self) -> Session | None:
        """The last session that was opened. It may have broken since."""
        return self._session

    async def open(self) -> Session:
        """The session; opens it if there is none. Raises `ToolSourceError` if the server can't be reached."""
        while (session := self.session) is None:
            opening = self._opening
            if opening is None:
                opening = self._opening = self._loop.create_future()
                opening.add_done_callback(_retrieve)
                # No context of the caller: the session serves other runs too, and outlives this one.
                self._owner = self._loop.create_task(
                    self._own(opening, self._owner), name=f"MCP server {self._name}", context=contextvars.Context()
                )
            self._waiting += 1
            try:
                await asyncio.shield(opening)
            finally:
                self._waiting -= 1
                if self._waiting == 0 and not opening.done() and self._owner is not None:
                    self._owner.cancel()
                    self._opening = None
        return session

    async def close(self) -> None:
        """Close the session, and wait until it is closed."""
        owner = self._owner
        self.leave()
        if owner is not None:
            await asyncio.wait({owner})

    def leave(self) -> None:
        """Have the session closed. Called on the loop."""
        if self._session is not None:
            self._session.break_off("the session was closed")
        elif self._owner is not None:
            self._owner.cancel()

    def leave_threadsafe(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self.leave)
        except RuntimeError:  # the loop is closed, and the session with it
            pass

    # -- the owner ----------------------------------------------------------------------------------------------------

    async def _own(self, opening: asyncio.Future[Session], before: asyncio.Task[None] | None) -> None:
        """Open a session, keep it until it is over, and close it."""
        try:
            if before is not None:
                await asyncio.wait({before})  # the server before this one is gone first
            session = await self._connect()
        except BaseException as error:
            self._forget(opening)
            if not opening.done():
                opening.set_exception(error if isinstance(error, Exception) else self._was_closed())
            if not isinstance(error, Exception):
                raise
            return  # it is raised where the session is waited for
        self._session = session
        self._forget(opening)
        if not opening.done():
            opening.set_result(session)
        try:
            await session.over.wait()
        except asyncio.CancelledError:  # by the SDK, when a transport fails; or by a host that ends its loop
            session.break_off("the connection failed")
            session.hurry = True
            raise
        finally:
            await self._close(session)

    def _was_closed(self) -> ToolSourceError:
        return ToolSourceError(f"the MCP server {self._name} was closed while it was being connected")

    def _forget(self, opening: asyncio.Future[Session]) -> None:
        if self._opening is opening:
            self._opening = None

    async def _connect(self) -> Session:
        """Try some times, with a growing delay. A cancellation ends the delay."""
        for attempt in range(1, ATTEMPTS + 1):
            session = Session(self._name, self._address, self._behaviour)
            try:
                async with asyncio.timeout(self._behaviour.connect_seconds):
                    await session.open()
                return session
            except BaseException as error:
                why, session.hurry = session.broken, not isinstance(error, Exception)
                await self._close(session)
                if isinstance(error, AndonError) or not isinstance(error, Exception):
                    raise
                failure = self._failure(session, error, why)
                if attempt == ATTEMPTS or isinstance(error, TimeoutError) or _is_refusal(error):
                    raise failure from None
                log.info("%s; trying again", failure)
            await asyncio.sleep(FIRST_DELAY * 2 ** (attempt - 1))
        raise AssertionError  # the last attempt returns or raises

    def _failure(self, session: Session, error: Exception, broken: str | None) -> ToolSourceError:
        why = broken or session.describe_refusal(describe_errors(error))
        if isinstance(error, TimeoutError):
            why = f"it did not answer within {self._behaviour.connect_seconds:g} s"
        said = "".join(f"\n  {line}" for line in session.tail)
        return ToolSourceError(
            f"the MCP server {self._name} ({self._address.shown}) can't be reached: {why}"
            f"{'. It wrote last:' + said if said else ''}"
        )

    async def _close(self, session: Session) -> None:
        try:
            await session.close()
        except Exception as error:  # noqa: BLE001 - the boundary: it is closed, one way or the other
            log.info("the session with the MCP server %s ended: %s", self._name, describe_errors(error))


def _is_refusal(error: Exception) -> bool:
    """The server has answered, and does not want us: for example, it has no version of the protocol in common."""
    from mcp import MCPError

    return isinstance(error, MCPError) and describe_errors(error) != CLOSED


def _retrieve(opening: asyncio.Future[Any]) -> None:
    """Read its error: the callers that waited for it may be gone."""
    if not opening.cancelled():
        opening.exception()
