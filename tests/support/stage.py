"""The bus alone, with a clock that only moves when told: events in, actions out.

stage = Stage()
stage.worker("w", "echo", credit=2)
stage.submit("c", "1", "echo")
stage.actions(act.Deliver)      # what was asked for since the last look
stage.wait(1.0)                 # time passes in small steps, with a tick at each

Names are text here and bytes on the bus; clients live on link 1, workers on link 2.  `observed` collects all
observations, `taken` what was asked for and not looked at yet.

stage = LedgerStage()           # the same with a ledger: what is noted is on disk after `write`
stage.write()
stage.refuse_writes("disk full")
stage.restart()                 # a new bus, with what was on disk
"""

from __future__ import annotations

from typing import Any, TypeGuard, TypeVar

import msgspec

from polybus.core import actions as act
from polybus.core import events
from polybus.core.bus import Bus
from polybus.core.dispatching import note_starts
from polybus.core.ledger import Accepted, Contents, DeadLetter, Ended, Line
from polybus.core.model import (
    PLAIN_CALL,
    Address,
    Heartbeat,
    JobOptions,
    Limits,
    QueuePolicy,
    Reason,
    Request,
    Worker,
)
from polybus.core.restoring import restore
from polybus.core.tables import DESK
from polybus.store.memory import MemoryStore

CLIENTS, WORKERS = 1, 2
NEVER_DEAD = Heartbeat(dead_after_s=0.0)

A = TypeVar("A")


def client(name: str) -> Address:
    return (CLIENTS, name.encode())


def worker(name: str) -> Address:
    return (WORKERS, name.encode())


class Stage:
    def __init__(self, limits: Limits | None = None, watched: bool = True) -> None:
        self.bus = Bus(b"n-", limits, watched)
        self.now = 1000.0
        self.taken: list[Any] = []
        self.observed: list[act.Observed] = []

    def do(self, event: Any) -> None:
        self.bus.handle(event, self.now)
        self._collect()

    def _collect(self) -> None:
        for action in self.bus.take():
            if isinstance(action, act.Observed):
                self.observed.append(action)
            else:
                self.taken.append(action)

    def actions(self, kind: type[A]) -> list[A]:
        """The actions of one kind since the last look, which are no longer there then."""
        found = [action for action in self.taken if isinstance(action, kind)]
        self.taken = [action for action in self.taken if not isinstance(action, kind)]
        return found

    def one(self, kind: type[A]) -> A:
        found = self.actions(kind)
        assert len(found) == 1, (kind.__name__, found)
        return found[0]

    def nothing(self) -> bool:
        """Whether nothing was asked for since the last look."""
        taken, self.taken = self.taken, []
        return not taken

    def wait(self, seconds: float, step: float = 0.05) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + step, end)
            self.do(events.Tick())

    # -- peers ------------------------------------------------------------------------------------

    def worker(
        self,
        name: str,
        *services: str,
        credit: int = 1,
        weight: int = 0,
        heartbeat: Heartbeat = NEVER_DEAD,
        **more: Any,
    ) -> Worker:
        offers = tuple((service.encode(), weight) for service in services or ("echo",))
        self.do(events.WorkerUp(worker(name), name, offers, heartbeat, credit, **more))
        return self.bus.workers[worker(name)]

    def gone(self, name: str, why: str = "it left") -> None:
        self.do(events.WorkerGone(worker(name), why))

    def heard(self, name: str) -> None:
        self.do(events.Heard(worker(name), name))

    def submit(
        self,
        client_name: str,
        request_id: str,
        service: str = "echo",
        body: list[bytes] | None = None,
        options: JobOptions = PLAIN_CALL,
        **more: Any,
    ) -> None:
        body = [f"{client_name}/{request_id}".encode()] if body is None else body
        self.do(
            events.Submit(
                client(client_name),
                client_name,
                request_id.encode(),
                service.encode(),
                body,
                options,
                **more,
            )
        )

    def request(self, client_name: str, request_id: str) -> Request:
        """An unanswered request."""
        return self.bus.clients[client(client_name)].outstanding[request_id.encode()]

    def token(self, client_name: str, request_id: str) -> bytes:
        return self.request(client_name, request_id).token

    def result(self, name: str, token: bytes = b"", body: list[bytes] | None = None) -> None:
        self.do(events.Result(worker(name), token, [b"done"] if body is None else body))

    def part(self, name: str, token: bytes = b"", body: list[bytes] | None = None) -> None:
        self.do(events.Part(worker(name), token, [b"part"] if body is None else body))

    def fail(self, name: str, token: bytes = b"", reason: Reason = Reason.FAILED) -> None:
        self.do(events.Failure(worker(name), token, "it broke", [], reason))

    def delivered(self) -> list[tuple[str, str]]:
        """(worker, request id) of what was handed out since the last look."""
        return [
            (action.worker.address[1].decode(), action.request.request_id.decode())
            for action in self.actions(act.Deliver)
        ]

    def told(self, what: str) -> list[act.Observed]:
        return [record for record in self.observed if record.what == what]


# -- with a ledger --------------------------------------------------------------------------------


