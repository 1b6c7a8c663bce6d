# SPDX-License-Identifier: Apache-2.0
"""What the fake of Bedrock rejects, and in which form; asked by the SDK itself."""

from __future__ import annotations

import asyncio
import http.client
import json
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore.exceptions import ClientError

from andon.testing.providers import FakeBedrock, call, fail, finish, reasoning, text, usage
from tests.support.bedrock import BINDING, CLAUDE, LLAMA, NOVA, client_of

Json = dict[str, Any]


def said(role: str, *content: Json) -> Json:
    return {"role": role, "content": list(content)}


def words(value: str = "Hi") -> Json:
    return {"text": value}


def used(id: str = "c1", name: str = "search", **more: Any) -> Json:
    return {"toolUse": {"toolUseId": id, "name": name, "input": {}, **more}}


def found(id: str = "c1", *content: Json, **more: Any) -> Json:
    return {"toolResult": {"toolUseId": id, "content": list(content) or [words("found")], **more}}


def document(name: str = "report", **more: Any) -> Json:
    return {"document": {"format": "pdf", "name": name, "source": {"bytes": b"%PDF"}, **more}}


def image(**more: Any) -> Json:
    return {"image": {"format": "png", "source": {"bytes": b"x"}, **more}}


def tool_of(**more: Any) -> Json:
    return {"toolSpec": {"name": "search", "inputSchema": {"json": {"type": "object"}}, **more}}


TOOLS = {"tools": [tool_of()]}
USER, ANSWER = said("user", words()), said("assistant", words("Hello."))
POINT = {"cachePoint": {"type": "default"}}


