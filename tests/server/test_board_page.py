# SPDX-License-Identifier: Apache-2.0
"""The files of the board's page: who gets them, and what may be in them."""

from __future__ import annotations

import re
from importlib import resources

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from andon import Agent
from andon.models.scripted import ScriptedModel
from andon.server import create_app
from andon.server.board import page
from tests.server.live import serving, serving_app
from tests.server.people import guarded

FOLDER = resources.files("andon.server.board") / "page"
TEXTS = {each.name: each.read_text("utf-8") for each in FOLDER.iterdir()}
MOST_BYTES = 60_000


def agent() -> Agent:
    return Agent("Helper", ScriptedModel("Hi."))


def test_it_is_small_and_has_no_build() -> None:
    assert sum(len(text.encode()) for text in TEXTS.values()) < MOST_BYTES
    assert {name.rpartition(".")[2] for name in TEXTS} == {"html", "css", "js", "svg"}
    for name, text in TEXTS.items():
        assert max(map(len, text.splitlines())) <= 160, f"{name} is written for people"


def test_all_that_it_loads_is_here_and_is_relative() -> None:
    html = TEXTS["index.html"]
    loaded = {name for name in re.findall(r'(?:src|href)="([^"]*)"', html) if name[0] not in "#?."}
    assert {"board/boot.js", "board/board.css"} <= loaded
    assert {name.removeprefix("board/") for name in loaded} <= TEXTS.keys()
    for name, text in TEXTS.items():
        for imported in re.findall(r'(?:from |import |import\()"([^"]*)"', text):
            assert imported.removeprefix("./") in TEXTS, f"{name} imports {imported}"
    addresses = {each for text in TEXTS.values() for each in re.findall(r"https?://[^\s\"')]+", text)}
    assert addresses <= {"http://www.w3.org/2000/svg"}


def test_nothing_in_it_makes_markup_of_text_or_keeps_a_token() -> None:
    for name, text in TEXTS.items():
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert word not in text, f"{name}: {word}"
        for word in ("localStorage", "sessionStorage", "indexedDB", "document.cookie"):
            assert word not in text, f"{name}: {word}"
    html = TEXTS["index.html"]
    assert not re.search(r"<script(?![^>]*src=)", html)
    assert "<style" not in html
    assert not re.search(r'\s(style|on\w+)="', html)


def test_it_needs_no_token_and_the_rest_does() -> None:
    with guarded(agent()) as live:
        for name in TEXTS:
            path = "/" if name == "index.html" else f"/board/{name}"
            answer = live.client.get(path)
            assert answer.status_code == 200
            assert answer.text == TEXTS[name]
            policy = answer.headers["content-security-policy"].split("; ")
            assert {"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"} <= {
                *policy
            }
            assert not [rule for rule in policy if "unsafe" in rule or "http" in rule or "*" in rule]
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["content-type"].split(";")[0] == page._MEDIA[name.rpartition(".")[2]].split(";")[0]
            again = live.client.get(path, headers={"if-none-match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
        for path in ("/board/events", "/board/history", "/board/runs/helper/r", "/board/nothing.js"):
            assert live.client.get(path).status_code == 401


def test_it_reads_its_own_query() -> None:
    with serving(agent()) as live:
        assert live.client.get("/?agent=helper&status=RUNNING").status_code == 200
        assert live.client.get("/board/history?hour=1").status_code == 422


def test_a_page_of_another_site_gets_no_answer() -> None:
    with serving(agent()) as live:
        answer = live.client.get("/board/events", headers={"origin": "https://elsewhere.example"})
        assert answer.status_code == 403
        assert live.client.get("/", headers={"host": "elsewhere.example"}).status_code == 403


@pytest.mark.parametrize("path", ["/ai", "/ai/"])
def test_below_a_prefix(path: str) -> None:
    app = create_app([agent()], tokens=["secret"])
    with serving_app(Starlette(routes=[Mount("/ai", app)])) as live:  # type: ignore[arg-type]
        answer = live.client.get(path, follow_redirects=True)
        assert answer.text == TEXTS["index.html"]
        assert str(answer.url).endswith("/ai/"), "links in it are relative"
        assert live.client.get("/ai/board/main.js").status_code == 200
        assert live.client.get("/ai/board/events").status_code == 401
