# SPDX-License-Identifier: Apache-2.0
"""The SDK's clients: one per event loop and settings, shared by all models that have the same ones.

A client's connections belong to the event loop that opened them, so none is ever used, or closed, on another loop.
Whoever comes first opens it, in a thread: to import the SDK and to read certificates takes most of a second, and a
cancel must get through meanwhile. It is closed by `model.aclose()` of the last model that uses it, when its models are
gone, or with its loop: an asynchronous generator waits there, which `asyncio.run` closes before the loop.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib.util
import os
import sys
import threading
import warnings
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from andon.errors import MissingExtraError, SetupError
from andon.models.reads import watch_handshake

HttpClient = Callable[[], Any]
"""Makes the SDK's HTTP client, once per event loop; `openai.DefaultAioHttpClient`, for one."""

ApiKey = str | Callable[[], Awaitable[str]]

NO_KEY = "none"
"""What is sent to a server of your own that asks for no key; the SDK wants one."""


class Settings(NamedTuple):
    """What makes two clients the same."""

    api_key: ApiKey | None = None
    base_url: str | None = None
    organization: str | None = None
    project: str | None = None
    http_client: HttpClient | None = None

    def resolved(self) -> Settings:
        """With what the environment says right now in place of what was left open."""
        base_url = self.base_url or os.environ.get("OPENAI_BASE_URL") or None
        api_key = self.api_key or os.environ.get("OPENAI_API_KEY") or (NO_KEY if base_url else None)
        if api_key is None:
            raise SetupError("there is no API key for OpenAI: set OPENAI_API_KEY, or pass api_key= to the model")
        if not isinstance(api_key, str) and not callable(api_key):  # a pydantic SecretStr: its text would be asterisks
            kind = type(api_key).__name__
            raise SetupError(f"the API key is {kind}; it must be text, or an async function that returns it")
        if isinstance(api_key, str) and not (
            api_key.isascii() and api_key.isprintable() and api_key == api_key.strip()
        ):
            raise SetupError("the API key has characters that no key has, a line's end perhaps: strip it")
        return self._replace(api_key=api_key, base_url=base_url)


def sdk() -> Any:
    """The official SDK, imported when it is first needed."""
    try:
        import openai
    except ImportError as error:
        raise _missing(error) from None
    return openai


def check_sdk() -> None:
    """Raise if the SDK is not installed. It is only looked for: importing it takes most of a second."""
    if sys.modules.get("openai") is None and importlib.util.find_spec("openai") is None:
        raise _missing("it is not installed")


def _missing(why: object) -> MissingExtraError:
    return MissingExtraError(f'OpenAI models need the openai package: pip install "andon[openai]" ({why})')


def raw_response() -> Any:
    """What the SDK must be asked for to leave a response as it is."""
    import httpx2

    return httpx2.Response


class _Client:
    __slots__ = ("sdk_client", "users")

    def __init__(self, sdk_client: Any) -> None:
        self.sdk_client = sdk_client
        self.users: weakref.WeakSet[object] = weakref.WeakSet()


class _Shelf:
    """The clients of one loop."""

    __slots__ = ("clients", "keeper", "opening")

    def __init__(self) -> None:
        self.clients: dict[Settings, _Client] = {}
        self.opening: dict[Settings, asyncio.Future[Any]] = {}
        self.keeper: AsyncGenerator[None, None] | None = None

    async def open(self, settings: Settings) -> None:
        """Open it once, however many ask, and whichever of them is cancelled meanwhile."""
        future = self.opening.get(settings)
        if future is None:
            future = asyncio.get_running_loop().run_in_executor(None, _open, settings)
            self.opening[settings] = future
            future.add_done_callback(functools.partial(self._opened, settings))
        await asyncio.shield(future)
        self._opened(settings, future)  # its callback may still be to come, and whoever asks next must find the client

    def _opened(self, settings: Settings, future: asyncio.Future[Any]) -> None:
        if self.opening.get(settings) is not future:
            return
        del self.opening[settings]
        if not future.cancelled() and future.exception() is None:
            self.clients[settings] = _Client(future.result())

    async def close(self, keys: Iterable[Settings], *, used: bool = False) -> None:
        for key in list(keys):
            client = self.clients.get(key)
            if client is not None and (used or not client.users):
                del self.clients[key]
                await client.sdk_client.close()


class Clients:
    """All clients of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shelves: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Shelf] = weakref.WeakKeyDictionary()
        self._inherited: list[object] = []

    async def get(self, settings: Settings, user: object) -> Any:
        """The client for these settings on this loop, for `user` until it lets go or is gone."""
        shelf = await self._shelf()
        if len(shelf.clients) > 1:
            await shelf.close(shelf.clients.keys() - {settings})
        while (client := shelf.clients.get(settings)) is None:
            await shelf.open(settings)
        client.users.add(user)
        return client.sdk_client

    async def let_go(self, settings: Settings, user: object) -> None:
        """`user` needs it no more on this loop; the last one closes it."""
        with self._lock:
            shelf = self._shelves.get(asyncio.get_running_loop())
        client = shelf.clients.get(settings) if shelf else None
        if shelf is None or client is None:
            return
        client.users.discard(user)
        await shelf.close([settings])

    async def _shelf(self) -> _Shelf:
        loop = asyncio.get_running_loop()
        with self._lock:
            shelf = self._shelves.get(loop)
            if shelf is not None:
                return shelf
            lost = [self._shelves.pop(other) for other in list(self._shelves) if other.is_closed()]
            shelf = self._shelves[loop] = _Shelf()
        if any(other.clients for other in lost):
            _drop(lost)
        shelf.keeper = self._keep(loop, shelf)
        await anext(shelf.keeper)
        return shelf

    async def _keep(self, loop: asyncio.AbstractEventLoop, shelf: _Shelf) -> AsyncGenerator[None, None]:
        """Is closed by the loop, as its last act; there is no other hook that tells of a loop's end."""
        try:
            yield
        finally:
            with self._lock:
                self._shelves.pop(loop, None)
            await shelf.close(shelf.clients, used=True)

    def forget(self) -> None:
        """In a forked child the connections are still the parent's: don't use them, and don't close them either."""
        self._inherited.append(self._shelves)
        self._lock = threading.Lock()
        self._shelves = weakref.WeakKeyDictionary()


def _open(settings: Settings) -> Any:
    openai = sdk()
    # Always one of ours: the SDK's own closes itself, when it is collected, on whichever loop happens to run.
    if settings.http_client is not None:
        http_client = settings.http_client()
    else:
        http_client = openai.DefaultAsyncHttpxClient(verify=_certificates(), event_hooks={"request": [watch_handshake]})
    return openai.AsyncOpenAI(
        api_key=settings.api_key,
        base_url=settings.base_url,
        organization=settings.organization,
        project=settings.project,
        max_retries=0,  # retries are the run's, so that a cancel ends them and the events tell of them
        http_client=http_client,
    )


@functools.cache
def _certificates() -> Any:
    """Read once: they take time and memory, and any number of loops can share them."""
    import httpx2

    return httpx2.create_ssl_context()


def _drop(lost: list[_Shelf]) -> None:
    """Let go of connections whose loop was closed around them: nobody can close them properly any more."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        lost.clear()
        gc.collect()


clients = Clients()
os.register_at_fork(after_in_child=clients.forget)
