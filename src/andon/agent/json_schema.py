# SPDX-License-Identifier: Apache-2.0
"""An answer that must fit a JSON schema: how clients ask for structured output over HTTP.

The schema comes from a client, so it is checked as closely as the answer. What must stay true: no schema and no answer
can make a check slow. So nothing is fetched, references stay inside the schema, patterns are matched in linear time (by
the engine that pydantic brings), and the number of steps of a check is limited. An unknown keyword is refused: if it
were ignored, the answer might not fit. `format` is a hint for the model, and is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from andon.errors import ConfigurationError, OutputError
from andon.models.base import OutputSpec

RESULT = "result"
"""The field that holds an answer which is no object: providers want an object."""

MAX_DEPTH = 32
MAX_PARTS = 5_000
"""How many parts a schema may have. Each value of an enum and each required name is a part too."""
MAX_STEPS = 100_000
"""How many parts of a schema and of an answer one check may visit. Each reference may double the work."""
MAX_PATTERN = 1_000
MAX_WEIGHT = 5_000
"""The largest total weight of a schema's patterns. Compiling \\w{100}, whose weight is 2,000, takes 60 ms."""
_HEAVY = 20
"""The weight of a class of characters, which stands for thousands; a letter has the weight 1."""
_TOKEN = re.compile(r"\\[pP]\{[^}]*\}|\\.|\[(?:\\.|[^\]\\])*\]|\{(\d+)(?:,(\d*))?\}|.", re.DOTALL)

_INSIDE = r"#(/(\$defs|definitions)/([^/~%]+))?"

_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: (
        not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))
    ),
}
_ONE = frozenset({"items", "additionalProperties", "not"})
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_NAMED = frozenset({"properties", "$defs", "definitions"})
_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_COUNTS = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"})
_REST = frozenset({"type", "enum", "const", "required", "pattern", "uniqueItems", "$ref"})
_NOTES = frozenset(
    {"title", "description", "default", "examples", "format", "$schema", "$id", "$comment", "deprecated", "readOnly"}
    | {"writeOnly", "discriminator"}
)
_KNOWN = _ONE | _LISTS | _NAMED | _NUMBERS | _COUNTS | _REST | _NOTES