def form(schema: str = '{"type":"object","properties":{},"additionalProperties":false}') -> Json:
    return {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": {"schema": schema, "name": "a"}}}}


def turns(*messages: Json, **more: Any) -> Json:
    return {"messages": list(messages), **more}


REJECTED: dict[str, tuple[Json, str]] = {
    "no messages": (turns(), "messages"),
    "begins with the assistant": (turns(ANSWER, USER), "must start with a user message"),
    "two users": (turns(USER, USER), "alternate"),
    "ends with the assistant": (turns(USER, ANSWER), "prefill"),
    "a role": (turns(said("system", words())), "role"),
    "no content": (turns(said("user")), "is empty"),
    "blank text": (turns(said("user", words(" \n"))), "is blank"),
    "blank answer": (turns(USER, said("assistant", words("")), USER), "is blank"),
    "blank system": (turns(USER, system=[words(" ")]), "is blank"),
    "no result": (turns(USER, said("assistant", used()), USER, toolConfig=TOOLS), "Expected toolResult blocks"),
    "one of two results": (
        turns(USER, said("assistant", used(), used("c2")), said("user", found()), toolConfig=TOOLS),
        "for the following Ids: c2",
    ),
    "too many results": (
        turns(USER, said("assistant", used()), said("user", found(), found("c2")), toolConfig=TOOLS),
        "exceeds the number of toolUse",
    ),
    "results of nothing": (turns(USER, ANSWER, said("user", found()), toolConfig=TOOLS), "exceeds the number"),
    "one id twice": (
        turns(
            *(USER, said("assistant", used()), said("user", found())),
            *(said("assistant", used()), said("user", found())),
            toolConfig=TOOLS,
        ),
        "unique",
    ),
    "text after a call": (
        turns(USER, said("assistant", used(), words()), said("user", found()), toolConfig=TOOLS),
        "only toolUse",
    ),
    "no tools": (turns(USER, said("assistant", used()), said("user", found())), "toolConfig field must be defined"),
    "blank result": (
        turns(USER, said("assistant", used()), said("user", found("c1", words(" "))), toolConfig=TOOLS),
        "is blank",
    ),
    "an error without content": (
        turns(
            USER,
            said("assistant", used()),
            said("user", {"toolResult": {"toolUseId": "c1", "content": [], "status": "error"}}),
            toolConfig=TOOLS,
        ),
        "must have content",
    ),
    "a call's name": (
        turns(USER, said("assistant", used(name="a b")), said("user", found()), toolConfig=TOOLS),
        "name",
    ),
    "a call's id": (turns(USER, said("assistant", used("a b")), said("user", found("a b")), toolConfig=TOOLS), "Id"),
    "a call's input": (turns(USER, said("assistant", used(input=[])), said("user", found()), toolConfig=TOOLS), "json"),
    "a call of the user's": (turns(said("user", used()), toolConfig=TOOLS), "only allowed"),
    "a document's name": (turns(said("user", words(), document("a_b"))), "alphanumeric"),
    "two blanks": (turns(said("user", words(), document("a  b"))), "consecutive whitespace"),
    "one name twice": (turns(said("user", words(), document(), document())), "duplicate document"),
    "a document alone": (turns(said("user", document())), "text block must be included"),
    "an assistant's document": (turns(USER, said("assistant", words(), document()), USER), "only allowed"),
    "an assistant's image": (turns(USER, said("assistant", words(), image()), USER), "only allowed"),
    "an image's format": (turns(said("user", image(format="bmp"))), "enum"),
    "a document's format": (turns(said("user", words(), document(format="zip"))), "enum"),
    "an empty image": (turns(said("user", image(source={"bytes": b""}))), "length"),
    "a signature of nobody": (
        turns(
            USER,
            said("assistant", {"reasoningContent": {"reasoningText": {"text": "a", "signature": "b"}}}, words()),
            USER,
        ),
        "Invalid `signature`",
    ),
    "no signature": (
        turns(USER, said("assistant", {"reasoningContent": {"reasoningText": {"text": "a"}}}, words()), USER),
        "Invalid `signature`",
    ),
    "redacted by nobody": (
        turns(USER, said("assistant", {"reasoningContent": {"redactedContent": b"x"}}, words()), USER),
        "redacted_thinking",
    ),
    "an empty list of tools": (turns(USER, toolConfig={"tools": []}), "tools"),
    "a tool's name": (turns(USER, toolConfig={"tools": [tool_of(name="a b")]}), "pattern"),
    "a tool twice": (turns(USER, toolConfig={"tools": [tool_of(), tool_of()]}), "already defined"),
    "no description": (turns(USER, toolConfig={"tools": [tool_of(description="")]}), "length"),
    "a tool's schema": (turns(USER, toolConfig={"tools": [tool_of(inputSchema={"json": {}})]}), "object"),
    "a choice of nothing": (turns(USER, toolConfig={**TOOLS, "toolChoice": {"tool": {"name": "x"}}}), "not one of"),
    "an open schema": (turns(USER, outputConfig=form('{"type":"object"}')), "additionalProperties"),
    "bounds in a schema": (turns(USER, outputConfig=form('{"type":"string","minLength":1}')), "minLength"),
    "no schema": (turns(USER, outputConfig=form("{")), "not valid JSON"),
    "a model without output": (turns(USER, outputConfig=form(), modelId=NOVA), "doesn't support"),
    "no tokens": (turns(USER, inferenceConfig={"maxTokens": 0}), "maxTokens"),
    "too hot": (turns(USER, inferenceConfig={"temperature": 1.5}), "temperature"),
    "an empty stop": (turns(USER, inferenceConfig={"stopSequences": [""]}), "stopSequences"),
    "half a guardrail": (turns(USER, guardrailConfig={"guardrailIdentifier": "a"}), "guardrail"),
    "a tier": (turns(USER, serviceTier={"type": "best"}), "serviceTier"),
    "a latency": (turns(USER, performanceConfig={"latency": "best"}), "latency"),
    "empty metadata": (turns(USER, requestMetadata={}), "requestMetadata"),
    "five cache points": (turns(said("user", words(), *[POINT] * 5)), "maximum of 4"),
    "a cache that the model has not": (turns(said("user", words(), POINT), modelId=LLAMA), "prompt caching"),
    "a kind of cache point": (turns(said("user", words(), {"cachePoint": {"type": "best"}})), "enum"),
    "text beside a result": (
        turns(USER, said("assistant", used()), said("user", found(), words()), toolConfig=TOOLS, modelId=NOVA),
        "same turn",
    ),
    "a model's id": (turns(USER, modelId="no such model"), "model identifier"),
}


def test_what_is_rejected() -> None:
    """In Bedrock's form: the code is in a header. Nothing is taken from the script."""

    async def main() -> None:
        with FakeBedrock([["Fine."]]) as fake:
            async with client_of(fake) as client:
                for what, (body, message) in REJECTED.items():
                    with pytest.raises(client.exceptions.ValidationException) as caught:
                        await client.converse_stream(**{"modelId": CLAUDE, **body})
                    assert message in caught.value.response["Error"]["Message"], what
                    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
                    assert fake.served[-1].state == "rejected", what
                    assert fake.served[-1].error is not None
                answer = await client.converse(modelId=CLAUDE, messages=[USER])
                assert answer["output"]["message"]["content"] == [{"text": "Fine."}]

    asyncio.run(main())


ACCEPTED: dict[str, Json] = {
    "text beside a result": turns(
        USER, said("assistant", words(), used()), said("user", found(), words()), toolConfig=TOOLS
    ),
    "an error": turns(USER, said("assistant", used()), said("user", found(status="error")), toolConfig=TOOLS),
    "media": turns(said("user", words(), image(), document(), document("another one (2) [x]-y"))),
    "media in a result": turns(
        USER, said("assistant", used()), said("user", found("c1", words(), image(), document())), toolConfig=TOOLS
    ),
    "output": turns(USER, outputConfig=form()),
    "all options": turns(
        said("user", words(), POINT),
        system=[words(), POINT],
        toolConfig={"tools": [tool_of(description="a"), POINT], "toolChoice": {"any": {}}},
        inferenceConfig={"maxTokens": 1, "temperature": 0, "topP": 1, "stopSequences": ["a"]},
        requestMetadata={"a": "b"},
        serviceTier={"type": "flex"},
        performanceConfig={"latency": "standard"},
        additionalModelRequestFields={"top_k": 1},
    ),
    "s3": turns(said("user", image(source={"s3Location": {"uri": "s3://bucket/a.png"}}), words())),
}


def test_what_is_accepted() -> None:
    async def main() -> None:
        with FakeBedrock([["Fine."]]) as fake:
            async with client_of(fake) as client:
                for body in ACCEPTED.values():
                    await client.converse(**{"modelId": CLAUDE, **body})

    asyncio.run(main())


def test_unknown_fields() -> None:
    """The SDK can't send them: it drops what its model of the service does not have."""
    message = {"role": "user", "content": [{"text": "Hi"}]}
    strange: list[Json] = [
        {"messages": [message], "stream": True},
        {"messages": [{**message, "name": "x"}]},
        {"messages": [{"role": "user", "content": [{"text": "Hi", "image": {}}]}]},
        {"messages": [{"role": "user", "content": [{"words": "Hi"}]}]},
        {"messages": [message], "inferenceConfig": {"topK": 1}},
    ]
    with FakeBedrock() as fake:
        bodies: list[Any] = [*strange, [], None]
        for body in bodies:
            connection = http.client.HTTPConnection(urlsplit(fake.base_url).netloc, timeout=10)
            headers = {"authorization": f"Bearer {fake.api_key}"}
            connection.request("POST", f"/model/{CLAUDE}/converse", b"{" if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            assert answer.status == 400, body
            assert answer.getheader("x-amzn-errortype") in ("ValidationException", "SerializationException")
            assert set(json.loads(answer.read())) == {"message"}
            connection.close()


def test_keys() -> None:
    async def ask(fake: FakeBedrock, **keys: Any) -> str:
        config = AioConfig(retries={"total_max_attempts": 1})
        async with AioSession().create_client(
            "bedrock-runtime", region_name="us-east-1", endpoint_url=fake.base_url, config=config, **keys
        ) as client:
            try:
                await client.converse(modelId=CLAUDE, messages=[USER])
            except ClientError as error:
                return f"{error.response['ResponseMetadata']['HTTPStatusCode']} {error.response['Error']['Code']}"
            return "fine"

    async def main(patch: pytest.MonkeyPatch) -> None:
        patch.delenv("AWS_BEARER_TOKEN_BEDROCK", raising=False)
        with FakeBedrock() as fake:
            keys = {"aws_access_key_id": fake.access_key_id, "aws_secret_access_key": "any"}
            assert await ask(fake, **keys) == "fine"
            keys["aws_access_key_id"] = "AKIAANOTHER"
            assert await ask(fake, **keys) == "403 UnrecognizedClientException"
            patch.setenv("AWS_BEARER_TOKEN_BEDROCK", "wrong")
            assert await ask(fake) == "403 AccessDeniedException"
            patch.setenv("AWS_BEARER_TOKEN_BEDROCK", fake.api_key)
            assert await ask(fake) == "fine"

    with pytest.MonkeyPatch.context() as patch:
        asyncio.run(main(patch))


# -- reasoning --------------------------------------------------------------------------------------------------------


def test_reasoning_comes_back_as_it_was_issued() -> None:
    async def main() -> None:
        with FakeBedrock([[reasoning("Hm."), reasoning(redacted="x"), text("Well.")]]) as fake:
            async with client_of(fake) as client:
                answer = (await client.converse(modelId=CLAUDE, messages=[USER]))["output"]["message"]
                assert [next(iter(block)) for block in answer["content"]] == ["reasoningContent"] * 2 + ["text"]
                for id in (CLAUDE, BINDING):
                    answer = (await client.converse(modelId=id, messages=[USER]))["output"]["message"]
                    await client.converse(modelId=id, messages=[USER, answer, USER])
                other = said("user", words("Another one"))
                await client.converse(modelId=CLAUDE, messages=[other, answer, USER])
                bound: list[Json] = [
                    {"messages": [other, answer, USER]},
                    {"messages": [USER, answer, USER], "system": [words("New.")]},
                    {"messages": [USER, answer, USER], "toolConfig": TOOLS},
                    {"messages": [USER, {**answer, "content": answer["content"][1:]}, USER]},
                ]
                for body in bound:
                    with pytest.raises(client.exceptions.ValidationException, match="different conversation"):
                        await client.converse(modelId=BINDING, **body)
                answer["content"][0]["reasoningContent"]["reasoningText"]["text"] = "Changed."
                with pytest.raises(client.exceptions.ValidationException, match="cannot be modified"):
                    await client.converse(modelId=CLAUDE, messages=[USER, answer, USER])

    asyncio.run(main())


# -- answers ----------------------------------------------------------------------------------------------------------


def test_a_stream_as_the_sdk_parses_it() -> None:
    async def main() -> None:
        answer: list[Any] = [
            reasoning("Hm."),
            text("Well. "),
            call("search", {"a": 1}, id="c1", pieces=2),
            usage(10, 5, cached_tokens=4),
        ]
        given: list[Any] = [{}, {"split": 3}, {"newline": "\r\n"}]
        for options in given:
            with FakeBedrock([[*answer, finish("max_tokens")]], **options) as fake:
                async with client_of(fake) as client:
                    stream = (await client.converse_stream(modelId=CLAUDE, messages=[USER]))["stream"]
                    events = [event async for event in stream]
                    stream.close()
            kinds = [next(iter(event)) for event in events]
            assert kinds == [
                *("messageStart", "contentBlockDelta", "contentBlockDelta", "contentBlockStop"),
                *("contentBlockDelta", "contentBlockStop"),
                *("contentBlockStart", "contentBlockDelta", "contentBlockDelta", "contentBlockStop"),
                *("messageStop", "metadata"),
            ]
            assert events[-2]["messageStop"]["stopReason"] == "max_tokens"
            spent = events[-1]["metadata"]["usage"]
            assert (spent["inputTokens"], spent["cacheReadInputTokens"], spent["outputTokens"]) == (6, 4, 5)

    asyncio.run(main())


def test_failures_as_the_sdk_reports_them() -> None:
    async def main() -> None:
        with FakeBedrock([[fail(429, "Slow down.")], [text("a"), fail(503, "Busy.")]]) as fake:
            async with client_of(fake) as client:
                with pytest.raises(client.exceptions.ThrottlingException, match="Slow down"):
                    await client.converse_stream(modelId=CLAUDE, messages=[USER])
                stream = (await client.converse_stream(modelId=CLAUDE, messages=[USER]))["stream"]
                with pytest.raises(ClientError, match="serviceUnavailableException"):
                    async for _ in stream:
                        pass
                stream.close()

    asyncio.run(main())
