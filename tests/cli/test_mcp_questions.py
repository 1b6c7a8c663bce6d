# SPDX-License-Identifier: Apache-2.0
"""`andon mcp` with a client that can ask a person: what a run asks becomes an elicitation, and its answer goes back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from andon import Agent, CancelCause, Receipt, RunEnded, tool
from andon.cli.mcp_serving import AgentTools
from andon.models.scripted import Call, ScriptedModel
from tests.support import HANG
from tests.support.mcp_witness import PROGRAM, Witness

AGENTS = """
import json, os, socket, sys
from andon import Agent, ToolContext, tool
from andon.models.scripted import Call, ScriptedModel
from andon.tools.mcp import MCPServer

witness = socket.create_connection(("127.0.0.1", int(os.environ["WITNESS"])))

def tell(what, **facts):
    witness.sendall((json.dumps({"what": what, "pid": os.getpid(), **facts}) + "\\n").encode())

class Ends:
    def run_ended(self, event):
        receipt = event.result.receipt
        tell("ended", status=event.result.status.name, cause=receipt and receipt.cause.name,
             reason=receipt and receipt.reason)

@tool(approval=True)
def delete(name: str) -> str:
    tell("deleted", name=name)
    return f"deleted {name}"

@tool
def paint(ctx: ToolContext) -> str:
    return f"painted it {ctx.interrupt('colour', {'choose': ['red', 7]})!r}"

def make(name, *turns, tools=(delete, paint)):
    def play(request):  # the same turns for each prompt, and then all that the tools have said
        prompt = max(number for number, message in enumerate(request.messages) if message.role == "user")
        since = request.messages[prompt + 1:]
        count = sum(message.role == "assistant" for message in since)
        said = "; ".join(result.content for message in since for result in message.tool_results)
        return turns[count] if count < len(turns) else said

    return Agent(name, ScriptedModel(then=play), tools=list(tools), hooks=[Ends()])

notes = MCPServer([sys.executable, os.environ["NOTES"], os.environ["WITNESS"], "--legacy"], name="notes")
agents = [
    make("Deleter", Call("delete", {"name": "a.txt"}, id="d")),
    make("Painter", Call("paint", id="p")),
    make("Both", [Call("delete", {"name": "b.txt"}, id="d"), Call("paint", id="p")]),
    make("Twice", Call("delete", {"name": "1"}, id="d1"), Call("delete", {"name": "2"}, id="d2")),
    make("Noter", Call("ask", id="n"), tools=[notes]),
]
"""

KINDS = ["stdio", "stdio-legacy", "http", "http-legacy"]
COMMAND = ["-m", "andon", "mcp", "program:agents"]

Person = Callable[[Any], dict[str, Any] | str]
"""What the person answers: the content of the form, or `decline`, or `cancel`."""


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[Witness]:
    (tmp_path / "program.py").write_text(AGENTS)
    with Witness() as witness:
        yield witness


@contextlib.contextmanager
def http_url(folder: Path, env: dict[str, str], *options: str) -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, *COMMAND, "--http", "0", *options], env=env, cwd=folder, text=True, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stderr is not None
            found = re.search(r"http://\S+", process.stderr.readline())
            assert found
            yield found[0]
        finally:
            process.kill()


class Asked:
    """A client's person, and what the person was asked."""

    def __init__(self, person: Person) -> None:
        self.questions: list[Any] = []
        self._person = person

    async def ask(self, context: Any, params: Any) -> types.ElicitResult:
        self.questions.append(params)
        answer = self._person(params)
        if isinstance(answer, str):
            return types.ElicitResult.model_validate({"action": answer})
        return types.ElicitResult(action="accept", content=answer)

    @property
    def messages(self) -> list[str]:
        return [each.message for each in self.questions]


