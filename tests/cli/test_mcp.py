# SPDX-License-Identifier: Apache-2.0
"""`andon mcp`: agents as the tools of an MCP server, with the SDK's client."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters

from andon import Event, ProgressView, RunEvent, ToolView
from andon.cli.event_printer import EventPrinter
from tests.cli.terminal import Andon
from tests.support.mcp_witness import Witness

AGENTS = """
import asyncio, json, os, socket, sys
from dataclasses import dataclass
from andon import Agent, tool
from andon.models.scripted import Call, ScriptedModel

print("the module prints")
witness = socket.create_connection(("127.0.0.1", int(os.environ["WITNESS"])))

def tell(what, **facts):
    witness.sendall((json.dumps({"what": what, "pid": os.getpid(), **facts}) + "\\n").encode())

class Ends:
    def run_ended(self, event):
        receipt = event.result.receipt
        tell("ended", status=event.result.status.name, cause=receipt and receipt.cause.name,
             reason=receipt and receipt.reason, session=event.result.session_id, said=event.result.content,
             messages=len(event.result.messages))

@tool
async def wait() -> str:
    print("the tool prints")
    tell("waiting")
    try:
        await asyncio.sleep(600)
    finally:
        tell("cut")

@tool
def look() -> str:
    return "seen"

@tool(approval=True)
def delete() -> str:
    return "gone"

@dataclass
class Answer:
    degrees: int

def make(name, *script, **options):
    return Agent(name, ScriptedModel(*script), tools=[wait, look, delete], hooks=[Ends()], **options)

talker = make("Talker", *["Hello."] * 9, description="Talks.")
waiter = make("Waiter", *[[Call("wait")]] * 9)
looker = make("Looker", [Call("look")], "Seen it.")
asker = make("Asker", [Call("delete")], "never")
typed = make("Typed", '{"degrees": 21}', output_type=Answer)
listed = make("Listed", '[1, 2]', output_type=list[int])

def fail(request):
    raise ValueError("no such model")

