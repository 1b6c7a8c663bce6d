# SPDX-License-Identifier: Apache-2.0
"""MCP servers as sources of tools: their tools, results, progress and questions; how they break, and how they end."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from andon import (
    Agent,
    CancelCause,
    ConfigurationError,
    Deny,
    MissingExtraError,
    ProgressView,
    RunEvent,
    RunStatus,
    SetupError,
    ToolError,
    ToolOutcome,
    ToolSourceError,
    tool,
)
from andon.media import Image
from andon.models.scripted import Call, ScriptedModel
from andon.tools.base import ToolOutput
from andon.tools.mcp import MCPServer, SamplingRequest, supervisor
from andon.tools.mcp.process import CHUNK, ServerProcess
from andon.tools.mcp.settings import make_address
from tests.support import HANG, mcp_warm, play, until
from tests.support.mcp_witness import Witness
from tests.support.processes import is_gone

KINDS = ["stdio", "stdio-legacy", "http", "http-legacy"]


@pytest.fixture
def witness() -> Iterator[Witness]:
    mcp_warm.address()  # started here: what a test opens and leaves open is counted
    with Witness() as witness:
        yield witness


def results(run: Any) -> list[str]:
    return [result.content for message in run.messages for result in message.tool_results]


# -- tools and results ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_tools_results_and_progress(witness: Witness, kind: str) -> None:
    async def main(server: MCPServer) -> None:
        async with server:
            calls = [Call(name) for name in ("echo", "fail", "structured", "progress")]
            agent = Agent("a", ScriptedModel(calls, "Done."), tools=[server, lambda_tool])
            async with agent.start("Go") as run:
                events = [event async for event in run]
                result = await run.result()
            assert results(result) == ["echo ", "ToolError: the disk is full", '{"degrees":21}', "done"]
            told = [event.progress for event in events if event.event is RunEvent.tool_progress]
            assert told == [ProgressView(1, 2, "half"), ProgressView(2, 2, "all")]
            picture = await server.call("picture")
            assert picture == ToolOutput("(attached)", [Image(b"\x89PNG\r\n\x1a\n", "image/png")])
            with pytest.raises(ToolError, match="the disk is full"):
                await server.call("fail")
            with pytest.raises(ToolError, match="no tool 'nothing'"):
                await server.call("nothing")

    with witness.server(kind) as server:
        play(lambda: main(server))


@tool
def lambda_tool() -> str:
    """A tool of the agent itself."""
    return "own"


def test_names_are_prefixed_and_filtered(witness: Witness) -> None:
    async def main() -> None:
        async with witness.warm(prefix="t_", only=["echo", "die once"], approval=["echo"]) as server:
            tools = {each.name: each for each in await server.tools()}
            assert list(tools) == ["t_echo", "t_die_once"]
            assert [each.traits.approval for each in tools.values()] == [True, False]  # type: ignore[attr-defined]
            assert await server.call("t_echo", {"text": "x"}) == "echo x"
        async with witness.warm(only=lambda name: name.startswith("e"), without={"env"}) as server:
            assert [each.name for each in await server.tools()] == ["echo"]
        with pytest.raises(ToolSourceError, match="has no tool ekko, which only= names; it has: echo, wait"):
            async with witness.warm(only=["ekko"]):
                pass

    play(main)


def test_two_servers_with_the_same_names(witness: Witness) -> None:
    async def main() -> None:
        one, two = witness.warm(only=["echo"]), witness.warm(only=["echo"])
        async with one, two:
            model = ScriptedModel("never")
            result = await Agent("a", model, tools=[one, two]).invoke_async("Go")
            assert result.status is RunStatus.error
            assert isinstance(result.error, ToolSourceError)
            assert "two tools are named 'echo'" in str(result.error)
            assert model.calls == 0 if hasattr(model, "calls") else True

    play(main)


def test_agents_share_a_server(witness: Witness) -> None:
    async def main() -> None:
        server = witness.warm()
        agents = [Agent(f"a{n}", ScriptedModel([Call("echo", {"text": str(n)})], "ok"), tools=[server]) for n in "123"]
        ended = await asyncio.gather(*(agent.invoke_async("Go") for agent in agents))
        assert [results(each) for each in ended] == [["echo 1"], ["echo 2"], ["echo 3"]]
        assert len(witness.find("start")) == 1
        await server.aclose()

    play(main)


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_that_changes_in_a_run(witness: Witness, kind: str) -> None:
    async def main(server: MCPServer) -> None:
        async with server:
            before = await server.tools()
            assert await server.tools() is before
            if kind == "http":  # the news comes on a stream of its own, and may be later than the result
                await server.call("grow")
                await until(lambda: server.known_tools() is None)
                assert {each.name for each in await server.tools()} - {each.name for each in before} == {"grown"}
                return
            agent = Agent("a", ScriptedModel([Call("grow")], [Call("grown", {"text": "x"})], "Done."), tools=[server])
            result = await agent.invoke_async("Go")
            assert results(result) == ["grew", "grown x"]

    with witness.server(kind) as server:
        play(lambda: main(server))


def test_the_environment_is_passed_by_name(witness: Witness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANTED", "yes")
    monkeypatch.setenv("SECRET", "no")

    async def main() -> None:
        async with witness.stdio(env=["WANTED"]) as server:
            got = json.loads(str(await server.call("env")))
            assert got["WANTED"] == "yes"
            assert "SECRET" not in got
        async with witness.stdio(env={"OTHER": "1"}) as server:
            got = json.loads(str(await server.call("env")))
            assert got["OTHER"] == "1"
            assert "WANTED" not in got

    play(main)


def test_a_long_line_is_put_together_once() -> None:
    """Each part of it is copied once: else a result of some megabytes would take the loop for seconds."""
    program = "import os; [os.write(1, b'a' * 65_536) for _ in range(500)]; os.write(1, b'\\nb\\n\\nc')"
    sizes = list[int]()

    async def main() -> None:
        address = make_address([sys.executable, "-c", program], (), (), None, None, None)
        process = await ServerProcess.start(address, deque())
        sizes.extend([len(line) async for line in process.lines()])
        await process.stop()

    before = time.process_time()
    play(main)
    assert sizes == [500 * CHUNK, 1, 0]
    assert time.process_time() - before < 4


def test_a_line_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("andon.tools.mcp.process.MAX_LINE", 2**20)
    monkeypatch.setattr("andon.tools.mcp.connection.ATTEMPTS", 1)
    program = "import os\nwhile True: os.write(1, b'a' * 65_536)"

    async def main() -> None:
        with pytest.raises(ToolSourceError, match="without the end of a line"):
            await MCPServer([sys.executable, "-c", program], name="endless", connect_seconds=60).tools()

    play(main)


# -- what can't work --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "either a command"),
        ({"command": "x", "url": "http://x"}, "either a command"),
        ({"command": "http://x"}, "write MCPServer\\(url="),
        ({"url": "ftp://x"}, "begins with http"),
        ({"url": "http://x", "env": ["A"]}, "env and cwd are for"),
        ({"command": "x", "headers": {}}, "headers are for"),
        ({"command": "x 'y"}, "list of words"),
        ({"command": ""}, "is empty"),
        ({"command": "x", "timeout": -1}, "timeout is -1"),
        ({"command": "x", "only": "name"}, "only is a list"),
        ({"command": "x", "approval": "name"}, "approval is True"),
        ({"command": "x", "env": "A"}, "env is a list"),
        ({"command": "x", "protocol": "new"}, "protocol is 'new'"),
    ],
)
def test_wrong_options(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        MCPServer(**given)


@pytest.mark.parametrize("value", ["Bearer k-123\n", " k-123", "k-123\u2026", "k-\0123", b"k-123"])
def test_a_header_that_can_not_be_sent_is_refused_without_its_value(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="header 'Authorization'") as raised:
        MCPServer(url="http://127.0.0.1:1/mcp", headers={"Authorization": value})
    assert "123" not in str(raised.value)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("npx -y @scope/server-files /tmp", "npx server-files"),
        ("python servers/notes.py --debug", "python notes.py"),
        (["python", "-c", "import time; print(1/0)"], "python"),
        ("server", "server"),
    ],
)
def test_a_server_is_named_after_its_program(command: Any, name: str) -> None:
    assert MCPServer(command).name == name


def test_no_secret_is_in_a_repr() -> None:
    by_url = make_address(None, (), (), None, "http://u:k-123@h/mcp?key=k-123", {"Authorization": "Bearer k-123"})
    by_command = make_address("server --x", (), {"KEY": "k-123"}, None, None, None)
    assert (repr(by_url), repr(by_command)) == ("<address http://h/mcp>", "<address server --x>")


def test_what_is_missing_is_said_where_the_run_is_requested(tmp_path: Any) -> None:
    for server, said in (
        (MCPServer("no-such-program --x"), "there is no program 'no-such-program'"),
        (MCPServer(sys.executable, env=["NOT_THERE"]), "environment variable NOT_THERE"),
        (MCPServer(sys.executable, cwd=tmp_path / "no"), "there is no folder"),
    ):
        agent = Agent("a", ScriptedModel("never"), tools=[server])
        with pytest.raises(SetupError, match=said):
            agent.start("Go")


def test_a_server_that_can_not_be_reached() -> None:
    async def main() -> None:
        for server, said in (
            (MCPServer([sys.executable, "-c", "import sys; sys.exit('no config')"], name="s"), "no config"),
            (MCPServer(url="http://u:secret@127.0.0.1:9/mcp?key=secret", name="s"), "http://127.0.0.1:9/mcp"),
        ):
            result = await Agent("a", ScriptedModel("never"), tools=[server]).invoke_async("Go")
            assert result.status is RunStatus.error
            assert isinstance(result.error, ToolSourceError)
            assert "the MCP server s (" in str(result.error)
            assert said in str(result.error)
            assert "secret" not in str(result.error)

    play(main)


def test_a_server_that_hangs_at_the_handshake(witness: Witness) -> None:
    async def main() -> None:
        server = witness.stdio("--hang", connect_seconds=0.5)
        result = await Agent("a", ScriptedModel("never"), tools=[server]).invoke_async("Go")
        assert "it did not answer within 0.5 s" in str(result.error)
        before = len(witness.find("start"))
        server = witness.stdio("--hang")
        async with Agent("a", ScriptedModel("never"), tools=[server]).start("Go") as run:
            told = await witness.saw("start", before + 1)
            run.cancel()
            assert (await run.result()).status is RunStatus.cancelled
        await witness.saw("gone", pid=told["pid"])  # nobody waits for it any more
        await server.aclose()

    play(main)


# -- how it breaks ----------------------------------------------------------------------------------------------------


def test_a_server_that_dies_is_started_again(witness: Witness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls in flight fail, and say how it ended. The next call connects again."""
    monkeypatch.setattr("andon.tools.mcp.process.LEARN_SECONDS", HANG)

    async def main() -> None:
        async with witness.stdio() as server:
            script = ScriptedModel(
                [Call("die"), Call("wait", {"text": "other"})], [Call("echo", {"text": "x"})], "Done."
            )
            result = await Agent("a", script, tools=[server]).invoke_async("Go")
            first, second, third = results(result)
            for text in (first, second):
                assert "the connection to the MCP server tests broke during the call" in text
                assert "it ended (exit code 3)" in text
                assert "\n  no licence" in text
                assert "What the call did until then is unknown" in text
            assert third == "echo x"
            assert len(witness.find("start")) == 2

    play(main)


