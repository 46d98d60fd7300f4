"""What became of every request: accepted once, ended once, and in between nothing that cannot be.

Nearly all requests begin and end within a moment, so rows are gathered, requests that are whole and in order
are counted and let go, and only the rows of the others are carried on (`Fates.add`).  Who is left at the end
is looked at one by one (`judge`): requests that are still open, that outlived a broker, that got lost with
one, and those with which something is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from polybus.core.ledger import GUARANTEED, REVIVED
from polybus.journal.numbering import Life, Missing
from polybus.journal.record import TERMINAL

COLUMNS: Final = ("life", "seq", "at", "what", "token", "request_id", "service", "reason", "dispatched_at")
ENDS: Final = tuple(sorted(TERMINAL))
# What happens to a request between its acceptance and its end.
STEPS: Final = ("dispatched", "partial", "retried", "requeued", "claimed")
_WHATS: Final = pa.array(["accepted", *ENDS, *STEPS])
# Rows that are gathered before it is looked which requests are whole: some hundred megabytes.
GATHERED: Final = 1_000_000
# Within this time before a broker was killed it may have noted what it had not written to disk.
UNWRITTEN: Final = timedelta(seconds=5)
# The store remembers at least so long how a request ended that has an id.
REMEMBERED: Final = timedelta(hours=20)

P1: Final = "P1"
P2: Final = "P2"
P3: Final = "P3"


class Fate(Struct, frozen=True):
    """A request that did not simply end, and what is known of it."""

    # open, lost (with its broker), unsure (the records that would tell are missing), again (it ended once
    # more, because its end was not on disk when the broker was killed), wrong.
    kind: str
    token: str
    service: str
    at: datetime
    life: str
    text: str
    promise: str = ""


class Fates:
    """Fed with rows; afterwards it knows how many requests ended how, and has the rows of the others."""

    def __init__(self, gathered: int = GATHERED) -> None:
        self.accepted = 0
        self.ends: Counter[str] = Counter()
        self._most = gathered
        self._parts: list[pa.Table] = []
        self._rows = 0
        self._settled = 0

    def add(self, table: pa.Table) -> None:
        table = steps_of(table)
        if not table.num_rows:
            return
        for count in pc.value_counts(table["what"]).to_pylist():
            if count["values"] == "accepted":
                self.accepted += count["counts"]
            elif count["values"] in TERMINAL:
                self.ends[count["values"]] += count["counts"]
        self._parts.append(table)
        self._rows += table.num_rows
        if self._rows - self._settled >= max(self._most, self._settled):
            self.settle()

    def settle(self) -> None:
        """Let go of the requests that are whole and in order."""
        if not self._parts:
            return
        rows = pa.concat_tables(self._parts).combine_chunks()
        rows = rows.filter(pc.is_in(rows["token"], _doubtful(rows)))
        self._parts = [rows]
        self._rows = self._settled = rows.num_rows

    def left(self) -> pa.Table | None:
        """The rows of the others."""
        self.settle()
        return self._parts[0] if self._parts and self._parts[0].num_rows else None


def steps_of(table: pa.Table) -> pa.Table:
    """The rows that are steps of a request, and what of them is needed here."""
    table = table.select(list(COLUMNS))
    return table.filter(pc.and_(pc.is_in(table["what"], _WHATS), pc.is_valid(table["token"])))


def _doubtful(rows: pa.Table) -> pa.Array:
    """The tokens of requests that are not simply this: accepted, then something, then one end, with a reason
    if it is not a reply and a worker if it is one; all in one life."""
    what, seq = rows["what"], rows["seq"]
    begins = pc.equal(what, "accepted")
    ends = pc.is_in(what, pa.array(ENDS))
    is_reply = pc.equal(what, "replied")
    told = pc.if_else(is_reply, pc.is_valid(rows["dispatched_at"]), pc.is_valid(rows["reason"]))
    facts = pa.table(
        {
            "token": rows["token"],
            "life": _codes(rows["life"]),
            "seq": seq,
            "begins": begins.cast(pa.int32()),
            "ends": ends.cast(pa.int32()),
            "begin": pc.if_else(begins, seq, None),
            "end": pc.if_else(ends, seq, None),
            "fine": pc.or_(pc.invert(ends), told).cast(pa.int8()),
        }
    )
    found = facts.group_by("token").aggregate(
        [
            ("begins", "sum"),
            ("ends", "sum"),
            ("begin", "max"),
            ("end", "min"),
            ("seq", "min"),
            ("seq", "max"),
            ("life", "min"),
            ("life", "max"),
            ("fine", "min"),
        ]
    )
    whole = pc.equal(found["begins_sum"], 1)
    for one, other in (
        (found["ends_sum"], 1),
        (found["begin_max"], found["seq_min"]),
        (found["end_min"], found["seq_max"]),
        (found["life_min"], found["life_max"]),
        (found["fine_min"], 1),
    ):
        whole = pc.and_(whole, pc.equal(one, other))
    doubtful = found["token"].filter(pc.invert(pc.fill_null(whole, False)))
    return doubtful.combine_chunks()


def _codes(column: pa.ChunkedArray) -> pa.Array:
    """Equal texts as equal numbers."""
    names = pc.unique(column)
    return pc.index_in(column, names)


def unbegun(rows: pa.Table) -> list[str]:
    """Tokens of requests whose acceptance is not among these rows."""
    facts = pa.table({"token": rows["token"], "begins": pc.equal(rows["what"], "accepted").cast(pa.int32())})
    found = facts.group_by("token").aggregate([("begins", "sum")])
    tokens: list[str] = found["token"].filter(pc.equal(found["begins_sum"], 0)).to_pylist()
    return tokens


# -- one by one -----------------------------------------------------------------------------------


Kept = Callable[[str], str | None]


class World(Struct):
    """What has to be known about everything else to judge one request."""

    lives: Mapping[str, Life]
    # The lives of each broker, one after the other.
    order: Mapping[str, list[Life]]
    # Lives of brokers that run.
    running: frozenset[str] = frozenset()
    # What the store has of a token: open, ended, or nothing. None if there is no store to ask.
    kept: Kept | None = None
    now: datetime = datetime.max.replace(tzinfo=UTC)

    def place(self, life: str) -> int:
        known = self.lives[life]
        return self.order[known.broker].index(known)

    def was_killed(self, life: str) -> bool:
        return not self.lives[life].is_stopped and life not in self.running

    def just_before_end(self, life: str, at: datetime) -> bool:
        return self.was_killed(life) and self.lives[life].last_at - at <= UNWRITTEN


def judge(rows: pa.Table, world: World) -> Iterable[Fate]:
    """The fates of these requests; those that are in order after all have none."""
    records = rows.to_pylist()
    places = {life: world.place(life) for life in {row["life"] for row in records}}
    records.sort(key=lambda row: (row["token"], places[row["life"]], row["seq"]))
    for token, steps in groupby(records, itemgetter("token")):
        yield from _Judgement(token, list(steps), world).fates()


class _Judgement:
    """One request's rows, in their order."""

    def __init__(self, token: str, rows: list[dict[str, Any]], world: World) -> None:
        self._token = token
        self._rows = rows
        self._world = world
        self._found: list[Fate] = []
        self._begun: dict[str, Any] | None = None
        self._end: dict[str, Any] | None = None
        self._is_guaranteed = False

    def fates(self) -> list[Fate]:
        for row in self._rows:
            what = row["what"]
            if what == "accepted":
                self._accept(row)
            elif what in TERMINAL:
                self._finish(row)
            elif self._end is not None:
                self._after_the_end(row)
        if self._end is None:
            self._unfinished()
        return self._found

    def _note(self, kind: str, row: dict[str, Any], text: str, promise: str = "") -> None:
        self._found.append(
            Fate(kind, self._token, row["service"] or "", row["at"], row["life"], text, promise)
        )

    def _accept(self, row: dict[str, Any]) -> None:
        if self._begun is not None and self._end is None:
            self._note("wrong", row, "it was accepted a second time before it ended", P2)
        self._begun, self._end = row, None
        self._is_guaranteed = row["reason"] in (GUARANTEED, REVIVED)

    def _finish(self, row: dict[str, Any]) -> None:
        end, self._end = self._end, row
        if end is not None:
            if end["life"] != row["life"] and self._world.just_before_end(end["life"], end["at"]):
                text = f"it had {end['what']} when the broker was killed, before that was on disk"
                self._note("again", row, f"{text}; then it {row['what']} again")
            else:
                text = f"it ended twice: {end['what']} at {_clock(end['at'])}, {row['what']} again"
                self._note("wrong", row, f"{text} at {_clock(row['at'])}", P3)
        elif self._begun is None and not self._is_beginning_missing(row["life"]):
            self._note("wrong", row, f"it {row['what']} but was never accepted", P2)
        if row["what"] == "replied":
            # What a broker takes up again after a restart does not know when it was given to a worker.
            begun = self._begun
            if row["dispatched_at"] is None and begun is not None and begun["life"] == row["life"]:
                self._note("wrong", row, "it was answered but never given to a worker", P3)
        elif row["reason"] is None:
            self._note("wrong", row, f"it {row['what']}, and nothing says why", P2)

    def _after_the_end(self, row: dict[str, Any]) -> None:
        end = self._end
        assert end is not None
        if end["life"] == row["life"]:
            self._note("wrong", row, f"it was {row['what']} after it had {end['what']}", P3)
        elif not self._world.just_before_end(end["life"], end["at"]):
            text = f"it was {row['what']} in a later life of the broker, after it had {end['what']}"
            self._note("wrong", row, text, P3)

    def _is_beginning_missing(self, life: str) -> bool:
        """Whether the records of the time when it was accepted are not all there: old ones are removed, and a
        broker that is killed takes those of its last milliseconds along."""
        born = self._world.lives.get(self._token.rpartition("-")[0])
        if born is None or born.is_trimmed or born.holes:
            return True
        return born.name != life and self._world.was_killed(born.name)

    # -- without an end ---------------------------------------------------------------------------

    def _unfinished(self) -> None:
        world, last = self._world, self._rows[-1]
        step = f"{last['what']} at {_clock(last['at'])}"
        missing = world.lives[last["life"]].missing_after(last["seq"])
        if last["life"] in world.running and missing is None:
            self._note("open", last, step)
            return
        kept = world.kept(self._token) if world.kept is not None and self._is_guaranteed else None
        if kept == "open":
            self._note("open", last, f"{step}; it is in the store")
        elif kept is not None:
            self._note(
                "unsure", last, f"{step}; the store says that it has {kept}, the record of that is missing"
            )
        elif missing is not None:
            self._note("unsure", last, f"{step}; its end may be among {_told(missing)}")
        elif self._is_guaranteed:
            self._lost_though_guaranteed(last, step)
        else:
            self._note("lost", last, f"{step}; {self._how(last['life'])}")

    def _lost_though_guaranteed(self, last: dict[str, Any], step: str) -> None:
        world = self._world
        how = f"{step}; {self._how(last['life'])}"
        if world.kept is None:
            # Without the store nobody knows.
            self._note("open", last, f"{how}; it is guaranteed: the next broker takes it up again")
        elif last["what"] == "accepted" and world.just_before_end(last["life"], last["at"]):
            self._note("lost", last, f"{how} before it was on disk, and its client was told nothing")
        elif world.was_killed(last["life"]) and (
            last["request_id"] is None or world.now - last["at"] > REMEMBERED
        ):
            self._note("unsure", last, f"{how}; its last records are missing, and the store has forgotten it")
        else:
            self._note("wrong", last, f"it was guaranteed, and is neither ended nor in the store; {how}", P1)

    def _how(self, life: str) -> str:
        known = self._world.lives[life]
        end = "stopped" if known.is_stopped else "was killed"
        return f"the broker {end} at {_clock(known.last_at)}"


def _told(missing: Missing) -> str:
    text = f"the {missing.records} records that are missing since then"
    if missing.before is not None:
        text = f"{text}, before {_clock(missing.before)}"
    return f"{text}: {missing.why}" if missing.why else text


def _clock(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S")
