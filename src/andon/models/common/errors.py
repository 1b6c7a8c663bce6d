# SPDX-License-Identifier: Apache-2.0
"""A provider's errors as ours, in the provider's own words, and never with a secret that was sent.

What a status or a code means is a table, one per provider: `ErrorTable`. An error of ours never carries the error of
the SDK along (`report`), because that one has the request with the key in its frames.
"""

from __future__ import annotations

import contextlib
import email.utils
import math
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

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
from andon.messages import sendable_json
from andon.models.common.secrets import NONE, Secrets

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding an event may raise."""

_HTTP_LIBRARIES = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "aiohttp"})
_NEVER_BETTER = frozenset({"UnsupportedProtocol", "LocalProtocolError", "InvalidURL"})


class ErrorTable(Struct, frozen=True):
    """What a provider's statuses, codes and texts mean."""

    again: frozenset[int] = frozenset({408, 409, 429, *range(500, 600)})
    """The HTTP statuses after which the same request may succeed."""
    again_in_stream: frozenset[int] = frozenset({429, 500, 502, 503, 504, 529})
    """The same for an error that comes as an event and has a number as its code."""
    transient: frozenset[str] = frozenset()
    """Codes of errors that come as events, after which the same request may succeed."""
    permanent: frozenset[str] = frozenset()
    """Codes after which a request can't succeed, with any status: an empty account is a 429 too."""
    kinds: Mapping[str, type[ModelError]] = {}
    """Our error for a code, where the status does not say it."""
    too_long: re.Pattern[str] | None = None
    """Found in the provider's message if the conversation is too long, for providers that have no code for it."""

    def of_status(
        self,
        status: int,
        text: str,
        *,
        code: str | None = None,
        kind: str | None = None,
        should_retry: bool | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
        secrets: Secrets = NONE,
    ) -> ModelError:
        """The error for an HTTP response.

        `code` is the provider's name for this error, and `kind` its name for a group of errors, if it has both.
        `should_retry` is what the provider says about another attempt, if it says something.
        """
        retryable = status in self.again if should_retry is None else should_retry
        name = code or kind
        return self._kind(text, name, status)(
            secrets.hide(f"{status}: {text}"),
            retryable=retryable and not {code, kind} & self.permanent,
            retry_after=retry_after,
            status=status,
            code=None if name is None else secrets.hide(name),
            request_id=request_id,
        )

    def in_stream(self, error: object, *, retry_after: float | None = None) -> ModelError:
        """The error for an event in a stream that had begun well: `{"message": …, "code": …, "type": …}`, or a text.

        It may quote secrets. `report` removes them.
        """
        said = error if isinstance(error, Mapping) else {"message": error}
        code, kind, status = as_text(said.get("code")), as_text(said.get("type")), said.get("status")
        text = as_text(said.get("message")) or code or kind or "the provider gave no reason"
        number = said.get("code")
        transient = {code, kind} & self.transient or (isinstance(number, int) and number in self.again_in_stream)
        return self._kind(text, code or kind)(
            f"the provider reported an error: {text}",
            retryable=bool(transient) and not {code, kind} & self.permanent,
            retry_after=retry_after,
            code=code or kind,
            status=status if isinstance(status, int) else None,
        )

    def not_a_stream(
        self, content_type: str, body: bytes, request_id: str | None, *, is_cut: bool = False
    ) -> ModelError:
        """The error for a response that is no stream of events: a proxy's page, or a server at the wrong address."""
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            said = msgspec.json.decode(body)
            if isinstance(said, dict) and said.get("error"):
                return self.in_stream(said["error"])
        kind = content_type.partition(";")[0] or "no content type"
        what = f"the provider answered with {kind} instead of a stream of events"
        return QuotingError(what, body, "; is base_url right?", is_cut=is_cut, request_id=request_id)

    def _kind(self, text: str, code: str | None, status: int | None = None) -> type[ModelError]:
        if code is not None and code in self.kinds:
            return self.kinds[code]
        if self.too_long is not None and self.too_long.search(text):
            return ContextLengthError
        if status in (401, 403):
            return AuthenticationError
        if status == 429:
            return RateLimitError
        if status is None or status >= 500 or status in self.again:
            return ModelError
        return BadRequestError


class QuotingError(ModelStreamError):
    """An answer that can't be used, quoted as it came, secrets included. `cleaned` makes the error to be shown."""

    def __init__(self, before: str, quoted: bytes, after: str = "", *, is_cut: bool = False, **facts: Any) -> None:
        super().__init__(before, **facts)
        self._before, self._quoted, self._after, self._is_cut = before, quoted, after, is_cut

    def cleaned(self, secrets: Secrets) -> ModelStreamError:
        excerpt = secrets.excerpt(self._quoted.decode(errors="replace"), is_cut=self._is_cut)
        text = f"{self._before}: {excerpt or '(nothing)'}{self._after}"
        return ModelStreamError(text, request_id=self.request_id)