class JsonSchema:
    """The form of an answer, as a JSON schema. Raises `ConfigurationError` for one that can't be checked."""

    __slots__ = ("_patterns", "_weight", "_wrapped", "kept", "spec")

    def __init__(self, schema: Any, name: str = "answer") -> None:
        self._patterns: dict[str, Any] = {}
        self._weight = 0
        self.kept: dict[str, Any] = schema
        self._check_schema(schema)
        self._wrapped = schema.get("type") != "object"
        self.spec = OutputSpec(name, _wrap(schema) if self._wrapped else schema)

    def parse(self, text: str) -> Any:
        bare = without_fence(text)
        try:
            value = msgspec.json.decode(bare)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise OutputError(f"the answer is not JSON: {error}", text=text) from None
        if self._wrapped and isinstance(value, dict) and value.keys() == {RESULT} and not self._problems(value[RESULT]):
            return value[RESULT]
        if problems := self._problems(value):
            raise OutputError(f"the answer does not fit the schema: {'; '.join(problems)}", text=text)
        return value

    def dump(self, value: Any) -> Any:
        return value

    # -- the schema ---------------------------------------------------------------------------------------------------

    def _check_schema(self, root: Any) -> None:
        """Raise if it is no schema, or has a part that is not understood."""
        if not isinstance(root, dict):
            raise _no_schema("$", "is not an object")
        defined = {f"#/{key}/{name}" for key in ("$defs", "definitions") for name in _dict_of(root.get(key))}
        todo: list[tuple[Any, str, int]] = [(root, "$", 0)]
        references: dict[int, tuple[dict[str, Any], str]] = {}
        count = 0
        for schema, place, depth in _growing(todo):
            count += 1 + (_listed(schema) if isinstance(schema, dict) else 0)
            if depth > MAX_DEPTH or count > MAX_PARTS:
                raise _no_schema(place, f"is too much: {MAX_DEPTH} levels and {MAX_PARTS:,} parts are the most")
            if isinstance(schema, bool):
                continue
            if not isinstance(schema, dict):
                raise _no_schema(place, "is neither an object nor a truth value")
            if unknown := sorted(str(key) for key in schema.keys() - _KNOWN):
                raise _no_schema(place, f"has {', '.join(unknown)}, which is not supported here")
            for key, value in schema.items():
                problem = self._wrong_keyword(key, value)
                if problem is None and key == "$ref":
                    problem = _wrong_reference(value, root, defined)
                if problem is not None:
                    raise _no_schema(f"{place}.{key}", problem)
                todo += [(each, f"{place}.{key}{at}", depth + 1) for at, each in _parts(key, value)]
            if "$ref" in schema:
                references[id(schema)] = schema, f"{place}.$ref"
        if (found := _first_endless(root, references)) is not None:
            raise _no_schema(found, "leads back to itself, with no field and no item between: no answer can be checked")

    def _wrong_keyword(self, key: str, value: Any) -> str | None:
        problem = None
        if key == "type":
            names = value if isinstance(value, list) else [value]
            if not names or not all(isinstance(name, str) and name in _TYPES for name in names):
                problem = f"is {value!r}; use {', '.join(_TYPES)}, or a list of these"
        elif key in _LISTS or key in ("enum", "required"):
            least = 0 if key == "required" else 1
            if not isinstance(value, list) or len(value) < least:
                problem = "is not a list, or is empty"
            elif key == "required" and not all(isinstance(name, str) for name in value):
                problem = "has something that is not a name"
        elif key in _NAMED:
            problem = None if isinstance(value, dict) else "is not an object"
        elif key in _NUMBERS:
            if not _TYPES["number"](value) or (key == "multipleOf" and value <= 0):
                problem = f"is {value!r}; it is a number" + (" above 0" if key == "multipleOf" else "")
        elif key in _COUNTS:
            problem = None if _TYPES["integer"](value) and value >= 0 else f"is {value!r}; it is a whole number"
        elif key == "pattern":
            problem = self._wrong_pattern(value)
        elif key == "uniqueItems":
            problem = None if isinstance(value, bool) else "is neither true nor false"
        return problem

    def _wrong_pattern(self, pattern: Any) -> str | None:
        from pydantic_core import SchemaError, SchemaValidator, core_schema

        if not isinstance(pattern, str):
            return "is not text"
        if pattern in self._patterns:
            return None
        if len(pattern) <= MAX_PATTERN:
            self._weight += _HEAVY + _weight(pattern)
        if len(pattern) > MAX_PATTERN or self._weight > MAX_WEIGHT:
            return "is too much: use shorter patterns, fewer of them, or smaller numbers of repetitions"
        try:
            self._patterns[pattern] = SchemaValidator(core_schema.str_schema(pattern=pattern))
        except SchemaError:
            return f"is {pattern[:80]!r}, which can't be matched here: patterns have no look-around and no references"
        return None

    # -- an answer ----------------------------------------------------------------------------------------------------

    def _problems(self, value: Any) -> list[str]:
        """What is wrong with an answer; the first three."""
        try:
            found = _Check(self.kept, self._patterns).problems(value, self.kept, "")
            return [f"{place or 'it'} {what}" for (place, what), _ in zip(found, range(3), strict=False)]
        except _TooMuchError:
            return [f"it takes more than {MAX_STEPS:,} steps to check it"]
        except RecursionError:
            return ["it is nested too deeply"]


class _TooMuchError(Exception):
    pass


