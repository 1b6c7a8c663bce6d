# SPDX-License-Identifier: Apache-2.0
"""Functions as tools: what may be one, how it is called, what its result becomes, and what a cut leaves of its thread.

Annotations are objects here and strings in test_schema.py, so there is no `from __future__ import annotations`.
"""

import asyncio
import collections
import contextvars
import dataclasses
import enum
import functools
import gc
import inspect
import logging
import subprocess
import sys
import threading
import types
import uuid
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any, assert_type, cast

import pytest
from pydantic import BaseModel, RootModel

import andon.tools.thread
from andon.core.held import HeldResource
from andon.core.run.tool_call import ToolCallScope
from andon.errors import BadResultError, ThreadsExhaustedError, ToolCancelled, ToolDefinitionError, ToolError
from andon.tools.base import Tool, ToolContext
from andon.tools.function import FunctionTool, as_tool, to_text, tool
from andon.tools.internals import CallInternals
from andon.tools.thread import ToolThread

pytestmark = pytest.mark.timeout(30)
HANG = 10
"""Seconds after which a wait is a failure. Nothing here takes a hundredth of it."""


class Call:
    """A tool call without a run: the real scope and context, and a stand-in for what they tell the run."""

    def __init__(self, *, abandoned_threads: int = 64, kind: type[ToolCallScope] = ToolCallScope) -> None:
        self.abandoned: dict[HeldResource, ToolCallScope] = {}
        self.named: list[str] = []
        self.gone = threading.Event()
        run = SimpleNamespace(
            runtime=SimpleNamespace(
                abandoned=self.abandoned,
                bounds=SimpleNamespace(abandoned_threads=abandoned_threads, abandoned_user_threads=16),
            ),
            user_id=None,
            steps=SimpleNamespace(
                leave_behind=lambda key, name: self.named.append(name), picked_up=lambda key: self.gone.set()
            ),
            children=[],
        )
        self.scope = kind(cast(Any, run), "call-1", "work")
        self.ctx = ToolContext(CallInternals(self.scope), run_id="r", session_id="s", user_id=None, deadline=None)

    async def cut(self, task: "asyncio.Task[Any]") -> None:
        """As the runtime does it: tell the tool, then cancel its task."""
        self.scope.fire()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def invoke(function: object, call: Call | None = None, **bound: object) -> str:
    async def main() -> str:
        output = await as_tool(function).invoke(bound, (call or Call()).ctx)
        assert isinstance(output, str)
        return output

    return asyncio.run(main())


async def until(event: threading.Event) -> None:
    """Wait for a thread without stopping the loop."""
    assert await asyncio.get_running_loop().run_in_executor(None, event.wait, HANG)


# -- what it is to its users -----------------------------------------------------------------------------------------


def test_a_tool_is_still_the_function() -> None:
    @tool
    def search(query: str, limit: int = 2) -> list[str]:
        """Search the archive."""
        return [query] * limit

    assert assert_type(search("x"), list[str]) == ["x", "x"]
    assert search(query="y", limit=1) == ["y"]
    assert search.__name__ == search.name == "search"
    assert search.__doc__ == search.description == "Search the archive."
    assert search.__wrapped__("z", 1) == ["z"]
    assert str(inspect.signature(search)) == "(query: str, limit: int = 2) -> list[str]"
    assert repr(search) == "<tool search>"


def test_an_async_tool_is_still_the_function() -> None:
    @tool
    async def search(query: str) -> int:
        return len(query)

    async def main() -> None:
        assert assert_type(await search("abc"), int) == 3

    asyncio.run(main())
    assert search.description == ""


def test_the_decorator_takes_a_name_and_a_description() -> None:
    @tool(name="look-up", description="Find it.")
    def search(query: str) -> int:
        """Something else.

        Args:
            query: What.
        """
        return len(query)

    assert assert_type(search("abc"), int) == 3
    assert (search.name, search.description, search.__name__) == ("look-up", "Find it.", "search")
    assert search.parameters["properties"]["query"]["description"] == "What."
    assert tool(search.__wrapped__, name="again").name == "again"
    assert tool(search.__wrapped__, description="").description == ""


