# SPDX-License-Identifier: Apache-2.0
"""JSON schemas as Anthropic takes them: all objects closed, without bounds and lengths, and not recursive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from andon.models.common.schema import SchemaRules, closed

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
    return None if _is_recursive(schema) else closed(schema, _RULES)


def _is_recursive(schema: dict[str, Any]) -> bool:
    """Whether a definition leads back to itself. A reference that is not to a definition counts as well."""
    definitions = schema.get("$defs", {})
    leads_to = {f"#/$defs/{name}": set(_references(each)) for name, each in definitions.items()}
    done: set[str] = set()

    def leads_back(name: str, above: frozenset[str]) -> bool:
        if name in above or name not in leads_to:
            return True
        if name in done:
            return False
        done.add(name)
        return any(leads_back(each, above | {name}) for each in leads_to[name])

    return any(leads_back(each, frozenset()) for each in _references(schema))


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for each in schema:
            yield from _references(each)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            if key == "$ref" and isinstance(value, str):
                yield value
            else:
                yield from _references(value)
