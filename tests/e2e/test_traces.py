"""Traces that cross the bus: real processes, each with an in-memory exporter, joined by what travelled."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.live import LiveBroker, Peer
from support.majordomo import MDR
from support.programs import Program, peer_places
from support.traced import Spans, command

pytest.importorskip("opentelemetry.sdk")

WORKER = """
import signal, sys
from polybus import Client, Worker

dialect, service = sys.argv[1:]

def hello(request):
    if request.body == b"again":
        with Client(dialect="emqp") as client:
            return client.call("inner", b"nested")
    if request.body == b"fail":
        raise ValueError("no luck")
    return b"hello " + request.body

worker = Worker({service: hello}, dialect=dialect)
signal.signal(signal.SIGTERM, lambda *_: worker.stop())
print("up", flush=True)
worker.run()
"""

CLIENT = """
import sys
from opentelemetry import trace
from polybus import Client, RequestFailed

dialect, service, body = sys.argv[1:]
with trace.get_tracer("shop").start_as_current_span("checkout"), Client(dialect=dialect) as client:
    try:
        print(client.call(service, body.encode(), timeout_s=20).decode(), flush=True)
    except RequestFailed as error:
        print(error, flush=True)
"""


class Stage:
    """A broker with spans and what else runs around it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: list[Path] = []
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("POLYBUS_", "OTEL_"))}
        self.env: Mapping[str, str] = clean
        (folder / "worker.py").write_text(WORKER)
        (folder / "client.py").write_text(CLIENT)
        self.running: list[Program] = []

    def start(self, name: str, *words: str | Path) -> Program:
        self.files.append(self.folder / f"{name}.json")
        program = Program(command(self.files[-1], *words), self.folder, self.env)
        self.running.append(program)
        return program

    def broker(self, *settings: str) -> None:
        words = [word for setting in settings for word in ("--set", setting)]
        broker = self.start("broker", "serve", "--any-port", "--data-dir", self.folder / "var", *words)
        ready = broker.wait_for(lambda line: line.startswith("ready "))
        endpoints = dict(word.split("=", 1) for word in ready.split()[1:])
        self.env = {**self.env, **peer_places(endpoints)}

    def worker(self, dialect: str, service: str = "hello") -> None:
        worker = self.start(f"worker-{service}", self.folder / "worker.py", dialect, service)
        worker.wait_for(lambda line: line == "up")

    def call(self, name: str, dialect: str, service: str, body: str) -> str:
        client = self.start(name, self.folder / "client.py", dialect, service, body)
        assert client.end() == 0, client.lines
        return client.lines[-1]

    def end(self) -> None:
        """In good order: the workers, then the broker."""
        for program in reversed(self.running):
            if not program.is_over:
                program.ask_to_end()
                program.end()

    def trace(self, client: str) -> Spans:
        """All spans of the trace that a client began."""
        (root,) = (span for span in Spans(self.folder / f"{client}.json").all if span["name"] == "checkout")
        spans = Spans(*self.files)
        spans.all = [span for span in spans.all if span["trace"] == root["trace"]]
        return spans

    def close(self) -> None:
        for program in self.running:
            program.close()


TRACES = ("telemetry.traces=true", "journal.archive=false")


JOBS = """
from polybus import Bus, chain
bus = Bus()

@bus.job(queue="mail")
def send(to: str) -> str:
    return "sent to " + to

@bus.job(queue="note")
def note(what: str) -> str:
    return "noted: " + what
"""

SENDER = """
from opentelemetry import trace
import jobs
from polybus import chain
with trace.get_tracer("shop").start_as_current_span("checkout"):
    handle = chain(jobs.send.s("ann"), jobs.note.s()).delay()
print(handle.get(timeout_s=30), flush=True)
jobs.bus.close()
"""

# A child of the pool exports to standard error, which is the pool's: one line a span.
IN_CHILD = """
import json, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

provider = TracerProvider()
line = lambda span: "SPAN " + json.dumps(json.loads(span.to_json())) + chr(10)
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=sys.stderr, formatter=line)))
trace.set_tracer_provider(provider)
"""


class Play(Stage):
    """Everything happens once; the tests look at what was left behind."""

    def perform(self) -> None:
        self.broker(*TRACES)
        self.worker("mdr")
        self.worker("mdr", "inner")
        self.worker("emqp", "third")
        (self.folder / "jobs.py").write_text(JOBS)
        (self.folder / "app.py").write_text(f"{IN_CHILD}\nfrom jobs import bus\n")
        (self.folder / "sender.py").write_text(SENDER)
        self.env = {**self.env, "PYTHONPATH": str(self.folder)}
        polybus = str(Path(sys.executable).with_name("polybus"))
        self.pool = Program([polybus, "worker", "app:bus", "-c", "1"], self.folder, self.env)
        self.running.append(self.pool)

        assert self.call("emqp", "emqp", "hello", "again") == "hello nested"
        assert "ValueError: no luck" in self.call("mdr", "mdr", "third", "fail")
        assert "ValueError: no luck" in self.call("ebus", "ebus", "hello", "fail")
        sender = self.start("sender", self.folder / "sender.py")
        assert sender.end() == 0, sender.lines
        assert sender.lines[-1] == "noted: sent to ann"
        self.end()


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    play = Play(tmp_path_factory.mktemp("play"))
    try:
        play.perform()
        yield play
    finally:
        play.close()


