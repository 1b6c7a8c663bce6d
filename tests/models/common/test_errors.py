# SPDX-License-Identifier: Apache-2.0
"""What a provider's errors become, by a table of its codes; and what may be seen of them."""

from __future__ import annotations

import email.utils
import re
import time
from typing import Any

import httpx2
import msgspec
import pytest

from andon.errors import (
    AuthenticationError,
    BadRequestError,
    ContextLengthError,
    ModelConnectionError,
    ModelError,
    ModelStreamError,
    RateLimitError,
)
from andon.models.common.errors import (
    UNREADABLE,
    ErrorTable,
    QuotingError,
    mended,
    no_answer,
    of_connection,
    report,
    retry_after,
    unreachable,
)
from andon.models.common.secrets import NONE, Secrets
from tests.support import play

KEY = "the-secret-key"
SECRETS = Secrets([KEY])
TABLE = ErrorTable(
    again=frozenset({429, 500, 503}),
    transient=frozenset({"throttled"}),
    permanent=frozenset({"no_money"}),
    kinds={"too_long": ContextLengthError, "throttled": RateLimitError},
    too_long=re.compile("prompt is too long"),
)


@pytest.mark.parametrize(
    ("status", "code", "kind", "retryable"),
    [
        (400, None, BadRequestError, False),
        (400, "too_long", ContextLengthError, False),
        (401, None, AuthenticationError, False),
        (403, "other", AuthenticationError, False),
        (404, None, BadRequestError, False),
        (429, None, RateLimitError, True),
        (429, "no_money", RateLimitError, False),
        (500, None, ModelError, True),
        (503, "throttled", RateLimitError, True),
        (529, None, ModelError, False),
    ],
)
def test_an_http_error_by_its_status_and_code(
    status: int, code: str | None, kind: type[ModelError], retryable: bool
) -> None:
    error = TABLE.of_status(status, f"No, {KEY}.", code=code, retry_after=3, request_id="req_1", secrets=SECRETS)
    assert type(error) is kind
    assert str(error) == f"{status}: No, ***."
    assert (error.retryable, error.code, error.status) == (retryable, code, status)
    assert (error.retry_after, error.request_id) == (3, "req_1")


def test_a_group_of_errors_counts_where_there_is_no_code() -> None:
    assert not TABLE.of_status(429, "No.", code="other", kind="no_money").retryable
    error = TABLE.of_status(400, "No.", kind="too_long")
    assert (type(error), error.code) == (ContextLengthError, "too_long")


@pytest.mark.parametrize(("status", "said"), [(500, False), (400, True)])
def test_the_provider_has_the_last_word_on_retries(status: int, said: bool) -> None:
    assert TABLE.of_status(status, "No.", should_retry=said).retryable is said


def test_a_conversation_that_is_too_long_may_be_known_by_the_message_alone() -> None:
    assert type(TABLE.of_status(400, "prompt is too long: 9 > 8")) is ContextLengthError
    assert type(TABLE.in_stream("prompt is too long: 9 > 8")) is ContextLengthError


@pytest.mark.parametrize(
    ("said", "text", "kind", "retryable"),
    [
        ({"message": "Slow.", "code": "throttled"}, "Slow.", RateLimitError, True),
        ({"message": "Slow.", "type": "throttled"}, "Slow.", RateLimitError, True),
        ({"message": "Broke.", "code": 503}, "Broke.", ModelError, True),
        ({"message": "Broke.", "code": 400}, "Broke.", ModelError, False),
        ({"message": "Slow.", "code": "throttled", "type": "no_money"}, "Slow.", RateLimitError, False),
        ({"code": {"odd": []}}, "{'odd': []}", ModelError, False),
        ({"type": "strange"}, "strange", ModelError, False),
        ("Just text.", "Just text.", ModelError, False),
        (None, "the provider gave no reason", ModelError, False),
    ],
)
def test_an_error_that_comes_as_an_event(said: Any, text: str, kind: type[ModelError], retryable: bool) -> None:
    error = TABLE.in_stream(said, retry_after=2)
    assert str(error) == f"the provider reported an error: {text}"
    assert (type(error), error.retryable, error.retry_after) == (kind, retryable, 2)


