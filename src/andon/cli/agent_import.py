# SPDX-License-Identifier: Apache-2.0
"""Imports the agents that `module:name` means, and explains what is wrong if there are none.

What must stay true: an error of the user's program is shown as Python shows it, without the frames of Andon.
"""

from __future__ import annotations

import difflib
import importlib
import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from andon.agent.agent import Agent
from andon.cli.command_error import CommandError
from andon.core.source_lines import is_loader, is_ours
from andon.errors import describe


def find_agents(name: str) -> list[Agent]:
    """The agent, or the list of agents, that `module:name` means."""
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise CommandError(
            f"{name!r} names no agent: write module:agent, for instance main:agent for `agent` in main.py"
        )
    module = _import(module_name, attribute)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise CommandError(f"there is no {attribute!r} in {module_name!r}{_list_agents(module)}")
        found = getattr(found, part)
    agents = list(found) if isinstance(found, list | tuple) else [found]
    if not agents:
        raise CommandError(f"{name!r} is an empty list: put agents into it, or name another{_list_agents(module)}")
    for agent in agents:
        if not isinstance(agent, Agent):
            raise CommandError(f"{name!r} is {_kind(agent)}, which is no Agent{_advice(agent, attribute)}")
    return agents


def _import(module_name: str, attribute: str) -> Any:
    if module_name.endswith(".py") or os.sep in module_name:
        module = module_name.removesuffix(".py").strip(f".{os.sep}").replace(os.sep, ".")
        raise CommandError(f"{module_name!r} is a file's name: write the module's, as in {module}:{attribute}")
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _broken(module_name, error) from error
        raise CommandError(_missing(module_name, attribute)) from None
    except SystemExit as error:
        raise CommandError(
            f"{module_name!r} can't be imported: it ends its process (SystemExit: {error.code}). Put what is to "
            f'be done only when it is run as a program under `if __name__ == "__main__":`',
            details=user_traceback(error),
        ) from error
    except Exception as error:
        raise _broken(module_name, error) from error


def _broken(module_name: str, error: Exception) -> CommandError:
    return CommandError(f"{module_name!r} can't be imported: {describe(error)}", details=user_traceback(error))


def _missing(module_name: str, attribute: str) -> str:
    here = sorted(_modules_here())
    near = difflib.get_close_matches(module_name, here, 1)
    if near:
        hint = f"did you mean {near[0]}:{attribute}?"
    elif here:
        hint = f"the modules here are: {', '.join(here[:8])}{', …' if len(here) > 8 else ''}"
    else:
        hint = "go to the folder of your program, or install it"
    return f"there is no module {module_name!r} here ({os.getcwd()}) or among what is installed: {hint}"


def _modules_here() -> Iterator[str]:
    for path in Path().iterdir():
        name = path.stem if path.suffix == ".py" else path.name if (path / "__init__.py").exists() else ""
        if name.isidentifier():
            yield name


def _list_agents(module: Any) -> str:
    names = [key for key, value in vars(module).items() if isinstance(value, Agent)]
    if names:
        return f"; the agents in it are: {', '.join(names)}"
    return '; there is no agent in it: make one, as in agent = Agent("Helper", model=...)'


def _kind(found: object) -> str:
    shown = repr(found)
    return shown if len(shown) <= 100 else f"a {type(found).__name__}"


def _advice(found: object, attribute: str) -> str:
    if isinstance(found, type) or not callable(found):
        return ": name an Agent, or a list of them"
    if type(found).__name__ in ("FastAPI", "Starlette"):
        return ": an app of your own is served by uvicorn. Name the agent, or mount create_app(agents) into the app"
    return f": if it makes one, call it in the module, as in agent = {attribute}()"


def user_traceback(error: BaseException) -> str:
    """An error as Python shows it, without the frames of Andon and of the import system."""
    told = traceback.TracebackException.from_exception(error)
    for each in _chain(told):
        frames = [frame for frame in each.stack if not _is_between(frame.filename)]
        each.stack = traceback.StackSummary.from_list(frames)
    return "".join(told.format())


def _is_between(file: str) -> bool:
    return is_ours(file) or is_loader(file) or file == importlib.__file__


def _chain(told: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    yield told
    for other in (told.__cause__, told.__context__, *(told.exceptions or ())):
        if other is not None:
            yield from _chain(other)
