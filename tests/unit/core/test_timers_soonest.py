"""`Timers.soonest`, by which the loop decides whether it has to look at all."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from polybus.core.timers import SLOTS_PER_S, Timers


class Item:
    def __init__(self) -> None:
        self.slot = 0


def test_the_next_deadline_is_known_after_one_has_passed() -> None:
    timers: Timers[Item] = Timers()
    assert timers.soonest == inf
    first, second = Item(), Item()
    timers.set(second, 9.0)
    timers.set(first, 5.0)
    assert 5.0 <= timers.soonest <= 5.0 + 1 / SLOTS_PER_S
    assert timers.due(6.0) == [first]
    assert 9.0 <= timers.soonest <= 9.0 + 1 / SLOTS_PER_S
    assert timers.due(10.0) == [second]
    assert timers.soonest == inf


@given(st.lists(st.tuples(st.sampled_from("sct"), st.integers(0, 5), st.floats(0.0, 5.0)), max_size=40))
def test_nothing_is_due_before_it(steps: list[tuple[str, int, float]]) -> None:
    timers: Timers[Item] = Timers()
    items = [Item() for _ in range(6)]
    now = 0.0
    for what, which, number in steps:
        item = items[which]
        if what == "s" and not item.slot:
            timers.set(item, now + number)
        elif what == "c":
            timers.clear(item)
        elif what == "t":
            now += number
            timers.due(now)
            assert timers.soonest > now
        assert all(timers.soonest <= one.slot / SLOTS_PER_S for one in items if one.slot)
