# SPDX-License-Identifier: Apache-2.0
"""An event channel on Redis Streams (`core/shared/event_channel.py`): each run has a stream, for a short time.

A stream's entry has one row of text as the database has it (`store/sql/batches.py`). Streams are short, and expire by
themselves: what is older is in the database. A client that can write to this Redis can show text to readers of runs.

What must stay true: every stream expires. So an entry is never added to a stream that Redis has lost meanwhile, by a
restart for example: it would begin a new one, without an expiry.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

from andon.core.events import Event
from andon.core.fork import start_over_after_fork
from andon.core.shared.event_channel import ChannelError, Received, Text
from andon.errors import ConfigurationError, MissingExtraError
from andon.store.sql.batches import read_row, write_rows

try:
    import redis.asyncio
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import AuthenticationError, RedisError
except ImportError as error:
    raise MissingExtraError(f'events on Redis need its client: pip install "andon[redis]" ({error})') from None

log = logging.getLogger(__name__)

ENTRIES = 200
"""How many entries a stream has, roughly: five seconds of a run that always has new text."""

ENTRIES_AT_ONCE = 10_000
"""How many entries one `receive` reads, of all streams together; but at least one of each that has any. All that there
is of a thousand runs would take longer to read than a `receive` may take.
"""

EXPIRE_SECONDS = 120
BLOCK_MS = 5_000
"""How long Redis lets a `receive` wait."""

CONNECT_SECONDS = 1.0
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000}
"""An idle connection is not forgotten by a firewall. One whose packets are lost is closed, with what it has to send."""


class RedisEvents:
    """Events on Redis: `RedisEvents("redis://:password@host:6379/0")`; `rediss://` for TLS."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = _client(url)
        kwargs = self._client.connection_pool.connection_kwargs
        self.shown = f"redis://{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}/{kwargs.get('db', 0)}"
        self._space = ""
        self._wake_key, self._wake_place = b"andon:wake:" + os.urandom(8).hex().encode(), b"0-0"
        self._expires: dict[bytes, float] = {}
        """When the expiry of a stream is to be set again."""
        self._complained = False
        start_over_after_fork(self)

    def start_over(self) -> None:
        """In a forked child: the connections are the parent's, and closing them here would disturb it."""
        _of_parents.append(self._client)
        self._client = _client(self._url)

    def __repr__(self) -> str:
        return f"<RedisEvents {self.shown}>"

    async def open(self, space: str) -> None:
        self._space = space
        await self.interrupt()  # a Redis that is full, or a replica, answers a ping but takes nothing
        await self._read_two(self._client)

    async def check(self) -> None:
        """Raise `ConfigurationError` if this can't work, `ChannelError` if Redis can't be reached now."""
        client = _client(self._url)
        try:
            await self._read_two(client)
        except ChannelError as error:
            if isinstance(error.__cause__, AuthenticationError) or not _is_outage(error.__cause__):
                raise ConfigurationError(f"events can't go through {self.shown}: {error}") from None
            raise
        finally:
            await client.aclose()

    async def _read_two(self, client: redis.asyncio.Redis) -> None:
        """As `receive` does: a Redis Cluster has streams that can't be read together."""
        with _our_errors():
            await client.xread({self._wake_key: "0-0", self._key(""): "0-0"}, count=1)

    async def send(self, texts: Sequence[Text]) -> None:
        with _our_errors():
            try:
                if lost := await self._add(texts):
                    for run_id, *_ in lost:
                        self._expires.pop(self._key(run_id), None)
                    await self._add(lost)
            except BaseException:
                self._expires.clear()
                raise

    async def _add(self, texts: Sequence[Text]) -> list[Text]:
        """Add them to their streams. Returns those whose stream was expected, and is not there."""
        pipeline: Any = self._client.pipeline(transaction=False)
        now, of = time.monotonic(), list[int]()
        for number, (run_id, session_id, agent_id, events) in enumerate(texts):
            key = self._key(run_id)
            expires = now < self._expires.get(key, 0.0)
            for last, batch in write_rows(run_id, events):
                fields = {"n": last, "b": _encode(batch), "s": _encode(session_id), "a": _encode(agent_id)}
                pipeline.xadd(key, fields, maxlen=ENTRIES, approximate=True, nomkstream=expires)
                of.append(number)
            if not expires:
                pipeline.expire(key, EXPIRE_SECONDS)
                of.append(number)
                self._expires[key] = now + EXPIRE_SECONDS / 2
        if len(self._expires) > 10_000:
            self._expires = {key: at for key, at in self._expires.items() if at > now}
        answers = await pipeline.execute()
        return [texts[each] for each in sorted({n for n, answer in zip(of, answers, strict=True) if answer is None})]

    async def receive(self, places: Mapping[str, str | None]) -> list[Received]:
        keys = {self._key(run_id): run_id for run_id in places}
        streams: dict[Any, Any] = {key: places[run_id] or "0-0" for key, run_id in keys.items()}
        streams[self._wake_key] = self._wake_place
        count = max(1, ENTRIES_AT_ONCE // len(streams))
        with _our_errors():
            found: Any = await self._client.xread(streams, count=count, block=BLOCK_MS)
        answer: list[Received] = []
        for key, entries in found or ():
            place = entries[-1][0]
            if key == self._wake_key:
                self._wake_place = place
            else:
                texts = [self._read(keys[key], fields) for _, fields in entries]
                answer.append(Received(keys[key], place.decode(), [events for events in texts if events]))
        return answer

    async def interrupt(self) -> None:
        pipeline: Any = self._client.pipeline(transaction=False)
        pipeline.xadd(self._wake_key, {"w": ""}, maxlen=1, approximate=False)
        pipeline.expire(self._wake_key, EXPIRE_SECONDS)
        with _our_errors():
            await pipeline.execute()

    async def close(self) -> None:
        with contextlib.suppress(RedisError, OSError):
            await self._client.aclose()
        self._client = _client(self._url)  # a later call may come from another loop

    def _read(self, run_id: str, fields: Mapping[bytes, bytes]) -> list[Event]:
        """The events of an entry. One that can't be read was not written by this version: it is left out."""
        try:
            batch, session_id, agent_id = (fields[name].decode("utf-8", "surrogatepass") for name in (b"b", b"s", b"a"))
            return read_row(int(fields[b"n"]), batch, run_id, session_id, agent_id)
        except (KeyError, TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            if not self._complained:
                log.warning("text in %s can't be read, and comes from the database: %r", self.shown, error)
            self._complained = True
            return []

    def _key(self, run_id: str) -> bytes:
        return _encode(f"andon:text:{self._space[:16]}:{run_id}")


_of_parents: list[redis.asyncio.Redis] = []


def _client(url: str) -> redis.asyncio.Redis:
    address = urlsplit(url)
    if (number := address.path.strip("/")) and not number.isdecimal():
        raise ConfigurationError(f"the URL of the events ends with the number of a Redis database, and not {number!r}")
    settings: dict[str, Any] = {
        "socket_timeout": None,  # the caller sets the time of each call, and one call waits on purpose
        "socket_connect_timeout": CONNECT_SECONDS,
        "socket_keepalive": True,
        "socket_keepalive_options": {
            getattr(socket, name): value for name, value in _KEEPALIVE.items() if hasattr(socket, name)
        },
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "decode_responses": False,
    }
    if wrong := settings.keys() & dict(parse_qsl(address.query, keep_blank_values=True)):
        raise ConfigurationError(f"the URL of the events can't set {', '.join(sorted(wrong))}: leave it out")
    try:
        return redis.asyncio.Redis.from_url(url, **settings)
    except ValueError as error:
        raise ConfigurationError(f"the URL of the events is wrong: {error}") from None


def _encode(text: str) -> bytes:
    """Any text: an id may have a lone surrogate."""
    return text.encode("utf-8", "surrogatepass")


@contextlib.contextmanager
def _our_errors() -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError) as error:
        raise ChannelError(str(error) or type(error).__name__) from error


def _is_outage(error: BaseException | None) -> bool:
    """Can it be over by itself?"""
    return isinstance(error, OSError | redis.exceptions.ConnectionError | redis.exceptions.TimeoutError)
