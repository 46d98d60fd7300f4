"""Metrics of services with histograms, by numpy: rows that sum up events, and sums of such rows.

This runs on Spark's executors, in Python, on columns: a histogram of Spark's own would be a row for each
bucket, and sorting those costs several times as much.  Executors need numpy and pyarrow for it, but no
polybus: these functions travel to them by value, so nothing of it is imported here.

Buckets are fixed: each time becomes the middle of its bucket, at most 1.25 percent beside it.  So histograms
add up exactly, whatever is added to what: tables that are made in one go and tables that grew are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TERMINAL: Final = ("replied", "failed", "expired", "cancelled")
DOWN: Final = "worker_down"
WINDOW_US: Final = 10_000_000
KEYS: Final = ("broker", "service", "window_start")
COUNTS: Final = ("requests", *TERMINAL, "workers_down", "bytes_in", "bytes_out")
MEASURES: Final = ("wait", "service")
QUANTILES: Final = (50, 95, 99)
# The columns of rows that can be added, and of finished ones.
PART: Final = (*KEYS, *COUNTS, *(f"{measure}_buckets" for measure in MEASURES))
FINISHED: Final = (
    *PART,
    *("rate", "error_rate", "date"),
    *(f"{measure}_p{q}_us" for measure in MEASURES for q in QUANTILES),
)
# The columns of events that are looked at.
NEEDED: Final = ("broker", "service", "what", "at", "accepted_at", "dispatched_at", "size", "body_size")
# So many events are summed up at once.
ROWS: Final = 200_000
# A bucket as bytes: its time, and how many.
PAIR_BYTES: Final = 16
# Longer than anything waits: ten days in microseconds.
LARGEST_POWER: Final = 10
_STAMP: Final = pa.timestamp("us", tz="UTC")
_BUCKETS: Final = pa.list_(pa.struct([("us", pa.int64()), ("count", pa.int64())]))
_SCHEMA: Final = pa.schema(
    [
        *((name, pa.string()) for name in KEYS[:2]),
        (KEYS[2], _STAMP),
        *((name, pa.int64()) for name in COUNTS),
        *((f"{measure}_buckets", _BUCKETS) for measure in MEASURES),
    ]
)

Numbers = Any  # np.ndarray of int64
# Whose values, which, and how many of each.
Values = tuple[Numbers, Numbers, Numbers]


def parts_of_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Events → rows with counts and histograms; several for a window, if it must be."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(one.num_rows for one in waiting) >= ROWS:
            yield from packed(parts_of(pa.Table.from_batches(waiting))).to_batches()
            waiting = []
    if waiting:
        yield from packed(parts_of(pa.Table.from_batches(waiting))).to_batches()


def whole_of_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows with counts and histograms, all there are of their windows → one for each window, finished."""
    found = list(batches)
    if found:
        yield from packed(finished(added(unpacked(pa.Table.from_batches(found))))).to_batches()


def packed(rows: pa.Table) -> pa.Table:
    """The same with histograms as bytes: Spark would turn over each bucket of a list."""
    for measure in MEASURES:
        lists = _whole(rows[f"{measure}_buckets"])
        pairs = lists.flatten()
        numbers = np.empty(2 * len(pairs), np.int64)
        numbers[0::2], numbers[1::2] = (_numbers(pc.struct_field(pairs, name)) for name in ("us", "count"))
        ends = _numbers(lists.offsets)
        buffers = [
            None,
            pa.py_buffer(((ends - ends[0]) * PAIR_BYTES).astype(np.int32)),
            pa.py_buffer(numbers),
        ]
        column = pa.Array.from_buffers(pa.binary(), len(lists), buffers)
        rows = rows.set_column(rows.column_names.index(f"{measure}_buckets"), f"{measure}_buckets", column)
    return rows