class Pen:
    """What the scribe does, when told to: batches become one transaction, or are refused.

    That jobs started is noted with whatever comes next, unless starts linger: then it is noted when they have
    lasted a while, as in a broker, and a crash before that loses it.
    """

    def __init__(self, store: MemoryStore, starts_linger: bool = False) -> None:
        self.store = store
        self.starts_linger = starts_linger
        self.batches: list[tuple[int, list[Line]]] = []
        # Lines that happened and could not be written yet, and the last batch they are of.
        self.kept: list[Line] = []
        self.number = 0
        # Everything that was ever written, in order.
        self.written: list[Line] = []

    def take(self, bus: Bus) -> None:
        if not self.starts_linger:
            note_starts(bus)
        if bus.lines:
            self.batches.append(bus.take_lines())

    def commit(self) -> list[Any]:
        """All that waits gets on disk; what the core is told then."""
        lines, self.kept = self.kept, []
        for number, batch in self.batches:
            self.number = number
            lines += batch
        self.batches = []
        self.store.write(lines)
        self.written += lines
        told = [events.Written(self.number)] if self.number else []
        self.number = 0
        return told

    def refuse(self, reason: str, doubtful: bool = False) -> list[Any]:
        """The disk takes nothing. `doubtful`: nobody knows whether it did, so it is taken back later."""
        told = []
        for number, batch in self.batches:
            refused = tuple(line.token for line in batch if is_refusable(line))
            if doubtful:
                self.store.write(batch)
                self.kept += [Ended(token) for token in refused]
            self.kept += [line for line in batch if not is_refusable(line)]
            self.number = number
            if refused:
                told.append(events.Unwritten(refused, reason))
        self.batches = []
        return told


def is_refusable(line: Line) -> TypeGuard[Accepted]:
    return isinstance(line, Accepted) and not line.promised


class LedgerStage(Stage):
    """The bus with a ledger. The time of day is 1,700,000,000 s ahead of the stage's own clock."""

    WALL_OFFSET = 1_700_000_000.0

    def __init__(self, limits: Limits | None = None, starts_linger: bool = False) -> None:
        super().__init__(limits)
        self.limits = limits
        self.lives = 1
        self.policies: list[tuple[str, QueuePolicy]] = []
        self.pen = Pen(MemoryStore(), starts_linger)
        self._prepare(self.bus)

    @property
    def store(self) -> MemoryStore:
        return self.pen.store

    def _prepare(self, bus: Bus) -> None:
        bus.store_trouble = ""
        bus.wall_offset = self.WALL_OFFSET
        bus.link_names = {CLIENTS: "clients", WORKERS: "workers", DESK[0]: "jobs"}
        bus.change_policies(self.policies)

    def queue_rules(self, **rules: QueuePolicy) -> None:
        self.policies = list(rules.items())
        self.bus.change_policies(self.policies)

    def write(self) -> None:
        """What was noted gets on disk, and what follows from that as well."""
        self.pen.take(self.bus)
        while self.pen.batches or self.pen.kept:
            for event in self.pen.commit():
                self.do(event)
            self.pen.take(self.bus)

    def refuse_writes(self, reason: str = "the disk is full", doubtful: bool = False) -> None:
        """What was noted does not get on disk, and the bus is told."""
        self.pen.take(self.bus)
        self.do(events.StoreHealth(reason))
        for event in self.pen.refuse(reason, doubtful):
            self.do(event)
        self.pen.take(self.bus)

    def recover(self) -> None:
        """The disk is back: what was kept is written."""
        self.write()
        self.do(events.StoreHealth(""))
        self.write()

    def restart(self, last_batch_on_disk: bool = False, after_s: float = 0.0) -> None:
        """The broker dies between two turns; a new one begins with what is on disk."""
        if last_batch_on_disk:
            # It was written, and nobody was told.
            self.pen.take(self.bus)
            self.pen.commit()
        self.pen = Pen(self.pen.store, self.pen.starts_linger)
        self.now += after_s
        self.lives += 1
        self.taken.clear()
        self.bus = Bus(b"n%d-" % self.lives, self.limits, self.bus.watched)
        self._prepare(self.bus)
        restore(self.bus, self.contents(), "silent", self.now)
        self._collect()

    def contents(self) -> Contents:
        """What a store gives back has been through its format: nothing is shared with the old bus."""
        contents = self.store.load()
        return msgspec.msgpack.decode(msgspec.msgpack.encode(contents), type=Contents)

    def dead(self) -> list[DeadLetter]:
        return self.store.dead(1000)

    # -- jobs with an id of their own -----------------------------------------------------------------

    def call(self, client_name: str, request_id: str, service: str, body: bytes, **more: Any) -> None:
        """Call one of the broker's own services."""
        self.submit(client_name, request_id, f"polybus.{service}", [body], **more)

    def job(
        self, job_id: str | None, service: str = "echo", body: bytes = b"work", *, by: str = "c", **spec: Any
    ) -> None:
        """Send a job through `polybus.submit`; the call has the id "submit <job id>"."""
        head: dict[str, Any] = {"service": service, **spec}
        if job_id is not None:
            head["id"] = job_id
        self.call(by, f"submit {job_id}", "submit", msgspec.json.encode(head) + b"\n" + body)

    def group(self, job_id: str, *members: dict[str, Any], by: str = "c", **more: Any) -> None:
        head = {"group": list(members), "id": job_id, **more}
        self.call(by, f"submit {job_id}", "submit", msgspec.json.encode(head))

    def job_request(self, job_id: str) -> Request:
        request = self.bus.desk.known[job_id.encode()]
        assert isinstance(request, Request), request
        return request

    def facts(self, job_id: str) -> dict[str, Any]:
        """What `polybus.job` says."""
        self.call("asker", f"facts {job_id}", "job", job_id.encode())
        answer = self.taken.pop()
        assert isinstance(answer, act.Answer), answer
        assert answer.client == client("asker"), answer
        facts: dict[str, Any] = msgspec.json.decode(answer.body[0])
        return facts
