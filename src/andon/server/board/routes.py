# SPDX-License-Identifier: Apache-2.0
"""The routes that feed a board."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from msgspec import UNSET, Struct, UnsetType
from starlette.responses import Response

from andon.core.receipt import Interrupt
from andon.core.states import RunStatus
from andon.server.authorized_host import host_of
from andon.server.board.board import Board
from andon.server.board.history import HOURS
from andon.server.board.lines import Line
from andon.server.board.stream import BoardResponse
from andon.server.board.tree import MOST_RUNS, prompt_of, run_tree
from andon.server.board.words import describe_receipt
from andon.server.body import read_query
from andon.server.problems import Problem
from andon.server.responses import json_response

router = APIRouter()


class HistoryQuery(Struct):
    hours: int = 1


class Tree(Struct):
    """A run and the runs below it."""

    now: float
    runs: list[Line]
    """The run itself, then the runs that were started inside it, and those inside them, oldest first."""
    prompt: str
    """The prompt of the run. Empty if it is not known, or not yet."""
    receipt: list[str]
    """The receipt in words, if the run was cancelled."""
    questions: list[Interrupt]
    """The questions that are open now."""
    more: bool | UnsetType = UNSET


def board_of(request: Request) -> Board:
    board = request.app.state.board
    assert isinstance(board, Board)
    return board


@router.get("/board/events")
async def board_events(request: Request) -> Response:
    return BoardResponse(board_of(request), host_of(request).principal, request.headers.get("last-event-id"))


@router.get("/board/runs/{agent_id}/{run_id}")
async def board_run(request: Request, agent_id: str, run_id: str) -> Response:
    host = host_of(request)
    agent = await host.agent_of(agent_id, run_id)
    found = await host.find(agent, run_id)
    runs = await run_tree(board_of(request), host, agent, found)
    receipt = [] if found.receipt is None else describe_receipt(found.receipt)
    asked = found.interrupts if found.status is RunStatus.paused else []
    more = True if len(runs) > MOST_RUNS else UNSET
    return json_response(Tree(time.time(), runs[:MOST_RUNS], await prompt_of(agent, found), receipt, asked, more))


@router.get("/board/history")
async def board_history(request: Request) -> Response:
    host, wanted = host_of(request), read_query(request, HistoryQuery)
    if not 1 <= wanted.hours <= HOURS:
        raise Problem(422, f"hours is {wanted.hours}; it is a number from 1 to {HOURS}")
    return json_response(board_of(request).plots(host.principal, wanted.hours))
