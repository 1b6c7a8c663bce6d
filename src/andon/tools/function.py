# SPDX-License-Identifier: Apache-2.0
"""Functions as tools: async ones are awaited, sync ones run in a daemon thread of their own.

What must stay true: a function that can't be a tool is refused where it is defined, not in the middle of a run. The
function stays callable as it was. Every result becomes text or a clear error, and never breaks the run.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence, Set, ValuesView
from numbers import Integral, Real
from typing import Any, Generic, Literal, ParamSpec, TypeAlias, TypeVar, cast, overload

import msgspec

from andon.core.receipt import is_seconds
from andon.errors import BadResultError, ToolDefinitionError, say
from andon.messages import Media, sendable
from andon.tools.base import ATTACHED, NO_OUTPUT, PLAIN, Tool, ToolContext, ToolOutput, Traits, internals_of
from andon.tools.process.definition import check_context, check_found, find_place
from andon.tools.process.function import call_in_process
from andon.tools.process.limits import LEAST_MEMORY, NO_LIMITS, Limits, check_limits
from andon.tools.schema import Parameters, find_origin, parse_docstring
from andon.tools.thread import call_in_thread
from andon.tools.undo import UndoFunction

P = ParamSpec("P")
R = TypeVar("R")

OnCancel: TypeAlias = Literal["cut", "finish"] | Callable[..., Any]
"""What a cancel does to a call that has started: it is cut, let finish, or cut and then undone by this function."""
Isolation = Literal["process"]

_NAME = r"[a-zA-Z0-9_-]{1,64}"
_BYTES = (bytes, bytearray, memoryview)
_TOOL_ATTRIBUTES = ("name", "description", "bind", "invoke", "parameters")


class FunctionTool(Generic[P, R]):
    """A function that an agent can use. Made by `tool`; calling it calls the function, as it always did."""

    __name__: str
    __wrapped__: Callable[P, R]

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        traits: Traits = PLAIN,
        undo: Callable[..., Any] | None = None,
        limits: Limits | None = None,
    ) -> None:
        _refuse_what_is_no_function(function)
        self.traits = traits
        functools.update_wrapper(self, function, ("__module__", "__name__", "__qualname__", "__doc__"), ())
        self.name = _checked_name(function, name)
        self.__name__ = getattr(function, "__name__", self.name)
        self._parameters = Parameters(function, self.name)
        if undo is not None:
            undo = undo.__wrapped__ if isinstance(undo, FunctionTool) else undo
            undoes = UndoFunction(undo, self.name, self._parameters, takes_json=limits is not None)
            self.traits = msgspec.structs.replace(traits, undo=undoes)
        self.description = parse_docstring(inspect.getdoc(find_origin(function)))[0]
        if description is not None:
            self.description = description
        self.function: Callable[..., Any] = function
        self.is_async = _either(inspect.iscoroutinefunction, function)
        self._limits = limits
        """Given if calls run in processes."""
        if limits is not None:
            self._place = find_place(function, self.name)
            check_context(function, self.name, self._parameters.context)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.__wrapped__(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of the arguments: an object."""
        if self._limits is not None:  # the first moment at which the module is complete
            check_found(self.function, self, self._place, self.name)
        return self._parameters.schema

    def bind(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Check the model's arguments and turn them into Python values. Raises `BadArgumentsError`."""
        bound = self._parameters.bind(arguments)
        return bound if self._limits is None else arguments  # a process gets them as JSON, and checks them again

    def with_context(self, bound: dict[str, Any], ctx: ToolContext) -> dict[str, Any]:
        """The arguments for the function, with the context, if it takes one."""
        return bound if self._parameters.context is None else {**bound, self._parameters.context: ctx}

    async def invoke(self, bound: dict[str, Any], ctx: ToolContext) -> str | ToolOutput:
        """Call the function and return its result for the model. A sync one is called in a thread."""
        if self._limits is not None:
            return await call_in_process(self.name, self._place, self._limits, bound, ctx)
        arguments = self.with_context(bound, ctx)
        if self.is_async:
            return to_output(self.name, await self.function(**arguments))
        # The result is turned into text in the thread too: that may be slow, and it may fail.
        return await call_in_thread(functools.partial(self._call, arguments), self.name, internals_of(ctx).scope)

    def _call(self, arguments: dict[str, Any]) -> str | ToolOutput:
        return to_output(self.name, self.function(**arguments))


@overload
def tool(
    function: Callable[P, R],
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    approval: bool = False,
    timeout: float | None = None,
    idempotent: bool = False,
    on_cancel: OnCancel = "cut",
    finish_within: float | None = None,
    isolation: Isolation | None = None,
    limits: Limits | None = None,
) -> FunctionTool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    approval: bool = False,
    timeout: float | None = None,
    idempotent: bool = False,
    on_cancel: OnCancel = "cut",
    finish_within: float | None = None,
    isolation: Isolation | None = None,
    limits: Limits | None = None,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    approval: bool = False,
    timeout: float | None = None,
    idempotent: bool = False,
    on_cancel: OnCancel = "cut",
    finish_within: float | None = None,
    isolation: Isolation | None = None,
    limits: Limits | None = None,
) -> Any:
    """Make a function a tool. The model sees its name, its docstring and its annotations.

    >>> @tool
    ... async def search(query: str, limit: int = 10) -> list[str]:
    ...     '''Search the archive.
    ...
    ...     Args:
    ...         query: What to look for.
    ...         limit: How many hits to return.
    ...     '''

    A parameter annotated `ToolContext` is given the call's context and is not shown to the model. A sync function runs
    in a thread; let it look at `ctx.cancelled`, or the thread runs on after a cancel. Return text, or anything that can
    be written as JSON; or an `Image`, a `File`, or a list with some, if the model takes them in results.
    `@tool(name="…", description="…")` replaces the function's name and docstring.

    `approval=True` asks a person before each call; `timeout` ends a call that takes longer, and that call alone;
    `idempotent=True` says that a call may be repeated when a run goes on after a cut.

    `on_cancel="finish"` lets a call that has started finish when its run is cancelled, for at most `finish_within`
    seconds. `on_cancel=refund` cuts it, and then calls `refund` with the call's arguments by name, and with `call_id`
    or the `ToolContext` if it has such a parameter.

    `isolation="process"` runs each call in a process of its own, which a cancel ends, with all that it has started.
    The function must be at the top of a module. Arguments and results are sent as JSON. `limits=Limits(…)` bounds what
    a call uses.
    """
    if not is_seconds(timeout):
        raise ToolDefinitionError(f"timeout is {timeout!r}; it is a number of seconds, 0 or more")
    finish, undo = _read_on_cancel(on_cancel, finish_within)
    traits = Traits(approval, timeout, idempotent, finish, finish_within)
    given = _checked_isolation(isolation, limits)
    make = functools.partial(FunctionTool, name=name, description=description, traits=traits, undo=undo, limits=given)
    return make if function is None else make(function)


