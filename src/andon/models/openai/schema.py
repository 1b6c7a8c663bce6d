# SPDX-License-Identifier: Apache-2.0
"""JSON schemas as OpenAI takes them: in strict mode where the schema allows it, as they are otherwise."""

from __future__ import annotations

import re
from typing import Any

from andon.models.base import OutputSpec
from andon.models.common.schema import SchemaRules, closed

_NOT_IN_A_NAME = r"[^a-zA-Z0-9_-]"
_RULES = SchemaRules(
    left_out=frozenset({"default", "discriminator", "examples", "minLength", "maxLength", "uniqueItems"}),
    unsupported=frozenset({"prefixItems", "patternProperties", "not", "if", "dependentSchemas", "propertyNames"}),
)


def strict(output: OutputSpec) -> dict[str, Any]:
    """The name, the schema, and whether it is strict, as both interfaces take them."""
    name = re.sub(_NOT_IN_A_NAME, "_", output.name)[:64] or "output"
    schema = closed(output.schema, _RULES)
    if schema is None:
        return {"name": name, "schema": output.schema, "strict": False}
    return {"name": name, "schema": schema, "strict": True}
