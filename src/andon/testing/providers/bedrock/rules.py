# SPDX-License-Identifier: Apache-2.0
"""What Converse rejects. A check returns nothing or raises `Rejected`, which is sent as it is.

What must stay true: a check reads the request as it came over the wire, and never changes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from andon.testing.providers.api import Json
from andon.testing.providers.bedrock import history_rules, tool_rules
from andon.testing.providers.bedrock.errors import Rejected, listed, malformed, one_of, string, thing
from andon.testing.providers.bedrock.memory import Memory

_FIELDS = """
modelId messages system inferenceConfig toolConfig guardrailConfig additionalModelRequestFields promptVariables
additionalModelResponseFieldPaths requestMetadata performanceConfig serviceTier outputConfig
"""
FIELDS = frozenset(_FIELDS.split())
_GUARDRAIL = frozenset({"guardrailIdentifier", "guardrailVersion", "trace", "streamProcessingMode"})
_MODEL = re.compile(r"[a-zA-Z0-9_.:/-]{1,2048}")
_METADATA = re.compile(r"[a-zA-Z0-9\s:_@$#=/+,.-]{0,256}")
_SIGNED = re.compile(r"AWS4-HMAC-SHA256 Credential=([^/]+)/\d{8}/[a-z0-9-]+/bedrock/aws4_request, SignedHeaders=")
MOST_CACHE_POINTS = 4

# No text of a refused request is quoted by the service, so none is here.
_LATENCY = ("standard", "optimized")
_TIERS = ("priority", "default", "flex", "reserved")


def authorized(headers: Mapping[str, str], api_key: str, access_key_id: str) -> None:
    given = headers.get("authorization", "")
    scheme, _, key = given.partition(" ")
    if scheme == "Bearer":
        if key != api_key:
            message = "Authentication failed: Please make sure your API Key is valid."
            raise Rejected(message, code="AccessDeniedException", status=403)
    elif (signed := _SIGNED.match(given)) is None:
        raise Rejected("Missing Authentication Token", code="MissingAuthenticationTokenException", status=403)
    elif signed[1] != access_key_id:
        message = "The security token included in the request is invalid."
        raise Rejected(message, code="UnrecognizedClientException", status=403)


def parsed(body: bytes) -> Json:
    try:
        value = json.loads(body)
    except ValueError:
        raise Rejected("The request body is not valid JSON.", code="SerializationException") from None
    if not isinstance(value, dict):
        raise Rejected("The request body is not a JSON object.", code="SerializationException")
    return value


def check(body: Json, memory: Memory) -> None:
    """Raises `Rejected` for the first thing that Bedrock would object to."""
    thing(body, "request", FIELDS)
    if not _MODEL.fullmatch(body["modelId"]):
        raise Rejected("The provided model identifier is invalid.")
    _inference(body)
    _system(body)
    _small_ones(body)
    tool_rules.check(body)
    history_rules.check(body, memory)
    _cache_points(body)


def _inference(body: Json) -> None:
    where = "inferenceConfig"
    config = thing(body.get(where) or {}, where, frozenset({"maxTokens", "temperature", "topP", "stopSequences"}))
    most = config.get("maxTokens")
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
        raise malformed(f"{where}.maxTokens", "Member must have value greater than or equal to 1")
    for name in ("temperature", "topP"):
        value = config.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1):
            raise malformed(f"{where}.{name}", "Member must have value between 0 and 1")
    for each in listed(config.get("stopSequences") or [], f"{where}.stopSequences"):
        if not string(each, f"{where}.stopSequences"):
            raise malformed(f"{where}.stopSequences", "Member must have length greater than or equal to 1")


def _system(body: Json) -> None:
    for number, block in enumerate(listed(body.get("system") or [], "system")):
        kind, value = one_of(block, f"system.{number}", frozenset({"text", "guardContent", "cachePoint"}))
        if kind == "text" and not string(value, f"system.{number}.text").strip():
            raise Rejected(
                f"The text field in the SystemContentBlock object at system.{number} is blank. Add text to the text "
                "field, and try again."
            )
        if kind == "cachePoint":
            history_rules.cache_point(value, f"system.{number}.cachePoint")


def _small_ones(body: Json) -> None:
    guardrail = thing(body.get("guardrailConfig") or {}, "guardrailConfig", _GUARDRAIL)
    if guardrail and not (guardrail.get("guardrailIdentifier") and guardrail.get("guardrailVersion")):
        raise Rejected("Both the guardrail identifier and its version must be provided.")
    latency = thing(body.get("performanceConfig") or {}, "performanceConfig", frozenset({"latency"})).get("latency")
    if latency is not None and latency not in _LATENCY:
        raise malformed("performanceConfig.latency", f"Member must satisfy enum value set: {list(_LATENCY)}")
    tier = thing(body.get("serviceTier") or {}, "serviceTier", frozenset({"type"})).get("type")
    if tier is not None and tier not in _TIERS:
        raise malformed("serviceTier.type", f"Member must satisfy enum value set: {list(_TIERS)}")
    metadata = body.get("requestMetadata")
    if metadata is not None:
        if not isinstance(metadata, dict) or not 1 <= len(metadata) <= 16:
            raise malformed("requestMetadata", "Map must have 1 to 16 entries")
        for value in metadata.values():
            if not _METADATA.fullmatch(string(value, "requestMetadata")):
                raise malformed(
                    "requestMetadata", f"Member must satisfy regular expression pattern: {_METADATA.pattern}"
                )
    more = body.get("additionalModelRequestFields")
    if more is not None and not isinstance(more, dict):
        raise malformed("additionalModelRequestFields", "Member must be an object")


def _cache_points(body: Json) -> None:
    contents = [body.get("system") or [], (body.get("toolConfig") or {}).get("tools") or []]
    contents += [message["content"] for message in body["messages"]]
    points = sum("cachePoint" in block for content in contents for block in content)
    if points and not history_rules.is_of(body, "anthropic", "amazon"):
        raise Rejected("You invoked an unsupported model or your request did not allow prompt caching.")
    if points > MOST_CACHE_POINTS:
        raise Rejected(f"A maximum of {MOST_CACHE_POINTS} cache points may be provided. Found {points}.")