def chain_of(spans: Spans, *names: str) -> list[dict[str, Any]]:
    """Spans of these names, each the parent of the next; the first has none."""
    chain = [spans.one(name) for name in names]
    assert [span["parent"] for span in chain] == ["", *(span["span"] for span in chain[:-1])]
    return chain


def test_a_trace_crosses_an_emqp_client_the_broker_and_an_mdr_worker(play: Play) -> None:
    spans = play.trace("emqp")

    # The first worker called the second one: its call belongs to what it was doing.
    way = [f"{what} {service}" for service in ("hello", "inner") for what in ("call", "route", "process")]
    chain = chain_of(spans, "checkout", *way)
    assert [(span["kind"], span["attributes"]["polybus.dialect"]) for span in chain[1:]] == [
        ("CLIENT", "emqp"),
        ("SERVER", "emqp"),
        ("CONSUMER", "mdr"),
    ] * 2
    routed = spans.one("route hello")
    assert routed["attributes"]["polybus.outcome"] == "replied"
    assert [(e["name"], e["polybus.worker_dialect"]) for e in routed["events"]] == [("dispatched", "mdr")]
    assert len(spans.all) == len(chain)


@pytest.mark.parametrize(("client", "service"), [("mdr", "third"), ("ebus", "hello")])
def test_other_dialects_with_room_carry_it_too(play: Play, client: str, service: str) -> None:
    """MDR to eMQP, and EBUS to MDR."""
    chain = chain_of(
        play.trace(client), "checkout", f"call {service}", f"route {service}", f"process {service}"
    )

    assert [span["status"] for span in chain[1:]] == ["ERROR"] * 3
    assert chain[-1]["said"] == "failed: ValueError: no luck"


def test_jobs_of_a_chain_belong_to_the_trace_of_their_sender(play: Play) -> None:
    spans = play.trace("sender")
    processed = [json.loads(line[5:]) for line in play.pool.lines if line.startswith("SPAN ")]

    _, sent = chain_of(spans, "checkout", "send mail")
    assert sent["kind"] == "PRODUCER"
    # What the broker's own service was asked is no span of its own.
    assert {span["name"] for span in spans.all} == {"checkout", "send mail", "route mail", "route note"}
    for name in ("mail", "note"):
        routed = spans.one(f"route {name}")
        assert routed["parent"] == sent["span"]
        (ran,) = (span for span in processed if span["name"] == f"process {name}")
        assert ran["parent_id"] == "0x" + routed["span"]


def test_without_spans_of_its_own_a_broker_passes_the_clients_on(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    try:
        stage.broker("journal.archive=false")
        stage.worker("mdr")
        assert stage.call("client", "emqp", "hello", "world") == "hello world"
        stage.end()
    finally:
        stage.close()

    chain_of(stage.trace("client"), "checkout", "call hello", "process hello")


def test_foreign_workers_see_what_they_saw_before() -> None:
    """Byte for byte, whatever a client says and the broker makes of it; but headers of eMQP clients pass."""
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    plain, traced = b"id1", b"id1~" + parent.encode()
    settings = {"telemetry.traces": "true", "journal.enabled": "false"}
    os.environ["OTEL_TRACES_EXPORTER"] = "none"
    try:
        broker = LiveBroker(settings)
    finally:
        del os.environ["OTEL_TRACES_EXPORTER"]
    with broker, Peer(broker["majordomo.workers"]) as mdr, Peer(broker["emqp.workers"]) as emqp:
        mdr.send(*MDR.ready(b"echo"))
        emqp.send(b"", b"eMQP/1.0", b"INFORM", b"i1", b'[[10, "mail"]]', b"worker")
        assert emqp.recv()[2] == b"ACK"
        for number in range(2):
            emqp.send(b"", b"eMQP/1.0", b"READY", b"r%d" % number)
        with Peer(broker["majordomo.clients"]) as client:
            for request_id in (plain, traced):
                client.send(b"MDRC01", b"\x01", b"echo", request_id, b"body")
                tag, command_, token, empty, name, *body = mdr.recv()
                assert (tag, command_, empty, name, body) == (b"MDRW01", b"\x02", b"", request_id, [b"body"])
                mdr.send(b"MDRW01", b"\x04", token, b"", name, b"done")
                assert client.recv()[3:] == [request_id, b"done"]
            orders = []
            for request_id in (plain, traced):
                client.send(b"MDRC01", b"\x01", b"mail", b"m" + request_id, b"job")
                orders.append(emqp.recv_until(lambda frames: frames[2] == b"REQUEST"))
        assert [order[:3] + order[4:] for order in orders] == [
            [b"", b"eMQP/1.0", b"REQUEST", b"mail", b"reply-requested", b"job"]
        ] * 2
