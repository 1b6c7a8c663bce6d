# SPDX-License-Identifier: Apache-2.0
"""How OpenAI rejects a request: its errors, in its words as far as they are known, and the checks of both APIs.

A check returns nothing or raises `Rejected`, which is sent as it is. What must stay true: a check reads the request as
it came over the wire and never changes it; and each error says in `param` where the fault is, as OpenAI does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from andon.testing.providers.api import Json, Rejection
from andon.testing.providers.script import Fail
from andon.testing.providers.server import Request

_NAME = re.compile(r"[a-zA-Z0-9_-]+")
NAME_LENGTH = 64

# The parts of a message that may have more than their type and one field.
_PART_KEYS = {
    "output_text": {"type", "text", "annotations", "logprobs"},
    "input_text": {"type", "text", "prompt_cache_breakpoint"},
    "input_image": {"type", "image_url", "file_id", "detail", "prompt_cache_breakpoint"},
    "input_file": {"type", "file_data", "file_id", "file_url", "filename", "detail", "prompt_cache_breakpoint"},
    "text": {"type", "text", "prompt_cache_breakpoint"},
    "image_url": {"type", "image_url", "prompt_cache_breakpoint"},
    "file": {"type", "file", "prompt_cache_breakpoint"},
}


class Rejected(Rejection):
    """The request is answered with an error in OpenAI's form."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        code: str | None = None,
        *,
        status: int = 400,
        type: str = "invalid_request_error",
    ) -> None:
        error = {"message": message, "type": type, "param": param, "code": code}
        super().__init__(message, status, error, {"error": error})


# -- the errors -------------------------------------------------------------------------------------------------------


