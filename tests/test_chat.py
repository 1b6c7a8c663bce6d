# SPDX-License-Identifier: Apache-2.0
"""`examples/chat` as a user runs it, in a real Chromium; and the hook of docs/web.md, which is tested the same way.

The hook runs with a stand-in for React's `useState`, `useRef`, `useCallback` and `useEffect`, because React comes from
npm, which these tests don't need otherwise. Like React in its strict mode, the stand-in ends and begins each effect
once more.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from bench.network import network_at_rest
from tests.support import HANG, eventually
from tests.support.browser import MS, Wire, chromium, opened

pytestmark = pytest.mark.no_cover  # the page shows what other tests cover

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "web.md"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The example, as a program."""
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / "chat" / "main.py"), "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        told = ""
        while (found := re.search(r"running on http://127\.0\.0\.1:(\d+)", told)) is None:
            line = process.stderr.readline()
            assert line, told
            told += line
        rest: list[str] = []
        reader = threading.Thread(target=lambda: rest.extend(process.stderr or []), daemon=True)
        reader.start()
        try:
            yield int(found[1])
        finally:
            process.terminate()
            process.wait(HANG)
            reader.join(HANG)
        assert not [line for line in rest if "Traceback" in line or "WARNING" in line], "".join(rest)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@pytest.fixture(autouse=True)
def _network() -> Iterator[None]:
    with network_at_rest():
        yield


@pytest.fixture
def wire(port: int) -> Iterator[Wire]:
    made = Wire(port)
    yield made
    made.close()


@pytest.fixture
def page(browser: Browser, wire: Wire) -> Iterator[Page]:
    with opened(browser, wire.url) as made:
        is_free(made)
        yield made


def ask(page: Page, message: str, agent: str | None = None) -> None:
    if agent:
        page.get_by_label("Agent").select_option(agent)
    page.get_by_label("Message").fill(message)
    page.get_by_role("button", name="Send").click()


def stop(page: Page) -> None:
    page.get_by_role("button", name="Stop").click()


def shows(page: Page, text: str | re.Pattern[str], kind: str = "p") -> None:
    expect(page.locator(kind).filter(has_text=text).last).to_be_visible(timeout=MS)


def is_free(page: Page) -> None:
    """The page waits for the next message."""
    expect(page.get_by_role("button", name="Send")).to_be_enabled(timeout=MS)
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()


def kept(page: Page) -> dict[str, str]:
    found: dict[str, str] = page.evaluate("JSON.parse(sessionStorage.getItem('chat'))")
    return found


def state(page: Page, run: str, agent: str = "storyteller") -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{page.url}ai/agents/{agent}/runs/{run}", verify=False).json()
    return found


STOPPED = re.compile(r"Stopped in \d+\.\d ms, while streaming · left over: nothing")


def test_a_chat_is_stopped_and_goes_on(page: Page) -> None:
    ask(page, "Tell me about <img src=x> the sea.")
    shows(page, "On night 1", ".agent")
    shows(page, "Tell me about <img src=x> the sea.", ".user")
    run = kept(page)["run"]
    stop(page)
    shows(page, STOPPED, ".note")
    is_free(page)
    assert page.locator(".agent").text_content() == state(page, run)["content"]
    assert state(page, run)["receipt"]["reason"] == "the Stop button"
    assert page.locator("img").count() == 0
    ask(page, "And now?")
    shows(page, "Good to hear from you!", ".agent")
    is_free(page)
    assert page.locator(".user").count() == 2
    page.reload()
    shows(page, "Good to hear from you!", ".agent")
    assert page.locator(".user").count() == 2


def test_stop_works_before_the_first_byte(page: Page) -> None:
    """The request that starts the run is held back until the page has asked for the stop in vain."""
    held: list[Route] = []
    page.route("**/runs", lambda route: held.append(route))
    ask(page, "Tell me about the sea.")
    with page.expect_response("**/cancel?*") as refused:
        stop(page)
    assert refused.value.status == 404
    held[0].continue_()
    shows(page, re.compile(r"Stopped in \d+\.\d ms, while \w+ · left over: nothing"), ".note")
    is_free(page)


