# SPDX-License-Identifier: Apache-2.0
"""The page while its files are loaded, if one of them does not come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.board.hands import board, shows
from tests.support.browser import MS, Wire, opened

pytestmark = pytest.mark.no_cover  # the page shows what other tests cover


@contextmanager
def without(browser: Browser, url: str, name: str) -> Iterator[Page]:
    """The page, of which one file does not come as long as the route is there."""
    with opened(browser, "about:blank") as page:
        page.route(f"**/{name}", lambda route: route.abort("connectionreset"))
        page.goto(url)
        yield page


def tries_again(page: Page) -> None:
    expect(page.get_by_role("status")).to_have_text("A part of this page is missing. Trying again…", timeout=MS)


@pytest.mark.parametrize("name", ["main.js", "timeline.js", "board.css"])
def test_a_file_that_did_not_come_is_loaded_again(browser: Browser, name: str) -> None:
    with board(browser) as (live, _), without(browser, live.url, name) as page:
        tries_again(page)
        page.unroute(f"**/{name}")
        shows(page, "0 runs now")
        expect(page.get_by_role("status")).to_be_empty()
        assert page.evaluate("getComputedStyle(document.body).margin") == "0px", "it has its style"


def test_it_waits_for_a_server_that_is_away(browser: Browser) -> None:
    with board(browser) as (live, _), Wire(live.port) as wire, opened(browser, "about:blank") as page:

        def cut(route: Route) -> None:
            wire.cut()
            route.abort("connectionreset")

        page.route("**/store.js", cut)
        with page.expect_event("requestfailed", lambda request: request.url == f"{wire.url}/"):
            page.goto(wire.url)
        tries_again(page)
        page.unroute("**/store.js")
        wire.mend()
        shows(page, "0 runs now")


def test_without_the_file_that_loads_the_others_it_says_what_to_do(browser: Browser) -> None:
    with board(browser) as (live, _), without(browser, live.url, "boot.js") as page:
        shows(page, "If this stays here, load the page again.")
        page.unroute("**/boot.js")
        page.reload()
        shows(page, "0 runs now")
        expect(page.get_by_text("Loading")).to_have_count(0)
