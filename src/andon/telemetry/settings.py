# SPDX-License-Identifier: Apache-2.0
"""Whether a program collects telemetry, and what it collects.

This is checked once per run. What must stay true: if the program has set no provider, this check is the whole cost of
telemetry, and Andon does not import OpenTelemetry.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, cast

from andon.errors import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from andon.telemetry.spans import Tracing

CONTENT_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The variable that switches content on in all GenAI instrumentations."""
_CONTENT_ON = ("true", "span_only", "span_and_event")

_API = ("opentelemetry.trace", "opentelemetry.metrics")


class Telemetry:
    """What an agent reports to OpenTelemetry, and to which providers.

    >>> agent = Agent("Helper", model, telemetry=Telemetry(content=True))

    Without one, runs are traced and counted as soon as your program has set a tracer or a meter provider.

    `content`: also report prompts, answers, arguments and results. None reads the environment variable
    `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`; if that is not set, content is left out.
    `enabled`: False switches telemetry off.
    `tracer_provider`, `meter_provider`: used instead of the providers that the program has set.
    """

    def __init__(
        self,
        *,
        content: bool | None = None,
        enabled: bool = True,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        if content and enabled:
            _check_installed()
        self.content, self.enabled = content, enabled
        self._tracer_provider, self._meter_provider = tracer_provider, meter_provider
        self._tracing: Tracing | None = None

    def __repr__(self) -> str:
        return f"Telemetry(content={self.content}, enabled={self.enabled})"

    def tracing(self) -> Tracing | None:
        """The tracer and instruments for a run that is about to start; None if there is no provider."""
        if not self.enabled:
            return None
        tracers = self._tracer_provider or cast("TracerProvider | None", _provider(_API[0], "get_tracer_provider"))
        meters = self._meter_provider or cast("MeterProvider | None", _provider(_API[1], "get_meter_provider"))
        if tracers is None and meters is None:
            return None
        tracing = self._tracing
        if tracing is None or tracing.tracers is not tracers or tracing.meters is not meters:
            from andon.telemetry.spans import Tracing

            tracing = self._tracing = Tracing(tracers, meters, self._wants_content())
        return tracing

    def _wants_content(self) -> bool:
        if self.content is not None:
            return self.content
        return os.environ.get(CONTENT_VARIABLE, "").lower() in _CONTENT_ON


AUTOMATIC = Telemetry()
"""For agents that were given no `Telemetry`."""


def _check_installed() -> None:
    import importlib.util  # here, because most programs never need it

    if importlib.util.find_spec("opentelemetry") is None:
        raise ConfigurationError('telemetry needs OpenTelemetry: pip install "andon[otel]"')


def _provider(api: str, getter: str) -> Any:
    """The provider that the program has set. A program that sets one has imported the API, so this does not."""
    get = getattr(sys.modules.get(api), getter, None)
    if get is None:
        return None
    provider = get()
    return None if type(provider).__module__.startswith(_API) else provider  # the API's default providers do nothing
