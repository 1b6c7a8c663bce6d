# SPDX-License-Identifier: Apache-2.0
"""What the fake of Gemini rejects, and that it takes what Gemini takes; asked by a plain client and by the SDK."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest
from google import genai
from google.genai import errors, types

from andon.testing.providers import FakeGemini, call, fail, finish, reasoning, text
from andon.testing.providers.google.memory import SKIP

Json = dict[str, Any]
NEW, OLD = "gemini-3.8-flash", "gemini-2.5-flash"
USER: Json = {"role": "user", "parts": [{"text": "Hi"}]}
SAID: Json = {"role": "model", "parts": [{"text": "Yes?"}]}
THOUGHT: Json = {"text": "", "thought": True, "thoughtSignature": "dGhvdWdodA"}
EMPTY = "must have a text parameter"


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeGemini]:
    with FakeGemini() as fake:
        fake.memory.sign(NEW, {"functionCall": {"name": "f", "id": "a", "args": {}}}, "c2ln")
        fake.memory.sign(NEW, {"text": "", "thought": True}, "dGhvdWdodA==")
        yield fake


def post(fake: FakeGemini, body: Any, path: str = "", **headers: str) -> tuple[int, Json]:
    given = {"x-goog-api-key": fake.api_key} if not headers else {k.replace("_", "-"): v for k, v in headers.items()}
    with closing(http.client.HTTPConnection(urlsplit(fake.base_url).netloc, timeout=10)) as connection:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", path or fake.path, data, given)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def called(*ids: str, signature: str | None = SKIP, name: str = "f", **more: Any) -> Json:
    parts = [{"functionCall": {"name": name, "id": each, "args": {}, **more}} for each in ids]
    if signature is not None:
        parts[0]["thoughtSignature"] = signature  # type: ignore[assignment]
    return {"role": "model", "parts": parts}


def answered(*ids: str, name: str = "f", response: Any = None, **more: Any) -> Json:
    said = {"output": "done"} if response is None else response
    parts = [{"functionResponse": {"name": name, "id": each, "response": said, **more}} for each in ids]
    return {"role": "user", "parts": parts}


def parts(*each: Json, role: str = "user") -> Json:
    return {"role": role, "parts": list(each)}


IMAGE = {"inlineData": {"mimeType": "image/png", "data": "eA=="}}


@pytest.mark.parametrize(
    "contents",
    [
        [USER],
        [{"parts": [{"text": "Hi"}]}],
        [USER, SAID, USER],
        [USER, USER],
        [USER, called("a"), answered("a")],
        [USER, called("a", signature="c2ln"), answered("a")],
        [USER, called("a", "b"), answered("b", "a"), called("c"), answered("c", response={"error": "no"})],
        [USER, called("a", signature=None), answered("a"), SAID, USER],  # an older turn
        [
            USER,
            parts({"text": "", "thought": True, "thoughtSignature": "dGhvdWdodA"}, SAID["parts"][0], role="model"),
            USER,
        ],
        [parts({"text": "Look"}, IMAGE, {"fileData": {"fileUri": "gs://a/b", "mimeType": "video/mp4"}})],
        [USER, called("a"), answered("a", parts=[IMAGE])],
    ],
)
def test_accepted(fake: FakeGemini, contents: list[Json]) -> None:
    status, answer = post(fake, {"contents": contents})
    assert status == 200, answer


COUNT = "number of function response parts is equal to the number of function call parts"
AFTER_CALL = "function response turn comes immediately after a function call turn"
AFTER_USER = "function call turn comes immediately after a user turn"


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        ([], "contents is not specified"),
        ([{"role": "user", "parts": []}], "contents[0].parts: contents.parts must not be empty"),
        ([{"role": "assistant", "parts": [{"text": "x"}]}], "valid role: user, model"),
        ([parts({"text": ""})], EMPTY),
        ([parts({"text": " \n"})], EMPTY),
        ([parts({})], "required oneof field 'data'"),
        ([parts({"text": "x", **IMAGE})], "required oneof field 'data'"),
        ([parts({"text": 7})], "TYPE_STRING"),
        ([parts({"words": "x"})], 'Unknown name "words" at'),
        ([{"role": "user", "parts": [{"text": "x"}], "name": "x"}], 'Unknown name "name"'),
        ([7], "Invalid value at 'contents[0]'"),
        ([SAID, USER], "start with a user turn"),
        ([USER, SAID], "end with a user turn"),
        ([USER, called("a")], COUNT),
        ([USER, called("a", "b"), answered("a")], COUNT),
        ([USER, called("a"), answered("a", "b")], COUNT),
        ([USER, called("a"), USER, answered("a")], COUNT),
        ([USER, answered("a")], AFTER_CALL),
        ([USER, SAID, answered("a")], AFTER_CALL),
        ([USER, SAID, called("a"), answered("a")], AFTER_USER),
        ([parts({"functionCall": {"name": "f"}})], AFTER_USER),
        ([USER, called("a"), answered("b")], "names and ids"),
        ([USER, called("a"), answered("a", name="g")], "names and ids"),
        ([USER, called("a"), answered("a", response="done")], "google.protobuf.Struct"),
        ([USER, called("a", args="{}"), answered("a")], "google.protobuf.Struct"),
        ([USER, called("a", name="2f"), answered("a", name="2f")], "Invalid function name"),
        ([USER, called("a", signature=None), answered("a")], "missing a thought_signature"),
        ([USER, called("a"), answered("a"), called("b", signature=None), answered("b")], "missing a thought_signature"),
        ([USER, called("a", signature="b3RoZXI="), answered("a")], "Corrupted thought signature"),
        ([USER, called("b", signature="c2ln"), answered("b")], "Corrupted thought signature"),
        ([USER, called("a", signature="not base64!"), answered("a")], "TYPE_BYTES"),
        ([parts({"inlineData": {"mimeType": "image/gif", "data": "eA=="}})], "Unsupported MIME type: image/gif"),
        ([parts({"inlineData": {"mimeType": "image/png", "data": "!"}})], "TYPE_BYTES"),
        ([parts({"fileData": {"mimeType": "image/png"}})], "file_uri"),
        ([USER, called("a"), answered("a", parts=[{"text": "x"}])], "required oneof field 'data'"),
    ],
)
def test_rejected_conversations(fake: FakeGemini, contents: list[Any], says: str) -> None:
    before = len(fake.served)
    status, answer = post(fake, {"contents": contents})
    assert status == 400
    assert answer["error"]["status"] == "INVALID_ARGUMENT"
    assert says in answer["error"]["message"]
    assert fake.served[before].error == answer["error"]


def test_older_models_want_no_signatures_and_take_no_images_in_results(fake: FakeGemini) -> None:
    path = fake.path.replace(NEW, OLD)
    assert post(fake, {"contents": [USER, called("a", signature=None), answered("a")]}, path)[0] == 200
    status, answer = post(fake, {"contents": [USER, called("a", signature=None), answered("a", parts=[IMAGE])]}, path)
    assert (status, "Multimodal" in answer["error"]["message"]) == (400, True)
    assert post(fake, {"contents": [USER, called("a", signature="c2ln"), answered("a")]}, path)[0] == 400


F = {"name": "f", "parametersJsonSchema": {"type": "object", "properties": {}}}
TOOLS = {"tools": [{"functionDeclarations": [F]}]}
ANY = {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}}
JSON = {"responseMimeType": "application/json", "responseJsonSchema": {"type": "object"}}


@pytest.mark.parametrize(
    "body",
    [
        {**TOOLS, "toolConfig": ANY, "generationConfig": JSON},
        {"generationConfig": {"temperature": 1, "thinkingConfig": {"thinkingLevel": "low", "includeThoughts": True}}},
        {"systemInstruction": {"parts": [{"text": "x"}]}, "labels": {}, "safetySettings": []},
        {"cachedContent": "cachedContents/1"},
    ],
)
def test_accepted_options(fake: FakeGemini, body: Json) -> None:
    assert post(fake, {"contents": [USER], **body})[0] == 200


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"system": "x"}, 'Unknown name "system"'),
        ({"generationConfig": {"maxTokens": 1}}, "Unknown name \"maxTokens\" at 'generation_config'"),
        ({"generationConfig": {"temperature": "hot"}}, "TYPE_FLOAT"),
        ({"generationConfig": {"thinkingConfig": {"thinkingLevel": "LOW", "thinkingBudget": 1}}}, "only one of"),
        ({"generationConfig": {"thinkingConfig": {"thinkingLevel": "SOME"}}}, "thinking_level"),
        ({"generationConfig": {"responseJsonSchema": {}}}, "response_mime_type"),
        ({"generationConfig": {**JSON, "responseJsonSchema": {"$ref": "#", "title": "x"}}}, "$ref"),
        ({"systemInstruction": {"parts": []}}, "must not be empty"),
        ({"systemInstruction": "x"}, "system_instruction"),
        ({"tools": [{"functionDeclarations": [{**F, "name": "2f"}]}]}, "Invalid function name"),
        ({"tools": [{"functionDeclarations": [F, F]}]}, "Duplicate function declaration"),
        ({"tools": [{"functionDeclarations": [{**F, "parameters": {}}]}]}, "mutually exclusive"),
        ({"tools": [{"functionDeclarations": [{**F, "parametersJsonSchema": {"type": "string"}}]}]}, "OBJECT"),
        ({"tools": [{"functions": []}]}, 'Unknown name "functions"'),
        ({"toolConfig": ANY}, "without function_declarations"),
        ({**TOOLS, "toolConfig": {"functionCallingConfig": {"mode": "SOME"}}}, "mode"),
        ({**TOOLS, "toolConfig": {"functionCallingConfig": {"allowedFunctionNames": ["f"]}}}, "modes ANY"),
        (
            {**TOOLS, "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["g"]}}},
            "not declared",
        ),
        ({"cachedContent": "x", **TOOLS}, "CachedContent can not be used"),
        ({"continuationToken": "b3RoZXI="}, "continuation token is not valid"),
        ({"contents": "Hi"}, "Invalid value at 'contents'"),
    ],
)
def test_rejected_options(fake: FakeGemini, body: Json, says: str) -> None:
    status, answer = post(fake, {"contents": [USER], **body})
    assert status == 400
    assert says in answer["error"]["message"]


def test_older_models_take_no_form_of_an_answer_beside_tools(fake: FakeGemini) -> None:
    status, answer = post(fake, {"contents": [USER], **TOOLS, "generationConfig": JSON}, fake.path.replace(NEW, OLD))
    assert (status, "is unsupported" in answer["error"]["message"]) == (400, True)


def test_keys_and_addresses(fake: FakeGemini) -> None:
    body = {"contents": [USER]}
    vertex = f"/v1beta1/projects/p/locations/l/publishers/google/models/{NEW}:generateContent"
    wrong = post(fake, body, x_goog_api_key="wrong")
    assert (wrong[0], wrong[1]["error"]["details"][0]["reason"]) == (400, "API_KEY_INVALID")
    assert post(fake, body, x_other="x")[0] == 403
    assert post(fake, body, f"{fake.path}?key={fake.api_key}", x_other="x")[0] == 200
    assert post(fake, body, vertex, authorization=f"Bearer {fake.api_key}")[0] == 200
    assert post(fake, body, vertex, authorization="Bearer wrong")[0] == 401
    assert post(fake, body, fake.path.replace("/v1/", "/v1beta/"))[0] == 200
    assert post(fake, body, "/v1/models/x:countTokens")[0] == 404
    assert "alt=sse" in post(fake, body, fake.path.replace("generate", "streamGenerate"))[1]["error"]["message"]
    assert post(fake, b"{")[0] == post(fake, b"[]")[0] == 400


# -- the SDK ----------------------------------------------------------------------------------------------------------


def client(fake: FakeGemini) -> genai.Client:
    return genai.Client(api_key=fake.api_key, http_options=types.HttpOptions(base_url=fake.base_url))


def test_the_sdk_holds_a_conversation() -> None:
    """With what it received sent back as it is, thoughts and signatures included."""
    script: list[Any] = [
        [reasoning("Hm. Well."), text("I look. "), call("f", {"x": 1}), call("f", {"x": 2})],
        [text("Found it.")],
        [text("Yes.")],
    ]
    declared = types.FunctionDeclaration(name="f", parameters_json_schema={"type": "object", "properties": {}})
    config = types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=[declared])],
        system_instruction="Be brief.",
        thinking_config=types.ThinkingConfig(include_thoughts=True, thinking_level=types.ThinkingLevel.LOW),
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    with FakeGemini(script) as fake:
        google = client(fake)
        contents = [types.Content(role="user", parts=[types.Part(text="go")])]
        for _ in range(2):
            said = []
            for chunk in google.models.generate_content_stream(model=NEW, contents=contents, config=config):
                assert chunk.candidates is not None
                assert chunk.candidates[0].content is not None
                said += chunk.candidates[0].content.parts or []
            contents.append(types.Content(role="model", parts=said))
            found = [
                types.Part.from_function_response(name=each.function_call.name or "", response={"output": "y"})
                for each in said
                if each.function_call
            ]
            for part, each in zip(found, [each.function_call for each in said if each.function_call], strict=True):
                assert part.function_response is not None
                part.function_response.id = each.id
            contents.append(types.Content(role="user", parts=found or [types.Part(text="Sure?")]))
        last = google.models.generate_content(model=NEW, contents=contents, config=config)
        assert last.text == "Yes."
        assert last.usage_metadata is not None
        assert last.usage_metadata.candidates_token_count == 1
        assert [each.error for each in fake.served] == [None] * 3
        google.close()


def test_the_sdk_reads_its_errors_and_goes_on_by_itself() -> None:
    script: list[Any] = [
        [text("One, "), finish("CONTINUATION")],
        [text("two.")],
        [fail(429, "Slow down.", headers={"retry-after": "3"})],
        [text("So "), fail(503, "Busy.")],
    ]
    with FakeGemini(script) as fake:
        google = client(fake)
        chunks = google.models.generate_content_stream(model=NEW, contents="Count.")
        assert "".join(chunk.text or "" for chunk in chunks) == "One, two."
        with pytest.raises(errors.ClientError) as limited:
            google.models.generate_content(model=NEW, contents="x")
        assert limited.value.details["error"]["details"][0]["retryDelay"] == "3s"
        with pytest.raises(errors.ServerError, match="UNAVAILABLE"):
            list(google.models.generate_content_stream(model=NEW, contents="x"))
        google.close()
