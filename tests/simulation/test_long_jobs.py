"""Jobs of an hour, in virtual time, with real ears, voices and sessions: they run once and can be stopped."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from polybus.client.sessions.emqp import EmqpWorker
from polybus.client.sessions.mdr import MdrClient, MdrWorker
from polybus.client.sessions.port import Cancelled, Done, Failed, Work, WorkerSession
from polybus.core.model import Limits
from polybus.core.restoring import restore
from polybus.core.tables import DESK
from polybus.dialects.emqp import Emqp
from polybus.dialects.mdr import Mdr
from polybus.dialects.port import RouterEar, Voice
from polybus.store.memory import MemoryStore
from support.exchange import Exchange

CLIENTS, EMQP, MDR = 1, 2, 3
# Workers are lost after five seconds of silence, in either dialect.
DEAD_AFTER_S = 5.0
HOUR_S = 3600.0


class Plant:
    """A broker that may die, a client, and a worker that beats as the library's do."""

    def __init__(self, dialect: str) -> None:
        self.dialect = dialect
        self.store = MemoryStore()
        self.lives = 0
        self.now = 1000.0
        self.client = MdrClient()
        self.calls = 0
        # The jobs that the worker has begun, and those that it was told to stop.
        self.begun: list[bytes] = []
        self.holding: list[bytes] = []
        self.stopped: list[bytes] = []
        self.session: WorkerSession = self._new_session()
        self.link = EMQP if dialect == "emqp" else MDR
        self.name = b"worker"
        self.start()

    def _new_session(self) -> WorkerSession:
        if self.dialect == "emqp":
            return EmqpWorker([(10, b"long")], prefix=b"w", holding=lambda: self.holding)
        return MdrWorker(b"long", 1)

    # -- the broker ---------------------------------------------------------------------------------

    def start(self) -> None:
        self.lives += 1
        self.exchange = Exchange(Limits())
        bus = self.exchange.bus
        bus.nonce = b"n%d-" % self.lives
        self.exchange.now = self.now
        emqp = Emqp(bus, heartbeat_s=1.0, timeout_s=DEAD_AFTER_S, liveness=1, wall=lambda: self.now)
        mdr = Mdr(bus, heartbeat_s=DEAD_AFTER_S / 2, liveness=2)
        self.exchange.listen(CLIENTS, RouterEar(bus, "mdr", mdr.tags))
        self.exchange.listen(EMQP, RouterEar(bus, "emqp", emqp.tags))
        self.exchange.listen(MDR, RouterEar(bus, "mdr", mdr.tags))
        bus.link_names = {CLIENTS: "clients", EMQP: "emqp", MDR: "mdr", DESK[0]: "jobs"}
        restore(bus, self.store.load(), Voice(), self.now)
        self.exchange.settle()

    def restart(self, after_s: float = 1.0) -> None:
        """What is written is written; connections, and who was known, are gone."""
        self.store.write(self.exchange.lines)
        self.now = self.exchange.now + after_s
        self.start()

    # -- the client ---------------------------------------------------------------------------------

    def call(self, service: bytes, body: bytes) -> Any:
        self.calls += 1
        for frames in self.client.request(b"call-%d" % self.calls, b"polybus." + service, [body]):
            self.exchange.send(CLIENTS, b"client", *frames)
        return self.answer()

    def answer(self) -> Any:
        for frames in self.exchange.got(CLIENTS, b"client"):
            for event in self.client.receive(frames, self.exchange.now):
                if isinstance(event, Done | Failed):
                    return event
        return None

    def submit(self, **options: Any) -> None:
        head = msgspec.json.encode({"service": "long", "id": "j", **options})
        done = self.call(b"submit", head + b"\nwork")
        assert isinstance(done, Done), done

    # -- the worker ---------------------------------------------------------------------------------

    def worker_begins(self) -> None:
        """A new conversation under the same identity; what it holds it goes on with."""
        for frames in self.session.hello(self.exchange.now):
            self.exchange.send(self.link, self.name, *frames)
        self.hear()
        if isinstance(self.session, EmqpWorker) and not self.holding:
            for frames in self.session.grant(1):
                self.exchange.send(self.link, self.name, *frames)
        self.hear()

    def hear(self) -> None:
        for frames in self.exchange.got(self.link, self.name):
            for event in self.session.receive(frames, self.exchange.now):
                if isinstance(event, Work):
                    self.begun.append(event.token)
                    self.holding.append(event.token)
                elif isinstance(event, Cancelled):
                    self.stopped.append(event.token)
        for message in [*self.session.pending(), *self.session.tick(self.exchange.now)]:
            self.exchange.send(self.link, self.name, *message)

    def wait(self, seconds: float) -> None:
        end = self.exchange.now + seconds
        while self.exchange.now < end:
            self.exchange.wait(0.5)
            self.hear()
            assert not self.session.is_lost(self.exchange.now)

    def reply(self, body: bytes) -> None:
        for frames in self.session.reply(self.holding.pop(), [body]):
            self.exchange.send(self.link, self.name, *frames)


