"""One table while it runs: what a transaction will leave in it, and what it writes for that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polybus.store.codec import CODECS, Group, checksum
from polybus.store.shelf import Shelf

TAG = CODECS["grouping"].tag


def group(key: bytes, state: bytes = b"state") -> Group:
    return Group(key, state)


def row(number: int, key: bytes, state: bytes = b"state") -> tuple[int, bytes, int]:
    payload = CODECS["grouping"].pack(group(key, state))
    return number, payload, checksum(TAG, number, payload)


@pytest.fixture
def shelf() -> Shelf:
    """With two entries on disk, in the rows 3 and 7."""
    made = Shelf("grouping")
    assert made.take(*row(3, b"a")) == group(b"a")
    assert made.take(*row(7, b"b")) == group(b"b")
    return made


def put(*keys: bytes) -> Callable[[Shelf], None]:
    return lambda shelf: [shelf.put(key, group(key, b"new")) for key in keys] and None


def remove(*keys: bytes) -> Callable[[Shelf], None]:
    return lambda shelf: [shelf.remove(key) for key in keys] and None


@pytest.mark.parametrize(
    ("steps", "held", "oldest", "deleted", "rows"),
    [
        ([], b"ab", b"a", [], []),
        ([put(b"c")], b"abc", b"a", [], [row(8, b"c", b"new")]),
        ([put(b"c", b"d")], b"abcd", b"a", [], [row(8, b"c", b"new"), row(9, b"d", b"new")]),
        # An entry that is there keeps its row.
        ([put(b"a")], b"ab", b"a", [], [row(3, b"a", b"new")]),
        ([put(b"a", b"c")], b"abc", b"a", [], [row(3, b"a", b"new"), row(8, b"c", b"new")]),
        ([remove(b"a")], b"b", b"b", [3], []),
        ([remove(b"a", b"b"), put(b"c")], b"c", b"c", [3, 7], [row(8, b"c", b"new")]),
        # One that was removed and is put again is a new one.
        ([remove(b"a"), put(b"a")], b"ab", b"b", [3], [row(8, b"a", b"new")]),
        ([put(b"a"), remove(b"a")], b"b", b"b", [3], []),
        # What comes and goes in one transaction is never written.
        ([put(b"c"), remove(b"c")], b"ab", b"a", [], []),
        ([remove(b"x")], b"ab", b"a", [], []),
    ],
)
def test_a_transaction(
    shelf: Shelf,
    steps: list[Callable[[Shelf], None]],
    held: bytes,
    oldest: bytes,
    deleted: list[int],
    rows: list[tuple[int, bytes, int]],
) -> None:
    before = shelf.sums
    for step in steps:
        step(shelf)
    keys = [bytes([one]) for one in held]
    assert [key for key in (b"a", b"b", b"c", b"d", b"x") if shelf.holds(key)] == keys
    assert (shelf.size, shelf.oldest()) == (len(keys), oldest)
    assert shelf.is_changed == bool(deleted or rows)
    # Before it is asked for its changes it is what is on disk.
    assert shelf.sums == before
    assert shelf.changes() == (deleted, [field for one in rows for field in one])
    on_disk = {3: row(3, b"a"), 7: row(7, b"b")}
    on_disk = {number: one for number, one in on_disk.items() if number not in deleted}
    on_disk |= {one[0]: one for one in rows}
    sums = (len(keys), sum(one[2] for one in on_disk.values()))
    assert shelf.sums == sums
    shelf.settle()
    assert (shelf.sums, shelf.size, shelf.is_changed) == (sums, len(keys), False)
    assert sorted(shelf.places) == sorted(keys)
    # The number of a row is never used for another entry while the store is open.
    shelf.put(b"next", group(b"next"))
    assert shelf.changes()[1][0] == max(7, *(one[0] for one in rows), 0) + 1


def test_a_transaction_that_comes_to_nothing_leaves_everything_as_it_was(shelf: Shelf) -> None:
    sums = shelf.sums
    shelf.remove(b"a")
    shelf.put(b"c", group(b"c"))
    shelf.changes()
    shelf.forget()
    assert (shelf.sums, shelf.size, shelf.is_changed, shelf.oldest()) == (sums, 2, False, b"a")
    shelf.settle()
    assert sorted(shelf.places) == [b"a", b"b"]
    shelf.put(b"c", group(b"c"))
    assert shelf.changes() == ([], list(row(8, b"c")))


def test_a_row_that_is_not_as_it_was_written_is_not_taken(shelf: Shelf) -> None:
    number, payload, crc = row(9, b"c")
    for wrong in ((number, payload, crc + 1), (number + 1, payload, crc), (number, payload + b"x", crc)):
        with pytest.raises(ValueError, match="checksum"):
            shelf.take(*wrong)
    assert (shelf.size, shelf.holds(b"c")) == (2, False)


def test_rows_may_be_read_in_any_order() -> None:
    shelf = Shelf("grouping")
    shelf.take(*row(7, b"b"))
    shelf.take(*row(3, b"a"))
    shelf.put(b"c", group(b"c"))
    assert shelf.changes()[1][0] == 8


def test_an_entry_that_is_packed_already_is_written_as_it_is() -> None:
    shelf = Shelf("grouping")
    _, payload, crc = row(1, b"a")
    shelf.put(b"a", payload)
    assert shelf.changes() == ([], [1, bytearray(payload), crc])
