# SPDX-License-Identifier: Apache-2.0
"""The spans of a run: their tree, what they say, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from andon import (
    Agent,
    BeforeTool,
    CancelMode,
    ContextWindow,
    Deny,
    Event,
    Message,
    Run,
    RunEvent,
    RunStatus,
    Runtime,
    Telemetry,
    ToolContext,
    tool,
)
from andon.errors import ModelError
from andon.models.base import ModelRequest, Sink
from andon.models.scripted import Call, Fail, Item, ScriptedModel, Spend, Stall
from andon.testing import probe
from tests.support import HANG
from tests.telemetry.watching import Complaints, Watch, facts


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch()
    with Complaints().listening() as complaints:
        watch.complaints = complaints.texts
        yield watch
    watch.check()
    assert watch.complaints == []


@tool
async def search(query: str) -> str:
    """Search the archive."""
    return f"nothing about {query}"


@tool
async def wait_for_ever() -> str:
    await asyncio.get_running_loop().create_future()
    return "never"


@tool
async def fail() -> str:
    raise ValueError("a secret")


def links(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


async def cancelled_at(run: Run, kind: RunEvent) -> Event | None:
    """Cancel at the first event of this kind, and return the last event of all."""
    last = None
    async with asyncio.timeout(HANG), run:
        async for last in run:
            if last.event is kind:
                run.cancel()
    return last


# -- the tree ---------------------------------------------------------------------------------------------------------


def test_a_run_its_turns_its_model_calls_and_its_tools(watch: Watch) -> None:
    model = ScriptedModel([Call("search", {"query": "a"}), Call("search", {"query": "b"})], "Nothing.")
    watch.agent("Librarian", model, tools=[search]).run("Find it")
    assert watch.tree() == [
        "invoke_agent Librarian",
        "  turn",
        "    chat scripted",
        "    execute_tool search",
        "    execute_tool search",
        "  turn",
        "    chat scripted",
    ]


def test_what_the_spans_say(watch: Watch) -> None:
    model = ScriptedModel([Call("search", {"query": "a"}), Spend(input_tokens=7, output_tokens=3, cached_tokens=2)])
    agent = watch.agent("Librarian", model, tools=[search], description="Finds books.")
    result = agent.run("Find it", session_id="s1")
    run, chat, call = (
        watch.one("invoke_agent Librarian"),
        watch.named("chat scripted")[0],
        watch.one("execute_tool search"),
    )
    assert facts(run) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "Librarian",
        "gen_ai.agent.id": "librarian",
        "gen_ai.agent.description": "Finds books.",
        "gen_ai.provider.name": "andon",
        "gen_ai.request.model": "scripted",
        "gen_ai.conversation.id": "s1",
        "andon.run.id": result.run_id,
        "andon.run.status": "completed",
    }, "the second call's usage is unknown, so the run's is"
    assert facts(chat) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "andon",
        "gen_ai.request.model": "scripted",
        "gen_ai.request.stream": True,
        "gen_ai.conversation.id": "s1",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 2,
    }
    assert facts(call) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.tool.call.id": "call_1",
        "gen_ai.tool.description": "Search the archive.",
        "gen_ai.tool.type": "function",
        "andon.tool.outcome": "completed",
    }
    assert [facts(turn)["andon.turn"] for turn in watch.named("turn")] == [1, 2]
    assert (run.kind, chat.kind, call.kind) == (SpanKind.INTERNAL, SpanKind.CLIENT, SpanKind.INTERNAL)
    assert {span.status.status_code for span in watch.spans} == {StatusCode.UNSET}


def test_prompts_and_outputs_only_when_they_are_wanted() -> None:
    watch = Watch(content=True)
    model = ScriptedModel([Call("search", {"query": "a"})], "Nothing.")
    watch.agent("A", model, tools=[search], instructions="Be brief.").run("Find it")
    run, call = watch.one("invoke_agent A"), watch.one("execute_tool search")
    first, second = watch.named("chat scripted")
    prompt = {"role": "user", "parts": [{"type": "text", "content": "Find it"}]}
    arguments = {"type": "tool_call", "id": "call_1", "name": "search", "arguments": {"query": "a"}}
    asked = {"role": "assistant", "parts": [arguments]}
    result = {"type": "tool_call_response", "id": "call_1", "response": "nothing about a"}
    said = {"role": "assistant", "parts": [{"type": "text", "content": "Nothing."}], "finish_reason": "stop"}
    assert json.loads(facts(run)["gen_ai.input.messages"]) == [prompt]
    assert json.loads(facts(run)["gen_ai.output.messages"]) == [said]
    assert json.loads(facts(first)["gen_ai.system_instructions"]) == [{"type": "text", "content": "Be brief."}]
    assert json.loads(facts(first)["gen_ai.output.messages"]) == [{**asked, "finish_reason": "tool_call"}]
    assert json.loads(facts(second)["gen_ai.input.messages"]) == [prompt, asked, {"role": "tool", "parts": [result]}]
    assert json.loads(facts(second)["gen_ai.output.messages"]) == [said]
    assert json.loads(facts(call)["gen_ai.tool.call.arguments"]) == {"query": "a"}
    assert facts(call)["gen_ai.tool.call.result"] == "nothing about a"


def test_nothing_of_the_content_is_told_otherwise(watch: Watch) -> None:
    model = ScriptedModel([Call("search", {"query": "a secret"}), Call("fail")], "The secret.")
    watch.agent("A", model, tools=[search, fail], instructions="A secret.").run("Find the secret")
    told = [span.to_json() for span in watch.spans]
    assert len(told) == 7
    assert not [text for text in told if "secret" in text.lower()]


# -- users' own spans -------------------------------------------------------------------------------------------------


def test_what_a_tool_or_a_model_traces_nests_under_its_span(watch: Watch) -> None:
    class Traced(ScriptedModel):
        async def stream(self, request: ModelRequest, sink: Sink) -> None:
            with watch.tracer.start_as_current_span("POST"):
                await super().stream(request, sink)

    @tool
    async def in_a_task() -> str:
        async def query() -> None:
            with watch.tracer.start_as_current_span("query"):
                await asyncio.sleep(0)

        await asyncio.gather(query(), query())
        return "done"

    @tool
    def blocking() -> str:
        with watch.tracer.start_as_current_span("read"):
            return threading.current_thread().name

    class Hook:
        def before_tool(self, event: BeforeTool) -> None:
            watch.tracer.start_span(f"hook {event.call.name}").end()

        async def before_model(self, event: object) -> None:
            watch.tracer.start_span("hook").end()

    model = Traced([Call("in_a_task"), Call("blocking")], "Done.", id="m")
    with watch.tracer.start_as_current_span("request") as request:
        watch.agent("A", model, tools=[in_a_task, blocking], hooks=[Hook()]).run("Go")
        assert trace.get_current_span() is request
    assert watch.tree() == [
        "request",
        "  invoke_agent A",
        "    turn",
        "      hook",
        "      chat m",
        "        POST",
        "      hook in_a_task",
        "      hook blocking",
        "      execute_tool in_a_task",
        "        query",
        "        query",
        "      execute_tool blocking",
        "        read",
        "    turn",
        "      hook",
        "      chat m",
        "        POST",
    ]


def test_runs_side_by_side_keep_their_spans_apart(watch: Watch) -> None:
    agent = watch.agent("A", ScriptedModel(then="Hello."))

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for name in ("ann", "bob"):
                with watch.tracer.start_as_current_span(name):
                    group.create_task(agent.invoke_async("Hello", session_id=name))

    asyncio.run(main())
    assert watch.tree() == [
        line for name in ("ann", "bob") for line in (name, "  invoke_agent A", "    turn", "      chat scripted")
    ]


def test_a_child_run_nests_under_the_call_that_started_it(watch: Watch) -> None:
    inner = watch.agent("Inner", ScriptedModel("Yes."))

    @tool
    def by_hand() -> str:
        return watch.agent("Blocking", ScriptedModel("No.")).run("Well?").content

    model = ScriptedModel([Call("inner", {"prompt": "Well?"}), Call("by_hand")], "Done.")
    result = watch.agent("Outer", model, tools=[inner.as_tool(), by_hand], parallel_tools=False).run("Go")
    assert watch.tree() == [
        "invoke_agent Outer",
        "  turn",
        "    chat scripted",
        "    execute_tool inner",
        "      invoke_agent Inner",
        "        turn",
        "          chat scripted",
        "    execute_tool by_hand",
        "      invoke_agent Blocking",
        "        turn",
        "          chat scripted",
        "  turn",
        "    chat scripted",
    ]
    assert facts(watch.one("invoke_agent Inner"))["andon.run.parent_id"] == result.run_id


# -- failures ---------------------------------------------------------------------------------------------------------


def test_each_try_of_the_model_has_a_span(watch: Watch) -> None:
    model = ScriptedModel(Fail(ModelError("overloaded", retryable=True, retry_after=0)), "Now.")
    watch.agent("A", model).run("Go")
    assert watch.tree() == ["invoke_agent A", "  turn", "    chat scripted", "    chat scripted"]
    first, second = watch.named("chat scripted")
    assert (first.status.status_code, first.status.description) == (StatusCode.ERROR, "overloaded")
    assert facts(first)["error.type"] == "andon.errors.ModelError"
    assert second.status.status_code is watch.one("invoke_agent A").status.status_code is StatusCode.UNSET


def test_models_that_a_context_policy_asks_side_by_side_have_a_span_each(watch: Watch) -> None:
    async def main() -> None:
        go = asyncio.Event()

        class Wait(Item):
            async def play(self, sink: Any, model: ScriptedModel) -> None:
                await go.wait()

        async def both(messages: list[Message], window: ContextWindow) -> list[Message]:
            first = asyncio.create_task(window.ask("a", model=ScriptedModel([Wait(), "Well."])))
            await window.ask("b", model=ScriptedModel("So."))
            go.set()
            await first
            return messages

        await watch.agent("A", ScriptedModel("Hello."), context=both).invoke_async("Hi")

    asyncio.run(main())
    calls = [span for span in watch.spans if span.name.startswith("chat")]
    assert [span.status.status_code for span in calls] == [StatusCode.UNSET] * 3


def test_a_failed_run_is_an_error(watch: Watch) -> None:
    watch.agent("A", ScriptedModel(Fail(KeyError("gone")))).run("Go")
    assert [facts(span)["error.type"] for span in watch.spans] == ["KeyError"] * 3
    assert {span.status.status_code for span in watch.spans} == {StatusCode.ERROR}
    assert facts(watch.one("invoke_agent A"))["andon.run.status"] == "error"


def test_a_failed_tool_is_an_error_and_its_run_is_not(watch: Watch) -> None:
    watch.agent("A", ScriptedModel([Call("fail")], "Oh."), tools=[fail]).run("Go")
    call = watch.one("execute_tool fail")
    assert (call.status.status_code, facts(call)["error.type"]) == (StatusCode.ERROR, "ValueError")
    assert watch.one("invoke_agent A").status.status_code is StatusCode.UNSET


def test_a_tool_that_ran_out_of_its_own_time(watch: Watch) -> None:
    slow = tool(wait_for_ever.__wrapped__, name="slow", timeout=0)
    watch.agent("A", ScriptedModel([Call("slow")], "Oh."), tools=[slow]).run("Go")
    call = watch.one("execute_tool slow")
    assert (call.status.status_code, facts(call)["error.type"]) == (StatusCode.ERROR, "andon.errors.ToolTimeoutError")
    assert facts(call)["andon.tool.outcome"] == "failed"


def test_calls_that_never_ran_are_told_on_their_turn(watch: Watch) -> None:
    class Guard:
        def before_tool(self, event: BeforeTool) -> None:
            event.cancel("no")

    model = ScriptedModel(
        [Call("nothing_like_it"), Call("search", {"wrong": 1}), Call("search", {"query": "a"})], "Oh."
    )
    watch.agent("A", model, tools=[search], hooks=[Guard()]).run("Go")
    assert watch.tree() == ["invoke_agent A", "  turn", "    chat scripted", "  turn", "    chat scripted"]
    events = watch.named("turn")[0].events
    assert {event.name for event in events} == {"andon.tool.not_run"}
    told = [dict(event.attributes or {}) for event in events]
    kinds = ["UnknownToolError", "BadArgumentsError", "ToolBlockedError"]
    assert [each["error.type"] for each in told] == [f"andon.errors.{kind}" for kind in kinds]
    assert [each["gen_ai.tool.call.id"] for each in told] == ["call_1", "call_2", "call_3"]
    assert [each["andon.tool.outcome"] for each in told] == ["refused"] * 3


# -- cancels ----------------------------------------------------------------------------------------------------------


def test_a_cancelled_run_says_why_and_how_long_it_took(watch: Watch) -> None:
    model = ScriptedModel(["Well, ", Call("wait_for_ever"), Call("wait_for_ever")])
    agent = watch.agent("A", model, tools=[wait_for_ever], parallel_tools=False)
    asyncio.run(cancelled_at(run := agent.start("Go"), RunEvent.tool_call_started))
    receipt = probe(run).result.receipt
    assert receipt is not None
    span, call = watch.one("invoke_agent A"), watch.one("execute_tool wait_for_ever")
    assert {name: value for name, value in facts(span).items() if name.startswith("andon.") and "id" not in name} == {
        "andon.run.status": "cancelled",
        "andon.cancel.cause": "user",
        "andon.cancel.mode": "now",
        "andon.cancel.phase": "tools",
        "andon.cancel.latency": receipt.latency,
    }
    assert (facts(call)["andon.tool.outcome"], facts(call)["andon.cancel.cause"]) == ("cut", "user")
    assert 0 <= facts(call)["andon.cancel.latency"] <= receipt.latency
    (event,) = watch.one("turn").events
    assert event.name == "andon.tool.not_run"
    assert event.attributes is not None
    assert event.attributes["gen_ai.tool.call.id"] == "call_2"
    assert event.attributes["andon.tool.outcome"] == "not_started"
    assert event.attributes["andon.cancel.cause"] == "user"


def test_a_model_call_that_was_cut(watch: Watch) -> None:
    agent = watch.agent("A", ScriptedModel(["Well, I think ", Stall()]))
    asyncio.run(cancelled_at(agent.start("Go"), RunEvent.run_content))
    chat = facts(watch.one("chat scripted"))
    assert chat["andon.cancel.cause"] == "user"
    assert chat["andon.usage.estimated"] is True
    assert chat["gen_ai.usage.output_tokens"] == 4


def test_a_mode_that_lets_the_tools_finish(watch: Watch) -> None:
    async def main() -> None:
        @tool
        async def cancel() -> str:
            run.cancel(mode=CancelMode.after_tools)
            await asyncio.sleep(0)
            return "done"

        async with watch.agent("A", ScriptedModel(then=[Call("cancel")]), tools=[cancel]).start("Go") as run:
            await run.result()

    asyncio.run(main())
    assert facts(watch.one("invoke_agent A"))["andon.run.status"] == "cancelled"
    call = facts(watch.one("execute_tool cancel"))
    assert call["andon.tool.outcome"] == "completed"
    assert "andon.cancel.cause" not in call


def test_one_call_is_cancelled_and_the_run_goes_on(watch: Watch) -> None:
    async def main() -> None:
        model = ScriptedModel([Call("wait_for_ever"), Call("search", {"query": "a"})], "Well.")
        async with watch.agent("A", model, tools=[wait_for_ever, search]).start("Go") as run:
            async for event in run:
                if event.event is RunEvent.tool_call_completed:
                    run.cancel_tool("call_1")

    asyncio.run(main())
    call = facts(watch.one("execute_tool wait_for_ever"))
    assert (call["andon.tool.outcome"], call["andon.cancel.cause"]) == ("cut", "user")
    assert facts(watch.one("invoke_agent A"))["andon.run.status"] == "completed"


@pytest.mark.parametrize("alone", [True, False])
def test_a_call_that_was_undone_says_so(watch: Watch, alone: bool) -> None:
    async def undo() -> None: ...

    async def main() -> None:
        begun = asyncio.Event()

        @tool(on_cancel=undo)
        async def pay() -> str:
            begun.set()
            await asyncio.get_running_loop().create_future()
            return "never"

        async with watch.agent("A", ScriptedModel(Call("pay"), "Well."), tools=[pay]).start("Go") as run:
            await begun.wait()
            _ = run.cancel_tool("call_1") if alone else run.cancel()
            await run.result()

    asyncio.run(main())
    assert facts(watch.one("execute_tool pay"))["andon.tool.outcome"] == "compensated"


def test_an_abandoned_tool_ends_its_span_with_the_run_and_not_again(watch: Watch) -> None:
    async def main() -> None:
        begun, gate, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

        @tool
        async def stubborn() -> str:
            begun.set()
            while not gate.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await gate.wait()
            over.set()
            return "late"

        runtime = Runtime(cut_seconds=0.01, abandon_seconds=0.02)
        agent = watch.agent("A", ScriptedModel([Call("stubborn")]), tools=[stubborn], runtime=runtime)
        async with agent.start("Go") as run:
            await begun.wait()
            run.cancel()
            await run.result()
            told = facts(watch.one("execute_tool stubborn"))
            gate.set()
            await over.wait()
            await run.cancel_and_wait()
        assert told["andon.tool.outcome"] == "abandoned"

    asyncio.run(main())
    assert facts(watch.one("invoke_agent A"))["andon.leftovers"] == ("tool stubborn (call_1)",)


def test_a_run_that_was_cancelled_before_its_first_step(watch: Watch) -> None:
    async def main() -> None:
        async with watch.agent("A", ScriptedModel("Never.")).start("Go") as run:
            run.cancel()

    with watch.tracer.start_as_current_span("request"):
        asyncio.run(main())
    assert watch.tree() == ["request", "  invoke_agent A"]
    assert facts(watch.one("invoke_agent A"))["andon.cancel.cause"] == "user"


@pytest.mark.parametrize("what", ["chat scripted", "execute_tool wait_for_ever"])
def test_a_part_that_the_host_cancelled_before_the_run_was_told(watch: Watch, what: str) -> None:
    """As at the end of `asyncio.run`, which cancels every task, in whatever order it finds them."""
    turn = [Stall()] if what == "chat scripted" else [Call("wait_for_ever")]
    name = "the model" if what == "chat scripted" else "tool wait_for_ever (call_1)"
    agent = watch.agent("A", ScriptedModel(turn), tools=[wait_for_ever])

    async def main() -> None:
        run = agent.start("Go")
        await run.begin()
        while not (mine := [task for task in asyncio.all_tasks() if task.get_name() == name]):  # noqa: ASYNC110
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        for task in [*mine, *(task for task in asyncio.all_tasks() if task is not asyncio.current_task())]:
            task.cancel()
        await run.result()

    asyncio.run(main())
    assert watch.tree()[-1].strip() == what
    assert facts(watch.one(what))["andon.cancel.cause"] == "caller"


def test_a_run_that_was_lost_with_its_loop(watch: Watch) -> None:
    agent = watch.agent("A", ScriptedModel(["Well, ", Call("wait_for_ever")]), tools=[wait_for_ever])

    async def begin() -> Run:
        run = agent.start("Go")
        await run.begin()
        async for event in run:
            if event.event is RunEvent.tool_call_started:
                break
        await asyncio.sleep(0)
        return run

    loop = asyncio.new_event_loop()
    run = loop.run_until_complete(begin())
    tasks = asyncio.all_tasks(loop)
    loop.close()
    assert watch.named("invoke_agent A") == []
    run.cancel()
    assert probe(run).settled_blocking(HANG)
    for task in tasks:  # what asyncio would complain of: they can never go on
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    del tasks, task
    assert watch.tree() == ["invoke_agent A", "  turn", "    chat scripted", "    execute_tool wait_for_ever"]
    assert facts(watch.one("invoke_agent A"))["andon.cancel.cause"] == "lost"
    assert facts(watch.one("execute_tool wait_for_ever"))["andon.cancel.cause"] == "lost"


def test_a_run_that_could_not_be_ended_properly(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("a defect of ours")

    monkeypatch.setattr("andon.agent.settle.settle", broken)
    result = watch.agent("A", ScriptedModel("Hello.")).run("Go")
    assert result.status is RunStatus.error
    assert watch.tree() == ["invoke_agent A", "  turn", "    chat scripted"]
    assert watch.one("invoke_agent A").status.status_code is StatusCode.ERROR


def test_not_even_its_parts_could_be_asked(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("a defect of ours")

    monkeypatch.setattr("andon.agent.turn.Turn.spent_cut", broken)
    agent = watch.agent("A", ScriptedModel(["Well, ", Stall()]))
    asyncio.run(cancelled_at(agent.start("Go"), RunEvent.run_content))
    assert set(watch.complaints) == {"telemetry failed; the run goes on without"}
    watch.complaints.clear()
    assert watch.tree() == ["invoke_agent A", "  turn", "    chat scripted"]


# -- going on ---------------------------------------------------------------------------------------------------------


def test_a_pause_ends_the_span_and_what_follows_is_linked_to_it(watch: Watch) -> None:
    @tool(approval=True)
    async def pay() -> str:
        return "paid"

    @tool
    async def ask(ctx: ToolContext) -> str:
        return f"they said {ctx.interrupt('which')}"

    agent = watch.agent("A", ScriptedModel([Call("pay"), Call("ask")], "Done."), tools=[pay, ask])

    async def main() -> None:
        with watch.tracer.start_as_current_span("first"):
            paused = await agent.invoke_async("Go")
        watch.check()
        assert [facts(span)["andon.run.status"] for span in watch.named("invoke_agent A")] == ["paused"]
        with watch.tracer.start_as_current_span("answer"):
            await agent.continue_run(paused.run_id, {each.id: True for each in paused.interrupts})

    asyncio.run(main())
    assert watch.tree() == [
        "first",
        "  invoke_agent A",
        "    turn",
        "      chat scripted",
        "      execute_tool ask",
        "answer",
        "  invoke_agent A",
        "    turn",
        "      execute_tool pay",
        "      execute_tool ask",
        "    turn",
        "      chat scripted",
    ]
    before, after = watch.named("invoke_agent A")
    assert links(after) == [before.context.span_id]
    assert facts(before)["andon.run.id"] == facts(after)["andon.run.id"]
    assert [event.name for event in watch.named("turn")[0].events] == ["andon.interrupt", "andon.interrupt"]
    outcomes = [facts(span)["andon.tool.outcome"] for span in watch.named("execute_tool ask")]
    assert outcomes == ["interrupted", "completed"]


@pytest.mark.parametrize("ending", ["cancel", "refuse"])
def test_a_call_that_was_never_let_run_is_told(watch: Watch, ending: str) -> None:
    @tool(approval=True)
    async def pay() -> str:
        return "paid"

    agent = watch.agent("A", ScriptedModel([Call("pay")], "Oh."), tools=[pay])

    async def main() -> None:
        with watch.tracer.start_as_current_span("request"):
            run = agent.start("Go")
            await run.begin()
            (question,) = (await run.result()).interrupts
        if ending == "refuse":
            await agent.continue_run(run.run_id, {question.id: Deny("no")})
        else:
            await run.cancel_and_wait(HANG)

    asyncio.run(main())
    before, after = watch.named("invoke_agent A")
    assert links(after) == [before.context.span_id]
    (event,) = watch.named("turn")[1].events
    assert event.name == "andon.tool.not_run"
    assert event.attributes is not None
    if ending == "refuse":
        assert event.attributes["andon.tool.denied"] is True
        assert event.attributes["andon.tool.outcome"] == "refused"
    else:
        assert event.attributes["andon.cancel.cause"] == facts(after)["andon.cancel.cause"] == "user"
        assert before.parent is not None
        assert after.parent == before.parent, "found in the same trace, though no task of it is left"


@pytest.mark.parametrize(("ending", "outcome"), [("cancel", "cut"), ("refuse", "refused")])
def test_what_becomes_of_a_call_that_has_asked_and_is_not_entered_again_is_told(
    watch: Watch, ending: str, outcome: str
) -> None:
    @tool
    async def ask(ctx: ToolContext) -> str:
        return f"they said {ctx.interrupt('which')}"

    agent = watch.agent("A", ScriptedModel([Call("ask")], "Oh."), tools=[ask])

    async def main() -> None:
        run = agent.start("Go")
        await run.begin()
        (question,) = (await run.result()).interrupts
        if ending == "refuse":
            await agent.continue_run(run.run_id, {question.id: False})
        else:
            await run.cancel_and_wait(HANG)

    asyncio.run(main())
    assert [facts(span)["andon.tool.outcome"] for span in watch.named("execute_tool ask")] == ["interrupted"]
    (event,) = watch.named("turn")[1].events
    assert event.attributes is not None
    assert event.attributes["andon.tool.outcome"] == outcome


def test_a_run_that_goes_on_with_a_cancelled_one_is_linked_to_it(watch: Watch) -> None:
    agent = watch.agent("A", ScriptedModel(["Well, ", Stall()], "There."))

    async def main() -> None:
        run = agent.start("Go")
        await cancelled_at(run, RunEvent.run_content)
        await agent.continue_run(run.run_id)

    asyncio.run(main())
    before, after = watch.named("invoke_agent A")
    assert links(after) == [before.context.span_id]
    assert facts(after)["andon.run.continues"] == facts(before)["andon.run.id"]


# -- when telemetry itself breaks -------------------------------------------------------------------------------------


class _Broken:
    """A tracer provider whose every span fails to begin."""

    def get_tracer(self, *args: object, **options: object) -> _Broken:
        return self

    def start_span(self, *args: object, **options: object) -> object:
        raise RuntimeError("no span for you")


def test_a_tracer_that_breaks_does_not_break_the_run() -> None:
    agent = Agent(
        "A",
        ScriptedModel([Call("search", {"query": "a"}), Call("none")], "Fine."),
        tools=[search],
        telemetry=Telemetry(tracer_provider=_Broken()),  # type: ignore[arg-type]
    )
    with Complaints().listening() as complaints:
        result = agent.run("Go")
    assert (result.status, result.content) == (RunStatus.completed, "Fine.")
    assert set(complaints.texts) == {"telemetry failed; the run goes on without"}
