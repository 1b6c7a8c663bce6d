# SPDX-License-Identifier: Apache-2.0
"""A real Chromium, and a network that can be cut."""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from playwright.sync_api import Error as PlaywrightError

from tests.support import HANG

MS = HANG * 1000


@contextmanager
def chromium() -> Iterator[Browser]:
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("there is no chromium: `make browser` installs it")
    expect.set_options(timeout=MS)
    with tempfile.TemporaryDirectory(prefix="andon-") as folder, sync_playwright() as playwright:
        environment: dict[str, str | float | bool] = {"HOME": folder, "TMPDIR": folder}
        launched = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"], env=environment)
        yield launched
        launched.close()


@contextmanager
def opened(browser: Browser, url: str, **options: Any) -> Iterator[Page]:
    """A page in a window of its own. A script that fails, or a breach of the page's policy, is a failure."""
    context = browser.new_context(**options)
    context.set_default_timeout(MS)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if "Content Security" in message.text else None)
    failed: list[str] = []
    page.on("requestfailed", lambda request: failed.append(f"{request.url}: {request.failure}"))
    try:
        page.goto(url)
        yield page
    except Exception as error:
        error.add_note(f"the page, as it was then: {_state(page)}; errors: {errors}; requests that failed: {failed}")
        raise
    finally:
        context.close()
    assert not errors


STATE = """() => new Promise(resolve => {
  const tell = drawn => resolve([document.visibilityState, document.readyState, drawn].join(", "))
  requestAnimationFrame(() => tell("drawn"))
  setTimeout(() => tell("not drawn within a second"), 1000)
})"""


def _state(page: Page) -> str:
    with suppress(PlaywrightError):  # it is closed, or its process is gone
        return str(page.evaluate(STATE))
    return "gone"


class Wire:
    """Stands between a browser and a server. It can be cut and mended, as a network is."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self._is_cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._is_cut:
                    client.close()
                    continue
                server = socket.create_connection(self._target)
                self._open |= {client, server}
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while part := source.recv(65536):
                target.sendall(part)
        self._end(source, target)

    def _end(self, *sockets: socket.socket) -> None:
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
            self._open.discard(each)

    def cut(self) -> None:
        self._is_cut = True
        self._end(*list(self._open))

    def mend(self) -> None:
        self._is_cut = False

    def close(self) -> None:
        self._end(self._listener)
        self.cut()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
