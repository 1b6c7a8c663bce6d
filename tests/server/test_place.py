# SPDX-License-Identifier: Apache-2.0
"""Where a run is found: the header that names it on every answer, and the `Location` of a 202."""

from __future__ import annotations

from urllib.parse import quote, urljoin

import pytest
from fastapi import FastAPI

from andon import Agent, tool
from andon.models.scripted import Call, ScriptedModel, Stall
from andon.server import create_app
from tests.server.live import serving, serving_app
from tests.server.people import bearer, guarded
from tests.support import Flag, forever

RUNS = "/agents/helper/runs"
PAGE = "https://page.example"
BACKGROUND = {"message": "Hi", "background": "true", "stream": "false"}


def helper() -> Agent:
    return Agent("Helper", ScriptedModel(then="OK."))


def test_a_stream_names_its_run_before_the_first_event() -> None:
    agent = Agent("Helper", ScriptedModel(then=Stall()))
    with serving(agent) as live, live.client.stream("POST", RUNS, data={"message": "Hi"}) as stream:
        run_id = stream.headers["andon-run-id"]
        assert live.run_of(agent, run_id).run_id == run_id
        with live.client.stream("GET", f"{RUNS}/{run_id}/events") as watched:
            assert watched.headers["andon-run-id"] == run_id
        with live.client.stream("POST", f"{RUNS}/{run_id}/resume") as resumed:
            assert resumed.headers["andon-run-id"] == run_id
        live.client.post(f"{RUNS}/{run_id}/cancel?wait=30")


def test_every_way_to_hear_of_a_run_names_it() -> None:
    with serving(helper()) as live:
        for fields in ({"message": "Hi", "stream": "false"}, BACKGROUND):
            answer = live.client.post(RUNS, data=fields)
            assert answer.headers["andon-run-id"] == answer.json()["run_id"]
        live.client.post("/apps/helper/users/ada/sessions/s1")
        said = {"userId": "ada", "sessionId": "s1", "newMessage": {"role": "user", "parts": [{"text": "Hi"}]}}
        for path in ("/run_sse", "/run"):
            answer = live.client.post(path, json=said)
            assert f'"invocationId":"{answer.headers["andon-run-id"]}"' in answer.text
        run_id = answer.headers["andon-run-id"]
        last = len(list(live.client.get(f"{RUNS}/{run_id}/events").text.split("\n\n"))) - 1
        for path, status in ((run_id, 200), (f"{run_id}/events?last_event_id={last}", 204)):
            answer = live.client.get(f"{RUNS}/{path}")
            assert (answer.status_code, answer.headers["andon-run-id"]) == (status, run_id)


def test_so_do_a_cancel_of_it_and_of_one_call() -> None:
    begun = Flag()

    @tool
    async def hang() -> str:
        begun.set()
        return await forever()

    agent = Agent("Helper", ScriptedModel(Call("hang", id="c1"), then=Stall()), tools=[hang])
    with serving(agent) as live:
        live.client.post(RUNS, data={**BACKGROUND, "run_id": "r1"})
        begun.wait()
        for path in ("tools/c1/cancel", "cancel", "cancel?wait=30"):
            answer = live.client.post(f"{RUNS}/r1/{path}")
            assert (answer.status_code, answer.headers["andon-run-id"]) == (200, "r1")


@pytest.mark.parametrize("run_id", ["sea", "a~b:c@d.e-f_g"])
def test_what_goes_on_in_the_background_says_where(run_id: str) -> None:
    with serving(helper()) as live:
        answer = live.client.post(RUNS, data={**BACKGROUND, "run_id": run_id})
        assert answer.status_code == 202
        assert answer.headers["location"] == f"{RUNS}/{run_id}"
        assert live.client.get(answer.headers["location"]).json()["run_id"] == run_id


def test_where_is_said_with_the_prefix_of_a_mount_or_a_proxy() -> None:
    outer = FastAPI()
    outer.mount("/inner part", create_app(helper()))
    with serving_app(outer) as live:
        answer = live.client.post(f"/inner part{RUNS}", data=BACKGROUND)
        assert answer.headers["location"].startswith(f"/inner%20part{RUNS}/")
        assert live.client.get(urljoin(live.url, answer.headers["location"])).status_code == 200
    with serving_app(create_app(helper()), root_path="/api") as live:
        answer = live.client.post(RUNS, data=BACKGROUND)
        assert answer.headers["location"].startswith(f"/api{RUNS}/")


def test_an_id_that_a_program_has_chosen_can_be_anything() -> None:
    agent, odd = helper(), "naïve\r\nid: 50%"
    with serving(agent) as live:
        agent.run("Hi", run_id=odd)
        with live.client.stream("GET", f"{RUNS}/{quote(odd)}/events") as watched:
            assert watched.headers["andon-run-id"] == "na%C3%AFve%0D%0Aid:%2050%25"
            assert "RunCompleted" in watched.read().decode()


def test_a_page_of_another_origin_may_read_them() -> None:
    with guarded(helper(), cors_origins=[PAGE]) as live:
        answer = live.client.post(RUNS, data=BACKGROUND, headers={**bearer("ada"), "origin": PAGE})
        exposed = answer.headers["access-control-expose-headers"].lower()
        assert {"andon-run-id", "location"} <= {each.strip() for each in exposed.split(",")}
