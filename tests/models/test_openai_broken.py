# SPDX-License-Identifier: Apache-2.0
"""Streams that are not as they should be: a clear error, what came before is kept, and the next prompt is accepted."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from andon import Agent, Retry, RunResult, RunStatus
from andon.errors import ModelConnectionError, ModelError, ModelStreamError, RateLimitError, SetupError
from andon.messages import Text
from andon.testing.providers import Answer, FakeChat, call, cut, end, fail, finish, raw, reasoning, stall, text
from tests.support import HANG, play
from tests.support.openai import APIS, Api, each_api

HALF = text("Half an ")
QUICK = Retry(base_seconds=0)
NO_UTF8 = (
    b'data: {"type": "response.output_text.delta", "delta": "\xff", "choices": [{"delta": {"content": "\xff"}}]}\n\n'
)
MARKED = [Text("Half an "), Text("Stopped by an error")]


async def broken(api: Api, answer: Answer, **options: Any) -> RunResult:
    """The result of a run whose answer breaks; then the same conversation goes on."""
    model_options = options.pop("model", {})
    with api.fake([answer, [text("Fine.")]], **options) as fake:
        agent = Agent("Tester", api.model(fake, **model_options))
        result = await agent.invoke_async("go")
        after = await agent.invoke_async("and now?")
        assert after.status is RunStatus.completed, after.error
        assert after.content == "Fine."
        assert [each.error for each in fake.served] == [None] * len(fake.served)
        assert len(fake.served) == 2, "it was tried again, after something was shown"
        return result


def check_failed(result: RunResult, kind: type[ModelError], *words: str) -> None:
    assert result.status is RunStatus.error
    assert type(result.error) is kind
    for word in words:
        assert word in str(result.error)
    assert result.content == "Half an "
    assert result.message.content == MARKED


@each_api
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'data: {"choices": [{"delta": {"con\n\n', ["can't be read", '{"choices"']),
        (b"data: not JSON at all\n\n", ["can't be read", "not JSON at all"]),
        (b'data: {"type": 7, "choices": 7}\n\n', ["can't be read"]),
        (NO_UTF8, ["can't be read"]),
        (b"data: [1, 2]\n\n", ["can't be read"]),
    ],
    ids=["cut", "no-json", "wrong-types", "no-utf8", "no-object"],
)
def test_broken_json(api: Api, data: bytes, words: list[str]) -> None:
    async def main() -> None:
        check_failed(await broken(api, [HALF, raw(data), stall()]), ModelStreamError, *words)

    play(main)


def half(text: bytes) -> Any:
    """A piece of text, as either interface sends it; in the bytes, an escape is one of JSON's."""
    said = b'"delta": "%b", "choices": [{"delta": {"content": "%b"}}]' % (text, text)
    return raw(b'data: {"type": "response.output_text.delta", %b}\n\n' % said)


@each_api
def test_half_a_character_is_no_reason_to_fail(api: Api) -> None:
    r"""A lone surrogate can be written in JSON, as in "\ud83d", but not in UTF-8."""

    async def main() -> None:
        pieces = [rb"a\ud83d", rb"\ude00b", rb" \ud83d\ude00 \\ud83d \uD800\u0041"]
        with api.fake([[*map(half, pieces), text(".")], [text("Fine.")]]) as fake:
            agent = Agent("Tester", api.model(fake))
            result = await agent.invoke_async("go")
            assert result.content == "a\ufffd\ufffdb 😀 \\ud83d \ufffdA.", result.error
            assert (await agent.invoke_async("and now?")).content == "Fine."

    play(main)


@each_api
def test_half_a_character_in_the_arguments_of_a_call(api: Api) -> None:
    """No tool is called with what the model did not say; the model is told."""

    async def main() -> None:
        with api.fake([[call("search", r'{"query": "a\ud83d"}', id="call_1")], [text("Fine.")]]) as fake:
            result = await Agent("Tester", api.model(fake)).invoke_async("go")
        assert (result.status, result.content) == (RunStatus.completed, "Fine."), result.error
        assert "JSON" in result.messages[-2].tool_results[0].content

    play(main)


@each_api
def test_half_a_character_in_an_error(api: Api) -> None:
    async def main() -> None:
        body = rb'{"error": {"message": "not \ud83d this"}}'
        with api.fake([[raw(body, content_type="application/json", status=400)]]) as fake:
            async with Agent("Tester", api.model(fake)).start("go") as run:
                *_, last = [event async for event in run]
        assert last.error is not None
        assert "not ? this" in last.error
        assert "not ? this" in str((await run.result()).error)  # as a log would write it

    play(main)


@each_api
def test_a_stream_without_its_end(api: Api) -> None:
    async def main() -> None:
        check_failed(await broken(api, [HALF, end()]), ModelStreamError, "ended early")

    play(main)


@each_api
def test_a_last_event_that_was_cut_is_an_early_end(api: Api) -> None:
    async def main() -> None:
        result = await broken(api, [HALF, raw(b'data: {"choices": [{"delta'), end()])
        check_failed(result, ModelStreamError, "ended early")

    play(main)


