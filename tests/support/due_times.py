"""Due times of cron texts, found the slow way: every minute of a span is looked at.

Shares nothing with `polybus.core.cron`, not even the reader, so that they can be compared.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

_WORDS = {
    word: number
    for words, first in (
        ("jan feb mar apr may jun jul aug sep oct nov dec", 1),
        ("sun mon tue wed thu fri sat", 0),
    )
    for number, word in enumerate(words.split(), first)
}
_LOW = (0, 0, 1, 1, 0)
_HIGH = (59, 23, 31, 12, 7)


def _values(field: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for item in field.lower().split(","):
        span, _, step = item.partition("/")
        begin, _, end = span.partition("-")
        if begin == "*":
            first, last = low, high
        else:
            first = _number(begin)
            last = _number(end) if end else (high if step else first)
        found.update(range(first, last + 1, int(step or 1)))
    return found


def _number(text: str) -> int:
    return _WORDS[text] if text in _WORDS else int(text)


class SlowCron:
    """Numbers, names, *, ranges, steps and lists in five fields, or six with seconds at the end."""

    def __init__(self, text: str) -> None:
        fields = text.split()
        self.seconds = sorted(_values(fields.pop(), 0, 59)) if len(fields) == 6 else [0]
        self._sets = [_values(*parts) for parts in zip(fields, _LOW, _HIGH, strict=True)]
        self.fixed = not fields[0].startswith("*") and not fields[1].startswith("*")
        self._both_days = fields[2].startswith("*") or fields[4].startswith("*")

    def fits(self, local: datetime) -> bool:
        minutes, hours, days, months, weekdays = self._sets
        if local.minute not in minutes or local.hour not in hours or local.month not in months:
            return False
        on_day = local.day in days
        on_weekday = local.isoweekday() in weekdays or local.isoweekday() % 7 in weekdays
        return (on_day and on_weekday) if self._both_days else (on_day or on_weekday)


class Span:
    """All minutes from `start` to `end` as the clocks of one zone show them."""

    def __init__(self, zone: str, start: datetime, end: datetime) -> None:
        self._minutes: list[tuple[int, datetime, list[datetime]]] = []
        info = ZoneInfo(zone)
        first = int(start.replace(tzinfo=UTC).timestamp()) // 60 * 60
        before = datetime.fromtimestamp(first - 60, info).replace(tzinfo=None)
        for at in range(first, int(end.replace(tzinfo=UTC).timestamp()) + 1, 60):
            local = datetime.fromtimestamp(at, info)
            shown = local.replace(tzinfo=None)
            # Minutes that the clocks jumped over just now.
            skipped = []
            while before + timedelta(minutes=1) < shown:
                before += timedelta(minutes=1)
                skipped.append(before)
            before = shown.replace(fold=0)
            self._minutes.append((at, shown, skipped))

    def due(self, text: str) -> list[int]:
        cron = SlowCron(text)
        found: set[int] = set()
        for at, shown, skipped in self._minutes:
            if cron.fits(shown) and not (cron.fixed and shown.fold):
                found.update(at + second for second in cron.seconds)
            if cron.fixed and any(cron.fits(minute) for minute in skipped):
                found.add(at)
        return sorted(found)
