# SPDX-License-Identifier: Apache-2.0
"""Output by JSON schema: the same verdicts as a complete implementation, and no schema that takes long."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs  # comes with schemathesis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andon.agent.json_schema import JsonSchema
from andon.errors import ConfigurationError, OutputError
from andon.models.openai.schema import strict
from tests.support import asked, make

TRIP = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "minLength": 2},
        "stops": {"type": "array", "items": {"$ref": "#/$defs/stop"}, "minItems": 1},
    },
    "required": ["title", "stops"],
    "additionalProperties": False,
    "$defs": {"stop": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
}
ANSWER = {"title": "North", "stops": [{"city": "Oslo"}]}


def fits(schema: Any, value: Any) -> bool:
    try:
        assert JsonSchema(schema).parse(json.dumps(value)) == value
    except OutputError:
        return False
    return True


# -- the verdict ------------------------------------------------------------------------------------------------------

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 12)
    | st.sampled_from([0.5, 1.0, 2.5])
    | st.sampled_from(["", "a", "ab", "abc"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=6,
)
names = st.sampled_from(["string", "boolean", "null", "array", "object", "number", "integer"])
counts = st.integers(0, 3)
leaves = st.fixed_dictionaries(
    {},
    optional={
        "type": names | st.lists(names, min_size=1, max_size=2, unique=True),
        "enum": st.lists(values, min_size=1, max_size=3),
        "const": values,
        "minimum": st.integers(0, 5),
        "maximum": st.integers(0, 5),
        "exclusiveMinimum": st.integers(0, 5),
        "exclusiveMaximum": st.integers(0, 5),
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        "minLength": counts,
        "maxLength": counts,
        "pattern": st.sampled_from(["^a", "b$", "a.c", "[ab]+"]),
        "minItems": counts,
        "maxItems": counts,
        "uniqueItems": st.booleans(),
        "required": st.lists(st.sampled_from("ab"), unique=True),
        "minProperties": counts,
        "maxProperties": counts,
        "$ref": st.just("#/$defs/d"),
    },
)


def around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
            "additionalProperties": inner,
            "items": inner,
            "prefixItems": several,
            "anyOf": several,
            "oneOf": several,
            "allOf": several,
            "not": inner,
            "type": names,
        },
    )


schemas = st.recursive(leaves | st.booleans(), around, max_leaves=5)


@settings(max_examples=400, deadline=None)
@given(schemas.filter(lambda schema: isinstance(schema, dict)), values)
def test_it_says_what_a_complete_implementation_says(schema: dict[str, Any], value: Any) -> None:
    whole = {**schema, "$defs": {"d": {"type": ["string", "integer", "array"]}}}
    assert fits(whole, value) == jsonschema_rs.Draft202012Validator(whole).is_valid(value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"title": "N", "stops": []}, "title has 1 characters, and needs 2; stops has 0 items, and needs 1"),
        ({"stops": [{}]}, "title is missing; stops.0.city is missing"),
        ({**ANSWER, "more": 1}, "more must not be there"),
        ([], "it is not an object"),
    ],
)
def test_it_says_what_is_wrong(value: Any, words: str) -> None:
    with pytest.raises(OutputError) as caught:
        JsonSchema(TRIP).parse(json.dumps(value))
    assert str(caught.value) == f"the answer does not fit the schema: {words}"
    assert caught.value.text == json.dumps(value)


@pytest.mark.parametrize("text", ["Oslo", "{", "[" * 100_000, '"\\ud800'])
def test_what_is_no_json_is_told_so(text: str) -> None:
    with pytest.raises(OutputError, match="not JSON"):
        JsonSchema(TRIP).parse(text)


def test_a_run_takes_one_and_repairs_the_answer() -> None:
    agent = make('{"title": "North"}', json.dumps(ANSWER))
    schema: Any = JsonSchema(TRIP)
    result = agent.run("go", output_type=schema)
    assert result.output == ANSWER
    assert "stops is missing" in asked(agent)[1].messages[-1].text


def test_what_is_no_object_is_wrapped_for_providers() -> None:
    schema = {"type": "array", "items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"type": "integer"}}}
    form = JsonSchema(schema)
    assert form.spec.schema["properties"]["result"] == {"type": "array", "items": {"$ref": "#/$defs/n"}}
    assert strict(form.spec)["strict"] is True
    assert form.parse('{"result": [1]}') == form.parse("[1]") == form.parse("```\n[1]\n```") == [1]
    with pytest.raises(OutputError):
        form.parse('{"result": ["x"]}')


# -- schemas that are none, or mean harm ------------------------------------------------------------------------------


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ([], "is not an object"),
        ({"type": "text"}, "type is 'text'; use string"),
        ({"type": []}, "type"),
        ({"patternProperties": {}}, "has patternProperties, which is not supported"),
        ({"properties": {"a": {"if": {}}}}, r"\$.properties.a has if"),
        ({"properties": []}, "properties is not an object"),
        ({"properties": {"a": 3}}, r"properties.a is neither"),
        ({"anyOf": []}, "anyOf is not a list"),
        ({"required": [1]}, "required"),
        ({"minLength": -1}, "minLength"),
        ({"minimum": "1"}, "minimum"),
        ({"multipleOf": 0}, "multipleOf"),
        ({"uniqueItems": 1}, "uniqueItems"),
        ({"pattern": "(?=a)"}, "look-around"),
        ({"pattern": "("}, "can't be matched"),
        ({"pattern": 1}, "pattern is not text"),
        ({"$ref": "http://169.254.169.254/"}, r"it may be '#'"),
        ({"$ref": "#/$defs/nowhere"}, "must be there"),
        ({"$ref": 3}, "it may be"),
        ({"items": {"$ref": "#"}}, "only a schema of an object"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, r"\$\.\$defs\.A\.\$ref leads back to itself"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}}, "leads back"),
        ({"$defs": {"A": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/A"}]}}}, r"anyOf\.1\.\$ref leads back"),
        ({"type": "object", "not": {"allOf": [{"$ref": "#"}]}}, r"allOf\.0\.\$ref leads back"),
        (nested(40), "is too much"),
        ({"enum": [], "type": "string"}, "enum"),
        ({"anyOf": [{}] * 6_000}, "is too much"),
    ],
)
def test_what_can_not_be_checked_is_refused(schema: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        JsonSchema(schema)


def test_references_that_double_the_work_are_given_up() -> None:
    """Thirty levels of two references each are a billion checks."""
    defs: dict[str, Any] = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)}
    defs["d30"] = {}
    with pytest.raises(OutputError, match="steps"):
        JsonSchema({"$ref": "#/$defs/d0", "$defs": defs}).parse("1")


def test_a_reference_to_itself_ends() -> None:
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    assert fits(tree, {"next": {"next": {}}})
    assert not fits(tree, {"next": {"next": 1}})


def test_a_pattern_takes_no_longer_than_the_text_is() -> None:
    with pytest.raises(OutputError, match="does not match"):
        JsonSchema({"type": "string", "pattern": "^(a+)+$"}).parse(json.dumps("a" * 50_000 + "!"))
