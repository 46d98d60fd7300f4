"""A day that never was: the journals of two brokers over 24 hours, with a clock that we turn.

A live broker cannot be told that it is tomorrow, so a day's width (midnight, many windows, many hours, quiet
times, clocks that are set back) comes from records made here, with the journal's own code.  What is made is
kept as plain rows as well: what the journal holds in the end can be held against them.

Everything but the date follows from the seed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from pipeline.expected import Row as Plain
from polybus.journal.log import FINISHED, LogHead, log_path, write_batch, write_head
from polybus.journal.record import NO_LINK, Row, write_row

SECOND: Final = 1_000_000
HOUR: Final = 3600 * SECOND
# The day before today, and from a little before midnight: old enough to be over, young enough to be kept.
BEGIN: Final = (int(time.time()) // 86_400 * 86_400 - 86_400 - 1_200) * SECOND
LINKS: Final = {1: "ebus.frontend", 2: "ebus.backend", 3: "majordomo.clients", 4: "majordomo.workers"}
DIALECTS: Final = ("ebus", "emqp", "mdp1", "mdp2", "mdr", "dbp")
# Names as people give them, and as they do not expect them.
SERVICES: Final = (
    *(b"mail", b"shop.orders", b"shop.stock", b"pdf", b"search", b"echo"),
    *("größe".encode(), b"it's", b'say "hi"', b"a b", b"100%", b"x/y", b"back\\slash", b"\xff\xfe"),
)
CLIENTS: Final = (b"web-1", b"web-2", b"cron", b"\x00k\x8bEg", b"\x00\x01\x02\x03\x04", b"", b"00abcdefgh")
TOPICS: Final = (b"price/gold", b"price/silver", b"weather", "wärme/keller".encode(), b"it's", b"")
NODES: Final = (b"shop", b"shop/till", b"", b"kiln-7")
LEVELS: Final = ("debug", "info", "warning", "error", "critical")
# Of a thousand things that happen, so many are these.
MIX: Final = {"request": 700, "published": 180, "log": 60, "worker": 30, "other": 30}
OUTCOMES: Final = {"replied": 80, "failed": 9, "expired": 7, "cancelled": 4}


@dataclass
class Life:
    """One life of a broker, its records so far, and who works for it."""

    broker: str
    life: str
    rows: list[Row] = field(default_factory=list)
    workers: dict[bytes, tuple[int, str, bytes]] = field(default_factory=dict)


class Day:
    """Makes lives; each is a list of records in the order of their numbers."""

    def __init__(self, events: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._events = events
        self._made = 0

    def lives(self) -> list[Life]:
        """Two brokers: one that is restarted twice, and one that has a quiet day."""
        third = 24 * HOUR // 3
        made = [self._life("north", f"n{n}", BEGIN + n * third, third, self._events // 4) for n in range(3)]
        made.append(self._life("south", "s0", BEGIN, 24 * HOUR, self._events // 4))
        return made

    def _life(self, broker: str, name: str, begin: int, length: int, events: int) -> Life:
        life = Life(broker, name)
        life.rows.append(Row("started", begin, detail=f"broker {broker}"))
        # Busy minutes and quiet hours: things come in bursts.
        bursts = [begin + self._random.randrange(length) for _ in range(max(1, events // 150))]
        for burst in sorted(bursts):
            at = burst
            for _ in range(min(150, events)):
                at += int(self._random.expovariate(1 / (0.2 * SECOND)))
                # A clock that was set back, now and then.
                shown = at - self._random.randrange(90 * SECOND) if self._random.random() < 0.01 else at
                life.rows += self._happens(life, shown)
        life.rows.append(Row("stopped", begin + length))
        return life

    def _happens(self, life: Life, at: int) -> Iterator[Row]:
        what = self._random.choices(list(MIX), list(MIX.values()))[0]
        if what == "request":
            yield from self._request(life, at)
        elif what == "published":
            yield self._published(at)
        elif what == "log":
            yield self._log(at)
        elif what == "worker":
            yield from self._worker(life, at)
        else:
            yield Row(self._random.choice(("beat", "invalid", "subscribed", "node_up", "other")), at)

    def _service(self) -> bytes:
        # A few are asked for most of the time.
        return SERVICES[min(int(self._random.expovariate(0.4)), len(SERVICES) - 1)]

    def _duration(self) -> int:
        """Microseconds, from none at all to minutes."""
        return int(10 ** self._random.uniform(0, 7.5)) - 1

    def _request(self, life: Life, at: int) -> Iterator[Row]:
        pick = self._random
        self._made += 1
        size = pick.choice((0, 1, 17, 400, 100_000))
        body = tuple(pick.randbytes(n) for n in pick.choice(((), (0,), (5, 3))))
        accepted = Row(
            "accepted",
            at,
            client_dialect=pick.choice((*DIALECTS, "")),
            accepted_at=at,
            size=size,
            client_link=pick.choice((1, 3, 9, NO_LINK)),
            token=b"%s-%d" % (life.life.encode(), self._made),
            request_id=pick.choice((b"", b"r%d" % self._made, pick.randbytes(16))),
            service=b"" if pick.random() < 0.01 else self._service(),
            client=pick.choice(CLIENTS),
            body=body,
        )
        yield accepted
        later, attempt = accepted, 0
        if pick.random() < 0.93 and life.workers:
            for attempt in range(1, pick.choice((1, 1, 1, 1, 2, 4)) + 1):
                worker = pick.choice(list(life.workers))
                _, dialect, _ = life.workers[worker]
                at += self._duration()
                link = pick.choice((2, 4, NO_LINK)) if pick.random() < 0.05 else 4
                later = msgspec.structs.replace(
                    accepted,
                    at=at,
                    dispatched_at=at,
                    worker=worker,
                    worker_dialect=dialect,
                    worker_link=link,
                    attempt=attempt,
                )
                yield msgspec.structs.replace(later, what="dispatched", body=None)
                if attempt > 1:
                    yield msgspec.structs.replace(later, what="retried", body=None, reason="failed")
        outcome = pick.choices(list(OUTCOMES), list(OUTCOMES.values()))[0]
        if outcome in ("replied", "failed") and not later.dispatched_at:
            outcome = "expired"
        at += self._duration()
        answer = pick.choice((None, (b"ok",), (b"", b"\x00\xff")))
        reason = "" if outcome == "replied" else outcome if pick.random() < 0.8 else 'it\'s "late"'
        end = msgspec.structs.replace(
            later, what=outcome, at=at, reason=reason, body=answer, body_size=pick.choice((0, 2, 70_000))
        )
        if pick.random() < 0.01:
            # What a journal knows of a request may be less.
            end = msgspec.structs.replace(end, accepted_at=0, dispatched_at=0)
        yield end
        if outcome == "expired" or (outcome == "failed" and attempt > 1):
            headers = pick.choice(("", '{"retries":3}'))
            dead = msgspec.structs.replace(end, what="dead", body=body or None, headers=headers, body_size=0)
            yield msgspec.structs.replace(dead, detail="Traceback:\n\tit's broken" if attempt else "")

    def _published(self, at: int) -> Row:
        pick = self._random
        size = pick.choice((0, 8, 8, 5000))
        body = None if size > 4096 else (pick.randbytes(size),)
        return Row("published", at, body_size=size, service=pick.choice(TOPICS), body=body)

    def _log(self, at: int) -> Row:
        level, node = self._random.choice(LEVELS), self._random.choice(NODES)
        topic = b"log/%s/%s" % (level.encode(), node)
        detail = self._random.choice(("all is well", "Zeile 1\nZeile 2", "", "it's 100% \\n"))
        return Row("log", at, service=topic, reason=level, detail=detail, body=(b"{}",), body_size=2)

    def _worker(self, life: Life, at: int) -> Iterator[Row]:
        pick = self._random
        chance = pick.random()
        if life.workers and chance < 0.5:
            name = pick.choice(list(life.workers))
            since, dialect, service = life.workers[name]
            row = Row("worker_down", at, worker=name, worker_dialect=dialect, worker_link=4)
            if chance < 0.2:
                yield msgspec.structs.replace(row, what="heartbeat_missed", reason="3.0 s")
            if len(life.workers) > 1:
                del life.workers[name]
                # They flap: gone and there again.
                for n in range(pick.choice((1, 1, 4))):
                    down = at + n * SECOND
                    yield msgspec.structs.replace(
                        row, at=down, service=service, accepted_at=since, reason=pick.choice(("", "goodbye"))
                    )
        else:
            name = pick.choice((b"w%d" % pick.randrange(12), pick.randbytes(5)))
            service = b",".join(dict.fromkeys(self._service() for _ in range(pick.choice((1, 1, 3)))))
            dialect = pick.choice(DIALECTS)
            life.workers[name] = (at, dialect, service)
            yield Row("worker_up", at, worker=name, worker_dialect=dialect, worker_link=4, service=service)


# -- into the journal -------------------------------------------------------------------------


def plain(life: Life, seq: int, row: Row) -> Plain:
    """A record as the journal's readers see it."""

    def text(word: bytes) -> str | None:
        try:
            shown = word.decode()
        except UnicodeDecodeError:
            return word.hex()
        readable = shown.replace("\n", "").replace("\t", "").isprintable()
        return (shown if readable else word.hex()) or None

    return {
        "broker": life.broker,
        "life": life.life,
        "seq": seq,
        "at": row.at,
        "what": row.what,
        "token": text(row.token),
        "request_id": text(row.request_id),
        "service": text(row.service),
        "client": text(row.client),
        "client_dialect": row.client_dialect or None,
        "client_link": LINKS.get(row.client_link),
        "worker": text(row.worker),
        "worker_dialect": row.worker_dialect or None,
        "worker_link": LINKS.get(row.worker_link),
        "attempt": row.attempt,
        "reason": row.reason or None,
        "detail": row.detail or None,
        "accepted_at": row.accepted_at or None,
        "dispatched_at": row.dispatched_at or None,
        "size": row.size,
        "body_size": row.body_size,
        "headers": row.headers or None,
        "body": None if row.body is None else list(row.body),
    }


def plain_rows(lives: list[Life]) -> list[Plain]:
    return [plain(life, seq, row) for life in lives for seq, row in enumerate(life.rows, 1)]


def write_logs(folder: Path, life: Life, first: int, until: int, number: int, rows: int = 5000) -> int:
    """Records of a life as finished logs, from one number to before another; the number of the next log."""
    folder.mkdir(parents=True, exist_ok=True)
    links = {str(key): name for key, name in LINKS.items()}
    for begin in range(first, until, rows):
        end = min(begin + rows, until)
        parts = [write_head(LogHead(life.broker, life.life, number, 0.0, links))]
        for start in range(begin, end, 500):
            batch = life.rows[start - 1 : min(start + 500, end) - 1]
            parts.append(write_batch(start, len(batch), b"".join(map(write_row, batch))))
        log_path(folder, number, FINISHED).write_bytes(b"".join(parts))
        number += 1
    return number
