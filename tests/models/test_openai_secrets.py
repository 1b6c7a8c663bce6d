# SPDX-License-Identifier: Apache-2.0
"""No secret that was sent to OpenAI is in an error about it, however a server quotes it."""

from __future__ import annotations

import base64
from typing import Any

import openai
import pytest

from andon import Agent, Retry, RunStatus
from andon.models.openai.clients import secrets_of
from andon.testing import probe
from andon.testing.providers import fail, raw, text
from tests.support.openai import Api, each_api


def test_all_that_goes_along_with_a_request_is_a_secret() -> None:
    client = openai.AsyncOpenAI(
        api_key="sk-the-key",
        base_url="https://name%40home:pass%2Fword@example.com/v1?sig=in-the-address",
        default_headers={"X-Default": "default-value", "Cookie": "a=first-cookie; b=second-cookie"},
        default_query={"code": "default-query", "api-version": "2026-01-01"},
        webhook_secret="the-webhook-secret",
        http_client=openai.DefaultAsyncHttpxClient(
            headers={"X-Own": "own-header"}, params={"own": "own-parameter"}, verify=False
        ),
    )
    basic = base64.b64encode(b"joe:hunter22").decode()
    options: dict[str, Any] = {
        "headers": {"X-Api": "extra-header", "Proxy-Authorization": f"Basic {basic}", "X-Title": "My title"},
        "params": {"token": ["one-token", "two-token"], "number": 12345678},
    }
    secrets = secrets_of(client, options)
    for secret in (
        "sk-the-key",
        "name@home",
        "pass/word",
        base64.b64encode(b"name@home:pass/word").decode(),
        "in-the-address",
        "default-value",
        "first-cookie",
        "second-cookie",
        "default-query",
        "the-webhook-secret",
        "extra-header",
        basic,
        "hunter22",
        "one-token",
        "two-token",
        "12345678",
        "own-header",
        "own-parameter",
    ):
        assert secrets.hide(f"<{secret}>") == "<***>", secret
    harmless = "application/json, 2026-01-01, My title, AsyncOpenAI/Python"
    assert secrets.hide(harmless) == harmless


# -- over a real connection -------------------------------------------------------------------------------------------

SENT = {
    "extra_headers": {"X-Gateway-Token": "gateway-secret-1", "Authorization": "Bearer authorization-secret-2"},
    "extra_query": {"code": "query-secret-3"},
}
SECRETS = ["sk-the-very-key-0", "gateway-secret-1", "authorization-secret-2", "query-secret-3"]


def told(api: Api, answer: Any) -> str:
    """All that is said of a request whose answer is this."""
    with api.fake([answer], api_key=SECRETS[2]) as fake:
        model = api.make_model("m", SECRETS[0], fake.base_url, **SENT)
        run = Agent("Tester", model, retry=Retry(attempts=1)).run("go", stream=True)
        events = list(run)
        result = probe(run.run).result
    assert result.status is RunStatus.error
    return f"{events} {result.error!r} {result.error} {getattr(result.error, 'code', '')} {result.messages}"


def check_hidden(said: str) -> None:
    for secret in SECRETS:
        for length in range(7, len(secret) + 1):
            assert secret[:length] not in said


@each_api
@pytest.mark.parametrize("status", [400, 401, 404, 500])
def test_an_error_that_quotes_everything(api: Api, status: int) -> None:
    said = told(api, [fail(status, "you sent " + ", ".join(SECRETS))])
    assert "you sent ***, ***, ***, ***" in said
    check_hidden(said)


@each_api
@pytest.mark.parametrize("before", range(150, 205, 9))
def test_an_event_that_can_not_be_read_and_quotes_the_key_at_the_border(api: Api, before: int) -> None:
    quoted = "x" * before + "".join(f" {secret}" for secret in SECRETS)
    said = told(api, [text("So "), raw(f"data: {{{quoted}\n\n".encode())])
    assert "can't be read" in said
    check_hidden(said)


@each_api
@pytest.mark.parametrize("before", range(60, 205, 16))
@pytest.mark.parametrize("status", [200, 502])
def test_a_page_that_quotes_the_key_at_the_border(api: Api, status: int, before: int) -> None:
    page = f"<p>{'x' * before} {' '.join(SECRETS)}</p>"
    said = told(api, [raw(page.encode(), content_type="text/html", status=status)])
    assert "text/html" in said if status == 200 else "502" in said
    check_hidden(said)
