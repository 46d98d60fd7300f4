"""Deadlines: never early, at most one slot late, cheap to withdraw."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from polybus.core import events
from polybus.core.model import JobOptions
from polybus.core.timers import NUMBERS_KEPT, SLOTS_PER_S, Timers
from support.stage import Stage

SLOT_S = 1 / SLOTS_PER_S


class Item:
    def __init__(self, name: object = None) -> None:
        self.name = name
        self.slot = 0


times = st.floats(0.0, 1e6, allow_nan=False)


@given(at=times, early=st.floats(0.0, 10.0))
def test_never_early(at: float, early: float) -> None:
    timers: Timers[Item] = Timers()
    item = Item()
    timers.set(item, at)
    now = at - early
    if now < at:
        assert timers.due(now) == []
        assert item.slot


@given(at=times)
def test_at_most_one_slot_late(at: float) -> None:
    timers: Timers[Item] = Timers()
    item = Item()
    timers.set(item, at)
    # A hair more than a slot, for the rounding of large numbers.
    assert timers.due(at + SLOT_S + 1e-9) == [item]
    assert item.slot == 0
    assert timers.due(at + 100) == []


@given(at=times)
def test_next_at_is_when_it_is_due(at: float) -> None:
    timers: Timers[Item] = Timers()
    timers.set(Item(), at)
    next_at = timers.next_at()
    assert next_at is not None
    assert at <= next_at + 1e-9
    assert next_at <= at + SLOT_S + 1e-9
    assert len(timers.due(next_at)) == 1
    assert timers.next_at() is None


def test_nothing_is_due_when_nothing_was_set() -> None:
    timers: Timers[Item] = Timers()
    assert timers.due(1e9) == []
    assert timers.next_at() is None


def test_a_withdrawn_deadline_never_comes() -> None:
    timers: Timers[Item] = Timers()
    kept, gone = Item(), Item()
    timers.set(kept, 1.0)
    timers.set(gone, 1.0)
    timers.clear(gone)
    timers.clear(gone)
    assert gone.slot == 0
    assert timers.due(2.0) == [kept]


@given(at=st.floats(-10.0, 0.0) | st.floats(-0.1, -0.05))
def test_a_deadline_from_before_the_clock_began_is_one_like_others(at: float) -> None:
    timers: Timers[Item] = Timers()
    item = Item()
    timers.set(item, at)
    assert item.slot
    timers.clear(item)
    timers.set(item, at)
    assert timers.due(SLOT_S) == [item]


def test_withdrawing_what_was_never_set_does_nothing() -> None:
    timers: Timers[Item] = Timers()
    timers.clear(Item())
    assert timers.next_at() is None


def test_slots_that_were_emptied_do_not_wake_anybody() -> None:
    timers: Timers[Item] = Timers()
    items = [Item() for _ in range(3)]
    for item, at in zip(items, (1.0, 2.0, 3.0), strict=True):
        timers.set(item, at)
    timers.clear(items[0])
    timers.clear(items[1])
    next_at = timers.next_at()
    assert next_at is not None
    assert next_at >= 3.0
    assert timers.due(10.0) == [items[2]]


def test_a_slot_can_be_used_again() -> None:
    timers: Timers[Item] = Timers()
    item = Item()
    for _ in range(3):
        timers.set(item, 1.0)
        timers.clear(item)
        assert timers.next_at() is None
        timers.set(item, 1.0)
        assert timers.due(2.0) == [item]


def test_one_slot_keeps_the_order_in_which_deadlines_were_set() -> None:
    timers: Timers[Item] = Timers()
    items = [Item(n) for n in range(10)]
    for item in items:
        timers.set(item, 5.0)
    assert timers.due(6.0) == items


def test_many_items() -> None:
    timers: Timers[Item] = Timers()
    items = [Item(n) for n in range(20_000)]
    for n, item in enumerate(items):
        timers.set(item, (n * 7919) % 1000 / 10)
    for item in items[::2]:
        timers.clear(item)
    found: list[Item] = []
    now = 0.0
    while (at := timers.next_at()) is not None:
        assert at > now or not found
        now = at
        found += timers.due(now)
    assert len(found) == 10_000
    assert set(found) == set(items[1::2])
    assert not timers._slots
    assert not timers._order


@given(st.lists(st.tuples(st.sampled_from("sct"), st.integers(0, 9), st.floats(0.0, 5.0)), max_size=60))
def test_like_a_plain_table(steps: list[tuple[str, int, float]]) -> None:
    """Any sequence of setting, withdrawing and looking gives what a table of deadlines would give."""
    timers: Timers[Item] = Timers()
    items = [Item(n) for n in range(10)]
    table: dict[Item, float] = {}
    now = 0.0
    for what, which, number in steps:
        item = items[which]
        if what == "s" and item not in table:
            table[item] = now + number
            timers.set(item, now + number)
        elif what == "c":
            table.pop(item, None)
            timers.clear(item)
        elif what == "t":
            now += number
            for found in timers.due(now):
                assert table.pop(found) <= now
            assert not [item for item, at in table.items() if at <= now - SLOT_S - 1e-9]
        assert {item for item in items if item.slot} == set(table)


def test_deadlines_that_are_withdrawn_leave_nothing_behind() -> None:
    timers: Timers[Item] = Timers()
    kept = Item()
    timers.set(kept, 1e6)
    for n in range(20_000):
        item = Item()
        timers.set(item, 86_400.0 + n)
        timers.clear(item)
    assert len(timers._slots) == 1
    assert len(timers._order) < 2_000
    assert timers.due(2e6) == [kept]


def test_a_slot_that_becomes_empty_does_not_have_all_others_put_in_order_again() -> None:
    """With deadlines in many slots that would cost as much as all of them, with every answer."""
    timers: Timers[Item] = Timers()
    items = [Item(n) for n in range(1000)]
    for n, item in enumerate(items):
        timers.set(item, float(n))
    order = timers._order
    timers.clear(items[500])
    assert timers._order is order
    assert len(timers._slots) == 999


def test_an_idle_broker_wakes_up_every_second_and_one_with_calls_or_that_drains_more_often() -> None:
    stage = Stage()
    assert stage.bus.next_at(stage.now) == stage.now + 1.0
    stage.submit("c", "1")
    assert stage.bus.next_at(stage.now) == stage.now + 0.1
    stage = Stage()
    stage.submit("c", "1", options=JobOptions(retries=3))
    assert stage.bus.next_at(stage.now) == stage.now + 1.0
    stage.do(events.Drain())
    assert stage.bus.next_at(stage.now) == stage.now + 0.1


def test_withdrawn_deadlines_that_are_far_ahead_do_not_pile_up() -> None:
    timers: Timers[Item] = Timers()
    kept = Item()
    timers.set(kept, 90_000.0)
    for number in range(20_000):
        item = Item()
        timers.set(item, 86_400.0 + number)
        timers.clear(item)
    assert len(timers._order) <= 2 * NUMBERS_KEPT
    assert timers.due(90_001.0) == [kept]


def test_when_the_numbers_of_empty_slots_are_thrown_out_the_soonest_deadline_still_comes_first() -> None:
    timers: Timers[Item] = Timers()
    late, middle, soon = items = [Item(), Item(), Item()]
    for item, at in zip(items, (300.0, 200.0, 100.0), strict=True):
        timers.set(item, at)
    order = timers._order
    for number in range(NUMBERS_KEPT + 10):
        gone = Item()
        timers.set(gone, 86_400.0 + number)
        timers.clear(gone)
    assert timers._order is not order, "it was made anew"
    next_at = timers.next_at()
    assert next_at is not None
    assert 100.0 <= next_at <= 100.0 + SLOT_S
    assert timers.due(101.0) == [soon]
    assert timers.due(201.0) == [middle]
    assert timers.due(301.0) == [late]


def test_with_many_deadlines_the_heap_is_made_anew_only_after_as_many_were_withdrawn() -> None:
    """It costs as much as there are deadlines: so withdrawing stays cheap, however many there are."""
    timers: Timers[Item] = Timers()
    count = 4 * NUMBERS_KEPT
    kept = [Item() for _ in range(count)]
    for number, item in enumerate(kept):
        timers.set(item, float(number))
    order = timers._order
    for number in range(count):
        gone = Item()
        timers.set(gone, 86_400.0 + number)
        timers.clear(gone)
    assert timers._order is order