class _Check:
    """The check of one answer."""

    __slots__ = ("_patterns", "_plains", "_root", "_sets", "_steps")

    def __init__(self, root: dict[str, Any], patterns: Mapping[str, Any]) -> None:
        self._root, self._patterns, self._steps = root, patterns, 0
        # By their ids, as long as the check lasts: a large value may be compared many times.
        self._plains: dict[int, Any] = {}
        self._sets: dict[int, frozenset[Any]] = {}

    def _step(self, count: int = 1) -> None:
        self._steps += count
        if self._steps > MAX_STEPS:
            raise _TooMuchError

    def _plain(self, value: Any) -> Any:
        """A key that is equal for equal JSON values: 1 equals 1.0, but not true."""
        if isinstance(value, bool):
            return _TRUE if value else _FALSE
        if not isinstance(value, list | dict):
            return value
        if id(value) not in self._plains:
            self._step(1 + len(value))
            self._plains[id(value)] = (
                tuple(map(self._plain, value))
                if isinstance(value, list)
                else frozenset((name, self._plain(each)) for name, each in value.items())
            )
        return self._plains[id(value)]

    def _plain_set(self, values: list[Any]) -> frozenset[Any]:
        if id(values) not in self._sets:
            self._step(len(values))
            self._sets[id(values)] = frozenset(map(self._plain, values))
        return self._sets[id(values)]

    def problems(self, value: Any, schema: Any, place: str) -> Iterator[tuple[str, str]]:
        self._step()
        if schema is True:
            return
        if schema is False:
            yield place, "must not be there"
            return
        if (reference := schema.get("$ref")) is not None:
            yield from self.problems(value, _find(self._root, reference), place)
        if (kinds := schema.get("type")) is not None:
            names = kinds if isinstance(kinds, list) else [kinds]
            if not any(_TYPES[name](value) for name in names):
                yield place, f"is not {' or '.join(map(with_article, names))}"
                return  # the other keywords are about values of the right type
        yield from self._values(value, schema, place)
        yield from self._combined(value, schema, place)
        if isinstance(value, dict):
            yield from self._object(value, schema, place)
        elif isinstance(value, list):
            yield from self._array(value, schema, place)

    def _values(self, value: Any, schema: dict[str, Any], place: str) -> Iterator[tuple[str, str]]:
        if "enum" in schema and self._plain(value) not in self._plain_set(schema["enum"]):
            yield place, f"is none of {_json(schema['enum'])}"
        if "const" in schema and self._plain(value) != self._plain(schema["const"]):
            yield place, f"is not {_json(schema['const'])}"
        if _TYPES["number"](value):
            for keyword, (wrong, words) in _BOUNDS.items():
                if keyword in schema and wrong(value, schema[keyword]):
                    yield place, f"{words} {schema[keyword]}"
        elif isinstance(value, str):
            yield from _size(len(value), schema, "Length", "characters", place)
            pattern = schema.get("pattern")
            if pattern is not None and not self._patterns[pattern].isinstance_python(value):
                yield place, f"does not match {pattern!r}"

    def _combined(self, value: Any, schema: dict[str, Any], place: str) -> Iterator[tuple[str, str]]:
        for each in schema.get("allOf", ()):
            yield from self.problems(value, each, place)
        if "anyOf" in schema and not any(self._fits(value, each) for each in schema["anyOf"]):
            yield place, "fits none of anyOf"
        if "oneOf" in schema and (fitting := sum(self._fits(value, each) for each in schema["oneOf"])) != 1:
            yield place, f"fits {fitting} of oneOf, and must fit one"
        if "not" in schema and self._fits(value, schema["not"]):
            yield place, "fits what it must not"

    def _fits(self, value: Any, schema: Any) -> bool:
        return next(self.problems(value, schema, ""), None) is None

    def _object(self, value: dict[str, Any], schema: dict[str, Any], place: str) -> Iterator[tuple[str, str]]:
        yield from _size(len(value), schema, "Properties", "fields", place)
        required = schema.get("required", ())
        self._step(len(required))
        for name in required:
            if name not in value:
                yield _at(place, name), "is missing"
        known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        for name, each in value.items():
            yield from self.problems(each, known.get(name, others), _at(place, name))

    def _array(self, value: list[Any], schema: dict[str, Any], place: str) -> Iterator[tuple[str, str]]:
        yield from _size(len(value), schema, "Items", "items", place)
        if schema.get("uniqueItems") and len(self._plain_set(value)) < len(value):
            yield place, "has an item twice"
        first, others = schema.get("prefixItems", ()), schema.get("items", True)
        for number, each in enumerate(value):
            wanted = first[number] if number < len(first) else others
            yield from self.problems(each, wanted, _at(place, number))


def without_fence(text: str) -> str:
    """The JSON itself, if the model has put it into a fenced block, as many do."""
    first, _, rest = text.strip().partition("\n")
    language = first.removeprefix("```").strip()
    is_fenced = first.startswith("```") and rest.endswith("```") and (not language or language.isalpha())
    return rest.removesuffix("```") if is_fenced else text


def with_article(kind: str) -> str:
    """`a string`, `an array`, `null`."""
    return kind if kind == "null" else f"{'an' if kind[:1].lower() in tuple('aeiou') else 'a'} {kind}"


def _wrap(schema: dict[str, Any]) -> dict[str, Any]:
    """An object with the value as its only field. The targets of references stay at the root."""
    shared: dict[str, Any] = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    inner = {key: value for key, value in schema.items() if key not in shared and key != "$schema"}
    return {
        "type": "object",
        "properties": {RESULT: inner},
        "required": [RESULT],
        "additionalProperties": False,
        **shared,
    }


