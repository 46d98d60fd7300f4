"""Spans of clients, workers and brokers, over OpenTelemetry's in-memory exporter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from support.patience import patient

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from polybus.client.brain import Brain
from polybus.client.sessions import client_session
from polybus.client.sessions.port import Work
from polybus.core import events
from polybus.core.bus import Bus
from polybus.core.journal import Journal
from polybus.core.model import Heartbeat, JobOptions
from polybus.errors import ConfigError
from polybus.server.tracing import Spans
from polybus.telemetry import configuring
from polybus.telemetry.spans import Tracing
from polybus.wire.context import find_in_id, new_context

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Memory:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing(provider)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())


@pytest.fixture
def memory() -> Iterator[Memory]:
    return Memory()


def ids(span: Any) -> tuple[str, str]:
    context = span.get_span_context()
    return format(context.trace_id, "032x"), format(context.span_id, "016x")


def parent_text(span: Any) -> str:
    """A span as others are told of it."""
    trace_id, span_id = ids(span)
    return f"00-{trace_id}-{span_id}-{span.get_span_context().trace_flags:02x}"


# -- whether there are any ------------------------------------------------------------------------


def test_a_program_without_a_provider_makes_none() -> None:
    """And imports nothing of OpenTelemetry for it."""
    code = (
        "import sys, polybus, polybus.telemetry\n"
        "assert polybus.telemetry.tracing() is None\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
        "import opentelemetry.trace\n"
        "assert polybus.telemetry.tracing() is None\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "opentelemetry.trace.set_tracer_provider(TracerProvider())\n"
        "assert polybus.telemetry.tracing() is not None\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=patient(30))


def test_a_broker_without_an_sdk_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuring, "tracing", lambda: None)
    monkeypatch.setattr(configuring, "entry_points", lambda group: [])
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk._configuration", None)

    with pytest.raises(ConfigError, match="pip install opentelemetry-sdk"):
        configuring.configured("b")


def test_a_broker_without_its_exporter_says_which_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuring, "tracing", lambda: None)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "b")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console,jaeger")

    with pytest.raises(ConfigError, match=r"no exporter 'jaeger'.*installed are: console"):
        configuring.configured("b")


def test_a_broker_without_the_api_says_what_to_install() -> None:
    code = (
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "from polybus.config import load\n"
        "from polybus.errors import ConfigError\n"
        "from polybus.server.broker import Broker\n"
        "try:\n"
        "    Broker(load(None, {'telemetry.traces': True})).open()\n"
        "except ConfigError as error:\n"
        "    assert \"pip install 'polybus[otel]'\" in str(error), error\n"
        "else:\n"
        "    raise AssertionError('it opened')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=patient(30))


# -- clients --------------------------------------------------------------------------------------


def ask(memory: Memory, dialect: str, **more: Any) -> tuple[Brain, Any, list[bytes]]:
    brain = Brain(client_session(dialect), 10, tracing=memory.tracing)
    ticket = brain.submit(b"hello", [b"x"], 0.0, **more)
    return brain, ticket, [bytes(frame) for frame in brain.outbox[0][1]]


@pytest.mark.parametrize("dialect", ["mdr", "ebus"])
def test_an_id_says_where_its_request_comes_from(memory: Memory, dialect: str) -> None:
    brain, ticket, frames = ask(memory, dialect)
    brain.forget(ticket, "cancelled", "its client gave it up")

    (span,) = memory.spans
    (named,) = (frame for frame in frames if b"~" in frame)
    assert find_in_id(named) == new_context(parent_text(span))
    assert named == ticket.request_id
    assert (span.name, span.kind, span.status.status_code) == (
        "call hello",
        SpanKind.CLIENT,
        StatusCode.ERROR,
    )
    assert span.attributes is not None
    assert span.attributes["error.type"] == "cancelled"
    assert span.attributes["messaging.destination.name"] == "hello"


def test_emqp_has_headers_for_it(memory: Memory) -> None:
    brain, _, frames = ask(memory, "emqp", wants_reply=False)
    brain.close()

    (span,) = memory.spans
    assert f"traceparent:{parent_text(span)}" in frames[5].decode().split(",")
    assert (span.name, span.kind) == ("send hello", SpanKind.PRODUCER)


@pytest.mark.parametrize("dialect", ["mdp1", "mdp2", "dbp"])
def test_dialects_without_room_send_what_they_sent(memory: Memory, dialect: str) -> None:
    _, _, frames = ask(memory, dialect)
    plain = Brain(client_session(dialect), 10)
    plain.submit(b"hello", [b"x"], 0.0)

    said = [bytes(frame) for frame in plain.outbox[0][1]]
    # DBP's frames have the time of day.
    assert [len(frame) for frame in frames] == [len(frame) for frame in said]
    assert b"traceparent" not in b"".join(frames)


def test_what_cannot_be_said_ends_its_span(memory: Memory) -> None:
    from polybus.errors import LocalProtocolError

    with pytest.raises(LocalProtocolError):
        Brain(client_session("emqp"), 10, tracing=memory.tracing).submit(b"hello", [b"x", b"y"], 0.0)

    assert [span.status.status_code for span in memory.spans] == [StatusCode.ERROR]


# -- workers --------------------------------------------------------------------------------------


def test_a_handler_runs_inside_of_its_span(memory: Memory) -> None:
    work = Work((b"t", b"id"), b"hello", b"id", [b""], context=new_context(PARENT, "shop=1,other=2"))

    with memory.tracing.processing(work, "mdr"):
        inside = trace.get_current_span()
        assert memory.tracing.current_context() != ()
        memory.tracing.fail_current("failed", "ValueError: no luck")
    assert not trace.get_current_span().get_span_context().is_valid

    (span,) = memory.spans
    assert ids(span) == ids(inside)
    assert span.parent is not None
    assert format(span.parent.span_id, "016x") == PARENT.split("-")[2]
    assert dict(span.get_span_context().trace_state) == {"shop": "1", "other": "2"}
    assert (span.kind, span.status.description) == (SpanKind.CONSUMER, "failed: ValueError: no luck")


def test_a_request_without_context_begins_a_trace_of_its_own(memory: Memory) -> None:
    work = Work(b"t", b"hello", b"id", [b""])
    with memory.tracing.during("send", "mail"), memory.tracing.processing(work, "mdr"):
        pass

    processed, sent = memory.spans
    assert processed.parent is None
    assert ids(processed)[0] != ids(sent)[0]


# -- brokers --------------------------------------------------------------------------------------

CLIENT, WORKER, OTHER = (1, b"client"), (2, b"worker"), (2, b"other")


class Noted(Journal):
    """A journal that only says what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def note_request(self, what: str, *_: Any) -> None:
        self.told.append(what)

    def note_dead(self, *_: Any) -> None:
        self.told.append("dead letter")

    def note_published(self, *_: Any) -> None:
        self.told.append("published")

    def note(self, observed: Any, offset: float) -> None:
        self.told.append(observed.what)


