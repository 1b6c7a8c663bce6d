# SPDX-License-Identifier: Apache-2.0
"""Google's errors as ours, which of them are tried again, and that no secret is in any of them."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from andon import Agent, Retry, RunEvent, RunStatus
from andon.errors import (
    AuthenticationError,
    BadRequestError,
    ContextLengthError,
    ModelConnectionError,
    ModelError,
    ModelStreamError,
    RateLimitError,
    SetupError,
)
from andon.models.google import Gemini
from andon.testing import probe
from andon.testing.providers import Answer, FakeGemini, fail, raw, stall, text
from andon.testing.providers.google.errors import error_of, info, retry
from tests.support import HANG, play
from tests.support.gemini import ID, model, way

__all__ = ["way"]

ONCE = Retry(attempts=1)


def failed(answer: Answer, **options: Any) -> ModelError:
    with FakeGemini([answer]) as fake:
        error = Agent("Tester", model(fake, **options), retry=ONCE).run("go").error
        assert isinstance(error, ModelError), error
        return error


def google(status: int, message: str, *details: dict[str, Any], headers: str = "application/json") -> Any:
    body = json.dumps({"error": error_of(status, message, details)}).encode()
    return raw(body, content_type=headers, status=status)


TOO_LONG = "The input token count (2551556) exceeds the maximum number of tokens allowed (1048576)."
TOO_LONG_VERTEX = "Unable to submit request because the input token count is 9 but model only supports up to 8."
QUOTA = {"violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel"}]}


@pytest.mark.parametrize(
    ("answer", "kind", "again", "code"),
    [
        (fail(400, "No."), BadRequestError, False, "INVALID_ARGUMENT"),
        (google(400, "API key not valid.", info("API_KEY_INVALID")), AuthenticationError, False, "API_KEY_INVALID"),
        (fail(401, "Who?"), AuthenticationError, False, "UNAUTHENTICATED"),
        (fail(403, "No."), AuthenticationError, False, "PERMISSION_DENIED"),
        (fail(404, "No model."), BadRequestError, False, "NOT_FOUND"),
        (fail(400, TOO_LONG), ContextLengthError, False, "INVALID_ARGUMENT"),
        (fail(400, TOO_LONG_VERTEX), ContextLengthError, False, "INVALID_ARGUMENT"),
        (fail(408, "Slow."), ModelError, True, "UNKNOWN"),
        (fail(409, "Aborted."), BadRequestError, False, "ABORTED"),
        (fail(429, "Slow down."), RateLimitError, True, "RESOURCE_EXHAUSTED"),
        (google(429, "Tomorrow.", QUOTA, retry("30")), RateLimitError, False, "RESOURCE_EXHAUSTED"),
        (fail(500, "Oh."), ModelError, True, "INTERNAL"),
        (fail(501, "Not yet."), ModelError, False, "UNKNOWN"),
        (fail(503, "Busy."), ModelError, True, "UNAVAILABLE"),
    ],
)
def test_statuses(answer: Any, kind: type[ModelError], again: bool, code: str) -> None:
    error = failed([answer])
    assert (type(error), error.retryable, error.code) == (kind, again, code), error
    assert str(error).startswith(f"{error.status}: ")


def test_it_waits_as_long_as_the_details_say(way: str) -> None:
    with FakeGemini([[google(429, "Slow down.", info("X"), retry("0.005"))], [text("Fine.")]]) as fake:
        events = list(Agent("Tester", model(fake)).run("go", stream=True))
        (again,) = [event for event in events if event.event is RunEvent.model_retry]
        assert (again.delay, again.error) == (0.005, "RateLimitError: 429: Slow down.")
        assert len(fake.served) == 2


def test_a_page_instead_of_an_answer(way: str) -> None:
    page = b"<html>" + b"Please log in. " * 1000
    error = failed([raw(page, content_type="text/html", status=502)])
    assert "502: <html>Please log in." in str(error)
    assert len(str(error)) < 300
    if way == "wire":
        error = failed([raw(page, content_type="text/html")])
        assert type(error) is ModelStreamError
        assert "text/html instead of a stream" in str(error)


def test_a_stream_that_stops_for_too_long(way: str) -> None:
    error = failed([text("Half "), stall()], timeout=httpx2.Timeout(HANG, read=0.2))
    assert type(error) is ModelConnectionError
    assert "stopped sending" in str(error)


def test_no_headers_in_time() -> None:
    from andon.testing.providers import silence

    error = failed([silence()], timeout=httpx2.Timeout(HANG, read=0.2))
    assert "did not answer in time" in str(error)
    assert error.retryable


def test_a_server_that_is_not_there(way: str) -> None:
    error = Agent("Tester", Gemini(ID, "key", "http://127.0.0.1:9"), retry=ONCE).run("go").error
    assert type(error) is ModelConnectionError
    assert "can't be reached" in str(error)


# -- what is missing --------------------------------------------------------------------------------------------------

VARIABLES = ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION")


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE", "GOOGLE_GEMINI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "GOOGLE_API_KEY or GEMINI_API_KEY, or pass api_key="),
        ({"vertex": True}, "GOOGLE_CLOUD_PROJECT, or pass project="),
        ({"vertex": True, "credentials": object()}, "GOOGLE_CLOUD_PROJECT, or pass project="),
        ({"vertex": True, "credentials": object(), "api_key": "k"}, "either credentials= or api_key="),
        ({"location": "global"}, "pass vertex=True too"),
        ({"api_key": "sk-s\u00e9cret"}, "characters that no key has"),
    ],
)
def test_what_is_missing_is_said_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SetupError, match=words) as caught:
        Agent("Tester", Gemini(ID, **options)).run("go")
    assert "sk-s" not in str(caught.value)


# -- secrets ----------------------------------------------------------------------------------------------------------

SENT = {"X-Gateway-Token": "gateway-secret-1", "X-Other": "other-secret-2"}
SECRETS = ["sk-the-very-key-0", *SENT.values()]


def told(answer: Any) -> str:
    """All that is said of a request whose answer is this."""
    with FakeGemini([answer], api_key=SECRETS[0]) as fake:
        run = Agent("Tester", model(fake, extra_headers=SENT), retry=ONCE).run("go", stream=True)
        events = list(run)
        result = probe(run.run).result
    assert result.status is RunStatus.error
    return f"{events} {result.error!r} {result.error} {getattr(result.error, 'code', '')} {result.messages}"


QUOTED = "you sent " + ", ".join(SECRETS)


@pytest.mark.parametrize(
    "answer",
    [
        [fail(400, QUOTED, code=SECRETS[0])],
        [fail(500, QUOTED)],
        [fail(404, QUOTED, type=SECRETS[1])],
        [text("So "), fail(500, QUOTED)],
        [text("So "), raw(f"data: {{{'x' * 170} {QUOTED}\n\n".encode())],
        [raw(f"<p>{'x' * 170} {QUOTED}</p>".encode(), content_type="text/html")],
        [raw(f"<p>{'x' * 170} {QUOTED}</p>".encode(), content_type="text/html", status=502)],
        [raw(json.dumps({"detail": QUOTED}).encode(), content_type="application/json", status=403)],
    ],
)
def test_no_secret_is_in_any_error(answer: Any, way: str) -> None:
    said = told(answer)
    for secret in SECRETS:
        for length in range(7, len(secret) + 1):
            assert secret[:length] not in said


def test_the_wrong_key() -> None:
    with FakeGemini(api_key="sk-the-right-key") as fake:
        error = Agent("Tester", Gemini(ID, "sk-the-wrong-key", fake.base_url)).run("go").error
    assert type(error) is AuthenticationError
    assert "API key not valid" in str(error)


def test_half_a_character_in_an_error() -> None:
    async def main() -> None:
        body = rb'{"error": {"code": 400, "message": "not \ud83d this", "status": "INVALID_ARGUMENT"}}'
        with FakeGemini([[raw(body, content_type="application/json", status=400)]]) as fake:
            result = await Agent("Tester", model(fake)).invoke_async("go")
        assert "not ? this" in str(result.error)

    play(main)
