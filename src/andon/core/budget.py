# SPDX-License-Identifier: Apache-2.0
"""How much a run may spend, in tokens and in tool calls, its children included.

A budget never stops an answer that is complete. It is checked before each model call and each tool call, and while text
streams in. A run that has used up its budget is cancelled like any other, with cause `budget`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from msgspec import Struct

from andon.errors import ConfigurationError
from andon.messages import CHARACTERS_PER_TOKEN


class Budget(Struct, frozen=True, gc=False):
    """What a run may spend. `budget=5000` is short for `budget=Budget(tokens=5000)`."""

    tokens: int | None = None
    tool_calls: int | None = None

    @classmethod
    def of(cls, given: Budget | int | None) -> Budget | None:
        budget = cls(given) if isinstance(given, int) and not isinstance(given, bool) else given
        if budget is None:
            return None
        if not isinstance(budget, cls):
            raise ConfigurationError(f"budget is {given!r}; give a number of tokens, or Budget(tokens=…, tool_calls=…)")
        for name in cls.__struct_fields__:
            value = getattr(budget, name)
            if value is not None and not (isinstance(value, int) and value >= 0):
                raise ConfigurationError(f"a budget's {name} is a whole number, 0 or more; got {value!r}")
        return budget

    def less(self, tokens: int, tool_calls: int) -> Budget:
        """The rest of the budget after so much is spent."""
        return Budget(
            None if self.tokens is None else max(0, self.tokens - tokens),
            None if self.tool_calls is None else max(0, self.tool_calls - tool_calls),
        )


class Meter:
    """Counts what a run with a budget, and all runs below it, have spent.

    `cancel` is called with the reason when the budget is used up.
    """

    __slots__ = ("_budget", "_cancel", "_lock", "_parent", "calls", "tokens")

    def __init__(
        self, cancel: Callable[[str], object], budget: Budget, parent: Meter | None, tokens: int = 0, calls: int = 0
    ) -> None:
        self._cancel: Callable[[str], object] | None = cancel
        self._budget, self._parent = budget, parent
        self.tokens, self.calls = tokens, calls  # not 0 if the run was paused in another process
        self._lock = threading.Lock()  # children may run on other threads; a cancel never takes it

    def release(self) -> None:
        """The run is over: drop the reference to it, so that it is freed without the garbage collector."""
        self._cancel = None

    def spend(self, tokens: int = 0, calls: int = 0) -> None:
        meter: Meter | None = self
        while meter is not None:
            with meter._lock:
                meter.tokens += tokens
                meter.calls += calls
            meter = meter._parent

    @property
    def left(self) -> Budget:
        return self._budget.less(self.tokens, self.calls)

    def check(self, tokens: int = 0, calls: int = 0) -> None:
        """Cancel the run if what it has spent, plus this, uses up its budget. The same for each run above it."""
        meter: Meter | None = self
        while meter is not None:
            meter._check(tokens, calls)
            meter = meter._parent

    def _check(self, tokens: int, calls: int) -> None:
        budget = self._budget
        if (cancel := self._cancel) is None:
            return
        if budget.tokens is not None and self.tokens + tokens >= budget.tokens:
            cancel(f"{self.tokens + tokens} of {budget.tokens} tokens are spent")
        elif budget.tool_calls is not None and self.calls + calls > budget.tool_calls:
            cancel(f"all {budget.tool_calls} tool calls are spent")

    def watch(self, write: Callable[[str], None]) -> Callable[[str], None]:
        """The same `write`, with a check at each piece of text: an incomplete answer may already be too long."""
        seen = 0

        def watched(text: str) -> None:
            nonlocal seen
            seen += len(text)
            write(text)
            self.check(seen // CHARACTERS_PER_TOKEN)

        return watched
