# SPDX-License-Identifier: Apache-2.0
"""Google's errors as ours: what its statuses and reasons mean, and how its SDK reports them.

Google says how long to wait in the details of an error, not in a header. An invalid key is a 400, and only the details
say so. A daily quota is a 429, and no waiting of a run's length helps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from andon.errors import AuthenticationError, ModelConnectionError, ModelError, ModelStreamError, RateLimitError, say
from andon.models.common.errors import ErrorTable, as_text, no_answer, of_connection, retry_after, unreachable
from andon.models.common.secrets import Secrets

TABLE = ErrorTable(
    again=frozenset({408, 429, 500, 502, 503, 504}),
    transient=frozenset({"UNAVAILABLE", "RESOURCE_EXHAUSTED", "INTERNAL", "DEADLINE_EXCEEDED", "ABORTED"}),
    kinds={
        "API_KEY_INVALID": AuthenticationError,
        "UNAUTHENTICATED": AuthenticationError,
        "PERMISSION_DENIED": AuthenticationError,
        "RESOURCE_EXHAUSTED": RateLimitError,
    },
    too_long=re.compile(
        r"input token count.{0,60}?(?:exceeds|only supports)|exceeds the maximum number of tokens", re.IGNORECASE
    ),
)

_NO_CREDENTIALS = (
    "Google's credentials can't be used. Run `gcloud auth application-default login`, set "
    "GOOGLE_APPLICATION_CREDENTIALS, or pass credentials= to the model"
)


def in_stream(error: object) -> ModelError:
    """The error for an event in a stream: `{"code": 503, "message": …, "status": "UNAVAILABLE", "details": […]}`."""
    if not isinstance(error, Mapping):
        return TABLE.in_stream(error)
    code = _code(error)
    failure = TABLE.in_stream(
        {"message": error.get("message"), "code": code or error.get("code"), "status": error.get("code")},
        retry_after=_delay(error),
    )
    failure.retryable = failure.retryable and not _is_daily(error)
    return failure


def translate(error: Exception, secrets: Secrets, *, answered: bool) -> ModelError | None:
    """An error of the SDK, or of a library below it, as one of ours; None for any other.

    `answered` says whether the headers of the answer had come.
    """
    from google.genai import errors

    if isinstance(error, errors.APIError):
        return _of_response(error, secrets)
    if isinstance(error, errors.UnknownApiResponseError):  # on the public way, the SDK reads the events
        return ModelStreamError(f"the provider sent an event that can't be read: {secrets.excerpt(say(error))}")
    if type(error).__module__.startswith("google.auth"):
        return _of_credentials(error, secrets)
    failure = of_connection(error, secrets)
    if failure is None or answered:
        return failure
    return (no_answer if "Timeout" in type(error).__name__ else unreachable)(error, secrets)


def _of_response(error: Any, secrets: Secrets) -> ModelError:
    said = error.details
    said = said[0] if isinstance(said, list) and said else said
    inner = said.get("error") if isinstance(said, Mapping) else None
    if not isinstance(inner, Mapping):  # it is not Google's: a proxy's page, or other JSON
        inner = {"message": secrets.excerpt(as_text(getattr(error.response, "text", None)) or say(error))}
    headers = getattr(error.response, "headers", None) or {}
    wait = _delay(inner)
    return TABLE.of_status(
        error.code if isinstance(error.code, int) else 500,
        as_text(inner.get("message")) or say(error),
        code=_code(inner),
        should_retry=False if _is_daily(inner) else None,
        retry_after=retry_after(headers) if wait is None else wait,
        request_id=headers.get("x-request-id"),
        secrets=secrets,
    )


def _of_credentials(error: Exception, secrets: Secrets) -> ModelError:
    why = secrets.excerpt(say(error))
    if type(error).__name__ == "TransportError" or getattr(error, "retryable", False):
        return ModelConnectionError(f"Google's server for credentials can't be reached: {why}", retryable=True)
    return AuthenticationError(f"{_NO_CREDENTIALS}. The reason: {why}")


# -- the details ------------------------------------------------------------------------------------------------------


def _details(error: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    details = error.get("details")
    for each in details if isinstance(details, list) else ():
        if isinstance(each, Mapping):
            yield each


def _code(error: Mapping[str, Any]) -> str | None:
    """Google's name for the error: the reason in the details where it says more than the status."""
    for detail in _details(error):
        if (reason := as_text(detail.get("reason"))) in TABLE.kinds:
            return reason
    return as_text(error.get("status"))


def _delay(error: Mapping[str, Any]) -> float | None:
    """How many seconds Google asks to wait: `"retryDelay": "37.4s"`."""
    for detail in _details(error):
        delay = detail.get("retryDelay")
        if isinstance(delay, str) and (found := re.fullmatch(r"(\d+(?:\.\d*)?)s", delay)):
            return float(found[1])
    return None


def _is_daily(error: Mapping[str, Any]) -> bool:
    """Whether the quota of a day is used up."""
    for detail in _details(error):
        violations = detail.get("violations")
        for each in violations if isinstance(violations, list) else ():
            if isinstance(each, Mapping) and "PerDay" in str(each.get("quotaId")):
                return True
    return False
