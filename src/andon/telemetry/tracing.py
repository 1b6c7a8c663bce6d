# SPDX-License-Identifier: Apache-2.0
"""The spans of a run: `invoke_agent` → `turn` → `chat` and `execute_tool`, as the GenAI conventions name them.

Spans are made current in the tasks that do the work, so that users' own nest under them. Those tasks are the run's, and
each has a context of its own, that ends with it: so nothing is ever detached, and nothing can fail to be.

A pause ends the run's span, since nobody knows how many days it takes; what comes after, be it the answer or a cancel,
is a span with a link to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, SpanKind

from andon.core.receipt import Receipt, ToolReceipt
from andon.core.run.run import Run
from andon.core.run.work import Settlement
from andon.core.states import CancelCause, RunStatus, ToolOutcome
from andon.messages import Block, Message, ToolCall, Usage
from andon.models.base import ModelRequest
from andon.telemetry import content
from andon.telemetry.spans import CALL, MODEL, RUN, TURN, Facts, Spans, Tracing, harmless, type_of

_BY_THE_END = frozenset({ToolOutcome.cut, ToolOutcome.abandoned, ToolOutcome.not_started})
"""What became of calls that did not come to an end of their own."""


class RunTrace(Spans):
    """The spans of one run."""

    __slots__ = ("_agent", "_continues", "_model", "_number", "_parent", "_paused", "_run", "_told")

    def __init__(
        self, tracing: Tracing, run: Run, name: str, description: str | None, model: object, continues: str | None
    ) -> None:
        super().__init__(tracing)
        self._run, self._continues = run, continues
        self._agent: Facts = {"gen_ai.agent.name": name, "gen_ai.agent.id": run.agent_id}
        if description:
            self._agent["gen_ai.agent.description"] = description
        self._model = _model_facts(model)
        self._parent: Context | None = None
        self._paused: SpanContext | None = None
        self._number = 0
        self._told: set[str] = set()
        """The calls that have, or had, a span, or were told on their turn's."""

    # -- the run ------------------------------------------------------------------------------------------------------

    @harmless
    def begin(self, messages: Sequence[Message]) -> None:
        """Where the run is begun, or gone on with: what is current there is its parent."""
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
        self._begin(
            RUN, f"invoke_agent {name}", facts, labels, self._tracing.instruments.run_seconds, before, self._parent
        )

    @harmless
    def enter(self) -> None:
        """In the run's own task: from here on the run's span is current in it."""
        self._make_current(RUN)

    @harmless
    def pause(self, progress: Settlement) -> None:
        turn = self._open.get(TURN)
        if turn is not None:
            for question in progress.interrupts:
                turn.span.add_event("andon.interrupt", {"gen_ai.tool.call.id": question.call_id or ""})
        self._end(TURN)
        part = self._open.get(RUN)
        self._end(RUN, {"andon.run.status": RunStatus.paused.name}, {"andon.run.status": RunStatus.paused.name})
        if part is not None:
            self._paused = part.span.get_span_context()

    @harmless
    def end(
        self, left: Settlement, receipt: Receipt | None, error: Exception | None, usage: Callable[[], Usage | None]
    ) -> None:
        """Bring it all to its end. `usage` says what the model call in flight has cost."""
        try:
            if RUN not in self._open:  # it was paused, and nobody went on with it
                self._begin_run()
            self._end_parts(left, error, usage)
            self._end_run(left, receipt, error)
        finally:
            for key in reversed(self._open.copy()):  # nothing, unless the run could not be ended properly
                self._end(key)

    def _end_parts(self, left: Settlement, error: Exception | None, usage: Callable[[], Usage | None]) -> None:
        """What is still open was cut, and its task could not say by whom; or it has not stopped; or its loop died."""
        cancel = self._cancel_facts()
        self.end_model(usage, error=error, cut=bool(cancel))
        outcomes = {call.call_id: call.outcome.value for call in left.tools}
        for key in [key for key in self._open.copy() if key.startswith(CALL)]:
            outcome = outcomes.get(key.removeprefix(CALL), ToolOutcome.cut.value)
            self._end(key, {"andon.tool.outcome": outcome, **cancel}, error=error)
        for call in left.tools:
            if call.outcome in _BY_THE_END:
                self._tell_not_run(call, cancel if error is None else {"error.type": type_of(error)})
        self._end(TURN, cancel, error=error)

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
        if (part := self._open.get(RUN)) is not None and run.status is not RunStatus.completed:
            self._tracing.remember(run.run_id, part.span.get_span_context())
        self._end(RUN, facts, {"andon.run.status": status}, error, describe=True)
        name = {"gen_ai.agent.name": self._agent["gen_ai.agent.name"]}
        instruments.runs.add(1, {**name, "andon.run.status": status})
        if receipt is not None:
            cause = {**name, "andon.cancel.cause": receipt.cause.value}
            instruments.cancels.add(1, cause)
            instruments.cancel_latency.record(receipt.latency, cause)

    # -- its turns ----------------------------------------------------------------------------------------------------

    @harmless
    def begin_turn(self) -> None:
        """In the run's own task: a model call and its tools."""
        self._end(TURN)
        self.need_turn()

    @harmless
    def need_turn(self) -> None:
        """The same, if there is none: tools that were asked for before a pause, or in an earlier run, need one too."""
        self._find_turn()
        self._make_current(TURN)

    def _find_turn(self) -> Span:
        if TURN not in self._open:
            self._number += 1
            self._begin(TURN, "turn", {"andon.turn": self._number, "andon.run.id": self._run.run_id}, {})
        return self._open[TURN].span

    @harmless
    def end_turn(self) -> None:
        self._end(TURN)
        self.enter()

    # -- model calls --------------------------------------------------------------------------------------------------

    @harmless
    def begin_model(self, request: ModelRequest, model: object, key: str = MODEL) -> None:
        """In the model call's own task, where its span stays current. Those that go on side by side have keys."""
        self._end(key, error="CancelledError")  # of an attempt that nobody cut, and that is made again
        about = _model_facts(model)  # the agent's own, or one that writes a summary for it
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
        self._begin(key, name, facts, labels, self._tracing.instruments.model_seconds, kind=SpanKind.CLIENT)
        self._make_current(key)

    @harmless
    def end_model(
        self,
        usage: Callable[[], Usage | None],
        blocks: Callable[[], Sequence[Block]] | None = None,
        *,
        key: str = MODEL,
        error: Exception | None = None,
        cut: bool = False,
    ) -> None:
        """The call is over: answered, failed or cut. What it has cost and said is asked for if it is wanted."""
        if (part := self._open.get(key)) is None:
            return
        error = None if cut else error
        facts: Facts = self._cancel_facts() if cut else {}
        spent = usage()
        if spent is not None:
            facts |= _usage_facts(spent)
        if self._tracing.content and blocks is not None and (said := blocks()):
            facts["gen_ai.output.messages"] = content.answered(said, _finish_reason(said, cut, error))
        self._end(key, facts, error=error, describe=True)
        if spent is not None:
            self._count(spent, part.labels)

    def _count(self, usage: Usage, labels: Facts) -> None:
        estimated = {"andon.usage.estimated": True} if usage.estimated else {}
        for kind, tokens in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            if tokens:  # unknown is not zero, and a call that was refused has sent none
                self._tracing.instruments.tokens.record(tokens, {**labels, **estimated, "gen_ai.token.type": kind})

    # -- tool calls ---------------------------------------------------------------------------------------------------

    @harmless
    def begin_call(self, call: ToolCall, description: str) -> None:
        """In the call's own task, where its span stays current; a thread of it has it too."""
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
        self._told.add(call.id)
        self._begin(key, f"execute_tool {call.name}", facts, labels, self._tracing.instruments.tool_seconds)
        self._make_current(key)

    @harmless
    def interrupt_call(self, call: ToolCall) -> None:
        """It asks a person. If it is entered again, it has another span; if not, its turn tells what became of it."""
        self.end_call(call, "interrupted")
        self._told.discard(call.id)

    @harmless
    def end_call(self, call: ToolCall, outcome: str, result: str | None = None) -> None:
        facts: Facts = {"andon.tool.outcome": outcome}
        if self._tracing.content and result is not None:
            facts["gen_ai.tool.call.result"] = result
        self._end(CALL + call.id, facts)

    @harmless
    def fail_call(self, call: ToolCall, outcome: ToolOutcome, error: Exception) -> None:
        """It failed; or it never ran: there is no such tool, a hook refused it."""
        if CALL + call.id in self._open:
            facts = {"andon.tool.outcome": outcome.value}
            self._end(CALL + call.id, facts, error=error, describe=self._tracing.content)
        else:
            self._tell_not_run(ToolReceipt(call.id, call.name, outcome), {"error.type": type_of(error)})

    @harmless
    def deny_call(self, call: ToolCall) -> None:
        """A person refused it."""
        self._tell_not_run(ToolReceipt(call.id, call.name, ToolOutcome.refused), {"andon.tool.denied": True})

    @harmless
    def cancel_call(self, call: ToolCall, outcome: ToolOutcome, cause: CancelCause | None = None) -> None:
        """It was cut with its run; or, with a cause of its own, alone."""
        facts = self._cancel_facts() if cause is None else {"andon.cancel.cause": cause.value}
        if CALL + call.id in self._open:
            self._end(CALL + call.id, {"andon.tool.outcome": outcome.value, **facts})
        else:
            self._tell_not_run(ToolReceipt(call.id, call.name, outcome), facts)

    def _tell_not_run(self, call: ToolReceipt, why: Facts) -> None:
        """A call that has no span in which that could be told, because nothing of it runs, is told on its turn's."""
        if call.call_id not in self._told:
            self._told.add(call.call_id)
            facts = {"gen_ai.tool.name": call.name, "gen_ai.tool.call.id": call.call_id}
            self._find_turn().add_event(
                "andon.tool.not_run", {**facts, "andon.tool.outcome": call.outcome.value, **why}
            )

    def _cancel_facts(self) -> Facts:
        """The cause, and how long it took until now; nothing if the run was not cancelled."""
        request = self._run.signal.request
        if request is None:
            return {}
        latency = max(0.0, time.time() - request.requested_at)
        return {"andon.cancel.cause": request.cause.value, "andon.cancel.latency": latency}


def _usage_facts(usage: Usage) -> Facts:
    """Unknown is not zero: it is left out."""
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
    """The provider, as the conventions call it: by what the model says, or by the package that it comes from."""
    told = getattr(model, "telemetry_name", None) or getattr(model, "provider", None)
    return told.lower() if isinstance(told, str) else type(model).__module__.partition(".")[0]
