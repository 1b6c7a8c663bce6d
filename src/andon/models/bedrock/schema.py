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
from andon.models.common.schema import SchemaRules, closed, is_recursive

_BOUNDS = "exclusiveMaximum exclusiveMinimum maxItems maxLength maximum minItems minLength minimum multipleOf pattern"
_RULES = SchemaRules(
    left_out=frozenset({"default", "discriminator", "examples", "format", "title", "uniqueItems", *_BOUNDS.split()}),
    unsupported=frozenset({"prefixItems", "patternProperties", "not", "if", "dependentSchemas", "propertyNames"}),
)
_NOT_IN_A_NAME = r"[^a-zA-Z0-9_-]"


def enforced(output: OutputSpec) -> dict[str, Any] | None:
    """The form as the service enforces it; None if it can't."""
    schema = closed(output.schema, _RULES)
    if schema is None or "$ref" in schema or is_recursive(output.schema):
        return None
    name = re.sub(_NOT_IN_A_NAME, "_", output.name)[:64] or "output"
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    return {"type": "json_schema", "structure": {"jsonSchema": {"name": name, "schema": text}}}
