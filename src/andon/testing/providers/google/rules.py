# SPDX-License-Identifier: Apache-2.0
"""What Gemini rejects: keys, paths, fields that it doesn't know, tools and options that don't fit each other."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any
from urllib.parse import parse_qs

from andon.testing.providers.api import Json
from andon.testing.providers.google import history
from andon.testing.providers.google.errors import Rejected, info, invalid, unknown, wrong
from andon.testing.providers.google.memory import Memory
from andon.testing.providers.server import Request

_PATH = re.compile(
    r"/v1(?:alpha|beta1?)?/(?P<vertex>(?:projects/[\w.:-]+/locations/[\w-]+/)?publishers/[\w-]+/)?"
    r"(?P<kind>models|tunedModels)/(?P<model>[\w.@-]+):(?P<verb>streamGenerateContent|generateContent)"
)
_FIELD_WORDS = """
cachedContent contents continuationToken generationConfig labels model safetySettings serviceTier store
systemInstruction toolConfig tools
"""
_FIELDS = frozenset(_FIELD_WORDS.split())
_GENERATION_WORDS = """
audioTimestamp candidateCount enableEnhancedCivicAnswers frequencyPenalty imageConfig logprobs maxOutputTokens
mediaResolution presencePenalty responseJsonSchema responseLogprobs responseMimeType responseModalities
responseSchema seed speechConfig stopSequences temperature thinkingConfig topK topP
"""
_GENERATION = frozenset(_GENERATION_WORDS.split())
_TOOL_WORDS = """
codeExecution computerUse fileSearch functionDeclarations googleMaps googleSearch googleSearchRetrieval retrieval
urlContext
"""
_TOOL = frozenset(_TOOL_WORDS.split())
_DECLARATION = frozenset(
    {"name", "description", "parameters", "parametersJsonSchema", "response", "responseJsonSchema", "behavior"}
)
_CALLING = frozenset({"mode", "allowedFunctionNames", "streamFunctionCallArguments"})
_MODES = ("AUTO", "ANY", "NONE", "VALIDATED")
_LEVELS = ("MINIMAL", "LOW", "MEDIUM", "HIGH", "XHIGH")


class Asked(dict[str, Any]):
    """The body of a request, with what its address says."""

    model: str = ""
    streams: bool = False


def matched(request: Request) -> re.Match[str] | None:
    return _PATH.fullmatch(request.path.partition("?")[0]) if request.method == "POST" else None


def other(request: Request) -> tuple[int, Json]:
    """The answer to a request that asks no model."""
    path = request.path.partition("?")[0]
    if request.method == "GET" and re.fullmatch(r"/v1(?:beta)?/models", path):
        return 200, {"models": [{"name": "models/fake", "displayName": "Fake"}]}
    error = Rejected("Requested entity was not found.", 404)
    return error.status, error.body


def parse(request: Request, api_key: str) -> Asked:
    found = matched(request)
    assert found is not None
    query = parse_qs(request.path.partition("?")[2])
    _authorized(request, query, api_key, is_vertex=bool(found["vertex"]))
    try:
        body = json.loads(request.body)
    except ValueError:
        raise Rejected("Invalid JSON payload received. Expected an object key or }.") from None
    if not isinstance(body, dict):
        raise Rejected("Invalid JSON payload received. Root element must be a message.")
    asked = Asked(body)
    asked.model, asked.streams = found["model"], found["verb"] == "streamGenerateContent"
    if asked.streams and query.get("alt") != ["sse"]:
        raise Rejected("This fake streams events alone: add alt=sse to the address.")
    return asked


def _authorized(request: Request, query: dict[str, list[str]], api_key: str, *, is_vertex: bool) -> None:
    key = request.headers.get("x-goog-api-key") or "".join(query.get("key", []))
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if is_vertex and scheme.lower() == "bearer":
        if token != api_key:
            raise Rejected(
                "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other "
                "valid authentication credential.",
                401,
                details=[info("ACCESS_TOKEN_TYPE_UNSUPPORTED")],
            )
        return
    if not key:
        message = "Method doesn't allow unregistered callers (callers without established identity)."
        raise Rejected(f"{message} Please use API Key or other form of API consumer identity to call this API.", 403)
    if key != api_key:
        raise Rejected("API key not valid. Please pass a valid API key.", details=[info("API_KEY_INVALID")])


_FREE = frozenset({"args", "labels", "parameters", "parametersJsonSchema", "response"})
_FREE |= {"responseJsonSchema", "responseSchema", "partMetadata"}
"""Fields whose value has names of its own."""


def _camel(value: Any) -> Any:
    """The same with all names as Google writes them. It reads both forms, and its SDK mixes them."""
    if isinstance(value, list):
        return [_camel(each) for each in value]
    if not isinstance(value, dict):
        return value
    named = {re.sub(r"_([a-z])", lambda found: found[1].upper(), name): each for name, each in value.items()}
    return {name: each if name in _FREE else _camel(each) for name, each in named.items()}


def check(asked: Asked, extra: Collection[str], memory: Memory) -> None:
    """Raises `Rejected` for the first thing that Gemini would object to."""
    body = Asked(_camel(dict(asked)))
    body.model = asked.model
    _known(body, _FIELDS | set(extra), "")
    contents = body.get("contents")
    if not isinstance(contents, list | None):
        raise wrong("contents", "type.googleapis.com/google.ai.generativelanguage.v1.Content", contents)
    history.check(contents or [], body.model, memory)
    system = body.get("systemInstruction")
    if system is not None:
        _known(_thing(system, "system_instruction"), {"role", "parts"}, "system_instruction")
        for number, part in enumerate(system.get("parts") or [{}]):
            if not _thing(part, f"system_instruction.parts[{number}]").get("text"):
                raise invalid("system_instruction.parts", "contents.parts must not be empty.")
    names = _tools(body)
    _calling(body, names)
    _generation(body, has_tools=bool(names))
    if body.get("cachedContent") and body.keys() & {"systemInstruction", "tools", "toolConfig"}:
        raise Rejected(
            "CachedContent can not be used with GenerateContent request setting system_instruction, tools or "
            "tool_config. Proposed fix: move those values to CachedContent from GenerateContent request."
        )
    token = body.get("continuationToken")
    if token is not None and not memory.goes_on(asked.get("contents"), token):
        raise Rejected("The continuation token is not valid for this request.")


def _tools(body: Json) -> list[str]:
    names: list[str] = []
    for place, tool in enumerate(body.get("tools") or []):
        _known(_thing(tool, f"tools[{place}]"), _TOOL, f"tools[{place}]")
        for number, each in enumerate(tool.get("functionDeclarations") or []):
            where = f"tools[{place}].function_declarations[{number}]"
            _known(_thing(each, where), _DECLARATION, where)
            name = each.get("name")
            if not isinstance(name, str) or not history.NAME.fullmatch(name):
                raise invalid(f"{where}.name", history.BAD_NAME)
            if name in names:
                raise Rejected(f"Duplicate function declaration found: {name}")
            names.append(name)
            if "parameters" in each and "parametersJsonSchema" in each:
                raise invalid(where, "parameters and parameters_json_schema are mutually exclusive.")
            schema = each.get("parametersJsonSchema")
            if schema is not None:
                if _thing(schema, f"{where}.parameters_json_schema").get("type") != "object":
                    raise invalid(f"{where}.parameters_json_schema", "parameters schema should be of type OBJECT.")
                _schema(schema, f"{where}.parameters_json_schema")
    return names


def _calling(body: Json, names: Collection[str]) -> None:
    config = body.get("toolConfig")
    if config is None:
        return
    where = "tool_config"
    _known(_thing(config, where), {"functionCallingConfig", "retrievalConfig"}, where)
    calling = config.get("functionCallingConfig")
    if calling is None:
        return
    where = "tool_config.function_calling_config"
    _known(_thing(calling, where), _CALLING, where)
    if not names:
        raise Rejected("Function calling config is set without function_declarations.")
    if calling.get("mode", "AUTO") not in _MODES:
        raise wrong(f"{where}.mode", "a mode", calling["mode"])
    allowed = calling.get("allowedFunctionNames") or []
    if allowed and calling.get("mode") not in ("ANY", "VALIDATED"):
        raise Rejected("Allowed function names are only allowed in the modes ANY and VALIDATED.")
    for name in allowed:
        if name not in names:
            raise Rejected(f"Allowed function name `{name}` is not declared.")


def _generation(body: Asked, *, has_tools: bool) -> None:
    config = body.get("generationConfig")
    if config is None:
        return
    _known(_thing(config, "generation_config"), _GENERATION, "generation_config")
    for name in ("temperature", "topP", "topK", "presencePenalty", "frequencyPenalty"):
        if not isinstance(config.get(name, 0), int | float):
            raise wrong(f"generation_config.{name}", "TYPE_FLOAT", config[name])
    thinking = _thing(config.get("thinkingConfig", {}), "generation_config.thinking_config")
    where = "generation_config.thinking_config"
    _known(thinking, {"includeThoughts", "thinkingBudget", "thinkingLevel"}, where)
    if thinking.get("thinkingLevel", "LOW").upper() not in _LEVELS:
        raise wrong(f"{where}.thinking_level", "a level", thinking["thinkingLevel"])
    if {"thinkingBudget", "thinkingLevel"} <= thinking.keys():
        raise Rejected("You can only set only one of thinking budget and thinking level.")
    mime = config.get("responseMimeType")
    schemas = config.keys() & {"responseSchema", "responseJsonSchema"}
    if schemas and mime not in ("application/json", "text/x.enum"):
        raise invalid("generation_config.response_schema", "only allowed when response_mime_type is application/json.")
    if mime == "application/json" and has_tools and not history.NEW.search(body.model):
        raise Rejected("Function calling with a response mime type: 'application/json' is unsupported")
    if "responseJsonSchema" in config:
        _schema(config["responseJsonSchema"], "generation_config.response_json_schema")


def _schema(schema: object, where: str) -> None:
    """Nothing but `$…` may stand beside a `$ref`."""
    if isinstance(schema, list):
        for each in schema:
            _schema(each, where)
    elif isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str) and any(not name.startswith("$") for name in schema):
            raise invalid(where, "if $ref is set, no other fields than those starting with $ may be set.")
        for each in schema.values():
            _schema(each, where)


def _known(value: Json, names: Collection[str], where: str) -> None:
    for name in value:
        if name not in names:
            raise unknown(name, where)


def _thing(value: object, where: str) -> Json:
    if not isinstance(value, dict):
        raise wrong(where, "an object", value)
    return value
