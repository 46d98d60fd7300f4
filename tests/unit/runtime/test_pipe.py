"""Orders down, reports up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from polybus.runtime.pipe import (
    FRAMES,
    Kind,
    Order,
    OrderReader,
    ReportReader,
    read_reports,
    write_frames,
    write_orders,
    write_report,
)

orders = st.tuples(
    st.integers(1, 2**40),
    st.binary(max_size=20),
    st.binary(max_size=20),
    st.lists(st.binary(max_size=50), max_size=3),
    st.integers(0, 1000),
    st.floats(0, 1e6),
    st.none() | st.floats(0, 1e6),
)
reports = st.tuples(st.integers(0, 2**40), st.sampled_from(Kind), st.just(0.5), st.binary(max_size=100))


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """The same bytes in pieces, as they may come out of a pipe."""
    pieces, at = [], 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    return [piece for piece in (*pieces, data[at:]) if piece]


@given(st.lists(st.lists(orders, max_size=4), max_size=4), st.lists(st.integers(1, 40), max_size=20))
def test_orders_come_out_as_they_went_in(batches: list[list[tuple]], sizes: list[int]) -> None:  # type: ignore[type-arg]
    reader = OrderReader()
    data = b"".join(write_orders(batch) for batch in batches)
    found = [batch for piece in cut(data, sizes) for batch in reader.feed(piece)]
    assert found == [[Order(*values) for values in batch] for batch in batches]


@given(st.lists(reports, max_size=6), st.lists(st.integers(1, 40), max_size=20))
def test_reports_come_out_as_they_went_in(given: list[tuple], sizes: list[int]) -> None:  # type: ignore[type-arg]
    reader = ReportReader()
    data = b"".join(write_report(number, kind, took, body) for number, kind, took, body in given)
    expected = [(number, int(kind), took, body) for number, kind, took, body in given]
    assert [report for piece in cut(data, sizes) for report in reader.feed(piece)] == expected
    assert read_reports(data) == expected


def test_a_large_answer_in_many_pieces() -> None:
    reader = ReportReader()
    body = bytes(range(256)) * 40_000
    data = write_report(1, Kind.DONE, 0.0, body) + write_report(2, Kind.DONE, 0.0, b"x")
    found = [report for piece in cut(data, [4096] * 3000) for report in reader.feed(piece)]
    assert found == [(1, Kind.DONE, 0.0, body), (2, Kind.DONE, 0.0, b"x")]


def test_frames() -> None:
    assert FRAMES.decode(write_frames([b"a", b"", b"c"])) == [b"a", b"", b"c"]
