# SPDX-License-Identifier: Apache-2.0
"""Events in ADK's shapes are the same for whoever reads along, comes late, or asks the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from andon import Agent, Run, SessionStore, tool
from andon.agent.loop import Loop
from andon.core.run.handle import local_run
from andon.errors import ModelError
from andon.models.scripted import Call, Fail, ScriptedModel, Think
from andon.server.adk_json import AdkEventWriter, AdkJson, Invocation
from andon.testing import probe
from tests.support import Do, play


@tool
async def look(at: str) -> str:
    """Look at something."""
    return f"saw {at}"


@tool
async def trip() -> str:
    """Fail."""
    raise ValueError("tripped")


Script = Callable[[Callable[[], object]], ScriptedModel]

SCRIPTS: dict[str, Script] = {
    "an answer": lambda cancel: ScriptedModel([Think("Hm."), "Yes."]),
    "several turns": lambda cancel: ScriptedModel(
        ["First. ", Call("look", {"at": "a"}, id="same"), Call("trip"), Call("nothing")],
        [Call("look", {"at": "b"}, id="same")],
        [Call("look", {"at": "c"}, id="same")],
        "Done.",
    ),
    "a cut in the first words": lambda cancel: ScriptedModel(["Once ", Do(cancel), "upon"]),
    "a cut in silence": lambda cancel: ScriptedModel(Do(cancel)),
    "a cut after a call": lambda cancel: ScriptedModel(
        [Call("look", {"at": "a"})], ["Half ", Call("look", {"at": "b"}), Do(cancel)]
    ),
    "a failure": lambda cancel: ScriptedModel([Call("look", {"at": "a"})], ["Half ", Fail(ModelError("overloaded"))]),
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_all_readers_of_a_run_read_the_same(script: Script) -> None:
    async def main() -> None:
        runs: list[Run] = []
        agent = Agent("helper", script(lambda: runs[0].cancel()), tools=[look, trip])
        async with agent.start("Go", session_id="s1") as run:
            runs.append(run)
            along = AdkEventWriter(local_run(run), streaming=False)
            live = [shape async for event in run for shape in along.write(event)]
        late, whole = AdkEventWriter(local_run(run), streaming=True), []
        pieces: dict[str, list[str]] = {}
        async for event in run.events():
            for shape in late.write(event):
                if shape.get("partial"):
                    pieces.setdefault(shape["id"], []).append(shape["content"]["parts"][0]["text"])
                else:
                    whole.append(shape)
        assert whole == live
        store = agent.runtime.store
        assert isinstance(store, SessionStore)
        ((record, messages),) = await store.history(local_run(run).session.key)
        prompt, *kept = Invocation(run.run_id, "helper", {}).whole(messages, record.created_at, record)
        assert prompt["content"] == {"role": "user", "parts": [{"text": "Go"}]}
        assert [_timeless(shape) for shape in kept] == [_timeless(shape) for shape in live]
        texts = {shape["id"]: _text(shape) for shape in live}
        assert {id: "".join(each) for id, each in pieces.items()} == {id: texts[id] for id in pieces}
        calls = [part["functionCall"]["id"] for shape in live for part in _parts(shape, "functionCall")]
        answers = [part["functionResponse"]["id"] for shape in live for part in _parts(shape, "functionResponse")]
        assert answers == calls

    play(main)


def test_a_run_that_could_not_be_settled_is_told_as_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Loop, fate: object) -> None:
        raise ZeroDivisionError("a defect")

    async def main() -> None:
        agent = Agent("helper", ScriptedModel([Call("look", {"at": "a"})]), tools=[look])
        async with agent.start("Go") as run:
            await run.result()
        teller = AdkEventWriter(local_run(run), streaming=False)
        (end,) = [shape for event in probe(run).events for shape in teller.write(event)]
        assert end["errorCode"] == "INVOCATION_FAILED"
        assert "could not be ended properly" in end["errorMessage"]

    monkeypatch.setattr(Loop, "settle", broken)
    asyncio.run(main())


def _timeless(shape: AdkJson) -> AdkJson:
    return {name: value for name, value in shape.items() if name != "timestamp"}


def _parts(shape: AdkJson, kind: str) -> list[AdkJson]:
    return [part for part in shape.get("content", {}).get("parts", []) if kind in part]


def _text(shape: AdkJson) -> str:
    return "".join(part["text"] for part in _parts(shape, "text"))
