# SPDX-License-Identifier: Apache-2.0
"""How Google rejects a request: its errors, in its words as far as they are known."""

from __future__ import annotations

from collections.abc import Sequence

from andon.testing.providers.api import Json, Rejection
from andon.testing.providers.script import Fail

_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_TYPE = "type.googleapis.com/google.rpc."


class Rejected(Rejection):
    """The request is answered with an error in Google's form."""

    def __init__(self, message: str, status: int = 400, *, details: Sequence[Json] = ()) -> None:
        error = error_of(status, message, details)
        super().__init__(message, status, error, {"error": error})


def error_of(status: int, message: str, details: Sequence[Json] = (), name: str | None = None) -> Json:
    error: Json = {"code": status, "message": message, "status": name or _STATUS.get(status, "UNKNOWN")}
    return {**error, "details": list(details)} if details else error


def info(reason: str) -> Json:
    """The reason, as one of the details."""
    service = {"service": "generativelanguage.googleapis.com"}
    return {"@type": f"{_TYPE}ErrorInfo", "reason": reason, "domain": "googleapis.com", "metadata": service}


def retry(seconds: str) -> Json:
    return {"@type": f"{_TYPE}RetryInfo", "retryDelay": f"{seconds}s"}


def bad_field(field: str, description: str) -> Rejected:
    """The JSON does not fit the request."""
    violation = {"field": field, "description": description}
    detail = {"@type": f"{_TYPE}BadRequest", "fieldViolations": [violation]}
    return Rejected(description, details=[detail])


def unknown(name: str, where: str) -> Rejected:
    at = f" at '{where}'" if where else ""
    return bad_field(where, f'Invalid JSON payload received. Unknown name "{name}"{at}: Cannot find field.')


def wrong(where: str, kind: str, value: object) -> Rejected:
    return bad_field(where, f"Invalid value at '{where}' ({kind}), {value!r}")


def invalid(where: str, why: str) -> Rejected:
    """The request fits, and its values don't."""
    return Rejected(f"* GenerateContentRequest.{where}: {why}\n")


def failure(word: Fail) -> Json:
    """The error that a script asks for. Its code becomes a reason, and its wait is in the details, as Google has it."""
    details = [info(word.code)] if word.code else []
    wait = next((value for name, value in word.headers.items() if name.lower() == "retry-after"), None)
    if wait is not None:
        details.append(retry(wait))
    return {"error": error_of(word.status, word.message, details, word.type)}
