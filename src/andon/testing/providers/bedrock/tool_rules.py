# SPDX-License-Identifier: Apache-2.0
"""What Converse rejects in tools, and in the form that an answer must have."""

from __future__ import annotations

import json
import re
from typing import Any

from andon.testing.providers.api import Json
from andon.testing.providers.bedrock import history_rules
from andon.testing.providers.bedrock.errors import Rejected, listed, malformed, one_of, string, thing

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SPEC = frozenset({"name", "description", "inputSchema", "strict"})
_REFUSED = frozenset({"minLength", "maxLength", "minimum", "maximum", "multipleOf", "oneOf", "prefixItems"})
_OLD_CLAUDE = re.compile(r"claude-(?:v\d|instant|3|(?:sonnet|opus)-4-(?:\d{8}|1-))")


def check(body: Json) -> None:
    config = body.get("toolConfig")
    names: set[str] = set()
    if config is not None:
        thing(config, "toolConfig", frozenset({"tools", "toolChoice"}))
        for number, tool in enumerate(listed(config.get("tools"), "toolConfig.tools", least=1)):
            names |= _tool(tool, f"toolConfig.tools.{number}", names)
        _choice(config.get("toolChoice"), names)
    _output(body)


def _tool(tool: Json, where: str, before: set[str]) -> set[str]:
    kind, value = one_of(tool, where, frozenset({"toolSpec", "systemTool", "cachePoint"}))
    if kind == "cachePoint":
        history_rules.cache_point(value, f"{where}.cachePoint")
    if kind != "toolSpec":
        return set()
    spec = thing(value, f"{where}.toolSpec", _SPEC, frozenset({"name", "inputSchema"}))
    name = string(spec["name"], f"{where}.toolSpec.name")
    if not NAME.fullmatch(name):
        raise malformed(f"{where}.toolSpec.name", f"Member must satisfy regular expression pattern: {NAME.pattern}")
    if name in before:
        raise Rejected(f"The tool name {name} is already defined.")
    if "description" in spec and not string(spec["description"], f"{where}.toolSpec.description"):
        raise malformed(f"{where}.toolSpec.description", "Member must have length greater than or equal to 1")
    _, schema = one_of(spec["inputSchema"], f"{where}.toolSpec.inputSchema", frozenset({"json"}))
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise Rejected(f"The value at {where}.toolSpec.inputSchema.json.type must be one of the following: object.")
    return {name}


def _choice(choice: Any, names: set[str]) -> None:
    if choice is None:
        return
    kind, value = one_of(choice, "toolConfig.toolChoice", frozenset({"auto", "any", "tool"}))
    if kind == "tool":
        wanted = thing(value, "toolConfig.toolChoice.tool", frozenset({"name"}), frozenset({"name"}))["name"]
        if wanted not in names:
            raise Rejected(f"The tool choice {wanted} is not one of the tools that were provided.")


def _output(body: Json) -> None:
    config = thing(body.get("outputConfig") or {}, "outputConfig", frozenset({"textFormat", "effort"}))
    shape = config.get("textFormat")
    if shape is None:
        return
    where = "outputConfig.textFormat"
    thing(shape, where, frozenset({"type", "structure"}), frozenset({"type", "structure"}))
    if history_rules.is_of(body, "amazon", "meta", "cohere", "ai21") or _OLD_CLAUDE.search(body["modelId"]):
        raise Rejected("This model doesn't support the outputConfig.textFormat field. Remove it and try again.")
    if shape["type"] != "json_schema":
        raise malformed(f"{where}.type", "Member must satisfy enum value set: [json_schema]")
    _, form = one_of(shape["structure"], f"{where}.structure", frozenset({"jsonSchema"}))
    thing(form, f"{where}.structure.jsonSchema", frozenset({"schema", "name", "description"}), frozenset({"schema"}))
    try:
        schema = json.loads(string(form["schema"], f"{where}.structure.jsonSchema.schema"))
    except ValueError:
        raise Rejected("The provided JSON schema is not valid JSON.") from None
    _closed(schema, "schema")


def _closed(schema: Any, where: str) -> None:
    """Every object is closed, and there is nothing that the service can't enforce."""
    if not isinstance(schema, dict):
        return
    if refused := sorted(_REFUSED & schema.keys()):
        raise Rejected(f"{where}: For '{schema.get('type')}' type, property '{refused[0]}' is not supported")
    if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
        raise Rejected(f"{where}: For 'object' type, 'additionalProperties' must be explicitly set to false")
    for key in ("properties", "$defs"):
        for name, each in (schema.get(key) or {}).items():
            _closed(each, f"{where}.{key}.{name}")
    _closed(schema.get("items"), f"{where}.items")
    for number, each in enumerate(schema.get("anyOf") or []):
        _closed(each, f"{where}.anyOf.{number}")
