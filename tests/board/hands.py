# SPDX-License-Identifier: Apache-2.0
"""What a person does on the board, and what a person sees there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect

from andon import Agent, tool
from andon.models.scripted import Call, Say, ScriptedModel, Stall, Think
from tests.server.live import Live, serving
from tests.support import eventually, forever
from tests.support.browser import MS, opened
from tests.support.till import DELETE, Till

Text = str | re.Pattern[str]

MARKUP = "<img src=x onerror=alert(1)> & <b>bold</b>"


@tool
async def slow() -> str:
    await forever()


@tool
async def other() -> str:
    await forever()


def agents() -> list[Agent]:
    """Agents whose runs stay where they are until something is done to them."""
    both = [Call("slow", id="s"), Call("other", id="o")]
    helper = Agent("Helper", ScriptedModel(["Hm. ", Stall()]))
    return [
        Agent("Teller", ScriptedModel(then=[Think("Let me see."), f"Once {MARKUP}. ", Stall()])),
        Agent("Worker", ScriptedModel(both, then="Done."), tools=[slow, other]),
        Agent("Asker", ScriptedModel(DELETE, then="So be it."), tools=Till().tools),
        Agent("Going", ScriptedModel(["One. ", Stall()], "Two.", then="More.")),
        Agent("Parent", ScriptedModel(Call("helper", {"prompt": "look"}, id="c")), tools=[helper.as_tool()]),
        Agent("Writer", ScriptedModel(then=Say("word " * 400, pace=0.01))),
        Agent("Novelist", ScriptedModel(then=Say("word " * 20_000, pace=0.01))),
    ]


def start(live: Live, agent: str, run_id: str, **fields: Any) -> None:
    body = {"message": "Hello there", "run_id": run_id, "background": True, "stream": False, **fields}
    answer = live.client.post(f"/agents/{agent}/runs", json=body)
    assert answer.status_code == 202, answer.text


def status(live: Live, agent: str, run_id: str) -> str:
    return str(live.client.get(f"/agents/{agent}/runs/{run_id}").json()["status"])


def ends_as(live: Live, agent: str, run_id: str, wanted: str) -> None:
    """A run ends a moment after its last text."""
    eventually(lambda: status(live, agent, run_id) not in ("RUNNING", "CANCELLING"), every=0.05)
    assert status(live, agent, run_id) == wanted


@contextmanager
def board(browser: Browser, **settings: Any) -> Iterator[tuple[Live, Page]]:
    with serving(*agents(), **settings) as live, opened(browser, live.url) as page:
        yield live, page
        live.client.post("/runs/cancel", params={"all": "true", "wait": 30})


def press(page: Page | Locator, name: Text, *, exact: bool = True) -> None:
    page.get_by_role("button", name=name, exact=exact if isinstance(name, str) else None).first.click()


def shows(page: Page | Locator, text: Text) -> None:
    expect(page.get_by_text(text).first).to_be_visible(timeout=MS)


def shows_not(page: Page | Locator, text: Text) -> None:
    expect(page.get_by_text(text)).to_have_count(0, timeout=MS)


def row(page: Page, run_id: str) -> Locator:
    """The run's line in the list."""
    return page.get_by_role("listitem").filter(has=page.get_by_role("link", name=re.compile(rf"\b{run_id}\b"))).first


def open_run(page: Page, live: Live, agent: str, run_id: str) -> None:
    page.goto(f"{live.url}/?run={agent}/{run_id}")
    expect(page.get_by_role("heading", level=1, name=agent)).to_be_visible(timeout=MS)


def said(page: Page) -> str:
    region = page.get_by_role("region", name="Text")
    return (region.text_content() or "") if region.count() else ""


def check_accessible(page: Page) -> None:
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def check_fits(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), page.url