def test_bound_methods_static_methods_partials_and_callable_objects_can_be_tools() -> None:
    class Shop:
        def __init__(self, name: str) -> None:
            self.name = name

        def sell(self, item: str) -> str:
            """Sell it."""
            return f"{self.name} sells {item}"

        @staticmethod
        @tool
        def greet(who: str) -> str:
            return f"hello {who}"

        async def __call__(self, item: str) -> str:
            """Order it."""
            await asyncio.sleep(0)
            return f"{self.name} orders {item}"

    async def fetch(url: str, key: str) -> str:
        """Fetch it."""
        await asyncio.sleep(0)
        return f"{url} with {key}"

    sell, order = tool(Shop("A").sell), tool(Shop("B"), name="order")
    partial = tool(functools.partial(fetch, key="secret"), name="fetch")
    assert (sell.name, sell.description, order.description, partial.description) == (
        "sell",
        "Sell it.",
        "Order it.",
        "Fetch it.",
    )
    assert list(sell.parameters["properties"]) == list(order.parameters["properties"]) == ["item"]
    assert "secret" not in str(partial.parameters)  # what was given already is not the model's affair
    assert list(partial.parameters["properties"]) == ["url"]
    assert invoke(sell, item="tea") == "A sells tea"
    assert invoke(order, item="tea") == "B orders tea"
    assert invoke(partial, url="u") == "u with secret"
    assert invoke(Shop.greet, who="you") == "hello you"
    assert (order.__name__, partial.__name__) == ("order", "fetch")


