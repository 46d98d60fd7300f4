"""A tracer provider for a program of ours (`polybus serve`), as OpenTelemetry's environment variables say.

It is what `opentelemetry-instrument` does: a configurator, of a distribution if one is installed, else the
SDK's own, reads OTEL_TRACES_EXPORTER, OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER and so on.
"""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from typing import Any, Final

from polybus.errors import ConfigError
from polybus.telemetry import tracing
from polybus.telemetry.spans import Tracing

EXPORTER: Final = "OTEL_TRACES_EXPORTER"
SERVICE: Final = "OTEL_SERVICE_NAME"
_CONFIGURATORS: Final = "opentelemetry_configurator"
_EXPORTERS: Final = "opentelemetry_traces_exporter"
_NO_SDK: Final = (
    "telemetry.traces is on, but nothing would take the spans: OpenTelemetry's SDK is not installed. "
    "pip install opentelemetry-sdk opentelemetry-exporter-otlp, or turn it off"
)


def configured(service: str) -> Tracing:
    """How spans are made: with the provider that is set already, or one by the environment."""
    found = tracing()
    if found is not None:
        return found
    configurator = _configurator()
    os.environ.setdefault(SERVICE, service)
    # The specification's own default, which the SDK for Python leaves to others.
    wanted = os.environ.setdefault(EXPORTER, "otlp")
    _check_exporters(wanted)
    configurator.configure()
    found = tracing()
    if found is None:
        raise ConfigError(f"telemetry.traces is on, but OTEL_SDK_DISABLED or {EXPORTER}={wanted} forbids it")
    return found


def _configurator() -> Any:
    for entry in entry_points(group=_CONFIGURATORS):
        return entry.load()()
    try:
        # The class that distributions inherit from; without one it is all there is.
        from opentelemetry.sdk._configuration import _OTelSDKConfigurator
    except ImportError:
        raise ConfigError(_NO_SDK) from None
    return _OTelSDKConfigurator()  # type: ignore[no-untyped-call]


def _check_exporters(wanted: str) -> None:
    known = {entry.name for entry in entry_points(group=_EXPORTERS)}
    # What the name stands for, if no protocol is said.
    aliases = {"otlp": {"otlp", "otlp_proto_grpc", "otlp_proto_http"}}
    for name in filter(None, (word.strip() for word in wanted.split(","))):
        if name != "none" and not aliases.get(name, {name}) & known:
            raise ConfigError(
                f"telemetry.traces is on, but there is no exporter {name!r} ({EXPORTER}); "
                f"installed are: {', '.join(sorted(known)) or 'none'}. "
                "pip install opentelemetry-exporter-otlp, or choose another"
            )
