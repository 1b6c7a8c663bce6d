# SPDX-License-Identifier: Apache-2.0
"""What a tool is: a name, a schema, and a coroutine that a cancel may cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from andon.core.scope import CallScope
from andon.errors import ToolCancelled

NO_OUTPUT = "(no output)"
"""What the model is told when there is nothing to tell: providers refuse empty text."""


class ToolContext:
    """What a tool may know of the call that it serves. Ask for it with a parameter annotated `ToolContext`.

    >>> @tool
    ... async def search(query: str, ctx: ToolContext) -> str: ...
    """

    __slots__ = ("_scope", "call_id", "deadline", "run_id", "session_id", "user_id")

    def __init__(
        self, scope: CallScope, *, run_id: str, session_id: str, user_id: str | None, deadline: float | None
    ) -> None:
        self._scope = scope
        self.call_id = scope.call_id
        """The call's id; the same for every attempt at it, so it serves as an idempotency key."""
        self.run_id, self.session_id, self.user_id = run_id, session_id, user_id
        self.deadline = deadline
        """When the run's time is up, as `time.time()` counts it; None without a limit."""

    @property
    def cancelled(self) -> bool:
        """True once the run was cancelled, with mode `now`. Cheap enough to ask in a tight loop."""
        self._scope.heeding = True
        return self._scope.cancelled

    def check_cancelled(self) -> None:
        """Raise if the run was cancelled: a BaseException, so that no `except Exception` swallows it."""
        if self.cancelled:
            raise ToolCancelled

    def on_cancel(self, callback: Callable[[], object]) -> Callable[[], object]:
        """Have `callback` called at once, from the run's loop, when the run is cancelled.

        For breaking a blocking call that can't look at `cancelled`: `ctx.on_cancel(connection.interrupt)`. Returns a
        function that takes the callback back.
        """
        self._scope.heeding = True
        return self._scope.on_cancel(callback)


class Tool(Protocol):
    """What an agent can be given to use."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of the arguments: an object."""
        ...

    def bind(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Check the model's arguments and turn them into what `invoke` takes. Raises `BadArgumentsError`."""
        ...

    async def invoke(self, bound: dict[str, Any], ctx: ToolContext) -> str:
        """Do it, and return the result as text."""
        ...
