# SPDX-License-Identifier: Apache-2.0
"""A tool with which the model runs commands. A cancel ends the command, with all that it has started.

It is no sandbox. A command has the same rights as this program: it can read and delete files, use the network and start
programs. `cwd` is where it begins, not where it must stay. `env` hides variables from it, but not other sources of the
same values. If that is too much, use `approval=True`, or run the program in a container.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from andon.core.receipt import is_seconds
from andon.errors import BadArgumentsError, ToolDefinitionError, ToolProcessError
from andon.tools.base import NO_OUTPUT, ToolContext, Traits, internals_of
from andon.tools.process.call import ProcessCall, lost
from andon.tools.process.definition import check_platform
from andon.tools.process.function import how
from andon.tools.process.limits import NO_LIMITS, Limits, check_limits
from andon.tools.process.protocol import Gone, Spec

ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ")
"""The variables that a command gets without `env`, if they are set here."""


class Shell:
    """A tool that runs commands in `/bin/sh`. An agent has it only if it is given one.

    >>> from andon.tools.shell import Shell
    >>> Agent(name="Builder", model=model, tools=[Shell(cwd="project", timeout=60, env=["PATH", "HOME"])])

    It is no sandbox: a command has the same rights as this program. `approval=True` asks a person before each.

    The command gets the variables of the environment that `env` names, and no other. What it prints is shown as
    `tool_output` events while it runs. The model gets the last `max_output` bytes of it, and the exit code. A command
    that takes longer than `timeout` seconds is ended; the model is told so, and gets what it had printed. What a
    command leaves in the background ends with it. `as_list=True` takes a list of words instead of a line, and runs it
    without a shell. `limits` bounds what each process may use.
    """

    def __init__(
        self,
        *,
        cwd: str | os.PathLike[str] | None = None,
        timeout: float | None = 120,
        env: Iterable[str] = ENVIRONMENT,
        name: str = "shell",
        description: str | None = None,
        max_output: int = 32 * 1024,
        approval: bool = False,
        as_list: bool = False,
        limits: Limits = NO_LIMITS,
    ) -> None:
        check_platform(f"Shell(name={name!r})")
        if cwd is not None and not Path(cwd).is_dir():
            raise ToolDefinitionError(f"Shell(cwd={os.fspath(cwd)!r}): there is no such directory")
        if not is_seconds(timeout):
            raise ToolDefinitionError(f"Shell(timeout={timeout!r}): it is a number of seconds, or None for no limit")
        names = [] if isinstance(env, str | Mapping) else list(env)
        if isinstance(env, str | Mapping) or not all(isinstance(each, str) for each in names):
            raise ToolDefinitionError('env takes the names of variables, as in env=["PATH", "HOME"]')
        if values := [each for each in names if "=" in each]:
            raise ToolDefinitionError(f"env takes names, not values; set the variable {values[0].split('=')[0]} here")
        if not isinstance(max_output, int) or not 0 < max_output <= 2**24:
            raise ToolDefinitionError(f"Shell(max_output={max_output!r}): it is a number of bytes, up to {2**24:,}")
        self.name, self.traits = name, Traits(approval, timeout)
        self._cwd, self._env, self._max_output = cwd, names, max_output
        self._as_list, self._limits = as_list, check_limits(limits)
        self.description = description or (
            f"Run a {'program' if as_list else 'command in /bin/sh'}, and return what it prints, and its exit code."
        )

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        command: dict[str, Any] = {"type": "string", "description": "What the shell is to run."}
        if self._as_list:
            words = {"type": "array", "items": {"type": "string"}}
            command = {**words, "description": "The program, and each of its arguments."}
        return {
            "type": "object",
            "properties": {"command": command},
            "required": ["command"],
            "additionalProperties": False,
        }

    def bind(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Check the model's command. Raises `BadArgumentsError`."""
        command = arguments.get("command")
        words = command if self._as_list else [command]
        wanted = "a list of texts, the first of them a program" if self._as_list else "a text"
        if len(arguments) != 1 or not isinstance(words, list) or not words or not words[0]:
            raise BadArgumentsError(f"{self.name} takes `command`, {wanted}, and nothing else")
        if not all(isinstance(word, str) and "\0" not in word for word in words):
            raise BadArgumentsError(f"{self.name}: `command` must be {wanted}, without zero bytes")
        return arguments

    async def invoke(self, bound: dict[str, Any], ctx: ToolContext) -> str:
        """Run the command, and return what it printed and its exit code."""
        scope = internals_of(ctx).scope
        words = bound["command"] if self._as_list else ["/bin/sh", "-c", bound["command"]]
        spec = Spec(
            self._folder(),
            {os.fsencode(name): os.environb[os.fsencode(name)] for name in self._env if name in os.environ},
            self._limits,
            scope.run.runtime.bounds.kill_seconds,
            self._max_output,
            arguments=[os.fsencode(word) for word in words],
        )
        process = ProcessCall(scope)
        try:
            await process.perform(spec)
        except asyncio.CancelledError:
            if process.gone is not None:
                scope.so_far = f". It had printed:\n{_printed(process.gone)}"
            raise
        if process.failure is not None:
            raise ToolProcessError(f"the command could not be started: {process.failure.text}")
        if process.gone is None:
            raise lost(self.name)
        if process.gone.status is None:
            raise ToolProcessError(f"the command {how(process.gone, self._limits)}")
        return self._told(process.gone)

    def _folder(self) -> bytes:
        return os.fsencode(os.path.abspath(self._cwd or ""))

    def _told(self, gone: Gone) -> str:
        ended = how(gone, self._limits).removeprefix("ended with ")
        return f"{_printed(gone)}\n[{ended}]"


def _printed(gone: Gone) -> str:
    text = gone.output.decode("utf-8", "replace").rstrip()
    if gone.missed:
        text = f"[the first {gone.missed:,} bytes are left out]\n{text}"
    return text or NO_OUTPUT
