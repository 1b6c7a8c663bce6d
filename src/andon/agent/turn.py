# SPDX-License-Identifier: Apache-2.0
"""One model call: the sink that the model pushes its output to.

Every piece is shown to the readers at once and kept here, so a cut finds all that was received. A finished turn is kept
completely. Of a turn that was cut, only the complete parts stay in the conversation.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import msgspec

from andon.core.events import RunEvent
from andon.core.journal import Journal, Pen
from andon.core.run.run import LocalRun
from andon.core.states import FinishReason, Phase
from andon.errors import BadArgumentsError, ModelError, ToolError, UnknownToolError
from andon.messages import (
    UNKNOWN_USAGE,
    Block,
    Reasoning,
    Text,
    ToolCall,
    Usage,
    estimate_messages,
    estimate_tokens,
    sendable,
)
from andon.models.base import Model, ModelRequest

_WORD = r"[a-zA-Z0-9_-]{1,64}"  # compiled at its first use, like all patterns here, so that imports are fast
NO_NAME = "invalid_name"
_INCOMPLETE = {
    FinishReason.length: "the answer was cut at the limit of output tokens",
    FinishReason.context_window: "the answer was cut because the model's context window is full",
    FinishReason.refusal: "the model declined to answer",
    FinishReason.content_filter: "the answer was cut by the provider's content filter",
    FinishReason.other: "the answer is incomplete",
}


class _Reasoning:
    __slots__ = ("pen", "signature")

    def __init__(self, pen: Pen) -> None:
        self.pen = pen
        self.signature: str | None = None


class _Call:
    __slots__ = ("done", "id", "key", "name", "pieces", "whole")

    def __init__(self, key: str, call_id: str) -> None:
        self.key, self.id, self.name = key, call_id, ""
        self.pieces: list[str] = []
        self.whole: dict[str, Any] | None = None
        self.done = False

    def arguments(self) -> dict[str, Any] | None:
        """The arguments, if they are complete and are an object."""
        if self.whole is not None:
            return self.whole
        text = "".join(self.pieces)
        try:
            value = msgspec.json.decode(text) if text.strip() else {}
        except (msgspec.MsgspecError, ValueError, RecursionError):  # also a lone surrogate, and a thousand brackets
            return None
        return value if isinstance(value, dict) else None

    def complete(self) -> bool:
        # Nothing can follow the brace that closes an object, so arguments that parse are complete.
        return self.done or (bool(self.pieces) and self.arguments() is not None)


class Turn:
    """The sink of one model call."""

    __slots__ = (
        "_journal",
        "_parts",
        "_run",
        "_shut",
        "_usage",
        "_write",
        "finish_reason",
        "model",
        "quiet",
        "request",
        "sent",
        "shown",
    )

    def __init__(self, run: LocalRun, request: ModelRequest, model: Model, *, quiet: bool = False) -> None:
        self._run, self.request, self.model = run, request, model
        self.quiet = quiet
        """The output is not shown to readers: it is no part of the run's answer."""
        self._journal = Journal("", "", "") if quiet else run.journal  # a quiet turn has a journal without readers
        self._write: Callable[[str], None] | None = None
        """Writes to the text that is being received."""
        self._parts: list[Pen | _Reasoning | _Call] = []
        self._usage: Usage | None = None
        self.finish_reason: FinishReason | None = None
        """Why the answer ended, if the model has said so."""
        self._shut = False
        self.sent = self.shown = False

    async def play(self) -> None:
        self.sent = True
        await self.model.stream(self.request, self)

    def shut(self) -> None:
        """Show and keep nothing more, even if the model goes on to push output."""
        self._shut = True

    @property
    def is_shut(self) -> bool:
        return self._shut

    # -- what the model calls -----------------------------------------------------------------------------------------

    def text(self, text: str) -> None:
        if self._shut or not text:
            return
        if type(text) is not str:
            raise _wrong("text", text)
        if not text.isascii():
            text = sendable(text)
        (self._write or self._begin_text())(text)

    def reasoning(self, text: str, signature: str | None = None) -> None:
        if self._shut or (text == "" and signature is None):
            return
        if not isinstance(text, str) or not isinstance(signature, str | None):
            raise _wrong("reasoning", text, signature)
        text = sendable(text)
        part = self._parts[-1] if self._parts else None
        if not isinstance(part, _Reasoning) or part.signature is not None:
            part = _Reasoning(self._journal.pen(RunEvent.reasoning))
            self._show(part)
            self._write = None
        part.signature = signature
        if text:
            part.pen.write(text)

    def tool_call(
        self, call_id: str, name: str = "", arguments: str | dict[str, Any] = "", *, done: bool = False
    ) -> None:
        if self._shut:
            return
        if not isinstance(call_id, str) or not isinstance(name, str) or not isinstance(arguments, str | dict):
            raise _wrong("tool_call", call_id, name, arguments)
        calls = [part for part in self._parts if isinstance(part, _Call)]
        call = next((part for part in calls if part.key == call_id), None)
        if call is None:
            call = _Call(call_id, _clean(call_id, {part.id for part in calls} | _call_ids(self.request)))
            self._show(call)
            self._write = None
        call.name = name or call.name
        if isinstance(arguments, dict):
            try:  # a copy, which the model can't change later
                call.whole, done = msgspec.json.decode(msgspec.json.encode(arguments)), True
            except (TypeError, ValueError, RecursionError) as error:
                raise ModelError(f"the arguments that the model gave for {name!r} are no JSON: {error}") from None
        elif arguments:
            call.pieces.append(arguments)
        call.done = call.done or done

    def usage(
        self,
        usage: Usage | None = None,
        *,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
        reasoning_tokens: int | None = None,
    ) -> None:
        counts = (input_tokens, output_tokens, cached_tokens, reasoning_tokens)
        said = Usage(*counts) if usage is None else usage
        if not isinstance(said, Usage) or not all(
            isinstance(count, int | None) for count in msgspec.structs.astuple(said)
        ):
            raise _wrong("usage", usage, *counts)
        self._usage = said

    def finish(self, reason: FinishReason, detail: str | None = None) -> None:
        if self._shut:
            return
        try:
            self.finish_reason = FinishReason(reason)
        except ValueError:
            raise ModelError(f"the model called sink.finish with {reason!r}: it takes a FinishReason") from None
        if (text := _INCOMPLETE.get(self.finish_reason)) is not None:
            self.warn(text if detail is None else f"{text}: {detail}")

    def warn(self, text: str) -> None:
        # Also after a cut: it may be about the cut. But what a model says in each turn is said once.
        if text not in self._run.steps.warnings:
            self._run.steps.warn(text)

    def _begin_text(self) -> Callable[[str], None]:
        pen = self._journal.pen(RunEvent.run_content)
        meter = self._run.children.meter
        self._write = write = pen.write if meter is None else meter.watch(pen.write)
        self._show(pen)
        return write

    def _show(self, part: Pen | _Reasoning | _Call) -> None:
        self.shown = True
        if not self.quiet:
            self._run.phase = Phase.streaming
        self._parts.append(part)

    # -- its result ---------------------------------------------------------------------------------------------------

    def content(self) -> str:
        """All the text that was shown."""
        return "".join([part.text() for part in self._parts if isinstance(part, Pen)])

    def blocks(self, *, cut: bool) -> list[Block]:
        """The turn as blocks of a message. With `cut`, only the complete ones."""
        blocks: list[Block] = []
        for part in self._parts:
            if isinstance(part, Pen):
                text = part.text()
                if text.strip():  # blank text is refused by some providers
                    blocks.append(Text(text))
            elif isinstance(part, _Reasoning):
                if not cut or part.signature is not None:
                    blocks.append(Reasoning(part.pen.text(), part.signature))
            elif not cut or part.complete():
                # Providers refuse such a name also in the conversation, where the call has an error result.
                name = part.name if re.fullmatch(_WORD, part.name) else NO_NAME
                blocks.append(ToolCall(part.id, name, part.arguments() or {}))
        return blocks

    def problem(self, call_id: str) -> ToolError | None:
        """What is wrong with a call as the model sent it."""
        call = next(part for part in self._parts if isinstance(part, _Call) and part.id == call_id)
        if not re.fullmatch(_WORD, call.name):
            return UnknownToolError(f"there is no tool {call.name!r}")
        if call.arguments() is None:
            return BadArgumentsError(f"the arguments must be an object of JSON; got {''.join(call.pieces)[:200]!r}")
        return None

    def spent(self) -> Usage:
        """The usage that the provider reported for a finished call; unknown is not zero."""
        return self._usage or UNKNOWN_USAGE

    def spent_failed(self) -> Usage:
        """The usage of a call that failed: zero if the provider refused it before any output."""
        return self.spent_cut() if self.shown else self._usage or Usage()

    def spent_cut(self) -> Usage:
        """The usage of a call that was cut: what the provider reported, and an estimate for the rest."""
        if not self.sent:
            return Usage()
        said = self._usage or UNKNOWN_USAGE
        shown = [_text_of(part) for part in self._parts]
        return Usage(
            _estimate_sent(self.request) if said.input_tokens is None else said.input_tokens,
            max(said.output_tokens or 0, estimate_tokens(shown)),
            said.cached_tokens,
            said.reasoning_tokens,
            estimated=True,
        )


