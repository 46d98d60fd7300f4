"""Cron texts: how they are read, and what they mean on the days when clocks change."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from math import inf
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim, CronSimError
from hypothesis import given
from hypothesis import strategies as st

from polybus.core import cron as cron_texts
from polybus.core.cron import KEYWORDS, BadSchedule, Cron
from support.due_times import Span


def instant(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def shown(cron: Cron, start: str, count: int) -> list[str]:
    """The next due times as the clocks of the zone show them."""
    at = instant(start, cron.zone.key)
    found = []
    for _ in range(count):
        at = cron.after(at)
        found.append(f"{datetime.fromtimestamp(at, cron.zone):%m-%d %H:%M:%S%z}"[:-2])
    return found


# -- clocks that change -----------------------------------------------------------------------


def test_a_fixed_time_that_does_not_exist_runs_once_right_after_the_gap() -> None:
    for text in ("30 2 * * *", "0,15,30,45 2 * * *", "30 2 * * * 15", "0 2,3 * * *"):
        cron = Cron(text, "Europe/Berlin")
        first, second = shown(cron, "2026-03-28 12:00", 2)
        assert first == "03-29 03:00:00+02", text
        assert second.startswith("03-30 02:"), text


def test_a_fixed_time_that_exists_twice_runs_the_first_time() -> None:
    for text in ("30 2 * * *", "30 2 * * * 0", "30 2 25-26 10 *"):
        first, second = shown(Cron(text, "Europe/Berlin"), "2026-10-25 00:00", 2)
        assert first == "10-25 02:30:00+02", text
        assert not second.startswith("10-25"), text
    # Asked in the second of the two hours, it is over for today.
    cron = Cron("30 2 * * *", "Europe/Berlin")
    assert cron.after(instant("2026-10-25 02:30", "Europe/Berlin") + 2700) == instant(
        "2026-10-26 02:30", "Europe/Berlin"
    )


def test_every_n_minutes_keeps_its_rhythm() -> None:
    for day in ("2026-03-29", "2026-10-25"):
        cron = Cron("*/20 * * * *", "Europe/Berlin")
        at = instant(day)
        for _ in range(100):
            at, last = cron.after(at), at
            assert at - last == 1200


def test_half_an_hour_of_change() -> None:
    """Lord Howe Island moves its clocks by 30 minutes."""
    zone = "Australia/Lord_Howe"
    assert shown(Cron("*/30 3 * * *", zone), "2026-10-03 12:00", 2) == [
        "10-04 03:00:00+11",
        "10-04 03:30:00+11",
    ]
    assert shown(Cron("15 2 * * *", zone), "2026-10-03 12:00", 2) == [
        "10-04 02:30:00+11",
        "10-05 02:15:00+11",
    ]
    assert shown(Cron("*/20 * * * *", zone), "2026-10-04 01:00", 4) == [
        "10-04 01:20:00+10",
        "10-04 01:40:00+10",
        "10-04 02:40:00+11",
        "10-04 03:00:00+11",
    ]
    assert shown(Cron("45 1 * * *", zone), "2026-04-04 12:00", 2) == [
        "04-05 01:45:00+11",
        "04-06 01:45:00+10",
    ]


def test_changes_at_midnight() -> None:
    # 00:00 to 01:00 does not exist on 6 September 2026 in Santiago; 23:00 exists twice on 4 April.
    zone = "America/Santiago"
    assert shown(Cron("0 0 * * *", zone), "2026-09-05 12:00", 2) == ["09-06 01:00:00-03", "09-07 00:00:00-03"]
    assert shown(Cron("30 23 * * *", zone), "2026-04-04 12:00", 2) == [
        "04-04 23:30:00-03",
        "04-05 23:30:00-04",
    ]
    assert shown(Cron("*/30 23 * * *", zone), "2026-04-04 12:00", 5)[:4] == [
        "04-04 23:00:00-03",
        "04-04 23:30:00-03",
        "04-04 23:00:00-04",
        "04-04 23:30:00-04",
    ]
    # The first time after the gap, and what is moved there to the second.
    for text in ("0 1 * * *", "0 * * * *", "0 0 * * * 1", "59 0 * * * 59"):
        assert shown(Cron(text, zone), "2026-09-05 23:30", 1) == ["09-06 01:00:00-03"]
    # The gap ends at midnight: what is moved to its end falls on the next day, once.
    zone = "America/Scoresbysund"
    assert shown(Cron("30 23 * * *", zone), "2026-03-28 12:00", 2) == [
        "03-29 00:00:00-01",
        "03-29 23:30:00-01",
    ]
    assert shown(Cron("0 0,23 * * *", zone), "2026-03-28 12:00", 2) == [
        "03-29 00:00:00-01",
        "03-29 23:00:00-01",
    ]


TEXTS = (
    "30 2 * * *",
    "0 3 * * *",
    "*/15 2 * * *",
    "0 * * * *",
    "7 */2 * * *",
    "*/20 * * * *",
    "10,50 1-3 * * *",
    "0 0 1,15 * mon",
    "5 4 * * sun",
    "45 23 28-31 * *",
    "0 12 * apr-oct mon-fri",
    "30 2 * * * */20",
    "*/7 1,2 * * * 5",
)
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Santiago",
    "Asia/Kolkata",
)
SPANS = (("2026-03-07", "2026-04-06"), ("2026-09-04", "2026-09-08"), ("2026-10-03", "2026-11-02"))


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("days", SPANS)
def test_the_slow_way_finds_the_same(zone: str, days: tuple[str, str]) -> None:
    start, end = map(datetime.fromisoformat, days)
    span = Span(zone, start, end)
    begin, until = instant(days[0]), instant(days[1])
    for text in TEXTS:
        cron = Cron(text, zone)
        found = list(due_times(cron, begin, until))
        assert found == [due for due in span.due(text) if begin < due <= until], text
        if not found:
            continue
        assert cron.passed(found[0], until) == (len(found), found[-1]), text
        for number in range(0, len(found), 97):
            assert cron.passed(found[number], until) == (len(found) - number, found[-1]), text


def due_times(cron: Cron, at: float, until: float) -> Iterator[float]:
    while (at := cron.after(at)) <= until:
        yield at


@given(
    text=st.sampled_from((*TEXTS, "0 0 29 2 *", "0 9 * * 5L", "0 9 L * *", "0 9 LW 1-6 *", "0 9 * * mon#2")),
    start=st.integers(0, 4_000_000_000),
)
def test_without_a_change_of_clocks_cronsim_finds_the_same(text: str, start: int) -> None:
    fields = text.split()
    ordered = [*fields[5:], *fields[:5]]
    expected = CronSim(" ".join(ordered), datetime(1970, 1, 1) + timedelta(seconds=start))
    cron = Cron(text)
    at = float(start)
    for _ in range(3):
        at = cron.after(at)
        assert datetime(1970, 1, 1) + timedelta(seconds=at) == next(expected)


def test_times_between_two_seconds() -> None:
    cron = Cron("* * * * * *")
    assert cron.after(1000.0) == 1001.0
    assert cron.after(1000.9) == 1001.0
    assert cron.passed(1000.25, 1003.5) == (4, 1003.0)


def test_counting_does_not_take_longer_for_every_second() -> None:
    cron = Cron("* * * * * *", "Europe/Berlin")
    begin, end = instant("2025-01-01"), instant("2026-01-01")
    assert cron.passed(begin, end) == (365 * 86_400 + 1, end)


def test_a_clock_that_is_wrong_by_centuries_ends_the_counting() -> None:
    cron = Cron("0 0 * * *")
    count, last = cron.passed(0.0, 200_000_000_000.0)
    assert 3000 < count < 4000
    assert 0 <= 200_000_000_000.0 - last < 86_400
    assert cron.after(1e15) == inf


def test_the_calendar_is_used_to_its_last_whole_day() -> None:
    cron = Cron("0 12 29-30 12 *")
    assert cron.after(instant("9999-01-01")) == instant("9999-12-29 12:00")
    assert cron.after(instant("9999-12-29 12:00")) == instant("9999-12-30 12:00")
    assert cron.after(instant("9999-12-30 12:00")) == inf


# -- texts ------------------------------------------------------------------------------------


def test_six_fields_have_the_seconds_last() -> None:
    assert shown(Cron("0 12 * * * 30"), "2026-01-01", 1) == ["01-01 12:00:30+00"]
    assert shown(Cron("* * * * * */30"), "2026-01-01", 3) == [
        "01-01 00:00:30+00",
        "01-01 00:01:00+00",
        "01-01 00:01:30+00",
    ]


def test_the_next_time_is_found_from_between_the_minutes_that_are_named() -> None:
    cron = Cron("15,45 9 * * * 30")
    for start in ("2026-01-01 09:15:30", "2026-01-01 09:20:10", "2026-01-01 09:20:40", "2026-01-01 09:45:29"):
        assert shown(cron, start, 2) == ["01-01 09:45:30+00", "01-02 09:15:30+00"], start


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("0 22-2 * * *", "0 22,23,0,1,2 * * *"),
        ("0 0 * * fri-mon", "0 0 * * 5,6,0,1"),
        ("0 0 * * mon-sun", "0 0 * * *"),
        ("0 0 ? * 1", "0 0 * * 1"),
        ("0 0 1 nov-feb/2 *", "0 0 1 11,1 *"),
        ("  5   4 * * SUN ", "5 4 * * 7"),
        *((word.lower(), text) for word, text in KEYWORDS.items()),
    ],
)
def test_other_ways_to_write_the_same(text: str, same: str) -> None:
    assert shown(Cron(text), "2026-01-01 12:34", 20) == shown(Cron(same), "2026-01-01 12:34", 20)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("61 * * * *", ("minute", "'61'", "0 to 59")),
        ("* 24 * * *", ("hour", "'24'")),
        ("0 0 32 * *", ("day-of-month",)),
        ("0 0 31 2 *", ("day-of-month", "exist")),
        ("0 0 */15 * MON#2", ("a day that never comes",)),
        ("0 0 * 13 *", ("month", "JAN")),
        ("0 0 * * xyz", ("day-of-week", "'XYZ'", "SUN")),
        ("* * * * * 99", ("second", "'99'")),
        ("*/0 * * * *", ("minute",)),
        ("* * *", ("3 fields", "it takes 5")),
        ("", ("0 fields",)),
        ("@reboot", ("@daily",)),
        ("1 2 3 4 5 6 7", ("7 fields",)),
        ("* " * 200, ("255",)),
        ("* * * * ü", ("ASCII",)),
    ],
)
def test_a_text_that_is_wrong_is_told_what(text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(BadSchedule) as error:
        Cron(text)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("0 0 * * FRI-MON/2", "0 0 * * 5,0"),
        ("0 0 * * FRI-MON", "0 0 * * 5,6,0,1"),
        ("0 22-2/2 * * *", "0 22,0,2 * * *"),
    ],
)
def test_a_range_over_the_end_goes_on_at_the_beginning(short: str, long: str) -> None:
    at = 1_790_000_000.0
    ours, theirs = Cron(short), Cron(long)
    for _ in range(20):
        assert ours.after(at) == theirs.after(at)
        at = ours.after(at)


@pytest.mark.parametrize("name", ["Europe/Atlantis", "", "../etc/passwd", "/etc/passwd", "Europe", "\0"])
def test_a_zone_that_is_none(name: str) -> None:
    with pytest.raises(BadSchedule, match="time zone"):
        Cron("* * * * *", name)


@given(st.lists(st.text("0123456789*/,-#LW?JANMOSU@ ", max_size=8), min_size=1, max_size=7).map(" ".join))
def test_any_text_is_understood_or_refused(text: str) -> None:
    try:
        cron = Cron(text, "Europe/Berlin")
    except BadSchedule as error:
        assert str(error)
    else:
        dues = [1_790_000_000.0]
        for _ in range(3):
            dues.append(cron.after(dues[-1]))
        assert all(a < b for a, b in pairwise(dues))


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("0 0 1 * ?", "0 0 1 * *"),
        ("0 0 ? * *", "0 0 * * *"),
        ("0 0 ? * ? 7", "0 0 * * * 7"),
        ("0 0 * dec-jan *", "0 0 * 12,1 *"),
        ("0 0 30-2 * *", "0 0 30,31,1,2 * *"),
        ("58-1 * * * *", "58,59,0,1 * * * *"),
        ("0 0 * * * 59-0", "0 0 * * * 59,0"),
        ("0 0 * * sat-sun", "0 0 * * 6,0"),
        ("0 0 * * fri-mon,wed", "0 0 * * 5,6,0,1,3"),
        ("0 4,22-2 * * *", "0 4,22,23,0,1,2 * * *"),
        ("0 5-5 * * *", "0 5 * * *"),
    ],
)
def test_a_question_mark_is_any_day_and_ranges_go_over_the_end(text: str, same: str) -> None:
    assert shown(Cron(text), "2026-01-01 12:34", 20) == shown(Cron(same), "2026-01-01 12:34", 20)


@pytest.mark.parametrize("text", ["? * * * *", "* ? * * *", "0 0 1 ? *", "0 0 1 * * ?", "0 0 1 1-13 *"])
def test_a_question_mark_is_no_other_field(text: str) -> None:
    with pytest.raises(BadSchedule):
        Cron(text)


def test_a_text_of_as_many_characters_as_are_allowed() -> None:
    text = "0 0 * * *"
    assert shown(Cron(text + " " * (255 - len(text))), "2026-01-01", 1) == ["01-02 00:00:00+00"]
    with pytest.raises(BadSchedule, match="255"):
        Cron(text + " " * (256 - len(text)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "61 * * * *",
            "the cron text '61 * * * *' has a bad minute: '61'; it takes *, numbers from 0 to 59, ranges "
            "like 0-59, steps like */2, and lists of those",
        ),
        (
            "0 0 31 2 *",
            "the cron text '0 0 31 2 *' has a bad day-of-month: '31'; it takes *, numbers from 1 to 31, "
            "ranges like 1-31, steps like */2, and lists of those, and the day has to exist in one of "
            "the months",
        ),
        (
            "0 0 * * xyz",
            "the cron text '0 0 * * xyz' has a bad day-of-week: 'XYZ'; it takes *, numbers from 0 to 6, SUN, "
            "MON, TUE, WED, THU, FRI, SAT, ranges like 0-6, steps like */2, and lists of those",
        ),
    ],
)
def test_a_text_that_is_wrong_is_told_what_would_be_right(text: str, words: str) -> None:
    with pytest.raises(BadSchedule) as error:
        Cron(text)
    assert str(error.value) == words


def test_whatever_else_is_wrong_with_a_text_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(text: str, start: datetime) -> CronSim:
        raise CronSimError("Too many stars")

    monkeypatch.setattr(cron_texts, "CronSim", refuse)
    with pytest.raises(BadSchedule, match="cannot be read: Too many stars"):
        Cron("* * * * *")
