# SPDX-License-Identifier: Apache-2.0
"""Shortens what a run sends to its model, as the agent's context policy decides.

The policy is a step of the run. A model that it uses is called in that step's task, so a cancel cuts both. The cost of
such a call is known at every moment, so `settle` finds it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from andon.agent.context import ContextPolicy, check_sendable
from andon.agent.plan import Plan
from andon.agent.turn import Turn
from andon.core.events import ContextView, RunEvent
from andon.core.records import Shortened
from andon.core.run.run import LocalRun
from andon.core.states import CancelMode, Phase
from andon.core.store import SessionStore
from andon.errors import ContextError, StoreError, describe
from andon.messages import Message, Usage, estimate_messages, estimate_tokens, user
from andon.models.base import Model, ModelRequest

LEAST_TOKENS = 100
"""The provider's count for a smaller call says nothing about the next one."""


class SideWork:
    """The model calls of a run's context policy: what they have cost, and the summary that they made."""

    __slots__ = ("counted", "in_flight", "summary")

    def __init__(self) -> None:
        self.counted = Usage()
        self.in_flight: list[Turn] = []
        self.summary: Shortened | None = None

    @property
    def spent(self) -> Usage:
        """What all calls have cost, those in flight included."""
        return sum((turn.spent_cut() for turn in self.in_flight), self.counted)


