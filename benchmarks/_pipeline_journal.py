"""A journal of millions of events, made quickly: segments as the archiver writes them, without a broker.

Twenty services, of which a few get most of the requests; hundreds of clients; requests wait and take times
over several orders of magnitude.  Of a hundred events about ninety belong to requests: accepted, dispatched,
and one end; the others are publications, log records, workers that come and go, and beats.

Segments have about 100,000 rows in the order of their numbers, like the archiver's; bodies are small
and do not compress.  Everything follows from the seed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from polybus.journal.columns import SCHEMA
from polybus.journal.segment import SegmentWriter

ROWS: Final = 100_000
EVENTS_PER_S: Final = 2_000
# 2025-11-16, 08:00.
BEGIN_US: Final = 1_763_280_000 * 1_000_000
BODY_BYTES: Final = 48
SERVICES: Final = [f"service-{n:02d}" for n in range(20)]
CLIENTS: Final = [f"client-{n:03d}" for n in range(150)] + [f"00{n * 7919:08x}" for n in range(1, 101)]
WORKERS: Final = [f"worker-{n:03d}" for n in range(80)]
TOPICS: Final = [f"price/{n:03d}" for n in range(200)]
NODES: Final = [f"node-{n}" for n in range(10)]
LEVELS: Final = ["debug", "info", "warning", "error"]
DIALECTS: Final = ["mdr", "emqp", "ebus", "mdp1", "mdp2", "dbp"]
ENDS: Final = ["replied", "failed", "expired", "cancelled"]
# How requests end, and what else there is in a segment.
END_SHARES: Final = (0.955, 0.02, 0.015, 0.01)
PUBLISHED: Final = 7_000
LOGGED: Final = 2_000
BEATS: Final = 20
CAME: Final = 40

Columns = dict[str, Any]


class Generator:
    """Makes segments, one after the other."""

    def __init__(self, journal: Path, seed: int = 1) -> None:
        self._folder = journal / "segments"
        self._random = np.random.default_rng(seed)
        self._made = 0
        self._seq = 1
        self._requests = 0

    def write(self, segments: int) -> int:
        """So many segments more; how many rows they have."""
        return sum(self._segment() for _ in range(segments))

    def _segment(self) -> int:
        span = ROWS * 1_000_000 // EVENTS_PER_S
        begin = BEGIN_US + self._made * span
        parts = [
            *self._simple("published", PUBLISHED, begin, span),
            *self._simple("log", LOGGED, begin, span),
            *self._simple("beat", BEATS, begin, span),
            *self._workers(begin, span),
        ]
        room = ROWS - sum(len(part["at"]) for part in parts)
        parts += self._life_of(room, begin, span)
        table = pa.concat_tables([_table(part) for part in parts]).sort_by("at")
        numbers = pa.array(np.arange(self._seq, self._seq + table.num_rows), pa.int64())
        table = table.set_column(2, SCHEMA.field("seq"), numbers)
        self._seq += table.num_rows
        self._made += 1
        self._write(table)
        return int(table.num_rows)

    # -- rows -----------------------------------------------------------------------------------

    def _life_of(self, room: int, begin: int, span: int) -> list[Columns]:
        """Requests for so many rows: each is accepted, dispatched, and ends; some are dead then."""
        pick = self._random
        # Dead letters are as many as those that expire.
        count = int(room / (3 + END_SHARES[2]))
        skew = 1.0 / np.arange(1, len(SERVICES) + 1) ** 1.1
        service = pick.choice(len(SERVICES), count, p=skew / skew.sum())
        accepted = begin + pick.integers(0, span, count)
        dispatched = accepted + pick.lognormal(6.5, 1.2, count).astype(np.int64)
        # Some services are a hundred times slower than others.
        ended = dispatched + (pick.lognormal(7.5, 1.0, count) * (1 + 5 * (service % 7))).astype(np.int64)
        end = pick.choice(len(ENDS), count, p=END_SHARES)
        first = self._requests
        self._requests += count
        ids = pa.array(np.arange(first, first + count)).cast(pa.string())
        known: Columns = {
            "token": pc.binary_join_element_wise("b7f3a1-", ids, ""),
            "request_id": pc.binary_join_element_wise("req-5d1e77a0-", ids, ""),
            "service": _words(SERVICES, service),
            "client": _words(CLIENTS, pick.integers(0, len(CLIENTS), count)),
            "client_dialect": _words(DIALECTS, (service + 1) % len(DIALECTS)),
            "client_link": _words(["majordomo.clients"], np.zeros(count, np.int64)),
            "accepted_at": _stamps(accepted),
            "size": pa.array(np.full(count, BODY_BYTES)),
        }
        given: Columns = {
            "worker": _words(WORKERS, (service * 4 + pick.integers(0, 4, count)) % len(WORKERS)),
            "worker_dialect": _words(DIALECTS, service % len(DIALECTS)),
            "worker_link": _words(["majordomo.workers"], np.zeros(count, np.int64)),
            "dispatched_at": _stamps(dispatched),
            "attempt": pa.array(np.ones(count, np.int32)),
        }
        body = self._bodies(count)
        reply = {"body": body, "body_size": pa.array(np.full(count, BODY_BYTES))}
        reasons = {"reason": _words(["", *ENDS[1:]], end, empty=True)}
        expired = np.flatnonzero(end == 2)
        taken = pa.array(expired)
        return [
            {"what": "accepted", "at": accepted, **known, "body": body},
            {"what": "dispatched", "at": dispatched, **known, **given},
            {"what": _words(ENDS, end), "at": ended, **known, **given, **reply, **reasons},
            {
                "what": "dead",
                "at": ended[expired],
                **{name: column.take(taken) for name, column in (known | given | reasons).items()},
                "body": body.take(taken),
            },
        ]

    def _simple(self, what: str, count: int, begin: int, span: int) -> list[Columns]:
        pick = self._random
        row: Columns = {"what": what, "at": begin + pick.integers(0, span, count)}
        if what == "published":
            row["service"] = _words(TOPICS, pick.integers(0, len(TOPICS), count))
            row |= {"body": self._bodies(count), "body_size": pa.array(np.full(count, BODY_BYTES))}
        elif what == "log":
            level = pick.integers(0, len(LEVELS), count)
            topics = [f"log/{level}/{node}" for level in LEVELS for node in NODES]
            row["service"] = _words(topics, level * len(NODES) + pick.integers(0, len(NODES), count))
            row["reason"] = _words(LEVELS, level)
            row["detail"] = _words(["an order came in", "nothing to do", "it took long"], level % 3)
        return [row]

    def _workers(self, begin: int, span: int) -> list[Columns]:
        """Workers that come, and others that go."""
        pick = self._random
        made = []
        for what in ("worker_up", "worker_down"):
            who = pick.integers(0, len(WORKERS), CAME)
            at = begin + pick.integers(0, span, CAME)
            row: Columns = {"what": what, "at": at, "worker": _words(WORKERS, who)}
            row |= {"worker_dialect": _words(["mdr"], who * 0), "service": _words(SERVICES, who // 4)}
            row["worker_link"] = _words(["majordomo.workers"], who * 0)
            if what == "worker_down":
                row |= {"accepted_at": _stamps(at - 60_000_000), "reason": _words(["goodbye"], who * 0)}
            made.append(row)
        return made

    def _bodies(self, count: int) -> pa.Array:
        data = self._random.bytes(count * BODY_BYTES)
        ends = np.arange(0, (count + 1) * BODY_BYTES, BODY_BYTES, dtype=np.int32)
        frames = pa.Array.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(data)]
        )
        return pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32)), frames)

    # -- files ----------------------------------------------------------------------------------

    def _write(self, table: pa.Table) -> None:
        hours = pc.strftime(table["at"], format="%Y-%m-%d/%H")
        name = f"{self._made:012d}-{self._made:08x}.parquet"
        for hour in sorted(pc.unique(hours).to_pylist()):
            date, number = hour.split("/")
            folder = self._folder / f"date={date}" / f"hour={number}"
            folder.mkdir(parents=True, exist_ok=True)
            part = table.filter(pc.equal(hours, hour))
            with (folder / name).open("wb") as file, SegmentWriter(file) as writer:
                writer.write(part)


def _table(row: Columns) -> pa.Table:
    count = len(row["at"])
    zeros = pa.array(np.zeros(count, np.int64))
    fixed: Columns = {
        "broker": _words(["bench"], np.zeros(count, np.int64)),
        "life": _words(["b7f3a1"], np.zeros(count, np.int64)),
        "seq": zeros,
        "at": _stamps(row["at"]),
        "attempt": zeros,
        "size": zeros,
        "body_size": zeros,
    }
    what = row["what"]
    if isinstance(what, str):
        what = _words([what], np.zeros(count, np.int64))
    columns = fixed | row | {"at": fixed["at"], "what": what}
    return pa.Table.from_arrays(
        [
            columns[field.name].cast(field.type) if field.name in columns else pa.nulls(count, field.type)
            for field in SCHEMA
        ],
        schema=SCHEMA,
    )


def _words(words: list[str], numbers: Any, empty: bool = False) -> pa.Array:
    known = pa.array([None if empty and not word else word for word in words], pa.string())
    return known.take(pa.array(numbers))


def _stamps(numbers: Any) -> pa.Array:
    return pa.array(numbers, pa.int64()).view(pa.timestamp("us", tz="UTC"))
