# SPDX-License-Identifier: Apache-2.0
"""The spans of a run: `invoke_agent` → `turn` → `chat` and `execute_tool`, as the GenAI conventions name them.

Spans are made current in the tasks that do the work, so that spans of the user's code nest under them. Those tasks
belong to the run. Each has its own context, which ends with the task, so no context has to be detached.

A pause ends the span of the run, because a pause may last for days. The answer, or a cancel, begins a new span of the
run that links to the first one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, SpanKind

from andon.core.receipt import Receipt, ToolReceipt
from andon.core.run.run import LocalRun
from andon.core.run.work import Settlement
from andon.core.states import CancelCause, RunStatus, ToolOutcome
from andon.messages import Block, Message, ToolCall, Usage
from andon.models.base import ModelRequest
from andon.telemetry import content
from andon.telemetry.spans import CALL, MODEL, RUN, TURN, Facts, OpenSpans, Tracing, never_raises, type_of

_BY_THE_END = frozenset({ToolOutcome.cut, ToolOutcome.abandoned, ToolOutcome.not_started, ToolOutcome.compensated})
"""The outcomes of calls that the end of the run stopped."""


class RunTrace:
    """The spans of one run."""

    __slots__ = (
        "_agent",
        "_continues",
        "_model",
        "_number",
        "_parent",
        "_paused",
        "_recorded",
        "_run",
        "_spans",
        "_tracing",
    )

    def __init__(
        self, tracing: Tracing, run: LocalRun, name: str, description: str | None, model: object, continues: str | None
    ) -> None:
        self._tracing, self._spans = tracing, OpenSpans(tracing.tracer)
        self._run, self._continues = run, continues
        self._agent: Facts = {"gen_ai.agent.name": name, "gen_ai.agent.id": run.agent_id}
        if description:
            self._agent["gen_ai.agent.description"] = description
        self._model = _model_facts(model)
        self._parent: Context | None = None
        self._paused: SpanContext | None = None
        self._number = 0
        self._recorded: set[str] = set()
        """The ids of calls that have or had a span, or have an event on the span of their turn."""

    # -- the run ------------------------------------------------------------------------------------------------------

    @never_raises
    def begin(self, messages: Sequence[Message]) -> None:
        """Call it where the run is started or continued: the current span there becomes the parent."""
        self._parent = contexts.get_current()
        self._tracing.instruments.watch(self._run.runtime)
        self._begin_run(messages)

    def _begin_run(self, messages: Sequence[Message] = ()) -> None:
        run = self._run
        facts: Facts = {
            "gen_ai.operation.name": "invoke_agent",
            **self._agent,
            **self._model,
            "gen_ai.conversation.id": run.session_id,
            "andon.run.id": run.run_id,
        }
        if run.parent_run_id is not None:
            facts["andon.run.parent_id"] = run.parent_run_id
        before = self._paused
        if before is None and self._continues is not None:
            facts["andon.run.continues"] = self._continues
            before = self._tracing.find(self._continues)
        if self._tracing.content and messages:
            facts["gen_ai.input.messages"] = content.asked(messages)
        name = self._agent["gen_ai.agent.name"]
        labels = {"gen_ai.agent.name": name}
        self._spans.begin(
            RUN, f"invoke_agent {name}", facts, labels, self._tracing.instruments.run_seconds, before, self._parent
        )

    @never_raises
    def enter(self) -> None:
        """Call it in the task of the run: it makes the span of the run current there."""
        self._spans.make_current(RUN)

    @never_raises
    def pause(self, progress: Settlement) -> None:
        turn = self._spans.get(TURN)
        if turn is not None:
            for question in progress.interrupts:
                turn.span.add_event("andon.interrupt", {"gen_ai.tool.call.id": question.call_id or ""})
        self._spans.end(TURN)
        part = self._spans.get(RUN)
        self._spans.end(RUN, {"andon.run.status": RunStatus.paused.name}, {"andon.run.status": RunStatus.paused.name})
        if part is not None:
            self._paused = part.span.get_span_context()

    @never_raises
    def end(
        self, left: Settlement, receipt: Receipt | None, error: Exception | None, usage: Callable[[], Usage | None]
    ) -> None:
        """End all spans of the run. `usage` returns what the model call in flight has cost."""
        try:
            if RUN not in self._spans:  # it ended while it was paused
                self._begin_run()
            self._end_parts(left, error, usage)
            self._end_run(left, receipt, error)
        finally:
            for key in reversed(self._spans.keys):  # none, unless the lines above failed
                self._spans.end(key)

    def _end_parts(self, left: Settlement, error: Exception | None, usage: Callable[[], Usage | None]) -> None:
        """End the spans of parts that were cut, still run, or were lost with their loop."""
        cancel = self._cancel_facts()
        self.end_model(usage, error=error, cut=bool(cancel))
        outcomes = {call.call_id: call.outcome.value for call in left.tools}
        for key in [key for key in self._spans.keys if key.startswith(CALL)]:
            outcome = outcomes.get(key.removeprefix(CALL), ToolOutcome.cut.value)
            self._spans.end(key, {"andon.tool.outcome": outcome, **cancel}, error=error)
        for call in left.tools:
            if call.outcome in _BY_THE_END:
                self._record_not_run(call, cancel if error is None else {"error.type": type_of(error)})
        self._spans.end(TURN, cancel, error=error)

    def _end_run(self, left: Settlement, receipt: Receipt | None, error: Exception | None) -> None:
        run, instruments = self._run, self._tracing.instruments
        status = run.status.name
        facts: Facts = {"andon.run.status": status, **_usage_facts(left.usage)}
        if receipt is not None:
            facts |= {
                "andon.cancel.cause": receipt.cause.value,
                "andon.cancel.mode": receipt.mode.value,
                "andon.cancel.phase": receipt.phase.value,
                "andon.cancel.latency": receipt.latency,
            }
            if receipt.leftovers:
                facts["andon.leftovers"] = receipt.leftovers
        if self._tracing.content and left.messages:
            said = left.messages[-1].content
            reason = _finish_reason(said, run.status is RunStatus.cancelled, error)
            facts["gen_ai.output.messages"] = content.answered(said, reason)
        if (part := self._spans.get(RUN)) is not None and run.status is not RunStatus.completed:
            self._tracing.remember(run.run_id, part.span.get_span_context())
        self._spans.end(RUN, facts, {"andon.run.status": status}, error, describe=True)
        name = {"gen_ai.agent.name": self._agent["gen_ai.agent.name"]}
        instruments.runs.add(1, {**name, "andon.run.status": status})
        if receipt is not None:
            cause = {**name, "andon.cancel.cause": receipt.cause.value}
            instruments.cancels.add(1, cause)
            instruments.cancel_latency.record(receipt.latency, cause)

    # -- its turns ----------------------------------------------------------------------------------------------------

    @never_raises
    def begin_turn(self) -> None:
        """Call it in the task of the run. A turn is a model call and its tools."""
        self._spans.end(TURN)
        self.need_turn()

    @never_raises
    def need_turn(self) -> None:
        """Begin a turn if none is open: tool calls from before a pause, or of an earlier run, need one too."""
        self._find_turn()
        self._spans.make_current(TURN)

    def _find_turn(self) -> Span:
        if (turn := self._spans.get(TURN)) is None:
            self._number += 1
            turn = self._spans.begin(TURN, "turn", {"andon.turn": self._number, "andon.run.id": self._run.run_id}, {})
        return turn.span

    @never_raises
    def end_turn(self) -> None:
        self._spans.end(TURN)
        self.enter()

    # -- model calls --------------------------------------------------------------------------------------------------

    @never_raises
    def begin_model(self, request: ModelRequest, model: object, key: str = MODEL) -> None:
        """Call it in the task of the model call, where its span stays current. Parallel calls have different keys."""
        self._spans.end(key, error="CancelledError")  # an attempt that failed and is now retried
        about = _model_facts(model)  # the agent's model, or one that writes a summary for it
        facts: Facts = {
            "gen_ai.operation.name": "chat",
            **about,
            "gen_ai.conversation.id": self._run.session_id,
            "gen_ai.request.stream": True,
        }
        if self._tracing.content:
            facts["gen_ai.input.messages"] = content.asked(request.messages)
            if request.instructions:
                facts["gen_ai.system_instructions"] = content.instructions(request.instructions)
        name = f"chat {about.get('gen_ai.request.model', '')}".strip()
        labels = {"gen_ai.operation.name": "chat", **about}
        self._spans.begin(key, name, facts, labels, self._tracing.instruments.model_seconds, kind=SpanKind.CLIENT)
        self._spans.make_current(key)

    @never_raises
    def end_model(
        self,
        usage: Callable[[], Usage | None],
        blocks: Callable[[], Sequence[Block]] | None = None,
        *,
        key: str = MODEL,
        error: Exception | None = None,
        cut: bool = False,
    ) -> None:
        """The call is over: answered, failed or cut. `usage` and `blocks` are called only if they are needed."""
        if (part := self._spans.get(key)) is None:
            return
        error = None if cut else error
        facts: Facts = self._cancel_facts() if cut else {}
        spent = usage()
        if spent is not None:
            facts |= _usage_facts(spent)
        if self._tracing.content and blocks is not None and (said := blocks()):
            facts["gen_ai.output.messages"] = content.answered(said, _finish_reason(said, cut, error))
        self._spans.end(key, facts, error=error, describe=True)
        if spent is not None:
            self._count(spent, part.labels)

    def _count(self, usage: Usage, labels: Facts) -> None:
        estimated = {"andon.usage.estimated": True} if usage.estimated else {}
        for kind, tokens in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            if tokens:  # None is unknown, which is not zero; a refused call sent nothing
                self._tracing.instruments.tokens.record(tokens, {**labels, **estimated, "gen_ai.token.type": kind})

    # -- tool calls ---------------------------------------------------------------------------------------------------

    @never_raises
    def begin_call(self, call: ToolCall, description: str) -> None:
        """Call it in the task of the tool call, where its span stays current, also in the thread of a tool."""
        facts: Facts = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.type": "function",
        }
        if description:
            facts["gen_ai.tool.description"] = description
        if self._tracing.content:
            facts["gen_ai.tool.call.arguments"] = content.to_json(call.arguments)
        name = self._agent["gen_ai.agent.name"]
        labels = {"gen_ai.tool.name": call.name, "gen_ai.tool.type": "function", "gen_ai.agent.name": name}
        key = CALL + call.id
        self._recorded.add(call.id)
        self._spans.begin(key, f"execute_tool {call.name}", facts, labels, self._tracing.instruments.tool_seconds)
        self._spans.make_current(key)

    @never_raises
    def interrupt_call(self, call: ToolCall) -> None:
        """The call asks a person. If it starts again it gets a new span; if not, the span of its turn gets an event."""
        self.end_call(call, "interrupted")
        self._recorded.discard(call.id)

    @never_raises
    def end_call(self, call: ToolCall, outcome: str, result: str | None = None) -> None:
        facts: Facts = {"andon.tool.outcome": outcome}
        if self._tracing.content and result is not None:
            facts["gen_ai.tool.call.result"] = result
        self._spans.end(CALL + call.id, facts)

    @never_raises
    def fail_call(self, call: ToolCall, outcome: ToolOutcome, error: Exception) -> None:
        """The call failed, or it never ran: the tool does not exist, or a hook refused the call."""
        if CALL + call.id in self._spans:
            facts = {"andon.tool.outcome": outcome.value}
            self._spans.end(CALL + call.id, facts, error=error, describe=self._tracing.content)
        else:
            self._record_not_run(ToolReceipt(call.id, call.name, outcome), {"error.type": type_of(error)})

    @never_raises
    def deny_call(self, call: ToolCall) -> None:
        """A person refused the call."""
        self._record_not_run(ToolReceipt(call.id, call.name, ToolOutcome.refused), {"andon.tool.denied": True})

    @never_raises
    def cancel_call(self, call: ToolCall, outcome: ToolOutcome, cause: CancelCause | None = None) -> None:
        """The call was cut: with its run, or, if it has a `cause`, alone."""
        facts = self._cancel_facts() if cause is None else {"andon.cancel.cause": cause.value}
        if CALL + call.id in self._spans:
            self._spans.end(CALL + call.id, {"andon.tool.outcome": outcome.value, **facts})
        else:
            self._record_not_run(ToolReceipt(call.id, call.name, outcome), facts)

    def _record_not_run(self, call: ToolReceipt, why: Facts) -> None:
        """Record a call that never ran as an event on the span of its turn: the call has no span."""
        if call.call_id not in self._recorded:
            self._recorded.add(call.call_id)
            facts = {"gen_ai.tool.name": call.name, "gen_ai.tool.call.id": call.call_id}
            self._find_turn().add_event(
                "andon.tool.not_run", {**facts, "andon.tool.outcome": call.outcome.value, **why}
            )

    def _cancel_facts(self) -> Facts:
        """The cause of the cancel and the time since it; empty if the run was not cancelled."""
        request = self._run.signal.request
        if request is None:
            return {}
        latency = max(0.0, time.time() - request.requested_at)
        return {"andon.cancel.cause": request.cause.value, "andon.cancel.latency": latency}


def _usage_facts(usage: Usage) -> Facts:
    """Counts that are None are unknown and left out: they are not zero."""
    facts: Facts = {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
        "andon.usage.estimated": usage.estimated or None,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _finish_reason(blocks: Sequence[Block], cut: bool, error: Exception | None) -> str:
    if cut:
        return "cancelled"
    if error is not None:
        return "error"
    return "tool_call" if any(isinstance(block, ToolCall) for block in blocks) else "stop"


def _model_facts(model: object) -> Facts:
    facts: Facts = {"gen_ai.provider.name": _provider_of(model)}
    if isinstance(model_id := getattr(model, "id", None), str):
        facts["gen_ai.request.model"] = model_id
    return facts


def _provider_of(model: object) -> str:
    """The provider's name in the conventions: what the model says, or else the package that the model comes from."""
    told = getattr(model, "telemetry_name", None) or getattr(model, "provider", None)
    return told.lower() if isinstance(told, str) else type(model).__module__.partition(".")[0]
