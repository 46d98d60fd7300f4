"""Traffic with known counts: a broker, workers and clients of all dialects, and what the clients saw.

`Tally` holds what every client was told, request by request: how many answers of a service, how many
failures, expiries and cancellations.  The journal must say the same.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from pipeline.expected import ENDS, Rows
from polybus import Client, LogHandler, Request, RequestFailed, Worker
from polybus.client.admin import AdminClient
from support.job_broker import JobBroker
from support.live import read_line
from support.waiting import until

HERE: Final = Path(__file__).resolve().parent
DIALECTS: Final = ("ebus", "emqp", "mdp1", "mdp2", "mdr", "dbp")
CLIENT_PORTS: Final = {
    "ebus": "ebus.frontend",
    "emqp": "emqp.clients",
    "mdp1": "majordomo.clients",
    "mdp2": "majordomo.clients",
    "mdr": "majordomo.clients",
    "dbp": "dbp.port",
}
WORKER_PORTS: Final = {**CLIENT_PORTS, "ebus": "ebus.backend", "emqp": "emqp.workers"} | dict.fromkeys(
    ("mdp1", "mdp2", "mdr"), "majordomo.workers"
)
PATIENCE_S: Final = 60.0
TTL_S: Final = 8.0
SETTINGS: Final[dict[str, object]] = {
    "broker.name": "live",
    "broker.drain_s": 1.0,
    "majordomo.heartbeat_s": 0.25,
    "majordomo.liveness": 20,
    "emqp.heartbeat_s": 0.25,
    "emqp.expiry_s": TTL_S,
    "limits.request_ttl_s": TTL_S,
    "limits.orphan_grace_s": 0.5,
    "jobs.backoff_s": 0.05,
    "journal.archive": "true",
}
FLAPS: Final = 6
SLOW_WORKERS: Final = 12
LARGE: Final = b"x" * 5000
# Words of the client library → how the journal calls the end.
OUTCOMES: Final = {"expired": "expired", "cancelled": "cancelled"}


class Broker(JobBroker):
    """One that can be asked, and whose journal is known."""

    @property
    def journal(self) -> Path:
        return self.folder / "data" / "journal"

    def ask(self, do: str, **facts: Any) -> Any:
        with AdminClient(self.endpoints["admin.port"]) as admin:
            return admin.ask(do, **facts)


class Tally:
    """What clients saw; threads may count at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By service and outcome; by the client's dialect and service.
        self.ends: Counter[tuple[str, str]] = Counter()
        self.calls: Counter[tuple[str, str]] = Counter()
        self.published: Counter[str] = Counter()
        self.logs: Counter[tuple[str, str]] = Counter()
        self.partials = 0

    def ended(self, dialect: str, service: str, outcome: str) -> None:
        with self._lock:
            self.ends[service, outcome] += 1
            self.calls[dialect, service] += 1

    @property
    def requests(self) -> int:
        return self.ends.total()

    def problems(self, rows: Rows) -> list[str]:
        """Where the journal of this broker says something else."""
        ends: Counter[tuple[str, str]] = Counter()
        calls: Counter[tuple[str, str]] = Counter()
        published: Counter[str] = Counter()
        logs: Counter[tuple[str, str]] = Counter()
        whats: Counter[str] = Counter()
        for row in rows:
            what, service = row["what"], row["service"]
            whats[what] += 1
            if what in ENDS and not service.startswith(("polybus.", "lvc", "mmi.")):
                ends[service, what] += 1
                calls[row["client_dialect"], service] += 1
            elif what == "published" and not service.startswith("polybus/"):
                published[service] += 1
            elif what == "log":
                logs[row["reason"], service.split("/", 2)[2]] += 1
        # Who asks for a job by way of the desk is no matter here; which service ended how, is.
        plain = Counter({key: count for key, count in calls.items() if not key[1].startswith("job.")})
        seen = Counter({key: count for key, count in self.calls.items() if not key[1].startswith("job.")})
        told: tuple[tuple[str, Counter[Any], Counter[Any]], ...] = (
            ("ends of requests", self.ends, ends),
            ("calls by dialect", seen, plain),
            ("publications", self.published, published),
            ("log records", self.logs, logs),
        )
        found = [
            f"{title}: {key}: clients saw {mine[key]}, the journal has {theirs[key]}"
            for title, mine, theirs in told
            for key in sorted(mine.keys() | theirs.keys(), key=str)
            if mine[key] != theirs[key]
        ]
        least = {"partial": self.partials, "retried": 1, "requeued": 1, "scheduled": 1}
        # A lost worker may be noticed by its silence, or before that by what cannot be sent to it.
        least |= {"worker_down": FLAPS + 1}
        least |= {"dead": sum(count for (_, what), count in ends.items() if what == "expired")}
        found += [
            f"{what}: at least {count} were expected, the journal has {whats[what]}"
            for what, count in least.items()
            if whats[what] < count
        ]
        return found


