# SPDX-License-Identifier: Apache-2.0
"""What goes wrong before a run, as JSON: always an object with `detail`, a sentence that says what to do."""

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
    NotContinuableError,
    RunIdTakenError,
    SchemaError,
    SessionBusyError,
    SessionPausedError,
    StoreError,
    UnknownRunError,
)

log = logging.getLogger("andon.server")


class Problem(HTTPException):
    """An answer other than the one that was hoped for; `more` goes beside `detail`."""

    def __init__(self, code: int, detail: str, headers: dict[str, str] | None = None, /, **more: Any) -> None:
        super().__init__(code, detail, headers)
        self.more = more


def problem_of(error: AndonError) -> Problem:
    """What kept a run from starting, as an answer."""
    if isinstance(error, SessionPausedError):
        here = f"Over HTTP: POST /agents/…/runs/{error.run_id}/continue, or …/cancel."
        return Problem(409, f"{error} {here}", run_id=error.run_id)
    if isinstance(error, SessionBusyError):
        return Problem(409, str(error), run_id=error.run_id)
    if isinstance(error, RunIdTakenError | NotContinuableError):
        return Problem(409, str(error))
    if isinstance(error, BlockedError):
        return Problem(403, str(error))
    if isinstance(error, UnknownRunError):
        return Problem(404, str(error))
    if isinstance(error, AnswersError):
        return Problem(400, str(error), interrupts=msgspec.to_builtins(error.interrupts))
    if isinstance(error, SchemaError):  # no mistake of whoever asks, and it names the database
        log.error("the database can't be used: %s", error)
        return Problem(503, "the database can't be used as it is; the server's log says why")
    if isinstance(error, EmptyPromptError | ConfigurationError):
        return Problem(422, str(error))
    if isinstance(error, StoreError):
        return Problem(503, f"the store can't be asked just now: {error}", {"retry-after": "1"})
    return Problem(500, str(error))


def install(app: FastAPI) -> None:
    app.add_exception_handler(StarletteHTTPException, _answer)
    app.add_exception_handler(StoreError, _answer_outage)
    app.add_exception_handler(Exception, _answer_defect)


async def _answer(request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    more = error.more if isinstance(error, Problem) else {}
    return JSONResponse({"detail": error.detail, **more}, error.status_code, error.headers)


async def _answer_outage(request: Request, error: Exception) -> Response:
    assert isinstance(error, StoreError)
    return await _answer(request, problem_of(error))


async def _answer_defect(request: Request, error: Exception) -> Response:
    # The server logs the traceback; what is in it is not for strangers.
    return JSONResponse({"detail": "the server failed to answer this; its log says why"}, 500)
