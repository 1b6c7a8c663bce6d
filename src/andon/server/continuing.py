# SPDX-License-Identifier: Apache-2.0
"""The routes that continue a run, with a person's answers or after a cut; and the cancel of one tool call.

A question is answered by its id (`answers`), or, as in the AgentOS family, by the tool call that asks (`tools`, each
with `confirmed`). The request that continues a run becomes its owner: if that client disconnects, the run is cancelled,
as for the request that starts a run.

A run that was cut continues as a new run. The new run takes its own limits and schema; without a schema it keeps the
one of the run before. A paused run keeps all of its options, so these fields are refused for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from fastapi import APIRouter, Request
from msgspec import Struct
from starlette.responses import Response

from andon.agent.agent import Agent
from andon.agent.json_schema import JsonSchema
from andon.agent.options import ContinueOptions
from andon.core.receipt import Deny, Interrupt
from andon.core.records import RequestKey, RunRecord
from andon.core.run.run import LocalRun
from andon.core.states import CancelOutcome, RunStatus
from andon.errors import AndonError
from andon.server.authorized_host import AuthorizedHost, host_of
from andon.server.body import check_run_id, openapi_body, parse_json_field, read_body, read_key
from andon.server.host import session_of, user_of
from andon.server.idempotency import start_once
from andon.server.ignored_fields import AGENTOS_CONTINUE
from andon.server.output_schema import read_output_schema
from andon.server.problems import Problem, problem_of
from andon.server.queued_runs import AcceptedRun
from andon.server.requested_limits import requested_limits
from andon.server.responses import json_response
from andon.server.run_location import run_headers
from andon.server.runs import check_reason, respond_to_start

router = APIRouter()


class Continue(Struct):
    """The body of a request to continue a run. `answers` and `tools` are JSON, in a form as text. The limits and the
    schema are for the new run that is made after a cut.
    """

    ignored_fields: ClassVar = AGENTOS_CONTINUE

    answers: str | dict[str, Any] | None = None
    tools: str | list[Any] | None = None
    run_id: str | None = None
    """The id of the new run after a cut. A paused run keeps its id."""
    stream: bool = True
    background: bool = False
    on_disconnect: Literal["cancel", "continue"] | None = None
    events: Literal["all", "agentos"] | None = None
    timeout: float | None = None
    max_turns: int | None = None
    budget: int | dict[str, int | None] | str | None = None
    output_schema: dict[str, Any] | str | None = None


OPTIONS = ("timeout", "max_turns", "budget", "output_schema")
"""The fields that only a new run takes."""


class CancelCall(Struct):
    reason: str | None = None
    force: bool = False
    """Don't let it finish, if its tool says `on_cancel="finish"`."""


@router.post("/agents/{agent_id}/runs/{run_id}/continue", openapi_extra=openapi_body(Continue))
async def continue_run(request: Request, agent_id: str, run_id: str) -> Response:
    host = host_of(request)
    agent = await host.agent_of(agent_id, run_id)
    wanted = await read_body(request, Continue, host.settings.max_body)
    check_run_id(wanted.run_id)
    options = requested_limits(agent, wanted.max_turns, wanted.timeout, wanted.budget)
    form = read_output_schema(wanted.output_schema)
    key = read_key(request, wanted, "continue", run_id)
    user_id = user_of(await host.find(agent, run_id))
    found = await start_once(host, agent, user_id, key, lambda: _go_on(host, agent, run_id, wanted, options, form, key))
    return await respond_to_start(host, agent, wanted, found)


async def _go_on(
    host: AuthorizedHost,
    agent: Agent,
    run_id: str,
    wanted: Continue,
    options: ContinueOptions,
    form: JsonSchema | None,
    key: RequestKey | None,
) -> tuple[LocalRun | AcceptedRun, int]:
    """The run, and the number of its last event before it continued."""
    found = await host.find(agent, run_id)
    _check_options(wanted, found)
    answers = _answers(wanted, found.interrupts)
    return await host.resume_run(agent, run_id, answers, wanted.run_id, key, options, form)


@router.post("/agents/{agent_id}/runs/{run_id}/rollback")
async def roll_back_run(request: Request, agent_id: str, run_id: str) -> Response:
    """Put the session back to what it was before this run. The run stays on record."""
    host = host_of(request)
    agent = await host.agent_of(agent_id, run_id)
    found = await host.find(agent, run_id)
    try:
        await agent.rollback_run(run_id)
    except AndonError as error:
        raise problem_of(error) from None
    session_id = session_of(found).session_id
    view = {"run_id": run_id, "session_id": session_id, "rolled_back": True}
    return json_response(view, headers=run_headers(run_id))