def test_importing_and_decorating_do_not_import_pydantic() -> None:
    program = """
import sys
from andon.tools.function import tool
@tool
def search(query: str) -> str:
    "Search."
    return query
assert "pydantic" not in sys.modules, "imported too early"
assert search.parameters["required"] == ["query"]
assert "pydantic" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# -- what may not be a tool ------------------------------------------------------------------------------------------


def no_annotation(query) -> str:  # type: ignore[no-untyped-def]
    return str(query)


def bare_context(query: str, ctx) -> str:  # type: ignore[no-untyped-def]
    return query


def unbound_method(self, query: str) -> str:  # type: ignore[no-untyped-def]
    return query


async def async_generator(query: str) -> AsyncIterator[str]:
    yield query


def generator(query: str) -> Iterator[str]:
    yield query


class CallableGenerator:
    def __call__(self, query: str) -> Iterator[str]:
        yield query


def star(*queries: str) -> str:
    return str(queries)


def double_star(**queries: str) -> str:
    return str(queries)


def positional_only(query: str, /) -> str:
    return query


def two_contexts(one: ToolContext, two: ToolContext | None = None) -> str:
    return ""


def fine(query: str) -> str:
    return query


@pytest.mark.parametrize(
    ("obj", "texts"),
    [
        (no_annotation, ["no_annotation", "parameter query has no annotation", "query: str"]),
        (bare_context, ["parameter ctx has no annotation", "ctx: ToolContext"]),
        (unbound_method, ["tool(instance.method)"]),
        (async_generator, ["async_generator is a generator function", "collect"]),
        (generator, ["generator is a generator function", "collect"]),
        (CallableGenerator(), ["CallableGenerator is a generator function"]),
        (functools.partial(generator, "x"), ["partial is a generator function"]),
        (star, ["*queries", "name each parameter"]),
        (double_star, ["**queries", "name each parameter"]),
        (positional_only, ["query is positional-only", "take away the `/`"]),
        (two_contexts, ["2 ToolContext parameters (one, two)", "keep one"]),
        (dict, ["dict is a class", "give a function"]),
        (5, ["int can't be a tool", "give a function"]),
        ("search", ["str can't be a tool", '@tool(name="..."']),
        (lambda: "x", ["'<lambda>' can't be a tool's name", 'name="..."']),
        (functools.partial(fine), ["partial has no name", 'name="..."']),
        (len, ["obj is positional-only"]),
        (getattr, ["its signature can't be read", "function of your own"]),
    ],
)
def test_what_cannot_be_a_tool_is_refused_where_it_is_defined(obj: Any, texts: list[str]) -> None:
    for wrap in (tool, as_tool):
        with pytest.raises(ToolDefinitionError) as caught:
            wrap(obj)
        for text in texts:
            assert text in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "a.b", "ü", "x" * 65, "x\n"])
def test_names_that_providers_refuse_are_refused(name: str) -> None:
    with pytest.raises(ToolDefinitionError, match="can't be a tool's name"):
        tool(name=name)(fine)


def test_names_up_to_64_characters_are_fine() -> None:
    assert tool(name="a-B_9" + "x" * 59)(fine).name == "a-B_9" + "x" * 59


def test_a_tool_is_not_wrapped_twice() -> None:
    once = tool(fine)
    with pytest.raises(ToolDefinitionError, match=r"fine is a tool already; .*__wrapped__"):
        tool(once)


def test_as_tool_passes_tools_through_and_wraps_functions() -> None:
    class Handmade:
        name, description = "handmade", "By hand."
        parameters: dict[str, Any] = {}  # noqa: RUF012

        def bind(self, arguments: dict[str, Any]) -> dict[str, Any]:
            return arguments

        async def invoke(self, bound: dict[str, Any], ctx: ToolContext) -> str:
            return "by hand"

    def late(query: "DefinedNowhere") -> str:  # type: ignore[name-defined]  # noqa: F821
        return str(query)

    ours, theirs, unresolvable = tool(fine), Handmade(), tool(late)
    assert as_tool(ours) is ours
    assert as_tool(unresolvable) is cast(Tool, unresolvable)  # its schema is not asked for yet
    assert as_tool(theirs) is theirs
    assert isinstance(as_tool(fine), FunctionTool)
    with pytest.raises(ToolDefinitionError, match="Handmade is a class"):
        as_tool(Handmade)


# -- how it is called ------------------------------------------------------------------------------------------------


def test_an_async_function_is_awaited_on_the_loop_with_its_context() -> None:
    call = Call()

    @tool
    async def where(n: int, ctx: ToolContext) -> str:
        assert ctx is call.ctx
        return f"{n} {threading.current_thread() is threading.main_thread()}"

    assert invoke(where, call, n=3) == "3 True"
    assert not call.scope.has_resources


def test_a_sync_function_runs_in_a_daemon_thread_that_is_gone_after_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(andon.tools.thread, "EXIT_SECONDS", HANG)  # as long as it takes, on any machine
    call, threads = Call(), list[threading.Thread]()

    @tool
    def work(n: int, ctx: ToolContext) -> int:
        assert ctx is call.ctx
        assert call.scope.has_resources
        threads.append(threading.current_thread())
        return n + 1

    async def main() -> None:
        assert await work.invoke({"n": 1}, call.ctx) == "2"
        assert not threads[0].is_alive()
        assert not call.scope.has_resources
        assert await work.invoke({"n": 2}, call.ctx) == "3"

    asyncio.run(main())
    assert [(thread.name, thread.daemon) for thread in threads] == [("andon-tool-work", True)] * 2
    assert threads[0] is not threads[1]


def test_a_thread_that_is_slow_to_leave_does_not_hold_the_loop() -> None:
    leave, gone = threading.Event(), threading.Event()

    class SlowScope(ToolCallScope):
        def release(self, resource: HeldResource) -> None:
            assert leave.wait(HANG)
            super().release(resource)
            gone.set()

    call = Call(kind=SlowScope)
    assert invoke(fine, call, query="done") == "done"
    assert call.scope.has_resources
    leave.set()
    assert gone.wait(HANG)
    assert not call.scope.has_resources


def test_the_thread_has_a_copy_of_the_callers_context_variables() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")

    @tool
    def read_and_write() -> str:
        seen = variable.get()
        variable.set("the thread's")
        return seen

    async def main() -> None:
        variable.set("the caller's")
        assert await read_and_write.invoke({}, Call().ctx) == "the caller's"
        assert variable.get() == "the caller's"

    asyncio.run(main())


@pytest.mark.parametrize("error", [ValueError("no"), ToolCancelled(), SystemExit(3), asyncio.CancelledError()])
def test_what_a_sync_function_raises_reaches_the_caller(error: BaseException) -> None:
    call = Call()

    @tool
    def work() -> None:
        raise error

    async def main() -> None:
        with pytest.raises(type(error)) as caught:
            await work.invoke({}, call.ctx)
        assert caught.value is error
        assert caught.traceback[-1].name == "work"  # the traceback leads into the function

    asyncio.run(main())
    assert not call.scope.has_resources


@pytest.mark.parametrize("error", [StopIteration("no"), KeyboardInterrupt()])
def test_what_would_stop_a_coroutine_or_the_loop_arrives_as_a_runtime_error(error: BaseException) -> None:
    @tool
    def work() -> None:
        raise error

    with pytest.raises(RuntimeError, match=f"^tool work raised {type(error).__name__}$") as caught:
        invoke(work)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("kind", [ValueError, StopIteration])
def test_an_error_is_freed_without_the_garbage_collector(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failure(kind):  # type: ignore[misc, valid-type]
        pass

    monkeypatch.setattr(andon.tools.thread, "EXIT_SECONDS", HANG)  # the thread's own frames are gone after the call
    seen: list[weakref.ref[BaseException]] = []

    @tool
    def work() -> None:
        error = Failure("no")
        seen.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    async def main() -> None:
        try:
            await work.invoke({}, Call().ctx)
        except (Failure, RuntimeError):
            assert seen[0]() is not None
        await asyncio.sleep(0)  # asyncio holds the future until this step has ended
        assert seen[0]() is None

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


# -- when it is cut --------------------------------------------------------------------------------------------------


class SecretError(Exception):
    pass


def finish() -> str:
    return "secret"


def fail() -> str:
    raise SecretError("secret")


@pytest.mark.parametrize(("ending", "suffix"), [(finish, ""), (fail, ": it raised SecretError")])
def test_a_cut_leaves_the_thread_behind_named_and_drops_what_it_brings(
    ending: Callable[[], str], suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    call, started, release = Call(), threading.Event(), threading.Event()

    @tool
    def work() -> str:
        started.set()
        assert release.wait(HANG)
        return ending()

    async def main() -> None:
        task = asyncio.create_task(work.invoke({}, call.ctx))
        await until(started)
        await call.cut(task)
        assert call.named == [held.name for held in call.abandoned] == ["thread of work (call-1)"]
        assert call.scope.has_resources
        release.set()
        await until(call.gone)
        assert call.abandoned == {}
        # What the thread left on the loop came before `gone`, so it has been dealt with.
        (record,) = caplog.records
        assert record.name == "andon.tools.thread"
        assert record.levelno == logging.INFO
        assert record.getMessage() == f"late result of tool work (call-1) dropped{suffix}"

    with caplog.at_level(logging.INFO, "andon"):
        asyncio.run(main())


def test_a_thread_that_asks_stops_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    call, started, told = Call(), threading.Event(), threading.Event()

    @tool
    def work(ctx: ToolContext) -> str:
        ctx.on_cancel(told.set)
        started.set()
        assert told.wait(HANG)
        ctx.check_cancelled()
        return "never"

    async def main() -> None:
        task = asyncio.create_task(work.invoke({}, call.ctx))
        await until(started)
        await call.cut(task)
        assert call.gone.is_set()  # it was given the moment that it needed

    with caplog.at_level(logging.INFO, "andon"):
        asyncio.run(main())
    assert caplog.messages == []  # it did as it was told: nothing is late


def test_a_thread_may_outlive_its_loop(caplog: pytest.LogCaptureFixture) -> None:
    call, started, release = Call(), threading.Event(), threading.Event()

    @tool
    def work() -> str:
        started.set()
        assert release.wait(HANG)
        return "secret"

    async def main() -> None:
        task = asyncio.create_task(work.invoke({}, call.ctx))
        await until(started)
        await call.cut(task)

    with caplog.at_level(logging.INFO, "andon"):
        asyncio.run(main())
        assert caplog.messages == []
        release.set()
        assert call.gone.wait(HANG)
    assert caplog.messages == ["late result of tool work (call-1) dropped"]
    assert call.abandoned == {}


def test_a_result_that_comes_at_the_moment_of_the_cut_is_dropped_too(caplog: pytest.LogCaptureFixture) -> None:
    answer, ended = threading.Event(), threading.Event()

    @tool
    def work() -> str:
        answer.wait(HANG)
        return "secret"

    class TellingScope(ToolCallScope):
        def release(self, resource: HeldResource) -> None:
            super().release(resource)
            ended.set()

    call = Call(kind=TellingScope)

    async def main() -> None:
        task = asyncio.create_task(work.invoke({}, call.ctx))
        await asyncio.sleep(0)  # its first step, which starts the thread; a loop with eager tasks has taken it already
        answer.set()
        assert ended.wait(HANG)  # the loop stands still, so the answer is the next thing on it, and the cut comes after
        loop.call_soon(task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task

    with caplog.at_level(logging.INFO, "andon"), asyncio.Runner() as runner:
        loop = runner.get_loop()
        runner.run(main())
    assert caplog.messages == ["late result of tool work (call-1) dropped"]


def test_with_too_many_abandoned_threads_none_is_started() -> None:
    call, calls = Call(abandoned_threads=2), list[str]()
    call.abandoned.update({ToolThread(scope): scope for scope in (Call().scope, Call().scope)})

    @tool
    def work() -> None:
        calls.append("work")

    with pytest.raises(
        ThreadsExhaustedError, match=r"running \(2\), so none was started for work.*ctx\.check_cancelled"
    ):
        invoke(work, call)
    assert calls == []
    assert not call.scope.has_resources
    call.abandoned.popitem()
    assert invoke(work, call) == "(no output)"
    assert calls == ["work"]


def test_a_thread_that_cannot_be_started_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Call()

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(ToolError, match=r"no thread could be started for work \(can't start new thread\)"):
        invoke(tool(fine, name="work"), call, query="x")
    assert not call.scope.has_resources


# -- what its result becomes -----------------------------------------------------------------------------------------


class Colour(enum.Enum):
    red = "crimson"
    mixed = (1, 2)


class Word(str):
    pass


class Person(BaseModel):
    name: str
    born: datetime | None = None


@dataclasses.dataclass
class Team:
    lead: Person
    others: list[Person]


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("as it is\n", "as it is\n"),
        ("", "(no output)"),
        (" \n\t", "(no output)"),
        (None, "(no output)"),
        (Word("word"), "word"),
        ("naïve \ud800!", "naïve ?!"),
        (0, "0"),
        (False, "false"),
        (1.5, "1.5"),
        (Fraction(1, 2), "0.5"),
        ([], "[]"),
        ({}, "{}"),
        ({"a": [1, None, "ü"]}, '{"a":[1,null,"ü"]}'),
        ({1: (2, 3)}, '{"1":[2,3]}'),
        ({5}, "[5]"),
        (Colour.red, "crimson"),
        ([Colour.red, Colour.mixed], '["crimson",[1,2]]'),
        (datetime(2026, 11, 15, tzinfo=UTC), "2026-11-15T00:00:00Z"),
        ([uuid.UUID(int=1), Decimal("1.10")], '["00000000-0000-0000-0000-000000000001","1.10"]'),
        (Person(name="Ada"), '{"name":"Ada","born":null}'),
        (RootModel[list[int]]([1, 2]), "[1,2]"),
        ([Person(name="Ada")], '[{"name":"Ada","born":null}]'),
        (
            Team(Person(name="Ada"), [Person(name="Bob", born=datetime(2000, 1, 1))]),
            '{"lead":{"name":"Ada","born":null},"others":[{"name":"Bob","born":"2000-01-01T00:00:00"}]}',
        ),
        (PurePosixPath("/a/b"), "/a/b"),
        ([Word("word"), PurePosixPath("a")], '["word","a"]'),
        (types.MappingProxyType({"a": 1}), '{"a":1}'),
        (collections.deque([1, 2]), "[1,2]"),
        (range(3), "[0,1,2]"),
        ([{"a": 1}.keys(), {"a": 1}.values(), {"a": 1}.items()], '[["a"],[1],[["a",1]]]'),
    ],
)
def test_results_become_text(result: object, text: str) -> None:
    written = to_text("work", result)
    assert written == text
    assert type(written) is str  # msgspec refuses to write any other


def test_an_unusual_integer_becomes_text() -> None:
    class Count(int):
        pass

    assert to_text("work", [Count(3)]) == "[3]"


@pytest.mark.parametrize(
    ("result", "texts"),
    [
        (b"x", ["returned bytes", "decode them"]),
        (bytearray(b"x"), ["returned bytearray", "decode them"]),
        ({"a": [(b"x",)]}, ["returned dict", "bytes are not text"]),
        ({b"x": 1}, ["returned dict", "bytes are not text"]),
        (memoryview(b"x"), ["returned memoryview", "bytes are not text"]),
        (object(), ["returned object", "object can't be written as JSON", "may return a str"]),
        ({"lock": [threading.Lock()]}, ["returned dict", "lock can't be written", "pydantic models"]),
        ((n for n in range(3)), ["returned generator"]),
        ({(1, 2): 3}, ["returned dict", "keys"]),
        (Person, ["returned ModelMetaclass"]),
        (["\ud800"], ["returned list", "surrogates"]),
    ],
)
def test_results_that_cannot_be_text_are_clear_errors(result: object, texts: list[str]) -> None:
    with pytest.raises(BadResultError) as caught:
        to_text("work", result)
    assert "tool work" in str(caught.value)
    for text in texts:
        assert text in str(caught.value)


def test_a_result_that_holds_itself_is_an_error() -> None:
    knot: list[object] = []
    knot.append(knot)
    with pytest.raises(BadResultError, match="returned list, which can't be made into text"):
        to_text("work", knot)


def test_results_of_both_kinds_of_functions_are_checked() -> None:
    async def awaited() -> bytes:
        return b"x"

    def threaded() -> bytes:
        return b"x"

    for function in (awaited, threaded):
        with pytest.raises(BadResultError, match=f"tool {function.__name__} returned bytes"):
            invoke(function)


def test_a_sync_function_that_returns_a_coroutine_gets_an_error_and_the_coroutine_is_closed() -> None:
    async def later() -> str:
        return "never"

    made = []

    def work() -> Awaitable[str]:
        made.append(later())
        return made[0]

    with pytest.raises(BadResultError, match=r"returned coroutine, which was not awaited: .* async function"):
        invoke(work)
    assert inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED


def test_any_other_awaitable_gets_an_error_too() -> None:
    class Later:
        def __await__(self) -> Generator[None, None, str]:
            yield
            return "never"

    async def work() -> Later:
        return Later()

    with pytest.raises(BadResultError, match="tool work returned Later, which was not awaited"):
        invoke(work)
