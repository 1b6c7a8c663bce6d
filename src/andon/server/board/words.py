# SPDX-License-Identifier: Apache-2.0
"""How a run ended, in plain English: one line for a list, and sentences for the page of the run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from andon.core.receipt import Receipt, ToolReceipt
from andon.core.states import CancelCause, CancelMode, RunStatus, Stopped, ToolOutcome

MOST_NAMES = 8
"""The most calls or leftovers that one line names."""

CAUSES = {
    CancelCause.user: "on request",
    CancelCause.caller: "by the program that called it",
    CancelCause.disconnect: "because its client went away",
    CancelCause.deadline: "because its time was over",
    CancelCause.budget: "because its budget was spent",
    CancelCause.superseded: "because a newer run took its place",
    CancelCause.parent: "with the run that started it",
    CancelCause.shutdown: "because its server shut down",
    CancelCause.lost: "because its server was lost",
}
"""A cause that is not here is called by its name."""

OUTCOMES = {
    ToolOutcome.completed: "finished",
    ToolOutcome.abandoned: "abandoned, may still run",
    ToolOutcome.not_started: "never started",
    ToolOutcome.compensated: "cut and undone",
}
"""An outcome that is not here is called by its name."""

_CUT = {
    ToolOutcome.cut: "cut",
    ToolOutcome.abandoned: "abandoned",
    ToolOutcome.not_started: "never started",
    ToolOutcome.compensated: "undone",
}
_STOPPED = {
    Stopped.asked: "its process ended when it was asked to",
    Stopped.killed: "its process was killed",
}


def duration(seconds: float) -> str:
    """A time span that may be very short: "850 µs", "2.1 ms", "1.4 s", "2 min 05 s"."""
    if seconds < 0.000_999_5:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.{1 if seconds < 0.009_95 else 0}f} ms".replace(".0 ", " ")
    if seconds < 59.95:
        return f"{seconds:.1f} s".replace(".0 ", " ")
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def describe_end(status: RunStatus, receipt: Receipt | None, error: str | None) -> str:
    """One line: "stopped in 2.1 ms by ada (wrong city); cut search; left over: thread of fetch"."""
    if status is RunStatus.error:
        return error or "failed"
    if receipt is None:
        return status.value.lower()
    cut = defaultdict[str, list[str]](list)
    for call in receipt.tools:
        if call.outcome in _CUT:
            cut[_CUT[call.outcome]].append(call.name)
    reason = f" ({receipt.reason})" if receipt.reason else ""
    parts = [f"stopped in {duration(receipt.latency)} {_why(receipt)}{reason}"]
    parts += [f"{outcome} {_names(names)}" for outcome, names in cut.items()]
    if receipt.leftovers:
        parts.append(f"left over: {_names(receipt.leftovers)}")
    return "; ".join(parts)


def describe_receipt(receipt: Receipt) -> list[str]:
    """Sentences: why and when the run was cancelled, how each of its calls ended, and what is left over."""
    return list(_sentences(receipt))


def _sentences(receipt: Receipt) -> Iterator[str]:
    reason = f": “{receipt.reason}”" if receipt.reason else ""
    by = f" by {receipt.by}" if receipt.by and receipt.cause is not CancelCause.user else ""
    mode = "" if receipt.mode is CancelMode.now else f" (mode {receipt.mode.value})"
    yield f"Cancelled {_why(receipt)}{by}{reason}{mode}."
    yield f"It ended {duration(receipt.latency)} after the cancel, which found it in the phase “{receipt.phase.value}”."
    for call in receipt.tools:
        yield f"{call.name}: {_how(call)}."
        if call.receipt is not None:
            yield from (f"Inside {call.name}: {each}" for each in _sentences(call.receipt))
    yield f"Left over: {', '.join(receipt.leftovers)}." if receipt.leftovers else "Nothing is left over."


def _why(receipt: Receipt) -> str:
    if receipt.cause is CancelCause.user and receipt.by:
        return f"by {receipt.by}"
    return CAUSES.get(receipt.cause, f"with the cause {receipt.cause.value}")


def _how(call: ToolReceipt) -> str:
    outcome = "was let finish" if call.let_finish else OUTCOMES.get(call.outcome, call.outcome.value)
    stopped = [_STOPPED[call.stopped]] if call.stopped is not None else []
    return "; ".join([outcome, *stopped, *([f"not undone: {call.undo}"] if call.undo else [])])


def _names(names: list[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
