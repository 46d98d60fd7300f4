"""The plain reading itself, with rows that were counted by hand: nothing else would find a mistake in it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pipeline import expected
from pipeline.compare import Difference
from pipeline.expected import COLUMNS, Row, all_tables, bucket, percentile

SECOND = 1_000_000
NOON = 1_763_294_400 * SECOND  # 2025-11-16 12:00:00, the beginning of a window
EMPTY: Row = dict.fromkeys(
    (
        *("token", "request_id", "service", "client", "client_dialect", "client_link", "worker"),
        *("worker_dialect", "worker_link", "reason", "detail", "accepted_at", "dispatched_at", "headers"),
        "body",
    )
)


def row(what: str, at: int, seq: int = 1, **more: Any) -> Row:
    facts = {"broker": "b", "life": "l", "seq": seq, "at": at, "what": what}
    return EMPTY | {"size": 0, "body_size": 0, "attempt": 0} | facts | more


def end(what: str, at: int, waited: int | None = 0, took: int | None = 0, **more: Any) -> Row:
    """A request's end: it waited so long, and then took so long."""
    dispatched = None if took is None else at - took
    accepted = None if waited is None else (at if dispatched is None else dispatched) - waited
    return row(what, at, accepted_at=accepted, dispatched_at=dispatched, **({"service": "s"} | more))


@pytest.mark.parametrize(
    ("x", "middle"),
    [
        (0, 0),
        (99, 99),
        (100, 101),
        (101, 101),
        (102, 103),
        (199, 199),
        (200, 202),
        (204, 202),
        (205, 207),
        (499, 497),
        (500, 505),
        (999, 995),
        (1000, 1010),
        (1019, 1010),
        (1020, 1030),
        (2000, 2025),
        (5000, 5050),
        (9_999, 9_950),
        (1_000_000, 1_010_000),
        (3_600_000_000, 3_625_000_000),
    ],
)
def test_buckets(x: int, middle: int) -> None:
    assert bucket(x) == middle


def test_buckets_are_close_and_ascend() -> None:
    values = [bucket(x) for x in range(20_000)]
    assert values == sorted(values)
    assert all(abs(middle - x) <= x / 80 for x, middle in enumerate(values))


@pytest.mark.parametrize(
    ("buckets", "q", "value"),
    [
        ({}, 50, None),
        ({7: 1}, 50, 7),
        ({7: 1}, 99, 7),
        # Of two the half is the first; of three, the second.
        ({1: 1, 2: 1}, 50, 1),
        ({1: 1, 2: 1, 3: 1}, 50, 2),
        ({1: 95, 2: 5}, 95, 1),
        ({1: 94, 2: 6}, 95, 2),
        ({1: 99, 2: 1}, 99, 1),
        ({2: 1, 1: 100}, 99, 1),
        ({1: 198, 2: 3}, 99, 2),
    ],
)
def test_percentiles(buckets: dict[int, int], q: int, value: int | None) -> None:
    assert percentile(buckets, q) == value


def test_times_of_a_trace() -> None:
    done = expected.traces([end("replied", NOON, 30, 12, attempt=2, size=5, body_size=9, seq=4)])[0]
    assert (done["wait_us"], done["service_us"], done["attempts"], done["seq"]) == (30, 12, 2, 4)
    assert (done["size"], done["reply_size"], done["outcome"], done["date"]) == (
        5,
        9,
        "replied",
        "2025-11-16",
    )
    never = expected.traces([end("expired", NOON, 30, None)])[0]
    assert (never["wait_us"], never["service_us"]) == (30, None)
    unknown = expected.traces([end("failed", NOON, None, None)])[0]
    assert (unknown["wait_us"], unknown["service_us"], unknown["accepted_at"]) == (None, None, None)
    # Clocks that were set back.
    back = expected.traces([end("replied", NOON, -5, -7)])[0]
    assert (back["wait_us"], back["service_us"]) == (0, 0)
    assert set(done) == set(COLUMNS["traces"])


