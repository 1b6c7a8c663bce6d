# SPDX-License-Identifier: Apache-2.0
"""Structured output: the schema that the model gets, and the check of its answer.

Whether an answer fits is decided here, for every model. If it doesn't fit, the model is told why and tries again, a few
times. Then the run fails, and the text stays in the conversation and on the error.

Providers want an object at the root of a schema. Any other type becomes the field `result` of an object.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, Protocol

from andon.agent.json_schema import RESULT, JsonSchema, with_article, without_fence
from andon.errors import ConfigurationError, OutputError
from andon.models.base import OutputSpec

NO_TYPE: Any = None
"""No `output_type`. The annotation is not `… | None`: then type checkers would not read `int | str` as one type."""

_MODULES = r"(?:\w+\.)+(?=\w)"


class OutputFormat(Protocol):
    """The format that an answer must have."""

    @property
    def spec(self) -> OutputSpec | None:
        """What the model gets: a name and a schema; None for plain text."""
        ...

    @property
    def kept(self) -> dict[str, Any] | None:
        """The schema, if it can be stored with a paused run; None for a Python type."""
        ...

    def parse(self, text: str) -> Any:
        """The answer as a value of the type. Raises `OutputError`, which says what is wrong with it."""
        ...

    def dump(self, value: Any) -> Any:
        """The value as plain JSON data."""
        ...


def output_format(output_type: Any) -> OutputFormat | None:
    """The format that an `output_type` stands for. Raises `ConfigurationError` if it can't be one."""
    if output_type is None or isinstance(output_type, JsonSchema):
        return output_type
    return PlainText() if output_type is str else TypedOutput(output_type)


class PlainText:
    """The text of the answer, unchanged: what `output_type=str` means."""

    spec = kept = None

    def parse(self, text: str) -> str:
        return text

    def dump(self, value: str) -> str:
        return value


class TypedOutput:
    """An answer of any type that pydantic can adapt."""

    kept = None

    def __init__(self, kind: Any) -> None:
        from pydantic import PydanticUserError, TypeAdapter, create_model
        from pydantic.errors import PydanticUndefinedAnnotation

        self.name = name = _name_of(kind)
        if isinstance(kind, str):
            raise ConfigurationError(f"output_type is {kind!r}, a text: give the type itself")
        if isinstance(kind, dict) or inspect.isroutine(kind):
            what = "a dict" if isinstance(kind, dict) else "a function"
            raise ConfigurationError(f"output_type is {what}: give a type, such as a dataclass or a pydantic model")
        try:
            self._adapter = self._whole = TypeAdapter(kind)
            schema = _rooted(self._adapter.json_schema())
            self._wrapped = schema.get("type") != "object"
            if self._wrapped:
                self._whole = TypeAdapter(create_model(name, result=(kind, ...)))
                schema = self._whole.json_schema()
        except (PydanticUserError, PydanticUndefinedAnnotation, NameError) as error:
            detail = str(error).partition("\n\n")[0]  # the rest is advice for authors of pydantic plugins
            raise ConfigurationError(f"output_type is {name}, and can't be one: {detail}") from None
        self.spec = OutputSpec(name, schema)

    def parse(self, text: str) -> Any:
        from pydantic import ValidationError

        bare = without_fence(text)
        try:
            value = self._whole.validate_json(bare)
        except ValidationError as error:
            if not self._wrapped:
                raise self._wrong(error, text) from None
            try:  # models often leave out the object around the value
                return self._adapter.validate_json(bare)
            except ValidationError:
                raise self._wrong(error, text) from None
        return getattr(value, RESULT) if self._wrapped else value

    def dump(self, value: Any) -> Any:
        return self._adapter.dump_python(value, mode="json", fallback=str, warnings=False)

    def _wrong(self, error: Any, text: str) -> OutputError:
        where = "; ".join(_say(each) for each in error.errors(include_url=False)[:3])
        return OutputError(f"the answer is not {with_article(self.name)}: {where}", text=text)


class ExpectedOutput:
    """The format that one run must answer in, and then its answer."""

    __slots__ = ("_left", "_tries", "data", "format", "value")

    def __init__(self, format: OutputFormat, retries: int) -> None:
        self.format, self._left, self._tries = format, retries, 0
        self.value: Any = None
        self.data: Any = None
        """The value as plain JSON data."""

    def accept(self, text: str, *, last: bool) -> OutputError | None:
        """Take an answer. If it does not fit, the error is returned, for the model; after the last try it is raised."""
        self._tries += 1
        try:
            value = self.format.parse(text)
        except OutputError as error:
            if last or not self._left:
                tries = f"; it was asked {self._tries} times" if self._tries > 1 else ""
                raise OutputError(f"{error}{tries}", text=error.text) from None
            self._left -= 1
            return error
        self.value, self.data = value, self.format.dump(value)
        return None


def repair_prompt(error: OutputError) -> str:
    """The prompt after an answer that does not fit."""
    return f"This can't be used: {error}. Answer again, with nothing but JSON that fits the schema."


def _say(error: Any) -> str:
    place = ".".join(map(str, error["loc"]))
    return f"{place}: {error['msg']}" if place else str(error["msg"])


def _name_of(kind: Any) -> str:
    """As the source has it, without the modules: `Trip`, `list[Trip]`, `int | str`."""
    return kind.__name__ if isinstance(kind, type) else re.sub(_MODULES, "", str(kind))


def _rooted(schema: dict[str, Any]) -> dict[str, Any]:
    """A model that contains itself is a mere reference at its root, which providers refuse."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if not name:
        return schema
    return {**schema["$defs"][name], "$defs": schema["$defs"]}