broken = make("Broken", fail)
agents = [talker, waiter, looker, asker, typed, listed, broken]
"""


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[Witness]:
    (tmp_path / "program.py").write_text(AGENTS)
    with Witness() as witness:
        yield witness


COMMAND = ["-m", "andon", "mcp", "program:agents"]


def environment(witness: Witness) -> dict[str, str]:
    return {**os.environ, "WITNESS": str(witness.port), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@contextlib.contextmanager
def http_url(witness: Witness, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, *COMMAND, "--http", "0"]
    with subprocess.Popen(
        command, env=environment(witness), cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if found := re.search(r"http://\S+", line):
                    yield process, found[0]
                    return
            raise AssertionError("it said no address")
        finally:
            process.kill()


@contextlib.asynccontextmanager
async def connected(witness: Witness, folder: Path, kind: str) -> AsyncIterator[Client]:
    mode = "legacy" if kind.endswith("legacy") else "auto"
    if kind.startswith("http"):
        with http_url(witness, folder) as (_, url):
            async with Client(url, mode=mode) as client:
                yield client
    else:
        command = StdioServerParameters(command=sys.executable, args=COMMAND, env=environment(witness), cwd=folder)
        async with Client(command, mode=mode) as client:
            yield client


def text_of(result: Any) -> str:
    return "".join(block.text for block in result.content)


KINDS = ["stdio", "stdio-legacy", "http", "http-legacy"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_clients_cancellation_cancels_the_run(witness: Witness, tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        async with connected(witness, tmp_path, kind) as client:
            other = asyncio.create_task(client.call_tool("waiter", {"message": "Wait.", "session_id": "other"}))
            call = asyncio.create_task(client.call_tool("waiter", {"message": "Wait.", "session_id": "mine"}))
            await witness.saw("waiting", 2)
            call.cancel()
            ended = await witness.saw("ended")
            assert ended["status"] == "cancelled"
            assert ended["cause"] == "user"
            assert ended["reason"] == "the MCP client cancelled the call"
            assert ended["session"] == "mine"
            assert not other.done()
            assert text_of(await client.call_tool("talker", {"message": "Still there?"})) == "Hello."
            other.cancel()
            await witness.saw("ended", 3)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["stdio", "http"])
def test_results(witness: Witness, tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        async with connected(witness, tmp_path, kind) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert list(tools) == ["talker", "waiter", "looker", "asker", "typed", "listed", "broken"]
            assert tools["talker"].description == "Talks."
            assert tools["talker"].input_schema["required"] == ["message"]
            assert tools["talker"].output_schema is None
            assert tools["typed"].output_schema is not None

            result = await client.call_tool("typed", {"message": "How warm?"})
            assert result.structured_content == {"degrees": 21}
            assert (await client.call_tool("listed", {"message": "x"})).structured_content == {"result": [1, 2]}
            for name, arguments, said in (
                ("broken", {"message": "x"}, "no such model"),
                (
                    "asker",
                    {"message": "x"},
                    "this MCP client can't ask one: it does not offer elicitation. It asked: delete",
                ),
                ("talker", {}, "takes {"),
                ("talker", {"message": "x", "more": 1}, "takes {"),
                ("talker", {"message": ""}, "EmptyPromptError"),
                ("nothing", {"message": "x"}, "there is no tool 'nothing'"),
            ):
                failed = await client.call_tool(name, arguments)
                assert failed.is_error
                assert said in text_of(failed)

            for count, session in ((2, "s"), (4, "s"), (2, None)):
                given = {"message": "Hello"} | ({"session_id": session} if session else {})
                result = await client.call_tool("talker", given)
                assert text_of(result) == "Hello."
                ended = await witness.saw("ended", session=(result.meta or {})["andon/session_id"], messages=count)
                assert session in (None, ended["session"])

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["stdio", "http-legacy"])
def test_progress_if_the_client_asks_for_it(witness: Witness, tmp_path: Path, kind: str) -> None:
    told: list[str | None] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        told.append(message)

    async def main() -> None:
        async with connected(witness, tmp_path, kind) as client:
            await client.call_tool("looker", {"message": "Look."}, progress_callback=note)

    asyncio.run(main())
    assert told[:2] == ["calls look", "look: completed"]


def test_a_client_that_goes_away(witness: Witness, tmp_path: Path) -> None:
    """Its end closes our stdin. The run is cancelled, and the process ends."""
    command = [sys.executable, *COMMAND]
    with subprocess.Popen(
        command, env=environment(witness), cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        _begin_a_call(process)
        witness.wait("waiting")
        assert process.stdin is not None
        process.stdin.close()
        ended = witness.wait("ended")
        assert (ended["cause"], ended["reason"]) == ("disconnect", "the MCP client disconnected")
        assert process.wait(20) == 0
        assert process.stdout is not None
        assert all(line.startswith(b'{"jsonrpc"') for line in process.stdout)  # nothing but the protocol


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_runs(witness: Witness, tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, *COMMAND]
    with subprocess.Popen(
        command, env=environment(witness), cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        _begin_a_call(process)
        witness.wait("waiting")
        process.send_signal(number)
        assert witness.wait("ended")["cause"] == "shutdown"
        assert process.wait(20) == 0


def test_a_signal_ends_the_runs_over_http(witness: Witness, tmp_path: Path) -> None:
    async def main() -> None:
        with http_url(witness, tmp_path) as (process, url):
            with contextlib.suppress(BaseExceptionGroup, Exception):
                async with Client(url) as client, anyio.create_task_group() as group:
                    group.start_soon(client.call_tool, "waiter", {"message": "Wait."})
                    await witness.saw("waiting")
                    process.send_signal(signal.SIGTERM)
                    assert (await witness.saw("ended"))["cause"] == "shutdown"
            assert await asyncio.to_thread(process.wait, 20) == 0

    asyncio.run(main())


def _begin_a_call(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    for line in (
        '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},'
        '"clientInfo":{"name":"t","version":"1"}}}',
        '{"jsonrpc":"2.0","method":"notifications/initialized"}',
        '{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"waiter","arguments":{"message":"Wait."}}}',
    ):
        process.stdin.write(line.encode() + b"\n")
    process.stdin.flush()


def test_an_agent_uses_an_agent(witness: Witness, tmp_path: Path) -> None:
    """Both directions at once: a cancel of the outer run cancels the inner one."""
    from andon import Agent
    from andon.models.scripted import Call, ScriptedModel
    from andon.tools.mcp import MCPServer

    async def main() -> None:
        env = {"WITNESS": str(witness.port), "PYTHONPATH": environment(witness)["PYTHONPATH"]}
        async with MCPServer([sys.executable, *COMMAND], env=env, cwd=tmp_path) as server:
            outer = Agent("Outer", ScriptedModel([Call("waiter", {"message": "Wait."})], "never"), tools=[server])
            async with outer.start("Go") as run:
                await witness.saw("waiting")
                run.cancel()
            assert (await witness.saw("ended"))["cause"] == "user"

    asyncio.run(main())


def test_mistakes_are_told(andon: Andon, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = andon("mcp", "nothing:agent")
    assert (code, out) == (2, "")
    assert "there is no module 'nothing'" in err
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = andon("mcp", "nothing:agent")
    assert code == 2
    assert 'pip install "andon[mcp]"' in err


def test_progress_at_the_terminal() -> None:
    printer = EventPrinter(as_json=False, quiet=False, owner=True)
    tool = ToolView("c", "dig", {})
    for progress, said in ((ProgressView(1, 4, "deep"), "· dig 1 of 4 deep"), (ProgressView(0.5), "· dig 0.5")):
        event = Event(RunEvent.tool_progress, "r", "s", "a", 1, 0.0, tool=tool, progress=progress)
        assert printer._words(event, True) == said
