"""Spans of clients, brokers and workers, with OpenTelemetry's API alone.

    call hello     CLIENT     from the request to its answer; `send` and `publish` are PRODUCERs
    route hello    SERVER     in the broker, from acceptance to the end
    process hello  CONSUMER   while the worker's handler runs, which may call others in turn

Names and attributes follow the conventions for messaging.  What travels is W3C Trace Context,
whatever propagators the program has set for its other protocols: the peers of a bus must agree on one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Protocol

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Span as Span
from opentelemetry.trace import SpanKind, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from polybus.wire.context import NO_CONTEXT, Context, as_headers, find_in_id, from_headers

NAME: Final = "polybus"
# Longer texts of errors are cut: a span is no place for tracebacks.
MAX_DETAIL: Final = 1000

_W3C: Final = TraceContextTextMapPropagator()

# Attributes, by the conventions for messaging where they have a word for it.
SYSTEM: Final = "messaging.system"
DESTINATION: Final = "messaging.destination.name"
OPERATION: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGE_ID: Final = "messaging.message.id"
BATCH: Final = "messaging.batch.message_count"
ERROR: Final = "error.type"
DIALECT: Final = "polybus.dialect"
ATTEMPT: Final = "polybus.attempt"

_KINDS: Final = {
    "call": SpanKind.CLIENT,
    "send": SpanKind.PRODUCER,
    "publish": SpanKind.PRODUCER,
    "route": SpanKind.SERVER,
    "process": SpanKind.CONSUMER,
}
_TYPES: Final = {"call": "send", "send": "send", "publish": "send", "route": "receive", "process": "process"}


class Piece(Protocol):
    """What a worker knows of its work."""

    @property
    def service(self) -> bytes: ...
    @property
    def request_id(self) -> bytes: ...
    @property
    def attempt(self) -> int: ...
    @property
    def context(self) -> Context: ...


class Tracing:
    """Makes spans with one provider."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = trace.get_tracer(NAME, _version(), provider)

    # -- clients ----------------------------------------------------------------------------------

    def begin(self, operation: str, destination: bytes, dialect: str) -> tuple[Span, Context]:
        """A span of its own, and what to tell whoever gets the request."""
        span = self._start(operation, destination, dialect)
        return span, context_of(span)

    def end(self, span: Span | None, code: str = "", detail: str = "") -> None:
        """The request has its answer, or will have none: `code` is the short word for why."""
        if span is not None:
            if code:
                fail(span, code, detail)
            span.end()

    def current_context(self) -> Context:
        """What to tell others of the span that is the current one; nothing if there is none."""
        span = trace.get_current_span()
        return context_of(span) if span.get_span_context().is_valid else NO_CONTEXT

    @contextmanager
    def during(self, operation: str, destination: str, **attributes: Any) -> Iterator[Span]:
        """A span that is the current one meanwhile."""
        span = self._start(operation, destination.encode(), "", attributes=attributes)
        with trace.use_span(span, end_on_exit=True):
            yield span

    # -- workers ----------------------------------------------------------------------------------

    @contextmanager
    def processing(self, work: Piece, dialect: str) -> Iterator[Span]:
        """The span of a handler, the current one while it runs."""
        attributes: dict[str, Any] = {MESSAGE_ID: _text(work.request_id)} if work.request_id else {}
        if work.attempt:
            attributes[ATTEMPT] = work.attempt
        parent = parent_of(work.context or find_in_id(work.request_id))
        span = self._start("process", work.service, dialect, parent, attributes)
        token = otel_context.attach(trace.set_span_in_context(span, parent))
        try:
            yield span
        finally:
            otel_context.detach(token)
            span.end()

    def fail_current(self, code: str, detail: str = "") -> None:
        fail(trace.get_current_span(), code, detail)

    def flush(self, timeout_s: float = 2.0) -> None:
        """Have what was made exported; for processes that end without a word."""
        force = getattr(self._provider, "force_flush", None)
        if force is not None:
            force(int(timeout_s * 1000))

    # -- brokers ----------------------------------------------------------------------------------

    def route(
        self, service: bytes, context: Context, dialect: str, at_s: float, attributes: Mapping[str, Any]
    ) -> Span:
        return self._start("route", service, dialect, parent_of(context), attributes, at_s)

    def _start(
        self,
        operation: str,
        destination: bytes,
        dialect: str,
        parent: otel_context.Context | None = None,
        attributes: Mapping[str, Any] | None = None,
        at_s: float | None = None,
    ) -> Span:
        name = _text(destination)
        facts: dict[str, Any] = {
            SYSTEM: NAME,
            DESTINATION: name,
            OPERATION: operation,
            OPERATION_TYPE: _TYPES[operation],
            **(attributes or {}),
        }
        if dialect:
            facts[DIALECT] = dialect
        at_ns = None if at_s is None else nanoseconds(at_s)
        return self._tracer.start_span(
            f"{operation} {name}", parent, _KINDS[operation], facts, start_time=at_ns
        )


def context_of(span: Span) -> Context:
    """What to tell others of a span; nothing if it is none."""
    headers: dict[str, str] = {}
    _W3C.inject(headers, trace.set_span_in_context(span, otel_context.Context()))
    return from_headers(headers)


def parent_of(context: Context) -> otel_context.Context:
    """Where a span belongs that begins because of a message: not to whatever this thread does besides."""
    empty = otel_context.Context()
    return _W3C.extract(as_headers(context), empty) if context else empty


def fail(span: Span, code: str, detail: str = "") -> None:
    """Say what went wrong; the span goes on."""
    span.set_attribute(ERROR, code)
    span.set_status(StatusCode.ERROR, (f"{code}: {detail}" if detail else code)[:MAX_DETAIL])


def nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def _version() -> str:
    try:
        return version(NAME)
    except PackageNotFoundError:
        return ""