def test_only_a_call_that_may_be_repeated_is_made_again(witness: Witness, tmp_path: Any) -> None:
    async def main() -> None:
        for name, ends in (("once_more", "survived"), ("die_once", "broke during the call")):
            died = tmp_path / name
            async with witness.stdio("--died", str(died)) as server:
                script = ScriptedModel([Call(name)], "Done.")
                result = await Agent("a", script, tools=[server]).invoke_async("Go")
                assert ends in results(result)[0]

    play(main)


@pytest.mark.parametrize("protocol", ["auto", "legacy"])
def test_an_http_server_that_is_started_again(witness: Witness, protocol: str) -> None:
    """It does not know the session any more, so the call that meets that has not begun, and is made again."""

    async def main() -> None:
        with witness.http_process() as (process, url):
            server = MCPServer(url=url, name="tests", protocol=protocol)
            assert await server.call("echo") == "echo "
            process.kill()
            process.wait()
            with witness.http_process("--port", str(witness.find("port")[-1]["port"])):
                script = ScriptedModel([Call("echo", {"text": "again"})], "Done.")
                result = await Agent("a", script, tools=[server]).invoke_async("Go")
                assert results(result) == ["echo again"]
                await server.aclose()

    play(main)


def test_an_http_server_that_is_gone(witness: Witness) -> None:
    async def main() -> None:
        with witness.http_process() as (process, url):
            server = MCPServer(url=url, name="tests")
            await server.tools()
            call = asyncio.create_task(server.call("wait", {"text": "x"}))
            await witness.saw("call", text="x")
            process.kill()
            with pytest.raises(ToolSourceError, match="broke during the call"):
                await call
            with pytest.raises(ToolSourceError, match="can't be reached"):
                await server.call("echo")
            await server.aclose()

    play(main)


