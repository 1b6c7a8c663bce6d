# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document, fuzzed by schemathesis: whatever is sent, the server answers, and as the document says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from andon import Agent
from andon.models.scripted import ScriptedModel
from andon.server import create_app
from tests.server.live import Live, serving
from tests.server.people import TOKENS, bearer
from tests.support import HANG

pytestmark = pytest.mark.no_cover  # others cover what it reaches, and half of its time would be the tracer's

EXAMPLES = 6
CHECKS: list[Any] = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]

SCHEMA = schemathesis.openapi.from_dict(create_app(Agent("Helper", ScriptedModel()), tokens="any").openapi())
OPERATIONS: dict[str, Any] = {found.ok().label: found.ok() for found in SCHEMA.get_all_operations()}  # type: ignore[union-attr]

IDS = {
    "agent_id": "helper",
    "app": "helper",
    "user": "ada",
    "session": "s1",
    "session_id": "s1",
    "run_id": "r1",
    "call_id": "c1",
    "name": "worker",
}
"""What is there, so that not every guess ends at the first name."""


@pytest.fixture(scope="module", params=["open", "as a user"])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[Live, requests.Session]]:
    agent = Agent("Helper", ScriptedModel(then="OK."))
    guarded = request.param == "as a user"
    with serving(agent, tokens=TOKENS if guarded else None) as live, requests.Session() as session:
        session.headers.update(bearer("ada") if guarded else {})
        live.client.headers.update(dict(session.headers) if guarded else {})
        wanted = {"message": "Hi", "run_id": "r1", "session_id": "s1", "user_id": "ada", "stream": "false"}
        assert live.post("/agents/helper/runs", **wanted).status_code == 200
        yield live, session


# Where there is nothing that could be wrong, there is nothing to guess either.
CASES = [
    pytest.param(label, mode, id=f"{label} {mode.value}")
    for label, operation in OPERATIONS.items()
    for mode in GenerationMode
    if mode is GenerationMode.POSITIVE or operation.body or operation.path_parameters
    if label != "GET /board/events"  # it has no end: `BoardReader` checks each of its messages
]


@pytest.mark.parametrize(("label", "mode"), CASES)
def test_nothing_that_is_sent_breaks_the_server(
    server: tuple[Live, requests.Session], label: str, mode: GenerationMode
) -> None:
    live, session = server
    operation = OPERATIONS[label]

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(mode), known=st.booleans())
    def check(case: Case[Any], known: bool) -> None:
        if known:
            case.path_parameters = {name: IDS[name] for name in case.path_parameters or {}}
        response = case.call(base_url=live.url, session=session, timeout=HANG)
        assert response.status_code < 500, response.text
        if response.status_code >= 400:
            assert isinstance(response.json()["detail"], str)
        case.validate_response(response, checks=CHECKS)

    check()
    assert httpx.get(f"{live.url}/health", verify=False).status_code == 200
