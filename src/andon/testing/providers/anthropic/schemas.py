# SPDX-License-Identifier: Apache-2.0
"""Which schemas Anthropic takes for structured output: objects closed, no recursion, no bounds and lengths."""

from __future__ import annotations

from andon.testing.providers.anthropic.errors import Rejected, missing, wrong_type
from andon.testing.providers.api import Json

WHERE = "output_config.format.schema"
_NOT_SUPPORTED = """
dependentSchemas else exclusiveMaximum exclusiveMinimum if maxItems maxLength maximum minLength minimum multipleOf not
oneOf patternProperties prefixItems propertyNames then uniqueItems
"""
_REFUSED = frozenset(_NOT_SUPPORTED.split())


def check_output(form: object) -> None:
    if not isinstance(form, dict):
        raise wrong_type("output_config.format", "dictionary")
    if form.get("type") != "json_schema":
        raise Rejected("output_config.format.type: Input should be 'json_schema'")
    if "schema" not in form:
        raise missing(WHERE)
    schema = form["schema"]
    if not isinstance(schema, dict):
        raise wrong_type(WHERE, "dictionary")
    definitions = schema.get("$defs") or {}
    _check(schema, definitions, ())
    for each in definitions.values():
        _check(each, definitions, ())


def _check(schema: object, definitions: Json, above: tuple[str, ...]) -> None:
    if not isinstance(schema, dict):
        raise wrong_type(WHERE, "dictionary")
    kind = schema.get("type")
    if refused := sorted(_REFUSED & schema.keys()):
        raise Rejected(f"{WHERE}: For '{kind}' type, properties {', '.join(refused)} are not supported")
    if (reference := schema.get("$ref")) is not None:
        name = str(reference).removeprefix("#/$defs/")
        if name not in definitions:
            raise Rejected(f"{WHERE}: Reference '{reference}' can't be resolved")
        if name in above:
            raise Rejected(f"{WHERE}: Circular reference detected in schema definitions: {name}")
        _check(definitions[name], definitions, (*above, name))
        return
    if kind == "object" and schema.get("additionalProperties") is not False:
        raise Rejected(f"{WHERE}: For 'object' type, 'additionalProperties' must be explicitly set to false")
    if kind is None and not schema.keys() & {"anyOf", "allOf", "enum", "const"}:
        raise Rejected(f"{WHERE}: Schema type is required")
    for each in [
        *(schema.get("properties") or {}).values(),
        *(schema.get("anyOf") or []),
        *(schema.get("allOf") or []),
    ]:
        _check(each, definitions, above)
    if "items" in schema:
        _check(schema["items"], definitions, above)
