# SPDX-License-Identifier: Apache-2.0
"""Every error that Andon raises, in one tree.

AndonError
├── ConfigurationError       an agent, tool or runtime that can't work as it is written
│   ├── SetupError           a run can't start with this setup: a key is missing, or an option is wrong
│   │   ├── NoModelError     the agent has no model
│   │   └── MissingExtraError a package is not installed; the message names the exact pip install
│   ├── ToolDefinitionError  a function that can't be a tool
│   ├── HookDefinitionError  an object without any hook method
│   └── SchemaError          a database with a schema that this version can't use
├── StartError               a run can't start; nothing was recorded
│   ├── EmptyPromptError     the prompt is empty
│   ├── HistoryError         `messages` that are no conversation; the text names the first wrong message
│   ├── RunIdTakenError      the run id belongs to another run
│   ├── KeyUsedError         the idempotency key was used before
│   ├── SessionBusyError     another run holds the session
│   │   └── SessionPausedError    and waits for a person's answer
│   ├── FullError            there are as many runs as all servers together may have
│   ├── BlockedError         new runs of this user, or of this agent, are refused
│   ├── UnknownRunError      the run does not exist
│   ├── UnknownSessionError  the session does not exist
│   ├── SessionExistsError   a session with that id exists already
│   ├── NotContinuableError  the run can't be continued, or can't be rolled back
│   ├── AnswersError         the answers don't match the open questions
│   ├── HandleError          a handle whose run has not begun, or has begun already
│   ├── TooDeepError         too many runs are nested, each started by a tool of the one above
│   ├── PortalError          the event loop for blocking calls broke; the next call gets a new one
│   └── InsideEventLoopError a blocking call inside a running event loop
├── ModelError               the model failed; `retryable` says whether trying again may help
│   ├── AuthenticationError  the provider does not accept the key
│   ├── RateLimitError       too many requests or tokens, or no quota left
│   ├── BadRequestError      the provider refuses the request
│   │   ├── ContextLengthError the conversation is too long for the model
│   │   └── UnsupportedContentError an image or a file that the model can't take; nothing was sent
│   ├── ModelConnectionError the provider can't be reached, or did not answer in time
│   └── ModelStreamError     the provider's stream is broken, or ended early
├── StoreError               the store could not be reached; trying again may help
│   └── LeaseLostError       the run belongs to another worker now
├── SubAgentLostError        a sub-agent had asked a person, and its run can't be found or continued
├── InstructionsError        a function for the instructions took too long, or returned no text
├── StateTooLargeError       the state of a session would exceed the limit of its store
├── ReaderBusyError          two tasks, or two threads, read from one iterator at once
├── ContextError             the messages that `context=` returned can't be sent
├── OutputError              the answer does not match `output_type`
├── ToolError                a tool call failed before or around the tool's own code
│   ├── UnknownToolError     the model named a tool that does not exist
│   ├── BadArgumentsError    the arguments are not JSON, or don't fit the tool
│   ├── BadResultError       the tool's result can't be turned into text
│   ├── ToolBlockedError     a hook, or a person, refused this call
│   ├── ToolTimeoutError     the call took longer than its tool allows
│   ├── ToolProcessError     the process of a tool could not be started, or ended before its call did
│   ├── ToolRaisedError      the tool raised this in its process; the text names the class
│   └── ThreadsExhaustedError too many abandoned threads are still running
└── IllegalTransitionError   a state change that the state table does not allow

ToolCancelled, ToolInterrupted (BaseExceptions, so that `except Exception` in a tool can't swallow them)

A cancelled run raises none of these: it returns its result. All of them can be pickled and copied with their
attributes: an error may be raised in one process and caught in another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self


class Portable:
    """An exception that can be pickled and copied with its attributes, with any constructor.

    Python unpickles an exception by calling its class with `args`. That fails if the constructor has other parameters.
    This one is unpickled without its constructor. It must come before the exception among the bases of a class.
    """

    def __reduce__(self: Any) -> tuple[Any, ...]:
        state = super().__reduce__()[2:]  # an ImportError, for example, has more than its __dict__
        return (_make_anew, (type(self), self.args), *state)


def _make_anew(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    error = kind.__new__(kind, *args)
    own: Any = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    own.__init__(error, *args)  # the built-in part: an ImportError keeps its message there
    return error


class AndonError(Portable, Exception):
    """The base of everything that Andon raises."""


class ConfigurationError(AndonError):
    """An agent, tool or runtime that can't work as it is written."""


class SetupError(ConfigurationError):
    """A run can't start with this setup: for example, a key is missing, or an option of a model is wrong.

    It is raised where a run is requested, before anything is recorded. Its message has no key and no other secret.
    """


class NoModelError(SetupError, ValueError):
    """The agent has no model."""


class MissingExtraError(SetupError, ImportError):
    """A needed package is not installed. The message has the exact `pip install`."""


class ToolDefinitionError(ConfigurationError, TypeError):
    """A function that can't be a tool."""


class HookDefinitionError(ConfigurationError, TypeError):
    """An object without any hook method."""


class SchemaError(ConfigurationError):
    """A database with a schema that this version can't use. It was not changed."""


class StartError(AndonError):
    """A run can't start. Nothing was recorded."""


class EmptyPromptError(StartError, ValueError):
    """The prompt is empty."""


class HistoryError(StartError, ValueError):
    """The `messages` are no conversation. `index` is the index of the first wrong message."""

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
        """The run that the key was used for."""


class SessionBusyError(StartError, RuntimeError):
    """Another run holds the session."""

    def __init__(self, message: str, *, run_id: str) -> None:
        super().__init__(message)
        self.run_id = run_id
        """The run that holds the session."""


