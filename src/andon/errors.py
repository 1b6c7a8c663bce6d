# SPDX-License-Identifier: Apache-2.0
"""Every error that Andon raises, in one tree.

AndonError
├── ConfigurationError       an agent, tool or runtime that can't work as it is written
│   ├── SetupError           a run can't start as things are set up: there is no key, or an option can't be right
│   │   ├── NoModelError     the agent has no model
│   │   └── MissingExtraError a package is not installed; the message names the exact pip install
│   ├── ToolDefinitionError  a function that can't be a tool
│   ├── HookDefinitionError  an object that has none of the hooks' methods
│   └── SchemaError          a database that this version can't use as it is
├── StartError               what keeps a run from starting; nothing was recorded
│   ├── EmptyPromptError     there is nothing to send
│   ├── HistoryError         `messages` that are no conversation; the message names the first that is wrong
│   ├── RunIdTakenError      the run id belongs to another run
│   ├── KeyUsedError         the idempotency key was used before
│   ├── SessionBusyError     another run holds the session
│   │   └── SessionPausedError    and waits for a person's answer
│   ├── BlockedError         new runs of this user, or of this agent, are refused
│   ├── UnknownRunError      there is no such run
│   ├── UnknownSessionError  there is no such session
│   ├── SessionExistsError   a session of that id is there already
│   ├── NotContinuableError  the run can't go on, or can't be taken back
│   ├── AnswersError         not the answers to the questions that are open
│   ├── HandleError          a handle that has not begun, or has begun already
│   ├── TooDeepError         the run would be below too many others, each started by a tool of the one above
│   ├── PortalError          the event loop for blocking calls broke; the next call gets a new one
│   └── InsideEventLoopError a blocking call inside a running event loop
├── ModelError               the model failed; says whether trying again may help
│   ├── AuthenticationError  the provider does not know the key, or the key may not do this
│   ├── RateLimitError       too many requests or tokens, or no quota left
│   ├── BadRequestError      the provider refuses the request as it is
│   │   └── ContextLengthError the conversation is too long for the model
│   ├── ModelConnectionError the provider can't be reached, or did not answer in time
│   └── ModelStreamError     what the provider sent is broken, or ended early
├── StoreError               the store could not be asked; trying again may help
│   └── LeaseLostError       the run belongs to another worker now
├── SubAgentLostError        a sub-agent had asked a person, and its run can't be found or continued
├── InstructionsError        a function for the instructions took too long, or returned no text
├── StateTooLargeError       the state of a session would be larger than its store takes
├── ReaderBusyError          two tasks, or two threads, read from one iterator at once
├── ContextError             what `context=` returned can't be sent
├── OutputError              the answer is not what `output_type` asked for
├── ToolError                a tool call failed before or around the tool's own code
│   ├── UnknownToolError     the model named a tool that is not there
│   ├── BadArgumentsError    the arguments are not JSON, or don't fit the tool
│   ├── BadResultError       the tool's result can't be turned into text
│   ├── ToolBlockedError     a hook, or a person, refused this call
│   ├── ToolTimeoutError     the call took longer than its tool may
│   └── ThreadsExhaustedError too many abandoned threads are still running
└── IllegalTransitionError   a step that the state table does not have

ToolCancelled, ToolInterrupted (BaseExceptions, so that `except Exception` in a tool can't swallow them)

A cancelled run raises none of these: it returns its result. Each of them survives pickling and copying, with all that
it says: it may be raised in a worker process and caught in another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self


class Portable:
    """An exception that survives pickling and copying with its attributes, whatever its constructor takes.

    Python makes an exception anew by calling its class with `args`, which fails where the constructor has parameters
    of its own. This one is made anew without its constructor. It stands before the exception among a class's bases.
    """

    def __reduce__(self: Any) -> tuple[Any, ...]:
        state = super().__reduce__()[2:]  # an ImportError, say, has more than its __dict__
        return (_make_anew, (type(self), self.args), *state)


def _make_anew(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    error = kind.__new__(kind, *args)
    own: Any = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    own.__init__(error, *args)  # Python's own part of it: an ImportError keeps its message there
    return error


class AndonError(Portable, Exception):
    """The base of everything that Andon raises."""


class ConfigurationError(AndonError):
    """An agent, tool or runtime that can't work as it is written."""