class Traffic:
    """Clients and workers of a broker, and their counts."""

    def __init__(self, broker: Broker, scale: int) -> None:
        self.broker = broker
        self.scale = scale
        self.tally = Tally()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._aside: list[threading.Thread] = []
        self._errors: list[BaseException] = []
        self._rounds = 0

    # -- workers ------------------------------------------------------------------------------

    def open(self) -> None:
        entries: list[list[Any]] = []
        for dialect in DIALECTS:
            kinds = {f"echo.{dialect}": "echo", f"fail.{dialect}": "fail"}
            entries.append([dialect, self._worker_place(dialect), kinds])
        mdr, emqp = self._worker_place("mdr"), self._worker_place("emqp")
        entries.append(["emqp", emqp, {"job.ok": "echo", "job.flaky": "flaky", "job.bad": "fail"}])
        entries.append(["mdr", mdr, {"job.held": "hold"}])
        entries.append(["mdp2", mdr, {"pieces": "pieces"}])
        entries += [["mdr", mdr, {"slow": "slow"}] for _ in range(SLOW_WORKERS)]
        self._services = sorted({service for entry in entries for service in entry[2]})
        self.start_workers(entries)
        self.wait_for_workers()

    def wait_for_workers(self) -> None:
        until(lambda: self.broker.has_workers(*self._services), "workers of all dialects", PATIENCE_S)

    def _worker_place(self, dialect: str) -> str:
        return self.broker.endpoints[WORKER_PORTS[dialect]]

    def start_workers(self, entries: list[list[Any]]) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(HERE / "peers.py"), json.dumps(entries)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        self._processes.append(process)
        return process

    def flap(self) -> None:
        """A worker that comes and goes, as often as is an alert."""
        for _ in range(FLAPS):
            worker = Worker({"flap": lambda request: b""}, self._worker_place("mdr"), "mdr")
            thread = threading.Thread(target=worker.run)
            thread.start()
            until(lambda: self.broker.has_workers("flap"), "a worker that flaps")
            worker.stop()
            thread.join(PATIENCE_S)
            until(lambda: not self.broker.has_workers("flap"), "a worker that is gone")

    def lose_worker(self, count: int) -> None:
        """A worker is killed with requests in its hands; another one answers them."""
        place = self._worker_place("mdr")
        victim = self.start_workers([["mdr", place, {"rescue": "hold"}]])
        until(lambda: self.broker.has_workers("rescue"), "the victim")
        threads = [self.aside(self._call, "mdr", "rescue", b"help") for _ in range(count)]
        assert read_line(victim, PATIENCE_S) == "got rescue"
        victim.kill()
        victim.wait()
        self.start_workers([["mdr", place, {"rescue": "echo"}]])
        for thread in threads:
            thread.join(PATIENCE_S)

    # -- clients ------------------------------------------------------------------------------

    def client(self, dialect: str, name: str = "") -> Client:
        endpoints = self.broker.endpoints
        places: dict[str, Any] = {}
        if dialect in ("ebus", "emqp"):
            places = {"publish_address": endpoints[f"{dialect}.publish"]}
            places |= {"subscribe_address": endpoints[f"{dialect}.subscribe"]}
        identity = f"{name}-{dialect}".encode() if name else None
        return Client(
            endpoints[CLIENT_PORTS[dialect]], dialect, timeout_s=PATIENCE_S, identity=identity, **places
        )

    def aside(self, work: Callable[..., None], *arguments: Any) -> threading.Thread:
        """Have something done in a thread; `settle` waits for it and tells what went wrong."""

        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:
                self._errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        self._aside.append(thread)
        return thread

    def settle(self) -> None:
        for thread in self._aside:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a client still waits"
        self._aside.clear()
        if self._errors:
            raise self._errors[0]

    def _call(self, dialect: str, service: str, body: bytes, ttl_s: float = PATIENCE_S) -> None:
        with self.client(dialect) as client:
            pending = client.submit(service, body, ttl_s)
            outcome = "replied"
            try:
                pending.result(PATIENCE_S)
            except RequestFailed as error:
                outcome = OUTCOMES.get(error.code, "failed")
            self.tally.ended(dialect, service, outcome)

    def call_all(self, count: int, failures: int, name: str = "shop") -> None:
        """Every dialect calls every other; some calls fail."""
        for dialect in DIALECTS:
            with self.client(dialect, name) as client:
                for other in DIALECTS:
                    bodies = (b"%d" % n * (n % 9) for n in range(count))
                    self._call_many(client, f"echo.{other}", bodies)
                    self._call_many(client, f"fail.{other}", (b"tea" for _ in range(failures)))

    def _call_many(self, client: Client, service: str, bodies: Iterator[bytes]) -> None:
        for answer in client.call_many(service, bodies, return_errors=True):
            outcome = "failed" if isinstance(answer, RequestFailed) else "replied"
            self.tally.ended(client.dialect, service, outcome)

    def expire(self, count: int) -> None:
        """Requests that nobody will ever answer, in all dialects."""
        for dialect in DIALECTS:
            for _ in range(count):
                self.aside(self._call, dialect, f"silent.{dialect}", b"anybody?", 3.0)

    def call_slow(self) -> None:
        for _ in range(SLOW_WORKERS):
            self.aside(self._call, "mdr", "slow", b"")

    def stream(self, count: int) -> None:
        for dialect in ("mdp2", "mdr"):
            with self.client(dialect) as client:
                for _ in range(count):
                    assert list(client.stream("pieces", b"")) == [b"one", b"two", b"three"]
                    self.tally.ended(dialect, "pieces", "replied")
                    self.tally.partials += 2

    def cancel(self, count: int) -> None:
        """EBUS has a word for it; jobs can be cancelled from everywhere."""
        with self.client("ebus") as client:
            pending = [client.submit("silent.cancel", b"never mind") for _ in range(count)]
            for one in pending:
                one.cancel()
                self.tally.ended("ebus", "silent.cancel", "cancelled")
            # What was sent before it has been taken, too.
            self._call_many(client, "echo.mdr", iter([b"done?"]))
        with self.client("emqp") as client:
            for n in range(count):
                self._submit(client, "job.unwanted", f"unwanted-{n}", reply="receipt")
                answer = json.loads(client.call("polybus.cancel", b"unwanted-%d" % n))
                assert answer == {"cancelled": True}, answer
                self.tally.ended("emqp", "job.unwanted", "cancelled")

    # -- jobs ---------------------------------------------------------------------------------

    def _submit(self, client: Client, service: str, job: str, **more: Any) -> bytes:
        head = {"service": service, "id": job, "ttl_s": 120, "backoff_s": 0.05, "reply": "result"} | more
        return client.call("polybus.submit", json.dumps(head).encode() + b"\n" + job.encode())

    def run_jobs(self, count: int, name: str) -> None:
        """Guaranteed jobs: good ones, ones that succeed later, and ones that never do."""
        for number, dialect in enumerate(DIALECTS):
            with self.client(dialect) as client:
                for n in range(count):
                    self._job(client, "job.ok", f"ok-{name}-{number}-{n}")
                    self._job(client, "job.flaky", f"flaky-{name}-{number}-{n}", retries=2)
                    self._job(client, "job.bad", f"bad-{name}-{number}-{n}", retries=1)

    def _job(self, client: Client, service: str, job: str, **more: Any) -> None:
        outcome = "replied"
        try:
            self._submit(client, service, job, **more)
        except RequestFailed:
            outcome = "failed"
        self.tally.ended(client.dialect, service, outcome)

    def time_out(self, count: int) -> None:
        """Jobs whose worker takes too long, twice."""

        def run(n: int) -> None:
            with self.client("mdr") as client:
                self._job(client, "job.held", f"held-{n}", timeout_s=0.3, retries=1)

        for n in range(count):
            self.aside(run, n)

    def leave_jobs(self, count: int) -> list[str]:
        """Jobs that wait for a worker which comes after the next start of the broker."""
        jobs = [f"later-{n}" for n in range(count)]
        with self.client("mdr") as client:
            for job in jobs:
                self._submit(client, "job.later", job, reply="receipt")
        return jobs

    def fetch_jobs(self, jobs: list[str]) -> None:
        self.start_workers([["mdp1", self._worker_place("mdp1"), {"job.later": "echo"}]])
        with self.client("mdr") as client:
            for job in jobs:
                assert client.call("polybus.result", job.encode()) == job.encode()
                self.tally.ended("mdr", "job.later", "replied")

    def schedule(self, runs: int) -> None:
        """A schedule that ends by itself; its worker counts."""
        ran: list[bytes] = []

        def tick(request: Request) -> bytes:
            ran.append(request.body)
            self.tally.ended("", "job.tick", "replied")
            return b""

        worker = Worker({"job.tick": tick}, self._worker_place("mdr"), "mdr")
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            plan = {"do": "add", "queue": "job.tick", "message": "tick", "every_s": 1, "runs": runs}
            with self.client("mdr") as client:
                client.call("polybus.schedule", json.dumps(plan).encode())
            until(lambda: len(ran) >= runs, "the schedule's runs")
            self.rest()
        finally:
            worker.stop()
            thread.join(PATIENCE_S)

    # -- topics -------------------------------------------------------------------------------

    def publish(self, count: int) -> None:
        """In both dialects that have topics; everything must have come when this returns."""
        for dialect in ("ebus", "emqp"):
            with self.client(dialect) as client:
                for n in range(count):
                    self._publish(client, f"price/{dialect}/{n % 7}", b"%d" % n)
                self._publish(client, "big", LARGE)
                # What was sent before it has been taken, too.
                self._rounds += 1
                last = f"end/{dialect}/{self._rounds}"
                self._publish(client, last, b"")
                until(partial(self.broker.ask, "last", topic=last, prefix=True), "the last publication")

    def _publish(self, client: Client, topic: str, body: bytes) -> None:
        client.publish(topic, body)
        self.tally.published[topic] += 1

    def log(self, count: int, name: str) -> None:
        endpoints = self.broker.endpoints
        kept = self.broker.ask("status")["logs"]
        for dialect in ("ebus", "emqp"):
            node = f"{name}-{dialect}"
            handler = LogHandler(endpoints[f"{dialect}.publish"], node, dialect)
            logger = logging.Logger(node)
            logger.addHandler(handler)
            for n in range(count):
                level = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)[n % 4]
                logger.log(level, "message %d:\nit's well", n)
                self.tally.logs[logging.getLevelName(level).lower(), node] += 1
            handler.flush()
            handler.close()
        until(lambda: self.broker.ask("status")["logs"] >= kept + 2 * count, "the last log record")

    # -- the whole ----------------------------------------------------------------------------

    def rest(self) -> None:
        """Until everything that happened is on disk."""

        def is_written() -> bool:
            status = self.broker.ask("status")
            return not status["journal_waiting_bytes"]

        until(is_written, "the journal")

    def morning(self) -> None:
        scale = self.scale
        self.expire(2)
        self.time_out(3)
        self.call_slow()
        self.call_all(scale, max(2, scale // 20))
        self.stream(5)
        self.cancel(5)
        self.run_jobs(2, "morning")
        self.publish(scale)
        self.log(20, "morning")
        self.lose_worker(4)
        self.flap()
        self.schedule(2)
        self.settle()
        self.rest()

    def evening(self) -> None:
        scale = self.scale
        self.call_all(scale, 2, "night")
        self.run_jobs(1, "evening")
        self.publish(scale // 2)
        self.log(10, "evening")
        self.flap()
        self.settle()
        self.rest()

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