# -- what it asks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_elicitation_is_an_interrupt(witness: Witness, kind: str) -> None:
    """The run pauses, and the call is cancelled. With the answers it is made again, and asks again."""

    async def main(server: MCPServer) -> None:
        async with server:
            agent = Agent("a", ScriptedModel([Call("ask_twice", id="c")], "Done."), tools=[server])
            paused = await agent.invoke_async("Go")
            assert paused.status is RunStatus.paused
            (question,) = paused.interrupts
            assert question.name == "elicitation"
            assert question.payload["server"] == "tests"
            assert question.payload["message"] == "Really?"
            assert list(question.payload["schema"]["properties"]) == ["sure"]
            if kind.endswith("legacy"):
                await witness.saw("cancelled", tool="ask_twice")
            paused = await agent.continue_run(paused.run_id, {question.id: {"sure": True}})
            (question,) = paused.interrupts
            assert question.payload["message"] == "Really really?"
            ended = await agent.continue_run(paused.run_id, {question.id: False if kind == "stdio" else 7})
            if kind == "stdio":
                assert results(ended) == ["ToolBlockedError: A person refused this call."]
            else:
                assert json.loads(results(ended)[0]) == [{"sure": True}, {"sure": 7}]
            assert ended.content == "Done."

    with witness.server(kind) as server:
        play(lambda: main(server))


