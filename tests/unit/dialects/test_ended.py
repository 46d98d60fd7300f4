"""Peers whose conversation has ended."""

from __future__ import annotations

from polybus.dialects.ended import Ended


def test_the_last_so_many_peers_are_remembered() -> None:
    ended = Ended(2)
    first, second, third = ((1, name) for name in (b"a", b"b", b"c"))
    ended.add(first)
    ended.add(second)
    assert first in ended
    assert second in ended
    # One that is there already takes no room.
    ended.add(second)
    assert first in ended
    ended.add(third)
    assert [peer in ended for peer in (first, second, third)] == [False, True, True]


def test_who_begins_anew_has_not_ended() -> None:
    ended = Ended()
    ended.add((1, b"a"))
    ended.discard((1, b"a"))
    ended.discard((1, b"stranger"))
    assert (1, b"a") not in ended
