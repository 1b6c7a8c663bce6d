# SPDX-License-Identifier: Apache-2.0
"""Wakes listeners when something may have changed: one thread per store, while there are listeners.

A notification names its runs (`codec`), so that it costs other runs nothing. Rows are authoritative. Notifications are
hints: one may be lost, or be for nothing. The notice of a cancel has the run, its owner and the request, so that the
owner need not read the row. Every role that can connect to a Postgres can send a notification. So there a notice is
compared with the run's row first, and is not passed on if they differ. All listeners of a database are notified, also
those of other schemas. After each connect all listeners are told to look, because notifications may have been missed.
An exception in a callback is logged, and the thread goes on.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from sqlalchemy import Engine, select

from andon.core.shared.store import Asked, Changed, Look
from andon.errors import AndonError, describe
from andon.store.sql.codec import CHANGED, LOOK, LOOK_AT, dump_names, read_names, read_notice, read_request
from andon.store.sql.tables import Id

log = logging.getLogger(__name__)

CHANNEL = "andon"
POLL_SECONDS = 0.02
"""SQLite can't notify another process: its counter of changes is polled this often."""
PING_SECONDS = 3.0
"""A silent server is pinged this often."""
RECONNECT_SECONDS = (0.05, 1.0)
CLOSE_SECONDS = 6.0

Tell = Callable[[Iterable[str]], None]
Watch = Callable[[Any, "Stop", Tell], None]
"""Watches through a connection of the driver until it is stopped, and passes notifications on."""