def _read_on_cancel(given: object, finish_within: object) -> tuple[bool, Callable[..., Any] | None]:
    """Whether a call is let finish, and the function that undoes it."""
    if not is_seconds(finish_within):
        raise ToolDefinitionError(f"finish_within is {finish_within!r}; it is a number of seconds, 0 or more")
    if finish_within is not None and given != "finish":
        raise ToolDefinitionError('finish_within is for on_cancel="finish": add that, or leave finish_within out')
    if given in ("cut", "finish"):
        return given == "finish", None
    if isinstance(given, type) or not callable(given):
        raise ToolDefinitionError(f'on_cancel is {given!r}; use "finish", or a function that undoes a call')
    return False, given


def _checked_isolation(isolation: object, limits: object) -> Limits | None:
    """The limits of the tool's processes, or None if it has no processes."""
    if isolation not in (None, "process"):
        raise ToolDefinitionError(f'isolation is {isolation!r}; it is "process", or is left out')
    if isolation is None:
        if limits is not None:
            raise ToolDefinitionError('limits are for processes: add isolation="process"')
        return None
    given = NO_LIMITS if limits is None else limits
    return check_limits(given, LEAST_MEMORY)


def as_tool(obj: object) -> Tool:
    """An item of `Agent(tools=…)` as a tool: a tool unchanged, a function wrapped."""
    if isinstance(obj, FunctionTool):  # first: reading its attributes would build its schema
        return obj
    if not isinstance(obj, type) and all(hasattr(obj, attribute) for attribute in _TOOL_ATTRIBUTES):
        return cast(Tool, obj)
    return FunctionTool(cast("Callable[..., Any]", obj))


