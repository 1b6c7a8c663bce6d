# SPDX-License-Identifier: Apache-2.0
"""The board of a server that wants a token."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.board.hands import agents, check_accessible, check_fits, press, row, shows
from tests.server.live import Live
from tests.server.people import SECRETS, client_of, guarded
from tests.support.browser import MS, opened

pytestmark = pytest.mark.no_cover  # the page shows what other tests cover


@contextmanager
def locked(browser: Browser, query: str = "", **options: Any) -> Iterator[tuple[Live, Page]]:
    """A server with tokens, on which Ada and Bob have a run each."""
    with guarded(*agents()) as live:
        for name in ("ada", "bob"):
            with client_of(live, name) as client:
                body = {"message": "Hi", "run_id": f"of-{name}", "background": True, "stream": False}
                assert client.post("/agents/teller/runs", json=body).status_code == 202
        with opened(browser, f"{live.url}/{query}", **options) as page:
            yield live, page
        with client_of(live, "root") as client:
            client.post("/runs/cancel", params={"all": "true", "wait": 30})


def give(page: Page, token: str) -> None:
    page.get_by_role("dialog").get_by_label("Token").fill(token)
    press(page.get_by_role("dialog"), "Open the board")


def check_kept_nowhere(page: Page, secret: str) -> None:
    found = page.evaluate(
        "JSON.stringify([localStorage, sessionStorage, document.cookie, location.href, history.state])"
    )
    assert secret not in found
    assert secret not in str(page.context.storage_state())


def test_it_asks_for_a_token_and_keeps_it_to_itself(browser: Browser) -> None:
    with locked(browser) as (live, page):
        sent: list[str] = []
        page.on("request", lambda request: sent.append(request.url))
        give(page, "wrong")
        shows(page.get_by_role("dialog"), re.compile("does not accept this token"))
        give(page, SECRETS["root"])
        shows(page, "2 runs now")
        check_kept_nowhere(page, SECRETS["root"])
        press(page, "Stop run of-bob of teller")
        shows(row(page, "of-bob"), re.compile("stopped in"))
        page.get_by_role("link", name=re.compile("of-ada")).click()
        shows(page, "Once")
        assert not [url for url in sent if SECRETS["root"] in url or "wrong" in url]
        assert {url.split("/")[2] for url in sent} == {f"127.0.0.1:{live.port}"}, "nothing comes from elsewhere"
        page.reload()
        expect(page.get_by_role("dialog")).to_be_visible(timeout=MS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_the_question_for_it_is_accessible_and_fits(browser: Browser, scheme: str, width: int) -> None:
    size: Any = {"width": width, "height": 800}
    with locked(browser, viewport=size, color_scheme=scheme) as (_, page):
        expect(page.get_by_role("dialog")).to_be_visible(timeout=MS)
        check_accessible(page)
        check_fits(page)
        links, cord = (page.locator(part).bounding_box() for part in (".top nav", ".top .cord"))
        assert links is not None
        assert cord is not None
        assert links["x"] + links["width"] <= cord["x"], "the cord runs through no word"


def test_a_user_sees_what_is_their_own(browser: Browser) -> None:
    with locked(browser) as (_, page):
        give(page, SECRETS["ada"])
        shows(page, "1 run now")
        expect(row(page, "of-ada")).to_be_visible()
        assert "of-bob" not in page.content()
        press(page, re.compile("^Stop all"))
        shows(page.get_by_role("dialog"), "Stop 1 run")
        expect(page.get_by_role("dialog").get_by_role("checkbox")).to_have_count(0)
        press(page.get_by_role("dialog"), "Stop all")
        shows(row(page, "of-ada"), re.compile("stopped in"))


def test_a_run_of_another_user_is_not_there(browser: Browser) -> None:
    with locked(browser, "?run=teller/of-bob") as (_, page):
        give(page, SECRETS["ada"])
        shows(page, "agent 'teller' has no run 'of-bob'")