class Stop:
    """Ends a thread, wherever it waits."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._reading, self._writing = socket.socketpair()

    def __call__(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        if not self._event.is_set():
            self._event.set()
            self._writing.close()  # wakes a select on the other end

    def wait(self, seconds: float) -> bool:
        return self._event.wait(seconds)

    def fileno(self) -> int:
        return self._reading.fileno()

    def close(self) -> None:
        self._reading.close()
        self._writing.close()


class Listener:
    """The answer of `listen`. After `close` it is not called any more, except by a call that has begun."""

    def __init__(self, hub: Hub, look: Look, changed: Changed | None, asked: Asked | None) -> None:
        self._hub, self._look, self._changed, self._asked = hub, look, changed or look, asked

    def tell(self, said: Iterable[str]) -> None:
        changed: dict[str, None] = {}
        for each in said:
            kind = each[:1]
            if kind in (CHANGED, LOOK_AT) and (names := read_names(each)) is not None:
                if kind == CHANGED:
                    changed.update(dict.fromkeys(names))
                elif names:
                    self._look(names)
            elif (notice := read_notice(each)) is None:
                self._look(())
            elif self._asked is None:
                self._look([notice[0]])
            else:
                self._asked(*notice)
                changed[notice[0]] = None
        if changed:
            self._changed(list(changed))

    def close(self) -> None:
        self._hub.remove(self)


class Hub:
    """The listeners, and the thread that calls them."""

    def __init__(self, watch: Watch, engine: Engine, open_database: weakref.WeakMethod[Callable[[], None]]) -> None:
        self._watch, self._engine, self._open = watch, engine, open_database
        self._lock = threading.Lock()
        self._listeners: dict[Listener, None] = {}
        self._stop: Stop | None = None
        self._thread: threading.Thread | None = None

    def listen(self, look: Look, changed: Changed | None = None, asked: Asked | None = None) -> Listener:
        listener = Listener(self, look, changed, asked)
        with self._lock:
            self._listeners[listener] = None
            if self._stop is None:
                self._stop = Stop()
                self._thread = threading.Thread(
                    target=self._serve, args=(self._stop,), name="andon-store-push", daemon=True
                )
                self._thread.start()
        return listener

    def remove(self, listener: Listener) -> None:
        with self._lock:
            self._listeners.pop(listener, None)
            if not self._listeners and self._stop is not None:
                self._stop.set()
                self._stop = None

    def close(self) -> None:
        """End all listening, and the thread."""
        with self._lock:
            self._listeners.clear()
            stop, thread, self._stop = self._stop, self._thread, None
            if stop is not None:
                stop.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_SECONDS)

    def tell(self, said: Iterable[str]) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            try:
                listener.tell(said)
            except Exception:
                log.exception("a callback that listens to the store failed")

    def _serve(self, stop: Stop) -> None:
        pause, told = RECONNECT_SECONDS[0], False
        while not stop():
            began = time.monotonic()
            try:
                self._connected(stop)
            except Exception as error:  # noqa: BLE001 - the boundary: this loop is the only one that tries again
                if not (told or stop()):
                    what = describe(error) if isinstance(error, AndonError) else type(error).__name__
                    log.warning("the store can't be watched for changes; trying again: %s", what)
                told = True
            if time.monotonic() - began > RECONNECT_SECONDS[1]:  # it had worked for a while
                pause, told = RECONNECT_SECONDS[0], False
            stop.wait(pause)
            pause = min(pause * 2, RECONNECT_SECONDS[1])
        stop.close()

    def _connected(self, stop: Stop) -> None:
        if (open_database := self._open()) is None:
            return
        open_database()
        del open_database  # else the thread would keep the store alive
        with self._engine.connect() as connection:
            connection.execute(select(1))  # fails after a restart of the server: then all idle connections are replaced
        borrowed = self._engine.raw_connection()
        try:
            self._watch(borrowed.driver_connection, stop, self.tell)
        finally:
            borrowed.invalidate()  # closed, so that no transaction gets a session that listens


def watch_file(driver: Any, stop: Stop, tell: Tell) -> None:
    """SQLite: any commit of another connection, in this process or another one, changes `data_version`. The
    notifications are in a table, of which only the last rows are kept.
    """
    seen, last = None, None
    while not stop():
        now = driver.execute("PRAGMA data_version").fetchone()
        if now != seen:
            seen = now
            news = driver.execute(_NEWS, (-1 if last is None else last,)).fetchall()
            if last is None or (news and news[0][0] != last + 1):  # the start, or some are deleted already
                tell([LOOK])
            elif news:
                tell([said for _, said in news])
            last = news[-1][0] if news else last or 0
        stop.wait(POLL_SECONDS)


_NEWS = "SELECT id, said FROM andon_news WHERE id > ? ORDER BY id"


def watch_server(driver: Any, stop: Stop, tell: Tell) -> None:
    """Postgres: NOTIFY arrives with the commit, or after it."""
    driver.autocommit = True
    driver.execute(f"LISTEN {CHANNEL}")
    tell([LOOK])
    with selectors.DefaultSelector() as selector:
        selector.register(driver.fileno(), selectors.EVENT_READ)
        selector.register(stop.fileno(), selectors.EVENT_READ)
        while not stop():
            # The ping uses libpq directly: the driver would consume notifications that arrive meanwhile.
            if not selector.select(PING_SECONDS) and driver.pgconn.exec_(b"SELECT 1").error_message:
                raise ConnectionError("the server is gone")
            driver.pgconn.consume_input()
            while came := _notified(driver):  # more may come while these are compared
                tell(compared(driver, came))


def _notified(driver: Any) -> list[str]:
    """The notifications that have arrived, each once, in their order."""
    came: dict[str, None] = {}
    while (notice := driver.pgconn.notifies()) is not None:
        came[notice.extra.decode(errors="replace")] = None
    return list(came)


def compared(driver: Any, said: list[str]) -> list[str]:
    """The same, but the notice of a cancel that is not in its run's row is replaced by a `LOOK_AT` of that run."""
    notices = {each: notice for each in said if (notice := read_notice(each)) is not None}
    if not notices:
        return said
    names = msgspec.json.encode([Id.encode(run_id) for run_id, _, _ in notices.values()])
    answer = driver.pgconn.exec_params(_ASKED, [names])  # with libpq, like the ping
    if answer.error_message:
        return [LOOK]
    rows = [(answer.get_value(n, 0), answer.get_value(n, 1)) for n in range(answer.ntuples)]
    known = {Id.decode(run_id.decode()): read_request(cancel) for run_id, cancel in rows}
    checked: list[str] = []
    for each in said:
        run_id, _, request = notices.get(each, (None, None, None))
        if run_id is None or known.get(run_id) == request:
            checked.append(each)
        else:
            checked += dump_names(LOOK_AT, [run_id])
    return checked


_ASKED = b"""
SELECT run_id, cancel FROM andon_runs
WHERE run_id IN (SELECT json_array_elements_text($1::json)) AND cancel IS NOT NULL
"""
