# SPDX-License-Identifier: Apache-2.0
"""A run's side of its context policy: asks it, checks what it says, and tells of it.

The policy is a step of the run, and a model that it asks is asked in that step's task: a cancel cuts both like any
model call. What such a call has cost is true at every moment, so `settle` finds it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from andon.agent.context import ContextPolicy, check_sendable
from andon.agent.turn import Turn
from andon.core.events import ContextView, RunEvent
from andon.core.records import Shortened
from andon.core.run.run import Run
from andon.core.states import CancelMode, Phase
from andon.core.store import SessionStore
from andon.errors import ContextError, StoreError, describe
from andon.messages import Message, Usage, estimate_tokens, pieces_of, user
from andon.models.base import Model, ModelRequest

if TYPE_CHECKING:
    from andon.agent.tool_runner import Plan

LEAST_TOKENS = 100
"""Of a call with fewer, what the provider counts says nothing about the next one."""


class Aside:
    """What a run does beside its own answer, and leaves: what that has cost, and a summary of the conversation."""

    __slots__ = ("counted", "in_flight", "made")

    def __init__(self) -> None:
        self.counted = Usage()
        self.in_flight: list[Turn] = []
        self.made: Shortened | None = None

    @property
    def spent(self) -> Usage:
        """The model calls in flight included."""
        return sum((turn.spent_cut() for turn in self.in_flight), self.counted)


class Fitting:
    """What a run knows of its context: how long it is, what was left out, and what that has cost."""

    __slots__ = (
        "_aside",
        "_ask",
        "_asking",
        "_kept",
        "_looked",
        "_most",
        "_open",
        "_plan",
        "_policy",
        "_ratio",
        "_run",
        "_told",
        "notes",
    )

    def __init__(
        self, policy: ContextPolicy, plan: Plan, run: Run, aside: Aside, ask: Callable[[Turn], Awaitable[None]]
    ) -> None:
        self._policy, self._plan, self._run, self._aside, self._ask = policy, plan, run, aside, ask
        self._ratio = 1.0
        """The provider's input tokens for each that was estimated, by the last call."""
        self._most: int | None = None
        """Half of what the provider has refused."""
        self._kept: Shortened | None = None
        self._looked = False
        self._told: int | None = None
        self._open = False
        """The policy is at work, and may ask models."""
        self._asking: set[asyncio.Task[Any]] = set()
        """The tasks in which it does; its own is among them while it waits for an answer."""
        self.notes: dict[object, Any] = {}
        """The policy's own."""

    # -- before a model call ------------------------------------------------------------------------------------------

    async def fit(self, request: ModelRequest) -> ModelRequest:
        """The request with the messages that the policy wants to be sent."""
        whole, window = request.messages, Window(self, request)
        self._run.phase = Phase.waiting
        answer = await self._run.step(
            functools.partial(self._decide, whole, window),
            name="the context",
            cut_by=CancelMode.after_tools,
            on_cut=self._shut,
        )
        if answer == whole:
            return request
        sent = check_sendable(answer, f"context {getattr(self._policy, '__name__', None) or repr(self._policy)}")
        fitted = msgspec.structs.replace(request, messages=sent)
        # A stable cut leaves out the same number of messages in each call: that is told once in a run.
        if (left_out := len(whole) - len(sent)) != self._told:
            self._told = left_out
            tokens = self.measure(request), self.measure(fitted)
            self._run.journal.add(RunEvent.context_reduced, context=ContextView(len(whole), len(sent), *tokens))
        return fitted

    async def _decide(self, messages: list[Message], window: Window) -> list[Message]:
        self._open = True
        try:
            answer = self._policy(list(messages), window)
            return await answer if inspect.isawaitable(answer) else answer
        finally:
            self._open = False
            if self._asking:
                await self._end_asking()

    async def _end_asking(self) -> None:
        """Cut what is still asked when the policy has ended: if one fails, `asyncio.gather` lets the others go on."""
        tasks = list(self._asking)
        for task in tasks:
            self._run.leave_behind(task, "a model that the context asks")  # until it is gone
            task.add_done_callback(self._run.picked_up)
            if not task.cancelling():
                task.cancel()
        await asyncio.wait(tasks, timeout=self._run.bounds.abandon_seconds)

    def refused(self, request: ModelRequest) -> None:
        """The provider found this too long: aim at half of it from here on."""
        self._most = max(1, self.measure(request) // 2)

    def limit(self, tokens: int | None) -> int | None:
        return min((each for each in (tokens, self._most) if each is not None), default=None)

    # -- counting -----------------------------------------------------------------------------------------------------

    def measure(self, request: ModelRequest) -> int:
        """About how many tokens the provider will count."""
        return -int(-self._ratio * _estimate(request) // 1)

    def learn(self, request: ModelRequest, usage: Usage) -> None:
        """Take the measure from what the provider has counted for what was sent.

        Not from the answer's tokens: most of them may be reasoning that nobody is shown, and that is not sent again.
        """
        counted, estimated = usage.input_tokens, _estimate(request)
        if counted and estimated >= LEAST_TOKENS:  # 0 is said by servers that don't count
            # In eighths, so that what is left out does not change with every call.
            self._ratio = min(8.0, max(0.25, -(-counted * 8 // estimated) / 8))

    # -- a model for the policy ---------------------------------------------------------------------------------------

    async def ask(self, prompt: str, instructions: str | None, model: Model | None) -> str:
        if not self._open:
            raise ContextError("a model was asked after the policy had returned: await the answer in it")
        task = asyncio.current_task()
        assert task is not None
        self._asking.add(task)
        try:
            return await self._answer(ModelRequest([user(prompt)], instructions, []), model)
        finally:
            self._asking.discard(task)

    async def _answer(self, request: ModelRequest, model: Model | None) -> str:
        attempt = 0
        while True:
            attempt += 1
            if self._run.meter is not None:
                self._run.meter.check()
            self._run.gate(CancelMode.after_turn)  # the turn that it would be for never begins
            turn = Turn(self._run, request, model or self._plan.model, quiet=True)
            self._aside.in_flight.append(turn)
            try:
                await self._ask(turn)
            except Exception as error:
                self._count(turn, turn.spent_failed())
                delay = self._plan.retry.delay(error, attempt)
                if delay is None:
                    raise
                self._run.journal.add(RunEvent.model_retry, error=describe(error), delay=delay)
                await asyncio.sleep(delay)
            except BaseException:  # cut: what it has cost stays in flight, for whoever settles the run
                self._charge(turn.spent_cut())
                raise
            else:
                self._count(turn, turn.spent())
                return turn.content()

    def _count(self, turn: Turn, usage: Usage) -> None:
        turn.shut()
        self._aside.in_flight.remove(turn)
        self._aside.counted += usage
        self._charge(turn.spent_cut() if usage.total_tokens is None else usage)

    def _charge(self, usage: Usage) -> None:
        if self._run.meter is not None:
            self._run.meter.spend(usage.total_tokens or 0)

    def _shut(self) -> None:
        for turn in self._aside.in_flight:
            turn.shut()

    # -- what is remembered -------------------------------------------------------------------------------------------

    async def recall(self, messages: Sequence[Message]) -> Shortened | None:
        store = self._plan.store
        self._kept = self._aside.made or self._kept  # made before a pause, it was not remembered here
        if self._kept is None and not self._looked and isinstance(store, SessionStore):
            try:
                history = await store.history(self._run.session.key)
            except StoreError as error:
                self._run.warn("the summary of the session could not be read", error=error)
                return None
            made = [record.shortened for record, _ in history if record.shortened is not None]
            self._kept = next((each for each in reversed(made) if _is_of(each, messages)), None)
            self._looked = True
        return self._kept

    def remember(self, messages: Sequence[Message], covers: int, summary: str) -> None:
        self._kept = self._aside.made = Shortened(covers, _digest(messages[:covers]), summary)

    @property
    def run(self) -> Run:
        return self._run


class Window:
    """What a policy is given: one model call of its run."""

    __slots__ = ("_fitting", "_request")

    def __init__(self, fitting: Fitting, request: ModelRequest) -> None:
        self._fitting, self._request = fitting, request

    @property
    def run_id(self) -> str:
        return self._fitting.run.run_id

    @property
    def session_id(self) -> str:
        return self._fitting.run.session_id

    @property
    def agent_id(self) -> str:
        return self._fitting.run.agent_id

    @property
    def user_id(self) -> str | None:
        return self._fitting.run.user_id

    def tokens(self, messages: Sequence[Message]) -> int:
        return self._fitting.measure(msgspec.structs.replace(self._request, messages=list(messages)))

    def limit(self, tokens: int | None) -> int | None:
        return self._fitting.limit(tokens)

    async def recall(self) -> Shortened | None:
        return await self._fitting.recall(self._request.messages)

    def remember(self, covers: int, summary: str) -> None:
        self._fitting.remember(self._request.messages, covers, summary)

    async def ask(self, prompt: str, instructions: str | None = None, model: Model | None = None) -> str:
        return await self._fitting.ask(prompt, instructions, model)

    @property
    def notes(self) -> dict[object, Any]:
        return self._fitting.notes

    def warn(self, text: str) -> None:
        self._fitting.run.warn(text)


def _estimate(request: ModelRequest) -> int:
    said = (piece for message in request.messages for piece in pieces_of(message))
    tools = (tool.name + tool.description + str(tool.parameters) for tool in request.tools)
    output = "" if request.output is None else str(request.output.schema)
    return estimate_tokens([request.instructions or "", output, *tools, *said])


def _is_of(summary: Shortened, messages: Sequence[Message]) -> bool:
    """Whether it is a summary of these messages' beginning, and not of others, which were taken back or replaced."""
    return summary.covers < len(messages) and summary.digest == _digest(messages[: summary.covers])


def _digest(messages: Sequence[Message]) -> str:
    import hashlib  # here, because it takes a while to load, and most runs never need it

    try:
        return hashlib.blake2b(msgspec.json.encode(messages), digest_size=16).hexdigest()
    except UnicodeEncodeError:  # half a character, which no database keeps as it is: such a summary is made again
        return ""
