# SPDX-License-Identifier: Apache-2.0
"""The provider's errors in our tree, with the provider's own words, and never with a secret that was sent.

What may be tried again: what did not reach the provider, what it had no time for (408, 409, 429) and what broke on its
side (5xx). An empty account is a 429 too, and waiting does not fill it.
"""

from __future__ import annotations

import contextlib
import email.utils
import math
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from andon.errors import (
    AuthenticationError,
    BadRequestError,
    ContextLengthError,
    ModelConnectionError,
    ModelError,
    ModelStreamError,
    RateLimitError,
    say,
)
from andon.models.openai.secrets import NONE, Secrets

_BUSY = frozenset({408, 409, 429})
_NO_QUOTA = frozenset({"insufficient_quota", "billing_not_active", "billing_hard_limit_reached"})
_TRANSIENT = frozenset({"server_error", "rate_limit_exceeded", "server_is_overloaded", "slow_down", "overloaded_error"})
_TOO_LONG = "context_length_exceeded"


def translate(error: Exception, openai: Any, secrets: Secrets = NONE) -> ModelError | None:
    """An error of the SDK, or of the HTTP library below it, as one of ours; None for any other."""
    if isinstance(error, openai.APIStatusError):
        return _of_status(error, secrets)
    if isinstance(error, openai.APITimeoutError):
        return ModelConnectionError(f"the provider did not answer in time: {_root(error, secrets)}", retryable=True)
    if isinstance(error, openai.APIConnectionError):
        why = _root(error, secrets)
        return ModelConnectionError(f"the provider can't be reached: {why}", retryable=_may_pass(error))
    if isinstance(error, openai.OpenAIError):
        return ModelError(secrets.hide(say(error)))
    library = type(error).__module__.partition(".")[0]
    if library in ("httpx", "httpx2", "httpcore", "httpcore2", "aiohttp"):
        # On the raw path the SDK is out of the way once the headers are there.
        if "Timeout" in type(error).__name__:
            return ModelConnectionError(f"the provider stopped sending: {_root(error, secrets)}", retryable=True)
        return ModelConnectionError(f"the connection to the provider broke: {_root(error, secrets)}", retryable=True)
    return None


def _of_status(error: Any, secrets: Secrets) -> ModelError:
    status: int = error.status_code
    body = error.body if isinstance(error.body, Mapping) else {}
    said = body.get("message")
    text = said if isinstance(said, str) and said else secrets.excerpt(error.response.text) or error.message
    code = error.code or _text(body.get("type"))
    header = error.response.headers.get("x-should-retry")
    retryable = status in _BUSY or status >= 500
    if header in ("true", "false"):
        retryable = header == "true"
    return _kind(status, code)(
        secrets.hide(f"{status}: {text}"),
        retryable=retryable and code not in _NO_QUOTA and body.get("type") not in _NO_QUOTA,
        retry_after=retry_after(error.response.headers),
        status=status,
        code=None if code is None else secrets.hide(code),
        request_id=error.request_id,
    )


def _kind(status: int, code: str | None) -> type[ModelError]:
    if code == _TOO_LONG:
        return ContextLengthError
    if status in (401, 403):
        return AuthenticationError
    if status == 429:
        return RateLimitError
    return BadRequestError if status < 500 and status not in _BUSY else ModelError


def reported(error: object) -> ModelError:
    """An error that came as an event, in the middle of a stream that had begun well. It may quote secrets."""
    said = error if isinstance(error, Mapping) else {"message": error}
    code, kind, status = _text(said.get("code")), _text(said.get("type")), said.get("status")
    text = _text(said.get("message")) or code or kind or "the provider gave no reason"
    transient = code in _TRANSIENT or kind in _TRANSIENT or (said.get("code") in (429, 500, 502, 503, 504, 529))
    sort = ContextLengthError if code == _TOO_LONG else RateLimitError if code == "rate_limit_exceeded" else ModelError
    return sort(
        f"the provider reported an error: {text}",
        retryable=transient and code not in _NO_QUOTA and kind not in _NO_QUOTA,
        code=code or kind,
        status=status if isinstance(status, int) else None,
    )


class QuotingError(ModelStreamError):
    """An answer that can't be used, and is quoted as it came. `told` makes of it what may be shown."""

    def __init__(self, before: str, quoted: bytes, after: str = "", *, is_cut: bool = False, **facts: Any) -> None:
        super().__init__(before, **facts)
        self._before, self._quoted, self._after, self._is_cut = before, quoted, after, is_cut

    def told(self, secrets: Secrets) -> ModelStreamError:
        excerpt = secrets.excerpt(self._quoted.decode(errors="replace"), is_cut=self._is_cut)
        text = f"{self._before}: {excerpt or '(nothing)'}{self._after}"
        return ModelStreamError(text, request_id=self.request_id)


def no_stream(content_type: str, body: bytes, request_id: str | None, *, is_cut: bool = False) -> ModelError:
    """The answer is not a stream of events: a page of a proxy, say, or a server at the wrong address."""
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        said = msgspec.json.decode(body)
        if isinstance(said, dict) and said.get("error"):
            return reported(said["error"])
    kind = content_type.partition(";")[0] or "no content type"
    what = f"the provider answered with {kind} where a stream of events was due"
    return QuotingError(what, body, "; is base_url right?", is_cut=is_cut, request_id=request_id)


def broken(payload: bytes, why: object) -> ModelStreamError:
    return QuotingError(f"the provider sent an event that can't be read ({why})", payload)


def ended_early() -> ModelStreamError:
    return ModelStreamError("the provider's stream ended early, before the answer was complete", retryable=True)


def given_up(reason: str) -> ModelError:
    """The stream ended in order, and says that the answer did not."""
    text = f"the provider gave up in the middle of the answer: its finish reason is {reason!r}"
    return ModelError(text, retryable=True, code=reason)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """How many seconds the provider asks to wait, in any of the three ways to say so."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * scale
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    try:
        moment = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
    except (TypeError, ValueError):
        return None
    return max(0.0, moment.timestamp() - time.time())


def cleaned(error: ModelError, secrets: Secrets) -> ModelError:
    """An error of ours as it may be shown: the provider may have quoted what it was sent."""
    if isinstance(error, QuotingError):
        return error.told(secrets)
    error.args = tuple(secrets.hide(each) if isinstance(each, str) else each for each in error.args)
    error.code = None if error.code is None else secrets.hide(error.code)
    return error


def _may_pass(error: BaseException) -> bool:
    """Whether it may be another time: an address or a header that makes no sense will not become better."""
    while error is not None:
        if type(error).__name__ in ("UnsupportedProtocol", "LocalProtocolError", "InvalidURL"):
            return False
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return True


def _root(error: BaseException, secrets: Secrets) -> str:
    """What was at the bottom of it: the libraries in between say only that something failed."""
    words, seen = say(error), error
    while (below := seen.__cause__ or seen.__context__) is not None:
        seen = below
        words = say(below) or words
    return f"{secrets.excerpt(words)} ({type(seen).__name__})" if words else type(seen).__name__


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None if value is None else str(value)
