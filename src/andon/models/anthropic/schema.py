# SPDX-License-Identifier: Apache-2.0
"""JSON schemas as Anthropic takes them: all objects closed, without bounds and lengths, and not recursive."""

from __future__ import annotations

from typing import Any

from andon.models.common.schema import SchemaRules, closed, is_recursive

_LEFT_OUT = """
default discriminator examples exclusiveMaximum exclusiveMinimum format maximum maxItems maxLength minimum minItems
minLength multipleOf pattern uniqueItems
"""
_UNSUPPORTED = """
contains dependentRequired dependentSchemas if not patternProperties prefixItems propertyNames unevaluatedProperties
"""
_RULES = SchemaRules(left_out=frozenset(_LEFT_OUT.split()), unsupported=frozenset(_UNSUPPORTED.split()))


def enforceable(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The schema as the provider can enforce it, or None if it can't."""
    return None if is_recursive(schema) else closed(schema, _RULES)
