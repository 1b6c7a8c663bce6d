# SPDX-License-Identifier: Apache-2.0
"""What a fake must know of its provider: which requests it answers, which it rejects, and how it writes an answer."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

from andon.errors import Portable
from andon.testing.providers.play import Writer
from andon.testing.providers.script import Answer
from andon.testing.providers.served import Served
from andon.testing.providers.server import Connection, Request

Json: TypeAlias = dict[str, Any]


class Rejection(Portable, Exception):  # noqa: N818 - it is an answer, not an error of ours
    """The request is answered with an HTTP error: `body`, whose part that says why is `error`."""

    def __init__(self, message: str, status: int, error: Json, body: Json) -> None:
        super().__init__(message)
        self.status = status
        self.error = error
        self.body = body
        self.headers: dict[str, str] = {}
        """Besides the content type."""


class Api(Protocol):
    """A provider's API, for one fake. The server's thread calls it."""

    @property
    def root(self) -> str:
        """The end of the fake's `base_url`, such as `/v1`."""
        ...

    def is_for_answer(self, request: Request) -> bool:
        """Whether the request asks a model for an answer. Only these are recorded, and answered by the script."""
        ...

    def other(self, request: Request) -> tuple[int, Json]:
        """The status and the body for any other request."""
        ...

    def parse(self, request: Request, api_key: str) -> Json:
        """The body. Raises `Rejection` for a wrong key, or for what is no JSON."""
        ...

    def check(self, body: Json) -> None:
        """Raises `Rejection` for what the provider would reject."""
        ...

    def streams(self, body: Json) -> bool:
        """Whether the answer is a stream."""
        ...

    def writer(self, body: Json) -> Writer:
        """The provider's wire format, for one answer."""
        ...

    def mistake(self, message: str) -> Json:
        """The body of a 500: the fake's script failed."""
        ...


class Background(Protocol):
    """Answers that go on without the connection that asked for them. Most providers have none.

    What serves a connection returns whether it can be used again.
    """

    def takes(self, body: Json) -> bool:
        """Whether this answer is such a one."""
        ...

    async def serve(self, connection: Connection, record: Served, answer: Answer) -> bool:
        """Begin the answer."""
        ...

    def is_for(self, request: Request) -> bool:
        """Whether the request is for an answer that exists already."""
        ...

    async def other(self, connection: Connection, request: Request, api_key: str) -> bool:
        """Answer such a request."""
        ...
