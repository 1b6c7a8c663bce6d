# SPDX-License-Identifier: Apache-2.0
"""The stream that a board reads. It ends after a while, and the board opens it again."""

from __future__ import annotations

import asyncio
import time

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from andon import __version__
from andon.server.access import Principal
from andon.server.board.board import Board
from andon.server.board.feed import Hello, ShownAgent, frame
from andon.server.sse import HEADERS, HEARTBEAT, run_while_connected

LONGEST = 10.0
"""The seconds after which a stream ends. The page then opens it again, after its last message. So a page with a token
that is not valid any more gets a 401, and an ASGI server that waits for open responses can stop.
"""


class BoardResponse(Response):
    """Server-sent events: a greeting, and then the lines that have changed, until the stream has lasted `LONGEST`."""

    media_type = "text/event-stream"

    def __init__(self, board: Board, principal: Principal, last_id: str | None) -> None:
        super().__init__()
        self._board, self._principal, self._last_id = board, principal, last_id
        self.raw_headers = list(HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await run_while_connected(receive, self._write(send))

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self._greeting(), "more_body": True})
        feed, until = self._board.feed, time.monotonic() + LONGEST
        with self._board.watched() as keeping:
            seen = feed.version_of(self._last_id)
            while not feed.is_over and (left := until - time.monotonic()) > 0:
                try:
                    async with asyncio.timeout(min(self._board.host.settings.heartbeat, left)):
                        seen, message = await feed.changes(self._principal, seen, keeping)
                except TimeoutError:
                    message = HEARTBEAT
                await send({"type": "http.response.body", "body": message, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _greeting(self) -> bytes:
        agents = [ShownAgent(each.id, each.name, each.description) for each in self._board.host.agents.values()]
        principal, server = self._principal, self._board.server
        return frame("hello", Hello(time.time(), server, __version__, principal.admin, principal.user_id, agents))
