# SPDX-License-Identifier: Apache-2.0
"""The cache of clients: one per event loop and settings, opened once in a thread, closed on its own loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from andon.models.common.clients import ClientCache
from tests.support import Flag, Worker, play, until


class Client:
    """A client of no SDK: it knows the thread that opened it and the loop that closed it."""

    def __init__(self, settings: str) -> None:
        self.settings = settings
        self.opened_in = threading.get_ident()
        self.closed_on: asyncio.AbstractEventLoop | None = None

    async def close(self) -> None:
        assert self.closed_on is None, "it was closed twice"
        self.closed_on = asyncio.get_running_loop()


class User:
    """Stands for a model."""


class Opening:
    """Opens clients, and remembers them."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.opened: list[Client] = []
        self._before = before
        self.cache: ClientCache[str, Client] = ClientCache(self._open, Client.close)

    def _open(self, settings: str) -> Client:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        self._before()
        self.opened.append(Client(settings))
        return self.opened[-1]


def test_users_with_the_same_settings_share_a_client_and_the_last_one_closes_it() -> None:
    async def main() -> None:
        opening, first, second = Opening(), User(), User()
        cache = opening.cache
        clients = await asyncio.gather(*(cache.get("a", user) for user in (first, second) * 10))
        assert set(clients) == set(opening.opened)
        assert len(opening.opened) == 1
        assert opening.opened[0].opened_in != threading.get_ident()
        assert await cache.get("b", second) is not opening.opened[0]
        await cache.release("a", first)
        assert opening.opened[0].closed_on is None
        await cache.release("a", second)
        assert opening.opened[0].closed_on is asyncio.get_running_loop()
        await cache.release("a", second)  # once more does nothing
        assert (await cache.get("a", first)) is opening.opened[2]

    play(main)


def test_release_without_a_client_does_nothing() -> None:
    async def main() -> None:
        await Opening().cache.release("a", User())

    play(main)


def test_a_client_whose_users_are_garbage_is_closed_by_the_next_get() -> None:
    async def main() -> None:
        opening, stays = Opening(), User()
        await opening.cache.get("a", stays)
        await opening.cache.get("b", User())
        gc.collect()
        await opening.cache.get("c", stays)
        assert [client.closed_on is not None for client in opening.opened] == [False, True, False]

    play(main)


def test_each_loop_has_its_own_clients_and_closes_them_at_its_end() -> None:
    opening, user = Opening(), User()
    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        await opening.cache.get("a", user)
        assert opening.cache.loops >= 1

    for _ in range(3):
        asyncio.run(main())
    Worker(lambda: asyncio.run(main())).done()
    assert [client.closed_on for client in opening.opened] == loops
    assert opening.cache.loops == 0


def test_a_loop_that_was_closed_without_closing_its_clients_is_forgotten() -> None:
    opening, user = Opening(), User()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(opening.cache.get("a", user))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    assert opening.cache.loops == 1
    asyncio.run(_get(opening, user))
    assert opening.cache.loops == 0
    assert [client.closed_on is None for client in opening.opened] == [True, False]


async def _get(opening: Opening, user: User) -> Client:
    return await opening.cache.get("a", user)


def test_a_client_that_can_not_be_opened_is_tried_anew() -> None:
    async def main() -> None:
        failures = [OSError("no certificates")]

        def before() -> None:
            if failures:
                raise failures.pop()

        opening, user = Opening(before), User()
        with pytest.raises(OSError, match="no certificates"):
            await opening.cache.get("a", user)
        assert await opening.cache.get("a", user) is opening.opened[0]

    play(main)


def test_a_cancelled_caller_leaves_the_opening_to_the_others() -> None:
    async def main() -> None:
        entered, go_on = Flag(), Flag()

        def before() -> None:
            entered.set()
            go_on.wait()

        opening, user = Opening(before), User()
        cancelled, waiting = (asyncio.ensure_future(opening.cache.get("a", user)) for _ in range(2))
        await entered.arrived()
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        go_on.set()
        assert await waiting is opening.opened[0]
        assert len(opening.opened) == 1

    play(main)


def test_a_caller_at_the_moment_when_a_client_is_open_gets_it_at_once() -> None:
    """The future is done, and its callback has not run yet: no reason to wait, or to try again for ever."""

    class Executor(concurrent.futures.ThreadPoolExecutor):
        """Its one result is given by the test."""

        is_asked = False
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def submit(self, *_: Any, **__: Any) -> concurrent.futures.Future[Any]:
            self.is_asked = True
            return self.future

    async def main() -> None:
        loop, opening, client = asyncio.get_running_loop(), Opening(), Client("a")
        users = [User(), User()]
        loop.set_default_executor(executor := Executor())
        first = asyncio.ensure_future(opening.cache.get("a", users[0]))
        await until(lambda: executor.is_asked)
        got: list[object] = []

        def second() -> None:
            """In the turn of the loop in which the future becomes done, before its callbacks."""
            try:
                opening.cache.get("a", users[1]).send(None)
            except StopIteration as end:
                got.append(end.value)

        executor.future.set_result(client)
        loop.call_soon(second)
        assert await first is client
        assert got == [client]

    play(main)


def test_a_forked_child_neither_uses_nor_closes_the_clients_of_its_parent() -> None:
    program = """
import asyncio, os
from andon.models.common.clients import ClientCache

closed = []
async def close(client): closed.append(client)
cache = ClientCache(lambda settings: object(), close)
class User: pass
user = User()

async def main():
    client = await cache.get("a", user)
    await asyncio.get_running_loop().shutdown_default_executor()  # no threads while it forks
    child = os.fork()
    if child == 0:
        os._exit(0 if cache.loops == 0 and not closed else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cache.loops == 1

asyncio.run(main())
assert len(closed) == 1
"""
    subprocess.run([sys.executable, "-c", program], check=True)