def _wrong_reference(reference: Any, root: dict[str, Any], defined: set[str]) -> str | None:
    found = re.fullmatch(_INSIDE, reference) if isinstance(reference, str) else None
    if found is None or (found[1] and reference not in defined):
        return f"is {reference!r}; it may be '#' or '#/$defs/…', and what it names must be there"
    if reference == "#" and root.get("type") != "object":
        return "is '#', which only a schema of an object may have: move it to $defs"
    return None


def _first_endless(root: dict[str, Any], references: dict[int, tuple[dict[str, Any], str]]) -> str | None:
    """The place of a reference that leads to itself for the same value; None if there is none."""
    done: set[int] = set()  # schemas from which every path ends
    for start, _ in references.values():
        way: dict[int, Iterator[Any]] = {id(start): _same_value(root, start)}
        while way:
            current, leads = next(reversed(way.items()))
            following = next((each for each in leads if isinstance(each, dict) and id(each) not in done), None)
            if following is None:
                del way[current]
                done.add(current)
            elif id(following) in way:
                circle = list(way)[list(way).index(id(following)) :]
                return next(references[each][1] for each in circle if each in references)
            else:
                way[id(following)] = _same_value(root, following)
    return None


def _same_value(root: dict[str, Any], schema: dict[str, Any]) -> Iterator[Any]:
    """The schemas that the same value is checked against, and not one of its fields or items."""
    if "$ref" in schema:
        yield _find(root, schema["$ref"])
    for key in ("allOf", "anyOf", "oneOf"):
        yield from schema.get(key, ())
    if "not" in schema:
        yield schema["not"]


def _find(root: dict[str, Any], reference: str) -> Any:
    schema: Any = root
    for name in reference.split("/")[1:]:
        schema = schema[name]
    return schema


def _parts(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The schemas inside a keyword's value, each with its place."""
    if key in _ONE:
        yield "", value
    elif key in _LISTS:
        yield from ((f".{number}", each) for number, each in enumerate(value))
    elif key in _NAMED:
        yield from ((f".{name}", each) for name, each in value.items())


def _listed(schema: dict[str, Any]) -> int:
    """How many values and names it lists."""
    return sum(len(each) for key in ("enum", "required") if isinstance(each := schema.get(key), list))


def _growing(todo: list[Any]) -> Iterator[Any]:
    while todo:
        yield todo.pop()


def _dict_of(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _size(size: int, schema: dict[str, Any], what: str, unit: str, place: str) -> Iterator[tuple[str, str]]:
    if size < schema.get(f"min{what}", 0):
        yield place, f"has {size} {unit}, and needs {schema[f'min{what}']}"
    if size > schema.get(f"max{what}", size):
        yield place, f"has {size} {unit}, and may have {schema[f'max{what}']}"


def _is_no_multiple(value: Any, of: Any) -> bool:
    if isinstance(value, int) and isinstance(of, int):
        return value % of != 0
    try:
        return Decimal(str(value)) % Decimal(str(of)) != 0
    except InvalidOperation:  # too many digits for this check
        return False


_BOUNDS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "minimum": (lambda value, bound: value < bound, "is less than"),
    "maximum": (lambda value, bound: value > bound, "is more than"),
    "exclusiveMinimum": (lambda value, bound: value <= bound, "is not more than"),
    "exclusiveMaximum": (lambda value, bound: value >= bound, "is not less than"),
    "multipleOf": (_is_no_multiple, "is not a multiple of"),
}


_TRUE, _FALSE = object(), object()


def _weight(pattern: str) -> int:
    """Roughly the work to compile it: a repeated part counts as often as it may be repeated."""
    groups, last = [0], 0
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        if text == "(":
            groups.append(0)
            continue
        if text == ")" and len(groups) > 1:
            last = groups.pop()
        elif token[1] is not None:
            last *= min(max(int(token[2] or token[1]), 1), MAX_WEIGHT) - 1
        else:
            last = _HEAVY if re.search(r"\\[a-zA-Z]", text) else 1
        groups[-1] += last
    return sum(groups)


def _at(place: str, name: str | int) -> str:
    return f"{place}.{name}" if place else str(name)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()[:200]


def _no_schema(place: str, what: str) -> ConfigurationError:
    return ConfigurationError(f"output_schema: {place} {what}")