def test_the_date_changes_at_midnight() -> None:
    midnight = NOON + 12 * 3600 * SECOND
    dates = [
        done["date"] for done in expected.traces([end("replied", midnight - 1), end("replied", midnight)])
    ]
    assert dates == ["2025-11-16", "2025-11-17"]


def test_windows() -> None:
    rows = [
        end("replied", NOON, 10, 100, size=3, body_size=4),
        end("replied", NOON + 10 * SECOND - 1, 20, 120, size=3),
        end("failed", NOON + 5, 20, 120),
        end("expired", NOON + 6, 50, None),
        end("cancelled", NOON + 7, None, None),
        end("replied", NOON + 10 * SECOND, 1, 1),
        end("replied", NOON, 1, 1, service=None),
        row("accepted", NOON, service="s"),
    ]
    first, second = expected.service_metrics(rows)
    assert [first[name] for name in ("requests", "replied", "failed", "expired", "cancelled")] == [
        5,
        2,
        1,
        1,
        1,
    ]
    assert (first["rate"], first["error_rate"]) == (0.5, 0.4)
    assert (first["bytes_in"], first["bytes_out"]) == (6, 4)
    assert first["wait_buckets"] == [{"us": 10, "count": 1}, {"us": 20, "count": 2}, {"us": 50, "count": 1}]
    assert first["service_buckets"] == [{"us": 101, "count": 1}, {"us": 121, "count": 2}]
    assert (first["wait_p50_us"], first["wait_p95_us"], first["service_p50_us"]) == (20, 50, 121)
    assert (first["window_start"], second["window_start"]) == (NOON, NOON + 10 * SECOND)
    assert second["requests"] == 1
    assert set(first) == set(COLUMNS["service_metrics"])


def test_lost_workers_count_in_windows() -> None:
    rows = [
        row("worker_down", NOON + 1, service="a,s"),
        row("worker_down", NOON + 2, service="a"),
        row("worker_down", NOON + 3),
        end("replied", NOON + 4),
    ]
    found = {made["service"]: made for made in expected.service_metrics(rows)}
    assert {name: (made["requests"], made["workers_down"]) for name, made in found.items()} == {
        "a": (0, 2),
        "s": (1, 1),
    }
    assert found["a"]["error_rate"] is None
    assert found["a"]["rate"] == 0.0
    assert (found["a"]["wait_buckets"], found["a"]["wait_p50_us"]) == ([], None)


def test_who_calls_whom() -> None:
    rows = [
        end("replied", NOON + 9, 1, 10, client="00a1b2c3d4", client_dialect="mdr", size=1, body_size=2),
        end("failed", NOON + 3, 1, 20, client="00ffffffff", client_dialect="mdr"),
        end("expired", NOON + 5, 1, None, client="00ffffffff", client_dialect="mdr"),
        end("cancelled", NOON + 5, 1, 7, client="00ffffffff", client_dialect="mdr"),
        end("replied", NOON, client="00FFFFFFFF", client_dialect="mdr"),
        end("replied", NOON, client="00fffffffff", client_dialect="mdr"),
        end("replied", NOON, client="shop", client_dialect="ebus"),
        end("replied", NOON, client=None),
        end("replied", NOON, client="shop", service=None),
    ]
    made = {call["client"]: call for call in expected.calls(rows)}
    assert set(made) == {"(unnamed)", "00FFFFFFFF", "00fffffffff", "shop", None}
    unnamed = made["(unnamed)"]
    assert [unnamed[n] for n in ("requests", "errors", "service_us", "bytes_in", "bytes_out")] == [
        4,
        2,
        37,
        1,
        2,
    ]
    assert (unnamed["first_at"], unnamed["last_at"]) == (NOON + 3, NOON + 9)
    assert set(unnamed) == set(COLUMNS["calls"])


