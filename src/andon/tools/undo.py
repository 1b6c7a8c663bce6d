# SPDX-License-Identifier: Apache-2.0
"""The functions that undo a call: how one is defined with its tool, and how it is called.

What must stay true: a function that can't undo calls of its tool is refused where the tool is defined. An async
function is awaited, a sync one runs in a daemon thread. A thread that does not end in time is named.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from andon.core.run.tool_call import current
from andon.core.steps import as_exception
from andon.errors import ToolDefinitionError, say
from andon.tools.base import ToolContext
from andon.tools.schema import Parameters, context_parameters, find_origin

CALL_ID = "call_id"


class UndoFunction:
    """The function of `@tool(on_cancel=…)`. It takes arguments of the tool by name, `call_id`, and a `ToolContext`."""

    def __init__(
        self, function: Callable[..., Any], tool_name: str, parameters: Parameters, takes_json: bool = False
    ) -> None:
        """With `takes_json`, the tool's `bind` returns the model's JSON as it is, and it is converted here."""
        self._function = function
        self._parameters = parameters if takes_json else None
        _refuse_what_can_not_undo(function, tool_name)
        try:
            signature = inspect.signature(function).parameters
        except (TypeError, ValueError) as error:
            raise ToolDefinitionError(
                f"tool {tool_name}: the signature of its undo function can't be read ({say(error)}); wrap it in a"
                " function of your own"
            ) from error
        written = {name: parameter.annotation for name, parameter in signature.items()}
        contexts = context_parameters(written, find_origin(function))
        known = [*parameters.names, CALL_ID]
        self._takes_all = False
        self._wanted: list[str] = []
        for name, parameter in signature.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                self._takes_all = True
            elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
                raise ToolDefinitionError(
                    f"tool {tool_name}: its undo function takes {parameter}, and is called with arguments by name;"
                    " name each parameter"
                )
            elif name in known:
                self._wanted.append(name)
            elif name not in contexts and parameter.default is parameter.empty:
                raise ToolDefinitionError(
                    f"tool {tool_name}: its undo function takes {name!r}, which the tool does not have; it may take"
                    f" {', '.join(known)}, and a parameter annotated ToolContext"
                )
        self._contexts = contexts
        self._defaults = parameters.defaults

    def bind(self, bound: Mapping[str, Any], ctx: ToolContext) -> Callable[[], Any]:
        """The call that undoes a call with these arguments, as the tool's `bind` has returned them."""
        if self._parameters is not None:
            bound = self._parameters.bind(dict(bound))
        given = {CALL_ID: ctx.call_id, **self._defaults, **bound}
        wanted = given if self._takes_all else {name: given[name] for name in self._wanted if name in given}
        return functools.partial(self._function, **wanted, **dict.fromkeys(self._contexts, ctx))


def _refuse_what_can_not_undo(function: object, tool_name: str) -> None:
    problem = None
    if isinstance(function, type) or not callable(function):
        problem = f'on_cancel is {function!r}; use "finish", or a function that undoes a call'
    elif inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        problem = "its undo function is a generator function; write one that returns when the call is undone"
    if problem is not None:
        raise ToolDefinitionError(f"tool {tool_name}: {problem}")


class Holder(Protocol):
    """Names what is still running (`core/steps.py`)."""

    def leave_behind(self, key: object, name: str) -> None: ...

    def picked_up(self, key: object) -> None: ...


class UndoneCall:
    """A call that has ended, as the context of its undo function shows it: no cancel reaches the function."""

    cancelled = watches_cancel = False

    def __init__(self, call_id: str, name: str) -> None:
        self.call_id, self.name = call_id, name

    def on_cancel(self, callback: Callable[[], object]) -> Callable[[], object]:
        return _nothing

    def on_undo(self, step: Callable[[], object]) -> Callable[[], object]:
        return _nothing


def _nothing() -> None:
    pass


async def call_undo(step: Callable[[], Any], name: str, holder: Holder) -> None:
    """Call one undo function to its end, or raise what it raises. A run that it starts is no child of the cut one."""
    current.set(None)
    asynchronous = inspect.iscoroutinefunction(step) or inspect.iscoroutinefunction(type(step).__call__)
    returned = step() if asynchronous else await _call_in_thread(step, name, holder)
    if inspect.isawaitable(returned):  # of a sync function too: a lambda, for one
        await returned


class _Outcome:
    """What the thread has returned or raised."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None


async def _call_in_thread(step: Callable[[], Any], name: str, holder: Holder) -> Any:
    loop, outcome, context = asyncio.get_running_loop(), _Outcome(), contextvars.copy_context()
    ended: asyncio.Future[None] = loop.create_future()

    def work() -> None:
        try:
            outcome.value = context.run(step)
        except BaseException as error:  # noqa: BLE001 - the boundary: it is raised again where the thread is awaited
            outcome.error = error
        outcome.over.set()
        holder.picked_up(outcome)
        try:
            loop.call_soon_threadsafe(_resolve, ended)
        except RuntimeError:  # the loop is closed
            pass

    threading.Thread(target=work, name=f"andon-undo-{name}", daemon=True).start()
    try:
        await ended
    except asyncio.CancelledError:
        holder.leave_behind(outcome, f"thread of {name}")
        if outcome.over.is_set():  # maybe since the line above
            holder.picked_up(outcome)
        raise
    error, outcome.error = outcome.error, None
    try:
        if error is not None:
            raise as_exception(error)
    finally:
        del error  # its traceback has this frame
    return outcome.value


def _resolve(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
