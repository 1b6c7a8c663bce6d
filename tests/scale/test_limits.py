# SPDX-License-Identifier: Apache-2.0
"""Limits over all servers, and the turns of users: exact, however many requests come at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from andon.core.shared.run_queue import WINDOW
from andon.models.scripted import Stall
from tests.scale.parts import accepting, cancel, ended, pair, rows, start, state, told, waiting, working
from tests.server.live import Live
from tests.support import HANG, eventually
from tests.support.till import DELETE, Till

REQUESTS = 100
BACKGROUND = {"message": "Hi", "background": True, "stream": False}


async def _ask(url: str, bodies: list[dict[str, Any]]) -> list[httpx.Response]:
    async with httpx.AsyncClient(base_url=url, timeout=HANG, verify=False) as client:
        asked = [client.post("/agents/helper/runs", json={**BACKGROUND, **each}) for each in bodies]
        return await asyncio.gather(*asked)


def at_once(lives: list[Live], bodies: list[dict[str, Any]]) -> list[httpx.Response]:
    """All of these requests at once, to one server after the other in turn."""

    async def main() -> list[list[httpx.Response]]:
        return await asyncio.gather(
            *(_ask(live.url, bodies[number :: len(lives)]) for number, live in enumerate(lives))
        )

    return [each for some in asyncio.run(main()) for each in some]


@contextlib.contextmanager
def two(url: str, **limits: int) -> Iterator[list[Live]]:
    """Two servers without a worker."""
    with accepting(url, pair()[0], **limits) as one, accepting(url, pair()[0], **limits) as other:
        try:
            yield [one, other]
        finally:
            clear(one)


def clear(live: Live) -> None:
    assert live.client.post("/runs/cancel?wait=30", json={"all": True}).status_code == 200


def check_refused(answers: list[httpx.Response], accepted: int, limit: str) -> None:
    assert Counter(each.status_code for each in answers) == {202: accepted, 429: len(answers) - accepted}
    for each in answers:
        if each.status_code == 429:
            assert limit in each.json()["detail"]
            assert int(each.headers["retry-after"]) >= 1


@pytest.mark.parametrize("bodies", [{}, {"on_busy": "queue", "session_id": "one"}], ids=["sessions", "one session"])
@pytest.mark.parametrize(
    ("limits", "users", "accepted", "limit"),
    [
        ({"max_runs": 10}, REQUESTS, 10, "10 runs are"),
        ({"max_user_runs": 3}, 1, 3, "3 runs of this user"),
        ({"max_user_runs": 3}, 4, 12, "3 runs of this user"),
        ({"max_user_runs": 2 * WINDOW}, 1, 2 * WINDOW, "8 runs of this user"),
        ({"max_agent_runs": 7}, REQUESTS, 7, "7 runs of this agent"),
    ],
)
def test_limits_are_exact_over_all_servers(
    shared_url: str, limits: dict[str, int], users: int, accepted: int, limit: str, bodies: dict[str, Any]
) -> None:
    wanted = [{"user_id": f"u{number % users}", **bodies} for number in range(REQUESTS)]
    with two(shared_url, **limits) as lives:
        check_refused(at_once(lives, wanted), accepted, limit)
        ((first, user),) = rows(shared_url, "SELECT run_id, user_id FROM andon_runs WHERE ended IS NULL LIMIT 1")
        cancel(lives[1], first)  # there is room for one more
        check_refused(at_once(lives, [{"user_id": user, **bodies}] * 5), 1, limit)


def test_runs_that_wait_for_room_have_a_limit_of_their_own(shared_url: str) -> None:
    with two(shared_url, max_runs=2, max_waiting_runs=5) as lives:
        wanted = [{"user_id": f"u{number}", "on_full": "queue"} for number in range(30)]
        answers = at_once(lives, wanted)
        check_refused(answers, 7, "5 runs wait for room")


def test_without_any_room_to_wait_a_run_that_need_not_wait_is_accepted(shared_url: str) -> None:
    with two(shared_url, max_runs=2, max_waiting_runs=0) as (live, _):
        start(live, "z1")
        start(live, "z2", on_full="queue")
        start(live, "z3", status=429)
        start(live, "z4", on_full="queue", status=429)


def test_a_run_that_waits_for_room_gets_its_turn(shared_url: str) -> None:
    server, agent = pair("One.", then="More.")
    with accepting(shared_url, server, max_runs=1) as live:
        start(live, "f1", user_id="ada")
        start(live, "f2", user_id="bob", status=429)
        start(live, "f2", user_id="bob", on_full="queue")
        assert (waiting(shared_url, "f1"), waiting(shared_url, "f2")) == ("sent", "held")
        assert state(live, "f2")["status"] == "PENDING"
        with working(shared_url, agent):
            assert ended(live, "f2")["content"] == "More."
            assert ended(live, "f1")["content"] == "One."


def test_a_paused_run_leaves_its_room_to_others(shared_url: str) -> None:
    server, agent = pair(DELETE, tools=Till().tools)
    with accepting(shared_url, server, max_runs=1) as live, working(shared_url, agent):
        start(live, "h1")
        assert told(live, "h1")[-1].event == "RunPaused"
        start(live, "h2")
        assert ended(live, "h2")["content"] == "OK."
        cancel(live, "h1")


@pytest.mark.parametrize(
    ("limit", "who"),
    [("max_paused_runs", "2 runs wait for a person's answer"), ("max_user_paused_runs", "2 runs of this user")],
)
def test_paused_runs_of_all_servers_count(shared_url: str, limit: str, who: str) -> None:
    server, agent = pair([DELETE], [DELETE], then=Stall(), tools=Till().tools)
    with (
        accepting(shared_url, pair()[0]) as one,
        accepting(shared_url, server, **{limit: 2}) as other,
        working(shared_url, agent),
    ):
        for live, run_id in ((one, f"{limit}-1"), (other, f"{limit}-2")):
            start(live, run_id, user_id="ada")
            assert told(live, run_id)[-1].event == "RunPaused"
        assert who in start(other, f"{limit}-3", user_id="ada", status=429).json()["detail"]
        cancel(one, f"{limit}-1")
        start(other, f"{limit}-3", user_id="ada")  # it works, and may come to ask
        start(other, f"{limit}-4", user_id="ada", status=429)
        clear(one)


@pytest.mark.parametrize("limits", [{"max_paused_runs": 7}, {"max_user_paused_runs": 7}])
def test_no_more_runs_are_accepted_than_may_pause(shared_url: str, limits: dict[str, int]) -> None:
    with accepting(shared_url, pair()[0], **limits) as live:
        check_refused(at_once([live], [{"user_id": "ada"}] * REQUESTS), 7, "7 runs")
        clear(live)


def test_runs_that_wait_for_room_may_not_pause_yet(shared_url: str) -> None:
    with accepting(shared_url, pair()[0], max_runs=1, max_paused_runs=2) as live:
        for number in range(4):
            start(live, f"v{number}", on_full="queue")
        clear(live)


def test_the_server_that_was_started_last_sets_the_limits(shared_url: str) -> None:
    with accepting(shared_url, pair()[0], max_runs=5) as one, accepting(shared_url, pair()[0], max_runs=1) as other:
        start(one, "x1")
        for live in (one, other):
            start(live, "x2", status=429)
        cancel(one, "x1")


def _order(url: str, many: int, **limits: Any) -> list[str]:
    """Who begins when: a user with many runs, whose requests come first, and one with a single run."""
    server, agent = pair(then="OK.")
    with accepting(url, server, **limits) as there:
        full: dict[str, Any] = {"on_full": "queue"}
        answers = at_once([there], [{"user_id": "many", "run_id": f"many{n}", **full} for n in range(many)])
        assert {each.status_code for each in answers} == {202}
        start(there, "single", user_id="one", **full)
        with working(url, agent, concurrency=1):
            ended(there, "single")
            began = rows(url, "SELECT run_id FROM andon_runs WHERE ended IS NOT NULL ORDER BY ended")
            found = [run_id for (run_id,) in began if run_id.startswith(("many", "single"))]
            clear(there)
    return found


@pytest.mark.parametrize("limits", [{}, {"max_runs": 2}, {"max_agent_runs": 2}], ids=["room", "all full", "agent full"])
def test_a_users_many_runs_do_not_delay_another_ones_single_run(postgres_url: str, limits: dict[str, int]) -> None:
    order = _order(postgres_url, 60, **limits)
    assert "single" in order[: 2 * WINDOW + 2], order


def test_a_single_user_can_use_every_worker(shared_url: str) -> None:
    server, agent = pair(then=Stall())
    with accepting(shared_url, server) as live, working(shared_url, agent, concurrency=3 * WINDOW):
        for number in range(3 * WINDOW):
            start(live, f"a{number}", user_id="ada")
        taken = "SELECT count(*) FROM andon_waiting WHERE state = 'taken' AND starts_with(run_id, 'a')"
        eventually(lambda: rows(shared_url, taken) == [(3 * WINDOW,)])
        clear(live)