@contextlib.asynccontextmanager
async def connected(
    witness: Witness, folder: Path, kind: str, asked: Callable[..., Any] | None
) -> AsyncIterator[Client]:
    env = {
        **os.environ,
        "WITNESS": str(witness.port),
        "NOTES": PROGRAM,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    options: Any = {"mode": "legacy" if kind.endswith("legacy") else "auto", "elicitation_callback": asked}
    if kind.startswith("http"):
        with http_url(folder, env) as url:
            async with Client(url, **options) as client:
                yield client
    else:
        command = StdioServerParameters(command=sys.executable, args=COMMAND, env=env, cwd=folder)
        async with Client(command, **options) as client:
            yield client


def text_of(result: Any) -> str:
    return "".join(block.text for block in result.content)


def play(main: Callable[[], Any]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(HANG):
            await main()

    asyncio.run(bounded())


@pytest.mark.parametrize("kind", KINDS)
def test_a_person_allows_refuses_and_answers(witness: Witness, tmp_path: Path, kind: str) -> None:
    given: list[dict[str, Any] | str] = [
        {"allow": True},
        {"allow": False, "why": "too old"},
        {"allow": False},
        "decline",
        {"answer": "red"},
        {"answer": "7"},
        {"answer": '{"r": 255}'},
        "decline",
    ]
    answers = iter(given)
    asked = Asked(lambda params: next(answers))

    async def main() -> None:
        async with connected(witness, tmp_path, kind, asked.ask) as client:
            for name, said in (
                ("deleter", "deleted a.txt"),
                ("deleter", "too old"),
                ("deleter", "A person refused this call."),
                ("deleter", "A person refused this call."),
                ("painter", "painted it 'red'"),
                ("painter", "painted it 7"),
                ("painter", "painted it {'r': 255}"),
                ("painter", "A person refused this call."),
            ):
                result = await client.call_tool(name, {"message": "Go"})
                assert not result.is_error
                assert said in text_of(result)
                assert (result.meta or {})["andon/run_id"]
        assert asked.messages == ['delete wants to run: {"name":"a.txt"}'] * 4 + ['colour: {"choose":["red",7]}'] * 4
        assert list(asked.questions[0].requested_schema["properties"]) == ["allow", "why"]
        assert list(asked.questions[4].requested_schema["properties"]) == ["answer"]
        assert len(witness.find("deleted")) == 1

    play(main)


@pytest.mark.parametrize("kind", KINDS)
def test_several_questions(witness: Witness, tmp_path: Path, kind: str) -> None:
    asked = Asked(lambda params: {"allow": True} if "delete" in params.message else {"answer": "blue"})

    async def main() -> None:
        async with connected(witness, tmp_path, kind, asked.ask) as client:
            both = await client.call_tool("both", {"message": "Go"})
            assert text_of(both) == "deleted b.txt; painted it 'blue'"
            assert text_of(await client.call_tool("twice", {"message": "Go"})) == "deleted 1; deleted 2"
        assert len(asked.messages) == 4

    play(main)


@pytest.mark.parametrize("kind", KINDS)
def test_the_form_of_a_server_that_the_agent_uses_is_passed_on(witness: Witness, tmp_path: Path, kind: str) -> None:
    asked = Asked(lambda params: {"sure": True})

    async def main() -> None:
        async with connected(witness, tmp_path, kind, asked.ask) as client:
            assert text_of(await client.call_tool("noter", {"message": "Go"})) == '[{"sure": true}]'
        (question,) = asked.questions
        assert question.message == "notes asks: Really?"
        assert list(question.requested_schema["properties"]) == ["sure"]

    play(main)


@pytest.mark.parametrize("kind", KINDS)
def test_a_person_who_does_not_answer(witness: Witness, tmp_path: Path, kind: str) -> None:
    asked = Asked(lambda params: "cancel")

    async def main() -> None:
        async with connected(witness, tmp_path, kind, asked.ask) as client:
            result = await client.call_tool("deleter", {"message": "Go", "session_id": "s"})
            assert result.is_error
            assert text_of(result) == (
                "Deleter was cancelled, because it asked a person, and the person gave no answer. It asked:"
                ' delete wants to run: {"name":"a.txt"}'
            )
            ended = await witness.saw("ended", status="cancelled")
            assert (ended["cause"], ended["reason"]) == ("user", "the person gave no answer")
            again = await client.call_tool("deleter", {"message": "Go", "session_id": "s"})  # the session is free
            assert "deleted" not in text_of(again)

    play(main)


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_can_not_ask(witness: Witness, tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        async with connected(witness, tmp_path, kind, None) as client:
            result = await client.call_tool("deleter", {"message": "Go"})
            assert result.is_error
            assert "this MCP client can't ask one: it does not offer elicitation" in text_of(result)
            assert 'delete wants to run: {"name":"a.txt"}' in text_of(result)
            await witness.saw("ended", status="cancelled")

    play(main)


@pytest.mark.parametrize("kind", ["stdio-legacy", "http-legacy"])
def test_a_call_that_is_cancelled_while_a_person_is_asked(witness: Witness, tmp_path: Path, kind: str) -> None:
    being_asked = asyncio.Event()

    async def ask(context: Any, params: Any) -> types.ElicitResult:
        being_asked.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def main() -> None:
        async with connected(witness, tmp_path, kind, ask) as client:
            call = asyncio.create_task(client.call_tool("deleter", {"message": "Go"}))
            await being_asked.wait()
            call.cancel()
            ended = await witness.saw("ended")
            assert (ended["status"], ended["reason"]) == ("cancelled", "the MCP client cancelled the call")

    play(main)


def test_a_client_that_leaves_instead_of_calling_again(witness: Witness, tmp_path: Path) -> None:
    asked = Asked(lambda params: {"allow": True})

    async def main() -> None:
        async with connected(witness, tmp_path, "stdio", asked.ask) as client:
            first = await client.session.call_tool("deleter", {"message": "Go"}, allow_input_required=True)
            assert isinstance(first, types.InputRequiredResult)
        ended = await witness.saw("ended")
        assert (ended["status"], ended["cause"]) == ("cancelled", "disconnect")

    play(main)


def test_an_answer_goes_to_the_run_that_asked(witness: Witness, tmp_path: Path) -> None:
    """The key is for the tool and the user of the call that asked, and for one answer."""
    (tmp_path / "tokens").write_text("ada-1 user=ada\nolga-1 user=olga\n")
    (tmp_path / "tokens").chmod(0o600)
    yes: Any = types.ElicitResult(action="accept", content={"allow": True})
    asked = Asked(lambda params: {"allow": True})
    env = {**os.environ, "WITNESS": str(witness.port), "NOTES": PROGRAM}

    @contextlib.asynccontextmanager
    async def client_of(url: str, token: str) -> AsyncIterator[Client]:
        headers = {"authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(headers=headers) as http,
            Client(streamable_http_client(url, http_client=http), elicitation_callback=asked.ask) as client,
        ):
            yield client

    async def answer(client: Client, first: types.InputRequiredResult, name: str) -> Any:
        responses = dict.fromkeys(first.input_requests or {}, yes)
        return await client.session.call_tool(
            name, {"message": "Go"}, input_responses=responses, request_state=first.request_state
        )

    async def main(url: str) -> None:
        async with client_of(url, "ada-1") as ada, client_of(url, "olga-1") as olga:
            first = await ada.session.call_tool("deleter", {"message": "Go"}, allow_input_required=True)
            assert isinstance(first, types.InputRequiredResult)
            for client, name in ((olga, "deleter"), (ada, "twice")):
                refused = await answer(client, first, name)
                assert refused.is_error
                assert "this question is not open any more" in text_of(refused)
            assert not witness.find("deleted")
            assert text_of(await answer(ada, first, "deleter")) == "deleted a.txt"
            assert "this question is not open any more" in text_of(await answer(ada, first, "deleter"))
            await witness.saw("deleted")
            assert len(witness.find("deleted")) == 1

    with http_url(tmp_path, env, "--token-file", "tokens") as url:
        play(lambda: main(url))


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_question_is_not_open_for_ever(monkeypatch: pytest.MonkeyPatch, mode: Any) -> None:
    monkeypatch.setattr("andon.cli.mcp_questions.ANSWER_SECONDS", 0.2)

    @tool(approval=True)
    def delete() -> str:
        return "gone"

    async def ask(context: Any, params: Any) -> types.ElicitResult:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Receipt] = loop.create_future()

        class Ends:
            def run_ended(self, event: RunEnded) -> None:
                assert event.result.receipt is not None
                loop.call_soon_threadsafe(ended.set_result, event.result.receipt)  # a paused run has no loop

        agent = Agent("Deleter", ScriptedModel(Call("delete"), then="OK."), tools=[delete], hooks=[Ends()])
        tools = AgentTools([agent])
        async with Client(tools.server(), mode=mode, elicitation_callback=ask) as client:
            call = asyncio.create_task(client.call_tool("deleter", {"message": "Go"}))
            if mode == "legacy":
                assert "no answer came within 0.2 s" in text_of(await call)
            receipt = await ended
            assert (receipt.cause, receipt.reason) == (CancelCause.user, "no answer came within 0.2 s")
            call.cancel()
            await asyncio.wait([call])

    play(main)
