# SPDX-License-Identifier: Apache-2.0
"""Structured output: a JSON schema that the service enforces, or the same as an instruction.

Not every model can be held to a schema, and not every schema can be enforced. Then the schema becomes an instruction.
A forced call of a tool is not used: models that think refuse it, and with it the model can call no other tool. The
answer is checked by the agent in every case.
"""

from __future__ import annotations

import json
import re
from typing import Any

from andon.models.base import OutputSpec
from andon.models.common.schema import SchemaRules, closed

_BOUNDS = "exclusiveMaximum exclusiveMinimum maxItems maxLength maximum minItems minLength minimum multipleOf pattern"
_RULES = SchemaRules(
    left_out=frozenset({"default", "discriminator", "examples", "format", "title", "uniqueItems", *_BOUNDS.split()}),
    unsupported=frozenset({"prefixItems", "patternProperties", "not", "if", "dependentSchemas", "propertyNames"}),
)
_NOT_IN_A_NAME = r"[^a-zA-Z0-9_-]"


def enforced(output: OutputSpec) -> dict[str, Any] | None:
    """The form as the service enforces it; None if it can't."""
    schema = closed(output.schema, _RULES)
    if schema is None or "$ref" in schema or _refers_to_itself(output.schema):
        return None
    name = re.sub(_NOT_IN_A_NAME, "_", output.name)[:64] or "output"
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    return {"type": "json_schema", "structure": {"jsonSchema": {"name": name, "schema": text}}}


def instruction(output: OutputSpec) -> str:
    """The form as an instruction for the model."""
    text = json.dumps(output.schema, ensure_ascii=False, separators=(",", ":"))
    return f"Your final answer must be a single JSON object and nothing else, valid against this JSON schema: {text}"


def _refers_to_itself(schema: dict[str, Any]) -> bool:
    """Whether a definition leads back to itself, which the service refuses."""
    definitions = {**schema.get("definitions", {}), **schema.get("$defs", {})}
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
    return "" in _references({key: value for key, value in schema.items() if key not in ("$defs", "definitions")})


def _references(schema: object) -> set[str]:
    """The names of the definitions that a schema refers to; empty for the whole schema."""
    if isinstance(schema, list):
        return {name for each in schema for name in _references(each)}
    if not isinstance(schema, dict):
        return set()
    found = {str(schema["$ref"]).rpartition("/")[2].lstrip("#")} if isinstance(schema.get("$ref"), str) else set()
    return found.union(*(_references(each) for each in schema.values()))
