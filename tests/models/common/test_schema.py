# SPDX-License-Identifier: Apache-2.0
"""JSON schemas with every object closed; and those that have no such form."""

from __future__ import annotations

from typing import Any

import pytest

from andon.models.common.schema import SchemaRules, as_instruction, closed, is_recursive

RULES = SchemaRules(left_out=frozenset({"default", "maxLength"}), unsupported=frozenset({"not"}))
TEXT = {"type": "string"}


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def closed_object(**properties: Any) -> dict[str, Any]:
    return an_object(**properties) | {"additionalProperties": False, "required": list(properties)}


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        (an_object(a=TEXT, b=TEXT), closed_object(a=TEXT, b=TEXT)),
        (an_object(a=TEXT | {"default": "", "maxLength": 3}), closed_object(a=TEXT)),
        (an_object(a=an_object(b=TEXT)), closed_object(a=closed_object(b=TEXT))),
        ({"oneOf": [TEXT, an_object(a=TEXT)]}, {"anyOf": [TEXT, closed_object(a=TEXT)]}),
        ({"allOf": [an_object(a=TEXT)]}, closed_object(a=TEXT)),
        ({"type": "array", "items": an_object()}, {"type": "array", "items": closed_object()}),
        ({"$ref": "#/$defs/A", "title": "A"}, {"$ref": "#/$defs/A"}),
        ({"enum": [1]}, {"enum": [1]}),
        (an_object() | {"$defs": {"A": an_object(a=TEXT)}}, closed_object() | {"$defs": {"A": closed_object(a=TEXT)}}),
    ],
)
def test_every_object_is_closed(schema: dict[str, Any], made: dict[str, Any]) -> None:
    before = repr(schema)
    assert closed(schema, RULES) == made
    assert repr(schema) == before, "the caller's schema was changed"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "additionalProperties": TEXT},
        an_object() | {"additionalProperties": True},
        {"type": "string", "not": {"const": ""}},
        {"allOf": [an_object(), an_object()]},
        {"type": "array", "items": {}},
        {"type": "array", "items": True},
    ],
)
def test_what_has_no_closed_form(schema: dict[str, Any]) -> None:
    assert closed(schema, RULES) is None
    assert closed(an_object(inner=schema), RULES) is None


A = {"$ref": "#/$defs/A"}


@pytest.mark.parametrize(
    ("schema", "recursive"),
    [
        (an_object(a=TEXT), False),
        (an_object(a=A) | {"$defs": {"A": TEXT}}, False),
        (an_object(a=A, b=A) | {"$defs": {"A": TEXT}}, False),
        (an_object(a=A) | {"$defs": {"A": an_object(more=A)}}, True),
        (an_object(a=A) | {"$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"anyOf": [A, TEXT]}}}, True),
        (an_object(a=A) | {"definitions": {"A": {"type": "array", "items": A}}}, True),
        (an_object(a={"$ref": "#"}), True),
    ],
)
def test_what_leads_back_to_itself(schema: dict[str, Any], recursive: bool) -> None:
    assert is_recursive(schema) is recursive


def test_a_schema_as_an_instruction() -> None:
    assert as_instruction({"type": "string"}).endswith('this JSON schema: {"type":"string"}')