def _call_ids(request: ModelRequest) -> set[str]:
    """The call ids that the conversation has. Some servers count from 0 in every answer."""
    return {block.id for message in request.messages for block in message.content if isinstance(block, ToolCall)}


def _clean(call_id: str, taken: set[str]) -> str:
    """An id that every provider accepts, and that is unique in the conversation."""
    if re.fullmatch(_WORD, call_id) and call_id not in taken:
        return call_id
    clean = re.sub(r"[^a-zA-Z0-9_-]", "_", call_id)[:56] or "call"
    return next(name for n in itertools.count(1) if (name := f"{clean}_{n}") not in taken)


def _wrong(what: str, *given: object) -> ModelError:
    """An error at the place of the mistake. In the conversation it would be found too late."""
    kinds = ", ".join(type(value).__name__ for value in given)
    takes = "numbers" if what == "usage" else "text"
    return ModelError(f"the model called sink.{what} with {kinds}: it takes {takes}")


def _text_of(part: Pen | _Reasoning | _Call) -> str:
    if isinstance(part, _Call):
        return "".join(part.pieces)
    return (part if isinstance(part, Pen) else part.pen).text()


def _estimate_sent(request: ModelRequest) -> int:
    return estimate_tokens([request.instructions or ""]) + estimate_messages(request.messages)