class ContextFitter:
    """Makes the conversation fit: knows how long it is, what was left out, and what the provider has refused."""

    __slots__ = (
        "_asking",
        "_known_summary",
        "_left_out",
        "_limit",
        "_looked_in_store",
        "_open",
        "_plan",
        "_play",
        "_policy",
        "_ratio",
        "_run",
        "_side_work",
        "notes",
    )

    def __init__(
        self,
        policy: ContextPolicy,
        plan: Plan,
        run: LocalRun,
        side_work: SideWork,
        play: Callable[[Turn], Awaitable[None]],
    ) -> None:
        self._policy, self._plan, self._run, self._side_work, self._play = policy, plan, run, side_work, play
        self._ratio = 1.0
        """The input tokens that the provider counted in the last call, divided by our estimate."""
        self._limit: int | None = None
        """Half of the size that the provider has refused."""
        self._known_summary: Shortened | None = None
        self._looked_in_store = False
        self._left_out: int | None = None
        """How many messages were left out, as the last `context_reduced` event says."""
        self._open = False
        """The policy is running, and may call models."""
        self._asking: set[asyncio.Task[Any]] = set()
        """The tasks that wait for a model's answer. The policy's own task may be one of them."""
        self.notes: dict[object, Any] = {}
        """The policy's own data."""

    # -- before a model call ------------------------------------------------------------------------------------------

    async def fit(self, request: ModelRequest) -> ModelRequest:
        """The request with the messages that the policy has chosen."""
        whole, window = request.messages, Window(self, request)
        self._run.phase = Phase.waiting
        answer = await self._run.steps.start(
            functools.partial(self._run_policy, whole, window),
            name="the context",
            cut_by=CancelMode.after_tools,
            on_cut=self._shut_turns,
        )
        if answer == whole:
            return request
        sent = check_sendable(answer, f"context {getattr(self._policy, '__name__', None) or repr(self._policy)}")
        fitted = msgspec.structs.replace(request, messages=sent)
        # A policy often leaves out the same number of messages in each call. Then there is one event for all of them.
        if (left_out := len(whole) - len(sent)) != self._left_out:
            self._left_out = left_out
            tokens = self.measure(request), self.measure(fitted)
            self._run.journal.add(RunEvent.context_reduced, context=ContextView(len(whole), len(sent), *tokens))
        return fitted

    async def _run_policy(self, messages: list[Message], window: Window) -> list[Message]:
        self._open = True
        try:
            answer = self._policy(list(messages), window)
            return await answer if inspect.isawaitable(answer) else answer
        finally:
            self._open = False
            if self._asking:
                await self._cut_asking()

    async def _cut_asking(self) -> None:
        """Cut the model calls that outlived the policy: if one fails, `asyncio.gather` lets the others go on."""
        tasks = list(self._asking)
        for task in tasks:
            self._run.steps.leave_behind(task, "a model that the context asks")  # until it is gone
            task.add_done_callback(self._run.steps.picked_up)
            if not task.cancelling():
                task.cancel()
        await asyncio.wait(tasks, timeout=self._run.bounds.abandon_seconds)

    def refused(self, request: ModelRequest) -> None:
        """The provider found this too long. From now on the limit is half of it."""
        self._limit = max(1, self.measure(request) // 2)

    def limit(self, tokens: int | None) -> int | None:
        return min((each for each in (tokens, self._limit) if each is not None), default=None)

    # -- counting -----------------------------------------------------------------------------------------------------

    def measure(self, request: ModelRequest) -> int:
        """About how many tokens the provider will count."""
        return -int(-self._ratio * _estimate(request) // 1)

    def learn(self, request: ModelRequest, usage: Usage) -> None:
        """Correct the estimate by what the provider has counted for the request.

        The answer's tokens are not used: most of them may be reasoning, which is not sent again.
        """
        counted, estimated = usage.input_tokens, _estimate(request)
        if counted and estimated >= LEAST_TOKENS:  # some servers don't count, and say 0
            # In eighths, so that what is left out does not change with every call.
            self._ratio = min(8.0, max(0.25, -(-counted * 8 // estimated) / 8))

    # -- the policy calls a model -------------------------------------------------------------------------------------

    async def ask_model(self, prompt: str, instructions: str | None, model: Model | None) -> str:
        if not self._open:
            raise ContextError("a model was asked after the policy had returned: await the answer in it")
        task = asyncio.current_task()
        assert task is not None
        self._asking.add(task)
        try:
            return await self._call_model(ModelRequest([user(prompt)], instructions, []), model)
        finally:
            self._asking.discard(task)

    async def _call_model(self, request: ModelRequest, model: Model | None) -> str:
        attempt = 0
        while True:
            attempt += 1
            if self._run.children.meter is not None:
                self._run.children.meter.check()
            self._run.steps.gate(CancelMode.after_turn)  # the turn that needs this answer would never begin
            turn = Turn(self._run, request, model or self._plan.model, quiet=True)
            self._side_work.in_flight.append(turn)
            try:
                await self._play(turn)
            except Exception as error:
                self._count(turn, turn.spent_failed())
                delay = self._plan.retry.delay(error, attempt)
                if delay is None:
                    raise
                self._run.journal.add(RunEvent.model_retry, error=describe(error), delay=delay)
                await asyncio.sleep(delay)
            except BaseException:  # cut: the turn stays in flight, and `settle` counts it
                self._charge(turn.spent_cut())
                raise
            else:
                self._count(turn, turn.spent())
                return turn.content()

    def _count(self, turn: Turn, usage: Usage) -> None:
        turn.shut()
        self._side_work.in_flight.remove(turn)
        self._side_work.counted += usage
        self._charge(turn.spent_cut() if usage.total_tokens is None else usage)

    def _charge(self, usage: Usage) -> None:
        if self._run.children.meter is not None:
            self._run.children.meter.spend(usage.total_tokens or 0)

    def _shut_turns(self) -> None:
        for turn in self._side_work.in_flight:
            turn.shut()

    # -- the summary --------------------------------------------------------------------------------------------------

    async def recall(self, messages: Sequence[Message]) -> Shortened | None:
        store = self._plan.store
        self._known_summary = self._side_work.summary or self._known_summary  # made before a pause, maybe
        if self._known_summary is None and not self._looked_in_store and isinstance(store, SessionStore):
            try:
                history = await store.history(self._run.session.key)
            except StoreError as error:
                self._run.steps.warn("the summary of the session could not be read", error=error)
                return None
            made = [record.shortened for record, _ in history if record.shortened is not None]
            self._known_summary = next((each for each in reversed(made) if _is_of(each, messages)), None)
            self._looked_in_store = True
        return self._known_summary

    def remember(self, messages: Sequence[Message], covers: int, summary: str) -> None:
        self._known_summary = self._side_work.summary = Shortened(covers, _digest(messages[:covers]), summary)

    @property
    def run(self) -> LocalRun:
        return self._run


class Window:
    """What a policy is given for one model call: a `ContextWindow`."""

    __slots__ = ("_fitter", "_request")

    def __init__(self, fitter: ContextFitter, request: ModelRequest) -> None:
        self._fitter, self._request = fitter, request

    @property
    def run_id(self) -> str:
        return self._fitter.run.run_id

    @property
    def session_id(self) -> str:
        return self._fitter.run.session_id

    @property
    def agent_id(self) -> str:
        return self._fitter.run.agent_id

    @property
    def user_id(self) -> str | None:
        return self._fitter.run.user_id

    def tokens(self, messages: Sequence[Message]) -> int:
        return self._fitter.measure(msgspec.structs.replace(self._request, messages=list(messages)))

    def limit(self, tokens: int | None) -> int | None:
        return self._fitter.limit(tokens)

    async def recall(self) -> Shortened | None:
        return await self._fitter.recall(self._request.messages)

    def remember(self, covers: int, summary: str) -> None:
        self._fitter.remember(self._request.messages, covers, summary)

    async def ask(self, prompt: str, instructions: str | None = None, model: Model | None = None) -> str:
        return await self._fitter.ask_model(prompt, instructions, model)

    @property
    def notes(self) -> dict[object, Any]:
        return self._fitter.notes

    def warn(self, text: str) -> None:
        self._fitter.run.steps.warn(text)


def _estimate(request: ModelRequest) -> int:
    tools = (tool.name + tool.description + str(tool.parameters) for tool in request.tools)
    output = "" if request.output is None else str(request.output.schema)
    return estimate_tokens([request.instructions or "", output, *tools]) + estimate_messages(request.messages)


def _is_of(summary: Shortened, messages: Sequence[Message]) -> bool:
    """Whether it is a summary of the beginning of these messages. They may have been rolled back or replaced."""
    return summary.covers < len(messages) and summary.digest == _digest(messages[: summary.covers])


def _digest(messages: Sequence[Message]) -> str:
    import hashlib  # here, because it is slow to import, and most runs never need it

    try:
        return hashlib.blake2b(msgspec.json.encode(messages), digest_size=16).hexdigest()
    except UnicodeEncodeError:  # a lone surrogate, which no database stores: such a summary is made again
        return ""
