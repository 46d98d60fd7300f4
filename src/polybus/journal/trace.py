"""The whole life of one request, found in one or several journals.

A request is asked for by its token, by the id that its client gave it, or by a job's id.  Others belong to
it:

- the steps of a chain have the same id, each with a token of its own;
- the members of a group G are called G/0, G/1, …;
- a broker at the other end of a bridge knows it by another token, and by an id made of our token: TOKEN/0,
  with ~1 behind it if a broker in between tried it a second time.

So tokens and ids are followed from row to row until nothing new comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from polybus.errors import JournalMissing, JournalMoved, PolybusError
from polybus.journal.reader import Told, read_rows
from polybus.journal.record import TERMINAL

Row = dict[str, Any]
# The client of jobs that were submitted by their id.
DESK: Final = "jobs"
BRIDGE: Final = "bridge"
# More than a person reads; a group may have as many members.
MOST: Final = 1000
# How often it is begun again because files were compacted meanwhile.
TRIES: Final = 5


NEEDED: Final = (
    "broker",
    "life",
    "at",
    "accepted_at",
    "what",
    "token",
    "request_id",
    "service",
    "client",
    "client_dialect",
    "client_link",
    "worker_dialect",
)
# Clocks may be set back, and those of two brokers differ.
SLACK: Final = timedelta(hours=1)


class Ambiguous(PolybusError):
    """Several requests are called so."""

    def __init__(self, name: str, found: Sequence[Row]) -> None:
        super().__init__(f"{len(found)} requests are called {name!r}")
        self.found = found


class Life(Struct, frozen=True):
    """When a broker started, and when it said that it stops."""

    journal: str
    name: str
    at: datetime
    stopped_at: datetime | None


class Traced(Struct):
    """One request at one broker."""

    token: str
    broker: str
    # The journal that it is in: brokers may have the same name.
    journal: str
    rows: list[Row]

    @property
    def first(self) -> Row:
        return self.rows[0]

    @property
    def end(self) -> Row | None:
        """How it ended, the last time it did."""
        last: Row | None = None
        for row in self.rows:
            if row["what"] in TERMINAL or row["what"] == "rejected":
                last = row
            elif row["what"] in ("accepted", "dispatched"):
                last = None
        return last

    @property
    def request_id(self) -> str:
        # The steps of a chain lose it when they end.
        return next((row["request_id"] for row in self.rows if row["request_id"]), "")


class Trace(Struct):
    """Everything that belongs together, in the order in which it began."""

    name: str
    requests: list[Traced]
    lives: list[Life]
    # Rows that were left out, because there are too many.
    is_cut: bool = False


def trace(journals: Sequence[Path], name: str, damage: Told | None = None) -> Trace:
    """What became of a request. Raises `JournalMissing` if nothing is known of it, `Ambiguous` if several are
    called so."""
    for left in range(TRIES, 0, -1):
        try:
            return _Search(journals, damage).run(name)
        except JournalMoved:
            if left == 1:
                raise
    raise AssertionError


class _Search:
    def __init__(self, journals: Sequence[Path], damage: Told | None) -> None:
        self._journals = journals
        self._damage = damage

    def run(self, name: str) -> Trace:
        token, request_id = pc.field("token"), pc.field("request_id")
        found = self._read((token == name) | (request_id == name) | pc.starts_with(request_id, f"{name}/"))
        if not found:
            found = self._read(pc.starts_with(token, name) | pc.starts_with(request_id, name)) if name else []
            _check_one(name, found, lambda row: _only_name(name, row))
        elif not any(row["token"] == name for row in found):
            _check_one(name, found, lambda row: _single(name, row))
        if not found:
            raise JournalMissing(f"no request in the journal is called {name!r}")
        belonging = self._follow(found)
        tokens = sorted({row["token"] for row in belonging if row["token"]})
        rows = self._whole(tokens[:MOST], belonging)
        requests = _by_request(_of_requests(rows, belonging))
        return Trace(
            name, requests, _lives(rows, {request.journal for request in requests}), len(tokens) > MOST
        )

    def _follow(self, found: list[Row]) -> list[Row]:
        """Rows of all requests that belong to these, at least one of each."""
        rows = list(found)
        tokens: set[str] = set()
        ids: set[str] = set()
        looked: set[str] = set()
        new = found
        while len(tokens) <= MOST:
            tokens |= {row["token"] for row in new if row["token"]}
            same = {row["request_id"] for row in new if row["request_id"] and _is_desks(row)} - ids
            abroad = {row["request_id"].partition("~")[0] for row in new if _came_over(row)} - ids
            origins = {origin for row in new for origin in _origins(row)} - tokens
            bridged = _bridged(new) - looked
            if not (same or abroad or origins or bridged):
                break
            tokens |= origins
            ids |= same | abroad
            looked |= bridged
            wanted = _any("token", origins) | _any("request_id", same | abroad)
            for beginning in (*(f"{each}~" for each in abroad), *(f"{token}/" for token in bridged)):
                wanted = wanted | pc.starts_with(pc.field("request_id"), beginning)
            new = self._read(wanted)
            rows += new
        return rows

    def _whole(self, tokens: list[str], belonging: list[Row]) -> list[Row]:
        """In one reading: these requests, what has only their ids, and the lives of the brokers then."""
        ids = {row["request_id"] for row in belonging if row["request_id"]}
        what = pc.field("what")
        named = what.isin(["answer_lost", "rejected"]) & _any("request_id", ids)
        since = min(row["accepted_at"] or row["at"] for row in belonging) - SLACK
        return self._read(_any("token", tokens) | named | what.isin(["started", "stopped"]), None, since)

    def _read(
        self, wanted: pc.Expression, columns: Sequence[str] | None = NEEDED, since: datetime | None = None
    ) -> list[Row]:
        """Rows of all journals, each with the place of its journal."""
        rows: list[Row] = []
        tokens: set[str | None] = set()
        for journal in self._journals:
            for table in read_rows(
                journal, where=wanted, columns=columns, since=since, damage=self._damage, is_rare=True
            ):
                part = [{**row, "journal": str(journal)} for row in table.to_pylist()]
                rows += part
                tokens |= {row.get("token") for row in part}
                if len(tokens) > 2 * MOST:
                    # Half the journal, nearly: nobody wants to see that.
                    break
        # The same finding again and again says nothing new.
        self._damage = _heard
        return rows


def _any(column: str, names: Iterable[str]) -> pc.Expression:
    return pc.field(column).isin(pa.array(sorted(names), pa.string()))


def _heard(text: str) -> None:
    """It was told already."""


# -- who belongs together -------------------------------------------------------------------------


def _is_desks(row: Row) -> bool:
    return row["client"] == DESK and row["client_link"] is None


def _came_over(row: Row) -> bool:
    """Whether another broker asked for it."""
    return bool(row["request_id"]) and row["client_dialect"] == BRIDGE


def _origins(row: Row) -> Iterable[str]:
    """The token at the first broker of a request that came over a bridge."""
    if _came_over(row):
        token = row["request_id"].partition("~")[0].rpartition("/")[0]
        if token:
            yield token


def _bridged(rows: Iterable[Row]) -> set[str]:
    """Tokens of requests that were given to other brokers."""
    return {row["token"] for row in rows if row["worker_dialect"] == BRIDGE and row["token"]}


def _single(name: str, row: Row) -> Any:
    """What is a request of its own, and no part of the one that is called so: a client may use an id again,
    and others may use it, too."""
    is_own = row["request_id"] == name and not _is_desks(row) and row["client_dialect"] != BRIDGE
    return row["token"] if is_own else None


def _only_name(name: str, row: Row) -> Any:
    """The whole name of what begins so."""
    return row["token"] if row["token"] and row["token"].startswith(name) else row["request_id"]


def _check_one(name: str, rows: list[Row], key: Callable[[Row], Any]) -> None:
    kinds: dict[Any, Row] = {}
    for row in rows:
        kind = key(row)
        if kind is not None:
            kinds.setdefault(kind, row)
    if len(kinds) > 1:
        raise Ambiguous(name, sorted(kinds.values(), key=lambda row: row["at"], reverse=True))


def _of_requests(rows: list[Row], belonging: list[Row]) -> list[Row]:
    """Those that are about the requests; what has no token of its own gets that of its request."""
    asked = {(row["client"], row["request_id"]): row["token"] for row in belonging if row["token"]}
    refused = {(row["client"], row["request_id"]) for row in belonging if not row["token"]}
    found = []
    for row in rows:
        name = (row["client"], row["request_id"])
        if row["token"] or (row["what"] == "rejected" and name in refused):
            found.append(row)
        elif row["what"] == "answer_lost" and name in asked:
            found.append({**row, "token": asked[name]})
    return found


def _lives(rows: list[Row], journals: set[str]) -> list[Life]:
    """The lives of the brokers that had these requests, as far as they begin or end among these rows."""
    ours = [row for row in rows if row["journal"] in journals]
    begun = {row["life"]: row for row in ours if row["what"] == "started"}
    stopped = {row["life"]: row["at"] for row in ours if row["what"] == "stopped"}
    first: dict[str, Row] = {}
    for row in ours:
        first.setdefault(row["life"], begun.get(row["life"], row))
    lives = [Life(row["journal"], life, row["at"], stopped.get(life)) for life, row in first.items()]
    return sorted(lives, key=lambda life: life.at)


def _by_request(rows: list[Row]) -> list[Traced]:
    found: dict[tuple[str, str], Traced] = {}
    for row in rows:
        name = row["token"] or row["request_id"]
        request = Traced(name, row["broker"], row["journal"], [])
        found.setdefault((row["journal"], name), request).rows.append(row)
    for request in found.values():
        # Numbers tell the order in a life; lives follow one another in time.
        lives = {
            life: min(row["at"] for row in request.rows if row["life"] == life) for life in _lives_of(request)
        }
        request.rows.sort(key=lambda row: (lives[row["life"]], row["life"], row["seq"]))
    began = {request.token: request.first["at"] for request in found.values()}
    return sorted(found.values(), key=lambda request: _place(request, began))


def _place(request: Traced, began: dict[str, datetime]) -> tuple[datetime, int, datetime, str]:
    """Where a request stands among all. Over a bridge it goes from broker to broker within a millisecond, and
    their clocks differ by more: so by the way it took, the first broker, those in between, the last."""
    came = any(map(_came_over, request.rows))
    origin = next((token for row in request.rows for token in _origins(row)), request.token)
    distance = (1 if _bridged(request.rows) else 2) if came else 0
    return began.get(origin) or request.first["at"], distance, request.first["at"], request.token


def _lives_of(request: Traced) -> set[str]:
    return {row["life"] for row in request.rows}
