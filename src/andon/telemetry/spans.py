# SPDX-License-Identifier: Apache-2.0
"""The open spans of a run. Each span ends exactly once.

Open spans are in a dict, and `end` takes a span out of it before it ends the span. The work itself calls `end` when it
is over. The end of the run calls it for work that was cut, abandoned or lost with its loop. A later call, from any
thread, finds nothing and does nothing.

An error of a tracer or an exporter is logged and goes no further: telemetry never makes a run fail.
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
    Tracer,
    TracerProvider,
    set_span_in_context,
)

from andon.errors import say
from andon.telemetry.metrics import Instruments

log = logging.getLogger(__name__)
P = ParamSpec("P")
Facts = dict[str, Any]

REMEMBERED = 1000
"""The spans of this many ended runs are kept, so that a run that continues one of them can link to it."""

RUN, TURN, MODEL, CALL = "run", "turn", "model", "call "


def never_raises(method: Callable[P, None]) -> Callable[P, None]:
    """Log what the method raises: it calls tracers and exporters, which are not our code."""

    @functools.wraps(method)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception:
            log.exception("telemetry failed; the run goes on without")

    return guarded


class Tracing:
    """A tracer and the instruments, for one pair of providers."""

    def __init__(self, tracers: TracerProvider | None, meters: MeterProvider | None, content: bool) -> None:
        self.tracers, self.meters, self.content = tracers, meters, content
        self.tracer = (tracers or NoOpTracerProvider()).get_tracer("andon")
        self.instruments = Instruments(meters)
        self._lock = threading.Lock()
        self._ended: dict[str, SpanContext] = {}

    def remember(self, run_id: str, span: SpanContext) -> None:
        """Keep the span of an ended run: a later run may continue that run."""
        with self._lock:
            self._ended[run_id] = span
            if len(self._ended) > REMEMBERED:
                del self._ended[next(iter(self._ended))]

    def find(self, run_id: str) -> SpanContext | None:
        return self._ended.get(run_id)


class OpenSpan:
    """A span that has begun and has not ended."""

    __slots__ = ("began", "context", "labels", "span", "timer")

    def __init__(self, span: Span, parent: Context, labels: Facts, timer: Histogram | None) -> None:
        self.span, self.context = span, set_span_in_context(span, parent)
        self.labels, self.timer = labels, timer
        self.began = time.perf_counter()


class OpenSpans:
    """The open spans of one run, by key: of the run, its turn, its model call, and each of its tool calls."""

    __slots__ = ("_open", "_tracer")

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._open: dict[str, OpenSpan] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._open

    def get(self, key: str) -> OpenSpan | None:
        return self._open.get(key)

    @property
    def keys(self) -> list[str]:
        """A copy, oldest first: other threads may end spans meanwhile."""
        return list(self._open.copy())

    def begin(
        self,
        key: str,
        name: str,
        facts: Facts,
        labels: Facts,
        timer: Histogram | None = None,
        before: SpanContext | None = None,
        parent: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> OpenSpan:
        if parent is None:  # not the current context: a hook may have changed that
            above = self._open.get(RUN) if key == TURN else self._open.get(TURN) or self._open.get(RUN)
            parent = contexts.get_current() if above is None else above.context
        links = [] if before is None else [Link(before)]
        span = self._tracer.start_span(name, parent, kind, facts, links)
        begun = self._open[key] = OpenSpan(span, parent, labels, timer)
        return begun

    @never_raises
    def end(
        self,
        key: str,
        facts: Facts | None = None,
        labels: Facts | None = None,
        error: Exception | str | None = None,
        *,
        describe: bool = False,
    ) -> None:
        part = self._open.pop(key, None)
        if part is None:  # it was ended before
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

    def make_current(self, key: str) -> None:
        """Call it in the task that does the work. The context of that task ends with the task: no detach is needed."""
        if (part := self._open.get(key)) is not None:
            contexts.attach(part.context)


def type_of(error: Exception) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
