# SPDX-License-Identifier: Apache-2.0
"""Bedrock's errors as ours: before the stream, in the stream, and without any connection. No secret is in any text."""

from __future__ import annotations

from typing import Any

import pytest
from botocore import exceptions

from andon import Agent, Retry, RunStatus
from andon.errors import (
    AuthenticationError,
    BadRequestError,
    ContextLengthError,
    ModelConnectionError,
    ModelError,
    RateLimitError,
)
from andon.models.bedrock.errors import translate
from andon.models.common.secrets import NONE
from andon.testing import probe
from andon.testing.providers import FakeBedrock, fail, raw, silence, stall, text
from andon.testing.providers.bedrock import frames
from tests.support.bedrock import CLAUDE, model_of

ONCE = Retry(attempts=1)

CODES: dict[str, tuple[int, type[ModelError], bool]] = {
    "ThrottlingException": (429, RateLimitError, True),
    "ModelNotReadyException": (429, RateLimitError, True),
    "ModelTimeoutException": (408, ModelError, True),
    "InternalServerException": (500, ModelError, True),
    "ServiceUnavailableException": (503, ModelError, True),
    "ModelStreamErrorException": (424, BadRequestError, True),
    "ModelErrorException": (424, BadRequestError, False),
    "ValidationException": (400, BadRequestError, False),
    "ResourceNotFoundException": (404, BadRequestError, False),
    "ServiceQuotaExceededException": (400, BadRequestError, False),
    "AccessDeniedException": (403, AuthenticationError, False),
    "ExpiredTokenException": (403, AuthenticationError, False),
    "UnrecognizedClientException": (403, AuthenticationError, False),
    "SomethingNewException": (502, ModelError, True),
}


def failure(words: list[Any], **options: Any) -> ModelError:
    with FakeBedrock([words]) as fake:
        result = Agent("Tester", model_of(fake, **options), retry=ONCE).run("go")
        assert result.status is RunStatus.error
        assert isinstance(result.error, ModelError), result.error
        return result.error


@pytest.mark.parametrize("code", CODES)
def test_codes(code: str) -> None:
    status, kind, retryable = CODES[code]
    error = failure([fail(status, "It is so.", code)])
    assert type(error) is kind
    assert (error.retryable, error.status, error.code) == (retryable, status, code)
    assert error.request_id
    assert str(error) == f"{status}: It is so."


STREAMED = {
    "ThrottlingException": (RateLimitError, True),
    "ModelStreamErrorException": (ModelError, True),
    "InternalServerException": (ModelError, True),
    "ServiceUnavailableException": (ModelError, True),
    "ValidationException": (BadRequestError, False),
    "ModelErrorException": (ModelError, False),
}


@pytest.mark.parametrize("event", ["error", "nested"])
@pytest.mark.parametrize("code", STREAMED)
def test_codes_in_a_stream(code: str, event: str) -> None:
    kind, retryable = STREAMED[code]
    error = failure([text("Half "), fail(500, "It is so.", code, event=event)])
    assert type(error) is kind
    assert (error.retryable, error.code) == (retryable, code)
    assert "It is so." in str(error)


def test_an_exception_without_a_text_and_one_with_the_models_own() -> None:
    assert "InternalServerException" in str(failure([text("a"), raw(frames.exception("internalServerException", b""))]))
    said = frames.as_payload({"message": "It broke.", "originalMessage": "CUDA", "originalStatusCode": 500})
    assert "It broke.: CUDA" in str(failure([text("a"), raw(frames.exception("modelStreamErrorException", said))]))


@pytest.mark.parametrize(
    "message",
    [
        "Input is too long for requested model.",
        "The model returned the following errors: prompt is too long: 250000 tokens > 200000 maximum",
        "The model returned the following errors: input length and `max_tokens` exceed context limit: 1 + 2 > 2",
        "Too many input tokens. Max input tokens: 8192, request input token count: 9000",
        "This model's maximum context length is 8192 tokens.",
    ],
)
def test_too_long(message: str) -> None:
    assert type(failure([fail(400, message)])) is ContextLengthError
    assert type(failure([text("a"), fail(400, message)])) is ContextLengthError


