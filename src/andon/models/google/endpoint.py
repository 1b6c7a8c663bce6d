# SPDX-License-Identifier: Apache-2.0
"""Where the requests of one model go: to the Gemini API or to Vertex, with which headers, and how often.

A cancel arrives as a `CancelledError` wherever `ask` waits: for a connection, for a token of Vertex, for the headers,
for the next byte. As soon as there is a response, an `async with` holds it, so the connection is closed before the
error goes on.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from andon.errors import ConfigurationError, ModelError
from andon.models.common.errors import report
from andon.models.common.secrets import Secrets
from andon.models.common.setup import check_client, check_url
from andon.models.google import typed, wire
from andon.models.google.answer import GeminiAnswer
from andon.models.google.clients import SDK, Opened, Settings, clients, default_timeout, secrets_of
from andon.models.google.errors import TABLE, translate

_log = logging.getLogger(__name__)
_KEY = "x-goog-api-key"


class Endpoint:
    """Sends the requests of one model."""

    def __init__(self, model: str, settings: Settings, client: Any, timeout: Any, headers: Mapping[str, str]) -> None:
        check_client(client, settings)
        self._model = model
        self._settings = settings
        self._given = client
        self._timeout = timeout
        self._headers = headers

    def check_setup(self) -> None:
        """Raise `SetupError` for what would keep every request from being sent: no key, no project, no package."""
        if self._given is None:
            SDK.check()
            settings = self._settings.resolved()
            if settings.http_client is None:  # an HTTP client of the user's may have addresses of its own
                check_url(settings.base_url)

    async def aclose(self) -> None:
        """Close this event loop's connections, unless other models use them too. A client that was given stays open."""
        if self._given is None:
            with contextlib.suppress(ConfigurationError):  # without a key nothing was opened
                await clients.release(self._settings.resolved(), self)

    @property
    def issuer(self) -> str:
        """Who signs the thoughts: a signature is good for one model, at one of Google's two services."""
        return f"vertex/{self._model}" if self._is_vertex() else self._model

    def _is_vertex(self) -> bool:
        if self._given is not None:
            return bool(getattr(self._given, "vertexai", False))
        return bool(self._settings.resolved().vertex)

    async def ask(self, body: Mapping[str, Any], answer: GeminiAnswer) -> None:
        """Send a request, and decode the answer as it comes. If Google interrupts it, send the next one."""
        settings = self._settings if self._given is not None else self._settings.resolved()
        opened = Opened(self._given, None) if self._given is not None else await clients.get(settings, self)
        await self._request(opened, settings, body, answer)
        while (token := answer.continuation) is not None:
            answer.go_on()
            await self._request(opened, settings, {**body, "continuationToken": token}, answer)

    async def _request(self, opened: Opened, settings: Settings, body: Mapping[str, Any], answer: GeminiAnswer) -> None:
        request = _Request(opened, settings, dict(self._headers))
        await report(self._send(request, body, answer), request.translate, request.secrets)

    async def _send(self, request: _Request, body: Mapping[str, Any], answer: GeminiAnswer) -> None:
        client, key = request.opened.client, request.settings.api_key
        if callable(key):
            request.headers[_KEY] = await key()
        timeout = self._timeout
        if timeout is None and self._given is None:
            timeout = default_timeout()
        api = wire.find_wire(client)
        if api is None:
            _tell_once()
            await typed.ask(request.opened, self._model, body, request.headers, timeout, answer, request.begin)
            return
        path = wire.path_of(self._model, vertex=self._is_vertex())
        async with wire.send(api, path, body, request.headers, timeout) as response:
            request.begin()
            await wire.read(response, answer, TABLE)


class _Request:
    """One request: what its errors are made of."""

    def __init__(self, opened: Opened, settings: Settings, headers: dict[str, str]) -> None:
        self.opened, self.settings, self.headers = opened, settings, headers
        self.answered = False

    def begin(self) -> None:
        """The answer has begun."""
        self.answered = True

    def translate(self, error: Exception, secrets: Secrets) -> ModelError | None:
        return translate(error, secrets, answered=self.answered)

    def secrets(self) -> Secrets:
        return secrets_of(self.opened.client, self.settings, self.headers)


_told: list[bool] = []


def _tell_once() -> None:
    if not _told:
        _told.append(True)
        _log.warning(
            "this version of google-genai is not as andon knows it, so tokens are read through its public interface: "
            "that is slower, and correct; install the version that andon was tested with, or a newer andon"
        )