class Routed:
    """A bus with spans."""

    def __init__(self, memory: Memory) -> None:
        self.bus = Bus(b"n-")
        self.journal = Noted()
        self.bus.listen(False, self.journal)
        self.spans = Spans(memory.tracing)
        self.spans.listen(self.bus)

    def worker(self, address: tuple[int, bytes] = WORKER, now: float = 0.0) -> None:
        offers, beats = ((b"hello", 0),), Heartbeat(0.0)
        self.bus.handle(events.WorkerUp(address, None, offers, beats, 10), now)

    def submit(self, now: float, options: JobOptions | None = None) -> None:
        asked = options or JobOptions()
        self.bus.handle(events.Submit(CLIENT, None, b"id", b"hello", [b"x"], asked), now)

    @property
    def token(self) -> bytes:
        return next(iter(self.bus.requests))


def test_a_span_lasts_from_acceptance_to_the_end_and_tells_of_attempts(memory: Memory) -> None:
    routed = Routed(memory)
    routed.submit(10.0, JobOptions(other=new_context(PARENT)))
    request = routed.bus.requests[routed.token]
    told = request.context
    routed.worker(now=11.0)
    routed.bus.handle(events.WorkerGone(WORKER, "it vanished"), 12.0)
    routed.worker(OTHER, now=13.0)
    routed.bus.handle(events.Result(OTHER, routed.token, [b"done"]), 14.5)

    (span,) = memory.spans
    # What its workers are told, whichever of them it is.
    assert told == request.context == new_context(parent_text(span))
    assert ids(span)[0] == PARENT.split("-")[1]
    assert span.parent is not None
    assert format(span.parent.span_id, "016x") == PARENT.split("-")[2]
    assert span.start_time is not None
    assert span.end_time is not None
    assert (span.end_time - span.start_time) / 1e9 == pytest.approx(4.5)
    assert span.attributes is not None
    assert span.attributes["polybus.outcome"] == "replied"
    assert [event.name for event in span.events] == ["dispatched", "requeued", "dispatched"]
    attempts = [event.attributes["polybus.attempt"] for event in span.events if event.attributes]
    assert attempts == [1, 1, 2]
    requests = ["accepted", "dispatched", "requeued", "dispatched", "replied"]
    assert [what for what in routed.journal.told if what in requests] == requests
    assert routed.spans.facts() == {"spans_open": 0, "spans_skipped": 0}


def test_a_failure_is_an_error_with_its_reason(memory: Memory) -> None:
    routed = Routed(memory)
    routed.worker()
    routed.submit(1.0)
    routed.bus.handle(events.Failure(WORKER, routed.token, "ValueError: no luck", []), 2.0)

    (span,) = memory.spans
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "failed: ValueError: no luck"


def test_what_a_predecessor_accepted_has_a_span_from_when_it_is_met(memory: Memory) -> None:
    routed = Routed(memory)
    routed.bus.listen(False, None)
    routed.submit(1.0)
    routed.spans.listen(routed.bus)
    routed.worker(now=5.0)
    routed.bus.handle(events.Result(WORKER, routed.token, [b"done"]), 6.0)

    (span,) = memory.spans
    assert span.attributes is not None
    assert span.attributes["polybus.restored"] is True


def test_spans_are_bounded_and_end_with_the_broker(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polybus.server.tracing.MAX_SPANS", 1)
    routed = Routed(memory)
    routed.submit(1.0)
    other = (1, b"other client")
    routed.bus.handle(events.Submit(other, None, b"id", b"hello", [b"x"]), 1.0)

    assert routed.spans.facts() == {"spans_open": 1, "spans_skipped": 1}
    routed.spans.close()
    (span,) = memory.spans
    assert span.attributes is not None
    assert span.attributes["polybus.outcome"] == "unanswered"
