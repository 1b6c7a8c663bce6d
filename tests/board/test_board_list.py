# SPDX-License-Identifier: Apache-2.0
"""The list of runs in a real browser."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.board.hands import board, check_accessible, check_fits, press, row, shows, shows_not, start, status
from tests.support.browser import MS, Wire, opened

pytestmark = pytest.mark.no_cover  # the page shows what other tests cover


def test_a_run_comes_is_stopped_and_says_how_it_ended(browser: Browser) -> None:
    with board(browser) as (live, page):
        shows(page, "0 runs now")
        start(live, "worker", "r1", user_id="ada")
        line = row(page, "r1")
        shows(line, "in slow, other")
        shows(line, "ada")
        press(page, "Stop run r1 of worker")
        shows(row(page, "r1"), re.compile(r"stopped in .* cut slow, other"))
        assert status(live, "worker", "r1") == "CANCELLED"
        expect(page.get_by_role("button", name="Stop run r1 of worker")).to_be_hidden()


def test_a_run_is_started_on_the_page(browser: Browser) -> None:
    with board(browser) as (_, page):
        form = page.locator("details", has_text="Start a run")
        form.get_by_label("Agent").select_option("teller")
        form.get_by_label("Message").fill("Tell me")
        press(form, "Start")
        expect(page.get_by_role("heading", level=1, name="teller")).to_be_visible(timeout=MS)
        shows(page, "Once")
        page.go_back()
        shows(page, "1 run now")


def test_its_title_says_what_it_shows(browser: Browser) -> None:
    with board(browser) as (live, page):
        start(live, "teller", "r1")
        row(page, "r1").get_by_role("link").click()
        expect(page).to_have_title("teller · r1 · Andon", timeout=MS)
        page.get_by_role("link", name="Plots").click()
        expect(page).to_have_title("Plots · Andon", timeout=MS)
        page.get_by_role("link", name="Now").click()
        expect(page).to_have_title("Andon", timeout=MS)


def test_filters_are_in_the_address(browser: Browser) -> None:
    with board(browser) as (live, page):
        start(live, "teller", "r1", user_id="ada")
        start(live, "going", "r2", user_id="bob")
        shows(page, "2 runs now")
        page.get_by_role("search").get_by_label("Agent").select_option("going")
        shows(page, "1 run now")
        assert "agent=going" in page.url
        expect(row(page, "r1")).to_be_hidden()
        with opened(browser, page.url) as colleague:
            shows(colleague, "1 run now")
            expect(row(colleague, "r2")).to_be_visible()
        page.go_back()
        shows(page, "2 runs now")
        page.get_by_label("Search").fill("r1")
        page.keyboard.press("Enter")
        shows(page, "1 run now")
        expect(row(page, "r1")).to_be_visible()


def test_stop_all_asks_first_and_can_block(browser: Browser) -> None:
    with board(browser) as (live, page):
        for number in range(3):
            start(live, "teller", f"t{number}")
        start(live, "going", "g")
        shows(page, "4 runs now")
        press(page, re.compile("^Stop all"))
        shows(page.get_by_role("dialog"), "Stop 4 runs")
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_be_hidden()
        assert status(live, "teller", "t0") == "RUNNING"

        page.get_by_role("search").get_by_label("Agent").select_option("teller")
        press(page, re.compile("^Stop all"))
        dialog = page.get_by_role("dialog")
        shows(dialog, "Stop 3 runs of agent teller")
        check_accessible(page)
        dialog.get_by_role("checkbox").check()
        press(dialog, "Stop all")
        shows(page, "3 runs stopped")
        shows(page, "agent teller is blocked")
        assert status(live, "going", "g") == "RUNNING"
        refused = live.client.post("/agents/teller/runs", data={"message": "Hi"})
        assert refused.status_code == 403
        press(page, "Unblock agent teller")
        shows_not(page, "agent teller is blocked")
        start(live, "teller", "again")


def test_two_windows_see_the_same(browser: Browser) -> None:
    with board(browser) as (live, page), opened(browser, live.url) as second:
        start(live, "teller", "r1")
        for window in (page, second):
            shows(window, "1 run now")
        press(page, "Stop run r1 of teller")
        for window in (page, second):
            shows(row(window, "r1"), re.compile("stopped in"))
            shows(window, "0 runs now")


def test_a_thousand_runs(browser: Browser) -> None:
    with board(browser, max_runs=2_000, max_user_runs=2_000) as (live, page):
        with ThreadPoolExecutor(20) as pool:
            list(pool.map(lambda number: start(live, "teller", f"r{number}"), range(1_000)))
        shows(page, "1,000 runs now")
        page.get_by_label("Search").fill("r777")
        page.keyboard.press("Enter")
        shows(page, "1 run now")
        press(page, "Stop run r777 of teller")
        shows(row(page, "r777"), re.compile("stopped in"))
        page.get_by_label("Search").fill("")
        page.keyboard.press("Enter")
        shows(page, "999 runs now")


def test_by_keyboard_alone(browser: Browser) -> None:
    with board(browser) as (live, page):
        start(live, "teller", "r1")
        stop = page.get_by_role("button", name="Stop run r1 of teller")
        expect(stop).to_be_visible(timeout=MS)
        for _ in range(60):
            page.keyboard.press("Tab")
            if stop.evaluate("element => element === document.activeElement"):
                break
        page.keyboard.press("Enter")
        shows(row(page, "r1"), re.compile("stopped in"))
        assert page.evaluate("document.activeElement !== document.body"), "the focus is not lost"


VIEWS = {
    "": "in slow, other",
    "?run=worker/r2": "slow",
    "?run=asker/r3": "Approve",
    "?run=going/r4": "Receipt",
    "?plots": "Cancels per minute, by cause",
}
"""Each view, and a text that says that it is complete."""


DIALOGS = {"": "Stop all", "?run=going/r4": "Roll back"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_it_is_accessible_and_fits(browser: Browser, scheme: str, width: int) -> None:
    with board(browser) as (live, _):
        start(live, "teller", "r1", user_id="ada")
        start(live, "worker", "r2")
        start(live, "asker", "r3")
        start(live, "going", "r4")
        live.client.post("/agents/going/runs/r4/cancel?wait=30")
        options: Any = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
        for query, text in VIEWS.items():
            with opened(browser, f"{live.url}/{query}", **options) as page:
                shows(page, text)
                for summary in page.locator("summary:visible").all():
                    summary.click()
                check_accessible(page)
                check_fits(page)
                if ask := DIALOGS.get(query):
                    press(page, re.compile(f"^{ask}"))
                    expect(page.get_by_role("dialog")).to_be_visible()
                    check_accessible(page)
                    check_fits(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_it_is_accessible_and_fits_while_the_server_is_away(browser: Browser, scheme: str, width: int) -> None:
    options: Any = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    with board(browser) as (live, _), Wire(live.port) as wire, opened(browser, wire.url, **options) as page:
        start(live, "teller", "r1")
        shows(page, "1 run now")
        wire.cut()
        expect(page.get_by_role("status")).to_contain_text("can't be reached", timeout=MS)
        check_accessible(page)
        check_fits(page)


def test_the_plots(browser: Browser) -> None:
    with board(browser) as (live, page):
        start(live, "teller", "r1")
        live.client.post("/agents/teller/runs/r1/cancel?wait=30")
        live.post("/agents/going/runs", message="Hi", run_id="r2", stream="false", timeout="0.1")
        page.get_by_role("link", name="Plots").click()
        shows(page, "Cancels per minute, by cause")
        table = page.locator("figure", has_text="Cancels per minute, by cause")
        table.get_by_text("Table").click()
        for cause in ("user", "deadline"):
            expect(table.get_by_role("columnheader", name=cause)).to_be_visible(timeout=MS)
        shows(page, re.compile("cancels 2; .* Half of them took at most"))
        page.get_by_role("combobox").select_option("6")
        shows(page, re.compile("cancels 2; .* Half of them took at most"))
