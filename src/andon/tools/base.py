# SPDX-License-Identifier: Apache-2.0
"""What a tool is: a name, a schema, and a coroutine that a cancel may cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol

import msgspec
from msgspec import Struct

from andon.core.receipt import Interrupt
from andon.errors import ToolCancelled, ToolInterrupted
from andon.messages import Media
from andon.tools.internals import CallInternals

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # its default is for type checkers: `ToolContext` alone is one of Any

    Deps = TypeVar("Deps", default=Any)
else:
    from typing import TypeVar

    Deps = TypeVar("Deps")

NO_OUTPUT = "(no output)"
"""The result of a tool that returned nothing: providers refuse empty text."""

ATTACHED = "(attached)"
"""The text of a result that is images or files alone."""


class ToolOutput(Struct, frozen=True):
    """The result of a tool that returns images or files, with or without text."""

    text: str
    attachments: list[Media] = []


class Undo(Protocol):
    """Undoes calls of one tool."""

    def bind(self, bound: Mapping[str, Any], ctx: ToolContext) -> Callable[[], Any]:
        """The sync or async function that undoes a call with these arguments."""
        ...


class Traits(Struct, frozen=True):
    """How an agent has to treat a tool. A tool says so with an attribute `traits`."""

    approval: bool = False
    """A person is asked before the call runs."""
    timeout: float | None = None
    """Seconds after which the call is cut, alone."""
    idempotent: bool = False
    """Calling it twice does no more than calling it once."""
    finish: bool = False
    """A cancel lets a call that has started finish, unless it is one with `force`."""
    finish_within: float | None = None
    """How many seconds such a call has from the cancel on. None: what the cancel, or the runtime, says."""
    undo: Undo | None = None
    """What undoes a call that was cut."""


PLAIN = Traits()


def traits_of(tool: Tool) -> Traits:
    return getattr(tool, "traits", PLAIN)


class ToolContext(Generic[Deps]):
    """What a tool can learn about its call. A parameter annotated `ToolContext` gets it.

    >>> @tool
    ... async def search(query: str, ctx: ToolContext) -> str: ...

    `ToolContext[Shop]` tells type checkers that `ctx.deps` is a `Shop`: what `agent.run(…, deps=shop)` was given.
    """

    __slots__ = (
        "_internals",
        "call_id",
        "deadline",
        "deps",
        "metadata",
        "run_id",
        "session_id",
        "user_id",
    )

    def __init__(
        self,
        internals: CallInternals,
        *,
        run_id: str,
        session_id: str,
        user_id: str | None,
        deadline: float | None,
        metadata: dict[str, Any] | None = None,
        deps: Any = None,
    ) -> None:
        self._internals = internals
        self.call_id = internals.scope.call_id
        """The id of the call. It is the same for every attempt at it, so it serves as an idempotency key."""
        self.run_id, self.session_id, self.user_id = run_id, session_id, user_id
        self.deadline = deadline
        """When the run's `timeout` is up, as `time.time()` counts it; None without a limit."""
        self.metadata = {} if metadata is None else metadata
        """The dict that the caller gave the run. It is stored with the run."""
        self.deps: Deps = deps
        """What the caller gave the run's tools, hooks and instructions. It is stored nowhere."""

    @property
    def cancelled(self) -> bool:
        """True once the call is cut: by a cancel of the run with mode `now`, its own time limit, or a cancel of this
        call alone. While a cancel lets the call finish (`on_cancel="finish"`), it is False. Cheap enough to read in a
        tight loop.
        """
        scope = self._internals.scope
        scope.watches_cancel = True
        return scope.cancelled

    def check_cancelled(self) -> None:
        """Raise `ToolCancelled` if the run was cancelled: a BaseException, so that no `except Exception` catches it."""
        if self.cancelled:
            raise ToolCancelled

    def on_cancel(self, callback: Callable[[], object]) -> Callable[[], object]:
        """Have `callback` called at once, from the run's loop, when the run is cancelled.

        For breaking a blocking call that can't look at `cancelled`: `ctx.on_cancel(connection.interrupt)`. Returns a
        function that removes the callback.
        """
        if not callable(callback):
            raise TypeError(f"ctx.on_cancel takes a function, not {callback!r}")
        scope = self._internals.scope
        scope.watches_cancel = True
        return scope.on_cancel(callback)

    def on_undo(self, step: Callable[[], object]) -> Callable[[], object]:
        """Have `step` called if the call is cut, after it has ended. Steps are called in the reverse order.

        For what the call has done so far: `ctx.on_undo(lambda: disk.delete(copy))`. Sync steps run in a thread, async
        ones on the run's loop, and all together have `Runtime(undo_seconds=…)`. A call that ends by itself, with a
        result or an error, is not undone. Safe from any thread of the tool. Returns a function that removes the step.
        """
        if not callable(step):
            raise TypeError(f"ctx.on_undo takes a function, not {step!r}")
        return self._internals.scope.on_undo(step)

    def interrupt(self, name: str, payload: Any = None) -> Any:
        """Ask a person, and return the answer.

        The tool ends here and the run pauses, until `agent.continue_run` brings an answer. Then the tool is entered
        again from its beginning, and this call returns. So ask before you do what must not be done twice. A refusal
        (`False`, or `Deny`) does not come back here: the model is told.
        """
        if not isinstance(name, str) or not name:
            raise TypeError(f"an interrupt's name must be text, not {name!r}")
        try:
            payload = msgspec.json.decode(msgspec.json.encode(payload))
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"the payload of interrupt {name!r} can't be written as JSON: {error}") from None
        if answers := self._internals.answers:
            return answers.pop(0)
        raise ToolInterrupted([Interrupt("", name, payload)])


def internals_of(ctx: ToolContext) -> CallInternals:
    """What our own kinds of tools need of a call, and no user's tool does."""
    return ctx._internals


class Tool(Protocol):
    """An object that an agent can be given as a tool."""

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

    async def invoke(self, bound: dict[str, Any], ctx: ToolContext) -> str | ToolOutput:
        """Do it, and return the result: text, or text with images and files."""
        ...
