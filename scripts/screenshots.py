# SPDX-License-Identifier: Apache-2.0
"""Take docs/img/board.png and docs/img/board-run.png: the board of `andon serve --demo`, in a real Chromium.

    python scripts/screenshots.py [FOLDER]

`make browser` installs the browser.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, expect, sync_playwright

FOLDER = Path(__file__).parent.parent / "docs" / "img"
WIDTH, HEIGHT = 1080, 720
MOST_MS = 60_000
# The demo, but its tools take longer than a slow machine needs for a picture.
DEMO = """
from andon.cli import demo_agents, main
demo_agents.SEARCH_SECONDS = demo_agents.ARCHIVE_SECONDS = 600.0
raise SystemExit(main(["serve", "--demo", "--port", "0", "--drain", "0"]))
"""

RUNS = [
    ("storyteller", "tide", "ada", "Tell me about the tide."),
    ("researcher", "letters", "grace", "letters that were never sent"),
    ("storyteller", "lamp", "grace", "Tell me about the lamp."),
    ("janitor", "tidy-up", "ada", "Tidy up my notes."),
    ("researcher", "maps", "ada", "maps of the coast"),
    ("storyteller", "harbour", "alan", "Tell me about the harbour."),
]
ENDED = [
    ("storyteller", "night", "alan", "Tell me about the night."),
    ("researcher", "ledger", "grace", "an old ledger"),
]


@contextmanager
def demo(folder: str) -> Iterator[str]:
    with subprocess.Popen([sys.executable, "-c", DEMO], cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        found = re.search(r"http://\S+$", server.stdout.readline().strip())
        if found is None:
            raise SystemExit("the demo did not start")
        try:
            yield found[0]
        finally:
            server.terminate()


def post(url: str, **fields: Any) -> None:
    request = urllib.request.Request(url, json.dumps(fields).encode(), {"content-type": "application/json"})
    urllib.request.urlopen(request).close()


def start(url: str, agent: str, run_id: str, user_id: str, message: str) -> None:
    fields = {"message": message, "run_id": run_id, "user_id": user_id, "background": True, "stream": False}
    post(f"{url}/agents/{agent}/runs", **fields)


def take(browser: Browser, url: str, folder: Path) -> None:
    expect.set_options(timeout=MOST_MS)
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light", device_scale_factor=1.5)
    page.set_default_timeout(MOST_MS)
    page.goto(url)
    for run in ENDED:
        start(url, *run)
    expect(page.get_by_text("in search, read_archive").first).to_be_visible()
    for agent, run_id, user_id, _ in ENDED:
        post(f"{url}/agents/{agent}/runs/{run_id}/cancel?wait=10", by=user_id)
    for run in RUNS:
        start(url, *run)
    for text in ("asks a person", "in search, read_archive", "ledger"):
        expect(page.get_by_text(text).first).to_be_visible()
    page.screenshot(path=folder / "board.png")

    page.get_by_role("link", name=re.compile("maps")).first.click()
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.get_by_text(re.compile("cancelled", re.IGNORECASE)).first).to_be_visible()
    page.evaluate("document.getElementById('announcer').replaceChildren()")  # what was just said covers a part
    page.screenshot(path=folder / "board-run.png", full_page=True)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    if (chromium := shutil.which("chromium")) is None:
        raise SystemExit("there is no chromium: `make browser` installs it")
    with tempfile.TemporaryDirectory() as empty, demo(empty) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        take(browser, url, folder)
        browser.close()


if __name__ == "__main__":
    main()