def test_workers_sessions() -> None:
    who = {"worker": "w", "worker_link": "mdr", "worker_dialect": "mdr"}
    rows = [
        row("worker_up", NOON, 1, **who, service="b"),
        end("replied", NOON + 50, 1, 20, **who),
        row("heartbeat_missed", NOON + 60, 2, **who),
        row("worker_down", NOON + 100, 3, **who, accepted_at=NOON, reason="silent"),
        row("worker_up", NOON + 200, 4, **who, service="a"),
        end("failed", NOON + 240, 1, 30, **who),
        end("expired", NOON + 250, 1, None, **who),
    ]
    (made,) = expected.workers(rows)
    assert (made["sessions"], made["ended"], made["missed_beats"]) == (2, 1, 1)
    assert (made["requests"], made["errors"], made["busy_us"]) == (3, 1, 50)
    assert (made["first_up_at"], made["last_up_at"], made["last_seen_at"]) == (NOON, NOON + 200, NOON + 250)
    assert (made["closed_us"], made["up_us"], made["busy"]) == (100, 150, 50 / 150)
    assert (made["last_down_at"], made["last_down_reason"], made["service"]) == (NOON + 100, "silent", "b")
    assert set(made) == set(COLUMNS["workers"])


def test_workers_are_told_apart_and_may_be_half_known() -> None:
    rows = [
        row("worker_up", NOON, worker="w", worker_link=None),
        row("worker_up", NOON, worker="w", worker_link="x"),
        row("worker_up", NOON, worker="w", worker_link="x", life="m"),
        row("worker_up", NOON, worker=None),
        end("replied", NOON + 5, 1, 2, worker="seen"),
        row("worker_down", NOON + 7, 9, worker="gone", accepted_at=NOON + 3, reason="a"),
        row("worker_down", NOON + 7, 8, worker="gone", accepted_at=None, reason="b"),
    ]
    made = {(w["life"], w["worker_link"], w["worker"]): w for w in expected.workers(rows)}
    assert set(made) == {
        ("l", "", "w"),
        ("l", "x", "w"),
        ("m", "x", "w"),
        ("l", "", "seen"),
        ("l", "", "gone"),
    }
    seen, gone = made["l", "", "seen"], made["l", "", "gone"]
    assert (seen["sessions"], seen["up_us"], seen["busy"], seen["first_up_at"]) == (0, 0, None, None)
    assert (gone["ended"], gone["up_us"], gone["last_down_reason"]) == (2, 4, "a")


def test_the_last_value_has_the_greatest_time_then_number() -> None:
    rows = [
        row("published", NOON + 1, 1, service="t", body=[b"old"], body_size=3),
        row("published", NOON + 2, 7, service="t", body=[b"new"], body_size=3),
        row("published", NOON + 2, 6, service="t", body=None, body_size=9),
        row("published", NOON + 1, 8, service="t", body=[b"later, but of before"], life="m"),
        row("published", NOON, 2, service="u", body_size=5),
    ]
    made = {value["topic"]: value for value in expected.last_values(rows)}
    assert (made["t"]["seq"], made["t"]["body"], made["t"]["size"], made["t"]["life"]) == (
        7,
        [b"new"],
        3,
        "l",
    )
    assert (made["u"]["body"], made["u"]["size"]) == (None, 5)
    assert set(made["t"]) == set(COLUMNS["last_values"])


def test_topics_by_the_minute() -> None:
    minute = 60 * SECOND
    rows = [
        row("published", NOON, 1, service="t", body_size=1),
        row("published", NOON + minute - 1, 2, service="t", body_size=2),
        row("published", NOON + minute, 3, service="t", body_size=4),
    ]
    made = [(t["window_start"] - NOON, t["messages"], t["bytes"]) for t in expected.topics(rows)]
    assert made == [(0, 2, 3), (minute, 1, 4)]