class SetupError(ConfigurationError):
    """A run can't start as things are set up: a key is missing, say, or a model's option can't be right.

    It is raised where a run is asked for, before anything is recorded. Its message has no key, and no other secret.
    """


class NoModelError(SetupError, ValueError):
    """The agent has no model."""


class MissingExtraError(SetupError, ImportError):
    """A package that is needed is not installed. The message names the exact `pip install`."""


class ToolDefinitionError(ConfigurationError, TypeError):
    """A function that can't be a tool."""


class HookDefinitionError(ConfigurationError, TypeError):
    """An object that has none of the hooks' methods."""


class SchemaError(ConfigurationError):
    """A database that this version can't use as it is. It was left as it is."""


class StartError(AndonError):
    """What keeps a run from starting. Nothing was recorded."""


class EmptyPromptError(StartError, ValueError):
    """There is nothing to send."""


class HistoryError(StartError, ValueError):
    """What was given as `messages` is no conversation. `index` is the place of the first message that is wrong."""

    def __init__(self, message: str, *, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index


class RunIdTakenError(StartError, ValueError):
    """The run id belongs to another run."""

    @classmethod
    def of(cls, run_id: str) -> Self:
        return cls(f"run id {run_id!r} is taken by another run; leave run_id out to get a fresh one")


class KeyUsedError(StartError, ValueError):
    """The idempotency key was used before."""

    def __init__(self, message: str, *, run_id: str) -> None:
        super().__init__(message)
        self.run_id = run_id
        """The run that it was used for."""


class SessionBusyError(StartError, RuntimeError):
    """Another run holds the session."""

    def __init__(self, message: str, *, run_id: str) -> None:
        super().__init__(message)
        self.run_id = run_id
        """The run that holds the session."""


class SessionPausedError(SessionBusyError):
    """The run that holds the session waits for a person's answer."""


class BlockedError(StartError, RuntimeError):
    """New runs of this user, or of this agent, are refused until someone unblocks them."""


class UnknownRunError(StartError, LookupError):
    """There is no such run."""


class UnknownSessionError(StartError, LookupError):
    """There is no such session."""


class SessionExistsError(StartError, RuntimeError):
    """A session of that id is there already. It was left as it is."""


class NotContinuableError(StartError, RuntimeError):
    """The run can't go on, or can't be taken back."""


class AnswersError(StartError, ValueError):
    """Not the answers to the questions that are open. Nothing has changed."""

    def __init__(self, message: str, *, interrupts: Sequence[Any]) -> None:
        super().__init__(message)
        self.interrupts = list(interrupts)
        """The questions that are open."""


class HandleError(StartError, RuntimeError):
    """A handle that has not begun its run yet, or has begun it already."""


class TooDeepError(StartError, RecursionError):
    """The run would be below too many others, each started by a tool of the one above it."""


class PortalError(StartError, RuntimeError):
    """The event loop for blocking calls broke. Nothing has begun, and the next call gets a new one."""


class InsideEventLoopError(StartError, RuntimeError):
    """A blocking call inside a running event loop."""


class ModelError(AndonError):
    """The model failed.

    `retryable` says whether the same request may succeed if it is sent again, and `retry_after` how many seconds
    the provider asked to wait first. `status`, `code` and `request_id` are the provider's own, where it gave them.
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = False,
        retry_after: float | None = None,
        status: int | None = None,
        code: str | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after = retry_after
        self.status = status
        self.code = code
        self.request_id = request_id


class AuthenticationError(ModelError):
    """The provider does not know the key, or the key may not do this."""


class RateLimitError(ModelError):
    """Too many requests or tokens, or no quota left; only the former may be tried again."""


class BadRequestError(ModelError):
    """The provider refuses the request as it is."""


class ContextLengthError(BadRequestError):
    """The conversation is too long for the model."""


class ModelConnectionError(ModelError):
    """The provider can't be reached, or did not answer in time."""


class ModelStreamError(ModelError):
    """What the provider sent is broken, or ended early. What came before is kept."""


class StoreError(AndonError):
    """The store could not be asked. What was asked for is not known to have happened; asking again is safe."""

    done: str = ""
    """What was done all the same, in words for whoever asked: the message may name the database, and this does not."""


class LeaseLostError(StoreError):
    """The run belongs to another worker now, or has ended."""


class SubAgentLostError(AndonError, RuntimeError):
    """A sub-agent had asked a person, and its run can't be found, or can't be continued.

    What it had done is unknown, so the run that called it ends with this error.
    """


class InstructionsError(AndonError):
    """A function for the instructions took too long, or returned no text. The model was not asked."""


class StateTooLargeError(AndonError, ValueError):
    """The state of a session would be larger than its store takes. It was left as it was."""


class ReaderBusyError(AndonError, RuntimeError):
    """Another task or thread is waiting for the next event of the same iterator. That one reads on, undisturbed."""


class ContextError(AndonError, ValueError):
    """What the function given as `context=` returned can't be sent. The conversation is as it was."""


class OutputError(AndonError, ValueError):
    """The answer is not what `output_type` asked for. `text` is what the model said."""

    def __init__(self, message: str, *, text: str) -> None:
        super().__init__(message)
        self.text = text


class ToolError(AndonError):
    """A tool call failed before or around the tool's own code."""


class UnknownToolError(ToolError):
    """The model named a tool that is not there."""


class BadArgumentsError(ToolError):
    """The arguments are not JSON, or don't fit the tool."""


class BadResultError(ToolError):
    """The tool's result can't be turned into text."""


class ToolBlockedError(ToolError):
    """A hook, or a person, refused this call."""


class ToolTimeoutError(ToolError):
    """The call took longer than its tool may. What it did until then is unknown."""


class ThreadsExhaustedError(ToolError):
    """Too many abandoned threads are still running."""


class IllegalTransitionError(AndonError):
    """A step that the state table does not have."""


class ToolCancelled(Portable, BaseException):
    """Raised by `ctx.check_cancelled()` in a tool whose run was cancelled. Not an Exception, on purpose."""


class ToolInterrupted(Portable, BaseException):
    """Raised by `ctx.interrupt()` to end the tool until a person has answered. Not an Exception, on purpose."""

    def __init__(self, questions: Sequence[Any]) -> None:
        super().__init__(", ".join(question.name for question in questions))
        self.questions = questions


def describe(error: BaseException) -> str:
    """An error in one line: its kind, and what it says, as far as it can be written down. Never raises."""
    text = say(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def confide(error: BaseException) -> str:
    """The same for those who may not know which database there is, and where: what a run tells, its users read."""
    if isinstance(error, StoreError | SchemaError) and not isinstance(error, LeaseLostError):
        return f"{type(error).__name__}: the database could not be asked; the log says why"
    return describe(error)


def say(thing: object) -> str:
    """What `str` makes of a thing that isn't ours, as far as it can be written down. Never raises."""
    return _written(str, thing)


def show(thing: object) -> str:
    """The same with `repr`."""
    return _written(repr, thing)


def _written(write: Callable[[object], str], thing: object) -> str:
    # Another one's code, called where a run is brought to its end, which must not depend on it. So whatever it raises
    # is caught, a SystemExit too. Nothing is awaited here, so no CancelledError of a host can be among it.
    try:
        return write(thing).encode("utf-8", "replace").decode()
    except BaseException as error:  # noqa: BLE001 - the boundary: what it raised is said instead
        return f"<{type(thing).__name__}, whose {write.__name__} failed: {type(error).__name__}>"