def test_an_answer_that_does_not_fit(witness: Witness) -> None:
    async def main() -> None:
        async with witness.warm() as server:
            agent = Agent("a", ScriptedModel([Call("ask")], "Done."), tools=[server])
            paused = await agent.invoke_async("Go")
            ended = await agent.continue_run(paused.run_id, {paused.interrupts[0].id: {"sure": {"a": 1}}})
            assert "has to be an object with sure" in results(ended)[0]

    play(main)


def test_a_refused_question_and_one_that_is_not_wanted(witness: Witness) -> None:
    async def main() -> None:
        async with witness.warm("--legacy") as server:
            agent = Agent("a", ScriptedModel([Call("ask")], "Done."), tools=[server])
            paused = await agent.invoke_async("Go")
            ended = await agent.continue_run(paused.run_id, {paused.interrupts[0].id: Deny("not today")})
            assert results(ended) == ["ToolBlockedError: A person refused this call. not today"]
            with pytest.raises(ToolError):
                await server.call("ask")  # outside an agent there is no person
        async with witness.warm("--legacy", elicitation=False) as server:
            result = await Agent("a", ScriptedModel([Call("ask")], "Done."), tools=[server]).invoke_async("Go")
            assert result.status is RunStatus.completed
            assert results(result)[0].startswith("Tool")

    play(main)


