# SPDX-License-Identifier: Apache-2.0
"""What is measured of a system without HTTP, in pieces that are recorded one by one."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.peers.environments import System
from bench.peers.lines import PeerError
from bench.peers.scripts import FAST, FIRST, NEXT
from bench.peers.situations import SITUATIONS, Situation
from bench.peers.trial import PATIENCE, ColdError, Stage, attempt, finished_requests, of_next, of_report, staged

Json = dict[str, Any]
Step = Callable[[int, int], None]
"""Told how many of how many attempts are done."""


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    attempts: int = 3
    cancels: int = 200
    seconds: tuple[float, float] = (0.0, 1.0)


def situation(system: System, which: Situation, size: Size, step: Step) -> Json:
    """One situation, some attempts, each in a conversation of its own. A run that does not end is an attempt too."""
    attempts: list[Json] = []
    failures: list[str] = []
    while len(attempts) + len(failures) < size.attempts:
        try:
            with staged(system) as stage:
                stage.warm_up(which.api)
                while len(attempts) + len(failures) < size.attempts:
                    attempts.append(attempt(stage, which))
                    step(len(attempts), size.attempts)
        except ColdError:
            raise
        except PeerError as error:
            failures.append(str(error))
    return {"attempts": attempts, "failures": failures}


def fast(system: System, size: Size, step: Step) -> Json:
    """Tokens per second through a run, and the memory of the process; and how long the import takes."""
    speeds, peaks, imports, cpu = [], [], [], []
    for number in range(size.attempts):
        with staged(system) as stage:
            stage.warm_up()
            before = stage.driver.ask("facts")["cpu_s"]
            stage.open("fast", ["quick"])
            report = stage.prompt(FIRST, 60)
            facts = stage.driver.ask("facts")
            if report.get("told") != "completed" or report["pieces"] < FAST:
                raise PeerError(f"{report['pieces']} of {FAST} tokens came: {report.get('how')}")
            speeds.append(FAST / (report["ended"] - report["began"]))
            cpu.append((facts["cpu_s"] - before) * 1e6 / FAST)
            peaks.append(facts["peak_mb"])
            imports.append(stage.ready["import_s"])
            step(number + 1, size.attempts)
    return {"tokens_per_s": speeds, "cpu_ms_per_1000": cpu, "peak_mb": peaks, "import_s": imports}


# -- cancels at random moments ----------------------------------------------------------------------------------------

SEED = 21
TOOLS = ["slow", "quick"]
TRIES = 10
"""A run may be over before its cancel is called, and then another one takes its place; but not for ever."""
OVER = 2.0
"""Within so many seconds the provider has sent all that it can send."""


def randomly(system: System, size: Size, step: Step) -> Json:
    """Cancels at random moments of a run of text, two tool calls and text again, each followed by a prompt."""
    moments = random.Random(SEED)  # the same for each system, as shares of its own run
    counts = dict.fromkeys(("rejected", "started_after", "tokens_after", "like_success", "ignored", "failed"), 0)
    taken: list[float] = []
    span, tries = 0.0, 0
    failures: list[str] = []
    while len(taken) < size.cancels:
        try:
            with staged(system) as stage:
                stage.warm_up()
                span = span or undisturbed(stage)
                while len(taken) < size.cancels:
                    tries += 1
                    if tries > size.cancels * TRIES:
                        raise ColdError("nearly every run is over before its cancel")
                    one_cancel(stage, moments.random() * span, counts, taken)
                    step(len(taken), size.cancels)
        except ColdError:
            raise
        except PeerError as error:
            counts["failed"] += 1
            failures.append(str(error))
            if counts["failed"] > size.cancels / 10:
                raise PeerError(f"too many failures: {error}") from None
    return {**counts, "cancels": len(taken), "span": span, "failures": failures}


def undisturbed(stage: Stage) -> float:
    """How long the run takes that is to be cancelled."""
    stage.open("mixed", TOOLS)
    report = stage.prompt(FIRST)
    if report.get("told") != "completed":
        raise PeerError(f"the run failed: {report.get('how')}")
    return float(report["ended"] - report["began"])


def one_cancel(stage: Stage, after: float, counts: dict[str, int], taken: list[float]) -> None:
    stage.open("mixed", TOOLS)
    began = time.monotonic()
    stage.driver.ask("begin", text=FIRST)
    time.sleep(max(0.0, began + after - time.monotonic()))
    stage.driver.ask("cancel")
    report = stage.driver.ask("report", timeout=PATIENCE, patience=PATIENCE + 10)
    if "ended" not in report:
        raise PeerError("the run did not end")
    seen = of_report(report, stage.driver.ask("facts"))
    following = stage.prompt(NEXT)
    requests = finished_requests(stage, report["answered"], OVER)
    mine = [each for each in requests if NEXT not in each["messages"]]
    whole = "word39 " in report["text"]
    if report["asked"] > report["ended"]:  # the run was over before the cancel was called: another one takes its place
        return
    taken.append(seen["seconds"])
    counts["rejected"] += of_next(following, [each for each in requests if NEXT in each["messages"]])["rejected"]
    counts["started_after"] += seen["started_after"]
    counts["tokens_after"] += sum(each["pieces_after"] for each in mine)
    counts["like_success"] += report["told"] == "completed" and not whole
    counts["ignored"] += whole


PARTS: dict[str, Callable[[System, Size, Step], Json]] = {"fast": fast, "random": randomly}


def situations_of(system: System) -> list[Situation]:
    return [each for each in SITUATIONS if each.api == "openai" or system.anthropic]
