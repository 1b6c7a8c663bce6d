# SPDX-License-Identifier: Apache-2.0
"""JSON schemas as providers want them for structured output: every object closed, every property required.

Only then does a provider guarantee that the answer fits. Not every schema has such a form (a dict with any keys has
none); the model then sends the schema as it is, or as an instruction. The answer is checked by us in either case.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

_DEFINITIONS = ("$defs", "definitions")


class SchemaRules(Struct, frozen=True):
    """What a provider takes in a schema."""

    left_out: frozenset[str]
    """Keywords that it refuses, and that the answer can do without."""
    unsupported: frozenset[str]
    """Keywords that it refuses, and that change the meaning: there is no closed form."""


class _NoClosedFormError(Exception):
    pass


def closed(schema: dict[str, Any], rules: SchemaRules) -> dict[str, Any] | None:
    """The schema with all objects closed, or None if it has no such form."""
    try:
        return _closed(schema, rules)
    except _NoClosedFormError:
        return None


def _closed(schema: Any, rules: SchemaRules) -> dict[str, Any]:
    if not isinstance(schema, dict):
        raise _NoClosedFormError
    if rules.unsupported & schema.keys() or len(schema.get("allOf", ())) > 1:
        raise _NoClosedFormError
    if "$ref" in schema:
        return {"$ref": schema["$ref"]}  # nothing else may be beside it
    made = {key: value for key, value in schema.items() if key not in rules.left_out}
    if "oneOf" in made:
        made["anyOf"] = made.pop("oneOf")
    if "allOf" in made:
        made |= _closed(made.pop("allOf")[0], rules)
    for key in ("properties", "$defs", "definitions"):
        if key in made:
            made[key] = {name: _closed(each, rules) for name, each in made[key].items()}
    if "anyOf" in made:
        made["anyOf"] = [_closed(each, rules) for each in made["anyOf"]]
    if "items" in made:
        made["items"] = _closed(made["items"], rules)
    if made.get("type") == "object":
        if made.get("additionalProperties", False) is not False or "properties" not in made:
            raise _NoClosedFormError
        made |= {"additionalProperties": False, "required": list(made["properties"])}
    elif not made.keys() & {"type", "anyOf", "enum", "const"}:
        raise _NoClosedFormError  # any value at all
    return made


def as_instruction(schema: dict[str, Any]) -> str:
    """What a model is told about the form of its answer, if its provider can't enforce it."""
    return f"Answer with nothing but JSON that fits this JSON schema: {msgspec.json.encode(schema).decode()}"


def is_recursive(schema: dict[str, Any]) -> bool:
    """Whether a definition leads back to itself, or a part refers to the whole schema. Some providers refuse that."""
    definitions = {name: each for key in _DEFINITIONS for name, each in schema.get(key, {}).items()}
    leads = {name: _references(each) for name, each in definitions.items()}
    for start in leads:
        seen: set[str] = set()
        ahead = set(leads[start])
        while ahead:
            name = ahead.pop()
            if name == start:
                return True
            if name not in seen:
                seen.add(name)
                ahead |= leads.get(name, set())
    return "" in _references({key: value for key, value in schema.items() if key not in _DEFINITIONS})


def _references(schema: object) -> set[str]:
    """The names of the definitions that a schema refers to; an empty name for the whole schema."""
    if isinstance(schema, list):
        return {name for each in schema for name in _references(each)}
    if not isinstance(schema, dict):
        return set()
    found = {str(schema["$ref"]).rpartition("/")[2].lstrip("#")} if isinstance(schema.get("$ref"), str) else set()
    return found.union(*(_references(each) for each in schema.values()))
