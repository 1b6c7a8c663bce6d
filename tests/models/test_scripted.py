# SPDX-License-Identifier: Apache-2.0
"""The scripted model, played into a sink that records."""

from __future__ import annotations

import asyncio
import itertools
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from andon.errors import ModelError
from andon.messages import Message, Text, ToolResult, Usage, assistant, user
from andon.models.base import FinishReason, Model, ModelRequest, Sink
from andon.models.scripted import Burst, Call, Fail, Item, Pause, Say, ScriptedModel, Spend, Stall, Think, Turn

Seen = tuple[Any, ...]


class Recorder:
    """A sink that keeps what it was told, and calls back for each piece of text."""

    def __init__(self, on_text: Callable[[], None] = lambda: None) -> None:
        self.seen: list[Seen] = []
        self.on_text = on_text

    def text(self, text: str) -> None:
        self.seen.append(("text", text))
        self.on_text()

    def reasoning(self, text: str, signature: str | None = None) -> None:
        self.seen.append(("reasoning", text, signature))

    def tool_call(
        self, call_id: str, name: str = "", arguments: str | dict[str, Any] = "", *, done: bool = False
    ) -> None:
        self.seen.append(("tool_call", call_id, name, arguments, done))

    def usage(self, usage: Usage | None = None, **numbers: int | None) -> None:
        self.seen.append(("usage", usage, numbers))

    def finish(self, reason: FinishReason, detail: str | None = None) -> None:
        self.seen.append(("finish", reason, detail))

    def warn(self, text: str) -> None:
        self.seen.append(("warn", text))

    @property
    def said(self) -> list[str]:
        return [entry[1] for entry in self.seen if entry[0] == "text"]


def ask(*messages: Message) -> ModelRequest:
    return ModelRequest(list(messages or [user("Hi")]), None, [])


