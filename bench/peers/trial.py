# SPDX-License-Identifier: Apache-2.0
"""One attempt: a prompt, its cancel at a moment, and the next prompt in the same conversation."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.peers.environments import QUIET, System
from bench.peers.lines import Lines, PeerError, speaking
from bench.peers.provider import KEY
from bench.peers.scripts import FIRST, NEXT, SPEAKS_AFTER
from bench.peers.situations import Situation

Json = dict[str, Any]

SETTLE = 0.2
"""Between the moment that a situation names and its cancel, so that the system waits where it is meant to wait."""
PATIENCE = SPEAKS_AFTER + 7
"""For the end of a run that was cancelled. All that the provider and the tools do has ended by then."""
LOADING = 120.0
PROVIDER = [sys.executable, "-m", "bench.peers.provider"]


class ColdError(PeerError):
    """Not even a first prompt works: no attempt can."""


@dataclass
class Stage:
    """A system's driver and the provider, with what they said when they were ready."""

    driver: Lines
    provider: Lines
    system: System
    urls: dict[str, str]
    ready: Json

    def open(self, now: str, tools: list[str], child: str | None = None, api: str = "openai") -> None:
        """A new conversation."""
        at = {"api": api, "base_url": self.urls[api], "api_key": KEY}
        delegate = self.ready["child_call"]
        self.provider.ask("play", now=now, child=child, api=api, delegate=delegate)
        self.driver.forget_events()
        self.driver.ask("open", at=at, tools=tools, child_tools=None if child is None else ["slow"])

    def prompt(self, text: str, patience: float = PATIENCE) -> Json:
        """A prompt that nobody cancels."""
        self.driver.ask("begin", text=text)
        return self.driver.ask("report", timeout=patience, patience=patience + 10)

    def warm_up(self, api: str = "openai") -> None:
        """A first prompt, after which everything is imported."""
        self.open("short", ["quick"], api=api)
        report = self.prompt(FIRST, LOADING)
        if report.get("told") != "completed":
            raise ColdError(f"a first prompt failed: {report.get('how', 'it did not end')}")


@contextlib.contextmanager
def staged(system: System) -> Iterator[Stage]:
    with speaking(PROVIDER) as provider, speaking(system.driver, QUIET) as driver:
        urls = provider.event("ready")["urls"]
        try:
            ready = driver.event("ready", patience=LOADING)
        except PeerError as error:
            raise ColdError(f"it does not start: {error}") from None
        yield Stage(driver, provider, system, urls, ready)


def attempt(stage: Stage, situation: Situation) -> Json:
    """What was seen in one situation."""
    stage.open(situation.now, list(situation.tools), situation.child, situation.api)
    beside = situation.moment.beside
    stage.driver.ask("begin", text=FIRST, cancel=beside == "before")
    if beside == "late":
        stage.driver.ask("report", timeout=PATIENCE, patience=PATIENCE + 10)
    if beside != "before":
        reach(stage, situation)
        stage.driver.ask("cancel", patience=PATIENCE)
    report = stage.driver.ask("report", timeout=PATIENCE, patience=PATIENCE + 20)
    if "ended" not in report:
        raise PeerError(f"the run did not end within {PATIENCE:.0f} s of its cancel")
    facts = stage.driver.ask("facts")
    return {**of_report(report, facts), **of_provider(stage, report)}


def reach(stage: Stage, situation: Situation) -> None:
    moment = situation.moment
    if moment.tool:
        stage.driver.event("tool", name=moment.tool)
    elif moment.state:
        wanted = {"state": moment.state, "pieces": moment.pieces, "model": moment.model}
        stage.provider.ask("wait", timeout=PATIENCE, patience=PATIENCE + 5, **wanted)
    time.sleep(SETTLE)


def of_report(report: Json, facts: Json) -> Json:
    asked, ended = report["asked"], report["ended"]
    # What began while the command was still on its way to the event loop, no cancel could keep from it.
    later = [call for call in facts["calls"] if call["began"] > report["answered"]]
    to_the_end = [call for call in facts["calls"] if not call["cut"] and (call["ended"] or ended + 1) > asked]
    return {
        "seconds": ended - asked,
        "told": report["told"],
        "how": report["how"],
        "answer": report.get("answer"),
        "blocked": report.get("blocked", 0.0),
        "started_after": len(later),
        "not_cut": len(to_the_end),
        "running": sum(call["ended"] is None or call["ended"] > ended for call in facts["calls"]),
        "left": facts["left"],
        "usage": facts["usage"],
    }


def of_provider(stage: Stage, report: Json) -> Json:
    """The next prompt, at once; and then what the provider knows of both."""
    asked = report["asked"]
    following = stage.prompt(NEXT)
    until = time.monotonic() + PATIENCE
    requests = finished_requests(stage, report["answered"], PATIENCE)
    mine = [each for each in requests if NEXT not in each["messages"]]
    after = [each for each in requests if NEXT in each["messages"]]
    ends = [each["left_at"] or each["finished_at"] or until for each in mine]
    return {
        "requests": len(mine),
        "closed": max([0.0, *(end - asked for end in ends)]),
        "hung_up": all(each["left_at"] or (each["finished_at"] or 0) < asked for each in mine),
        "tokens_after": sum(each["pieces_after"] for each in mine),
        **of_next(following, after),
    }


def finished_requests(stage: Stage, moment: float, patience: float) -> list[Json]:
    """All requests of this conversation, when nothing more is sent for any of them, or no patience is left.

    Each says what was sent after the moment.
    """
    until = time.monotonic() + patience
    while True:
        requests: list[Json] = stage.provider.ask("requests", asked=moment)["requests"]
        if all(each["over"] for each in requests) or time.monotonic() > until:
            return requests
        time.sleep(0.05)


def of_next(following: Json, after: list[Json]) -> Json:
    said = after[0]["messages"] if after else ""
    return {
        "next": following.get("told", "it did not end"),
        "next_how": following.get("how", ""),
        "rejected": any(each["rejected"] for each in after),
        "prompt_kept": FIRST in said,
        "text_kept": "word1 " in said,
        "result_kept": "found-7" in said,
    }
