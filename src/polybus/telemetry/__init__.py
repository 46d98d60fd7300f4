"""What the outside may learn of a program that uses the bus: spans for OpenTelemetry, log lines as JSON.

Nothing here is imported from OpenTelemetry unless the program has done so itself: no tracer provider can have
been set otherwise, and a program without one pays for a look into a dict when it makes a client or a worker.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from polybus.telemetry.spans import Tracing

# With this OpenTelemetry finds a provider by itself, when it is first asked for one.
_NAMED_PROVIDER: Final = "OTEL_PYTHON_TRACER_PROVIDER"


def tracing() -> Tracing | None:
    """How spans are made; None if this program makes none: no OpenTelemetry, or no tracer provider.

    Ask when something begins (a client, a worker), not for every request.
    """
    if "opentelemetry.trace" not in sys.modules and _NAMED_PROVIDER not in os.environ:
        return None
    try:
        from opentelemetry import trace

        from polybus.telemetry.spans import Tracing
    except ImportError:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return Tracing(provider)
