"""Metrics of services: what numpy makes of events is what a slow and simple way makes of them."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from polybus.spark import histograms
from polybus.spark.schema import METRICS_WINDOW_S, SERVICE_METRICS

STAMP = pa.timestamp("us", tz="UTC")
TYPES = pa.schema(
    [
        *((name, pa.string()) for name in ("broker", "service", "what")),
        *((name, STAMP) for name in ("at", "accepted_at", "dispatched_at")),
        *((name, pa.int64()) for name in ("size", "body_size")),
    ]
)
NOON = 1_763_294_400_000_000


def event(chance: random.Random) -> dict[str, Any]:
    at = NOON + chance.randrange(60_000_000)
    began = chance.random() < 0.9
    given = chance.random() < 0.8
    what = chance.choice([*histograms.TERMINAL, histograms.DOWN])
    names = ["mail", "mail,print", "print"] if what == histograms.DOWN else ["mail", "print", None]
    return {
        "broker": chance.choice(["a", "b"]),
        "service": chance.choice(names),
        "what": what,
        "at": at,
        # Now and then a clock was set back.
        "accepted_at": at - chance.randrange(-100, 10 ** chance.randrange(3, 12)) if began else None,
        "dispatched_at": at - chance.randrange(-100, 10 ** chance.randrange(3, 8)) if given else None,
        "size": chance.choice([None, 5, 1000]),
        "body_size": chance.choice([None, 7]),
    }


def table(events: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(events, schema=TYPES)


def by_hand(events: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in events:
        for service in (one["service"] or "").split(",") if one["service"] else ():
            start = datetime.fromtimestamp(one["at"] // histograms.WINDOW_US * 10, UTC)
            row = rows.setdefault(
                (one["broker"], service, start),
                {**dict.fromkeys(histograms.COUNTS, 0), "wait": Counter(), "service": Counter()},
            )
            if one["what"] == histograms.DOWN:
                row["workers_down"] += 1
                continue
            row["requests"] += 1
            row[one["what"]] += 1
            row["bytes_in"] += one["size"] or 0
            row["bytes_out"] += one["body_size"] or 0
            if one["accepted_at"] is not None:
                end = one["at"] if one["dispatched_at"] is None else one["dispatched_at"]
                row["wait"][middle(max(0, end - one["accepted_at"]))] += 1
            if one["dispatched_at"] is not None:
                row["service"][middle(max(0, one["at"] - one["dispatched_at"]))] += 1
    return rows


def middle(time: int) -> int:
    unit = 1
    while time >= 1000 * unit:
        unit *= 10
    step = (
        1
        if time < 100
        else unit * next(n for n, most in ((2, 200), (5, 500), (10, 1000)) if time < most * unit)
    )
    return time // step * step + step // 2


def quantile(values: Counter[int], percent: int) -> int | None:
    upto = 0
    for value in sorted(values):
        upto += values[value]
        if upto * 100 >= values.total() * percent:
            return value
    return None


@pytest.mark.parametrize("seed", range(5))
def test_as_by_hand_however_it_is_cut(seed: int) -> None:
    chance = random.Random(seed)
    events = [event(chance) for _ in range(2000)]
    batches = [batch for n in range(0, 2000, 300) for batch in table(events[n : n + 300]).to_batches()]
    parts = [part for batch in batches for part in histograms.parts_of_batches(iter([batch]))]
    chance.shuffle(parts)
    made = pa.Table.from_batches(list(histograms.whole_of_batches(iter(parts))))
    rows = histograms.unpacked(made).select(SERVICE_METRICS.schema.names).cast(SERVICE_METRICS.schema)
    wanted = by_hand(events)
    assert rows.num_rows == len(wanted)
    for row in rows.to_pylist():
        want = wanted[row["broker"], row["service"], row["window_start"]]
        assert {name: row[name] for name in histograms.COUNTS} == {
            name: want[name] for name in histograms.COUNTS
        }
        for measure in histograms.MEASURES:
            found = {pair["us"]: pair["count"] for pair in row[f"{measure}_buckets"]}
            assert found == want[measure]
            assert list(found) == sorted(found)
            for percent in histograms.QUANTILES:
                assert row[f"{measure}_p{percent}_us"] == quantile(want[measure], percent)
        assert row["rate"] == row["requests"] / METRICS_WINDOW_S
        errors = row["failed"] + row["expired"]
        assert row["error_rate"] == (errors / row["requests"] if row["requests"] else None)
        assert row["date"] == "2025-11-16"


def test_nothing_is_nothing() -> None:
    empty = table([])
    assert histograms.parts_of(empty).num_rows == 0
    assert histograms.finished(histograms.added(histograms.parts_of(empty))).num_rows == 0
    assert list(histograms.whole_of_batches(iter([]))) == []


def test_windows_are_those_of_the_table() -> None:
    assert histograms.WINDOW_US == METRICS_WINDOW_S * 1_000_000


@pytest.mark.parametrize("time", [0, 1, 99, 100, 199, 200, 999, 1000, 123_456, 10**12, 9 * 10**15])
def test_buckets_are_near(time: int) -> None:
    (found,) = histograms.bucket_of(histograms._numbers(pa.array([time])))
    assert found == middle(time) or time >= 10**13
    assert abs(found - time) <= time * 0.0125 or time >= 10**13
