# SPDX-License-Identifier: Apache-2.0
"""The clients of a provider's SDK: one per event loop and settings, shared by all models that have the same settings.

The connections of a client belong to the event loop that opened them, so a client is never used or closed on another
loop. The first request opens it, in a thread: importing an SDK and reading certificates takes up to two seconds, and a
cancel must get through during that time. A client is closed by `release` of its last user, when its users are garbage,
or with its loop: `asyncio.run` closes all asynchronous generators before the loop, and one of them closes the clients.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import threading
import warnings
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar

Settings = TypeVar("Settings", bound=Hashable)
Client = TypeVar("Client")


class ClientCache(Generic[Settings, Client]):
    """All clients of one provider in this process.

    `open_client` makes a client from settings. It is called in a thread without an event loop, may block, and must
    open no connection yet. `close_client` closes a client, on the event loop that the client was used on.
    """

    def __init__(
        self, open_client: Callable[[Settings], Client], close_client: Callable[[Client], Awaitable[object]]
    ) -> None:
        self._open_client = open_client
        self._close_client = close_client
        self._lock = threading.Lock()
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopClients[Settings, Client]]
        self._loops = weakref.WeakKeyDictionary()
        self._inherited: list[object] = []
        _caches.add(self)

    async def get(self, settings: Settings, user: object) -> Client:
        """The client for these settings on this loop. `user` counts as its user until it releases it or is garbage."""
        clients = await self._of_this_loop()
        if len(clients.opened) > 1:
            await clients.close(clients.opened.keys() - {settings})
        while (client := clients.opened.get(settings)) is None:
            await clients.open(settings)
        client.users.add(user)
        return client.client

    async def release(self, settings: Settings, user: object) -> None:
        """`user` no longer needs the client on this loop. The last user closes it."""
        with self._lock:
            clients = self._loops.get(asyncio.get_running_loop())
        client = clients.opened.get(settings) if clients else None
        if clients is None or client is None:
            return
        client.users.discard(user)
        await clients.close([settings])

    @property
    def loops(self) -> int:
        """How many event loops have clients here."""
        return len(self._loops)

    async def _of_this_loop(self) -> _LoopClients[Settings, Client]:
        loop = asyncio.get_running_loop()
        with self._lock:
            clients = self._loops.get(loop)
            if clients is not None:
                return clients
            lost = [self._loops.pop(other) for other in list(self._loops) if other.is_closed()]
            clients = self._loops[loop] = _LoopClients(self._open_client, self._close_client)
        if any(other.opened for other in lost):
            _drop(lost)
        clients.closer = self._close_with_loop(loop, clients)
        await anext(clients.closer)
        return clients

    async def _close_with_loop(
        self, loop: asyncio.AbstractEventLoop, clients: _LoopClients[Settings, Client]
    ) -> AsyncGenerator[None, None]:
        """Waits at its `yield` until the loop closes it. There is no other hook for the end of a loop."""
        try:
            yield
        finally:
            with self._lock:
                self._loops.pop(loop, None)
            await clients.close(clients.opened, used=True)

    def forget_after_fork(self) -> None:
        """In a forked child the connections belong to the parent: they are neither used nor closed here."""
        self._inherited.append(self._loops)
        self._lock = threading.Lock()
        self._loops = weakref.WeakKeyDictionary()


class _OpenedClient(Generic[Client]):
    __slots__ = ("client", "users")

    def __init__(self, client: Client) -> None:
        self.client = client
        self.users: weakref.WeakSet[object] = weakref.WeakSet()


class _LoopClients(Generic[Settings, Client]):
    """The clients of one loop."""

    __slots__ = ("_close_client", "_open_client", "closer", "opened", "opening")

    def __init__(
        self, open_client: Callable[[Settings], Client], close_client: Callable[[Client], Awaitable[object]]
    ) -> None:
        self._open_client = open_client
        self._close_client = close_client
        self.opened: dict[Settings, _OpenedClient[Client]] = {}
        self.opening: dict[Settings, asyncio.Future[Client]] = {}
        self.closer: AsyncGenerator[None, None] | None = None

    async def open(self, settings: Settings) -> None:
        """Open it once, however many callers wait for it, also if one of them is cancelled."""
        future = self.opening.get(settings)
        if future is None:
            future = asyncio.get_running_loop().run_in_executor(None, self._open_client, settings)
            self.opening[settings] = future
            future.add_done_callback(functools.partial(self._finish_opening, settings))
        await asyncio.shield(future)
        self._finish_opening(settings, future)  # the callback may run later than this, and the next caller needs it now

    def _finish_opening(self, settings: Settings, future: asyncio.Future[Client]) -> None:
        if self.opening.get(settings) is not future:
            return
        del self.opening[settings]
        if not future.cancelled() and future.exception() is None:
            self.opened[settings] = _OpenedClient(future.result())

    async def close(self, which: Iterable[Settings], *, used: bool = False) -> None:
        """Close those that have no users, or all of them if `used`."""
        for settings in list(which):
            client = self.opened.get(settings)
            if client is not None and (used or not client.users):
                del self.opened[settings]
                await self._close_client(client.client)


def _drop(lost: list[_LoopClients[Settings, Client]]) -> None:
    """Free connections whose loop was closed before them: without their loop they can't be closed properly."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        lost.clear()
        gc.collect()


_caches: weakref.WeakSet[ClientCache[Any, Any]] = weakref.WeakSet()


def _forget_all() -> None:
    for cache in list(_caches):
        cache.forget_after_fork()


os.register_at_fork(after_in_child=_forget_all)
