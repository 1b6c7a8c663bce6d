# SPDX-License-Identifier: Apache-2.0
"""Each word of a script, as the real SDK of OpenAI receives it: parsed and raw, streamed and whole, sync and async."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from andon.testing.providers import (
    Answer,
    ConnectNever,
    FakeChat,
    FakeResponses,
    Script,
    call,
    connect_never,
    cut,
    end,
    fail,
    finish,
    pause,
    raw,
    reasoning,
    stall,
    text,
    until,
    usage,
)
from tests.testing.wire import KINDS, Fake, Wire, accepted, asking, body_of, events_of, post

HELLO: Any = [{"role": "user", "content": "Hi"}]


def client_of(fake: Fake) -> openai.OpenAI:
    # Without certificates, which take long to load.
    plain = openai.DefaultHttpxClient(verify=False)
    return openai.OpenAI(base_url=fake.base_url, api_key=fake.api_key, max_retries=0, http_client=plain)


def async_client_of(fake: Fake | ConnectNever) -> openai.AsyncOpenAI:
    plain = openai.DefaultAsyncHttpxClient(verify=False)
    return openai.AsyncOpenAI(base_url=fake.base_url, api_key=fake.api_key, max_retries=0, http_client=plain)


def chunks(fake: Fake, **more: Any) -> list[Any]:
    """All that the SDK makes of a stream."""
    with client_of(fake) as client:
        if isinstance(fake, FakeChat):
            return list(client.chat.completions.create(model="m", messages=HELLO, stream=True, **more))
        return list(client.responses.create(model="m", input=HELLO, stream=True, **more))


def said(fake: Fake, **more: Any) -> list[str]:
    """The pieces of text that come by a stream."""
    if isinstance(fake, FakeResponses):
        return [event.delta for event in chunks(fake, **more) if event.type == "response.output_text.delta"]
    deltas = [choice.delta for chunk in chunks(fake, **more) for choice in chunk.choices]
    return [delta.content for delta in deltas if delta.content]


def whole(fake: Fake, **more: Any) -> Any:
    with client_of(fake) as client:
        if isinstance(fake, FakeChat):
            return client.chat.completions.create(model="m", messages=HELLO, **more)
        return client.responses.create(model="m", input=HELLO, **more)


def content(answer: Any) -> str | None:
    found: str | None = answer.choices[0].message.content if hasattr(answer, "choices") else answer.output_text
    return found


# -- text -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_text_comes_piece_by_piece(kind: type[Fake]) -> None:
    script: Script = [
        [text("Hello, dear you.")],
        [text("Hello", pieces=3)],
        [text(pieces=["a ", "", "ü€😀", '"\\\n'])],
        ["as it ", text("is", pace=0.001)],
    ]
    with kind(script) as fake:
        assert said(fake) == ["Hello, ", "dear ", "you."]
        assert said(fake) == ["H", "el", "lo"]
        assert said(fake)[-2:] == ["ü€😀", '"\\\n']
        assert said(fake) == ["as ", "it ", "is"]
        assert said(fake) == ["as ", "it ", "is"]  # the last answer stays
        assert content(whole(fake)) == "as it is"


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_script_there_is_a_short_answer(kind: type[Fake]) -> None:
    with kind() as fake:
        assert "".join(said(fake)) == content(whole(fake)) == "Hello, this is a fake."


@pytest.mark.parametrize("kind", KINDS)
def test_a_script_may_be_a_function_of_the_request(kind: type[Fake]) -> None:
    def answer(body: dict[str, Any]) -> Answer:
        return f"{body['model']} {body['temperature']}"

    with kind(answer) as fake:
        assert said(fake, temperature=0.5) == ["m ", "0.5"]
        with pytest.raises(openai.InternalServerError, match=r"the fake's script failed: KeyError\('temperature'\)"):
            said(fake)
        assert fake.served[1].state == "failed"


@pytest.mark.parametrize("kind", KINDS)
def test_lines_may_end_otherwise_and_chunks_be_cut_anywhere(kind: type[Fake]) -> None:
    with kind([["ü €, ", call("f", {"a": "😀"})]], newline="\r\n", split=7) as fake:
        assert said(fake) == ["ü ", "€, "]
        with Wire(fake) as wire:
            wire.send()
            assert b"\r\n7\r\n" in wire.until(b"\r\n7\r\n")


# -- reasoning and calls ----------------------------------------------------------------------------------------------


def test_reasoning_of_chat_has_the_name_that_compatible_servers_use() -> None:
    with FakeChat([[reasoning("Hm, well"), "Yes."]]) as fake:
        deltas = [chunk.choices[0].delta for chunk in chunks(fake)]
        assert [delta.reasoning_content for delta in deltas if hasattr(delta, "reasoning_content")] == ["Hm, ", "well"]
        assert whole(fake).choices[0].message.reasoning_content == "Hm, well"
    with FakeChat([[reasoning("Hm")]], reasoning_field="reasoning") as fake:
        assert [c.choices[0].delta.reasoning for c in chunks(fake) if hasattr(c.choices[0].delta, "reasoning")] == [
            "Hm"
        ]


def test_reasoning_of_responses_is_an_item_with_encrypted_content_if_asked_for() -> None:
    with FakeResponses([[reasoning("Hm, well", signature="sealed"), "Yes."], [reasoning("Hm"), "No."]]) as fake:
        events = chunks(fake, include=["reasoning.encrypted_content"])
        deltas = [event.delta for event in events if event.type == "response.reasoning_summary_text.delta"]
        assert deltas == ["Hm, ", "well"]
        item, message = events[-1].response.output
        assert item.type == "reasoning"
        assert item.summary[0].text == "Hm, well"
        assert item.encrypted_content == "sealed"
        assert message.content[0].text == "Yes."
        done = [event.item.id for event in events if event.type == "response.output_item.done"]
        assert done == [item.id, message.id]
        assert whole(fake).output[0].encrypted_content is None
        assert whole(fake, include=["reasoning.encrypted_content"]).output[0].encrypted_content.startswith("gAAAA")


@pytest.mark.parametrize("interleaved", [False, True])
def test_calls_of_chat_come_in_pieces(interleaved: bool) -> None:
    script: Script = [
        [
            call("search", {"q": "x y"}, id="call_1", pieces=4, interleaved=interleaved),
            call("look", {}, pieces=2, interleaved=interleaved),
        ]
    ]
    with FakeChat(script) as fake:
        got = chunks(fake)
        pieces = [piece for c in got for piece in c.choices[0].delta.tool_calls or []]
        order = [piece.index for piece in pieces]
        assert order == ([0, 1, 0, 1, 0, 1, 0, 0] if interleaved else [0] * 5 + [1] * 3)
        first = [piece for piece in pieces if piece.index == 0]
        assert (first[0].id, first[0].function.name, first[0].type) == ("call_1", "search", "function")
        assert json.loads("".join(piece.function.arguments for piece in first)) == {"q": "x y"}
        assert got[-1].choices[0].finish_reason == "tool_calls"
        message = whole(fake).choices[0].message
        assert [each.function.name for each in message.tool_calls] == ["search", "look"]
        assert message.content is None


@pytest.mark.parametrize("interleaved", [False, True])
def test_calls_of_responses_come_in_pieces(interleaved: bool) -> None:
    script: Script = [
        [
            "Wait. ",
            call("search", {"q": "x y"}, id="call_1", pieces=4, interleaved=interleaved),
            call("look", pieces=2, interleaved=interleaved),
        ]
    ]
    with FakeResponses(script) as fake:
        events = chunks(fake)
        deltas = [event for event in events if event.type == "response.function_call_arguments.delta"]
        order = [event.output_index for event in deltas]
        assert order == ([1, 2, 1, 2, 1, 1] if interleaved else [1] * 4 + [2] * 2)
        assert json.loads("".join(event.delta for event in deltas if event.output_index == 1)) == {"q": "x y"}
        output = events[-1].response.output
        assert [item.type for item in output] == ["message", "function_call", "function_call"]
        assert (output[1].call_id, output[1].name, output[1].arguments) == ("call_1", "search", '{"q": "x y"}')
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert [item.type for item in whole(fake).output] == [item.type for item in output]


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_may_stay_open(kind: type[Fake]) -> None:
    with kind([[call("f", {"a": 12345}, pieces=4, send=2), stall()]]) as fake, Wire(fake) as wire:
        wire.send()
        fake.wait_for(at="stalled")
        got = wire.until(b'{\\"a')
        assert b"12345" not in got + wire.received
        assert b"function_call_arguments.done" not in got + wire.received


def test_arguments_may_be_any_text() -> None:
    with FakeChat([[call("f", '{"cut')]]) as fake:
        assert whole(fake).choices[0].message.tool_calls[0].function.arguments == '{"cut'


# -- usage and ends ---------------------------------------------------------------------------------------------------


def test_usage_of_chat_is_told_if_asked_for() -> None:
    spent = usage(input_tokens=10, output_tokens=5, cached_tokens=4, reasoning_tokens=3)
    with FakeChat([["a b", spent], ["a b", reasoning("c")]]) as fake:
        *before, last = chunks(fake, stream_options={"include_usage": True})
        assert last.choices == []
        assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (10, 5, 15)
        assert last.usage.prompt_tokens_details.cached_tokens == 4
        assert last.usage.completion_tokens_details.reasoning_tokens == 3
        assert all(chunk.usage is None and chunk.choices for chunk in before)
        counted = chunks(fake, stream_options={"include_usage": True})[-1].usage
        assert (counted.completion_tokens, counted.completion_tokens_details.reasoning_tokens) == (3, 1)
        assert counted.prompt_tokens > 0
        assert all(chunk.choices for chunk in chunks(fake))


def test_usage_of_responses_is_in_the_last_event() -> None:
    with FakeResponses([["a", usage(10, 5, cached_tokens=4, reasoning_tokens=3)], ["a b", reasoning("c")]]) as fake:
        spent = chunks(fake)[-1].response.usage
        assert (spent.input_tokens, spent.output_tokens, spent.total_tokens) == (10, 5, 15)
        assert spent.input_tokens_details.cached_tokens == 4
        assert spent.output_tokens_details.reasoning_tokens == 3
        spent = whole(fake).usage
        assert (spent.output_tokens, spent.output_tokens_details.reasoning_tokens) == (3, 1)


def test_an_answer_may_end_early() -> None:
    with FakeChat([["a", finish("length")]]) as fake:
        assert chunks(fake)[-1].choices[0].finish_reason == "length"
    with FakeResponses([["a", finish("length")], ["a", finish("stop")]]) as fake:
        last = chunks(fake)[-1]
        assert last.type == "response.incomplete"
        assert last.response.incomplete_details.reason == "max_output_tokens"
        assert whole(fake).status == "completed"


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_may_end_without_the_last_events(kind: type[Fake]) -> None:
    with kind([["a b", end()]]) as fake:
        assert said(fake) == ["a ", "b"]
        last = chunks(fake)[-1]
        assert getattr(last, "type", "") != "response.completed"
        assert not hasattr(last, "choices") or last.choices[0].finish_reason is None
        with Wire(fake) as wire:
            wire.send(connection="close")
            assert b"[DONE]" not in wire.rest()


# -- trouble ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_first_is_an_http_error(kind: type[Fake], stream: bool) -> None:
    slow = fail(429, "Slow down.", code="rate_limit_exceeded", headers={"retry-after": "7"})
    with kind([[slow], [pause(0.001), fail(529, "Overloaded.", type="overloaded")]]) as fake:
        ask: Callable[[Fake], Any] = chunks if stream else whole
        with pytest.raises(openai.RateLimitError, match=r"Slow down\.") as caught:
            ask(fake)
        assert caught.value.response.headers["retry-after"] == "7"
        assert (caught.value.code, caught.value.type) == ("rate_limit_exceeded", "rate_limit_error")
        with pytest.raises(openai.InternalServerError, match=r"Overloaded\.") as failed:
            ask(fake)
        assert (failed.value.type, failed.value.status_code) == ("overloaded", 529)
        assert [record.state for record in fake.served] == ["failed", "failed"]


def test_a_failure_later_is_an_error_in_the_stream_of_chat() -> None:
    with FakeChat([["a ", fail(500, "It broke.", code="oops")]]) as fake:
        with pytest.raises(openai.APIError, match=r"It broke\.") as caught:
            chunks(fake)
        assert (caught.value.code, caught.value.type) == ("oops", "server_error")
        assert fake.served[0].state == "failed"
        with pytest.raises(openai.InternalServerError, match=r"It broke\."):
            whole(fake)


def test_a_failure_later_is_an_event_of_responses() -> None:
    with FakeResponses(
        [
            ["a ", fail(500, "It broke.", code="oops")],
            ["a ", fail(500, "It broke.", event="response.failed")],
            ["a ", fail(500, "It broke.", event="nested")],
        ]
    ) as fake:
        error = chunks(fake)[-1]
        assert (error.type, error.code, error.message) == ("error", "oops", "It broke.")
        failed = chunks(fake)[-1]
        assert failed.type == "response.failed"
        assert (failed.response.status, failed.response.error.message) == ("failed", "It broke.")
        with pytest.raises(openai.APIError, match=r"It broke\."):
            chunks(fake)


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        (cut(), "incomplete chunked read"),
        (cut(mid_chunk=True), "incomplete chunked read"),
        (cut(reset=True), "reset|[Rr]ead|disconnected|^$"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_connection_is_cut_after_what_was_sent(kind: type[Fake], word: Any, problem: str) -> None:
    with kind([["a b ", word], ["again"]]) as fake:
        got: list[bytes] = []
        with client_of(fake) as client:
            with pytest.raises(openai.APIConnectionError) as caught:
                got.extend(_raw_bytes(client, fake))
            assert caught.value.__cause__ is not None
        assert fake.served[0].state == "cut"
        assert fake.served[0].left_at is None
        assert said(fake) == ["again"]
        if not word.reset:
            assert b'"b "' in b"".join(got)


def _raw_bytes(client: openai.OpenAI, fake: Fake) -> Iterator[bytes]:
    # The bytes as they come; the HTTP library's own error is told as the SDK tells it in its parsed streams.
    completions, responses = client.chat.completions, client.responses
    made: Any = (
        completions.with_streaming_response.create(model="m", messages=HELLO, stream=True)
        if isinstance(fake, FakeChat)
        else responses.with_streaming_response.create(model="m", input=HELLO, stream=True)
    )
    with made as response:
        try:
            yield from response.iter_bytes()
        except openai.OpenAIError:
            raise
        except Exception as error:
            raise openai.APIConnectionError(request=response.http_request) from error


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_first_is_no_answer_at_all(kind: type[Fake], stream: bool) -> None:
    with kind([[cut()]]) as fake, pytest.raises(openai.APIConnectionError):
        (chunks if stream else whole)(fake)


@pytest.mark.parametrize("kind", KINDS)
def test_raw_bytes_are_put_into_the_stream_as_they_are(kind: type[Fake]) -> None:
    junk = b": a comment\n\ndata: {oops\xff\n\n"
    with kind([["a ", raw(b""), raw(junk), "b"]]) as fake, Wire(fake) as wire:
        wire.send(connection="close")
        assert junk in body_of(wire.rest())
        assert fake.wait_for(at="raw").finished
        with pytest.raises((json.JSONDecodeError, UnicodeDecodeError)):
            chunks(fake)


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_answer_may_be_raw(kind: type[Fake]) -> None:
    page = raw(b"<html>Bad Gateway</html>", content_type="text/html", status=502)
    with kind([[raw(b'{"half'), raw(b'": 1}')], [page]]) as fake:
        assert accepted(fake, asking(fake)) == {"half": 1}
        for ask in (chunks, whole):
            with pytest.raises(openai.InternalServerError) as caught:
                ask(fake)
            assert caught.value.response.headers["content-type"] == "text/html"
            assert caught.value.response.status_code == 502


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_is_held_until_an_event_is_set(kind: type[Fake], stream: bool) -> None:
    go = threading.Event()
    with kind([[until(go), "a"]]) as fake, Wire(fake) as wire:
        wire.send(asking(fake, stream=stream))
        assert fake.wait_for(at="held").bytes_sent == 0
        go.set()
        wire.until(b'"a"')
        fake.wait_for(at="finished")


# -- async ------------------------------------------------------------------------------------------------------------


async def _leaves() -> None:
    async with FakeResponses([[text("a"), stall()], ["b"]]) as fake, async_client_of(fake) as client:

        async def read() -> None:
            async with await client.responses.create(model="m", input="Hi", stream=True) as stream:
                async for _ in stream:
                    pass

        reading = asyncio.create_task(read())
        record = await fake.wait_for_async(at="stalled")
        reading.cancel()
        await asyncio.wait([reading])
        await fake.wait_for_async(at="left")
        assert record.sent == [text("a")]
        assert (await client.responses.create(model="m", input="Hi")).output_text == "b"


def test_a_task_that_is_cancelled_leaves() -> None:
    asyncio.run(_leaves())


async def _connects() -> None:
    async with connect_never() as nowhere, async_client_of(nowhere) as client:
        asking = asyncio.create_task(client.responses.create(model="m", input="Hi", stream=True))
        # Nobody but the client can see its attempt to connect; had it been refused, this would end.
        await asyncio.wait([asking], timeout=0.2)
        assert not asking.done()
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()


def test_a_task_that_is_cancelled_while_it_connects() -> None:
    asyncio.run(_connects())


async def _raw_stream() -> None:
    async with FakeChat([["a b"]]) as fake, async_client_of(fake) as client:
        for _ in range(2):
            create = client.chat.completions.with_streaming_response.create
            async with create(model="m", messages=HELLO, stream=True) as response:
                body = b"".join([part async for part in response.iter_bytes()])
            assert events_of(body)[-1] == "[DONE]"
        assert [record.connection for record in fake.served] == [1, 1]


def test_the_raw_stream_and_the_pool() -> None:
    asyncio.run(_raw_stream())


# -- mistakes in scripts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: FakeChat("Hello"), "a script is a list of answers"),
        (lambda: FakeChat([]), "a script is a list of answers"),
        (lambda: FakeChat([text("a"), stall()]), "each answer of a script is a list of words"),
        (
            lambda: FakeChat([[1]]),  # type: ignore[list-item]
            "made of text and words, not of 1",
        ),
        (
            lambda: FakeChat([1]),  # type: ignore[list-item]
            "an answer is text, a word or a list of these, not 1",
        ),
        (lambda: FakeChat(split=0), "split must be at least 1"),
        (lambda: text("a", pieces="abc"), "pieces is a number or a list"),
        (lambda: text("a", pieces=["b"]), "the pieces don't make up the text"),
        (lambda: text("a", pieces=0), "pieces must be at least 1"),
        (lambda: call("f", pieces=0), "pieces must be at least 1"),
        (lambda: pause(-1), "seconds is a number of seconds, not -1"),
        (lambda: fail(200, "fine"), "an error's status is 400 to 599, not 200"),
        (lambda: fail(500, "x", event="oops"), "a stream fails by"),
    ],
)
def test_mistakes_are_found_where_they_are_made(make: Callable[[], object], problem: str) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):
        make()


def test_a_function_may_return_a_word() -> None:
    with FakeChat(lambda body: text("one word")) as fake:
        assert post(fake, asking(fake))[1]["choices"][0]["message"]["content"] == "one word"
