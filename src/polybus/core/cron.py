"""Cron texts: which times of day they name, and which instants those are in their time zone.

cronsim reads the text and knows the calendar (lists, steps, names, `L`, `LW`, `#`); what an hour means on
the days when clocks change is decided here (docs/schedules.md, docs/adr/0010):

- At fixed times (neither minute nor hour begins with `*`) a time that does not exist is moved to the end of
  the gap, and one that exists twice counts the first time.  So `30 2 * * *` runs once a day, every day.
- Everything else keeps its rhythm and runs whenever clocks show such a time: `*/20 * * * *` does not pause
  when an hour is shown twice.

Most days have no change, and there the n-th time of a day is plain arithmetic.  So counting the due times of
a year takes as long as looking at its days, even for a text that names every second.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from datetime import date, datetime, timedelta
from math import floor, inf
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from polybus.errors import PolybusError

# As on the wire: five or six fields, with long lists of minutes.
MAX_TEXT: Final = 255
# A 29th of February that is a Monday comes within 40 years; what has not come by then never does.
MAX_DAYS: Final = 50 * 366
DAY_S: Final = 86_400
# Who was away for longer than this had a wrong clock: older due times are not counted any more.
LONGEST_COUNT_S: Final = 10 * 366 * DAY_S

KEYWORDS: Final = {
    "@YEARLY": "0 0 1 1 *",
    "@ANNUALLY": "0 0 1 1 *",
    "@MONTHLY": "0 0 1 * *",
    "@WEEKLY": "0 0 * * 0",
    "@DAILY": "0 0 * * *",
    "@MIDNIGHT": "0 0 * * *",
    "@HOURLY": "0 * * * *",
}
# In cronsim's order and with its names: the lowest and the highest value, and words that stand for values.
FIELDS: Final = {
    "second": (0, 59, ""),
    "minute": (0, 59, ""),
    "hour": (0, 23, ""),
    "day-of-month": (1, 31, ""),
    "month": (1, 12, "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC"),
    "day-of-week": (0, 6, "SUN MON TUE WED THU FRI SAT"),
}
_RANGE: Final = re.compile(r"(\w{1,3})-(\w{1,3})(?:/(\d{1,3}))?")
_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_DAY: Final = _EPOCH.toordinal()


class BadSchedule(PolybusError):
    """A schedule cannot be set; the text says what is wrong with it and what is allowed."""


def time_zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise BadSchedule(
            f"there is no time zone {name[:60]!r}; names are like UTC or Europe/Berlin"
        ) from None


class Cron:
    """The due times of one cron text in one zone, as seconds since 1970."""

    def __init__(self, text: str, timezone: str = "UTC") -> None:
        self.zone: Final = time_zone(timezone)
        fields = _fields(text)
        self._calendar = _read(text, fields)
        self._months = self._calendar.months
        self._hours = sorted(self._calendar.hours)
        self._minutes = sorted(self._calendar.minutes)
        self._seconds = sorted(self._calendar.seconds)
        self._per_minute = len(self._seconds)
        self._per_hour = len(self._minutes) * self._per_minute
        self._per_day = len(self._hours) * self._per_hour
        _, minute, hour, *_ = fields
        self.fixed: Final = not minute.startswith("*") and not hour.startswith("*")
        # The due times of the last day with a change of the clocks that was looked at.
        self._changed: tuple[date, list[int]] = (date.min, [])
        if self.after(0.0) == inf:
            raise BadSchedule(f"the cron text {text!r} names a day that never comes")

    def after(self, at: float) -> float:
        """The first due time later than `at`; infinity if there is none."""
        try:
            day = self._local(at).date()
            for _ in range(MAX_DAYS):
                if day.month not in self._months:
                    # To the last day of the month, which the next step leaves.
                    day = (day.replace(day=28) + timedelta(4)).replace(day=1) - timedelta(1)
                elif self._calendar.match_day(day):
                    due = self._first_in(day, at)
                    if due is not None:
                        return due
                day += timedelta(1)
        except OverflowError:
            pass  # the clock shows a year that has no calendar
        return inf

    def passed(self, first: float, until: float) -> tuple[int, float]:
        """How many due times there are from `first`, which is one, to `until`, and the last of them."""
        count, last = 1, first
        if until - first > LONGEST_COUNT_S:
            later = self.after(until - LONGEST_COUNT_S)
            if later <= until:
                count, last = 2, later
        while True:
            more, last = self._rest_of_day(last, until)
            following = self.after(last)
            if following > until:
                return count + more, last
            count, last = count + more + 1, following

    # -- times of a day -------------------------------------------------------------------------

    def _rank(self, second: int) -> int:
        """How many times of a day are not later than this second of the day."""
        if second < 0:
            return 0
        hour, rest = divmod(second, 3600)
        minute, rest = divmod(rest, 60)
        hours = bisect_right(self._hours, hour)
        if not hours or self._hours[hours - 1] != hour:
            return hours * self._per_hour
        minutes = bisect_right(self._minutes, minute)
        if not minutes or self._minutes[minutes - 1] != minute:
            return (hours - 1) * self._per_hour + minutes * self._per_minute
        seconds = bisect_right(self._seconds, rest)
        return (hours - 1) * self._per_hour + (minutes - 1) * self._per_minute + seconds

    def _time(self, number: int) -> int:
        """The second of the day of its n-th time."""
        hours, rest = divmod(number, self._per_hour)
        minutes, seconds = divmod(rest, self._per_minute)
        return self._hours[hours] * 3600 + self._minutes[minutes] * 60 + self._seconds[seconds]

    def _first_in(self, day: date, at: float) -> float | None:
        midnight = self._even(day)
        if midnight is None:
            dues = self._around_change(day)
            number = bisect_right(dues, floor(at))
            return float(dues[number]) if number < len(dues) else None
        number = self._rank(floor(at) - midnight)
        return float(midnight + self._time(number)) if number < self._per_day else None

    def _rest_of_day(self, at: float, until: float) -> tuple[int, float]:
        """How many due times follow on the same day, up to `until`, and the last of them (or `at`)."""
        day = self._local(at).date()
        if day.month not in self._months or not self._calendar.match_day(day):
            return 0, at
        midnight = self._even(day)
        if midnight is None:
            dues = self._around_change(day)
            begin, end = bisect_right(dues, floor(at)), bisect_right(dues, floor(until))
            return (end - begin, float(dues[end - 1])) if end > begin else (0, at)
        begin, end = self._rank(floor(at) - midnight), self._rank(floor(until) - midnight)
        return (end - begin, float(midnight + self._time(end - 1))) if end > begin else (0, at)

    # -- the zone -------------------------------------------------------------------------------

    def _local(self, at: float) -> datetime:
        return self.zone.fromutc((_EPOCH + timedelta(seconds=floor(at))).replace(tzinfo=self.zone))

    def _offset(self, day: date) -> int:
        """Seconds east of UTC when the day begins. Where midnight does not exist: before the change."""
        return _seconds_of(datetime.combine(day, datetime.min.time(), self.zone).utcoffset())

    def _even(self, day: date) -> int | None:
        """When a day begins whose clocks do not change; None if they do."""
        offset = self._offset(day)
        if offset != self._offset(day + timedelta(1)):
            return None
        return (day.toordinal() - _EPOCH_DAY) * DAY_S - offset

    def _around_change(self, day: date) -> list[int]:
        if self._changed[0] != day:
            self._changed = (day, self._list(day))
        return self._changed[1]

    def _list(self, day: date) -> list[int]:
        """The due times of a day with a change of the clocks, the first one first."""
        before, after = self._offset(day), self._offset(day + timedelta(1))
        midnight = (day.toordinal() - _EPOCH_DAY) * DAY_S
        change = self._change(midnight - before - 1, midnight + DAY_S - after, after)
        found = set()
        for number in range(self._per_day):
            local = midnight + self._time(number)
            early, late = local - before, local - after
            if early < change:
                found.add(early)
                if not self.fixed and late >= change:
                    found.add(late)
            elif late >= change:
                found.add(late)
            elif self.fixed:
                found.add(change)
        return sorted(found)

    def _change(self, low: int, high: int, after: int) -> int:
        """The first second with the new offset, between one that has the old one and one that has the new."""
        while high - low > 1:
            middle = (low + high) // 2
            if _seconds_of(self._local(middle).utcoffset()) == after:
                high = middle
            else:
                low = middle
        return high


def _seconds_of(offset: timedelta | None) -> int:
    assert offset is not None  # a ZoneInfo always knows
    return offset.days * DAY_S + offset.seconds


# -- reading ----------------------------------------------------------------------------------


def _fields(text: str) -> list[str]:
    """Six fields with the seconds first, as cronsim wants them.

    Who writes six puts the seconds last, as croniter and therefore EventMQ have it.
    """
    if len(text) > MAX_TEXT or not text.isascii():
        raise BadSchedule(f"a cron text has up to {MAX_TEXT} ASCII characters")
    fields = KEYWORDS.get(text.strip().upper(), text).upper().split()
    if len(fields) not in (5, 6):
        raise BadSchedule(
            f"the cron text {text!r} has {len(fields)} fields; it takes 5 (minute, hour, day of the month, "
            f"month, day of the week), a 6th for seconds, or one of {', '.join(KEYWORDS).lower()}"
        )
    seconds = fields.pop() if len(fields) == 6 else "0"
    days = (2, 4)
    fields = ["*" if field == "?" and at in days else field for at, field in enumerate(fields)]
    ordered = [seconds, *fields]
    return [_unwrap(field, *FIELDS[name]) for field, name in zip(ordered, FIELDS, strict=True)]


def _unwrap(field: str, low: int, high: int, words: str) -> str:
    """`FRI-MON` and `22-2` written out: croniter takes them, cronsim does not."""
    return ",".join(_unwrap_range(item, low, high, words.split()) for item in field.split(","))


def _unwrap_range(item: str, low: int, high: int, words: list[str]) -> str:
    found = _RANGE.fullmatch(item)
    if found is None:
        return item
    ends = [low + words.index(end) if end in words else _number(end) for end in found.groups()[:2]]
    step = int(found[3] or 1)
    begin, end = ends
    if begin is None or end is None or not low <= end < begin <= high or not step:
        return item
    values = [*range(begin, high + 1), *range(low, end + 1)][::step]
    return ",".join(map(str, values))


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _read(text: str, fields: list[str]) -> CronSim:
    try:
        return CronSim(" ".join(fields), _EPOCH)
    except CronSimError as error:
        name = str(error).removeprefix("Bad ")
        if name not in FIELDS:
            raise BadSchedule(f"the cron text {text!r} cannot be read: {error}") from None
        low, high, words = FIELDS[name]
        field = fields[list(FIELDS).index(name)]
        named = f", {words.replace(' ', ', ')}" if words else ""
        raise BadSchedule(
            f"the cron text {text!r} has a bad {name}: {field[:60]!r}; it takes *, numbers from {low} to "
            f"{high}{named}, ranges like {low}-{high}, steps like */2, and lists of those"
            + (", and the day has to exist in one of the months" if name == "day-of-month" else "")
        ) from None
