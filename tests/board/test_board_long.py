# SPDX-License-Identifier: Apache-2.0
"""A board that stays open for long: it asks for no more than it needs, and keeps no more."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from andon import Runtime
from andon.server.board import stream
from tests.board.hands import agents, board, ends_as, open_run, press, row, said, shows, shows_not, start, status
from tests.board.test_board_access import give
from tests.server.live import Live
from tests.server.people import SECRETS, client_of, guarded
from tests.support import eventually
from tests.support.browser import MS, Wire, opened

pytestmark = pytest.mark.no_cover  # the page shows what other tests cover

HIDE = """hidden => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true })
  document.dispatchEvent(new Event("visibilitychange"))
}"""

BANNERS = """() => {
  window.banners = []
  const watched = document.getElementById("banner")
  new MutationObserver(() => window.banners.push(watched.textContent)).observe(watched, { childList: true })
}"""


@contextmanager
def forgetful(browser: Browser) -> Iterator[tuple[Live, Page]]:
    """A server that keeps no events of runs that have ended."""
    runtime = Runtime()
    runtime.keep_ended(0.0)
    with board(browser, runtime=runtime) as opened_board:
        yield opened_board


def test_a_run_whose_events_are_gone_is_read_once(browser: Browser) -> None:
    with forgetful(browser) as (live, page):
        start(live, "worker", "r1")
        live.client.post("/agents/worker/runs/r1/cancel?wait=30")
        eventually(lambda: live.client.get("/agents/worker/runs/r1/events").status_code == 410)
        with page.expect_response("**/agents/worker/runs/r1"):  # its text, which is what it asks for last
            open_run(page, live, "worker", "r1")
        shows(page, "Receipt")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        with opened(browser, live.url) as other:
            for number in range(3):  # the board changes again and again
                start(live, "teller", f"t{number}")
                shows(row(other, f"t{number}"), "writing")
        assert [url for url in asked if "/r1" in url] == []


def test_the_text_of_a_run_whose_events_are_gone_is_there_once(browser: Browser) -> None:
    with forgetful(browser) as (live, page):
        live.post("/agents/going/runs", message="Hi", run_id="r1", stream="false", timeout="0.1")
        eventually(lambda: live.client.get("/agents/going/runs/r1/events").status_code == 410)
        open_run(page, live, "going", "r1")
        expect(page.get_by_role("region", name="Text")).to_have_text("One. ", timeout=MS)
        start(live, "teller", "t")
        page.go_back()
        shows(row(page, "t"), "writing")
        page.go_forward()
        expect(page.get_by_role("region", name="Text")).to_have_text("One. ", timeout=MS)


def test_a_page_that_is_hidden_reads_nothing_and_comes_back_without_an_alarm(browser: Browser) -> None:
    with board(browser) as (live, page):
        start(live, "teller", "r1")
        shows(page, "1 run now")
        page.evaluate(BANNERS)
        with page.expect_event("requestfailed", predicate=lambda request: "board/events" in request.url):
            page.evaluate(HIDE, True)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        start(live, "teller", "r2")
        with opened(browser, live.url) as other:
            shows(row(other, "r2"), "writing")
        assert asked == []
        page.evaluate(HIDE, False)
        shows(page, "2 runs now")
        assert page.evaluate("window.banners") == []


def _refuse(secret: str) -> Callable[[Route], None]:
    def answer(route: Route) -> None:
        if secret in route.request.headers.get("authorization", ""):
            route.fulfill(status=401, json={"detail": "This token is not valid any more."})
        else:
            route.continue_()

    return answer


def test_another_users_token_shows_the_runs_of_that_user(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first token is not valid any more."""
    monkeypatch.setattr(stream, "LONGEST", 1.5)
    with guarded(*agents()) as live:
        for name in ("ada", "bob"):
            with client_of(live, name) as client:
                body = {"message": "Hi", "run_id": f"of-{name}", "background": True, "stream": False}
                assert client.post("/agents/teller/runs", json=body).status_code == 202
        with opened(browser, live.url) as page:
            give(page, SECRETS["ada"])
            shows(row(page, "of-ada"), "writing")
            page.route("**/board/events", _refuse(SECRETS["ada"]))
            expect(page.get_by_role("dialog")).to_be_visible(timeout=MS)
            give(page, SECRETS["bob"])
            shows(row(page, "of-bob"), "writing")
            shows_not(page, "of-ada")
            page.unroute_all(behavior="wait")
        with client_of(live, "root") as client:
            client.post("/runs/cancel", params={"all": "true", "wait": 30})