def unpacked(rows: pa.Table) -> pa.Table:
    """Histograms as they are in the table, of bytes."""
    for measure in MEASURES:
        column = _whole(rows[f"{measure}_buckets"])
        _, ends, data = column.buffers()
        begins = np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1]
        numbers = np.frombuffer(data or b"", np.uint8)[begins[0] : begins[-1]].view(np.int64)
        pairs = pa.StructArray.from_arrays(
            [pa.array(numbers[0::2]), pa.array(numbers[1::2])], ["us", "count"]
        )
        lists = pa.ListArray.from_arrays(pa.array((begins - begins[0]) // PAIR_BYTES), pairs)
        rows = rows.set_column(rows.column_names.index(f"{measure}_buckets"), f"{measure}_buckets", lists)
    return rows


def parts_of(events: pa.Table) -> pa.Table:
    """What these events, ends of requests and of workers, add to the rows of their windows."""
    events = events.filter(pc.is_valid(events["service"]))
    is_down = pc.equal(events["what"], DOWN)
    return pa.concat_tables([_ended(events.filter(pc.invert(is_down))), _went(events.filter(is_down))])


def _ended(events: pa.Table) -> pa.Table:
    at, accepted, dispatched = (_micros(events[name]) for name in ("at", "accepted_at", "dispatched_at"))
    has_begun = ~_is_null(events["accepted_at"])
    was_given = ~_is_null(events["dispatched_at"])
    rows = np.arange(events.num_rows)
    once = np.ones(events.num_rows, np.int64)
    # A clock that was set back does not make times negative.
    waits = np.maximum(np.where(was_given, dispatched, at) - accepted, 0)
    times = np.maximum(at - dispatched, 0)
    counts = {
        "requests": once,
        **{name: _numbers(pc.equal(events["what"], name).cast(pa.int64())) for name in TERMINAL},
        "bytes_in": _numbers(events["size"]),
        "bytes_out": _numbers(events["body_size"]),
    }
    values = {
        "wait": (rows[has_begun], bucket_of(waits[has_begun]), once[has_begun]),
        "service": (rows[was_given], bucket_of(times[was_given]), once[was_given]),
    }
    return _grouped(events["broker"], events["service"], at - at % WINDOW_US, counts, values)


def _went(events: pa.Table) -> pa.Table:
    """Of which windows the ends of workers were; a worker may serve several services."""
    names = pc.split_pattern(_whole(events["service"]), ",")
    owners = pc.list_parent_indices(names)
    at = _micros(events["at"])[_numbers(owners)]
    counts = {"workers_down": np.ones(len(at), np.int64)}
    return _grouped(events["broker"].take(owners), pc.list_flatten(names), at - at % WINDOW_US, counts, {})


def added(parts: pa.Table) -> pa.Table:
    """One row for each window: the sum of all that there are."""
    values: dict[str, Values] = {}
    for measure in MEASURES:
        lists = _whole(parts[f"{measure}_buckets"])
        pairs = pc.list_flatten(lists)
        owners = _numbers(pc.list_parent_indices(lists))
        values[measure] = (
            owners,
            _numbers(pc.struct_field(pairs, "us")),
            _numbers(pc.struct_field(pairs, "count")),
        )
    counts = {name: _numbers(parts[name]) for name in COUNTS}
    return _grouped(parts["broker"], parts["service"], _micros(parts["window_start"]), counts, values)


def finished(rows: pa.Table) -> pa.Table:
    """Rows with what follows from their counts and histograms: rates and percentiles."""
    requests = _numbers(rows["requests"])
    errors = _numbers(rows["failed"]) + _numbers(rows["expired"])
    with np.errstate(divide="ignore", invalid="ignore"):
        error_rate = pa.array(errors / requests, mask=requests == 0)
    more: dict[str, Any] = {
        "rate": pa.array(requests / (WINDOW_US / 1_000_000)),
        "error_rate": error_rate,
        "date": pc.strftime(rows["window_start"], "%Y-%m-%d"),
    }
    for measure in MEASURES:
        for q, values in zip(QUANTILES, quantiles(_whole(rows[f"{measure}_buckets"])), strict=True):
            more[f"{measure}_p{q}_us"] = values
    for name, column in more.items():
        rows = rows.append_column(name, column)
    return rows


def quantiles(lists: pa.ListArray) -> list[pa.Array]:
    """For each histogram the first buckets at which so many percent are reached; null without values."""
    ends = _numbers(lists.offsets)
    is_empty = ends[1:] == ends[:-1]
    pairs = lists.flatten()
    counts, middles = (_numbers(pc.struct_field(pairs, name)) for name in ("count", "us"))
    ends = ends - ends[0]
    sums = np.concatenate([[0], np.cumsum(counts)])
    owners = np.repeat(np.arange(len(lists)), np.diff(ends))
    upto = sums[1:] - sums[ends[:-1]][owners]
    totals = (sums[ends[1:]] - sums[ends[:-1]])[owners]
    places = np.arange(len(counts))
    found = []
    for q in QUANTILES:
        values = np.zeros(len(lists), np.int64)
        if len(counts):
            reached = np.where(upto * 100 >= totals * q, places, len(counts))
            # Empty histograms have no place to begin at.
            first = np.minimum.reduceat(reached, ends[:-1][~is_empty])
            values[~is_empty] = middles[first]
        found.append(pa.array(values, mask=is_empty))
    return found


def bucket_of(times: Numbers) -> Numbers:
    """The middle of the bucket of each of these times."""
    units = 10 ** np.searchsorted(1000 * 10 ** np.arange(LARGEST_POWER), times, side="right").astype(np.int64)
    steps = units * np.where(times < 200 * units, 2, np.where(times < 500 * units, 5, 10))
    steps = np.where(times < 100, 1, steps)
    return times - times % steps + steps // 2


def _grouped(
    brokers: Any, services: Any, windows: Numbers, counts: Mapping[str, Numbers], values: Mapping[str, Values]
) -> pa.Table:
    """One row for each broker, service and window, with the sums of its counts and its histograms."""
    names = [_coded(brokers), _coded(services)]
    starts, window = np.unique(windows, return_inverse=True)
    codes = (names[0][1] * len(names[1][0]) + names[1][1]) * max(1, len(starts)) + window
    keys, groups = np.unique(codes, return_inverse=True)
    window_of, pairs = keys % max(1, len(starts)), keys // max(1, len(starts))
    columns: list[Any] = [
        names[0][0].take(pa.array(pairs // max(1, len(names[1][0])))),
        names[1][0].take(pa.array(pairs % max(1, len(names[1][0])))),
        pa.array(starts[window_of]).view(_STAMP),
    ]
    for name in COUNTS:
        sums = np.zeros(len(keys), np.int64)
        if name in counts:
            np.add.at(sums, groups, counts[name])
        columns.append(pa.array(sums))
    nothing = (np.zeros(0, np.int64),) * 3
    for measure in MEASURES:
        owners, middles, many = values.get(measure, nothing)
        columns.append(_histograms(len(keys), groups[owners], middles, many))
    return pa.Table.from_arrays(columns, schema=_SCHEMA)


def _histograms(count: int, groups: Numbers, middles: Numbers, many: Numbers) -> pa.ListArray:
    """For each group its values in order, each once, and how many there were."""
    order = _order(groups, middles)
    groups, middles, many = groups[order], middles[order], many[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = (groups[1:] != groups[:-1]) | (middles[1:] != middles[:-1])
    begins = np.flatnonzero(is_first)
    sums = np.add.reduceat(many, begins) if len(begins) else many
    ends = np.searchsorted(groups[begins], np.arange(count + 1)).astype(np.int32)
    pairs = pa.StructArray.from_arrays([pa.array(middles[begins]), pa.array(sums)], ["us", "count"])
    return pa.ListArray.from_arrays(pa.array(ends), pairs)


def _order(groups: Numbers, middles: Numbers) -> Numbers:
    """By group, then by value."""
    span = int(middles.max(initial=0)) + 1
    if (int(groups.max(initial=0)) + 1) * span < 2**63:
        # One number for both is sorted twice as fast.
        return np.argsort(groups * span + middles)
    return np.lexsort((middles, groups))


def _coded(names: Any) -> tuple[pa.Array, Numbers]:
    """The different names, and for each row the place of its own."""
    coded = _whole(names).dictionary_encode()
    return coded.dictionary, _numbers(coded.indices)


def _whole(column: Any) -> pa.Array:
    """A column in one piece."""
    found = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return found.chunk(0) if isinstance(found, pa.ChunkedArray) else found


def _is_null(column: Any) -> Any:
    return np.asarray(pc.is_null(column))


def _micros(column: Any) -> Numbers:
    return _numbers(column.cast(_STAMP).cast(pa.int64()))


def _numbers(column: Any) -> Numbers:
    """As numpy has them; 0 for null."""
    return np.asarray(pc.fill_null(column, 0)).astype(np.int64, copy=False)
