# SPDX-License-Identifier: Apache-2.0
"""Gemini's clients: what makes one, and the secrets that it sends.

The SDK's client is made only from complete settings. If its constructor raised, its `__del__` would start a failing
task on any loop that runs. The HTTP client is always one of ours. Otherwise the SDK would use aiohttp wherever that
happens to be installed, and its own HTTP client closes itself when it is garbage, on any loop.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from andon.errors import SetupError
from andon.models.common.clients import ClientCache
from andon.models.common.http import client_options
from andon.models.common.sdk import Sdk
from andon.models.common.secrets import Secrets, in_headers, in_url
from andon.models.common.setup import ApiKey, HttpClient, check_key, from_environment

SDK = Sdk("Gemini", module="google.genai", package="google-genai", extra="google")

NO_KEY = "none"
"""Sent to a server of your own that asks for no key: the SDK wants one."""

GLOBAL = "global"
"""The location of Vertex if none is given, as in the SDK."""

READ_SECONDS = 600.0
CONNECT_SECONDS = 5.0
"""The SDK has no timeouts of its own."""

MAX_CONNECTIONS = 1_000

_KEYS = ("GOOGLE_API_KEY", "GEMINI_API_KEY")
_HARMLESS = frozenset({"x-goog-api-client", "x-goog-user-project", "x-server-timeout"})


class Settings(NamedTuple):
    """Two models with equal settings share a client."""

    api_key: ApiKey | None = None
    base_url: str | None = None
    vertex: bool | None = None
    project: str | None = None
    location: str | None = None
    credentials: Any = None
    api_version: str | None = None
    http_client: HttpClient | None = None

    def resolved(self) -> Settings:
        """The settings with what the environment has now, where none were given. Raises for what is missing."""
        vertex = _wants_vertex() if self.vertex is None else self.vertex
        version = self.api_version or from_environment("GOOGLE_GENAI_API_VERSION")
        if version == "beta":  # the SDK's short name for it
            version = "v1beta1" if vertex else "v1beta"
        settings = self._replace(vertex=vertex, api_version=version)
        return settings._for_vertex() if vertex else settings._for_gemini()

    def _for_gemini(self) -> Settings:
        if self.project or self.location or self.credentials is not None:
            raise SetupError(
                "project, location and credentials are Vertex's: pass vertex=True too, or set GOOGLE_GENAI_USE_VERTEXAI"
            )
        base_url = self.base_url or from_environment("GOOGLE_GEMINI_BASE_URL")
        key = self.api_key or from_environment(*_KEYS) or (NO_KEY if base_url else None)
        return self._replace(api_key=check_key(key, "Gemini", *_KEYS), base_url=base_url)

    def _for_vertex(self) -> Settings:
        if self.credentials is not None and self.api_key is not None:
            raise SetupError("pass either credentials= or api_key= to the model, not both")
        settings = self._replace(base_url=self.base_url or from_environment("GOOGLE_VERTEX_BASE_URL"))
        key = self.api_key
        project = self.project or (None if key else from_environment("GOOGLE_CLOUD_PROJECT"))
        if not project and self.credentials is None:
            key = key or from_environment(*_KEYS)
        if not project and not key:
            raise SetupError(
                "there is no project for Vertex: set GOOGLE_CLOUD_PROJECT, or pass project= to the model; "
                f"or use a key of Vertex's: set {' or '.join(_KEYS)}, or pass api_key="
            )
        if key is not None:
            key = check_key(key, "Vertex", *_KEYS)
        if not project:
            return settings._replace(api_key=key)
        location = self.location or from_environment("GOOGLE_CLOUD_LOCATION") or GLOBAL
        return settings._replace(api_key=key, project=project, location=location)


def _wants_vertex() -> bool:
    for name in ("GOOGLE_GENAI_USE_ENTERPRISE", "GOOGLE_GENAI_USE_VERTEXAI"):
        if (said := os.environ.get(name)) is not None:
            return said.lower() in ("true", "1")
    return False


def secrets_of(client: Any, settings: Settings, sent: Mapping[str, Any]) -> Secrets:
    """All secrets that a client sends with a request that has these headers. Nothing of it needs to be there."""
    return Secrets(_secrets(client, settings, sent))


def _secrets(client: Any, settings: Settings, sent: Mapping[str, Any]) -> Iterator[str]:
    api = getattr(client, "_api_client", None)
    for key in (settings.api_key, *map(os.environ.get, _KEYS), getattr(api, "api_key", None)):
        if isinstance(key, str) and key != NO_KEY:
            yield key
    for credentials in (settings.credentials, getattr(api, "_credentials", None)):
        if isinstance(token := getattr(credentials, "token", None), str):
            yield token
    options, http = getattr(api, "_http_options", None), getattr(api, "_async_httpx_client", None)
    for named in (sent, *(getattr(each, name, None) for each in (options, http) for name in ("headers", "params"))):
        if isinstance(named, Mapping):
            yield from in_headers(named.items(), _HARMLESS)
    for url in (settings.base_url, getattr(options, "base_url", None)):
        if url:
            yield from in_url(str(url), _HARMLESS)


# -- made and closed --------------------------------------------------------------------------------------------------


class Opened(NamedTuple):
    """A client of the SDK, with the HTTP client that it uses. The SDK does not close that one."""

    client: Any
    http_client: Any


def default_timeout() -> Any:
    import httpx2

    return httpx2.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)


def _open(settings: Settings) -> Opened:
    genai = SDK.load()
    import httpx2
    from google.genai import types

    options = client_options()
    if settings.http_client is not None:
        http_client = settings.http_client()
    else:
        limits = httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=100)
        http_client = httpx2.AsyncClient(follow_redirects=True, limits=limits, **options)
    # The SDK also makes a client for blocking calls and a context for web sockets, and reads all certificates for each
    # of them, if it is not given these.
    http_options = types.HttpOptions(
        base_url=settings.base_url,
        api_version=settings.api_version,
        retry_options=types.HttpRetryOptions(attempts=1),  # the run itself retries, so that a cancel ends the retries
        httpx_client=httpx2.Client(verify=options["verify"]),
        httpx_async_client=http_client,
        async_client_args={"ssl": options["verify"]},
    )
    client = genai.Client(
        vertexai=settings.vertex,
        api_key=settings.api_key if isinstance(settings.api_key, str | None) else NO_KEY,
        credentials=settings.credentials,
        project=settings.project,
        location=settings.location,
        http_options=http_options,
    )
    _keep_still(client)
    return Opened(client, http_client)


def _keep_still(client: Any) -> None:
    """When they are garbage, the SDK's objects start a task on the loop that runs then. Ours have nothing to close."""
    part: Any
    for part in (client.aio, getattr(client, "_api_client", None)):
        with contextlib.suppress(AttributeError):
            part.aclose = _nothing  # no coroutine, so the SDK starts no task, and passes over it


def _nothing() -> None:
    pass


async def _close(opened: Opened) -> None:
    # The SDK closes no client that it was given.
    await opened.http_client.aclose()


clients: ClientCache[Settings, Opened] = ClientCache(_open, _close)
