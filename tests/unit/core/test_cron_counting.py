"""How many due times have passed, also if the first of them is none any more."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from polybus.core.cron import LONGEST_COUNT_S, Cron


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("cron", "first", "until", "count", "last"),
    [
        # Thursday the first of January; the schedule was one of Mondays meanwhile.
        ("0 12 * * 1", "2026-01-01 12:00", "2026-01-01 23:00", 1, "2026-01-01 12:00"),
        ("0 12 * * 1", "2026-01-01 12:00", "2026-01-05 12:00", 2, "2026-01-05 12:00"),
        ("0 12 * * 1", "2026-01-01 12:00", "2026-01-05 11:59:59", 1, "2026-01-01 12:00"),
        ("0 12 * * 1", "2026-01-01 11:00", "2026-01-01 23:00", 1, "2026-01-01 11:00"),
        # Of months that the text does not name.
        ("0 12 1 6 *", "2026-01-01 12:00", "2026-06-01 12:00", 2, "2026-06-01 12:00"),
        ("0 12 1 6 *", "2026-01-01 11:00", "2026-01-01 23:00", 1, "2026-01-01 11:00"),
        # Times of a day that begin in the middle of an hour and of a minute.
        ("15,45 9,17 * * *", "2026-01-01 09:15", "2026-01-01 23:00", 4, "2026-01-01 17:45"),
        ("15,45 9,17 * * *", "2026-01-01 09:15", "2026-01-01 17:15", 3, "2026-01-01 17:15"),
        ("15,45 9,17 * * *", "2026-01-01 09:15", "2026-01-01 17:14", 2, "2026-01-01 09:45"),
        ("15,45 9,17 * * *", "2026-01-01 09:15", "2026-01-02 08:00", 4, "2026-01-01 17:45"),
        ("30 9 * * * 10,50", "2026-01-01 09:30:10", "2026-01-01 09:30:49", 1, "2026-01-01 09:30:10"),
        ("30 9 * * * 10,50", "2026-01-01 09:30:10", "2026-01-01 09:30:50", 2, "2026-01-01 09:30:50"),
        ("30 9 * * * 10,50", "2026-01-01 09:30:10", "2026-01-02 09:30:09", 2, "2026-01-01 09:30:50"),
    ],
)
def test_from_the_first_to_the_last(cron: str, first: str, until: str, count: int, last: str) -> None:
    assert Cron(cron, "UTC").passed(at(first), at(until)) == (count, at(last))


@pytest.mark.parametrize(
    ("until", "count", "last"),
    [("2026-03-29 09:00", 1, "2026-03-29 05:00"), ("2026-03-29 10:00", 2, "2026-03-29 10:00")],
)
def test_a_first_time_that_is_none_any_more_on_a_day_with_a_change(until: str, count: int, last: str) -> None:
    """Clocks in Berlin are two hours ahead of UTC from three o'clock on."""
    cron = Cron("0 12 * * *", "Europe/Berlin")
    assert cron.passed(at("2026-03-29 05:00"), at(until)) == (count, at(last))


def test_what_is_older_than_ten_years_is_not_counted() -> None:
    """The first one and those of the last ten years; the count is bounded, the last due time is right."""
    until = at("2026-01-01 00:00")
    cron = Cron("0 0 * * *", "UTC")
    whole_days = LONGEST_COUNT_S // 86_400
    for first in (until - LONGEST_COUNT_S, until - LONGEST_COUNT_S + 86_400):
        assert cron.passed(first, until) == ((until - first) // 86_400 + 1, until)
    count, last = cron.passed(until - LONGEST_COUNT_S - 86_400, until)
    assert (count, last) == (whole_days + 1, until)


def test_a_due_time_at_the_very_end_of_what_is_counted() -> None:
    cron = Cron("0 12 1 1 *", "UTC")
    first, until = at("2000-01-01 12:00"), at("2026-01-01 12:00")
    count, last = cron.passed(first, until)
    assert last == until
    assert 10 <= count <= 12
    # None in the last ten years: the first one alone.
    rare = Cron("0 12 29 2 *", "UTC")
    assert rare.passed(at("1884-02-29 12:00"), at("1884-02-29 13:00")) == (1, at("1884-02-29 12:00"))


@pytest.mark.parametrize(
    ("until", "count", "last"),
    [
        ("2015-12-31 00:00", 1, "1988-02-29 12:00"),
        # None in the last ten years: all are counted, and the last of them is found.
        ("2044-02-29 11:59:59", 2, "2016-02-29 12:00"),
        # One in the last ten years: those between the first one and that are not counted.
        ("2044-02-29 12:00", 2, "2044-02-29 12:00"),
        ("2044-02-29 12:01", 2, "2044-02-29 12:00"),
    ],
)
def test_due_times_that_are_further_apart_than_what_is_counted(until: str, count: int, last: str) -> None:
    """A 29th of February that is a Monday: 1988, 2016, 2044."""
    cron = Cron("0 12 */28 2 MON#5", "UTC")
    assert cron.after(at("1988-02-29 12:00")) == at("2016-02-29 12:00")
    assert cron.passed(at("1988-02-29 12:00"), at(until)) == (count, at(last))


class Counted(Cron):
    """Counts how often a due time was looked for, and how often all those of a day were listed."""

    searches = 0
    lists = 0

    def after(self, at: float) -> float:
        self.searches += 1
        return super().after(at)

    def _list(self, day: date) -> list[int]:
        self.lists += 1
        return super()._list(day)


def test_days_with_a_change_of_the_clocks_are_counted_as_a_whole() -> None:
    cron = Counted("* * * * * *", "Europe/Berlin")
    cron.searches = 0
    first, until = at("2026-03-28 00:00"), at("2026-03-31 00:00")
    assert cron.passed(first, until) == (3 * 86_400 + 1, until)
    assert cron.searches <= 5, "about one for each day, however many times it has"


def test_the_due_times_of_a_day_with_a_change_of_the_clocks_are_listed_once() -> None:
    cron = Counted("* * * * *", "Europe/Berlin")
    cron.lists = 0
    due = at("2026-03-29 00:00")
    for _ in range(100):
        due = cron.after(due)
    assert due == at("2026-03-29 01:40")
    assert cron.lists == 1
