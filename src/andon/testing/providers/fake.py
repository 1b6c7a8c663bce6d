# SPDX-License-Identifier: Apache-2.0
"""The part that all fakes share: a server while the fake is entered, a script, records, and ways to wait for them.

What must stay true: a request that the provider would reject is rejected and takes nothing from the script.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Self, TypedDict, TypeVar

from andon.errors import show
from andon.testing.providers.api import Api, Background, Json, Rejection
from andon.testing.providers.play import Player
from andon.testing.providers.script import Answer, Script, Word, text, words
from andon.testing.providers.served import Changes, Served
from andon.testing.providers.server import Connection, Request, Server

HANG_SECONDS = 10.0


class Options(TypedDict, total=False):
    """The options of every fake."""

    api_key: str
    newline: str
    split: int | None


AnApi = TypeVar("AnApi", bound=Api)


class Fake(Generic[AnApi]):
    """A provider on loopback, while it is entered: `with FakeChat(…) as fake:`, or `async with`.

    `script` is a list with one answer per request, of which the last one answers all later requests as well, or a
    function of the request's body. `newline` ends the lines of a stream of text; `split` cuts the stream into chunks of
    so many bytes, wherever that is. A fake of a provider only chooses its `api`, and has no state of its own.
    """

    def __init__(
        self,
        api: AnApi,
        script: Script | None = None,
        *,
        api_key: str = "sk-fake",
        newline: str = "\n",
        split: int | None = None,
        background: Background | None = None,
    ) -> None:
        self.api = api
        self._background = background
        self.api_key = api_key
        self.served: list[Served] = []
        """A record of every request for an answer, in the order in which they came."""
        self._script = _checked(script)
        self._newline = newline.encode()
        if split is not None and split < 1:
            raise ValueError(f"split must be at least 1 byte, not {split}")
        self._split = split
        self._answered = 0
        self._changes = Changes()
        self._server = Server(self._answer, self._changes.notify)

    # -- open and close

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._server.stop()

    async def __aenter__(self) -> Self:
        # The thread starts and ends within a millisecond, so this may block the loop.
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    @property
    def base_url(self) -> str:
        if not self._server.port:
            raise RuntimeError(f"a fake has an address while it is entered: with {type(self).__name__}(…) as fake: …")
        return f"http://127.0.0.1:{self._server.port}{self.api.root}"

    # -- looking

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The bodies of the requests."""
        return [each.body for each in self.served]

    @property
    def open_connections(self) -> int:
        return len(self._server.connections)

    def wait_for(self, request: int = 0, at: str = "received", timeout: float = HANG_SECONDS) -> Served:
        """Blocks until a request, by its number from 0, has reached a state; returns its record.

        States are `received`, `rejected`, `silent`, `text`, `reasoning`, `call`, `raw`, `paused`, `held`, `stalled`,
        `finished`, `failed`, `cut`, `left`, `cancelled`, and `over`, which is any end. In an event loop, use
        `wait_for_async`.
        """
        self.wait_until(lambda: self._is_at(request, at), timeout, f"request {request} at {at!r}")
        return self.served[request]

    async def wait_for_async(self, request: int = 0, at: str = "received", timeout: float = HANG_SECONDS) -> Served:
        """`wait_for`, for event loops."""
        await self.wait_until_async(lambda: self._is_at(request, at), timeout, f"request {request} at {at!r}")
        return self.served[request]

    def wait_until(self, holds: Callable[[], bool], timeout: float = HANG_SECONDS, what: str = "it") -> None:
        """Blocks until a condition holds. It is checked whenever this fake's records or connections change."""
        if not self._changes.wait(holds, timeout):
            raise self._too_long(what, timeout)

    async def wait_until_async(
        self, holds: Callable[[], bool], timeout: float = HANG_SECONDS, what: str = "it"
    ) -> None:
        """`wait_until`, for event loops."""
        if not await self._changes.wait_async(holds, timeout):
            raise self._too_long(what, timeout)

    def _is_at(self, request: int, at: str) -> bool:
        if not -len(self.served) <= request < len(self.served):
            return False
        record = self.served[request]
        return record.over if at == "over" else at in record.reached

    def _too_long(self, what: str, timeout: float) -> TimeoutError:
        seen = ", ".join(map(repr, self.served)) or "no request"
        return TimeoutError(
            f"waited {timeout:g} s for {what}; there is {seen}, and {self.open_connections} connections"
        )

    # -- answering, in the server's thread

    async def _answer(self, connection: Connection, request: Request) -> bool:
        if self._background is not None and self._background.is_for(request):
            return await self._background.other(connection, request, self.api_key) and _kept(request)
        if not self.api.is_for_answer(request):
            return await self._tell(connection, request, *self.api.other(request))
        return await self._serve(connection, request)

    async def _serve(self, connection: Connection, request: Request) -> bool:
        body: Json = {}
        try:
            body = self.api.parse(request, self.api_key)
            self.api.check(body)
            problem = None
        except Rejection as rejected:
            problem = rejected
        record = Served(len(self.served), connection.number, body, request.headers, self._changes)
        self.served.append(record)
        if problem is not None:
            record.error = problem.error
            record.mark("rejected")
            return await self._tell(connection, request, problem.status, problem.body, problem.headers)
        self._changes.notify()
        try:
            answer = self._next(body)
        except Exception as error:  # noqa: BLE001 - the client gets the mistake of a script as an error, and fails with it
            record.mark("failed")
            mistake = self.api.mistake(f"the fake's script failed: {show(error)}")
            return await self._tell(connection, request, 500, mistake)
        if self._background is not None and self._background.takes(body):
            return await self._background.serve(connection, record, answer) and _kept(request)
        connection.on_left = lambda: record.mark("left")
        player = Player(
            connection,
            record,
            self.api.writer(body),
            streams=self.api.streams(body),
            newline=self._newline,
            split=self._split,
            headers={"x-request-id": f"req_{record.number}"},
        )
        return await player.play(answer) and _kept(request)

    def _next(self, body: Json) -> list[Word]:
        if callable(self._script):
            return words(self._script(body))
        number = min(self._answered, len(self._script) - 1)
        self._answered += 1
        return self._script[number]

    async def _tell(
        self, connection: Connection, request: Request, status: int, body: Json, headers: dict[str, str] | None = None
    ) -> bool:
        headers = {"content-type": "application/json", **(headers or {})}
        await connection.respond(status, headers, json.dumps(body).encode())
        return _kept(request)


def _kept(request: Request) -> bool:
    return request.headers.get("connection", "").lower() != "close"


def _checked(script: Script | None) -> list[list[Word]] | Callable[[dict[str, Any]], Answer]:
    """The script, checked: a mistake raises where the script is written."""
    if script is None:
        return [[text("Hello, this is a fake.")]]
    if callable(script):
        return script
    if isinstance(script, str | Word) or not script:
        raise TypeError("a script is a list of answers, one per request: FakeChat([[text('Hello')], …])")
    # A bare word here most likely belongs to one answer, whose list was forgotten.
    if bare := [answer for answer in script if isinstance(answer, Word)]:
        raise TypeError(f"each answer of a script is a list of words: [{bare[0]!r}]")
    return [words(answer) for answer in script]
