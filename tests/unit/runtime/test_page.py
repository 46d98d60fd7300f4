"""The memory that a child and its supervisor share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polybus.runtime.page import RING_BYTES, Page, new_page


@pytest.fixture
def sides() -> Iterator[tuple[Page, Page]]:
    """The child's view and the supervisor's."""
    fd = new_page()
    child, supervisor = Page(fd), Page(fd)
    os.close(fd)
    yield child, supervisor
    child.close()
    supervisor.close()


def test_an_empty_page(sides: tuple[Page, Page]) -> None:
    child, supervisor = sides
    assert supervisor.running == supervisor.dropped == supervisor.unwanted == 0
    assert supervisor.is_empty
    assert supervisor.take(supervisor.written) == b""
    assert child.dropped == 0


def test_one_side_sees_what_the_other_writes(sides: tuple[Page, Page]) -> None:
    child, supervisor = sides
    child.begin(7, 12.5)
    assert (supervisor.running, supervisor.since) == (7, 12.5)
    supervisor.dropped = 9
    supervisor.unwanted = 7
    assert (child.dropped, child.unwanted) == (9, 7)
    child.end()
    assert supervisor.running == 0


def test_what_is_put_into_the_ring_is_taken_once(sides: tuple[Page, Page]) -> None:
    child, supervisor = sides
    assert child.put(b"one")
    before = supervisor.written
    assert child.put(b"two")
    assert supervisor.take(before) == b"one"
    assert supervisor.take(supervisor.written) == b"two"
    assert supervisor.take(supervisor.written) == b""
    assert supervisor.is_empty


def test_a_full_ring_takes_nothing_until_there_is_room(sides: tuple[Page, Page]) -> None:
    child, supervisor = sides
    assert child.put(b"x" * RING_BYTES)
    assert not child.put(b"y")
    assert len(supervisor.take(supervisor.written)) == RING_BYTES
    assert child.put(b"y")
    assert supervisor.take(supervisor.written) == b"y"


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, RING_BYTES // 3), st.booleans()), max_size=30))
def test_nothing_is_lost_where_the_ring_closes(steps: list[tuple[int, bool]]) -> None:
    fd = new_page()
    child, supervisor = Page(fd), Page(fd)
    os.close(fd)
    put = taken = b""
    for number, (size, take) in enumerate(steps):
        piece = bytes([number % 256]) * size
        if child.put(piece):
            put += piece
        if take:
            taken += supervisor.take(supervisor.written)
    taken += supervisor.take(supervisor.written)
    assert taken == put
    child.close()
    supervisor.close()
