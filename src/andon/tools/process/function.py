# SPDX-License-Identifier: Apache-2.0
"""A function whose calls run in processes: `@tool(isolation="process")`."""

from __future__ import annotations

import builtins
import os
import signal
import sys
from typing import Any

import msgspec

from andon.core.receipt import Interrupt
from andon.core.states import Stopped
from andon.errors import BadResultError, ToolError, ToolInterrupted, ToolProcessError, ToolRaisedError, describe
from andon.tools.base import ToolContext, ToolOutput, internals_of
from andon.tools.process.call import ProcessCall, lost
from andon.tools.process.definition import Place
from andon.tools.process.limits import Limits
from andon.tools.process.protocol import CALL, GRACE, Call, Failure, Gone, Spec, frame

SHOWN_TAIL = 2_000
"""How much of what a tool printed is part of the error, if its process ended."""


async def call_in_process(
    name: str, place: Place, limits: Limits, arguments: dict[str, Any], ctx: ToolContext
) -> str | ToolOutput:
    """Call the function in a process, and return or raise what it does there. `arguments` are JSON."""
    internals = internals_of(ctx)
    scope = internals.scope
    call = Call(
        name,
        place.function,
        arguments,
        ctx.call_id,
        ctx.run_id,
        ctx.session_id,
        ctx.user_id,
        ctx.deadline,
        ctx.metadata,
        internals.answers,
        scope.run.runtime.max_result_bytes,
        scope.run.runtime.max_attachment_bytes,
    )
    spec = _spec_of(place, limits)
    data = GRACE.pack(scope.run.runtime.bounds.kill_seconds) + msgspec.json.encode(call)
    process = ProcessCall(scope)
    await process.perform(spec, frame(CALL, data))
    if process.answer is not None:
        if process.answer.question is not None:
            asked = process.answer.question
            raise ToolInterrupted([Interrupt("", asked.name, asked.payload)])
        if process.answer.failure is not None:
            raise _rebuilt(process.answer.failure, limits)
        return process.answer.output or ""
    if process.failure is not None:
        raise _rebuilt(process.failure, limits)
    if process.gone is None:
        raise lost(name)
    raise ended_early(name, process.gone, limits)


def _spec_of(place: Place, limits: Limits) -> Spec:
    path = [os.fsencode(os.path.abspath(each)) for each in sys.path]
    return Spec(
        os.getcwdb(),
        dict(os.environb),
        limits,
        module=place.module,
        main=os.fsencode(place.main),
        main_is_file=place.main_is_file,
        path=path,
        arguments=[os.fsencode(each) for each in sys.argv],
    )


_OURS = {each.__name__: each for each in (BadResultError, ToolError)}


def _rebuilt(failure: Failure, limits: Limits) -> Exception:
    """What the tool raised, as an exception of this process, with the traceback of that one as a note for the log."""
    error: Exception = ToolRaisedError(failure.text)
    if failure.kind == "MemoryError" and limits.memory is not None:
        error = MemoryError(f"the tool used more than {size(limits.memory)}, its limit")
    else:
        kind = _OURS.get(failure.kind) or getattr(builtins, failure.kind, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                same = kind(failure.said) if failure.said else kind()
            except Exception:  # noqa: BLE001 - some exceptions want more than a text
                same = error
            if describe(same) == failure.text:
                error = same
    error.add_note(f"In the tool's process:\n{failure.traceback}")
    return error


def ended_early(name: str, gone: Gone, limits: Limits) -> ToolProcessError:
    """Why a process ended before its call did."""
    return ToolProcessError(f"the process of {name} {how(gone, limits)}{_printed(gone)}")


def how(gone: Gone, limits: Limits) -> str:
    """How a process ended, in words."""
    if gone.error:
        return f"could not be started: {gone.error}"
    status = gone.status
    if status is None:
        return "ended"
    if status >= 0:
        return f"ended with exit code {status}"
    if limits.cpu_seconds is not None and (-status == signal.SIGXCPU or gone.cpu >= limits.cpu_seconds):
        return f"was killed: it used more than {limits.cpu:g} s of processor time, its limit"
    try:
        word = signal.Signals(-status).name
    except ValueError:
        word = f"signal {-status}"
    why = ""
    if gone.stopped is not Stopped.killed and -status == signal.SIGKILL:
        why = ", sent by another process, or by the system because memory ran out"
    elif limits.memory is not None:
        why = f"; its memory is limited to {size(limits.memory)}"
    return f"was killed by {word}{why}"


def _printed(gone: Gone) -> str:
    text = gone.output[-SHOWN_TAIL:].decode("utf-8", "replace").strip()
    return f". The end of what it printed:\n{text}" if text else ""


def size(count: int) -> str:
    return f"{count / 2**20:g} MB"
