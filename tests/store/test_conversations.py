# SPDX-License-Identifier: Apache-2.0
"""What every store promises of conversations, whatever it keeps them in."""

from __future__ import annotations

import math
import random
import string

import pytest

from andon import Interrupt, NotContinuableError, RunStatus, SessionKey, UnknownRunError
from andon.core.selection import Block
from andon.errors import ConfigurationError
from andon.messages import Message as Said
from andon.messages import Reasoning, Text, ToolCall, ToolResult, Usage, assistant, user
from tests.store.making import KEY, LONG, opened, opened_any, record, said
from tests.support import play

DONE = RunStatus.completed


def test_a_conversation_is_what_its_runs_have_added_in_their_order(any_url: str) -> None:
    async def main() -> None:
        async with opened_any(any_url) as store:
            assert await store.load(KEY) == []
            first, second = record("r1", DONE), record("r2", DONE)
            await store.save(first, said("One"))
            await store.save(second, said("Two"))
            assert await store.load(KEY) == [*said("One"), *said("Two")]
            assert await store.history(KEY) == [(first, said("One")), (second, said("Two"))]
            assert await store.added("r1") == said("One")
            assert await store.added("r3") is None
            assert await store.find("r2") == second
            assert await store.find("r3") is None

    play(main)


def test_what_a_run_saves_again_replaces_what_it_saved_before(any_url: str) -> None:
    async def main() -> None:
        async with opened_any(any_url) as store:
            await store.save(record("r1", RunStatus.paused), said("One"))
            assert await store.load(KEY) == said("One")
            await store.save(record("r1", DONE), said("More"))
            await store.save(record("r2", DONE), said("Two"))
            assert await store.load(KEY) == [*said("More"), *said("Two")]
            found = await store.find("r1")
            assert found is not None
            assert found.status is DONE

    play(main)


def test_two_users_sessions_never_meet_and_no_user_is_one_too(any_url: str) -> None:
    async def main() -> None:
        async with opened_any(any_url) as store:
            keys = [
                SessionKey("a", "ada", "s"),
                SessionKey("a", None, "s"),
                SessionKey("b", "ada", "s"),
                SessionKey("a", "ada", "t"),
            ]
            for number, key in enumerate(keys):
                await store.save(record(f"r{number}", DONE, key), said(f"{number}"))
            for number, key in enumerate(keys):
                assert await store.load(key) == said(f"{number}")
            assert [each.key for each in await store.list_sessions("a", None)] == [keys[1]]
            assert [each.key for each in await store.list_sessions("a", "ada")] == [keys[0], keys[3]]

    play(main)


def test_any_text_is_a_name(any_url: str) -> None:
    async def main() -> None:
        async with opened_any(any_url) as store:
            names = [
                "plain",
                "Zoë",
                "a\x00b",
                "%00",
                "\x01",
                "\x01%00",
                "\ud800",
                "'; DROP TABLE andon_runs; --",
                "\u2028",
            ]
            keys = [SessionKey(name, name, name) for name in names]
            for name, key in zip(names, keys, strict=True):
                assert await store.find(name) is None
                assert await store.find_session(key) is None
                await store.save(record(name, DONE, key), said("x"))
            for name, key in zip(names, keys, strict=True):
                assert await store.added(name) == said("x")
                assert [session.key for session in await store.list_sessions(name, name)] == [key]

    play(main)


@pytest.mark.parametrize("long", ["x" * 5_000, "é" * 1_400, "\x00" * 900])
def test_a_name_that_no_index_takes_is_refused_in_clear_words(url: str, long: str) -> None:
    """Whatever Postgres would make of it; and who only asks for one is told that it is not there."""

    async def main() -> None:
        async with opened(url) as store:
            keys = [KEY._replace(session_id=long), KEY._replace(user_id=long), KEY._replace(agent_id=long)]
            for key in keys:
                with pytest.raises(
                    ConfigurationError, match=r"agent, user and session together would take [\d,]+ bytes"
                ):
                    await store.enter(record("r1", session=key), "me", LONG, "reject")
                with pytest.raises(ConfigurationError):
                    await store.create_session(key, {})
                assert await store.find_session(key) is None
            with pytest.raises(ConfigurationError, match="the id would take"):
                await store.enter(record(long), "me", LONG, "reject")
            with pytest.raises(ConfigurationError, match="the id would take"):
                await store.block(Block("user", long))
            assert await store.find(long) is None
            assert not await store.unblock("user", long)
            ids = ["".join(random.choices(string.ascii_letters, k=820)) for _ in range(3)]
            await store.enter(record("".join(ids), session=SessionKey(*ids)), "me", LONG, "reject")

    play(main)