def test_what_was_cut_is_said(page: Page) -> None:
    ask(page, "Who drew the map?", "researcher")
    shows(page, "uses search", ".note")
    shows(page, "uses read_archive", ".note")
    stop(page)
    shows(page, "while tools · search: cut · read_archive: cut · left over: nothing", ".note")
    is_free(page)


@pytest.mark.parametrize(("button", "words"), [("Allow", "the three files are gone"), ("Refuse", "left the files")])
def test_a_question_is_answered(page: Page, button: str, words: str) -> None:
    ask(page, "Tidy up.", "janitor")
    shows(page, "notes-old.txt", ".note")
    page.reload()
    page.get_by_role("button", name=button).click()
    shows(page, words, ".agent")
    is_free(page)
    assert page.get_by_role("button", name=button).count() == 0
    assert page.locator(".user").count() == 1


def test_a_run_that_asks_is_stopped(page: Page) -> None:
    ask(page, "Tidy up.", "janitor")
    expect(page.get_by_role("button", name="Allow")).to_be_visible(timeout=MS)
    stop(page)
    shows(page, "while paused · delete_files: not started · left over: nothing", ".note")
    is_free(page)
    assert page.get_by_role("button", name="Allow").count() == 0


def test_a_page_that_is_reloaded_goes_on_with_the_run(page: Page) -> None:
    ask(page, "Tell me about the sea.")
    shows(page, "He counted the steps aloud", ".agent")
    run = kept(page)["run"]
    page.reload()
    shows(page, "The great lamp turned", ".agent")
    assert kept(page)["run"] == run
    stop(page)
    shows(page, STOPPED, ".note")
    assert page.locator(".agent").text_content() == state(page, run)["content"]
    assert page.locator(".user").all_inner_texts() == ["Tell me about the sea."]


def test_a_lost_connection_loses_and_doubles_nothing(page: Page, wire: Wire) -> None:
    ask(page, "Tell me about the sea.")
    shows(page, "On night 1", ".agent")
    for words in ("He counted the steps aloud", "The great lamp turned"):
        wire.cut()
        shows(page, "The connection is lost. Trying again…", ".note")
        wire.mend()
        shows(page, words, ".agent")
        expect(page.get_by_text("The connection is lost")).to_be_hidden()
    run = kept(page)["run"]
    stop(page)
    shows(page, STOPPED, ".note")
    assert page.locator(".agent").count() == 1
    assert page.locator(".agent").text_content() == state(page, run)["content"]


def test_a_start_that_was_lost_is_sent_again_and_makes_one_run(page: Page) -> None:
    """The first request reaches the server, and its answer is lost."""
    lost: list[Route] = []

    def lose(route: Route) -> None:
        lost.append(route)
        if len(lost) > 1:
            return route.continue_()
        headers = route.request.headers
        with httpx.stream("POST", route.request.url, content=route.request.post_data, headers=headers, verify=False):
            return route.abort()

    page.route("**/runs", lose)
    ask(page, "Tell me about the sea.")
    shows(page, "On night 1", ".agent")
    stop(page)
    shows(page, STOPPED, ".note")
    assert len(lost) == 2
    session = kept(page)["session"]
    runs = httpx.get(f"{page.url}ai/runs", params={"session_id": session}, verify=False).json()
    assert len(runs) == 1


def test_a_refusal_is_shown(page: Page) -> None:
    session = kept(page)["session"]
    busy = {"message": "Hi", "session_id": session, "background": True, "stream": False}
    run = httpx.post(f"{page.url}ai/agents/storyteller/runs", json=busy, verify=False).json()["run_id"]
    ask(page, "Tell me about the sea.")
    shows(page, re.compile("session .* busy|already has"), ".note")
    is_free(page)
    httpx.post(f"{page.url}ai/agents/storyteller/runs/{run}/cancel?wait=10", verify=False)


# -- the programs of the page -----------------------------------------------------------------------------------------

