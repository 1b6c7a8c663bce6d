# SPDX-License-Identifier: Apache-2.0
"""JSON schemas as Gemini takes them: JSON Schema, but with nothing beside a `$ref`, and with `enum` for `const`."""

from __future__ import annotations

from typing import Any

_MAPS = frozenset({"properties", "$defs", "definitions", "patternProperties"})
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_ONE = frozenset({"items", "additionalProperties", "not"})


def as_gemini(schema: Any) -> Any:
    """The schema, changed where Gemini would refuse it or would not understand it."""
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return {key: _changed(key, value) for key, value in schema.items() if key.startswith("$")}
    made = {key: _changed(key, value) for key, value in schema.items()}
    if "const" in made:
        made.setdefault("enum", [made.pop("const")])
    return made


def _changed(key: str, value: Any) -> Any:
    if key in _MAPS and isinstance(value, dict):
        return {name: as_gemini(each) for name, each in value.items()}
    if key in _LISTS and isinstance(value, list):
        return [as_gemini(each) for each in value]
    return as_gemini(value) if key in _ONE else value