def test_a_run_that_goes_on_with_another_takes_its_place(any_url: str) -> None:
    async def main() -> None:
        async with opened_any(any_url) as store:
            await store.save(record("r1", RunStatus.cancelled), said("Cut"))
            await store.save(record("r2", DONE, continues="r1"), said("Cut, and more"))
            assert await store.load(KEY) == said("Cut, and more")
            assert await store.added("r1") is None
            with pytest.raises(NotContinuableError, match="rolled back or continued"):
                await store.rollback("r1")
            await store.rollback("r2")
            assert await store.load(KEY) == said("Cut")
            assert await store.added("r1") == said("Cut")
            assert await store.added("r2") is None
            found = await store.find("r2")
            assert found is not None

    play(main)


def test_only_the_last_run_can_be_taken_back(any_url: str) -> None:
    async def main() -> None:
        async with opened_any(any_url) as store:
            await store.save(record("r1", DONE), said("One"))
            await store.save(record("r2", DONE), said("Two"))
            await store.save(record("r3", DONE), [])
            with pytest.raises(NotContinuableError, match="later runs build on it"):
                await store.rollback("r1")
            with pytest.raises(NotContinuableError, match="not part of its session"):
                await store.rollback("r3")
            with pytest.raises(UnknownRunError, match="'r4'"):
                await store.rollback("r4")
            await store.rollback("r2")
            await store.rollback("r1")
            assert await store.load(KEY) == []
            with pytest.raises(NotContinuableError):
                await store.rollback("r1")

    play(main)


def test_a_deleted_session_leaves_the_records_of_its_runs(any_url: str) -> None:
    async def main() -> None:
        async with opened_any(any_url) as store:
            await store.save(record("r1", DONE), said("One"))
            assert await store.delete_session(KEY)
            assert await store.load(KEY) == []
            assert await store.history(KEY) == []
            assert await store.added("r1") is None
            assert await store.find("r1") == record("r1", DONE)
            await store.save(record("r2", DONE), said("Two"))
            assert await store.load(KEY) == said("Two")

    play(main)


def test_all_that_a_message_and_a_record_can_hold_comes_back(any_url: str) -> None:
    async def main() -> None:
        async with opened_any(any_url) as store:
            call = ToolCall("c1", "look", {"deep": [{"er": None}], "big": 2**70, "é": "\x00\u2028𝄞"})
            messages = [
                user("é\x00\n"),
                assistant(Reasoning("hm", "sealed"), Reasoning("open"), Text("…"), call),
                Said("tool", [ToolResult("c1", "look", "no", "error")]),
            ]
            questions = [Interrupt("i1", "sure?", {"a": [1, 2.5, True]}, "c1", True)]
            usage = Usage(1, None, 3, 4, True)
            kept = record("r1", RunStatus.paused, content="é", usage=usage, interrupts=questions, parent_run_id="r0")
            await store.save(kept, messages)
            assert await store.history(KEY) == [(kept, messages)]

    play(main)


class Shy:
    def __repr__(self) -> str:
        raise ValueError("not for you")


def test_what_json_has_no_form_for_is_kept_as_text(url: str) -> None:
    async def main() -> None:
        async with opened_any(url) as store:
            endless: list[object] = []
            endless.append(endless)
            odd = {"set": {1}, "half": "\ud800", "nan": math.nan, "key": {(1, 2): 3}, "thing": KEY, "endless": endless}
            odd["shy"] = Shy()
            await store.create_session(KEY, odd)
            await store.save(record("r1", DONE, error="\ud800"), [user("x"), Said("user", [Text("half \udfff")])])
            found = await store.find_session(KEY)
            assert found is not None
            assert found.state["set"] == [1]
            assert found.state["half"] == "?"
            assert found.state["nan"] is None
            assert list(found.state["key"].values()) == [3]
            assert found.state["shy"] == "<Shy, whose repr failed: ValueError>"
            assert [message.text for message in await store.load(KEY)] == ["x", "half ?"]

    play(main)