def test_a_throttled_request_is_not_too_long() -> None:
    error = failure([fail(429, "Too many tokens, please wait before trying again.")])
    assert type(error) is RateLimitError
    assert error.retryable


def test_how_long_to_wait() -> None:
    assert failure([fail(429, "No.", headers={"x-amz-retry-after": "1500"})]).retry_after == 1.5
    assert failure([fail(503, "No.", headers={"retry-after": "2"})]).retry_after == 2
    assert failure([fail(503, "No.")]).retry_after is None


def test_it_is_tried_again() -> None:
    with FakeBedrock([[fail(503, "Busy.", headers={"x-amz-retry-after": "1"})], [text("Fine.")]]) as fake:
        assert Agent("Tester", model_of(fake)).run("go").content == "Fine."
        assert len(fake.served) == 2, "the SDK's own retries are off, ours are on"


def test_a_page_of_a_proxy() -> None:
    error = failure([raw(b"<h1>Bad gateway</h1>", content_type="text/html", status=502)])
    assert error.retryable
    assert error.status == 502


def test_no_connection() -> None:
    with FakeBedrock() as fake:
        model = model_of(fake)
    result = Agent("Tester", model, retry=ONCE).run("go")
    assert type(result.error) is ModelConnectionError
    assert "can't be reached" in str(result.error)


def test_a_provider_that_says_nothing() -> None:
    error = failure([silence()], timeout=0.05)
    assert type(error) is ModelConnectionError
    assert "did not answer in time" in str(error)
    error = failure([text("Half "), stall()], timeout=0.05)
    assert "stopped sending" in str(error)
    assert error.retryable


def test_credentials_that_botocore_can_not_use() -> None:
    for error in (
        exceptions.NoCredentialsError(),
        exceptions.UnauthorizedSSOTokenError(),
        exceptions.TokenRetrievalError(provider="sso", error_msg="expired"),
        exceptions.CredentialRetrievalError(provider="process", error_msg="it failed"),
    ):
        assert type(translate(error, NONE)) is AuthenticationError
    assert type(translate(exceptions.ProfileNotFound(profile="x"), NONE)) is ModelError
    assert translate(KeyError("x"), NONE) is None


# -- secrets ----------------------------------------------------------------------------------------------------------

SECRETS = ["bedrock-api-key-very-secret", "AKIAVERYSECRETKEYID1", "the+secret/access-key", "the-session-token-1"]
GIVEN: list[dict[str, Any]] = [
    {"api_key": SECRETS[0]},
    {
        "api_key": None,
        "aws_access_key_id": SECRETS[1],
        "aws_secret_access_key": SECRETS[2],
        "aws_session_token": SECRETS[3],
        "region": "us-east-1",
    },
]


def told(words: list[Any], given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> str:
    """All that is said of a request."""
    monkeypatch.setattr(FakeBedrock, "access_key_id", SECRETS[1])
    monkeypatch.setattr("andon.testing.providers.bedrock.converse.ACCESS_KEY_ID", SECRETS[1])
    with FakeBedrock([words], api_key=SECRETS[0]) as fake:
        model = model_of(fake, **given)
        run = Agent("Tester", model, retry=ONCE).run("go", stream=True)
        events = list(run)
        result = probe(run.run).result
    assert result.status is RunStatus.error
    assert repr(model) == f"Bedrock({CLAUDE!r})"
    return f"{events} {result.error!r} {result.error} {getattr(result.error, 'code', '')} {result.messages}"


@pytest.mark.parametrize("given", GIVEN, ids=["bearer", "keys"])
def test_no_secret_in_any_text(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    sent = [each for each in SECRETS if each in given.values()]
    quoting = "you sent " + ", ".join(sent)
    page = raw(f"<p>{quoting}</p>".encode(), content_type="text/html", status=502)
    answers: list[list[Any]] = [
        [fail(400, quoting)],
        [fail(403, quoting, code=sent[0])],
        [text("Half "), fail(500, quoting)],
        [text("Half "), fail(500, quoting, event="nested")],
        [text("Half "), raw(frames.event("contentBlockDelta", quoting.encode()))],
        [page],
    ]
    for words in answers:
        said = told(words, given, monkeypatch)
        for secret in sent:
            assert secret not in said, words
            assert secret[:12] not in said, words
        if words != [page]:
            assert "you sent ***" in said, words
