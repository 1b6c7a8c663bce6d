# SPDX-License-Identifier: Apache-2.0
"""The page of one run in a real browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, expect

from tests.board.hands import MARKUP, board, ends_as, open_run, press, said, shows, start, status
from tests.support.browser import MS

pytestmark = pytest.mark.no_cover  # the page shows what other tests cover


def test_its_text_is_text_and_a_stop_ends_it(browser: Browser) -> None:
    with board(browser) as (live, page):
        start(live, "teller", "r1")
        open_run(page, live, "teller", "r1")
        shows(page, "Hello there")
        expect(page.get_by_role("region", name="Text")).to_have_text(f"Once {MARKUP}. ", timeout=MS)
        assert page.locator("main img, main b img").count() == 0
        page.get_by_text("Thoughts").first.click()
        shows(page, "Let me see.")
        press(page, "Stop")
        shows(page, "Receipt")
        shows(page, re.compile("Nothing is left over"))
        assert status(live, "teller", "r1") == "CANCELLED"


def test_one_call_is_stopped_and_the_run_goes_on(browser: Browser) -> None:
    with board(browser) as (live, page):
        start(live, "worker", "r1")
        open_run(page, live, "worker", "r1")
        press(page, "Stop call slow")
        expect(page.get_by_role("button", name="Stop call slow")).to_be_hidden(timeout=MS)
        expect(page.locator(".calls li").filter(has_text="slow")).to_contain_text("cut", timeout=MS)
        assert status(live, "worker", "r1") == "RUNNING"
        press(page, "Stop call other")
        shows(page, "Done.")
        ends_as(live, "worker", "r1", "COMPLETED")


def test_a_stop_after_its_tools(browser: Browser) -> None:
    with board(browser) as (live, page):
        start(live, "worker", "r1")
        open_run(page, live, "worker", "r1")
        press(page, "Stop after its tools")
        shows(page, re.compile("Stopping", re.IGNORECASE))
        assert status(live, "worker", "r1") == "CANCELLING"
        for name in ("slow", "other"):
            press(page, f"Stop call {name}")
        shows(page, "Receipt")
        assert status(live, "worker", "r1") == "CANCELLED"


def test_an_approval(browser: Browser) -> None:
    with board(browser) as (live, page):
        start(live, "asker", "r1")
        open_run(page, live, "asker", "r1")
        shows(page, "delete")
        shows(page, re.compile('"name": "all"'))
        press(page, "Approve")
        shows(page, "So be it.")
        ends_as(live, "asker", "r1", "COMPLETED")
        (call,) = live.client.get("/agents/asker/runs/r1").json()["tools"]
        assert call["result"] == "deleted all"


def test_a_refusal_with_a_reason(browser: Browser) -> None:
    with board(browser) as (live, page):
        start(live, "asker", "r1")
        open_run(page, live, "asker", "r1")
        page.get_by_label(re.compile("Reason")).fill("not today")
        press(page, "Refuse")
        shows(page, "So be it.")
        ends_as(live, "asker", "r1", "COMPLETED")
        (call,) = live.client.get("/agents/asker/runs/r1").json()["tools"]
        assert call["outcome"] == "refused"
        assert "not today" in call["result"]


def test_a_cancelled_run_is_continued(browser: Browser) -> None:
    with board(browser) as (live, page):
        start(live, "going", "r1", session_id="s")
        open_run(page, live, "going", "r1")
        expect(page.get_by_role("region", name="Text")).to_have_text("One. ", timeout=MS)
        press(page, "Stop")
        press(page, "Continue")
        shows(page, "Two.")
        page.get_by_role("link", name="The run that it continues").click()
        shows(page, "Receipt")


def test_a_cancelled_run_is_rolled_back(browser: Browser) -> None:
    with board(browser) as (live, page):
        start(live, "going", "r1", session_id="s")
        open_run(page, live, "going", "r1")
        expect(page.get_by_role("region", name="Text")).to_have_text("One. ", timeout=MS)
        press(page, "Stop")
        press(page, "Roll back")
        press(page.get_by_role("dialog"), "Roll back")
        shows(page, re.compile("Rolled back"))
        assert live.client.get("/agents/going/sessions/s").json()["messages"] == []


def test_talking_on(browser: Browser) -> None:
    with board(browser) as (live, page):
        start(live, "going", "r1", session_id="s")
        open_run(page, live, "going", "r1")
        page.get_by_label(re.compile("Say something")).fill("And then?")
        press(page, "Send")
        shows(page, re.compile("session 's' is busy|busy|already"))  # what the server answers is shown
        press(page, "Stop")
        shows(page, "Receipt")
        press(page, "Send")
        shows(page, "Two.")
        shows(page, "And then?")
        assert said(page) == "Two."


def test_the_runs_inside_it(browser: Browser) -> None:
    with board(browser) as (live, page):
        start(live, "parent", "r1")
        open_run(page, live, "parent", "r1")
        press(page, "Stop run r1.c of helper")
        expect(page.get_by_role("button", name="Stop run r1.c of helper")).to_be_hidden(timeout=MS)
        assert status(live, "helper", "r1.c") == "CANCELLED"
        page.get_by_role("link", name="helper").first.click()
        expect(page.get_by_role("heading", level=1, name="helper")).to_be_visible(timeout=MS)
        shows(page, "Hm.")


def test_a_run_that_is_not_there(browser: Browser) -> None:
    with board(browser) as (live, page):
        page.goto(f"{live.url}/?run=teller/nothing")
        shows(page, "agent 'teller' has no run 'nothing'")


def test_the_text_grows_and_is_whole(browser: Browser) -> None:
    with board(browser) as (live, page):
        start(live, "writer", "r1")
        open_run(page, live, "writer", "r1")
        shows(page, re.compile("word word"))
        page.reload()
        shows(page, re.compile("Completed", re.IGNORECASE))
        assert said(page) == "word " * 400
