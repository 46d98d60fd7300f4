"""Spans of a broker: one for each request, from its acceptance to its end, made of what the core tells.

It listens in the place of the journal, and tells that everything as it was: without it nothing changes for
the bus, and with it nothing for the journal.  A worker is told the span of the broker, so a trace reads
client, broker, worker.  What a lost worker, a retry or a redelivery did to a request are events of its span.
"""

from __future__ import annotations

from typing import Any, Final

from polybus.core.actions import Observed
from polybus.core.bus import Bus
from polybus.core.journal import Journal
from polybus.core.model import Body, Request
from polybus.core.views import peer_name
from polybus.dialects.context import context_of as context_said
from polybus.errors import ConfigError

try:
    from polybus.telemetry.configuring import configured
    from polybus.telemetry.spans import (
        ATTEMPT,
        ERROR,
        MESSAGE_ID,
        Span,
        Tracing,
        context_of,
        fail,
        nanoseconds,
    )
except ImportError:
    raise ConfigError(
        "telemetry.traces is on, but OpenTelemetry is not installed. pip install 'polybus[otel]' "
        "opentelemetry-sdk opentelemetry-exporter-otlp, or turn it off"
    ) from None

# What happens to a request in between.
STEPS: Final = frozenset({"dispatched", "partial", "retried", "requeued", "claimed"})
# Beyond that many requests at once, which would be gigabytes of spans, the others have none; counted.
MAX_SPANS: Final = 100_000
# A stream may have thousands of parts, and a span no more than 128 events: the first are enough.
PARTS_TOLD: Final = 10


class Spans(Journal):
    """The spans of the requests that a broker has, and the journal that it would have without them."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._journal: Journal | None = None
        self._open: dict[bytes, Span] = {}
        self._parts: dict[bytes, int] = {}
        self.skipped = 0

    @classmethod
    def configured(cls, name: str) -> Spans:
        """As the environment says; raises `ConfigError` if nobody would take them."""
        return cls(configured(f"polybus-{name}"))

    def listen(self, bus: Bus) -> None:
        """Stand between a bus and its journal."""
        self._journal = bus.journal
        bus.listen(bus.tapped, self)

    def facts(self) -> dict[str, Any]:
        return {"spans_open": len(self._open), "spans_skipped": self.skipped}

    # -- the port of the core -----------------------------------------------------------------------

    def note_request(
        self,
        what: str,
        request: Request,
        now: float,
        offset: float,
        reason: str,
        detail: str,
        body: Body | None,
    ) -> None:
        if self._journal is not None:
            self._journal.note_request(what, request, now, offset, reason, detail, body)
        span = self._open.get(request.token)
        if span is None:
            span = self._begin(request, what, now + offset)
            if span is None:
                return
        if what in STEPS:
            self._step(span, what, request, now + offset, reason, detail)
        elif what != "accepted":
            self._end(span, what, request, now + offset, reason, detail)

    def note_dead(
        self, request: Request, now: float, offset: float, reason: str, detail: str, body: Body
    ) -> None:
        if self._journal is not None:
            self._journal.note_dead(request, now, offset, reason, detail, body)

    def note_published(self, topic: bytes, body: Body, now: float, offset: float) -> None:
        if self._journal is not None:
            self._journal.note_published(topic, body, now, offset)

    def note(self, observed: Observed, offset: float) -> None:
        if self._journal is not None:
            self._journal.note(observed, offset)

    # -- spans --------------------------------------------------------------------------------------

    def _begin(self, request: Request, what: str, at_s: float) -> Span | None:
        if len(self._open) >= MAX_SPANS:
            self.skipped += 1
            return None
        attributes: dict[str, Any] = {"polybus.token": request.token.decode("ascii", "replace")}
        if request.request_id:
            attributes[MESSAGE_ID] = request.request_id.decode("utf-8", "replace")
        if what != "accepted":
            # It was accepted before this broker began: by its predecessor, whose span went with it.
            attributes["polybus.restored"] = True
        dialect = getattr(request.voice, "dialect", "")
        span = self._tracing.route(request.service.name, context_said(request), dialect, at_s, attributes)
        self._open[request.token] = span
        request.context = context_of(span) or None
        return span

    def _step(self, span: Span, what: str, request: Request, at_s: float, reason: str, detail: str) -> None:
        if what == "partial":
            told = self._parts[request.token] = self._parts.get(request.token, 0) + 1
            if told > PARTS_TOLD:
                return
        facts: dict[str, Any] = {ATTEMPT: request.attempt}
        worker = request.worker
        if worker is not None:
            facts["polybus.worker"] = peer_name(worker.address)
            facts["polybus.worker_dialect"] = getattr(worker.voice, "dialect", "")
        if reason:
            facts[ERROR if what == "retried" else "polybus.reason"] = reason
        if detail:
            facts["polybus.detail"] = detail
        span.add_event(what, facts, nanoseconds(at_s))

    def _end(self, span: Span, what: str, request: Request, at_s: float, reason: str, detail: str) -> None:
        del self._open[request.token]
        parts = self._parts.pop(request.token, 0)
        span.set_attribute("polybus.outcome", what)
        span.set_attribute(ATTEMPT, request.attempt)
        if parts:
            span.set_attribute("polybus.parts", parts)
        if reason:
            fail(span, reason, detail)
        span.end(nanoseconds(at_s))

    def close(self) -> None:
        """The broker ends, and with it what it knows of these."""
        for span in self._open.values():
            span.set_attribute("polybus.outcome", "unanswered")
            span.end()
        self._open.clear()
