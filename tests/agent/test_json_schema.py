# SPDX-License-Identifier: Apache-2.0
"""Output by JSON schema: the same verdicts as a complete implementation, and no schema that takes long."""

from __future__ import annotations

import json
import time
from typing import Any

import jsonschema_rs  # comes with schemathesis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andon.agent.json_schema import JsonSchema, without_fence
from andon.errors import ConfigurationError, OutputError
from andon.models.openai.schema import strict
from tests.support import HANG, asked, make

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
        ({"enum": list(range(6_000))}, "is too much"),
        ({"anyOf": [{"enum": list(range(2_000))}] * 3}, "is too much"),
        ({"required": ["a"] * 6_000}, "is too much"),
        ({"pattern": r"\w{1000}"}, "shorter patterns"),
        ({"pattern": r"((\w{10}){10}){10}"}, "shorter patterns"),
        ({"pattern": r"\p{L}{300}"}, "shorter patterns"),
        ({"pattern": "a" * 2_000}, "shorter patterns"),
        ({"allOf": [{"pattern": rf"\w{{{number}}}"} for number in range(10, 50)]}, "shorter patterns"),
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


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$", "01234567-89ab-cdef-0123-456789abcdef"),
        (r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2})?$", "2026-11-18T02:03"),
        (r"^[\w.+-]{1,64}@[\w-]+(\.[\w-]+)+$", "ada@example.org"),
        (r"^(?:\+\d{1,3} ?)?(?:\d{1,4}[ -]?){2,6}$", "+47 22 33 44 55"),
    ],
)
def test_patterns_as_people_write_them_are_taken(pattern: str, text: str) -> None:
    assert fits({"type": "string", "pattern": pattern}, text)
    assert not fits({"type": "string", "pattern": pattern}, "?")


def test_truth_is_not_a_list_that_looks_like_it_and_large_numbers_are_exact() -> None:
    assert not fits({"enum": [True]}, ["truth", 1])
    assert not fits({"multipleOf": 3}, 10**50)
    assert fits({"multipleOf": 3}, 3 * 10**50)


def test_a_large_value_is_compared_once_however_often_it_is_asked_for() -> None:
    """Else two thousand alternatives would each go through all of it."""
    schema = {"anyOf": [{"const": number} for number in range(2_000)]}
    with pytest.raises(OutputError, match="fits none of anyOf"):
        JsonSchema(schema).parse(json.dumps(list(range(20_000))))


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("```json\n{}\n```", "{}\n"),
        (" ```\n{}``` ", "{}"),
        ("```JSON \n{}\n```\n", "{}\n"),
        ("{}", "{}"),
        ("```", "```"),
        ("```not a language\n{}\n```", None),
        ("```json {} ```", None),
    ],
)
def test_what_stands_in_a_fence(text: str, bare: str | None) -> None:
    assert without_fence(text) == (text if bare is None else bare)


def test_a_fence_with_nothing_but_line_breaks_behind_it_is_no_work() -> None:
    """A model that goes on and on like that held up the event loop: the work grew with the third power."""
    text = "```json" + "\n" * 5_000
    began = time.monotonic()
    assert without_fence(text) == text
    assert time.monotonic() - began < HANG
