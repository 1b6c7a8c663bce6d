# SPDX-License-Identifier: Apache-2.0
"""Someone who listens: real providers of the SDK, kept in memory, and a strict eye on how spans begin and end."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from andon import Agent, Telemetry


class _Ledger(SpanProcessor):
    """Who began, and who ended."""

    def __init__(self) -> None:
        self.begun: list[ReadableSpan] = []
        self.ended: list[ReadableSpan] = []

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self.begun.append(span)

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span)


class Complaints(logging.Handler):
    """What OpenTelemetry says of a second end or a context that can't be detached, and we of its failures."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("opentelemetry") or "telemetry" in record.getMessage():
            self.texts.append(record.getMessage())

    @contextmanager
    def listening(self) -> Iterator[Complaints]:
        loggers = [logging.getLogger(name) for name in ("opentelemetry", "andon")]
        for logger in loggers:
            logger.addHandler(self)
        try:
            yield self
        finally:
            for logger in loggers:
                logger.removeHandler(self)


class Watch:
    """A tracer provider, a meter provider, and all that they were told."""

    def __init__(self, **options: Any) -> None:
        self._exporter, self._ledger, self._reader = InMemorySpanExporter(), _Ledger(), InMemoryMetricReader()
        self.tracers, self.meters = TracerProvider(), MeterProvider([self._reader])
        self.tracers.add_span_processor(self._ledger)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.telemetry = Telemetry(tracer_provider=self.tracers, meter_provider=self.meters, **options)
        self.tracer = self.tracers.get_tracer("user")
        self.complaints: list[str] = []

    def agent(self, *args: Any, **options: Any) -> Agent:
        return Agent(*args, telemetry=self.telemetry, **options)

    @property
    def spans(self) -> list[ReadableSpan]:
        """Those that ended, in the order of their beginnings."""
        order = [_id(span) for span in self._ledger.begun]
        return sorted(self._exporter.get_finished_spans(), key=lambda span: order.index(_id(span)))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def tree(self) -> list[str]:
        """One line per span, indented under its parent."""
        spans = self.spans
        ids = {_id(span) for span in spans}

        def lines(parent: int | None, depth: int) -> Iterator[str]:
            for span in spans:
                above = None if span.parent is None or span.parent.span_id not in ids else span.parent.span_id
                if above == parent:
                    yield "  " * depth + span.name
                    yield from lines(_id(span), depth + 1)

        return list(lines(None, 0))

    def check(self) -> None:
        """All ended, none twice, none orphaned; and every cancelled one says so, and is no error."""
        begun, ended = Counter(map(_id, self._ledger.begun)), Counter(map(_id, self._ledger.ended))
        names = {_id(span): span.name for span in self._ledger.begun}
        assert not (begun - ended), f"never ended: {[names[each] for each in begun - ended]}"
        assert not (ended - begun), f"ended twice: {[names[each] for each in ended - begun]}"
        assert len(self._exporter.get_finished_spans()) == len(begun)
        for span in self.spans:
            assert span.parent is None or span.parent.span_id in begun, f"{span.name} is an orphan"
            facts = span.attributes or {}
            if "andon.cancel.cause" in facts:
                assert span.status.status_code is StatusCode.UNSET, f"{span.name} was cancelled, and is an error"
                assert "error.type" not in facts
            wanted = PARENTS.get(span.name.partition(" ")[0])
            if wanted is not None:
                assert span.parent is not None, f"{span.name} has no parent"
                assert names[span.parent.span_id] == wanted or names[span.parent.span_id].startswith(f"{wanted} ")

    def forget(self) -> None:
        self._exporter.clear()
        self._ledger.begun.clear()
        self._ledger.ended.clear()

    def metric(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """The points of one metric: attributes, and the value, or how many values a histogram has and their sum."""
        data = self._reader.get_metrics_data()
        found = [] if data is None else [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics]
        points: Sequence[Any] = [point for metric in found if metric.name == name for point in metric.data.data_points]
        return [(dict(p.attributes), p.value if hasattr(p, "value") else (p.count, p.sum)) for p in points]


PARENTS = {"turn": "invoke_agent", "chat": "turn", "execute_tool": "turn"}


def _id(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})
