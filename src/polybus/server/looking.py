"""Looking at the bus from outside: logs, liveness, and what `polybus top` shows.

As questions of the admin socket:

    logs {"level": "warning", "node": "probe*", "since": epoch, "limit": 100}
    logs {…, "after": cursor, "life": life, "wait_s": 10}      what came since the last answer, or comes now
    log_nodes                                                  how many records of each level, by node
    top {"sort": "rate", "limit": 50}                          one screen; see `Looking._top`
    monitor                                                    liveness of everything

and as services of the broker, for clients of every dialect: `polybus.logs` (the same fields; with "message"
it writes a record instead), `polybus.monitor` and `polybus.tap` (`taps`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatchcase
from heapq import nlargest
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from polybus.core import logs, monitor, topics, views
from polybus.core.actions import Accept, Answer
from polybus.core.bus import Bus
from polybus.core.desk import Call, Refused
from polybus.core.latency import Times
from polybus.core.lifecycle import NodeState
from polybus.core.logs import LogRecord
from polybus.core.model import Body, Reason, Service, Worker
from polybus.server.admin import MAX_LISTED, BadQuestion, Later
from polybus.server.taps import Taps, dialect_of
from polybus.wire.frames import is_name

Level = Literal["debug", "info", "warning", "error", "critical"]
# Who waits for records: each costs a look at every one of them.
MAX_FOLLOWERS: Final = 64
# After a screen, so long it is counted how long requests take: until the next one.
TIMED_S: Final = 5.0
MAX_TIMED_S: Final = 600.0
# What is summed up of services that are not listed.
SUMMED: Final = ("running", "waiting", "accepted", "answered", "failed")


class LogQuestion(Struct):
    level: Level = "debug"
    node: Annotated[str, Meta(max_length=255)] = ""
    since: float | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED)] = 100
    after: int | None = None
    life: str = ""
    wait_s: Annotated[float, Meta(ge=0, le=30)] = 0.0


class LogEntry(Struct):
    """A record that a client writes by calling."""

    message: str
    level: Level = "info"
    node: Annotated[str, Meta(min_length=1, max_length=200)] = logs.UNKNOWN_NODE
    logger: str = ""
    at: float | None = None
    extra: dict[str, Any] = {}


class TopQuestion(Struct):
    sort: Literal["rate", "queue", "running", "failed", "name"] = "rate"
    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED)] = 50
    # So long after this look it is still counted how long requests take: for those who look rarely.
    timed_s: Annotated[float, Meta(ge=0, le=MAX_TIMED_S)] = TIMED_S


class Follower(Struct):
    question: LogQuestion
    until: float
    later: Later


class Looking:
    def __init__(
        self, bus: Bus, taps: Taps, rates: views.Rates, facts: Callable[[], dict[str, Any]] = dict
    ) -> None:
        self._bus = bus
        self._facts = facts
        self._rates = rates
        self._times = Times()
        self._timed_until = 0.0
        self._followers: list[Follower] = []
        bus.note_time = self._times.note
        self.commands: dict[str, Callable[[dict[str, Any], float], Any]] = {
            "logs": self._logs,
            "log_nodes": lambda question, now: bus.logs.nodes(),
            "top": self._top,
            "monitor": lambda question, now: self.liveness(now),
        }
        bus.own_services[b"logs"] = self._serve_logs
        bus.own_services[b"monitor"] = self._serve_liveness
        bus.own_services[b"tap"] = taps.call

    def tick(self, now: float) -> None:
        """Called about every second: who waited long enough, and whether anybody still looks."""
        if self._bus.timed and now > self._timed_until:
            self._bus.timed = False
            self._times.clear()
        due = [one for one in self._followers if one.until <= now]
        for follower in due:
            self._tell(follower)

    # -- logs -------------------------------------------------------------------------------------

    def _logs(self, question: dict[str, Any], now: float) -> Any:
        asked = _read(question, LogQuestion)
        found = self._find(asked)
        if found["records"] or asked.after is None or not asked.wait_s:
            return found
        if len(self._followers) >= MAX_FOLLOWERS:
            raise BadQuestion(f"{MAX_FOLLOWERS} follow the logs already; stop one of them")
        follower = Follower(asked, now + asked.wait_s, Later())
        self._followers.append(follower)
        self._bus.logs.on_put = self._came
        return follower.later

    def _find(self, asked: LogQuestion) -> dict[str, Any]:
        bus = self._bus
        kept, life = bus.logs, bus.nonce.decode()
        missed = 0
        if asked.after is None:
            since = 0.0 if asked.since is None else asked.since - bus.wall_offset
            found, cursor = kept.newest(asked.level, asked.node, since, asked.limit), kept.taken
        else:
            # Another life of the broker has other numbers: all that it has is new.
            after = asked.after if asked.life in ("", life) else 0
            found, missed = kept.after(after, asked.level, asked.node, asked.limit)
            cursor = found[-1].number if len(found) == asked.limit else kept.taken
        records = [logs.view(record, bus.wall_offset) for record in found]
        return {"records": records, "cursor": cursor, "life": life, "missed": missed}

    def _came(self, record: LogRecord) -> None:
        for follower in list(self._followers):
            asked = follower.question
            if record.rank >= logs.LEVELS.index(asked.level) and (
                not asked.node or fnmatchcase(record.node, asked.node)
            ):
                self._tell(follower)

    def _tell(self, follower: Follower) -> None:
        self._followers.remove(follower)
        if not self._followers:
            self._bus.logs.on_put = None
        follower.later.give(self._find(follower.question))

    def _serve_logs(self, bus: Bus, call: Call, body: Body, now: float) -> None:
        fields = _json(body)
        if "message" in fields:
            self._write(_convert(fields, LogEntry), now)
            _answer(bus, call, {"written": True})
        else:
            asked = _convert(fields, LogQuestion)
            _answer(bus, call, self._find(asked))

    def _write(self, entry: LogEntry, now: float) -> None:
        topic = logs.LOG_TOPICS + f"{entry.level}/{entry.node}".encode()
        if not is_name(topic):
            raise Refused(Reason.BAD_JOB, f"{entry.node!r} is no name for a node: it must be printable")
        fields = msgspec.structs.asdict(entry)
        fields["at"] = self._bus.wall_at(now) if entry.at is None else entry.at
        topics.receive(self._bus, topic, [msgspec.json.encode(fields)], now)

    # -- liveness ---------------------------------------------------------------------------------

    def liveness(self, now: float) -> dict[str, Any]:
        return monitor.liveness(self._bus, now, dialect_of, self._rates)

    def _serve_liveness(self, bus: Bus, call: Call, body: Body, now: float) -> None:
        _answer(bus, call, self.liveness(now))

    # -- top --------------------------------------------------------------------------------------

    def _top(self, question: dict[str, Any], now: float) -> Any:
        """One screen: totals that only grow, and of services, workers and nodes those that come first.

        Whoever asks again soon takes the difference; that is why the times are counts by class (`latency`).
        """
        asked = _read(question, TopQuestion)
        bus = self._bus
        bus.timed, self._timed_until = True, max(self._timed_until, now + asked.timed_s)
        self._times.looked_at()
        bus.untimed = 0
        services = list(bus.services.values())
        if asked.sort == "name":
            services = sorted(services, key=lambda service: service.name)[: asked.limit]
        else:
            services = nlargest(asked.limit, services, key=lambda one: self._rank(asked.sort, one, now))
        workers = nlargest(asked.limit, views.all_workers(bus), key=_busy)
        silent = views.silent_by_service(bus)
        nodes = nlargest(asked.limit, bus.nodes.values(), key=lambda n: (n.state is NodeState.LATE, n.missed))
        return {
            "at": bus.wall_at(now),
            "clock": now,
            "totals": {**views.totals(bus), **self._facts()},
            "services": [self._service(service, now, silent[service.name]) for service in services],
            "rest": self._rest(services),
            "workers": [views.worker_view(worker, now, dialect_of, bus.wall_offset) for worker in workers],
            "workers_late": sum(1 for worker in bus.workers.values() if views.is_late(worker, now)),
            "workers_by_dialect": Counter(dialect_of(worker.voice) for worker in bus.workers.values()),
            "nodes": [views.node_view(node, now) for node in nodes],
            "nodes_late": sum(1 for node in bus.nodes.values() if node.state is NodeState.LATE),
        }

    def _rest(self, listed: list[Service]) -> dict[str, Any]:
        """The services that are not listed, summed up."""
        known = self._bus.services
        if len(listed) == len(known):
            return {"services": 0}
        names = {service.name for service in listed}
        others = [service for service in known.values() if service.name not in names]
        times: Counter[int] = Counter()
        for name, counts in self._times.counts.items():
            if name not in names:
                times.update(counts)
        return {
            "services": len(others),
            "queued": sum(service.queue.length for service in others),
            **{field: sum(getattr(one, field) for one in others) for field in SUMMED},
            "times": {str(place): n for place, n in times.items()},
        }

    def _rank(self, sort: str, service: Service, now: float) -> tuple[float, int]:
        waiting = service.queue.length
        first = {
            "rate": self._rates.of(service, now),
            "queue": waiting,
            "running": service.running,
            "failed": service.failed,
        }
        return first[sort], service.running + waiting

    def _service(self, service: Service, now: float, silent: int) -> dict[str, Any]:
        workers = service.roster.members
        oldest = service.queue.oldest_at()
        return {
            "service": service.name.decode(errors="replace"),
            "state": views.state_of(workers, now, silent),
            "workers": len(workers),
            "silent_workers": silent,
            "load": views.load_of(workers),
            "queued": service.queue.length,
            "oldest_s": round(now - oldest, 3) if oldest is not None else None,
            "running": service.running,
            "waiting": service.waiting,
            "accepted": service.accepted,
            "answered": service.answered,
            "failed": service.failed,
            "rate_per_s": self._rates.of(service, now),
            "times": {str(place): n for place, n in self._times.counts.get(service.name, {}).items()},
        }


def _busy(worker: Worker) -> tuple[int, int]:
    return len(worker.inflight), worker.done


def _read(question: dict[str, Any], kind: type[Any]) -> Any:
    try:
        return msgspec.convert(question, kind)
    except msgspec.ValidationError as error:
        raise BadQuestion(f"the question is wrong: {error}") from None


def _json(body: Body) -> dict[str, Any]:
    text = b"".join(bytes(frame) for frame in body)
    try:
        return msgspec.json.decode(text or b"{}", type=dict[str, Any])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Refused(Reason.BAD_JOB, f"the body is no JSON object: {error}") from None


def _convert(fields: dict[str, Any], kind: type[Any]) -> Any:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise Refused(Reason.BAD_JOB, f"the question is wrong: {error}") from None


def _answer(bus: Bus, call: Call, value: Any) -> None:
    if call.receipt:
        bus.actions.append(Accept(call.client, call.voice, call.service, call.request_id))
    if call.wants_reply:
        body = [msgspec.json.encode(value)]
        bus.actions.append(Answer(call.client, call.voice, call.service, call.request_id, body))