def to_output(tool_name: str, result: object) -> str | ToolOutput:
    """A tool's result for the model: text; or, with images and files in it, an output that has them apart."""
    if isinstance(result, ToolOutput):
        return result
    parts = [result] if isinstance(result, Media) else result if isinstance(result, list | tuple) else []
    attachments = [part for part in parts if isinstance(part, Media)]
    if not attachments:
        return to_text(tool_name, result)
    texts = [to_text(tool_name, part) for part in parts if not isinstance(part, Media)]
    return ToolOutput("\n\n".join(texts) or ATTACHED, attachments)


def to_text(tool_name: str, result: object) -> str:
    """A tool's result as text for the model."""
    kind = type(result).__name__
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()  # or Python warns that it was never awaited
        raise BadResultError(
            f"tool {tool_name} returned {kind}, which was not awaited: write the tool as an async function that"
            " awaits it and returns its result"
        )
    try:
        text = "" if result is None else _write(result)
    except Exception as error:
        raise BadResultError(
            f"tool {tool_name} returned {kind}, which can't be made into text ({say(error)}); a tool may return a str,"
            " None, or what JSON can express: numbers, lists, dicts, dataclasses, enums, dates, pydantic models"
        ) from error
    return text if text.strip() else NO_OUTPUT


def _write(value: object) -> str:
    plain = value if isinstance(value, str) else msgspec.to_builtins(value, builtin_types=_BYTES, enc_hook=_to_plain)
    if isinstance(plain, str):  # also a date, a path, a str enum: without JSON's quotes
        return sendable(str.__str__(plain))
    if _holds_bytes(plain):  # msgspec would write base64, which is of no use to a model
        raise TypeError("bytes are not text: decode them, or save them and return where they are")
    return msgspec.json.encode(plain).decode()


def _to_plain(value: object) -> object:
    """Convert what msgspec doesn't know, one level. No other iterables: a data frame would become its column names."""
    from pydantic import BaseModel

    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, os.PathLike):
        return str(value)
    if isinstance(value, Integral):  # numbers of numpy, for one
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Set | Sequence | ValuesView):
        return list(value)
    raise TypeError(f"{type(value).__name__} can't be written as JSON")


def _holds_bytes(plain: object) -> bool:
    if isinstance(plain, dict):
        return any(map(_holds_bytes, plain)) or any(map(_holds_bytes, plain.values()))
    if isinstance(plain, list | tuple):
        return any(map(_holds_bytes, plain))
    return isinstance(plain, _BYTES)


def _refuse_what_is_no_function(obj: object) -> None:
    kind = type(obj).__name__
    if isinstance(obj, FunctionTool):
        raise ToolDefinitionError(f"{obj.name} is a tool already; to make another of its function, use .__wrapped__")
    if isinstance(obj, type):
        raise ToolDefinitionError(
            f"{obj.__name__} is a class; give a function, or a method of an instance of it, or, if its instances are"
            f" tools, an instance: {obj.__name__}(…)"
        )
    if callable(getattr(obj, "as_tool", None)):
        raise ToolDefinitionError(f"{obj!r} can't be a tool as it is: give the tool that calls it, with .as_tool()")
    if not callable(obj):
        raise ToolDefinitionError(
            f"{kind} can't be a tool; give a function, or an object with {', '.join(_TOOL_ATTRIBUTES)}."
            ' A decorator\'s options have names: @tool(name="...", description="...")'
        )
    if _either(inspect.isasyncgenfunction, obj) or _either(inspect.isgeneratorfunction, obj):
        raise ToolDefinitionError(
            f"{getattr(obj, '__name__', kind)} is a generator function, and a tool has one result; collect what it"
            " yields and return that"
        )


def _either(test: Callable[[Any], bool], function: object) -> bool:
    """Whether the test holds for a function, or for the `__call__` of an object."""
    return test(function) or test(type(function).__call__)


def _checked_name(function: object, given: str | None) -> str:
    name = getattr(function, "__name__", None) if given is None else given
    if not isinstance(name, str):
        raise ToolDefinitionError(f'{type(function).__name__} has no name of its own; use tool(..., name="...")')
    if not re.fullmatch(_NAME, name):
        raise ToolDefinitionError(
            f"{name!r} can't be a tool's name: providers take 1 to 64 letters (a-z), digits, _ and -;"
            ' give another one with tool(..., name="...")'
        )
    return name