# -- connections ------------------------------------------------------------------------------------------------------


def no_answer(error: BaseException, secrets: Secrets) -> ModelConnectionError:
    """No headers came in time."""
    return ModelConnectionError(f"the provider did not answer in time: {_root(error, secrets)}", retryable=True)


def unreachable(error: BaseException, secrets: Secrets) -> ModelConnectionError:
    """No connection could be made."""
    why = _root(error, secrets)
    return ModelConnectionError(f"the provider can't be reached: {why}", retryable=_may_pass(error))


def of_connection(error: Exception, secrets: Secrets) -> ModelConnectionError | None:
    """An error of an HTTP library, after the headers came; None for any other error."""
    if type(error).__module__.partition(".")[0] not in _HTTP_LIBRARIES:
        return None
    is_late = "Timeout" in type(error).__name__
    what = "the provider stopped sending" if is_late else "the connection to the provider broke"
    return ModelConnectionError(f"{what}: {_root(error, secrets)}", retryable=True)


def _may_pass(error: BaseException) -> bool:
    """Whether another attempt may succeed: an address or a header that makes no sense will not become better."""
    seen: BaseException | None = error
    while seen is not None:
        if type(seen).__name__ in _NEVER_BETTER:
            return False
        seen = seen.__cause__ or seen.__context__
    return True


def _root(error: BaseException, secrets: Secrets) -> str:
    """The text of the first cause: the libraries above it only say that something failed."""
    words, seen = say(error), error
    while (below := seen.__cause__ or seen.__context__) is not None:
        seen = below
        words = say(below) or words
    return f"{secrets.excerpt(words)} ({type(seen).__name__})" if words else type(seen).__name__


# -- streams ----------------------------------------------------------------------------------------------------------


def mended(payload: bytes, error: object) -> bytes:
    """An event that could not be decoded, without the lone surrogates in it; raises if there are none.

    JSON can write half a character, as in "\\ud83d", and UTF-8 can't. For an error of `UNREADABLE`.
    """
    if (whole := sendable_json(payload)) == payload:
        raise QuotingError(f"the provider sent an event that can't be read ({error})", payload)
    return whole


def ended_early() -> ModelStreamError:
    return ModelStreamError("the provider's stream ended early, before the answer was complete", retryable=True)


def gave_up(reason: str) -> ModelError:
    """The stream ended in order, and its last event says that the answer is not complete."""
    text = f"the provider gave up in the middle of the answer: its finish reason is {reason!r}"
    return ModelError(text, retryable=True, code=reason)


# -- all of them ------------------------------------------------------------------------------------------------------


async def report(
    request: Awaitable[object],
    translate: Callable[[Exception, Secrets], ModelError | None],
    secrets: Callable[[], Secrets],
) -> None:
    """Await a request. Its errors become ours by `translate`, and all that pass are without the secrets sent.

    `translate` returns None for an error that the provider and the connection have no part in; that one is raised as
    it is. `secrets` is only called after a failure.
    """
    failure: ModelError | None = None
    try:
        await request
    except ModelError as error:
        if (failure := _cleaned(error, secrets())) is error:
            raise
    except Exception as error:
        hidden = secrets()
        failure = translate(error, hidden)
        if failure is None:
            hidden.clean(error)
            raise
    if failure is not None:
        # Raised out here, so that its context is not the other error, with its frames, its request and the key in it.
        raise failure


def _cleaned(error: ModelError, secrets: Secrets) -> ModelError:
    """An error of ours as it may be shown: the provider may have quoted what it was sent."""
    if isinstance(error, QuotingError):
        return error.cleaned(secrets)
    error.args = tuple(secrets.hide(each) if isinstance(each, str) else each for each in error.args)
    error.code = None if error.code is None else secrets.hide(error.code)
    return error


def retry_after(headers: Mapping[str, str], names: Mapping[str, float] | None = None) -> float | None:
    """How many seconds the provider asks to wait.

    `names` are the headers that say so, with the seconds that their unit is; by default those that most providers use.
    `retry-after` may also be a date.
    """
    for name, unit in (names or {"retry-after-ms": 0.001, "retry-after": 1.0}).items():
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    try:
        moment = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
    except (TypeError, ValueError):
        return None
    return max(0.0, moment.timestamp() - time.time())


def as_text(value: object) -> str | None:
    """A field of a provider's error, which may be a number where text is usual."""
    return value if isinstance(value, str) else None if value is None else str(value)
