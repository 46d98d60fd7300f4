"""A seeded world of guaranteed jobs: brokers that die and come back, disks that fill up, peers that do both.

`JobWorld(seed).run()` plays it and raises `Broken` with the first promise that did not hold:

- a job whose receipt arrived is never unknown again, and ends;
- everybody who asks for its result gets the same one, whenever they ask, and it is the job's own;
- when all is over the ledger holds no job, and after some time nothing at all.

Broker, scribe and sessions are the real ones; only sockets, threads and the disk are missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from polybus.client.brain import Brain, Ticket
from polybus.client.sessions import client_session, worker_sessions
from polybus.client.sessions.emqp import EmqpWorker
from polybus.client.sessions.port import Cancelled, Restart, Work
from polybus.core import events
from polybus.core.bus import Bus
from polybus.core.dispatching import note_starts
from polybus.core.ledger import Line
from polybus.core.model import Limits, Retrying
from polybus.core.restoring import restore
from polybus.core.tables import DESK
from polybus.dialects.port import Voice
from polybus.errors import StoreFailed, StoreFull
from polybus.server.scribe import Scribe, Sick, Unwritten, Well, Written
from polybus.store.memory import MemoryStore
from simulation.network import Clock, Frames, Network
from simulation.peers import Conversation, SimClient, SimWorker
from simulation.world import DIALECTS, LINKS, Broken, SimBroker

LIMITS = Limits(request_ttl_s=60.0, replies_age_s=20.0, idle_service_s=20.0, attempts=8, orphan_grace_s=5.0)
OUTCOMES_AGE_S = 900.0
TROUBLE_S = 30.0
END_S = 600.0
ASK_S = 20.0
# Said by the broker or the library about a call, not about the job: it is made again.
PASSING = {"draining", "store_unavailable", "queue_full", "too_many_outstanding", "expired"}


class Disk(MemoryStore):
    """A disk that is full for a while, or that fails and keeps what it said it would not."""

    def __init__(self) -> None:
        super().__init__()
        self.state = "well"

    def write(self, lines: Sequence[Line]) -> None:
        if self.state == "full":
            raise StoreFull("the disk is full")
        super().write(lines)
        if self.state == "failing":
            raise StoreFailed("the disk failed")


class JobBroker(SimBroker):
    def __init__(self, network: Network, disk: Disk) -> None:
        self.disk = disk
        self.crashes = 0
        super().__init__(network)

    def new_bus(self) -> Bus:
        return Bus(b"L%d-" % self.lives, LIMITS)

    def begin(self) -> None:
        bus = self.bus
        bus.wall_offset = 1_700_000_000.0
        bus.store_trouble = ""
        bus.outcomes_age_s = OUTCOMES_AGE_S
        bus.retrying = Retrying(backoff_s=0.5, backoff_max_s=5.0, jitter=0.1)
        bus.link_names = {**{link: name for name, link in LINKS.items()}, DESK[0]: "jobs"}
        # What a disk gives back was written and read.
        stored = msgspec.msgpack.encode(self.disk.load())
        restore(bus, msgspec.msgpack.decode(stored, type=type(self.disk.load())), Voice(), self.clock.now)
        self.scribe = Scribe(self.disk, lambda: None, clock=lambda: self.clock.now)
        self._writing = False

    def _settle(self) -> None:
        super()._settle()
        if self.bus.lines:
            self.scribe.submit(*self.bus.take_lines())
        scribe = self.scribe
        if not self._writing and (scribe._batches or scribe._kept or scribe._trouble):
            self._writing = True
            random, life = self.network.random, self.lives
            takes_s = random.expovariate(1 / 0.01) if random.random() < 0.95 else random.uniform(0.1, 1.5)
            self.clock.after(takes_s, lambda: self._transact() if self.lives == life else None)

    def _transact(self) -> None:
        """One turn of the scribe, without its thread."""
        self._writing = False
        self._write()
        now = self.clock.now
        for result in self.scribe.results():
            match result:
                case Written(number):
                    self.bus.handle(events.Written(number), now)
                case Unwritten(_, refused, reason):
                    self.bus.handle(events.Unwritten(refused, reason), now)
                case Sick(reason):
                    self.bus.handle(events.StoreHealth(reason), now)
                case Well():
                    self.bus.handle(events.StoreHealth(""), now)
        self._settle()

    def _write(self) -> None:
        scribe, now = self.scribe, self.clock.now
        batches = scribe._take_batches()
        if scribe._trouble and now < scribe._again_at:
            scribe._refuse(batches, scribe._trouble)
        else:
            scribe._transact(batches)

    def stop(self) -> None:
        if self.network.broker is None:
            return
        self.crashes += 1
        if self.draining:
            # A broker that goes in good order writes everything down.
            note_starts(self.bus)
        if self.bus.lines and self.draining:
            self.scribe.submit(*self.bus.take_lines())
        if self.draining or self.network.random.random() < 0.3:
            # It dies after the disk has it and before anybody is told.
            self._write()
        super().stop()


class Job:
    def __init__(self, job_id: str, head: dict[str, Any], body: bytes, expected: bytes) -> None:
        self.id, self.body, self.expected = job_id, body, expected
        self.envelope = msgspec.json.encode({**head, "id": job_id}) + (b"\n" + body if body else b"")
        self.receipts = 0
        self.outcomes: list[tuple[str, bytes]] = []


class JobClient(SimClient):
    """Sends jobs until it has a receipt, then asks for results until it has one."""

    def __init__(self, network: Network, name: str, dialect: str, link: int) -> None:
        super().__init__(network, name, dialect, link)
        self.brain = Brain(client_session(dialect), window=1000)
        self.brain._prefix = name.encode() + b"-"
        self.open = 0

    def order(self, job: Job) -> None:
        self.open += 1
        self._call(b"polybus.submit", job.envelope, lambda ticket: self._ordered(job, ticket))

    def ask_for(self, job: Job) -> None:
        self.open += 1
        self._call(b"polybus.result", job.id.encode(), lambda ticket: self._asked(job, ticket))

    def _call(self, service: bytes, body: bytes, then: Any) -> None:
        if not self.alive:
            return
        now = self.clock.now
        ticket = self.brain.submit(service, [body], now, now + ASK_S, ttl_s=ASK_S)

        def ended() -> None:
            self.open -= 1
            then(ticket)

        ticket.notify = ended
        self.clock.after(ASK_S, lambda: self._give_up(ticket))
        self.step([])

    def _again(self, what: Any, job: Job) -> None:
        # It is still at it, also during the pause.
        self.open += 1

        def again() -> None:
            self.open -= 1
            what(job)

        self.clock.after(self.random.uniform(0.1, 2.0), again)

    def _ordered(self, job: Job, ticket: Ticket) -> None:
        if ticket.error is None:
            assert msgspec.json.decode(b"".join(ticket.frames())) == {"job": job.id}
            self.log(f"has the receipt for {job.id}")
            job.receipts += 1
            self._again(self.ask_for, job)
        elif _is_passing(ticket.error):
            self._again(self.order, job)
        else:
            raise Broken(f"{job.id} was refused: {ticket.error}")

    def _asked(self, job: Job, ticket: Ticket) -> None:
        error = ticket.error
        if error is None:
            answer = b"".join(ticket.frames())
            self.log(f"gets {answer!r} for {job.id}")
            if answer != job.expected:
                raise Broken(f"{job.id} was answered with {answer!r}, not {job.expected!r}")
            job.outcomes.append(("yes", answer))
        elif _is_passing(error):
            self._again(self.ask_for, job)
        elif error.code == "unknown_job":
            raise Broken(f"{job.id} is lost: {error}")
        else:
            self.log(f"learns that {job.id} failed: {error}")
            job.outcomes.append(("no", error.code.encode()))


def _is_passing(error: Any) -> bool:
    return error.code in PASSING or (error.code == "timeout" and "in the time allowed" in str(error))


class Pool(SimWorker):
    """An eMQP worker whose jobs outlive its conversations, as `polybus worker` does it."""

    def start(self) -> None:
        self.holding: list[bytes] = []
        self.parked: dict[bytes, bytes] = {}
        self._same_identity = f"{self.name}.{self.life}".encode()
        self._granted_for: object = None
        super().start()

    def new_identity(self) -> bytes:
        return self._same_identity

    def _new_sessions(self, prefix: bytes) -> list[Any]:
        return worker_sessions(
            self.dialect, self.services, self.credit, {}, prefix, lambda: [*self.holding, *self.parked]
        )

    def _hear(self, talk: Conversation, frames: Frames) -> None:
        if talk.again_at is not None:
            return
        session = talk.session
        assert isinstance(session, EmqpWorker)
        was_ready = session.ready
        for event in session.receive(frames, self.clock.now):
            if isinstance(event, Work):
                self._begin_work(talk, event)
            elif isinstance(event, Cancelled):
                self._stop_work(talk, event.token)
            elif isinstance(event, Restart):
                self._end(talk, event.reason)
        if session.ready and not was_ready and talk.again_at is None:
            for token, answer in list(self.parked.items()):
                del self.parked[token]
                self._send(talk, session.reply(token, [answer]))
            self._send(talk, session.grant(max(0, self.credit - len(self.holding))))
        self._look()

    def _begin_work(self, talk: Conversation, work: Work) -> None:
        body = b"".join(bytes(frame) for frame in work.body)
        self.log(f"is given {body.decode()} (attempt {work.attempt})")
        self.holding.append(work.token)
        takes_s = (
            self.random.expovariate(1 / 0.3) if self.random.random() < 0.8 else self.random.uniform(0, 12)
        )
        life = self.life

        def done() -> None:
            if work.token in self.holding:
                fails = self.random.random() < 0.05
                self._finish(talk, work.token, b'{"error": "it broke"}' if fails else b"re:" + body)

        self.clock.after(takes_s, lambda: self._when_awake(done, life))

    def _stop_work(self, talk: Conversation, token: bytes) -> None:
        self.parked.pop(token, None)
        if token in self.holding:
            self.log(f"stops {token.decode()}")
            self._finish(talk, token, b'{"error": "cancelled"}')

    def _finish(self, talk: Conversation, token: bytes, answer: bytes) -> None:
        self.holding.remove(token)
        session = talk.session
        assert isinstance(session, EmqpWorker)
        if session.ready and talk.again_at is None:
            self._send(talk, session.done([(token, [answer])]))
        else:
            self.parked[token] = answer
        self._look()


class JobWorld:
    def __init__(self, seed: int, trace: bool = False) -> None:
        self.trace: list[str] = []
        self._tracing = trace
        self.random = random = Random(seed)
        self.clock = Clock()
        self.network = Network(self.clock, random, self._log)
        self.disk = Disk()
        self.broker = JobBroker(self.network, self.disk)
        self.services = [f"s{n}" for n in range(random.randint(1, 2))]
        self.clients = [self._client(n) for n in range(random.randint(2, 4))]
        self.workers = self._workers()
        self.jobs: list[Job] = []

    def _log(self, who: str, what: str) -> None:
        if self._tracing:
            self.trace.append(f"{self.clock.now - 1000.0:9.4f}  {who:<8} {what}")

    def _client(self, number: int) -> JobClient:
        dialect = self.random.choice(DIALECTS)
        return JobClient(self.network, f"c{number}{dialect}", dialect, LINKS[dialect])

    def _workers(self) -> list[SimWorker]:
        workers: list[SimWorker] = []
        names = [name.encode() for name in self.services]
        for number in range(self.random.randint(1, 3)):
            credit = self.random.choice([1, 3, 10])
            workers.append(Pool(self.network, f"p{number}", "emqp", LINKS["emqp"], names, credit))
        for name in names:
            dialect = self.random.choice([d for d in DIALECTS if d != "dbp"])
            who = f"w{len(workers)}{dialect}"
            workers.append(SimWorker(self.network, who, dialect, LINKS[dialect], [name], 2))
        return workers

    # -- playing ------------------------------------------------------------------------------------

    def run(self) -> None:
        self._plan()
        start = self.clock.now
        self.clock.run(lambda: self.clock.now >= start + TROUBLE_S, start + TROUBLE_S)
        self.disk.state = "well"
        if not self.clock.run(self._all_known, start + END_S):
            unknown = [job.id for job in self.jobs if not job.outcomes]
            raise Broken(f"never known: {unknown}, {list(self.broker.bus.requests.values())[:3]}")
        # Everybody asks once more, after one more crash, and gets the same.
        self.broker.stop()
        for job in self.jobs:
            self.clock.after(self.random.uniform(3, 10), lambda j=job: self._anybody().ask_for(j))
        self.clock.run(lambda: False, self.clock.now + 12.0)
        if not self.clock.run(lambda: not any(c.open for c in self.clients), self.clock.now + END_S):
            raise Broken("those who asked again got nothing")
        self._check()
        self._close()

    def _anybody(self) -> JobClient:
        return self.random.choice(self.clients)

    def _all_known(self) -> bool:
        return not any(client.open for client in self.clients) and all(job.outcomes for job in self.jobs)

    def _plan(self) -> None:
        random, clock = self.random, self.clock
        for number in range(random.randint(5, 40)):
            job = self._job(number)
            self.jobs.append(job)
            client = self._anybody()
            clock.after(random.uniform(0, TROUBLE_S), lambda c=client, j=job: c.order(j))
            if random.random() < 0.3:
                # Somebody else sends the same job.
                other = self._anybody()
                clock.after(random.uniform(0, TROUBLE_S), lambda c=other, j=job: c.order(j))
        for _ in range(random.choice([0, 3, 10, 30])):
            clock.after(random.uniform(0, TROUBLE_S), self._trouble)
        for _ in range(random.choice([0, 1, 2, 5])):
            clock.after(random.uniform(0, TROUBLE_S), self.broker.stop)
        if random.random() < 0.3:
            clock.after(random.uniform(0, TROUBLE_S), self.broker.drain)

    def _job(self, number: int) -> Job:
        random = self.random
        options = {"retries": random.choice([0, 6, 6, 6]), "backoff_s": random.choice([0.0, 0.5])}
        if random.random() < 0.3:
            options["timeout_s"] = 6.0
        service, name = random.choice(self.services), f"job/{number}"
        chance = random.random()
        if chance < 0.2:
            then = [{"service": random.choice(self.services), **options} for _ in range(random.randint(1, 2))]
            expected = b"re:" * (1 + len(then)) + name.encode()
            return Job(name, {"service": service, "then": then, **options}, name.encode(), expected)
        if chance < 0.35:
            size = random.randint(1, 4)
            members = [
                {"service": random.choice(self.services), "body": f"{name}/{n}", **options}
                for n in range(size)
            ]
            expected = msgspec.json.encode([f"re:{name}/{n}" for n in range(size)])
            return Job(name, {"group": members}, b"", expected)
        return Job(name, {"service": service, **options}, name.encode(), b"re:" + name.encode())

    def _trouble(self) -> None:
        random = self.random
        what = random.choice(["cut", "cut", "crash", "freeze", "stall", "dark", "full", "failing"])
        self._log("world", f"trouble: {what}")
        if what in ("full", "failing"):
            self.disk.state = what
            self.clock.after(random.uniform(0.1, 6.0), self._repair)
        elif what in ("crash", "freeze"):
            worker = random.choice(self.workers)
            if what == "freeze":
                worker.freeze(random.uniform(0.5, 20.0))
            elif worker.alive:
                worker.crash()
                self.clock.after(random.uniform(0.01, 10.0), worker.start)
        else:
            wire = random.choice(self.network.lines)
            if what == "cut":
                wire.cut()
            elif what == "stall":
                wire.stall(random.uniform(0.1, 5.0))
            else:
                wire.go_dark(random.uniform(0.1, 5.0))

    def _repair(self) -> None:
        self.disk.state = "well"

    # -- what must hold -----------------------------------------------------------------------------

    def _check(self) -> None:
        for job in self.jobs:
            if not job.receipts or len(job.outcomes) < 2:
                raise Broken(f"{job.id}: {job.receipts} receipts, {job.outcomes}")
            if len(set(job.outcomes)) > 1:
                raise Broken(f"{job.id} ended in two ways: {job.outcomes}")

    def _close(self) -> None:
        for client in self.clients:
            client.crash()
        for worker in self.workers:
            worker.retired = True
            worker.crash()
        end = self.clock.now + OUTCOMES_AGE_S + 120.0
        self.clock.run(lambda: False, end)
        bus, disk = self.broker.bus, self.disk
        left = {
            "jobs on disk": disk._jobs,
            "groups on disk": disk._groups,
            "outcomes on disk": disk._outcomes,
            "requests": bus.requests,
            "jobs": bus.desk.known,
            "groups": bus.groups,
            "clients": bus.clients,
            "workers": bus.workers,
            "services": bus.services,
            "waiters": len(bus.waiters),
            "words that wait for the disk": bus.held,
            "alarms": bus.alarms._slots,
            "expiries": bus.expiries._slots,
            "held bytes": bus.held_bytes,
            "bytes of outcomes": bus.outcomes_bytes,
        }
        for name, what in left.items():
            if what:
                raise Broken(f"{name} are left: {what}")
