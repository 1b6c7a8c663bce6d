# SPDX-License-Identifier: Apache-2.0
"""The questions of a run, as forms for the person at an MCP client (elicitation), and the answers.

Up to version 2025-11-25 of the protocol, the server asks while the client waits for its call. From 2026-07-28 on, the
call's result is the question, and the client calls again with the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import mcp_types as types
import msgspec
from mcp import MCPError

from andon.cli.questions import value_of
from andon.core.receipt import Deny, Interrupt
from andon.core.run.handle import Run, local_run
from andon.tools.mcp.call import ELICITATION
from andon.tools.mcp.session import MODERN

ANSWER_SECONDS = 900.0
"""After this time without an answer, the run is cancelled: the client may have forgotten it."""

_APPROVAL = {
    "type": "object",
    "properties": {
        "allow": {"type": "boolean", "title": "Allow it?"},
        "why": {"type": "string", "title": "If not: why?"},
    },
    "required": ["allow"],
}
_ANSWER = {
    "type": "object",
    "properties": {"answer": {"type": "string", "title": "Answer", "description": "Text, or JSON."}},
    "required": ["answer"],
}


class NotAnswered(Exception):  # noqa: N818 - no failure of ours
    """There is no answer. The text says why."""


def can_ask(context: Any) -> bool:
    """The client has said that it can show a form to a person."""
    capabilities = context.session.client_capabilities
    offered = None if capabilities is None else capabilities.elicitation
    return offered is not None and (offered.form is not None or offered.url is None)  # neither: it is from before URLs


def asks_by_result(context: Any) -> bool:
    """True if the question is the result of the call, and the answer comes with another call."""
    return str(context.protocol_version) >= MODERN


class Asked:
    """The questions of a paused run. They are open as long as the run waits for the answers."""

    def __init__(self, run: Run[Any], questions: Sequence[Interrupt]) -> None:
        self.run, self.questions = run, questions
        self._pause = local_run(run).pause

    @property
    def is_open(self) -> bool:
        """False if the run was cancelled, or was answered in another way, in this process or in another one."""
        run = local_run(self.run)
        return run.is_paused and run.pause is self._pause and run.runtime.find(run.run_id) is run

    def check(self) -> None:
        if not self.is_open:
            raise NotAnswered("the question is not open any more")

    async def closed(self) -> None:
        """Wait until the questions are not open any more."""
        await local_run(self.run).steps.waiters.wait(lambda: not self.is_open)


async def ask(context: Any, asked: Asked) -> dict[str, Any]:
    """Have the client ask its person, as long as the questions are open. Raises `NotAnswered`."""
    with anyio.CancelScope() as scope:
        watch = asyncio.create_task(_cancel_when_closed(asked, scope))
        try:
            return await _ask_each(context, asked.questions)
        finally:
            watch.cancel()
    raise NotAnswered("the question is not open any more")


async def _cancel_when_closed(asked: Asked, scope: anyio.CancelScope) -> None:
    await asked.closed()
    scope.cancel()


async def _ask_each(context: Any, questions: Sequence[Interrupt]) -> dict[str, Any]:
    """One question after the other."""
    answers: dict[str, Any] = {}
    for question in questions:
        form = _form(question)
        try:
            with anyio.fail_after(ANSWER_SECONDS):
                result = await context.session.elicit_form(form.message, form.requested_schema, context.request_id)
        except MCPError as error:
            raise NotAnswered(f"the client refuses the question ({error.error.message})") from None
        except TimeoutError:
            raise NotAnswered(f"no answer came within {ANSWER_SECONDS:g} s") from None
        answers[question.id] = _answer(question, result)
    return answers


def as_result(questions: Sequence[Interrupt], state: str) -> types.InputRequiredResult:
    requests: Any = {question.id: types.ElicitRequest(params=_form(question)) for question in questions}
    return types.InputRequiredResult(input_requests=requests, request_state=state)


def read_answers(questions: Sequence[Interrupt], responses: Mapping[str, Any] | None) -> dict[str, Any]:
    """The answers that came with another call. Raises `NotAnswered`."""
    return {question.id: _answer(question, (responses or {}).get(question.id)) for question in questions}


def describe(questions: Sequence[Interrupt]) -> str:
    return "; ".join(_form(question).message for question in questions)


def _form(question: Interrupt) -> types.ElicitRequestFormParams:
    name, payload = question.name, question.payload
    if question.approval:
        return types.ElicitRequestFormParams(
            message=f"{name} wants to run{_written(payload)}", requested_schema=_APPROVAL
        )
    if _is_form(question):  # an MCP server of the agent asks: the client gets the form of that server
        message = f"{payload['server']} asks: {payload['message']}"
        return types.ElicitRequestFormParams(message=message, requested_schema=payload["schema"])
    return types.ElicitRequestFormParams(message=f"{name}{_written(payload)}", requested_schema=_ANSWER)


def _is_form(question: Interrupt) -> bool:
    return question.name == ELICITATION and isinstance(question.payload, dict) and "schema" in question.payload


def _written(payload: Any) -> str:
    return "" if payload in (None, {}) else f": {msgspec.json.encode(payload).decode()}"


def _answer(question: Interrupt, result: object) -> Any:
    """What the run is told."""
    if not isinstance(result, types.ElicitResult) or result.action == "cancel":
        raise NotAnswered("the person gave no answer")
    if result.action == "decline":
        return False
    content = result.content or {}
    if question.approval:
        if content.get("allow") is True:
            return True
        return Deny(why) if isinstance(why := content.get("why"), str) and why else False
    if _is_form(question):
        return content
    if "answer" not in content:
        raise NotAnswered("the client has sent no answer")
    answer = content["answer"]
    return value_of(answer) if isinstance(answer, str) else answer
