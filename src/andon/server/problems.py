# SPDX-License-Identifier: Apache-2.0
"""Errors as JSON: always an object with `detail`, a sentence that says what is wrong and what to do."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from fastapi import FastAPI, HTTPException, Request
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import JSONResponse, Response

from andon.errors import (
    AndonError,
    AnswersError,
    BlockedError,
    ConfigurationError,
    EmptyPromptError,
    FullError,
    HistoryError,
    KeyUsedError,
    NotContinuableError,
    RunIdTakenError,
    SchemaError,
    SessionBusyError,
    SessionExistsError,
    SessionPausedError,
    SetupError,
    StateTooLargeError,
    StoreError,
    UnknownRunError,
    UnknownSessionError,
    UnsupportedContentError,
)

log = logging.getLogger(__name__)


class Problem(HTTPException):
    """An error response. `more` are further fields beside `detail`. Our own `detail` is always a sentence."""

    def __init__(self, code: int, detail: Any, headers: dict[str, str] | None = None, /, **more: Any) -> None:
        super().__init__(code, detail, headers)
        self.more = more


def problem_of(error: AndonError) -> Problem:
    """The response for an error of Andon."""
    if isinstance(error, SessionPausedError):
        here = f"Over HTTP: POST /agents/…/runs/{error.run_id}/continue, or …/cancel."
        return Problem(409, f"{error} {here}", run_id=error.run_id)
    if isinstance(error, SessionBusyError):
        return Problem(409, str(error), run_id=error.run_id)
    if isinstance(error, RunIdTakenError | KeyUsedError | NotContinuableError | SessionExistsError):
        return Problem(409, str(error))
    if isinstance(error, FullError):
        return Problem(429, str(error), {"retry-after": "1"})
    if isinstance(error, BlockedError):
        return Problem(403, str(error))
    if isinstance(error, UnknownRunError | UnknownSessionError):
        return Problem(404, str(error))
    if isinstance(error, AnswersError):
        return Problem(400, str(error), interrupts=msgspec.to_builtins(error.interrupts))
    if isinstance(error, SchemaError):  # not the client's mistake, and the text names the database
        log.error("the database can't be used: %s", error)
        return Problem(503, "the database can't be used as it is; the server's log says why")
    if isinstance(error, SetupError):  # not the client's mistake; the text has no secret in it
        log.error("a run can't be started as this server is set up: %s", error)
        return Problem(500, f"the server is not set up to run this agent: {error}")
    if isinstance(error, StateTooLargeError):
        return Problem(413, str(error))
    if isinstance(error, UnsupportedContentError):
        return Problem(415, str(error))
    if isinstance(error, EmptyPromptError | HistoryError | ConfigurationError):
        return Problem(422, str(error))
    if isinstance(error, StoreError):  # the text names the database: only the log has it
        log.warning("the database can't be asked: %s", error)
        done = f" ({error.done})" if error.done else ""
        return Problem(503, f"the database can't be asked just now: try again later{done}", {"retry-after": "1"})
    return Problem(500, str(error))


def install(app: FastAPI) -> None:
    app.add_exception_handler(StarletteHTTPException, _answer)
    for kind in (StoreError, SchemaError, StateTooLargeError):
        app.add_exception_handler(kind, _answer_error)
    app.add_exception_handler(Exception, _answer_defect)


async def _answer(request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    more = error.more if isinstance(error, Problem) else {}
    return JSONResponse({"detail": error.detail, **more}, error.status_code, error.headers)


async def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, AndonError)
    return await _answer(request, problem_of(error))


async def _answer_defect(request: Request, error: Exception) -> Response:
    # The ASGI server logs the traceback. The client does not get it.
    return JSONResponse({"detail": "the server failed to answer this; its log says why"}, 500)