def test_a_question_that_no_call_can_be_found_for(witness: Witness) -> None:
    """On stdio before 2026-07-28, nothing says which call asks. With two in flight, it is refused."""

    async def main() -> None:
        async with witness.warm("--legacy") as server:
            other = asyncio.create_task(server.call("wait", {"text": "other"}))
            await witness.saw("call", text="other")
            result = await Agent("a", ScriptedModel([Call("ask")], "Done."), tools=[server]).invoke_async("Go")
            assert "2 calls are in flight" in results(result)[0]
            other.cancel()

    play(main)


def test_sampling_is_refused_unless_allowed(witness: Witness) -> None:
    asked: list[SamplingRequest] = []

    async def answer(request: SamplingRequest) -> str:
        asked.append(request)
        return "I am a model."

    async def main() -> None:
        async with witness.warm("--legacy") as server:
            with pytest.raises(ToolError):
                await server.call("sample")
        async with witness.warm("--legacy", sampling=answer) as server:
            assert await server.call("sample") == "I am a model."
        assert asked == [SamplingRequest("tests", [("user", "Hello?")], None, 5)]

    play(main)


def test_a_server_that_takes_no_cancellation(witness: Witness, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not read its input, which is full. The call is abandoned and named, and the server is ended."""
    monkeypatch.setattr("andon.tools.mcp.call.UNHEARD_SECONDS", 0.5)

    async def main() -> None:
        async with witness.stdio() as server:
            agent = Agent("a", ScriptedModel([Call("wait", {"text": "deaf"}, id="c")], "never"), tools=[server])
            async with agent.start("Go") as run:
                told = await witness.saw("call", text="deaf")
                os.kill(told["pid"], signal.SIGSTOP)
                fill = [asyncio.create_task(server.call("echo", {"text": "x" * 1_000_000})) for _ in range(3)]
                await asyncio.wait(fill, timeout=0.1)
                run.cancel()
                result = await run.result()
                assert result.receipt is not None
                assert [call.outcome for call in result.receipt.tools] == [ToolOutcome.abandoned]
                assert result.receipt.leftovers == ["call of wait on the MCP server tests (c)"]
                receipt = await run.gone(10)
            assert receipt is not None
            assert receipt.leftovers == []
            assert is_gone(told["pid"])  # the call is named until then: it could still be at work
            for each in await asyncio.gather(*fill, return_exceptions=True):
                assert isinstance(each, ToolSourceError)
            assert await server.call("echo") == "echo "

    play(main)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "mcp", raising=False)
    with pytest.raises(MissingExtraError, match=r'pip install "andon\[mcp\]"'):
        MCPServer("x")


def test_the_package_is_imported_late() -> None:
    program = "import andon.tools.mcp as us, sys; us.MCPServer('x'); print({'mcp', 'mcp_types'} & {*sys.modules})"
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert ran.stdout == "set()\n"


# -- its end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [["--children"], ["--children", "--stubborn"]])
def test_a_server_dies_with_all_its_processes(witness: Witness, flags: list[str]) -> None:
    """Also those that ignore SIGTERM and have left the group; also if the server does not end by itself."""

    async def main() -> None:
        async with witness.stdio(*flags) as server:
            assert await server.call("echo") == "echo "
            await witness.saw("child", 2)
        await witness.saw("gone", 3)

    play(main)


def test_its_processes_are_found_where_the_kernel_does_not_list_them(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open

    def refuse(path: Any, *args: Any) -> Any:
        if str(path).endswith("/children"):
            raise FileNotFoundError
        return opened(path, *args)

    with subprocess.Popen(["sleep", "600"], start_new_session=True) as child:
        try:
            assert child.pid in supervisor._children(0)
            monkeypatch.setattr(supervisor, "open", refuse, raising=False)
            assert child.pid in supervisor._children(0)
            assert child.pid not in supervisor._children(child.pid)
        finally:
            child.kill()


def test_a_server_dies_with_its_object(witness: Witness) -> None:
    async def main() -> None:
        server = witness.stdio()
        agent = Agent("a", ScriptedModel([Call("echo")], "Done."), tools=[server])
        await agent.invoke_async("Go")
        del agent, server
        gc.collect()
        await witness.saw("gone")

    asyncio.run(main())


def test_a_server_dies_with_its_loop(witness: Witness) -> None:
    server = witness.stdio()
    for number in (1, 2):
        assert asyncio.run(server.call("echo")) == "echo "
        witness.wait("gone", number)
    assert len(witness.find("start")) == 2


HOST = """
import asyncio, sys
from andon.tools.mcp import MCPServer
async def main():
    async with MCPServer(sys.argv[1:]) as server:
        await server.call("wait", {"text": "host"})
asyncio.run(main())
"""


def test_a_server_dies_with_its_host(witness: Witness) -> None:
    """The host is killed, and the server does not look at its input and ignores SIGTERM."""
    command = [sys.executable, "-c", HOST, *witness.command("--stubborn", "--children")]
    with subprocess.Popen(command, env=dict(os.environ)) as host:
        try:
            witness.wait("call", text="host")
        finally:
            host.kill()
    witness.wait("gone", 3)


EXITING = """
import sys
from andon import Agent
from andon.models.scripted import Call, ScriptedModel
from andon.tools.mcp import MCPServer
agent = Agent("a", ScriptedModel([Call("echo")], "Done."), tools=[MCPServer(sys.argv[1:])])
print(agent.run("Go").content)
"""


def test_a_process_that_exits_with_a_server(witness: Witness) -> None:
    """Nothing is printed, and the server is ended, with processes that ignore SIGTERM."""
    command = [sys.executable, "-X", "dev", "-c", EXITING, *witness.command("--stubborn", "--children")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    told = [
        line for line in ran.stderr.splitlines() if not line.startswith("Executing <")
    ]  # asyncio, of a busy machine
    assert (ran.stdout, told) == ("Done.\n", [])
    witness.wait("gone", 3)


def test_a_run_that_is_cancelled_while_it_connects(witness: Witness) -> None:
    async def main() -> None:
        server = MCPServer(url="http://127.0.0.1:9/mcp")
        agent = Agent("a", ScriptedModel("never"), tools=[server])
        async with agent.start("Go", timeout=0.0) as run:
            result = await run.result()
        assert result.receipt is not None
        assert result.receipt.cause is CancelCause.deadline

    play(main)


def test_a_cancel_ends_the_delay_between_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("andon.tools.mcp.connection.FIRST_DELAY", 1000)

    async def main() -> None:
        failed, loop = asyncio.Event(), asyncio.get_running_loop()

        class Notice(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                assert "trying again" in record.getMessage()
                loop.call_soon(failed.set)

        handler, log = Notice(), logging.getLogger("andon.tools.mcp.connection")
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        try:
            server = MCPServer([sys.executable, "-c", "raise SystemExit(1)"], name="s")
            async with Agent("a", ScriptedModel("never"), tools=[server]).start("Go") as run:
                await failed.wait()
                run.cancel()
                assert (await run.result()).status is RunStatus.cancelled
        finally:
            log.removeHandler(handler)
            log.setLevel(logging.NOTSET)
        await server.aclose()

    play(main)