def test_a_page_instead_of_a_stream() -> None:
    error = TABLE.not_a_stream("text/html; charset=utf-8", b"<p>%b</p>" % KEY.encode(), "req_1")
    assert isinstance(error, QuotingError)
    shown = error.cleaned(SECRETS)
    assert type(shown) is ModelStreamError
    wanted = "the provider answered with text/html instead of a stream of events: <p>***</p>; is base_url right?"
    assert (str(shown), shown.request_id) == (wanted, "req_1")
    assert "(nothing)" in str(TABLE.not_a_stream("", b"", None).cleaned(NONE))  # type: ignore[attr-defined]
    told = TABLE.not_a_stream("application/json", b'{"error": {"message": "Slow.", "code": "throttled"}}', None)
    assert (type(told), told.retryable) == (RateLimitError, True)


def test_an_event_that_can_not_be_read() -> None:
    with pytest.raises(UNREADABLE):
        msgspec.json.decode(rb'"a\ud83d"')
    assert msgspec.json.decode(mended(rb'"a\ud83d"', "why")) == "a\ufffd"
    with pytest.raises(ModelStreamError, match=r"can't be read \(why\)"):
        mended(b'{"cut', "why")


# -- connections ------------------------------------------------------------------------------------------------------


def test_errors_of_the_connection() -> None:
    late = of_connection(httpx2.ReadTimeout("too late"), NONE)
    assert str(late) == "the provider stopped sending: too late (ReadTimeout)"
    broken = of_connection(httpx2.RemoteProtocolError(f"peer closed {KEY}"), SECRETS)
    assert str(broken) == "the connection to the provider broke: peer closed *** (RemoteProtocolError)"
    assert late is not None
    assert broken is not None
    assert late.retryable
    assert broken.retryable
    assert of_connection(ValueError("mine"), NONE) is None


def test_the_first_cause_is_told() -> None:
    error = RuntimeError("Connection error.")
    error.__cause__ = OSError(f"refused {KEY}")
    assert str(no_answer(error, SECRETS)) == "the provider did not answer in time: refused *** (OSError)"
    assert str(unreachable(error, SECRETS)) == "the provider can't be reached: refused *** (OSError)"
    assert unreachable(error, SECRETS).retryable
    assert str(unreachable(OSError(), NONE)) == "the provider can't be reached: OSError"


def test_an_address_that_makes_no_sense_is_not_tried_again() -> None:
    error = RuntimeError("Connection error.")
    error.__cause__ = httpx2.UnsupportedProtocol("no protocol")
    assert type(unreachable(error, NONE)) is ModelConnectionError
    assert not unreachable(error, NONE).retryable


# -- all of them ------------------------------------------------------------------------------------------------------


def reported(error: Exception, becomes: ModelError | None = None) -> BaseException:
    async def request() -> None:
        raise error

    async def main() -> None:
        await report(request(), lambda _, __: becomes, lambda: SECRETS)

    with pytest.raises(Exception) as caught:  # noqa: PT011 - the caller looks at it
        play(main)
    return caught.value


def test_an_error_of_an_sdk_becomes_ours_and_does_not_come_along() -> None:
    ours = ModelError("ours")
    assert reported(ValueError(KEY), ours) is ours
    assert (ours.__cause__, ours.__context__) == (None, None)


def test_an_error_of_ours_is_cleaned() -> None:
    error = ModelError(f"bad {KEY}", code=KEY)
    assert reported(error) is error
    assert isinstance(error, ModelError)
    assert (str(error), error.code) == ("bad ***", "***")
    shown = reported(QuotingError("an odd event", KEY.encode()))
    assert str(shown) == "an odd event: ***"
    assert shown.__context__ is None


def test_an_error_that_is_no_providers_is_cleaned_and_raised() -> None:
    error = ValueError(f"bad {KEY}")
    assert reported(error) is error
    assert str(error) == "bad ***"


def test_secrets_are_not_looked_for_where_nothing_failed() -> None:
    async def request() -> None:
        pass

    def secrets() -> Secrets:
        raise AssertionError("it was called")

    play(lambda: report(request(), lambda _, __: None, secrets))


# -- how long to wait -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after": "-3"}, 0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


def test_retry_after_a_date() -> None:
    moment = email.utils.formatdate(time.time() + 100, usegmt=True)
    assert 90 < (retry_after({"retry-after": moment}) or 0) <= 100


def test_retry_after_by_a_header_of_its_own() -> None:
    assert retry_after({"x-wait": "1500", "retry-after": "7"}, {"x-wait": 0.001}) == 1.5
