# SPDX-License-Identifier: Apache-2.0
"""Spans that are open, and how each of them ends exactly once.

They are in a dict, and only who takes one out ends it: the work itself when it is over, or the run's end for what was
cut, abandoned or lost with its loop. What comes later, from whatever thread, finds nothing.

Whatever a tracer or an exporter does wrong is logged and forgotten: no run fails because of who watches it.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, ParamSpec

from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.metrics import Histogram, MeterProvider
from opentelemetry.trace import (
    Link,
    NoOpTracerProvider,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
    set_span_in_context,
)

from andon.errors import say
from andon.telemetry.metrics import Instruments

log = logging.getLogger(__name__)
P = ParamSpec("P")
Facts = dict[str, Any]

REMEMBERED = 1000
"""How many ended runs can be linked to by those that go on with them."""

RUN, TURN, MODEL, CALL = "run", "turn", "model", "call "


def harmless(method: Callable[P, None]) -> Callable[P, None]:
    """The boundary to code that isn't ours: tracers, exporters, whatever they call."""

    @functools.wraps(method)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception:
            log.exception("telemetry failed; the run goes on without")

    return guarded


class Tracing:
    """Whom to tell: a tracer and instruments, for one pair of providers."""

    def __init__(self, tracers: TracerProvider | None, meters: MeterProvider | None, content: bool) -> None:
        self.tracers, self.meters, self.content = tracers, meters, content
        self.tracer = (tracers or NoOpTracerProvider()).get_tracer("andon")
        self.instruments = Instruments(meters)
        self._lock = threading.Lock()
        self._ended: dict[str, SpanContext] = {}

    def remember(self, run_id: str, span: SpanContext) -> None:
        """A later run may go on with this one."""
        with self._lock:
            self._ended[run_id] = span
            if len(self._ended) > REMEMBERED:
                del self._ended[next(iter(self._ended))]

    def find(self, run_id: str) -> SpanContext | None:
        return self._ended.get(run_id)


class _Part:
    """A span that is open."""

    __slots__ = ("began", "context", "labels", "span", "timer")

    def __init__(self, span: Span, parent: Context, labels: Facts, timer: Histogram | None) -> None:
        self.span, self.context = span, set_span_in_context(span, parent)
        self.labels, self.timer = labels, timer
        self.began = time.perf_counter()


class Spans:
    """Spans that are open: the run's, its turn's, its model call's, and one for each of its tool calls."""

    __slots__ = ("_open", "_tracing")

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._open: dict[str, _Part] = {}

    def _begin(
        self,
        key: str,
        name: str,
        facts: Facts,
        labels: Facts,
        timer: Histogram | None = None,
        before: SpanContext | None = None,
        parent: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> None:
        if parent is None:  # said, not taken from what is current: a hook may have changed that
            above = self._open.get(RUN) if key == TURN else self._open.get(TURN) or self._open.get(RUN)
            parent = contexts.get_current() if above is None else above.context
        links = [] if before is None else [Link(before)]
        span = self._tracing.tracer.start_span(name, parent, kind, facts, links)
        self._open[key] = _Part(span, parent, labels, timer)

    @harmless
    def _end(
        self,
        key: str,
        facts: Facts | None = None,
        labels: Facts | None = None,
        error: Exception | str | None = None,
        *,
        describe: bool = False,
    ) -> None:
        part = self._open.pop(key, None)
        if part is None:  # someone else has ended it
            return
        labels = {**part.labels, **(labels or {})}
        try:
            if facts:
                part.span.set_attributes(facts)
            if error is not None:
                labels["error.type"] = kind = error if isinstance(error, str) else type_of(error)
                part.span.set_attribute("error.type", kind)
                part.span.set_status(Status(StatusCode.ERROR, say(error) if describe else None))
        finally:
            part.span.end()
        if part.timer is not None:
            part.timer.record(time.perf_counter() - part.began, labels)

    def _make_current(self, key: str) -> None:
        """In the task that does the work. Its context is its own and ends with it, so nothing is ever detached."""
        if (part := self._open.get(key)) is not None:
            contexts.attach(part.context)


def type_of(error: Exception) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
