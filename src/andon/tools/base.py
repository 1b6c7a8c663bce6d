# SPDX-License-Identifier: Apache-2.0
"""What a tool is: a name, a schema, and a coroutine that a cancel may cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol

import msgspec
from msgspec import Struct

from andon.core.events import Event
from andon.core.receipt import Interrupt
from andon.core.run.tool_call import CallScope
from andon.errors import ToolCancelled, ToolInterrupted

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # its default is for type checkers: `ToolContext` alone is one of Any

    Deps = TypeVar("Deps", default=Any)
else:
    from typing import TypeVar

    Deps = TypeVar("Deps")

NO_OUTPUT = "(no output)"
"""What the model is told when there is nothing to tell: providers refuse empty text."""


class Traits(Struct, frozen=True):
    """What an agent may know of a tool besides how to call it. A tool says so with an attribute `traits`."""

    approval: bool = False
    """A person is asked before the call runs."""
    timeout: float | None = None
    """Seconds after which the call is cut, alone."""
    idempotent: bool = False
    """Calling it twice does no more than calling it once."""


PLAIN = Traits()


def traits_of(tool: Tool) -> Traits:
    return getattr(tool, "traits", PLAIN)


class ToolContext(Generic[Deps]):
    """What a tool may know of the call that it serves. Ask for it with a parameter annotated `ToolContext`.

    >>> @tool
    ... async def search(query: str, ctx: ToolContext) -> str: ...

    `ToolContext[Shop]` says the same, and that `ctx.deps` is a `Shop`: what `agent.run(…, deps=shop)` was given.
    """

    __slots__ = (
        "_answers",
        "_scope",
        "call_id",
        "deadline",
        "deps",
        "metadata",
        "passed_on",
        "run_id",
        "session_id",
        "user_id",
    )

    def __init__(
        self,
        scope: CallScope,
        *,
        run_id: str,
        session_id: str,
        user_id: str | None,
        deadline: float | None,
        answers: Sequence[Any] = (),
        passed_on: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        deps: Any = None,
    ) -> None:
        self._scope = scope
        self._answers = list(answers)
        self.passed_on = {} if passed_on is None else passed_on
        """The answers to what other runs ask, by their questions' ids."""
        self.call_id = scope.call_id
        """The call's id; the same for every attempt at it, so it serves as an idempotency key."""
        self.run_id, self.session_id, self.user_id = run_id, session_id, user_id
        self.deadline = deadline
        """When the run's time is up, as `time.time()` counts it; None without a limit."""
        self.metadata = {} if metadata is None else metadata
        """What the caller gave the run, and is kept with it."""
        self.deps: Deps = deps
        """What the caller gave the run's tools, hooks and instructions. It is kept nowhere."""

    def relay(self, event: Event) -> None:
        """Show an event of another run in the stream of this one. Called on the run's loop."""
        self._scope.relay(event)

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

    def interrupt(self, name: str, payload: Any = None) -> Any:
        """Ask a person, and return the answer.

        The tool ends here, and the run pauses, until `agent.continue_run` brings an answer; then the tool is entered
        again from its beginning, and this call returns. So ask before you do what must not be done twice. A refusal
        (`False`, or `Deny`) does not come back here: the model is told.
        """
        if not isinstance(name, str) or not name:
            raise TypeError(f"an interrupt's name must be text, not {name!r}")
        try:
            payload = msgspec.json.decode(msgspec.json.encode(payload))
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"the payload of interrupt {name!r} can't be written as JSON: {error}") from None
        if self._answers:
            return self._answers.pop(0)
        raise ToolInterrupted([Interrupt("", name, payload)])

    def pass_on(self, questions: Sequence[Interrupt]) -> dict[str, Any]:
        """Ask all that another run asks, and return the answers, refusals too, by the questions' ids."""
        if unanswered := [question for question in questions if question.id not in self.passed_on]:
            raise ToolInterrupted(unanswered)
        return {question.id: self.passed_on[question.id] for question in questions}

    def delivered(self, answers: Iterable[str]) -> None:
        """These answers have reached the run that asked. A later question may have the same id: they are not for it."""
        for question_id in answers:
            self.passed_on.pop(question_id, None)


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
