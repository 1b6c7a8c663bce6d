# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry: what runs do, as spans and metrics. OpenTelemetry is imported only if the program uses it."""

from andon.telemetry.settings import AUTOMATIC, Telemetry

__all__ = ["AUTOMATIC", "Telemetry"]
