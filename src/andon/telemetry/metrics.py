# SPDX-License-Identifier: Apache-2.0
"""The instruments: ended runs by status, cancel latency, tokens, durations, abandoned threads.

Names with `gen_ai.` come from the semantic conventions for generative AI, and so do their bucket boundaries.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any
from weakref import WeakSet

from opentelemetry.metrics import CallbackOptions, MeterProvider, NoOpMeterProvider, Observation

from andon.core.run.host import RunHost

_TOKENS = [4**n for n in range(14)]
_CALL_SECONDS = [0.01 * 2**n for n in range(14)]
_RUN_SECONDS = [0.1 * 2**n for n in range(13)]
_CANCEL_SECONDS = [0.0001 * 2**n for n in range(17)]


class Instruments:
    """The counters and histograms of one meter provider."""

    def __init__(self, provider: MeterProvider | None) -> None:
        meter = (provider or NoOpMeterProvider()).get_meter("andon")
        self.runs = meter.create_counter("andon.runs", "{run}", "Runs that ended, by status.")
        self.cancels = meter.create_counter("andon.cancels", "{run}", "Runs that were cancelled, by cause.")
        self.cancel_latency = meter.create_histogram(
            "andon.cancel.latency",
            "s",
            "From the call to cancel until the run was settled.",
            explicit_bucket_boundaries_advisory=_CANCEL_SECONDS,
        )
        self.tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            "{token}",
            "Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        self.model_seconds = meter.create_histogram(
            "gen_ai.client.operation.duration",
            "s",
            "GenAI operation duration.",
            explicit_bucket_boundaries_advisory=_CALL_SECONDS,
        )
        self.tool_seconds = meter.create_histogram(
            "gen_ai.execute_tool.duration",
            "s",
            "The duration of a single tool execution.",
            explicit_bucket_boundaries_advisory=_CALL_SECONDS,
        )
        self.run_seconds = meter.create_histogram(
            "gen_ai.invoke_agent.duration",
            "s",
            "The duration of a single agent invocation.",
            explicit_bucket_boundaries_advisory=_RUN_SECONDS,
        )
        meter.create_observable_up_down_counter(
            "andon.threads.abandoned",
            [self._abandoned],
            "{thread}",
            "Threads of cancelled tools that are still running.",
        )
        self._lock = threading.Lock()
        self._runtimes: WeakSet[RunHost[Any]] = WeakSet()

    def watch(self, runtime: RunHost[Any]) -> None:
        """Count the abandoned threads of this runtime from now on."""
        with self._lock:
            self._runtimes.add(runtime)

    def _abandoned(self, options: CallbackOptions) -> Iterable[Observation]:
        with self._lock:
            runtimes = list(self._runtimes)
        return [Observation(sum(len(runtime.abandoned) for runtime in runtimes))]
