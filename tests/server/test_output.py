# SPDX-License-Identifier: Apache-2.0
"""Structured output over HTTP, by JSON schema."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from andon import Agent, tool
from andon.models.scripted import Call, ScriptedModel
from tests.server.live import serving, serving_on

RUNS = "/agents/helper/runs"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ANSWER = '{"city": "Oslo"}'


def helper(*turns: Any, **options: Any) -> Agent:
    return Agent("Helper", ScriptedModel(*turns), **options)


@tool(approval=True)
async def look() -> str:
    """Look it up."""
    return "Oslo"


def test_a_client_gives_the_schema_and_gets_the_output() -> None:
    agent = helper("Oslo!", ANSWER)
    with serving(agent) as live:
        body = {"message": "Where?", "stream": False, "output_schema": SCHEMA}
        answer = live.client.post(RUNS, json=body).json()
        assert answer["status"] == "COMPLETED"
        assert answer["output"] == {"city": "Oslo"}
        assert live.client.get(f"{RUNS}/{answer['run_id']}").json()["output"] == {"city": "Oslo"}
    assert isinstance(agent.model, ScriptedModel)
    sent = agent.model.requests[0].output
    assert sent is not None
    assert sent.schema == SCHEMA


def test_a_form_and_a_stream_have_it_too() -> None:
    fields = {"message": "Where?", "output_schema": json.dumps({"type": "array", "items": {"type": "integer"}})}
    with serving(helper('{"result": [1, 2]}')) as live, live.stream(RUNS, **fields) as stream:
        last = list(stream)[-1].data
    assert (last["event"], last["output"]) == ("RunCompleted", [1, 2])


def test_an_answer_that_never_fits_is_an_error_that_says_so() -> None:
    with serving(helper(*["No."] * 3)) as live:
        answer = live.client.post(RUNS, json={"message": "?", "stream": False, "output_schema": SCHEMA}).json()
    assert answer["status"] == "ERROR"
    assert "not JSON" in answer["error"]
    assert answer["output"] is None
    assert answer["content"] == "No.No.No."


def test_an_agents_own_type_is_told_as_json() -> None:
    class Place(BaseModel):
        city: str

    with serving(helper(ANSWER, output_type=Place)) as live:
        answer = live.client.post(RUNS, json={"message": "Where?", "stream": False}).json()
    assert answer["output"] == {"city": "Oslo"}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("{", "output_schema is not JSON"),
        ("[" * 100_000, "output_schema is nested too deeply: 32 levels are the most"),
        ("[]", "is not an object"),
        ({"type": "text"}, "type is 'text'"),
        ({"$ref": "https://example.com/schema"}, "$ref"),
        ({"pattern": "(a+)+$", "unevaluatedItems": False}, "unevaluatedItems"),
        ([], "output_schema"),
    ],
)
def test_a_schema_that_can_not_be_checked_is_refused(schema: Any, words: str) -> None:
    with serving(helper()) as live:
        answer = live.client.post(RUNS, json={"message": "Where?", "output_schema": schema})
        assert answer.status_code == 422
        assert words in answer.json()["detail"]
        assert live.client.get("/agents/helper/runs").json() == []


def test_the_same_key_for_another_schema_is_another_request() -> None:
    with serving(helper(ANSWER, "[1]")) as live:
        body = {"message": "Where?", "stream": False, "output_schema": SCHEMA}
        head = {"idempotency-key": "k"}
        first = live.client.post(RUNS, json=body, headers=head).json()
        assert live.client.post(RUNS, json=body, headers=head).json()["run_id"] == first["run_id"]
        other = live.client.post(RUNS, json={**body, "output_schema": {"type": "array"}}, headers=head)
        assert other.status_code == 422


def test_a_run_that_another_server_goes_on_with_keeps_its_schema(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/andon.db"

    with serving_on(url, helper(Call("look"), tools=[look])) as live:
        body = {"message": "Where?", "stream": False, "output_schema": SCHEMA, "run_id": "r1"}
        paused = live.client.post(RUNS, json=body).json()
        assert paused["status"] == "PAUSED"
        question = paused["interrupts"][0]["id"]
        with serving_on(url, helper("Oslo!", ANSWER, tools=[look])) as other:
            answers = {"answers": {question: True}, "stream": False}
            answer = other.client.post(f"{RUNS}/r1/continue", json=answers).json()
            assert answer["output"] == {"city": "Oslo"}, answer
            assert other.client.get(f"{RUNS}/r1").json()["output"] == {"city": "Oslo"}
