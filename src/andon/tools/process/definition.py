# SPDX-License-Identifier: Apache-2.0
"""Where a worker finds a function: by its module and its qualified name.

What must stay true: a function that a worker could not find is refused where it is defined, or at the latest where an
agent gets it.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from andon.errors import ToolDefinitionError
from andon.tools.base import ToolContext
from andon.tools.process.deps import WHY

MOVE = "Define it with `def`, at the top of a module that can be imported"


class Place(Struct, frozen=True):
    """Where the function is."""

    module: str
    function: str
    main: str = ""
    main_is_file: bool = False


def check_platform(what: str) -> None:
    """Raise where processes can't be ended reliably."""
    if sys.platform != "linux" or not os.path.exists("/proc/loadavg"):
        raise ToolDefinitionError(
            f"{what} needs Linux and /proc, by which every process of a call is found; this is {sys.platform}. Use"
            " a sync tool, which runs in a thread"
        )
    if not sys.executable:
        raise ToolDefinitionError(f"{what} needs sys.executable, the path of Python, which this program has not set")


def find_place(function: Any, name: str) -> Place:
    """Where this function will be found, if nothing is wrong with it."""
    check_platform(f'tool {name}: isolation="process"')
    if not inspect.isfunction(function):
        raise _refused(name, f"a {type(function).__name__} can't be found by a name. {MOVE}")
    if "<lambda>" in function.__qualname__:
        raise _refused(name, f"a lambda has no name to be found by. {MOVE}")
    if "<locals>" in function.__qualname__:
        raise _refused(name, f"{function.__qualname__} is defined inside a function, so it can't be imported. {MOVE}")
    module = function.__module__
    if module != "__main__":
        return Place(module, function.__qualname__)
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:  # python -m
        return Place(module, function.__qualname__, spec.name)
    code = inspect.unwrap(function).__code__
    if file is None or os.path.abspath(code.co_filename) != os.path.abspath(file):
        raise _refused(name, f"it was typed in or made by exec, so there is no file to import. {MOVE}")
    return Place(module, function.__qualname__, os.path.abspath(file), main_is_file=True)


def check_context(function: Callable[..., Any], name: str, parameter: str | None) -> None:
    """Raise if the function wants `deps` of a type: they can't be sent."""
    written = None if parameter is None else getattr(function, "__annotations__", {}).get(parameter)
    if isinstance(written, str):
        typed = re.search(r"ToolContext\[\s*(?!None|Any)", written) is not None
    else:
        kinds = [written, *typing.get_args(written)]
        typed = any(typing.get_origin(kind) is ToolContext and typing.get_args(kind)[0] is not Any for kind in kinds)
    if typed:
        raise _refused(name, f"{WHY}. Annotate the parameter with ToolContext alone")


def check_found(function: Any, tool: object, place: Place, name: str) -> None:
    """Raise if what is found there is something else. Called when the module has been imported."""
    found: Any = sys.modules.get(place.module)
    for part in place.function.split("."):
        found = getattr(found, part, None)
    if found is tool or found is function or getattr(found, "__wrapped__", None) is function:
        return
    if isinstance(found, types.NoneType):
        problem = f"there is no {place.function} in {place.module}"
    else:
        problem = f"{place.module}.{place.function} is something else, {type(found).__name__}"
    raise _refused(name, f"{problem}, so its process would not find it. {MOVE}, and don't use its name again")


def _refused(name: str, problem: str) -> ToolDefinitionError:
    return ToolDefinitionError(f'tool {name} can\'t have isolation="process": {problem}')
