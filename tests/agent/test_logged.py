# SPDX-License-Identifier: Apache-2.0
"""What goes wrong is in the log, once, with its traceback, under a logger that is named after its module."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

import andon
from andon import AfterTool, BeforeTool, ModelError, Retry, RunResult, RunStatus, ToolContext, tool
from andon.models.scripted import Call, Fail
from andon.testing import probe
from tests.support import Flag, Silence, cut, forever, make, play, until


class OopsError(Exception):
    pass


@tool
async def broken(secret: str = "x") -> str:
    raise OopsError("it broke")


@tool
def broken_in_a_thread() -> str:
    raise OopsError("it broke")


@tool
async def leaves() -> str:
    raise SystemExit(3)


def of_ours(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[logging.LogRecord]:
    return [each for each in caplog.records if each.name.startswith("andon") and each.levelno >= level]


def traceback_of(record: logging.LogRecord) -> str:
    assert record.exc_info
    return logging.Formatter().formatException(record.exc_info)


@pytest.mark.parametrize("name", ["broken", "broken_in_a_thread", "leaves"])
def test_what_a_tool_raises_is_logged_once_with_its_traceback(name: str, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[AfterTool] = []

    class Hook:
        async def after_tool(self, event: AfterTool) -> None:
            heard.append(event)

    agent = make(Call(name, id="c"), "Oh.", tools=[broken, broken_in_a_thread, leaves], hooks=[Hook()])
    assert agent.run("go", run_id="r").status is RunStatus.completed
    [record] = of_ours(caplog, logging.DEBUG)
    assert (record.name, record.levelno) == ("andon.agent.tool_runner", logging.WARNING)
    assert record.getMessage().startswith(f"tool {name} (c) failed: ")
    assert f"in {name}\n" in traceback_of(record)
    assert record.__dict__["facts"]["run_id"] == "r"
    assert record.exc_info
    assert heard[0].error is record.exc_info[1]


def test_what_says_very_much_is_cut_in_the_line(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def talkative() -> str:
        raise OopsError("x" * 1_000_000)

    class Hook:
        async def after_tool(self, event: AfterTool) -> None:
            raise OopsError("x" * 1_000_000)

    make(Call("talkative"), Fail(OopsError("x" * 1_000_000)), tools=[talkative], hooks=[Hook()]).run("go")
    records = of_ours(caplog)
    assert len(records) == 3
    for each in records:
        assert "OopsError: xxx" in each.getMessage()
        assert each.getMessage().endswith("characters left out)")
        assert len(each.getMessage()) < 5_000


def test_a_hook_that_raises_is_logged_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    class Hook:
        def before_tool(self, event: BeforeTool) -> None:
            raise OopsError("the guard broke")

    agent = make(Call("broken", id="c"), "Oh.", tools=[broken], hooks=[Hook()])
    result = agent.run("go")
    [record] = of_ours(caplog)
    assert (record.name, record.levelno) == ("andon.agent.hooks", logging.WARNING)
    assert "in before_tool\n" in traceback_of(record)
    assert len(result.warnings) == 1


def test_a_model_that_raises_is_logged_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    agent = make([Fail(OopsError("no more"))])
    result = agent.run("go", run_id="r")
    [record] = of_ours(caplog)
    assert (record.name, record.levelno) == ("andon.core.run.ending", logging.ERROR)
    assert record.getMessage() == "run r failed: OopsError: no more"
    assert record.exc_info
    assert record.exc_info[1] is result.error
    assert "in play\n" in traceback_of(record)


def test_a_model_that_is_asked_again_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "andon")
    busy = ModelError("busy", retryable=True)
    agent = make([Fail(busy)], [Fail(busy)], "Here.", retry=Retry(base_seconds=0))
    assert agent.run("go").content == "Here."
    assert of_ours(caplog) == []
    assert [each.name for each in of_ours(caplog, logging.INFO)] == ["andon.agent.loop"] * 2


def test_a_refused_call_is_logged_without_what_was_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "andon")
    agent = make([Call("broken", {"wrong": "hunter2"}, id="a"), Call("hunter2", id="b")], "Oh.", tools=[broken])
    agent.run("go")
    assert of_ours(caplog) == []
    told = [(each.name, each.getMessage()) for each in of_ours(caplog, logging.INFO)]
    assert told == [
        ("andon.agent.tool_runner", "tool broken (a) was refused: BadArgumentsError"),
        ("andon.agent.tool_runner", "tool hunter2 (b) was refused: UnknownToolError"),
    ]


def test_what_a_tool_raises_when_it_is_cut_is_told_and_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "andon")
    began = Flag()

    @tool
    async def untidy() -> str:
        try:
            began.set()
            await forever()
        finally:
            raise OopsError("while tidying up")
        return ""

    async def main() -> None:
        await cut(make(Call("untidy", id="c"), tools=[untidy]), began)

    play(main)
    assert of_ours(caplog) == []
    [record] = of_ours(caplog, logging.INFO)
    assert record.name == "andon.agent.tool_runner"
    assert record.getMessage() == "tool untidy (c) raised OopsError: while tidying up after it was cut"
    assert "in untidy\n" in traceback_of(record)


def test_what_a_thread_raises_too_late_is_told_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "andon")
    go, began = threading.Event(), Flag()

    @tool
    def stuck(ctx: ToolContext) -> str:
        began.set()
        go.wait()
        raise OopsError("too late")

    async def main() -> None:
        ended = await cut(make(Call("stuck", id="c"), tools=[stuck]), began)
        go.set()
        await probe(ended.run).gone()
        await until(lambda: bool(of_ours(caplog, logging.INFO)))

    play(main)
    [record] = of_ours(caplog, logging.INFO)
    assert record.name == "andon.tools.thread"
    assert "in stuck\n" in traceback_of(record)


def test_an_error_does_not_outlive_its_call(caplog: pytest.LogCaptureFixture) -> None:
    """It holds the frames of the tool, and they may hold anything: no garbage collector is needed to free it."""
    caplog.set_level(logging.CRITICAL, "andon")  # a record of the log would hold it
    seen: list[weakref.ref[BaseException]] = []

    class Hook:
        def after_tool(self, event: AfterTool) -> None:
            assert event.error is not None
            seen.append(weakref.ref(event.error))

    async def main() -> None:
        silence = Silence()
        calls = [Call("broken", id="a"), Call("broken_in_a_thread", id="b"), Call("leaves", id="c")]
        tools = [broken, broken_in_a_thread, leaves]
        await cut(make(calls, [silence], tools=tools, hooks=[Hook()]), silence.reached)

    gc.collect()
    gc.disable()
    try:
        play(main)
        assert len(seen) == 3
        assert [each() for each in seen] == [None] * 3
    finally:
        gc.enable()


def test_a_failed_run_can_be_made_to_raise() -> None:
    failed = make([Fail(OopsError("no more"))]).run("go")
    with pytest.raises(OopsError, match="no more"):
        failed.raise_for_error()
    completed = make("Fine.").run("go")
    assert completed.raise_for_error() is completed

    @tool(approval=True)
    async def asks() -> str:
        return ""

    waiting = make(Call("asks"), tools=[asks]).run("go")
    assert waiting.raise_for_error() is waiting

    async def main() -> RunResult:
        silence = Silence()
        return (await cut(make([silence]), silence.reached)).result

    cancelled: list[RunResult] = []

    async def keep() -> None:
        cancelled.append(await main())

    play(keep)
    assert cancelled[0].raise_for_error() is cancelled[0]


def test_the_library_sets_up_nothing() -> None:
    """Nobody's log is touched by an import; what is logged goes to whoever has set one up, and else nowhere."""
    program = """
import logging
before = list(logging.root.handlers), logging.root.level, logging.lastResort
import andon, andon.server, andon.testing, andon.models.openai
from andon import Agent
from andon.models.scripted import Fail, ScriptedModel
ours = logging.getLogger("andon")
assert [type(each) for each in ours.handlers] == [logging.NullHandler], ours.handlers
assert (ours.level, ours.propagate) == (logging.NOTSET, True)
assert (list(logging.root.handlers), logging.root.level, logging.lastResort) == before
for name, logger in logging.root.manager.loggerDict.items():
    if name.startswith("andon.") and isinstance(logger, logging.Logger):
        assert (logger.handlers, logger.level, logger.propagate) == ([], logging.NOTSET, True), name
Agent("A", ScriptedModel([Fail(ValueError("no"))])).run("go")
"""
    ended = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_every_logger_is_named_after_its_module() -> None:
    """But for the requests, which have one of their own, and for whoever watches all of ours."""
    named = [
        (path.name, line)
        for path in Path(andon.__file__).parent.rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if line.startswith("log = logging.getLogger(") and "__name__" not in line
    ]
    assert sorted(named) == [
        ("logs.py", 'log = logging.getLogger("andon.access")'),
        ("surroundings.py", 'log = logging.getLogger("andon")'),
    ]
