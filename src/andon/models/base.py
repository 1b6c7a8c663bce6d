# SPDX-License-Identifier: Apache-2.0
"""The protocol of models: a model is given a request and a sink, and pushes what it receives to the sink.

So there is no generator to close, and what was received before a cut is in the sink already. A cut reaches the model as
one `CancelledError` at the `await` where it waits. The model closes what it opened, and lets the error through.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct

from andon.core.states import FinishReason
from andon.errors import ConfigurationError
from andon.messages import Block, Message, Usage

__all__ = [
    "FinishReason",
    "Model",
    "ModelRequest",
    "OutputSpec",
    "Sink",
    "ToolSpec",
    "check_content",
    "check_model",
    "check_setup",
]


class ToolSpec(Struct, frozen=True, gc=False):
    """A tool, as a model sees it."""

    name: str
    description: str
    parameters: dict[str, Any]
    """A JSON schema of an object."""


class OutputSpec(Struct, frozen=True, gc=False):
    """The form that an answer must have."""

    name: str
    schema: dict[str, Any]
    """A JSON schema of an object."""


class ModelRequest(Struct, frozen=True, gc=False):
    """What a model is asked."""

    messages: list[Message]
    instructions: str | None
    tools: list[ToolSpec]
    output: OutputSpec | None = None
    """If set, the answer's text must be JSON of this form. A model that can't enforce it may ignore it."""


class Sink(Protocol):
    """Where a model puts what it receives, one plain call each.

    Calls after a cut are ignored, except `usage` and `warn`: the provider's numbers are always taken, and so is what
    went wrong while the model ended.
    """

    def text(self, text: str) -> None:
        """A piece of the answer."""
        ...

    def reasoning(self, text: str, signature: str | None = None) -> None:
        """A piece of the model's reasoning. A signature completes the block."""
        ...

    def tool_call(
        self, call_id: str, name: str = "", arguments: str | dict[str, Any] = "", *, done: bool = False
    ) -> None:
        """A tool call, whole (with a dict, or `done`) or in pieces of JSON text that share the call's id."""
        ...

    def usage(
        self,
        usage: Usage | None = None,
        *,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
        reasoning_tokens: int | None = None,
    ) -> None:
        """The cost of the call so far. Each report replaces the one before."""
        ...

    def finish(self, reason: FinishReason, detail: str | None = None) -> None:
        """Why the answer ends, once, at its end. `detail` is what the provider says about it, if it says more.

        The result has the reason, and a warning for those that leave the answer incomplete.
        """
        ...

    def warn(self, text: str) -> None:
        """Something that the caller should know and that is not a failure. It becomes one of the result's warnings."""
        ...


class Model(Protocol):
    """A language model.

    It may also have a `provider`: the name of the company that runs it, for people to read. If OpenTelemetry's
    conventions call that provider otherwise, `telemetry_name` is their name: `"aws.bedrock"` for Amazon.

    It may have a method `check_setup()`. It is called before a run starts, raises `SetupError` if no request can be
    sent as the model is set up, and must not wait.

    It may have a method `check_content(blocks, *, in_result)`. It is called with the blocks of a prompt before the run
    starts, and with what a tool returned (`in_result`). It raises `UnsupportedContentError` for an image or a file that
    the model can't take, and must not wait.
    """

    @property
    def id(self) -> str:
        """The model's name, as its provider calls it."""
        ...

    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        """Answer the request by pushing to the sink, and return when the answer is complete.

        Raises `ModelError`, with `retryable=True` if another attempt may succeed.
        """
        ...


def check_model(model: object) -> None:
    """Raise for an object that is not a model."""
    stream = getattr(model, "stream", None)
    if isinstance(model, type) or not callable(stream):
        raise ConfigurationError(f"{model!r} is no model: give an object that has the method stream(request, sink)")
    if inspect.isasyncgenfunction(stream):
        raise ConfigurationError(f"{model!r} yields, but a model pushes: let stream(request, sink) call sink.text(…)")


def check_setup(part: object) -> None:
    """Call the `check_setup` of a model, or of a part that uses one, if it has one."""
    check = getattr(part, "check_setup", None)
    if check is not None:
        check()


def check_content(model: object, blocks: Sequence[Block], *, in_result: bool = False) -> None:
    """Call the `check_content` of a model, if it has one."""
    check = getattr(model, "check_content", None)
    if check is not None:
        check(blocks, in_result=in_result)