class SessionPausedError(SessionBusyError):
    """The run that holds the session waits for a person's answer."""


class FullError(StartError, RuntimeError):
    """There are as many runs as all servers together may have."""


class BlockedError(StartError, RuntimeError):
    """New runs of this user, or of this agent, are refused until they are unblocked."""


class UnknownRunError(StartError, LookupError):
    """The run does not exist."""


class UnknownSessionError(StartError, LookupError):
    """The session does not exist."""


class SessionExistsError(StartError, RuntimeError):
    """A session with that id exists already. It was not changed."""


class NotContinuableError(StartError, RuntimeError):
    """The run can't be continued, or can't be rolled back."""


class AnswersError(StartError, ValueError):
    """The answers don't match the open questions. Nothing has changed."""

    def __init__(self, message: str, *, interrupts: Sequence[Any]) -> None:
        super().__init__(message)
        self.interrupts = list(interrupts)
        """The open questions."""


class HandleError(StartError, RuntimeError):
    """A handle whose run has not begun yet, or has begun already."""


class TooDeepError(StartError, RecursionError):
    """Too many runs are nested, each started by a tool of the one above it."""


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
    """The provider does not accept the key, or the key has no right to do this."""


class RateLimitError(ModelError):
    """Too many requests or tokens, which may be tried again; or no quota left, which may not."""


class BadRequestError(ModelError):
    """The provider refuses the request."""


class ContextLengthError(BadRequestError):
    """The conversation is too long for the model."""


class UnsupportedContentError(BadRequestError):
    """An image or a file that the model can't take. Nothing was sent. The message says what the model takes."""


class ModelConnectionError(ModelError):
    """The provider can't be reached, or did not answer in time."""


class ModelStreamError(ModelError):
    """The provider's stream is broken, or ended early. The part before that is kept."""


class StoreError(AndonError):
    """The store could not be reached. Whether the request took effect is unknown; trying again is safe."""

    done: str = ""
    """What was done in spite of the error, as text for the client: unlike the message, it never names the database."""


class LeaseLostError(StoreError):
    """The run belongs to another worker now, or has ended."""


class SubAgentLostError(AndonError, RuntimeError):
    """A sub-agent had asked a person, and its run can't be found, or can't be continued.

    It is unknown what the sub-agent had done, so the run that called it ends with this error.
    """


class InstructionsError(AndonError):
    """A function for the instructions took too long, or returned no text. The model was not asked."""


class StateTooLargeError(AndonError, ValueError):
    """The state of a session would exceed the limit of its store. It was not changed."""


class ReaderBusyError(AndonError, RuntimeError):
    """Another task or thread is waiting for the next event of the same iterator. That one is not affected."""


class ContextError(AndonError, ValueError):
    """The messages that the `context=` function returned can't be sent. The conversation was not changed."""


class OutputError(AndonError, ValueError):
    """The answer does not match `output_type`. `text` is the text of the model."""

    def __init__(self, message: str, *, text: str) -> None:
        super().__init__(message)
        self.text = text


class ToolError(AndonError):
    """A tool call failed before or around the tool's own code."""


class ToolSourceError(ToolError):
    """A source of tools can't be reached, or its tools can't be used: a server does not start, for example.

    A run whose tools can't be listed fails with it. Where a call meets it, the call fails, and the model is told.
    """


class UnknownToolError(ToolError):
    """The model named a tool that does not exist."""


class BadArgumentsError(ToolError):
    """The arguments are not JSON, or don't fit the tool."""


class BadResultError(ToolError):
    """The tool's result can't be turned into text."""


class ToolBlockedError(ToolError):
    """A hook, or a person, refused this call."""


class ToolTimeoutError(ToolError):
    """The call took longer than its tool allows. It is unknown what it did until then."""


class ToolProcessError(ToolError):
    """The process of a tool could not be started, or ended before its call did."""


class ToolRaisedError(ToolError):
    """The tool raised an exception in its process, of a class that is not a built-in one. The text names it."""


class ThreadsExhaustedError(ToolError):
    """Too many abandoned threads are still running."""


class IllegalTransitionError(AndonError):
    """A state change that the state table does not allow."""


class ToolCancelled(Portable, BaseException):
    """Raised by `ctx.check_cancelled()` in a tool whose run was cancelled. Not an Exception, on purpose."""


class ToolInterrupted(Portable, BaseException):
    """Raised by `ctx.interrupt()` to end the tool until a person has answered. Not an Exception, on purpose."""

    def __init__(self, questions: Sequence[Any]) -> None:
        super().__init__(", ".join(question.name for question in questions))
        self.questions = questions


def describe(error: BaseException) -> str:
    """An error as text: its class and its message. Never raises."""
    text = say(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def confide(error: BaseException) -> str:
    """The same for users of a run: without the message of a store's error, which may name the database."""
    if isinstance(error, StoreError | SchemaError) and not isinstance(error, LeaseLostError):
        return f"{type(error).__name__}: the database could not be asked; the log says why"
    return describe(error)


def say(thing: object) -> str:
    """The `str` of any object, with characters that UTF-8 can encode. Never raises."""
    return _written(str, thing)


def show(thing: object) -> str:
    """The same with `repr`."""
    return _written(repr, thing)


def _written(write: Callable[[object], str], thing: object) -> str:
    # This calls code that is not ours while a run ends, and the end must not depend on it. So everything that it raises
    # is caught, SystemExit too. Nothing is awaited here, so no CancelledError of the host can be caught.
    try:
        return write(thing).encode("utf-8", "replace").decode()
    except BaseException as error:  # noqa: BLE001 - the boundary: the text names what it raised
        return f"<{type(thing).__name__}, whose {write.__name__} failed: {type(error).__name__}>"