def play(model: Model, *, calls: int = 1) -> Recorder:
    """Everything that the model says in some calls, in order."""
    sink = Recorder()

    async def main() -> None:
        for _ in range(calls):
            await model.stream(ask(), sink)

    asyncio.run(main())
    return sink


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits that were asked for, none of which takes any time."""
    taken: list[float] = []
    sleep = asyncio.sleep

    async def nap(seconds: float) -> None:
        taken.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", nap)
    return taken


# -- turns ------------------------------------------------------------------------------------------------------------


def echo(request: ModelRequest) -> Iterator[str | Item]:
    yield Say(request.messages[0].text, pieces=1)
    yield Think("hm")


OK = ("text", "OK.")
NONE = dict.fromkeys(["input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"])

# the turns, what comes then, and all that the model says in four calls
TURNS: list[tuple[list[Turn], Turn, list[Seen]]] = [
    (["one", Think("two"), ["three"]], "OK.", [("text", "one"), ("reasoning", "two", "sig"), ("text", "three"), OK]),
    (["one", []], ["a b", "c"], [("text", text) for text in ("one", *("a ", "b", "c") * 2)]),
    ([[], "x"], echo, [("text", "x"), *[("text", "Hi"), ("reasoning", "hm", "sig")] * 2]),
    ([lambda _: lambda _: "y", [], []], "OK.", [("text", "y"), OK]),
]


@pytest.mark.parametrize(("turns", "then", "seen"), TURNS)
def test_each_call_gets_the_next_turn(turns: list[Turn], then: Turn, seen: list[Seen]) -> None:
    assert play(ScriptedModel(*turns, then=then), calls=4).seen == seen


def test_a_short_answer_is_what_comes_then() -> None:
    assert play(ScriptedModel("one"), calls=3).said == ["one", "OK.", "OK."]


def test_a_turn_can_react_to_what_it_is_sent() -> None:
    def answer(request: ModelRequest) -> str:
        return f"I was told {request.messages[-1].tool_results[0].content}"

    sink, result = Recorder(), Message("tool", [ToolResult("call_1", "search", "everything")])
    asyncio.run(ScriptedModel(answer).stream(ask(user("Hi"), result), sink))
    assert "".join(sink.said) == "I was told everything"


def test_requests_are_kept_the_last_thousand_of_them() -> None:
    model = ScriptedModel(then=[])
    requests = [ask() for _ in range(1002)]

    async def main() -> None:
        for request in requests:
            await model.stream(request, Recorder())

    asyncio.run(main())
    assert len(model.requests) == 1000
    assert model.requests[0] is requests[2]
    assert model.requests[-1] is requests[-1]


def test_a_request_is_kept_before_the_model_answers() -> None:
    model = ScriptedModel(Fail(ModelError("no")))
    with pytest.raises(ModelError):
        play(model)
    assert len(model.requests) == 1


def test_runs_on_several_threads_and_loops_never_get_the_same_turn_or_id() -> None:
    threads, calls = 8, 50
    model = ScriptedModel(*([Say(str(n)), Call("t")] for n in range(threads * calls)))
    ready = threading.Barrier(threads)

    def work() -> Recorder:
        ready.wait()
        return play(model, calls=calls)

    with ThreadPoolExecutor(threads) as pool:
        sinks = [future.result() for future in [pool.submit(work) for _ in range(threads)]]
    said = [text for sink in sinks for text in sink.said]
    ids = [entry[1] for sink in sinks for entry in sink.seen if entry[0] == "tool_call"]
    assert sorted(map(int, said)) == list(range(threads * calls))
    assert len(set(ids)) == threads * calls


@pytest.mark.parametrize("turn", [42, None, Stall, ["text", 42], (part for part in ["text"])])
def test_what_is_no_turn_is_refused_where_it_is_written(turn: Any) -> None:
    with pytest.raises(TypeError, match="a turn is"):
        ScriptedModel(turn)
    with pytest.raises(TypeError, match="a turn is"):
        ScriptedModel(then=turn)


def test_a_function_that_returns_no_turn_fails_its_call() -> None:
    nothing: Any = lambda request: None  # noqa: E731
    with pytest.raises(TypeError, match="not None"):
        play(ScriptedModel(nothing))


def test_an_item_of_your_own_is_played() -> None:
    class Shout(Item):
        async def play(self, sink: Sink, model: ScriptedModel) -> None:
            sink.text(model.id.upper())

    assert play(ScriptedModel(Shout())).said == ["SCRIPTED"]
    assert play(ScriptedModel(Shout(), id="me")).said == ["ME"]


# -- items ------------------------------------------------------------------------------------------------------------

ITEMS: list[tuple[Item, list[Seen]]] = [
    (Say("Once upon a time."), [("text", t) for t in ("Once ", "upon ", "a ", "time.")]),
    (Say("  two\n\n words \t"), [("text", "  two\n\n "), ("text", "words \t")]),
    (Say("   "), [("text", "   ")]),
    (Say(""), [("text", "")]),
    (Say("a bc de", pieces=1), [("text", "a bc de")]),
    (Say("a bc de", pieces=3), [("text", "a "), ("text", "bc"), ("text", " de")]),
    (Say("ab", pieces=4), [("text", ""), ("text", "a"), ("text", ""), ("text", "b")]),
    (Think("let me"), [("reasoning", "let ", None), ("reasoning", "me", "sig")]),
    (Think("op en", signature=None), [("reasoning", "op ", None), ("reasoning", "en", None)]),
    (Think("", "s2"), [("reasoning", "", "s2")]),
    (Call("search", {"q": "é"}), [("tool_call", "call_1", "search", '{"q": "\\u00e9"}', True)]),
    (
        Call("t", {"a": 1}, id="mine", pieces=3),
        [("tool_call", "mine", "t", piece, last) for piece, last in (('{"', False), ('a":', False), (" 1}", True))],
    ),
    (Call("t", '{"a": '), [("tool_call", "call_1", "t", '{"a": ', True)]),
    (Spend(Usage(3, 4)), [("usage", Usage(3, 4), NONE)]),
    (Spend(output_tokens=5, cached_tokens=2), [("usage", None, {**NONE, "output_tokens": 5, "cached_tokens": 2})]),
]


@pytest.mark.parametrize(("item", "seen"), ITEMS, ids=lambda value: repr(value) if isinstance(value, Item) else "")
def test_what_an_item_pushes(item: Item, seen: list[Seen]) -> None:
    assert play(ScriptedModel(item)).seen == seen


def test_call_ids_are_unique_within_the_model() -> None:
    model = ScriptedModel(then=[Call("a"), Call("b", id="own"), Call("c")])
    assert [entry[1] for entry in play(model, calls=2).seen] == ["call_1", "own", "call_2", "call_3", "own", "call_4"]


@pytest.mark.parametrize("make", [lambda: Say("x", pieces=0), lambda: Call("x", pieces=0)])
def test_no_pieces_at_all_are_refused(make: Callable[[], Item]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        make()


def test_a_failure_is_raised_as_it_is_after_what_came_before() -> None:
    error = ModelError("overloaded", retryable=True)
    model, sink = ScriptedModel(["partial", Fail(error), "never"], "fine"), Recorder()

    async def main() -> None:
        with pytest.raises(ModelError) as caught:
            await model.stream(ask(), sink)
        assert caught.value is error
        await model.stream(ask(), sink)

    asyncio.run(main())
    assert sink.said == ["partial", "fine"]


def test_a_failure_that_repeats_does_not_pile_up_tracebacks() -> None:
    error = ModelError("again")
    model = ScriptedModel(then=Fail(error))

    def depth() -> int:
        with pytest.raises(ModelError):
            play(model)
        steps, traceback = 0, error.__traceback__
        while traceback is not None:
            steps, traceback = steps + 1, traceback.tb_next
        return steps

    assert depth() == depth() == depth()


def test_a_burst_yields_to_the_loop_once_per_so_many_pieces(naps: list[float]) -> None:
    naps_at: list[int] = []
    sink = Recorder(on_text=lambda: naps_at.append(len(naps)))
    asyncio.run(ScriptedModel(Burst("x", 120)).stream(ask(), sink))
    assert sink.said == ["x"] * 120
    assert naps_at == [0] * 50 + [1] * 50 + [2] * 20
    assert naps == [0, 0, 0]


def test_a_burst_can_yield_for_every_piece_or_say_nothing(naps: list[float]) -> None:
    assert play(ScriptedModel([Burst("x", 3, every=1), Burst("y", 0)])).said == ["x", "x", "x"]
    assert naps == [0, 0, 0]


# -- pace -------------------------------------------------------------------------------------------------------------


def test_without_pace_the_loop_gets_its_turn_once_per_item(naps: list[float]) -> None:
    play(ScriptedModel(["some words", Think("more words"), Call("t", pieces=2), Spend(input_tokens=1)]))
    assert naps == [0, 0, 0]


def test_with_pace_there_is_a_wait_before_each_piece_but_the_first(naps: list[float]) -> None:
    waits: list[int] = []
    sink = Recorder(on_text=lambda: waits.append(len(naps)))
    asyncio.run(ScriptedModel("a b c", pace=0.5).stream(ask(), sink))
    assert waits == [0, 1, 2]
    assert naps == [0.5, 0.5, 0]


def test_an_items_own_pace_goes_before_the_models(naps: list[float]) -> None:
    own = [Say("a b", pace=1), Think("a b", pace=2), Call("t", pieces=2, pace=3), Say("a b", pace=0)]
    play(ScriptedModel(own, pace=9))
    assert [nap for nap in naps if nap] == [1, 2, 3]


def test_a_pause_takes_its_time(naps: list[float]) -> None:
    assert play(ScriptedModel([Pause(7.5), "x"])).said == ["x"]
    assert naps[0] == 7.5


# -- being cut --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wait",
    [Stall(), Pause(3600), Say("a b", pace=3600), Think("a b", pace=3600), Call("t", pieces=2, pace=3600)],
    ids=lambda item: type(item).__name__,
)
def test_a_cut_gets_through_wherever_the_model_waits(wait: Item) -> None:
    async def main() -> None:
        spoke = asyncio.Event()
        sink = Recorder(on_text=spoke.set)
        task = asyncio.create_task(ScriptedModel(["start", wait, "never"]).stream(ask(), sink))
        await spoke.wait()
        for _ in range(5):  # far enough for it to be in the wait
            await asyncio.sleep(0)
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert "never" not in sink.said

    asyncio.run(main())


def test_silence_sets_no_timer_and_says_nothing() -> None:
    async def main() -> None:
        loop, sink = asyncio.get_running_loop(), Recorder()
        task = asyncio.create_task(ScriptedModel(Stall()).stream(ask(), sink))
        timers: list[Any] = []
        loop.call_at = lambda *args, **kwargs: timers.append(args)  # type: ignore[method-assign, assignment]
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()
        assert timers == sink.seen == []
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(main())


# -- the story --------------------------------------------------------------------------------------------------------


class EnoughError(Exception):
    """Thrown by a sink that has heard enough."""


def listen(model: ScriptedModel, pieces: int, *messages: Message) -> list[str]:
    """The first pieces of an answer that has no end."""
    numbers = itertools.count(1)

    def on_text() -> None:
        if next(numbers) == pieces:
            raise EnoughError

    sink = Recorder(on_text)
    with pytest.raises(EnoughError):
        asyncio.run(model.stream(ask(*messages), sink))
    return sink.said


def test_the_story_has_no_end_for_the_first_prompt_and_varies() -> None:
    said = listen(ScriptedModel.story(pace=0), 3000, user("Tell me a story"))
    assert all(len(piece.split()) == 1 for piece in said)
    nights = "".join(said).split("\n\n")[:-1]
    assert len(nights) > 10
    assert len({night.split(" of that winter ")[1] for night in nights[:10]}) == 10  # more than the number differs


def test_the_story_is_paced_word_by_word(naps: list[float]) -> None:
    listen(ScriptedModel.story(), 3, user("Tell me a story"))
    listen(ScriptedModel.story(pace=0.25), 200, user("Tell me a story"))
    # Every word has its wait, also the first of a sentence: none comes in a lump with the one before.
    assert [nap for nap in naps if nap] == [0.02] * 2 + [0.25] * 199


def test_later_prompts_get_a_short_answer_that_says_what_it_cost() -> None:
    model, sink = ScriptedModel.story(pace=0), Recorder()
    later = [user("Tell me a story"), assistant(Text("Once "), Text("Cancelled by user")), user("Good morning!")]
    asyncio.run(model.stream(ask(*later), sink))
    assert 10 < len("".join(sink.said)) < 200
    kind, usage, _ = sink.seen[-1]
    assert (kind, usage.estimated) == ("usage", False)
    assert min(usage.input_tokens, usage.output_tokens) > 0


def test_results_of_tools_are_not_later_prompts() -> None:
    tools = [user("Tell me a story"), assistant(Text("Hm")), Message("tool", [ToolResult("1", "t", "x")])]
    assert len(listen(ScriptedModel.story(pace=0), 500, *tools)) == 500


def test_one_story_serves_several_conversations() -> None:
    model = ScriptedModel.story(pace=0)
    assert model.id == "story"
    assert listen(model, 300, user("A")) == listen(model, 300, user("B"))


def test_an_endless_story_takes_no_memory() -> None:
    sizes: list[int] = []

    class Meter(Recorder):
        heard = 0

        def text(self, text: str) -> None:
            self.heard += 1
            if self.heard % 10_000 == 0:
                sizes.append(tracemalloc.get_traced_memory()[0])
                if len(sizes) == 3:
                    raise EnoughError

    model = ScriptedModel.story(pace=0)
    tracemalloc.start()
    try:
        with pytest.raises(EnoughError):
            asyncio.run(model.stream(ask(), Meter()))
    finally:
        tracemalloc.stop()
    assert sizes[-1] - sizes[0] < 20_000
    assert len(model.requests) == 1
