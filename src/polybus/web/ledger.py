"""What services did, in sums that never fall, for a bounded number of names.

The broker lists the services that come first in the order of rates, and sums up the rest.  Who is listed
changes from look to look, and a broker may begin anew, so values are not passed on as they are: what was
added since the last look is added here, to the sum of its label: the service's own, or that of all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

# Services with labels of their own. Each has some 35 series, most of them buckets.
MOST: Final = 50
OTHER: Final = "other"
# A service that is really called so is not to be mistaken for all others.
_TAKEN: Final = "other (service)"

# The broker counts times in classes of four to an octave of microseconds (`core.latency`); these are whole
# octaves, from 64 µs to 4.5 minutes, so that no class lies on both sides of a bound.
_PER_OCTAVE: Final = 4
_FIRST: Final = 6
_LAST: Final = 28
BOUNDS_S: Final = tuple(2**octave / 1_000_000 for octave in range(_FIRST, _LAST + 1))

# What a broker says about its age is rounded, and its clock goes on while it answers.
SAME_LIFE_S: Final = 1.0

Row = Mapping[str, Any]


class Ledger:
    """The sums of one broker's services, from look to look."""

    # Field of an answer → name, help.
    COUNTERS: ClassVar = {
        "accepted": ("polybus_requests_accepted", "Requests accepted."),
        "answered": ("polybus_requests_answered", "Requests that got their answer."),
        "failed": ("polybus_attempts_failed", "Attempts that failed, whether they were tried again or not."),
    }
    GAUGES: ClassVar = {
        "queued": ("polybus_queue_depth", "Requests that wait for a worker."),
        "oldest_s": ("polybus_queue_oldest_seconds", "How long the longest waiting request has waited."),
        "running": ("polybus_requests_running", "Requests that a worker has."),
        "waiting": ("polybus_requests_waiting", "Requests that wait for their next attempt, or their time."),
        "workers": ("polybus_service_workers", "Workers that offer the service."),
    }

    def __init__(self, most: int = MOST) -> None:
        self.most: Final = most
        self.others = 0
        # The label of each service that has one.
        self._labels: dict[str, str] = {}
        # Label → field → sum. The fields of times are the numbers of their classes.
        self._sums: dict[str, dict[str, float]] = {}
        self._now: dict[str, dict[str, float]] = {}
        # What was listed at the last look, and the sum over all services.
        self._last: dict[str, dict[str, float]] = {}
        self._last_total: dict[str, float] = {}
        self._all_listed = True
        # When the broker began, by its own clock.
        self._life: float | None = None

    # -- looking ----------------------------------------------------------------------------------

    def look(self, top: Row) -> None:
        """Take in an answer to `top`."""
        rows: list[Row] = top.get("services", [])
        rest: Row = top.get("rest", {})
        self._label([row["service"] for row in rows], all_listed=not rest.get("services"))
        life = float(top.get("clock", 0.0)) - float(top.get("totals", {}).get("up_s", 0.0))
        begins = self._life is None or abs(life - self._life) > SAME_LIFE_S
        if begins:
            # Another broker, or another life of it: everything that it has counted is new.
            self._last, self._last_total, self._life = {}, {}, life
        listed = {row["service"]: _fields(row) for row in rows}
        self._add(listed, _fields(rest), begins)
        self._all_listed = not rest.get("services")
        self._measure(rows, rest)

    def _label(self, names: list[str], all_listed: bool) -> None:
        new = [name for name in names if name not in self._labels]
        if all_listed and len(self._labels) + len(new) > self.most:
            # Services that the broker has forgotten make room.
            for gone in self._labels.keys() - set(names):
                self._sums.pop(self._labels.pop(gone), None)
        for name in new[: self.most - len(self._labels)]:
            self._labels[name] = _TAKEN if name == OTHER else name

    def _add(self, listed: dict[str, dict[str, float]], rest: dict[str, float], begins: bool) -> None:
        total: dict[str, float] = dict(rest)
        known: dict[str, float] = {}
        for name, fields in listed.items():
            last = self._last.get(name, {} if begins or self._all_listed else None)
            label = self._labels.get(name)
            for field, value in fields.items():
                total[field] = total.get(field, 0.0) + value
                # What was not listed the last time is new, or was summed up with the rest until now.
                grown = 0.0 if last is None else _grown(value, last.get(field, 0.0))
                if label is not None:
                    self._grow(label, field, grown)
                    known[field] = known.get(field, 0.0) + grown
        for field, value in total.items():
            before = self._last_total.get(field, 0.0)
            # Classes of times begin anew when nobody has looked for long; a sum of the others falls only when
            # a service is forgotten.
            grown = _grown(value, before) if field.isdigit() else max(0.0, value - before)
            self._grow(OTHER, field, max(0.0, grown - known.get(field, 0.0)))
        self._last, self._last_total = listed, total

    def _grow(self, label: str, field: str, by: float) -> None:
        sums = self._sums.setdefault(label, {})
        sums[field] = sums.get(field, 0.0) + by

    def _measure(self, rows: list[Row], rest: Row) -> None:
        self._now = {}
        self.others = int(rest.get("services", 0))
        for row in rows:
            label = self._labels.get(row["service"])
            if label is None:
                label = OTHER
                self.others += 1
            values = self._now.setdefault(label, {})
            for field in self.GAUGES:
                value = float(row.get(field) or 0.0)
                before = values.get(field, 0.0)
                values[field] = max(before, value) if field == "oldest_s" else before + value
        if rest.get("services"):
            values = self._now.setdefault(OTHER, {})
            for field in self.GAUGES:
                values[field] = values.get(field, 0.0) + float(rest.get(field) or 0.0)

    # -- telling ----------------------------------------------------------------------------------

    def counted(self, field: str) -> Iterator[tuple[str, float]]:
        for label, sums in self._sums.items():
            if label != OTHER or self.others or sums.get(field):
                yield label, sums.get(field, 0.0)

    def measured(self, field: str) -> Iterator[tuple[str, float]]:
        for label, values in self._now.items():
            yield label, values.get(field, 0.0)

    def times(self) -> Iterator[tuple[str, list[float], float]]:
        """Label, how many took at most each bound (the last: all), and about how many seconds in all."""
        for label, sums in self._sums.items():
            classes = {int(field): count for field, count in sums.items() if field.isdigit() and count}
            if not classes:
                continue
            counts = [
                sum(count for place, count in classes.items() if place < _PER_OCTAVE * octave)
                for octave in range(_FIRST, _LAST + 1)
            ]
            middle = {place: 2 ** ((place + 0.5) / _PER_OCTAVE) / 1_000_000 for place in classes}
            total_s = sum(count * middle[place] for place, count in classes.items())
            yield label, [*counts, sum(classes.values())], total_s


def _fields(row: Row) -> dict[str, float]:
    """What is counted of a service, times by their class."""
    fields = {field: float(row.get(field) or 0.0) for field in Ledger.COUNTERS}
    return fields | {str(place): float(count) for place, count in row.get("times", {}).items()}


def _grown(value: float, before: float) -> float:
    return value - before if value >= before else value