@router.post("/agents/{agent_id}/runs/{run_id}/tools/{call_id}/cancel", openapi_extra=openapi_body(CancelCall))
async def cancel_call(request: Request, agent_id: str, run_id: str, call_id: str) -> Response:
    """Cancel one tool call. The run goes on."""
    host = host_of(request)
    agent = await host.agent_of(agent_id, run_id)
    wanted = await read_body(request, CancelCall, host.settings.max_body)
    check_reason(wanted.reason)
    found = await host.find(agent, run_id)
    if isinstance(found, LocalRun):
        outcome, status = found.cancel_tool(call_id, wanted.reason, wanted.force), found.status
    else:
        outcome, status = await _cancel_call_there(host, agent, found, call_id, wanted)
    view = {"run_id": run_id, "call_id": call_id, "outcome": outcome, "status": status}
    if outcome is CancelOutcome.unknown:
        raise Problem(404, f"run {run_id!r} has no tool call {call_id!r}")
    if not outcome:
        raise Problem(409, f"the tool call {call_id!r} had ended before it could be cancelled", **view)
    return json_response(view, headers=run_headers(run_id))


async def _cancel_call_there(
    host: AuthorizedHost, agent: Agent, record: RunRecord, call_id: str, wanted: CancelCall
) -> tuple[CancelOutcome, RunStatus]:
    """Cancel a call of a run that this process does not hold. Raises if it is not known what that achieved."""
    remote, run_id = host.stored_run(agent, record), record.run_id
    if remote is None or record.status.final:
        return CancelOutcome.already_finished, record.status
    answer = await remote.cancel_tool(call_id, wanted.reason, wanted.force)
    if answer is None:
        return CancelOutcome.unknown, record.status
    if answer.outcome is not None:
        return answer.outcome, answer.status
    if answer.status.final:
        return CancelOutcome.already_finished, answer.status
    if answer.waits:
        detail = f"the process that has run {run_id!r} has not answered yet, and cancels the call when it can"
        raise Problem(503, f"{detail}: repeat this request to learn what became of it", {"retry-after": "1"})
    if answer.status is RunStatus.paused:
        raise Problem(409, f"run {run_id!r} is paused: refuse the call in an answer, or cancel the run")
    if record.bookmark is None:  # it waits for a worker process, and has not begun
        return CancelOutcome.unknown, answer.status
    raise Problem(409, f"run {run_id!r} was answered, and waits for a worker process: cancel the run, or try later")


def _check_options(wanted: Continue, found: LocalRun | RunRecord) -> None:
    given = [name for name in OPTIONS if getattr(wanted, name) is not None]
    if not given or found.status.final:
        return
    if found.status is RunStatus.paused:
        detail = f"run {found.run_id!r} is paused, and keeps its options: leave out {', '.join(given)}"
        raise Problem(422, f"{detail}. Nothing has changed")
    raise Problem(409, f"run {found.run_id!r} is {found.status.name}: wait for its end, or cancel it")


def _answers(wanted: Continue, interrupts: Sequence[Interrupt]) -> dict[str, Any]:
    answers = parse_json_field(wanted.answers, "answers", dict, 400) or {}
    given = {key: _deny(value) for key, value in answers.items()}
    by_call: dict[Any, list[str]] = {}
    for each in interrupts:
        by_call.setdefault(each.call_id, []).append(each.id)
    tools = parse_json_field(wanted.tools, "tools", list, 400) or []
    if tools and not by_call:
        raise Problem(400, "tools: no call of this run waits for an answer; to go on after a cut, leave them out")
    # From the end: the family's clients send back every call of the run, with earlier answers. Only the calls that wait
    # count, and a call that asks several questions is listed once for each. `resume_run` refuses missing answers.
    for tool in reversed(tools):
        if not isinstance(tool, dict) or not isinstance(tool.get("tool_call_id"), str | None):
            raise Problem(400, "tools: each is an object with `tool_call_id`, and `confirmed` or a `result`")
        questions, answered = by_call.get(tool.get("tool_call_id")), _answer_of(tool)
        if questions:
            question = questions.pop()
            if answered is not None:
                given[question] = answered
    return given


def _answer_of(tool: dict[str, Any]) -> Any:
    """The answer in a tool execution of the AgentOS family: confirmed, refused, or a result; None if there is none."""
    if tool.get("confirmed") is False:
        return Deny(str(tool.get("confirmation_note") or ""))
    return tool.get("result") if tool.get("result") is not None else tool.get("confirmed")


def _deny(value: Any) -> Any:
    """`{"deny": "why"}` is a refusal with a reason in JSON."""
    return Deny(str(value["deny"])) if isinstance(value, dict) and value.keys() == {"deny"} else value