REACT = """
// As much of React as the hook uses: one component, whose hooks are told apart by their order.
let cells = [], at = 0, effects = [], waiting = false, mounted = null
const cell = (first) => cells[at++] ??= first()
const changed = (before, now) => !before || now.some((each, n) => !Object.is(each, before[n]))
export function useState(first) {
  const mine = cell(() => {
    const made = { value: first }
    made.set = (next) => {
      made.value = typeof next === "function" ? next(made.value) : next
      if (mounted && !waiting) { waiting = true; queueMicrotask(() => { waiting = false; mounted?.() }) }
    }
    return made
  })
  return [mine.value, mine.set]
}
export const useRef = (current) => cell(() => ({ current }))
export function useCallback(callback, inputs) {
  const mine = cell(() => ({}))
  if (changed(mine.inputs, inputs)) Object.assign(mine, { inputs, callback })
  return mine.callback
}
export function useEffect(effect, inputs) {
  const mine = cell(() => ({}))
  if (changed(mine.inputs, inputs)) effects.push(() => { mine.end?.(); mine.inputs = inputs; mine.end = effect() })
  mine.effect = effect
}
const endAll = () => cells.forEach((each) => each.end?.())
export function mount(component, show) {
  mounted = () => {
    at = 0
    const shown = component()
    effects.splice(0).forEach((run) => run())
    show(shown)
  }
  mounted()
  endAll()  // the strict mode: each effect is ended and begun once more
  cells.filter((each) => each.effect).forEach((each) => { each.end = each.effect() })
  return () => { mounted = null; endAll(); cells = [] }
}
"""

HOOK_PAGE = """<!doctype html><p id="text"></p><p id="status"></p><p id="asked"></p><button id="halt"></button>
<script type="importmap">{"imports": {"react": "./react.js"}}</script>
<script type="module">
import { mount } from "react"
import { useRun } from "./useRun.js"
import { ask } from "./ten.js"
window.ask = ask
window.open_ = (agent, sessionId) => {
  window.close_ = mount(() => useRun(agent, { sessionId }), (hook) => {
    window.hook = hook
    text.textContent = hook.text
    status_.textContent = [hook.status, hook.receipt?.phase, hook.error].filter(Boolean).join(" ")
  })
}
const text = document.querySelector("#text"), status_ = document.querySelector("#status")
window.ready = true
</script>"""