@pytest.mark.parametrize("dialect", ["emqp", "mdr"])
def test_a_job_of_an_hour_runs_once(dialect: str) -> None:
    plant = Plant(dialect)
    plant.worker_begins()
    plant.submit(retries=3, timeout_s=2 * HOUR_S)
    plant.hear()
    plant.wait(HOUR_S)
    assert len(plant.begun) == 1
    assert plant.exchange.bus.counters.workers_lost == 0
    plant.reply(b"after an hour")
    done = plant.call(b"result", b"j")
    assert bytes(done.body[0]) == b"after an hour"
    assert len(plant.begun) == 1


@pytest.mark.parametrize("dialect", ["emqp", "mdr"])
def test_a_silent_worker_loses_its_job(dialect: str) -> None:
    """The other side of it: without beats five seconds are enough."""
    plant = Plant(dialect)
    plant.worker_begins()
    plant.submit()
    plant.exchange.wait(DEAD_AFTER_S + 0.5)
    assert plant.exchange.bus.counters.workers_lost == 1


def test_a_job_of_an_hour_runs_once_although_the_broker_restarts() -> None:
    plant = Plant("emqp")
    plant.worker_begins()
    plant.submit(retries=3)
    plant.hear()
    for _ in range(6):
        plant.wait(HOUR_S / 6)
        plant.restart()
        plant.worker_begins()
    plant.wait(30.0)
    assert len(plant.begun) == 1
    plant.reply(b"at last")
    done = plant.call(b"result", b"j")
    assert bytes(done.body[0]) == b"at last"
    facts = msgspec.json.decode(bytes(plant.call(b"job", b"j").body[0]))
    assert facts["state"] == "done"


def test_a_new_conversation_does_not_run_it_again() -> None:
    plant = Plant("emqp")
    plant.worker_begins()
    plant.submit()
    plant.hear()
    plant.wait(60.0)
    plant.worker_begins()
    plant.wait(60.0)
    assert len(plant.begun) == 1
    facts = msgspec.json.decode(bytes(plant.call(b"job", b"j").body[0]))
    assert (facts["state"], facts["attempt"]) == ("running", 1)
    plant.reply(b"7")
    assert bytes(plant.call(b"result", b"j").body[0]) == b"7"


def test_a_running_job_is_stopped() -> None:
    plant = Plant("emqp")
    plant.worker_begins()
    plant.submit()
    plant.hear()
    plant.wait(60.0)
    done = plant.call(b"cancel", b"j")
    assert bytes(done.body[0]) == b'{"cancelled":true}'
    plant.hear()
    assert plant.stopped == plant.begun
    plant.reply(b'{"error": "cancelled"}')
    failed = plant.call(b"result", b"j")
    assert isinstance(failed, Failed)
    assert failed.code == "cancelled"


def test_a_job_that_is_cancelled_before_its_worker_is_back_is_stopped() -> None:
    plant = Plant("emqp")
    plant.worker_begins()
    plant.submit()
    plant.hear()
    plant.wait(60.0)
    plant.restart()
    done = plant.call(b"cancel", b"j")
    assert bytes(done.body[0]) == b'{"cancelled":true}'
    plant.worker_begins()
    assert plant.stopped == plant.begun
    plant.reply(b"too late")
    failed = plant.call(b"result", b"j")
    assert isinstance(failed, Failed)
    assert failed.code == "cancelled"


def test_a_job_that_was_cancelled_before_the_restart_is_stopped() -> None:
    plant = Plant("emqp")
    plant.worker_begins()
    plant.submit()
    plant.hear()
    plant.call(b"cancel", b"j")
    # The word to the worker was lost with the broker.
    plant.exchange.got(plant.link, plant.name)
    plant.restart()
    plant.worker_begins()
    assert plant.stopped == plant.begun


def test_a_job_that_is_cancelled_after_its_worker_is_back_is_stopped() -> None:
    plant = Plant("emqp")
    plant.worker_begins()
    plant.submit()
    plant.hear()
    plant.restart()
    plant.worker_begins()
    assert not plant.stopped
    plant.call(b"cancel", b"j")
    plant.hear()
    assert plant.stopped == plant.begun


def test_a_time_limit_stops_it_and_the_next_attempt_begins() -> None:
    plant = Plant("emqp")
    plant.worker_begins()
    plant.submit(timeout_s=60, retries=1, backoff_s=1)
    plant.hear()
    plant.wait(60.0 + Limits().timeout_grace_s + 1.0)
    assert plant.stopped == plant.begun
    assert isinstance(plant.session, EmqpWorker)
    plant.reply(b'{"error": "timeout"}')
    for frames in plant.session.grant(1):
        plant.exchange.send(plant.link, plant.name, *frames)
    plant.wait(2.0)
    assert len(plant.begun) == 2
    plant.reply(b"better")
    assert bytes(plant.call(b"result", b"j").body[0]) == b"better"