def missing(param: str) -> Rejected:
    return Rejected(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def unknown(param: str) -> Rejected:
    return Rejected(f"Unknown parameter: '{param}'.", param, "unknown_parameter")


def wrong_type(param: str, expected: str, value: object) -> Rejected:
    message = f"Invalid type for '{param}': expected {expected}, but got {_kind(value)} instead."
    return Rejected(message, param, "invalid_type")


def wrong_value(param: str, value: object, supported: Sequence[str]) -> Rejected:
    *most, last = [f"'{each}'" for each in supported]
    comma = "," if len(most) > 1 else ""
    listed = f"{', '.join(most)}{comma} and {last}" if most else last
    return Rejected(f"Invalid value: '{value}'. Supported values are: {listed}.", param, "invalid_value")


def too_long(param: str, limit: int, length: int) -> Rejected:
    message = (
        f"Invalid '{param}': string too long. Expected a string with maximum length {limit}, "
        f"but got a string with length {length} instead."
    )
    return Rejected(message, param, "string_above_max_length")


def empty_array(param: str) -> Rejected:
    message = (
        f"Invalid '{param}': empty array. Expected an array with minimum length 1, but got an empty array instead."
    )
    return Rejected(message, param, "empty_array")


def _kind(value: object) -> str:
    if value is None:
        return "null"
    kinds = {bool: "a boolean", int: "an integer", float: "a decimal", str: "a string", list: "an array"}
    return kinds.get(type(value), "an object")


# -- what both APIs do ------------------------------------------------------------------------------------------------


def other(request: Request) -> tuple[int, Json]:
    """The answer to a request that asks no model: a list of models, or that there is no such path."""
    path = request.path.partition("?")[0]
    if path == "/v1/models" and request.method == "GET":
        return 200, {"object": "list", "data": [{"id": "fake", "object": "model", "created": 0, "owned_by": "andon"}]}
    error = Rejected(f"Invalid URL ({request.method} {path})", status=404)
    return error.status, error.body


def is_post(request: Request, path: str) -> bool:
    return request.method == "POST" and request.path.partition("?")[0] == path


def parse(request: Request, api_key: str) -> Json:
    authorized(request.headers, api_key)
    return parsed(request.body)


def mistake(message: str) -> Json:
    return {"error": {"message": message, "type": "fake", "param": None, "code": None}}


def failure(word: Fail) -> Json:
    """The body of an HTTP error that a script asks for."""
    return {
        "error": {"message": word.message, "type": word.type or _type(word.status), "param": None, "code": word.code}
    }


def _type(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"


# -- the checks -------------------------------------------------------------------------------------------------------


def authorized(headers: Mapping[str, str], api_key: str) -> None:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise Rejected(
            "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer "
            "auth (i.e. Authorization: Bearer YOUR_KEY).",
            status=401,
        )
    if key.strip() != api_key:
        raise Rejected(f"Incorrect API key provided: {key.strip()[:4]}***.", None, "invalid_api_key", status=401)


def parsed(body: bytes) -> Json:
    try:
        value = json.loads(body)
    except ValueError:
        raise Rejected("We could not parse the JSON body of your request.") from None
    if not isinstance(value, dict):
        raise Rejected("We could not parse the JSON body of your request: it is not an object.")
    return value


def known(value: Json, keys: Collection[str], extra: Collection[str], where: str = "") -> None:
    for key in value:
        if key not in keys and key not in extra:
            raise unknown(f"{where}.{key}" if where else key)


def model(body: Json) -> None:
    if not body.get("model"):
        raise Rejected("you must provide a model parameter")
    if not isinstance(body["model"], str):
        raise wrong_type("model", "a string", body["model"])


def string(value: Json, key: str, where: str, *, longest: int | None = None) -> str:
    param = f"{where}.{key}"
    if value.get(key) is None:
        raise missing(param)
    found = value[key]
    if not isinstance(found, str):
        raise wrong_type(param, "a string", found)
    if longest is not None and len(found) > longest:
        raise too_long(param, longest, len(found))
    return found


def name(value: Json, where: str) -> str:
    found = string(value, "name", where, longest=NAME_LENGTH)
    if not _NAME.fullmatch(found):
        param = f"{where}.name"
        pattern = "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
        raise Rejected(f"Invalid '{param}': string does not match pattern. {pattern}", param, "invalid_value")
    return found


def arguments(value: Json, where: str) -> None:
    text = string(value, "arguments", where)
    try:
        fine = isinstance(json.loads(text), dict)
    except ValueError:
        fine = False
    if not fine:
        param = f"{where}.arguments"
        raise Rejected(f"Invalid '{param}': expected a JSON object as a string.", param, "invalid_value")


def listed(value: object, param: str) -> list[Any]:
    if not isinstance(value, list):
        raise wrong_type(param, "an array of objects", value)
    return value


def thing(value: object, param: str) -> Json:
    if not isinstance(value, dict):
        raise wrong_type(param, "an object", value)
    return value


def content(value: object, param: str, types: Mapping[str, str]) -> None:
    """Text, or a list of parts of these types, each with its one required field."""
    if isinstance(value, str):
        return
    if not isinstance(value, list):
        raise wrong_type(param, "one of a string or array of objects", value)
    for number, part in enumerate(value):
        where = f"{param}[{number}]"
        kind = thing(part, where).get("type")
        if kind is None:
            raise missing(f"{where}.type")
        if kind not in types:
            raise wrong_value(where, kind, list(types))
        known(part, _PART_KEYS.get(kind, {"type", types[kind]}), (), where)
        if part.get(types[kind]) is None:
            raise missing(f"{where}.{types[kind]}")
        if types[kind] in ("text", "refusal") and not isinstance(part[types[kind]], str):
            raise wrong_type(f"{where}.{types[kind]}", "a string", part[types[kind]])


def function(value: Json, where: str) -> None:
    """A function that a tool offers: name, parameters, and a strict schema where it says that it is strict."""
    called = name(value, where)
    description = value.get("description")
    if description is not None and not isinstance(description, str):
        raise wrong_type(f"{where}.description", "a string", description)
    schema = value.get("parameters")
    if schema is None:
        return
    param = f"{where}.parameters"
    if not isinstance(schema, dict):
        raise wrong_type(param, "an object", schema)
    if schema.get("type") != "object":
        raise Rejected(
            f"Invalid schema for function '{called}': schema must be a JSON Schema of 'type: \"object\"', "
            f"got 'type: \"{schema.get('type')}\"'.",
            param,
            "invalid_function_parameters",
        )
    if value.get("strict") is True:
        strict_schema(schema, f"function '{called}'", param, "invalid_function_parameters")


def strict_schema(schema: object, whose: str, param: str, code: str | None, at: tuple[str, ...] = ()) -> None:
    """Structured output's own demands: objects closed, and all of their properties required."""
    if not isinstance(schema, dict):
        return
    properties = schema.get("properties")
    if schema.get("type") == "object" or isinstance(properties, dict):
        where = f"Invalid schema for {whose}: In context={at!r}"
        if schema.get("additionalProperties") is not False:
            raise Rejected(f"{where}, 'additionalProperties' is required to be supplied and to be false.", param, code)
        lacking = [key for key in properties or {} if key not in schema.get("required", [])]
        if lacking:
            wanted = "'required' is required to be supplied and to be an array including every key in properties."
            raise Rejected(f"{where}, {wanted} Missing '{lacking[0]}'.", param, code)
    for key in ("properties", "$defs"):
        for inner, each in (schema.get(key) or {}).items():
            strict_schema(each, whose, param, code, (*at, key, inner))
    strict_schema(schema.get("items"), whose, param, code, (*at, "items"))
    for number, each in enumerate(schema.get("anyOf") or []):
        strict_schema(each, whose, param, code, (*at, "anyOf", str(number)))


def only_with(body: Json, key: str, other: str) -> None:
    if body.get(key) is not None and not body.get(other):
        raise Rejected(f"Invalid value for '{key}': '{key}' is only allowed when '{other}' are specified.", key)
