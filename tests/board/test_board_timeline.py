# SPDX-License-Identifier: Apache-2.0
"""The time line of a run in a real browser: to scale, and with a word for each way in which a call can end."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from andon import Agent, Runtime, ToolContext, tool
from andon.core.events import ProgressView
from andon.core.states import ToolOutcome
from andon.models.scripted import Call, ScriptedModel
from andon.tools.base import internals_of
from andon.tools.shell import Shell
from tests.board.hands import open_run, press, shows, shows_not, slow, start
from tests.server.live import Live, serving
from tests.support import forever
from tests.support.browser import MS, opened

pytestmark = pytest.mark.no_cover  # the page shows what other tests cover

WORDS = {
    "quick": "finished",
    "broken": "failed",
    "unknown": "refused",
    "slow": "cut",
    "blocking": "abandoned, may still run",
    "paying": "undone",
    "later": "never started",
}
"""What the time line says of each call."""

EDGES = """element => {
  const [bar, track] = [element, element.parentElement].map(each => each.getBoundingClientRect())
  return [(bar.left - track.left) / track.width, (bar.right - track.left) / track.width]
}"""

SHAPE = """element => {
  const style = getComputedStyle(element)
  return [style.backgroundImage, style.borderStyle, style.rotate].join().replace(/rgb[^)]*\\)/g, "")
}"""
"""All of its looks but for the colours."""


@tool
async def quick() -> str:
    return "done"


@tool
async def broken() -> str:
    raise RuntimeError("it broke")


@tool
async def later() -> str:
    return "never comes to this"


async def refund() -> None:
    pass


@tool(on_cancel=refund)
async def paying() -> str:
    await forever()


@contextmanager
def working(browser: Browser) -> Iterator[tuple[Live, Page]]:
    released = threading.Event()

    @tool
    def blocking() -> str:
        released.wait()
        return "at last"

    first = [Call(name, id=name) for name in ("quick", "broken", "unknown")]
    second = [Call(name, id=name) for name in ("slow", "blocking", "paying")]
    runtime = Runtime(cut_seconds=0.05, abandon_seconds=0.1, child_seconds=0.1)
    worker = Agent(
        "Worker", ScriptedModel(first, second), tools=[quick, broken, slow, blocking, paying], runtime=runtime
    )
    turn = [Call("slow", id="slow"), Call("later", id="later")]
    one_by_one = Agent("One by one", ScriptedModel(turn), tools=[slow, later], parallel_tools=False, runtime=runtime)
    with serving(worker, one_by_one) as live, opened(browser, live.url) as page:
        try:
            yield live, page
        finally:
            released.set()
            live.client.post("/runs/cancel", params={"all": "true", "wait": 30})


def call_row(page: Page, name: str) -> Locator:
    return page.locator(".calls > li").filter(has=page.locator(".name", has_text=re.compile(f"^{name}$")))


def ends_as(page: Page, name: str) -> None:
    expect(call_row(page, name).locator(".words")).to_have_text(re.compile(f"(^|, ){WORDS[name]}$"), timeout=MS)


def test_each_way_to_end_has_its_word_and_its_shape(browser: Browser) -> None:
    assert len(WORDS) == len(ToolOutcome)
    shapes = set()
    with working(browser) as (live, page):
        start(live, "worker", "r1")
        open_run(page, live, "worker", "r1")
        for name in ("quick", "broken", "unknown"):
            ends_as(page, name)
        press(page, "Stop")
        shows(page, "Receipt")
        for name in WORDS:
            if name == "later":
                start(live, "one-by-one", "r2")
                open_run(page, live, "one-by-one", "r2")
                press(page, "Stop")
                shows(page, "Receipt")
            ends_as(page, name)
            shapes.add(call_row(page, name).locator(".bar").evaluate(SHAPE))
    assert len(shapes) == len(WORDS), "each has a shape of its own, whatever its colour"


def test_it_is_drawn_to_scale(browser: Browser) -> None:
    with working(browser) as (live, page):
        start(live, "worker", "r1")
        open_run(page, live, "worker", "r1")
        ends_as(page, "broken")
        shows(page, re.compile("^now at"))
        press(page, "Stop")
        shows(page, "Receipt")
        shows(page, re.compile("^ended at"))
        shows_not(page, re.compile("^now at"))
        with live.watch("/agents/worker/runs/r1/events") as events:
            told = [each.data for each in events]
        begin, end = told[0]["timestamp"], told[-1]["timestamp"]
        for name in ("quick", "slow"):
            times = [each["timestamp"] for each in told if each.get("tool", {}).get("tool_call_id") == name]
            left, right = call_row(page, name).locator(".bar").evaluate(EDGES)
            assert left == pytest.approx((times[0] - begin) / (end - begin), abs=0.01)
            assert right == pytest.approx((times[-1] - begin) / (end - begin), abs=0.01)


def test_a_call_opens_to_show_its_arguments_and_result(browser: Browser) -> None:
    with working(browser) as (live, page):
        start(live, "worker", "r1")
        open_run(page, live, "worker", "r1")
        ends_as(page, "broken")
        call_row(page, "broken").locator("summary").click()
        for text in ("Arguments", "Result"):
            expect(call_row(page, "broken").get_by_text(text, exact=True)).to_be_visible()
        expect(call_row(page, "broken")).to_contain_text("it broke")


def test_a_call_at_work_shows_its_progress_and_its_output(browser: Browser) -> None:
    @tool
    async def counting(ctx: ToolContext) -> str:
        internals_of(ctx).show_progress(ProgressView(3, 7, "reading"))
        await forever()

    calls = [Call("counting", id="c"), Call("shell", {"command": "echo seen; sleep 1000"}, id="s")]
    with (
        serving(Agent("Worker", ScriptedModel(calls), tools=[counting, Shell()])) as live,
        opened(browser, live.url) as page,
    ):
        start(live, "worker", "r1")
        open_run(page, live, "worker", "r1")
        for name, text in (("counting", "3 of 7: reading"), ("shell", "seen")):
            call_row(page, name).locator("summary").click()
            expect(call_row(page, name).get_by_text(text, exact=True)).to_be_visible(timeout=MS)
            expect(call_row(page, name).locator(".words")).to_have_text(re.compile("at work$"))
        press(page, "Stop")
        shows(page, "Receipt")