@each_api
@pytest.mark.parametrize("how", [cut(), cut(reset=True), cut(mid_chunk=True)], ids=["closed", "reset", "mid-chunk"])
def test_a_lost_connection(api: Api, how: Any) -> None:
    async def main() -> None:
        check_failed(await broken(api, [HALF, how]), ModelConnectionError, "the connection to the provider broke")

    play(main)


@each_api
def test_a_stream_that_stops_for_too_long(api: Api) -> None:
    async def main() -> None:
        result = await broken(api, [HALF, stall()], model={"timeout": openai.Timeout(HANG, read=1)})
        check_failed(result, ModelConnectionError, "the provider stopped sending")

    play(main)


@each_api
def test_an_error_in_mid_stream(api: Api) -> None:
    async def main() -> None:
        result = await broken(api, [HALF, fail(500, "The server had an error.", code="server_error")])
        check_failed(result, ModelError, "The server had an error.")
        assert isinstance(result.error, ModelError)
        assert result.error.code == "server_error"

    play(main)


def test_a_response_that_failed() -> None:
    async def main() -> None:
        answer: Any = [HALF, fail(429, "Too fast.", code="rate_limit_exceeded", event="response.failed")]
        check_failed(await broken(APIS[1], answer), RateLimitError, "Too fast.")

    play(main)


@each_api
def test_an_error_in_mid_stream_before_anything_was_shown_is_tried_again(api: Api) -> None:
    async def main() -> None:
        first: Any = [raw(b'data: {"error": {"message": "Overloaded.", "code": "server_error"}}\n\n'), stall()]
        with api.fake([first, [text("Fine.")]]) as fake:
            result = await Agent("Tester", api.model(fake)).invoke_async("go")
            assert result.content == "Fine."
            assert len(fake.served) == 2

    play(main)


PAGE = b"<html><head><title>Login</title></head><body>Please log in</body></html>"


@each_api
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (raw(PAGE, content_type="text/html"), ["text/html", "Please log in", "base_url"]),
        (raw(b"", content_type="text/html; charset=utf-8"), ["text/html", "(nothing)"]),
        (raw(b'{"object": "list"}', content_type="application/json"), ["application/json", "object"]),
        (raw(b'{"error": {"message": "No such model"}}', content_type="application/json"), ["No such model"]),
        (raw(b'{"error": "No such model"}', content_type="application/json"), ["No such model"]),
        (raw(PAGE, content_type="text/html", status=404), ["404", "Please log in"]),
    ],
)
def test_a_page_instead_of_a_stream(api: Api, answer: Any, words: list[str]) -> None:
    async def main() -> None:
        result = await broken(api, [answer])
        assert result.status is RunStatus.error
        assert isinstance(result.error, ModelError)
        for word in words:
            assert word in str(result.error)
        assert result.message.content == [Text("Stopped by an error")]

    play(main)


@each_api
def test_a_page_without_an_end_is_not_read_for_ever(api: Api) -> None:
    async def main() -> None:
        result = await broken(api, [raw(b"x" * 1_000_000, content_type="text/html")])
        assert len(str(result.error)) < 500

    play(main)


@each_api
def test_unknown_events_are_left_alone(api: Api) -> None:
    async def main() -> None:
        odd = raw(
            b": keep-alive\n\n"
            b'event: response.new_thing\ndata: {"type": "response.new_thing", "delta": {"x": 1}, "item": 7}\n\n'
            b'data: {"object": "chat.completion.new_thing", "choices": [], "x": [{}]}\n\n'
            b'data: {"type": "response.in_progress", "choices": null}\n\n'
        )
        result = await broken(api, [odd, text("All of it.", pieces=["All ", "of ", "it."]), odd])
        assert result.status is RunStatus.completed, result.error
        assert result.content == "All of it."
        assert result.warnings == []

    play(main)


@each_api
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("split", [1, 3, 64])
def test_lines_and_characters_may_be_cut_anywhere(api: Api, newline: str, split: int) -> None:
    async def main() -> None:
        words = text(pieces=["Grüße ", "aus ", "東京 ", "🗼 ", "\r\n\u2028."])
        result = await broken(api, [reasoning("Hmm… 🤔"), words], newline=newline, split=split)
        assert result.status is RunStatus.completed, result.error
        assert result.content == "Grüße aus 東京 🗼 \r\n\u2028."

    play(main)


@each_api
@pytest.mark.parametrize(("reason", "words"), [("length", "limit of output tokens"), ("content_filter", "filter")])
def test_an_answer_that_was_cut_short_says_so(api: Api, reason: str, words: str) -> None:
    async def main() -> None:
        result = await broken(api, [HALF, finish(reason)])
        assert result.status is RunStatus.completed
        assert result.content == "Half an "
        (warning,) = result.warnings
        assert words in warning

    play(main)


def last_words(*lines: bytes) -> Any:
    """How a server of another make ends an answer of Chat Completions."""
    return raw(b"".join(b"data: %b\n\n" % line for line in (*lines, b"[DONE]")))


