# SPDX-License-Identifier: Apache-2.0
"""Structured output: what is asked of the model, and what its answer is taken for.

The model is given the schema; whether the answer fits is decided here, whoever the model is. An answer that doesn't
fit fails the run: the text stays in the conversation, and on the error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from andon.errors import ConfigurationError, OutputError
from andon.models.base import OutputSpec

if TYPE_CHECKING:
    from pydantic import BaseModel


class Output:
    """What a run's answer must be."""

    __slots__ = ("_kind", "spec")

    def __init__(self, kind: type[BaseModel]) -> None:
        if not isinstance(kind, type) or not callable(getattr(kind, "model_validate_json", None)):
            raise ConfigurationError(f"output_type is {kind!r}; it is a class made with pydantic.BaseModel")
        self._kind = kind
        schema = _rooted(kind.model_json_schema())
        if schema.get("type") != "object":
            raise ConfigurationError(
                f"output_type {kind.__name__} is no object: providers want one, so put it into a field of a model"
            )
        self.spec = OutputSpec(kind.__name__, schema)

    def parse(self, text: str) -> BaseModel:
        from pydantic import ValidationError

        try:
            return self._kind.model_validate_json(text)
        except ValidationError as error:
            where = "; ".join(_say(each) for each in error.errors(include_url=False)[:3])
            raise OutputError(f"the answer is no {self._kind.__name__}: {where}", text=text) from None


def _say(error: Any) -> str:
    place = ".".join(map(str, error["loc"]))
    return f"{place}: {error['msg']}" if place else str(error["msg"])


def _rooted(schema: dict[str, Any]) -> dict[str, Any]:
    """A model that contains itself is a mere reference at its root, which providers refuse."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if not name:
        return schema
    return {**schema["$defs"][name], "$defs": schema["$defs"]}
