# SPDX-License-Identifier: Apache-2.0
"""The routes of an agent's sessions: read one, replace its messages, fork it, delete it.

Messages are in Andon's format with all of their blocks, so that messages that were read can be sent back. Messages can
only be changed while no run is in the session; otherwise the response is a 409 with the run's id.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from fastapi import APIRouter, Request
from msgspec import Struct
from starlette.responses import Response

from andon.agent.agent import Agent
from andon.agent.sessions import StoredSession
from andon.errors import AndonError
from andon.server.authorized_host import AuthorizedHost, host_of, unknown_user
from andon.server.body import (
    check_session_id,
    check_user_id,
    convert_fields,
    openapi_body,
    read_messages,
    read_query_and_body,
)
from andon.server.problems import Problem, problem_of
from andon.server.responses import large_json_response

T = TypeVar("T")

router = APIRouter()

SESSION = "/agents/{agent_id}/sessions/{session_id}"


class Whose(Struct):
    """The user of the session."""

    user_id: str | None = None


class Replace(Struct):
    """The new messages of a session. `messages` is JSON, in a form as text."""

    messages: str | list[Any]
    user_id: str | None = None


class Fork(Struct):
    """The id of the new session; without one it gets a fresh id."""

    session_id: str | None = None
    user_id: str | None = None


@router.get(SESSION)
async def get_conversation(request: Request, agent_id: str, session_id: str) -> Response:
    agent, user_id = await _whose(request, agent_id)
    found = await agent.sessions.get(session_id, user_id=user_id)
    if found is None:
        raise _unknown(agent, session_id)
    return await _answer(found)


@router.put(SESSION, openapi_extra=openapi_body(Replace))
async def replace_conversation(request: Request, agent_id: str, session_id: str) -> Response:
    """Replace the messages of a session. The session is created if it does not exist."""
    host = host_of(request)
    agent = host.agent(agent_id)
    wanted = await _read(request, host, Replace)
    _check(host, wanted.user_id, session_id)
    messages = read_messages(wanted.messages) or []
    try:
        async with host.session_slot(agent, wanted.user_id, session_id):
            found = await agent.sessions.replace(session_id, messages, user_id=wanted.user_id)
    except AndonError as error:
        raise problem_of(error) from None
    return await _answer(found)


@router.post(SESSION + "/fork", openapi_extra=openapi_body(Fork))
async def fork_conversation(request: Request, agent_id: str, session_id: str) -> Response:
    """Create another session that begins with the messages of this one."""
    host = host_of(request)
    agent = host.agent(agent_id)
    wanted = await _read(request, host, Fork)
    _check(host, wanted.user_id, wanted.session_id)
    try:
        async with host.session_slot(agent, wanted.user_id, wanted.session_id):
            made: StoredSession = await agent.sessions.fork(session_id, wanted.session_id, user_id=wanted.user_id)
    except AndonError as error:
        raise problem_of(error) from None
    return await _answer(made, 201)


@router.delete(SESSION, openapi_extra=openapi_body(Whose))
async def delete_conversation(request: Request, agent_id: str, session_id: str) -> Response:
    agent, user_id = await _whose(request, agent_id)
    try:
        gone = await agent.sessions.delete(session_id, user_id=user_id)
    except AndonError as error:
        raise problem_of(error) from None
    if not gone:
        raise _unknown(agent, session_id)
    return Response(status_code=204)


async def _whose(request: Request, agent_id: str) -> tuple[Agent, str | None]:
    """The agent, and the user in the query or the body."""
    host = host_of(request)
    agent = host.agent(agent_id)
    wanted = await _read(request, host, Whose)
    _check(host, wanted.user_id, None)
    return agent, wanted.user_id


async def _read(request: Request, host: AuthorizedHost, kind: type[T]) -> T:
    """The fields of the query and of the body as a struct."""
    return convert_fields(request, await read_query_and_body(request, host.settings.max_body), kind)


def _check(host: AuthorizedHost, user_id: str | None, session_id: str | None) -> None:
    if not host.principal.may_see(user_id):
        raise unknown_user(user_id)
    check_user_id(user_id)
    check_session_id(session_id)


async def _answer(found: StoredSession, status: int = 200) -> Response:
    head = msgspec.structs.asdict(found)
    messages = head.pop("messages")
    return await large_json_response(head, "messages", lambda: messages, status)


def _unknown(agent: Agent, session_id: str) -> Problem:
    return Problem(404, f"agent {agent.id!r} has no session {session_id!r}")