FINISHED = b'{"choices": [{"delta": {}, "finish_reason": "%b"}]}'


@pytest.mark.parametrize("reason", [b"error", b"abort", b"network_error", b"insufficient_system_resource"])
def test_an_answer_that_the_provider_gave_up_is_none(reason: bytes) -> None:
    async def main() -> None:
        result = await broken(APIS[0], [HALF, last_words(FINISHED % reason)])
        check_failed(result, ModelError, "gave up", reason.decode())

    play(main)


@pytest.mark.parametrize(
    "line",
    [
        b'{"error": {"message": "Upstream died."}, "choices": [{"delta": {}, "finish_reason": "error"}]}',
        b'{"choices": [{"delta": {}, "finish_reason": "error", "error": {"message": "Upstream died."}}]}',
    ],
    ids=["beside", "inside"],
)
def test_why_it_gave_up_is_told(line: bytes) -> None:
    async def main() -> None:
        check_failed(await broken(APIS[0], [HALF, last_words(line)]), ModelError, "Upstream died.")

    play(main)


def test_an_answer_that_the_provider_gave_up_before_it_began_is_asked_for_again() -> None:
    async def main() -> None:
        with FakeChat([[last_words(FINISHED % b"error")], [text("Fine.")]]) as fake:
            result = await Agent("Tester", APIS[0].model(fake), retry=QUICK).invoke_async("go")
        assert result.content == "Fine.", result.error

    play(main)


def test_an_answer_without_a_reason_to_end_is_one_and_says_so() -> None:
    """Servers that give none are many: vllm-mlx, gateways to other models, vLLM and llama-cpp-python at times."""

    async def main() -> None:
        result = await broken(APIS[0], [text("All of it."), last_words()])
        assert (result.status, result.content) == (RunStatus.completed, "All of it.")
        (warning,) = result.warnings
        assert "without a finish reason" in warning

    play(main)


def test_a_call_without_a_reason_to_end_is_made() -> None:
    async def main() -> None:
        piece = b'{"choices": [{"delta": {"tool_calls": [{"id": "c1", "function": {"name": "%b"}}]}}]}' % b"search"
        with FakeChat([[last_words(piece)], [text("Fine.")]]) as fake:
            result = await Agent("Tester", APIS[0].model(fake)).invoke_async("go")
        assert result.content == "Fine.", result.error
        assert [each.name for message in result.messages for each in message.tool_calls] == ["search"]

    play(main)


def test_nothing_and_no_reason_is_an_early_end() -> None:
    async def main() -> None:
        with FakeChat([[last_words()], [text("Fine.")]]) as fake:
            result = await Agent("Tester", APIS[0].model(fake), retry=QUICK).invoke_async("go")
            assert result.content == "Fine.", result.error
            assert len(fake.served) == 2

    play(main)


def test_an_empty_reason_is_none() -> None:
    """Older Ollama and SGLang send one with every piece."""

    async def main() -> None:
        check_failed(await broken(APIS[0], [HALF, raw(b"data: %b\n\n" % FINISHED % b""), end()]), ModelStreamError)

    play(main)


@each_api
def test_a_call_with_broken_arguments_is_answered_with_the_truth(api: Api) -> None:
    async def main() -> None:
        with api.fake([[call("search", '{"query": "x', id="call_1")], [text("Fine.")]]) as fake:
            result = await Agent("Tester", api.model(fake)).invoke_async("go")
            assert result.content == "Fine."
            (told,) = result.messages[-2].tool_results
            assert told.status == "error"
            assert "JSON" in told.content

    play(main)


@each_api
def test_how_the_connection_ends_is_no_part_of_a_complete_answer(api: Api) -> None:
    """Some servers just hang up after their last event."""

    async def main() -> None:
        last = b'data: {"type": "response.completed", "response": {"status": "completed"}}\n\n'
        if api.name == "chat":
            last = b"data: [DONE]\n\n"
        answer: Answer = [text("All of it."), raw(last), cut()]
        with api.fake([answer]) as fake:
            result = await Agent("Tester", api.model(fake)).invoke_async("go")
        assert (result.status, result.content) == (RunStatus.completed, "All of it."), result.error

    play(main)


@each_api
def test_the_key_is_in_no_error_of_a_stream(api: Api) -> None:
    async def main() -> None:
        key = "sk-abcdefgh-secret"
        with api.fake([[text("So "), fail(500, f"bad key {key}")]], api_key=key) as fake:
            result = await Agent("Tester", api.model(fake)).invoke_async("go")
        assert result.status is RunStatus.error
        assert "bad key ***" in str(result.error)

    play(main)


@each_api
@pytest.mark.parametrize("key", ["sk-secret-1\n", "sk-sécret-1"])
def test_a_key_that_can_not_be_one(api: Api, key: str) -> None:
    with pytest.raises(SetupError) as caught:
        Agent("Tester", api.make_model("m", key, "http://127.0.0.1:9/v1")).run("go")
    assert "sk-s" not in str(caught.value)