def test_logs_and_dead_letters() -> None:
    log = expected.logs([row("log", NOON, service="log/warn/shop/till", reason="warn", detail="low")])[0]
    assert (log["level"], log["node"], log["topic"], log["message"]) == (
        *("warn", "shop/till"),
        *("log/warn/shop/till", "low"),
    )
    assert set(log) == set(COLUMNS["logs"])
    dead = expected.dead_letters([row("dead", NOON, service="s", attempt=3, body=[b"x", b""], size=1)])[0]
    assert (dead["attempts"], dead["body"], dead["size"]) == (3, [b"x", b""], 1)
    assert set(dead) == set(COLUMNS["dead_letters"])


def rules(rows: list[Row]) -> dict[tuple[str, str], tuple[int, float, float]]:
    return {
        (alert["rule"], alert["subject"]): (
            alert["window_start"] - NOON,
            alert["value"],
            alert["threshold"],
        )
        for alert in all_tables(rows)["alerts"]
    }


def test_alerts_on_errors_need_ten_requests() -> None:
    nine = [end("failed", NOON, service="few") for _ in range(9)]
    ten = [end("failed" if n == 0 else "replied", NOON, service="many") for n in range(10)]
    eleven = [end("failed" if n == 0 else "replied", NOON, service="fine") for n in range(11)]
    assert rules(nine + ten + eleven) == {("error_rate", "many"): (0, 0.1, 0.1)}


def test_alerts_on_slow_services() -> None:
    slow = [end("replied", NOON, 0, 990_000 if n < 9 else 2_000_000, service="slow") for n in range(10)]
    fine = [end("replied", NOON, 2_000_000, 999_999, service="fine") for _ in range(10)]
    assert rules(slow + fine) == {("slow", "slow"): (0, 2_025_000.0, 1_000_000.0)}


def test_alerts_on_silent_services() -> None:
    rows = [
        end("expired", NOON, 1, None, service="silent"),
        end("cancelled", NOON, 1, None, service="silent"),
        end("expired", NOON, 1, None, service="talks"),
        end("replied", NOON, service="talks"),
        end("cancelled", NOON, 1, None, service="unwanted"),
    ]
    assert rules(rows) == {("silent", "silent"): (0, 1.0, 1.0)}


def test_alerts_on_flapping_workers() -> None:
    def downs(service: str, *seconds: int) -> list[Row]:
        return [row("worker_down", NOON + second * SECOND, service=service) for second in seconds]

    rows = [*downs("flaps", 60, 85, 119), *downs("twice", 60, 119), *downs("apart", 59, 60, 61)]
    assert rules(rows) == {("flapping", "flaps"): (60 * SECOND, 3.0, 3.0)}


# -- the comparison ---------------------------------------------------------------------------

TOPICS = pa.schema(
    [
        ("broker", pa.string()),
        ("topic", pa.string()),
        ("window_start", pa.timestamp("us", "UTC")),
        ("messages", pa.int64()),
        ("bytes", pa.int64()),
        ("date", pa.string()),
    ]
)


def topic(name: str | None, messages: int = 1) -> Row:
    return {
        "broker": "b",
        "topic": name,
        "window_start": NOON,
        "messages": messages,
        "bytes": 0,
        "date": "2025-11-16",
    }


def differ(want: list[Row], got: list[Row], schema: pa.Schema = TOPICS) -> list[str]:
    found = Difference("topics", want, pa.Table.from_pylist(got, schema=schema))
    assert found.count == len(found.lines)
    return [line.split(": ")[1] for line in found.lines]


def test_equal_tables_are_equal_in_any_order() -> None:
    assert differ([topic("t"), topic(None)], [topic(None), topic("t")]) == []


def test_differences_are_found() -> None:
    want = [topic("same"), topic("other", 2), topic("gone")]
    got = [topic("same"), topic("same"), topic("other", 3), topic("new")]
    assert differ(want, got) == ["twice", "different", "too much", "missing"]


def test_other_columns_are_found() -> None:
    other = TOPICS.set(3, pa.field("messages", pa.int32())).append(pa.field("more", pa.string()))
    assert differ([topic("t")], [topic("t") | {"more": ""}], other) == ["column", "column"]
