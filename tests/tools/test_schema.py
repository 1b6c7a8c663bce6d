# SPDX-License-Identifier: Apache-2.0
"""What the model is shown of a function, and how its arguments are checked. Annotations are strings here."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import BaseModel, Field, field_validator

from andon.errors import BadArgumentsError, ToolDefinitionError
from andon.tools import base
from andon.tools.base import ToolContext as Context
from andon.tools.function import FunctionTool, tool
from andon.tools.schema import PROBLEMS_SHOWN, parse_docstring

if TYPE_CHECKING:
    from decimal import Decimal

    from andon.tools.base import ToolContext


class Unit(enum.Enum):
    metric = "metric"
    imperial = "imperial"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Place(BaseModel):
    """Where it is."""

    title: str
    at: Point | None = None


@tool
def weather(
    place: Place, units: Unit = Unit.metric, days: Annotated[int, Field(ge=1, description="Ahead.")] = 3
) -> str:
    """The weather.

    It is never wrong.

    Args:
        place: Where to look,
            or a place near it.
        days (int): Not shown, since the annotation says it.
        nothing: Of the kind.

    Returns:
        A sentence.

    Raises:
        ValueError: Never.

    Example:
        weather("Oslo")
    """
    return f"{place} {units} {days}"


# -- the schema ------------------------------------------------------------------------------------------------------


def test_the_schema_says_all_that_the_signature_and_the_docstring_say() -> None:
    assert weather.parameters == {
        "type": "object",
        "additionalProperties": False,
        "required": ["place"],
        "properties": {
            "place": {"$ref": "#/$defs/Place", "description": "Where to look, or a place near it."},
            "units": {"$ref": "#/$defs/Unit", "default": "metric"},
            "days": {"type": "integer", "minimum": 1, "default": 3, "description": "Ahead."},
        },
        "$defs": {
            "Place": {
                "title": "Place",
                "description": "Where it is.",
                "type": "object",
                "required": ["title"],
                "properties": {
                    "title": {"type": "string"},
                    "at": {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}], "default": None},
                },
            },
            "Point": {
                "title": "Point",
                "type": "object",
                "required": ["x"],
                "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
            },
            "Unit": {"title": "Unit", "type": "string", "enum": ["metric", "imperial"]},
        },
    }


def test_the_description_is_the_docstring_without_what_the_schema_says() -> None:
    assert weather.description == 'The weather.\n\nIt is never wrong.\n\nExample:\n    weather("Oslo")'


def test_a_function_without_parameters_has_an_empty_schema() -> None:
    @tool
    def now(ctx: Context) -> str:
        return ctx.run_id

    assert now.parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert now.bind({}) == {}
    with pytest.raises(BadArgumentsError, match="- x: no such argument; there are: none"):
        now.bind({"x": 1})


def test_any_parameter_name_will_do() -> None:
    @tool
    def odd(_x: int, json: str, model_config: int = 1, schema: str = "s", copy: bool = False) -> str:
        return f"{_x} {json} {model_config} {schema} {copy}"

    assert list(odd.parameters["properties"]) == ["_x", "json", "model_config", "schema", "copy"]
    assert odd.parameters["required"] == ["_x", "json"]
    assert odd.bind({"_x": 1, "json": "{}", "copy": True}) == {"_x": 1, "json": "{}", "copy": True}


def test_an_alias_does_not_rename_a_parameter() -> None:
    @tool
    def find(query: Annotated[str, Field(alias="q", validation_alias="term")]) -> str:
        return query

    assert list(find.parameters["properties"]) == ["query"]
    assert find.bind({"query": "x"}) == {"query": "x"}


def test_a_default_that_json_does_not_have_is_left_out() -> None:
    missing = object()

    @tool
    def find(query: str, default: Any = missing) -> str:
        return f"{query} {default}"

    assert find.parameters["properties"]["default"] == {}
    assert find.parameters["required"] == ["query"]
    assert find.bind({"query": "x"}) == {"query": "x"}  # so the function sees its own default


def test_a_pydantic_field_may_be_the_default() -> None:
    def find(query: str = Field(description="What."), limit: int = Field(default=3, le=9)) -> str:
        return f"{query} {limit}"

    found = tool(find)
    assert found.parameters["properties"] == {
        "query": {"type": "string", "description": "What."},
        "limit": {"type": "integer", "maximum": 9, "default": 3},
    }
    assert found.bind({"query": "x"}) == {"query": "x", "limit": 3}


@pytest.mark.parametrize(
    ("text", "description", "arguments"),
    [
        (None, "", {}),
        ("Only this.", "Only this.", {}),
        ("Args:\n    a: One.", "", {"a": "One."}),
        (
            "Do.\n\nArguments:\n  a (list[int], optional): One.\n\n  b:\n    Two,\n    twice: yes.\n\nMore.",
            "Do.\n\nMore.",
            {"a": "One.", "b": "Two, twice: yes."},
        ),
        (
            "Do.\n\nParameters:\n    Prose first.\n    a: One.\n    and more\nReturn:\n    a: Not this.",
            "Do.",
            {"a": "One. and more"},
        ),
        ("Do.\n\nArgs: are welcome\n    a: One.", "Do.\n\nArgs: are welcome\n    a: One.", {}),
    ],
)
def test_docstrings(text: str | None, description: str, arguments: dict[str, str]) -> None:
    assert parse_docstring(text) == (description, arguments)


# -- the arguments ---------------------------------------------------------------------------------------------------


def test_bound_arguments_are_real_values() -> None:
    bound = weather.bind({"place": {"title": "Oslo", "at": {"x": "1"}}, "units": "imperial"})
    assert bound == {"place": Place(title="Oslo", at=Point(1)), "units": Unit.imperial}
    assert weather(**bound) == f"{bound['place']} {Unit.imperial} 3"


def test_the_model_is_told_of_every_mistake() -> None:
    with pytest.raises(BadArgumentsError) as caught:
        weather.bind({"place": {"title": 5, "at": {"y": 1}}, "days": 0, "unit": "metric"})
    assert str(caught.value).splitlines() == [
        "the arguments don't fit weather:",
        "- place.title: Input should be a valid string",
        "- place.at.x: Field required",
        "- days: Input should be greater than or equal to 1",
        "- unit: no such argument; there are: place, units, days",
    ]
    with pytest.raises(BadArgumentsError, match=r"^the arguments don't fit weather:\n- place: Field required$"):
        weather.bind({})


def test_arguments_that_are_no_object_are_a_mistake() -> None:
    with pytest.raises(BadArgumentsError, match="- arguments: Input should be a valid dictionary"):
        weather.bind([1])  # type: ignore[arg-type]


def test_a_long_list_of_mistakes_is_cut_short() -> None:
    @tool
    def add(numbers: list[int]) -> int:
        return sum(numbers)

    with pytest.raises(BadArgumentsError) as caught:
        add.bind({"numbers": ["x"] * (PROBLEMS_SHOWN + 2)})
    lines = str(caught.value).splitlines()
    assert len(lines) == PROBLEMS_SHOWN + 2
    assert lines[-1] == "- and 2 more"


def test_a_validator_that_breaks_is_a_mistake_too() -> None:
    class Broken(BaseModel):
        key: str

        @field_validator("key")
        @classmethod
        def check(cls, value: str) -> str:
            return {"known": value}[value]

    @tool
    def use(broken: Broken) -> str:
        return broken.key

    assert use.bind({"broken": {"key": "known"}}) == {"broken": Broken(key="known")}
    with pytest.raises(BadArgumentsError, match="arguments of use could not be checked: KeyError: 'other'"):
        use.bind({"broken": {"key": "other"}})


# -- where types come from -------------------------------------------------------------------------------------------


def test_the_context_is_known_by_its_type_and_by_its_name() -> None:
    def by_type(x: int, c: Context) -> None: ...
    def by_module(x: int, c: base.ToolContext) -> None: ...
    def optional(x: int, c: Context | None = None) -> None: ...
    def only_for_the_type_checker(x: int, c: ToolContext) -> None: ...
    def optional_for_the_type_checker(x: int, c: ToolContext | None = None) -> None: ...
    def quoted_twice(x: int, c: "ToolContext") -> None: ...  # noqa: UP037

    functions: list[Callable[..., None]] = [
        by_type, by_module, optional, only_for_the_type_checker, optional_for_the_type_checker, quoted_twice
    ]  # fmt: skip
    for function in functions:
        assert list(tool(function).parameters["properties"]) == ["x"], function.__name__


def test_a_context_that_says_what_its_deps_are_is_one_too() -> None:
    class Local: ...

    def by_type(x: int, c: Context[Point]) -> None: ...
    def of_a_union(x: int, c: Context[Point | None]) -> None: ...
    def of_a_generic(x: int, c: base.ToolContext[dict[str, list[int]]]) -> None: ...
    def of_a_local_type(x: int, c: Context[Local]) -> None: ...
    def optional(x: int, c: Context[Point] | None = None) -> None: ...
    def only_for_the_type_checker(x: int, c: ToolContext[Decimal]) -> None: ...
    def optional_for_the_type_checker(x: int, c: ToolContext[Decimal] | None = None) -> None: ...
    def of_a_type_for_the_type_checker(x: int, c: base.ToolContext[dict[str, Decimal]]) -> None: ...

    functions: list[Callable[..., None]] = [
        by_type, of_a_union, of_a_generic, of_a_local_type, optional, only_for_the_type_checker,
        optional_for_the_type_checker, of_a_type_for_the_type_checker
    ]  # fmt: skip
    for function in functions:
        assert list(tool(function).parameters["properties"]) == ["x"], function.__name__


def test_a_name_that_only_ends_like_the_context_is_not_it() -> None:
    class MyToolContext(BaseModel):
        key: str

    @tool
    def work(c: MyToolContext) -> None: ...

    assert work.bind({"c": {"key": "k"}}) == {"c": MyToolContext(key="k")}


def test_types_that_are_local_to_the_functions_around_are_found() -> None:
    class Outer(BaseModel):
        a: int

    class Place(BaseModel):  # not the module's
        b: int

    class Inner(BaseModel):  # not the one that is meant
        d: int

    def inner() -> FunctionTool[..., None]:
        class Inner(BaseModel):
            c: int

        @tool
        def work(outer: Outer, place: Place, inner: Inner, quoted: "list[Inner]") -> None: ...  # noqa: UP037

        return work

    work = inner()
    bound = work.bind({"outer": {"a": 1}, "place": {"b": 2}, "inner": {"c": 3}, "quoted": [{"c": 4}]})
    assert bound["outer"] == Outer(a=1)
    assert bound["place"] == Place(b=2)
    assert (bound["inner"].c, bound["quoted"][0].c) == (3, 4)


def test_a_type_may_be_defined_after_the_function() -> None:
    @tool
    def work(later: Later) -> None: ...

    class Later(BaseModel):
        a: int

    assert work.bind({"later": {"a": 1}}) == {"later": Later(a=1)}


def test_a_type_that_the_function_itself_uses_is_found_when_the_functions_around_it_have_ended() -> None:
    def make(*, early: bool) -> Callable[..., object]:
        class Local(BaseModel):
            a: int

        def work(local: Local) -> object:
            return Local, never_set  # both are in its closure, and one of them has no value

        if early:
            return work
        never_set = 1
        return work

    bound = tool(make(early=True)).bind({"local": {"a": 1}})
    assert bound["local"].a == 1


def test_a_type_that_cannot_be_found_is_an_error_at_first_use() -> None:
    @tool
    def pay(sum: Decimal, ctx: ToolContext) -> None: ...

    text = r"tool pay: the annotation of sum can't .*'Decimal'.*TYPE_CHECKING"
    with pytest.raises(ToolDefinitionError, match=text):
        pay.parameters  # noqa: B018 - a property that raises
    with pytest.raises(ToolDefinitionError, match=text):
        pay.bind({"sum": "1"})


def test_a_type_without_a_schema_is_an_error_at_first_use() -> None:
    class Socket: ...

    @tool
    def no_type(socket: Socket) -> None: ...

    @tool
    def no_json(callback: Callable[[], None]) -> None: ...

    text = r"^tool \w+: its parameters have no JSON schema \([^\n]*\); use types[^\n]*$"
    with pytest.raises(ToolDefinitionError, match=text):
        no_type.parameters  # noqa: B018
    with pytest.raises(ToolDefinitionError, match=text):
        no_type.bind({"socket": 1})
    with pytest.raises(ToolDefinitionError, match=text):
        no_json.parameters  # noqa: B018


def test_a_function_that_is_not_written_in_python_can_be_a_tool_if_it_says_its_types() -> None:
    class Native:
        """As an extension module would make it."""

        __name__ = "native"
        __signature__ = inspect.Signature([inspect.Parameter("n", inspect.Parameter.KEYWORD_ONLY, annotation=int)])
        __call__ = len

    assert tool(Native()).bind({"n": "1"}) == {"n": 1}


def test_wrappers_are_looked_through() -> None:
    class Local(BaseModel):
        a: int

    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @tool
    @logged
    def work(local: Local, ctx: Context) -> int:
        """Work.

        Args:
            local: It.
        """
        return local.a

    assert work.description == "Work."
    assert work.parameters["properties"] == {"local": {"$ref": "#/$defs/Local", "description": "It."}}
    assert work(**work.bind({"local": {"a": 5}}), ctx=None) == 5
