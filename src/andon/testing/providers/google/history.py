# SPDX-License-Identifier: Apache-2.0
"""What Gemini rejects in a conversation: parts that are empty, calls and responses that don't fit, signatures.

What must stay true: each call has its response in the very next content, and no response is without its call. From
Gemini 3 on, the first call of each step of the current turn has its signature.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from andon.testing.providers.api import Json
from andon.testing.providers.google.errors import Rejected, invalid, unknown, wrong
from andon.testing.providers.google.memory import Memory, decoded

NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")
BAD_NAME = (
    "Invalid function name. Must start with a letter or an underscore. Must be alphameric (a-z, A-Z, 0-9), "
    "underscores (_), dots (.), colons (:), or dashes (-), with a maximum length of 128."
)
NEW = re.compile(r"gemini-(?![12]\b)")
"""Models whose calls are signed, which take images in responses, and a form of the answer beside tools."""

_DATA: dict[str, frozenset[str]] = {
    "text": frozenset(),
    "inlineData": frozenset({"mimeType", "data", "displayName"}),
    "fileData": frozenset({"mimeType", "fileUri", "displayName"}),
    "functionCall": frozenset({"id", "name", "args"}),
    "functionResponse": frozenset({"id", "name", "response", "parts", "willContinue", "scheduling"}),
    "executableCode": frozenset({"id", "language", "code"}),
    "codeExecutionResult": frozenset({"id", "outcome", "output"}),
}
_BESIDE = frozenset({"thought", "thoughtSignature", "videoMetadata", "mediaResolution", "partMetadata"})
_KINDS = re.compile(
    r"image/(png|jpeg|webp|heic|heif)|application/(pdf|json)|text/[\w.+-]+|(audio|video)/[\w.+-]+", re.ASCII
)

_AFTER_USER = (
    "Please ensure that function call turn comes immediately after a user turn or after a function response turn."
)
_AFTER_CALL = "Please ensure that function response turn comes immediately after a function call turn."
_COUNT = (
    "Please ensure that the number of function response parts is equal to the number of function call parts of the "
    "function call turn."
)
_NAMES = "Please ensure that the names and ids of function responses are those of the function call turn."
_FIRST = "Please ensure that multiturn requests start with a user turn."
_LAST = "Please ensure that multiturn requests end with a user turn or a function response."
_UNSIGNED = (
    "Function call is missing a thought_signature in functionCall parts. This is required for tools to work correctly, "
    "and missing thought_signature may lead to degraded model performance. Additional data, function call "
    "`default_api:{name}` , position {place}."
)


def check(contents: Sequence[Json], model: str, memory: Memory) -> None:
    """Raises `Rejected` for the first thing that Gemini would object to."""
    if not contents:
        raise invalid("contents", "contents is not specified")
    for number, content in enumerate(contents):
        _content(content, f"contents[{number}]", model, single=len(contents) == 1)
    if contents[0].get("role") == "model":
        raise Rejected(_FIRST)
    _pairs(contents)
    if contents[-1].get("role") == "model":
        raise Rejected(_LAST)
    _signatures(contents, model, memory)


def _content(content: object, where: str, model: str, *, single: bool) -> None:
    if not isinstance(content, dict):
        raise wrong(where, "type.googleapis.com/google.ai.generativelanguage.v1.Content", content)
    for name in content.keys() - {"role", "parts"}:
        raise unknown(name, where)
    role = content.get("role")
    if role not in ("user", "model") and not (role is None and single):
        raise Rejected("Please use a valid role: user, model.")
    parts = content.get("parts")
    if not isinstance(parts, list) or not parts:
        raise invalid(f"{where}.parts", "contents.parts must not be empty.")
    for number, part in enumerate(parts):
        at = f"{where}.parts[{number}]"
        if not isinstance(part, dict):
            raise wrong(at, "type.googleapis.com/google.ai.generativelanguage.v1.Part", part)
        _part(part, at, role, model)


def _part(part: Json, where: str, role: object, model: str) -> None:
    for name in part.keys() - _DATA.keys() - _BESIDE:
        raise unknown(name, where)
    kinds = part.keys() & _DATA.keys()
    if len(kinds) != 1:
        raise invalid(f"{where}.data", "required oneof field 'data' must have one initialized field")
    (kind,) = kinds
    data = part[kind]
    if kind == "text":
        if not isinstance(data, str):
            raise wrong(f"{where}.text", "TYPE_STRING", data)
        if not data.strip() and not part.get("thoughtSignature"):
            raise Rejected("Unable to submit request because it must have a text parameter. Add one and try again.")
        return
    if not isinstance(data, dict):
        raise wrong(f"{where}.{kind}", "an object", data)
    for name in data.keys() - _DATA[kind]:
        raise unknown(name, f"{where}.{kind}")
    if kind == "functionCall":
        if role != "model":
            raise Rejected(_AFTER_USER)
        _function(data, f"{where}.function_call", "args")
    elif kind == "functionResponse":
        if role == "model":
            raise Rejected(_AFTER_CALL)
        _function(data, f"{where}.function_response", "response")
        _result_parts(data, where, model)
    elif kind in ("inlineData", "fileData"):
        _media(kind, data, where)


def _function(data: Json, where: str, body: str) -> None:
    name = data.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise invalid(f"{where}.name", BAD_NAME)
    if not isinstance(data.get("id", ""), str):
        raise wrong(f"{where}.id", "TYPE_STRING", data["id"])
    if not isinstance(data.get(body, {} if body == "args" else None), dict):
        raise wrong(f"{where}.{body}", "type.googleapis.com/google.protobuf.Struct", data.get(body))


def _result_parts(data: Json, where: str, model: str) -> None:
    parts = data.get("parts")
    if parts is None:
        return
    if not NEW.search(model):
        raise Rejected("Multimodal function responses are not supported for this model.")
    for number, part in enumerate(parts):
        at = f"{where}.function_response.parts[{number}]"
        if not isinstance(part, dict) or len(part) != 1 or not part.keys() <= {"inlineData", "fileData"}:
            raise invalid(f"{at}.data", "required oneof field 'data' must have one initialized field")
        ((kind, inner),) = part.items()
        _media(kind, inner, at)


def _media(kind: str, data: Json, where: str) -> None:
    mime = data.get("mimeType")
    if kind == "fileData":
        if not data.get("fileUri"):
            raise invalid(f"{where}.file_data.file_uri", "file_uri must not be empty")
    elif not isinstance(data.get("data"), str) or not decoded(data["data"]):
        raise wrong(f"{where}.inline_data.data", "TYPE_BYTES", data.get("data"))
    elif not mime:
        raise invalid(f"{where}.inline_data.mime_type", "mime_type must not be empty")
    if mime is not None and not _KINDS.fullmatch(mime):
        raise Rejected(f"Unsupported MIME type: {mime}")


# -- calls and responses ----------------------------------------------------------------------------------------------


def _of(content: Json, kind: str) -> list[Json]:
    return [part[kind] for part in content["parts"] if kind in part]


def _pairs(contents: Sequence[Json]) -> None:
    open_calls: list[Json] = []
    for number, content in enumerate(contents):
        responses = _of(content, "functionResponse")
        if responses and not open_calls:
            raise Rejected(_AFTER_CALL)
        if open_calls:
            if len(responses) != len(open_calls):
                raise Rejected(_COUNT)
            _matched(open_calls, responses)
        open_calls = _of(content, "functionCall")
        if open_calls and contents[number - 1].get("role") == "model":
            raise Rejected(_AFTER_USER)
    if open_calls:
        raise Rejected(_COUNT)


def _matched(calls: Sequence[Json], responses: Sequence[Json]) -> None:
    def named(each: Json) -> tuple[Any, Any]:
        return each["name"], each.get("id")

    if sorted(map(str, map(named, calls))) != sorted(map(str, map(named, responses))):
        raise Rejected(_NAMES)


# -- signatures -------------------------------------------------------------------------------------------------------


def _signatures(contents: Sequence[Json], model: str, memory: Memory) -> None:
    turn = max(
        (number for number, content in enumerate(contents) if content.get("role") != "model" and _is_prompt(content)),
        default=-1,
    )
    for number, content in enumerate(contents):
        is_first = number > turn and NEW.search(model) is not None
        for place, part in enumerate(content["parts"]):
            signature = part.get("thoughtSignature")
            if signature is not None:
                _signature(part, signature, f"contents[{number}].parts[{place}]", model, memory)
            if "functionCall" in part:
                if is_first and not signature:
                    raise Rejected(_UNSIGNED.format(name=part["functionCall"]["name"], place=number + 1))
                is_first = False


def _signature(part: Json, signature: object, where: str, model: str, memory: Memory) -> None:
    if not isinstance(signature, str) or decoded(signature) is None:
        raise wrong(f"{where}.thought_signature", "TYPE_BYTES", signature)
    plain = {name: value for name, value in part.items() if name != "thoughtSignature"}
    if not memory.knows(model, plain, signature):
        raise Rejected("Corrupted thought signature.")


def _is_prompt(content: Json) -> bool:
    return not all("functionResponse" in part for part in content["parts"])