def test_a_run_that_is_opened_while_the_server_is_away_comes_with_it(browser: Browser) -> None:
    with board(browser) as (live, _), Wire(live.port) as wire, opened(browser, wire.url) as page:
        start(live, "teller", "r1")
        link = row(page, "r1").get_by_role("link")
        expect(link).to_be_visible(timeout=MS)
        wire.cut()
        expect(page.get_by_role("status")).to_contain_text("can't be reached", timeout=MS)
        link.click()
        expect(page.get_by_role("link", name=re.compile("r1"))).to_have_count(0, timeout=MS)
        wire.mend()
        shows(page, "Once")
        assert said(page).count("Once") == 1


def test_a_receipt_that_could_not_be_read_comes_with_the_server(browser: Browser) -> None:
    with board(browser) as (live, _), Wire(live.port) as wire:
        start(live, "teller", "r1")
        with opened(browser, f"{wire.url}/?run=teller/r1") as page:
            shows(page, "Once")
            lost = "**/board/runs/**"
            page.route(lost, lambda route: route.abort("connectionreset"))
            with page.expect_event("requestfailed", predicate=lambda request: "/board/runs/" in request.url):
                live.client.post("/agents/teller/runs/r1/cancel?wait=30")
            expect(page.get_by_role("heading", name="Receipt")).to_be_hidden()
            page.unroute(lost)
            wire.cut()
            expect(page.get_by_role("status")).to_contain_text("can't be reached", timeout=MS)
            wire.mend()
            shows(page, "Receipt")


def test_what_comes_for_a_page_that_was_left_is_not_shown(browser: Browser) -> None:
    with board(browser) as (live, page):
        held: list[Route] = []
        page.route("**/board/runs/**", lambda route: held.append(route))
        start(live, "teller", "r1")
        for leave in (page.go_back, lambda: page.get_by_role("link", name="Plots").click()):
            row(page, "r1").get_by_role("link").click()
            eventually(lambda: _one_more(page, held))
            leave()
            with page.expect_response("**/board/runs/**"):
                held.pop().fulfill(status=404, json={"detail": "it is not there"})
            page.evaluate("new Promise(requestAnimationFrame)")
            assert "it is not there" not in page.content()
        page.unroute_all(behavior="ignoreErrors")


def _one_more(page: Page, held: list[Route]) -> bool:
    page.evaluate("0")  # Playwright's events come while it is called
    return bool(held)


def test_a_stop_that_is_pressed_twice_is_sent_once(browser: Browser) -> None:
    with board(browser) as (live, page):
        start(live, "teller", "r1")
        open_run(page, live, "teller", "r1")
        shows(page, "Once")
        sent: list[str] = []
        page.on("request", lambda request: sent.append(request.url) if "/cancel" in request.url else None)
        page.get_by_role("button", name="Stop", exact=True).dblclick()
        shows(page, "Receipt")
        assert len(sent) == 1
        assert status(live, "teller", "r1") == "CANCELLED"


def test_a_stop_of_a_run_that_has_ended_meanwhile_says_so(browser: Browser) -> None:
    with board(browser) as (live, page):
        start(live, "asker", "r1")
        open_run(page, live, "asker", "r1")
        shows(page, "Approve")
        held: list[Route] = []
        page.route("**/cancel?**", lambda route: held.append(route))
        press(page, "Stop")
        eventually(lambda: _one_more(page, held))
        press(page, "Approve")
        shows(page, "So be it.")
        ends_as(live, "asker", "r1", "COMPLETED")
        held.pop().continue_()
        shows(page.locator("#announcer"), re.compile("completed"))
        assert status(live, "asker", "r1") == "COMPLETED"


def test_an_answer_whose_page_was_left_opens_no_stream(browser: Browser) -> None:
    with board(browser) as (live, page):
        start(live, "asker", "r1")
        open_run(page, live, "asker", "r1")
        held: list[Route] = []
        page.route("**/r1/continue", lambda route: held.append(route))
        press(page, "Approve")
        eventually(lambda: _one_more(page, held))
        page.get_by_role("link", name="Plots").click()
        shows(page, "Runs per minute")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        with page.expect_response("**/r1/continue"):
            held.pop().continue_()
        page.evaluate("new Promise(requestAnimationFrame)")
        assert [url for url in asked if "r1/events" in url] == []
