# SPDX-License-Identifier: Apache-2.0
"""The schema of a function's parameters, from its signature and docstring, and the check of the model's arguments.

What must stay true: a signature that is wrong by itself is refused when the tool is defined. A type may be defined
later than the function, so an unknown one is looked up again when it is needed. pydantic is not imported before that.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

from andon.errors import BadArgumentsError, ToolDefinitionError, describe, say
from andon.tools.base import ToolContext

if TYPE_CHECKING:
    from pydantic import BaseModel

PROBLEMS_SHOWN = 10
"""How many mistakes an error message for the model lists."""

_HIDDEN_SECTION = r"(?:(?P<arguments>Args|Arguments|Parameters)|Returns?|Yields|Raises):\s*"
_ARGUMENT = r"(\w+)\s*(?:\(.*?\))?:\s*(.*)"
_CONTEXT_NAME = r"""['"]?([\w.]+\.)?ToolContext(\[.*\])?['"]?(\s*\|\s*None)?"""


class Parameters:
    """The parameters of a tool's function: their schema, and the check of arguments."""

    def __init__(self, function: Callable[..., Any], tool_name: str) -> None:
        self._tool, self._origin = tool_name, find_origin(function)
        parameters = _read_signature(function, tool_name)
        written = {name: parameter.annotation for name, parameter in parameters.items()}
        # Resolved now, while the frame with a function's local types still exists.
        self._hints, _ = _resolve(written, self._origin)
        contexts = [name for name in written if _is_context(self._hints.get(name, written[name]))]
        if len(contexts) > 1:
            raise ToolDefinitionError(
                f"tool {tool_name} has {len(contexts)} ToolContext parameters ({', '.join(contexts)}); keep one"
            )
        self.context = contexts[0] if contexts else None
        """The parameter that takes the ToolContext; the model never sees it."""
        self._shown = {name: parameter for name, parameter in parameters.items() if name != self.context}

    @property
    def names(self) -> list[str]:
        """The arguments that the model gives."""
        return list(self._shown)

    @property
    def defaults(self) -> dict[str, Any]:
        """The values of arguments that the model may leave out."""
        return {name: each.default for name, each in self._shown.items() if each.default is not each.empty}

    @functools.cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        from pydantic.json_schema import GenerateJsonSchema

        class Generator(GenerateJsonSchema):
            # A default that JSON can't express is left out of the schema, without a warning.
            ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - pydantic's own

            def field_title_should_be_set(self, schema: Any) -> bool:
                return False  # a title would repeat the name, and cost tokens

        model = self._model
        try:
            schema = model.model_json_schema(schema_generator=Generator)
        except Exception as error:
            raise self._unsupported(error) from error
        schema.pop("title", None)
        documented = parse_docstring(inspect.getdoc(self._origin))[1]
        for name, parameter in schema["properties"].items():
            if name in documented:
                parameter.setdefault("description", documented[name])
        return schema

    def bind(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The keyword arguments for the function, checked and converted to Python values."""
        from pydantic import ValidationError
        from pydantic.fields import FieldInfo

        model = self._model
        try:
            checked = model.model_validate(arguments)
        except ValidationError as error:
            raise BadArgumentsError(self._explain(error)) from error
        except Exception as error:  # from a validator of the user
            raise BadArgumentsError(f"the arguments of {self._tool} could not be checked: {describe(error)}") from error
        # An argument that was not given gets the function's own default, unless only pydantic knows the default.
        return {
            name: getattr(checked, field)
            for field, name, parameter in self._fields()
            if field in checked.model_fields_set or isinstance(parameter.default, FieldInfo)
        }

    @functools.cached_property
    def _model(self) -> type[BaseModel]:
        from pydantic import ConfigDict, Field, create_model

        unknown = {name: parameter.annotation for name, parameter in self._shown.items() if name not in self._hints}
        late, errors = _resolve(unknown, self._origin)
        for name, error in errors.items():
            raise ToolDefinitionError(
                f"tool {self._tool}: the annotation of {name} can't be resolved ({say(error)}); import or define its"
                " type where the function is defined, and not only under TYPE_CHECKING"
            ) from error
        hints = {**self._hints, **late}
        fields: dict[str, Any] = {
            # The parameter's name is an alias, because a pydantic field can't have every name that a parameter can:
            # `_x`, `json`, `model_config`.
            field: (
                Annotated[hints[name], Field(alias=name)],
                ... if parameter.default is parameter.empty else parameter.default,
            )
            for field, name, parameter in self._fields()
        }
        try:
            model: type[BaseModel] = create_model(self._tool, __config__=ConfigDict(extra="forbid"), **fields)
        except Exception as error:
            raise self._unsupported(error) from error
        return model

    def _fields(self) -> Iterable[tuple[str, str, inspect.Parameter]]:
        return ((f"p{index}", name, parameter) for index, (name, parameter) in enumerate(self._shown.items()))

    def _unsupported(self, error: Exception) -> ToolDefinitionError:
        reason = say(error).strip().partition("\n")[0]
        return ToolDefinitionError(
            f"tool {self._tool}: its parameters have no JSON schema ({reason}); use types that JSON can express: str,"
            " int, float, bool, list, dict, enums, dataclasses, pydantic models"
        )

    def _explain(self, error: Any) -> str:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        lines = [f"the arguments don't fit {self._tool}:"]
        for problem in problems[:PROBLEMS_SHOWN]:
            where = ".".join(map(str, problem["loc"])) or "arguments"
            message = problem["msg"]
            if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
                message = f"no such argument; there are: {', '.join(self._shown) or 'none'}"
            lines.append(f"- {where}: {message}")
        if len(problems) > PROBLEMS_SHOWN:
            lines.append(f"- and {len(problems) - PROBLEMS_SHOWN} more")
        return "\n".join(lines)


def find_origin(function: Any) -> Any:
    """The function that has the annotations, inside partials, methods and wrappers."""
    while not inspect.isfunction(function) or hasattr(function, "__wrapped__"):
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif inspect.isfunction(call := type(function).__call__):
            function = call  # a callable object
        else:
            break  # a builtin
    return function


def parse_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """A Google-style docstring as the description for the model, and that of each argument."""
    shown: list[str] = []
    arguments: dict[str, str] = {}
    heading: re.Match[str] | None = None
    indent = 0
    for line in (text or "").splitlines():
        if line and not line[0].isspace():
            heading = re.fullmatch(_HIDDEN_SECTION, line)
            current, indent = "", 0
        if heading is None:
            shown.append(line)
        elif heading["arguments"] and line[:1].isspace() and line.strip():
            depth = len(line) - len(line.lstrip())
            indent = indent or depth  # that of the first entry
            entry = re.fullmatch(_ARGUMENT, line.strip()) if depth <= indent else None
            if entry:
                current = entry[1]
                arguments[current] = entry[2]
            elif current:
                arguments[current] = f"{arguments[current]} {line.strip()}".strip()
    return "\n".join(shown).strip(), arguments


def _read_signature(function: Callable[..., Any], tool_name: str) -> dict[str, inspect.Parameter]:
    try:
        parameters = dict(inspect.signature(function).parameters)
    except (TypeError, ValueError) as error:
        raise ToolDefinitionError(
            f"tool {tool_name}: its signature can't be read ({say(error)}); wrap it in a function of your own"
        ) from error
    if isinstance(function, functools.partial):
        for name in function.keywords:  # set already: the model must not see or change it
            del parameters[name]
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            problem = f"takes {parameter}, which a model can't be told of; name each parameter"
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            problem = f"parameter {name} is positional-only, and arguments are given by name; take away the `/`"
        elif parameter.annotation is not parameter.empty:
            continue
        elif name in ("self", "cls"):
            problem = f"parameter {name} has no annotation; to use a method, give the bound one: tool(instance.method)"
        elif name in ("ctx", "context"):
            problem = f"parameter {name} has no annotation; write {name}: ToolContext to be given the call's context"
        else:
            problem = f"parameter {name} has no annotation; write its type, as in {name}: str"
        raise ToolDefinitionError(f"tool {tool_name}: {problem}")
    return parameters


def _resolve(annotations: dict[str, Any], origin: Any) -> tuple[dict[str, Any], dict[str, Exception]]:
    """The types that annotations stand for, and the errors of those that can't be resolved."""
    hints: dict[str, Any] = {}
    errors: dict[str, Exception] = {}
    names = _names_around(origin)
    for name, annotation in annotations.items():

        def stub() -> None: ...

        stub.__annotations__ = {name: annotation}
        try:
            hints.update(typing.get_type_hints(stub, getattr(origin, "__globals__", {}), names, include_extras=True))
        except Exception as error:  # noqa: BLE001 - reported when the type is needed; it may exist by then
            errors[name] = error
    return hints, errors


def _names_around(origin: Any) -> dict[str, Any]:
    """The local names that a nested function's annotations may use: those of its closure, and those of the functions
    around it that are running now. Names that are used only in string annotations are not part of the closure."""
    names: dict[str, Any] = {}
    code = getattr(origin, "__code__", None)
    if code is None:
        return names
    frame: types.FrameType | None = sys._getframe(1)
    inner = code
    while frame is not None:
        if any(constant is inner for constant in frame.f_code.co_consts):  # this frame's code holds the `def`
            names = {**frame.f_locals, **names}
            inner = frame.f_code
        frame = frame.f_back
    for name, cell in zip(code.co_freevars, origin.__closure__ or (), strict=True):
        with suppress(ValueError):  # the cell is still empty
            names[name] = cell.cell_contents
    return names


def context_parameters(written: dict[str, Any], origin: Any) -> list[str]:
    """Which of these parameters, by their annotations, take the ToolContext."""
    hints, _ = _resolve(written, origin)
    return [name for name in written if _is_context(hints.get(name, written[name]))]


def _is_context(annotation: Any) -> bool:
    if isinstance(annotation, str):  # it can't be resolved, since it is imported under TYPE_CHECKING
        return re.fullmatch(_CONTEXT_NAME, annotation.strip()) is not None
    kinds = (annotation, *typing.get_args(annotation))  # `ToolContext | None` too
    return any(kind is ToolContext or typing.get_origin(kind) is ToolContext for kind in kinds)
