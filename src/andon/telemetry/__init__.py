# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry: what runs do, as spans and metrics. Nothing of it is imported before somebody listens."""

from andon.telemetry.settings import AUTOMATIC, Telemetry

__all__ = ["AUTOMATIC", "Telemetry"]