def programs_of_the_page() -> dict[str, str]:
    found = re.findall(r"^```js file=(\S+)\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return dict(found)


@pytest.fixture
def hook(browser: Browser, wire: Wire) -> Iterator[Page]:
    """A page on the example's server that has the programs."""
    files = {**programs_of_the_page(), "react.js": REACT, "index.html": HOOK_PAGE}

    def fulfil(route: Route) -> None:
        name = route.request.url.rpartition("/")[2] or "index.html"
        kind = "text/html" if name.endswith(".html") else "text/javascript"
        route.fulfill(body=files[name], content_type=f"{kind}; charset=utf-8")

    with opened(browser, "about:blank") as made:
        made.route("**/hook/**", fulfil)
        made.goto(f"{wire.url}/hook/")
        made.wait_for_function("window.ready")
        yield made


def is_now(page: Page, status: str, text: str = "") -> None:
    expect(page.locator("#status")).to_have_text(re.compile(f"^{status}"), timeout=MS)
    expect(page.locator("#text")).to_contain_text(text, timeout=MS)


def test_the_ten_lines(hook: Page) -> None:
    hook.evaluate("void ask('Tell me about the sea.', text, halt)")
    expect(hook.locator("#text")).to_contain_text("On night 1", timeout=MS)
    hook.evaluate("halt.click()")
    expect(hook.locator("#text")).to_contain_text("(stopped while streaming)", timeout=MS)
    hook.evaluate("text.textContent = ''; void ask('And now?', text, halt)")
    expect(hook.locator("#text")).to_have_text(re.compile("Good to hear from you!"), timeout=MS)


def run_state(page: Page, run: str, agent: str = "storyteller") -> dict[str, Any]:
    root = page.url.partition("/hook/")[0]
    found: dict[str, Any] = httpx.get(f"{root}/ai/agents/{agent}/runs/{run}", verify=False).json()
    return found


def open_hook(page: Page, session: str, agent: str = "storyteller") -> None:
    page.evaluate("([agent, session]) => open_(`/ai/agents/${agent}`, session)", [agent, session])
    is_now(page, "idle")


def test_the_hook_starts_stops_and_goes_on(hook: Page) -> None:
    open_hook(hook, "hook-1")
    hook.evaluate("void window.hook.start('Tell me about the sea.')")
    is_now(hook, "running", "On night 1")
    run = hook.evaluate("window.hook.runId")
    hook.evaluate("window.hook.stop()")
    is_now(hook, "stopped streaming")
    assert hook.locator("#text").text_content() == run_state(hook, run)["content"]
    hook.evaluate("window.hook.start('And now?')")
    is_now(hook, "completed", "Good to hear from you!")


def test_the_hook_survives_a_lost_connection(hook: Page, wire: Wire) -> None:
    open_hook(hook, "hook-2")
    hook.evaluate("void window.hook.start('Tell me about the sea.')")
    is_now(hook, "running", "On night 1")
    wire.cut()
    is_now(hook, "away")
    wire.mend()
    is_now(hook, "running", "He counted the steps aloud")
    hook.evaluate("window.hook.stop()")
    is_now(hook, "stopped")
    run = hook.evaluate("window.hook.runId")
    assert hook.locator("#text").text_content() == run_state(hook, run)["content"]


def test_the_run_goes_on_without_the_component(hook: Page) -> None:
    open_hook(hook, "hook-3")
    hook.evaluate("void window.hook.start('Tell me about the sea.')")
    is_now(hook, "running", "On night 1")
    run = hook.evaluate("window.hook.runId")
    hook.evaluate("close_()")
    shown = hook.locator("#text").text_content()
    assert shown is not None
    eventually(lambda: len(run_state(hook, run)["content"]) > len(shown))
    assert run_state(hook, run)["status"] == "RUNNING"
    assert hook.locator("#text").text_content() == shown
    open_hook(hook, "hook-3")
    hook.evaluate("run => void window.hook.follow(run)", run)
    is_now(hook, "running", "He counted the steps aloud")
    hook.evaluate("window.hook.stop()")
    is_now(hook, "stopped")


def test_the_hook_is_told_an_end_that_has_no_event(hook: Page) -> None:
    """The run's server was lost with events that this page had read."""
    root = hook.url.partition("/hook/")[0]
    said = {"message": "Tell me about the sea.", "session_id": "hook-6", "stream": False, "background": True}
    run = httpx.post(f"{root}/ai/agents/storyteller/runs", json=said, verify=False).json()["run_id"]
    httpx.post(f"{root}/ai/agents/storyteller/runs/{run}/cancel?wait=10", verify=False)
    hook.route(f"**/runs/{run}/events", lambda route: route.fulfill(status=204))
    open_hook(hook, "hook-6")
    hook.evaluate("run => void window.hook.follow(run)", run)
    is_now(hook, "stopped")


def test_the_hook_asks_a_person(hook: Page) -> None:
    open_hook(hook, "hook-4", "janitor")
    hook.evaluate("void window.hook.start('Tidy up.')")
    is_now(hook, "paused")
    (question,) = hook.evaluate("window.hook.questions")
    assert question["approval"] is True
    hook.evaluate("id => void window.hook.answer({ [id]: true })", question["id"])
    is_now(hook, "completed", "the three files are gone")


def test_the_hook_says_what_was_refused(hook: Page) -> None:
    open_hook(hook, "hook-5")
    root = hook.url.partition("/hook/")[0]
    busy = {"message": "Hi", "session_id": "hook-5", "background": True, "stream": False}
    run = httpx.post(f"{root}/ai/agents/storyteller/runs", json=busy, verify=False).json()["run_id"]
    hook.evaluate("window.hook.start('Tell me about the sea.')")
    is_now(hook, "failed session .*")
    hook.evaluate("window.hook.stop()")  # there is nothing to stop, and it returns
    httpx.post(f"{root}/ai/agents/storyteller/runs/{run}/cancel?wait=10", verify=False)
