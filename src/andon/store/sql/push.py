# SPDX-License-Identifier: Apache-2.0
"""Who is woken when something may have changed: one thread per store, while somebody listens.

A wake-up says "look", so one may be lost or be for nothing, and nothing is lost with it. One of Postgres' may say more:
which run was asked to stop, whose it is, and how; it comes with the commit, so it says what the row does, and who holds
the run need not look. All who listen to a database are told, also where its schemas keep them apart. Every time the
thread has connected it wakes everybody, because of what may have happened meanwhile. Callbacks never break it.
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

from sqlalchemy import Engine, select

from andon.core.shared import Asked, Wake
from andon.errors import AndonError, describe
from andon.store.sql.codec import read_notice

log = logging.getLogger("andon")

CHANNEL = "andon"
LOOK, PROGRESS = "", "progress"
"""What is said on the channel: that something has changed; that runs have made progress, and nothing else. What else is
said is a notice of a cancel.
"""
POLL_SECONDS = 0.02
"""SQLite has no way to tell another process: its counter of changes is looked at this often."""
PING_SECONDS = 3.0
"""So often a silent server is asked whether it is there; and then everybody looks, as a safety net."""
RECONNECT_SECONDS = (0.05, 1.0)
CLOSE_SECONDS = 6.0

Tell = Callable[[Iterable[str]], None]
Watch = Callable[[Any, "Stop", Tell], None]
"""Watches by a connection of the driver, until it is stopped, and tells what was said."""


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
            self._writing.close()  # whoever selects on the other end is woken

    def wait(self, seconds: float) -> bool:
        return self._event.wait(seconds)

    def fileno(self) -> int:
        return self._reading.fileno()

    def close(self) -> None:
        self._reading.close()
        self._writing.close()


class Listener:
    """What `listen` gives: close it to be woken no more, except by a call that is on its way."""

    def __init__(self, hub: Hub, wake: Wake, progress: Wake | None, asked: Asked | None) -> None:
        self._hub, self._wake, self._progress, self._asked = hub, wake, progress or wake, asked

    def tell(self, said: Iterable[str]) -> None:
        looks = False
        for each in said:
            if each == PROGRESS:
                continue
            if self._asked is None or (notice := read_notice(each)) is None:
                looks = True
            else:
                self._asked(*notice)
        (self._wake if looks else self._progress)()

    def close(self) -> None:
        self._hub.remove(self)


class Hub:
    """Those who listen, and the thread that wakes them."""

    def __init__(self, watch: Watch, engine: Engine, open_database: weakref.WeakMethod[Wake]) -> None:
        self._watch, self._engine, self._open = watch, engine, open_database
        self._lock = threading.Lock()
        self._listeners: dict[Listener, None] = {}
        self._stop: Stop | None = None
        self._thread: threading.Thread | None = None

    def listen(self, wake: Wake, progress: Wake | None = None, asked: Asked | None = None) -> Listener:
        listener = Listener(self, wake, progress, asked)
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
        """Nobody is woken any more, and the thread is gone."""
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
            except Exception as error:  # noqa: BLE001 - the boundary: nobody else would try again
                if not (told or stop()):
                    what = describe(error) if isinstance(error, AndonError) else type(error).__name__
                    log.warning("the store can't be watched for changes; it is tried again: %s", what)
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
        del open_database  # or the thread would keep the store alive
        with self._engine.connect() as connection:
            connection.execute(select(1))  # fails if the server was restarted, and then all that are idle are renewed
        borrowed = self._engine.raw_connection()
        driver: Any = borrowed.driver_connection
        borrowed.detach()  # it never goes back among those that transactions use
        try:
            self._watch(driver, stop, self.tell)
        finally:
            driver.close()


def watch_file(driver: Any, stop: Stop, tell: Tell) -> None:
    """SQLite: any commit of another connection, in this process or another one, changes `data_version`. What it was,
    nobody knows.
    """
    seen = None
    while not stop():
        now = driver.execute("PRAGMA data_version").fetchone()
        if now != seen:
            seen = now
            tell([LOOK])
        stop.wait(POLL_SECONDS)


def watch_server(driver: Any, stop: Stop, tell: Tell) -> None:
    """Postgres: NOTIFY comes with the commit, or after it."""
    driver.autocommit = True
    driver.execute(f"LISTEN {CHANNEL}")
    tell([LOOK])
    with selectors.DefaultSelector() as selector:
        selector.register(driver.fileno(), selectors.EVENT_READ)
        selector.register(stop.fileno(), selectors.EVENT_READ)
        while not stop():
            if not selector.select(PING_SECONDS):
                driver.execute("SELECT 1")
                tell([LOOK])
                continue
            driver.pgconn.consume_input()
            came: dict[str, None] = {}  # each once, in the order in which it was said
            while (notice := driver.pgconn.notifies()) is not None:
                came[notice.extra.decode(errors="replace")] = None
            if came:
                tell(came)
