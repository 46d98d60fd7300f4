"""The report: what it tells of small tables, that nothing of a name is obeyed, and that it asks nobody."""

from __future__ import annotations

import re
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from polybus.cli.main import run
from polybus.spark.report import make_report
from polybus.spark.report.facts import gather, quantile
from polybus.spark.report.numbers import Clock, column_width_s, count, decades, micros, share, size, ticks
from polybus.spark.report.numbers import time_ticks as ticks_of_time
from polybus.spark.report.sections import FLAPPING
from polybus.spark.schema import TABLES

BEGIN = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
EVIL = "<script>alert(1)</script>\u202e&\"'\n"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def put(tables: Path, name: str, *rows: dict[str, Any]) -> None:
    """Rows of a table; columns that are not named are null."""
    schema = TABLES[name].schema
    full = [{column: row.get(column) for column in schema.names} for row in rows]
    write_deltalake(str(tables / name), pa.Table.from_pylist(full, schema))


def metrics(service: str, second: float, wait: dict[int, int], served: dict[int, int], **more: Any) -> Any:
    """A window of `service_metrics`."""
    requests = sum(wait.values())
    counts = {"replied": requests, "failed": 0, "expired": 0, "cancelled": 0, "workers_down": 0, **more}
    return {
        "broker": "north",
        "service": service,
        "window_start": at(second),
        "requests": requests,
        **counts,
        "bytes_in": 100,
        "bytes_out": 200,
        "wait_buckets": [{"us": us, "count": n} for us, n in sorted(wait.items())],
        "service_buckets": [{"us": us, "count": n} for us, n in sorted(served.items())],
        "date": "2026-05-01",
    }


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    place = tmp_path / "tables"
    put(
        place,
        "service_metrics",
        metrics("quick", 0, {10: 50, 20: 50}, {1000: 100}),
        metrics("quick", 10, {10: 100}, {1000: 99, 5000: 1}),
        metrics("slow", 10, {10: 10}, {2_000_000: 6, 3_000_000: 4}, replied=6, failed=3, expired=1),
        metrics(EVIL, 100, {10: 1}, {}),
    )
    put(
        place,
        "traces",
        *(
            {"service": "slow", "outcome": "failed", "reason": "boom", "finished_at": at(12)}
            for _ in range(3)
        ),
        {"service": "slow", "outcome": "expired", "reason": "expired", "finished_at": at(13)},
        {"service": "quick", "outcome": "replied", "reason": None, "finished_at": at(1)},
    )
    put(
        place,
        "calls",
        {
            "broker": "north",
            "date": "2026-05-01",
            "client": EVIL,
            "service": "slow",
            "requests": 10,
            "errors": 4,
        },
        {
            "broker": "north",
            "date": "2026-05-01",
            "client": "web",
            "service": "quick",
            "requests": 200,
            "errors": 0,
        },
    )
    worker = {"broker": "north", "life": "1", "worker_link": "x", "missed_beats": 2, "last_seen_at": at(90)}
    put(
        place,
        "workers",
        {**worker, "worker": "w1", "service": "slow", "sessions": 5, "ended": 4, "requests": 10, "errors": 3}
        | {"busy": 0.75, "up_us": 90_000_000, "busy_us": 67_500_000, "last_down_reason": "lost"},
        {**worker, "worker": EVIL, "service": None, "sessions": 0, "ended": 0, "requests": 1, "errors": 0},
    )
    put(
        place,
        "topics",
        {"broker": "north", "topic": "price", "window_start": at(0), "messages": 30, "bytes": 3000},
        {"broker": "north", "topic": EVIL, "window_start": at(60), "messages": 3, "bytes": 3},
    )
    put(
        place,
        "logs",
        {"at": at(5), "level": "error", "node": EVIL, "date": "2026-05-01"},
        {"at": at(6), "level": "info", "node": "till", "date": "2026-05-01"},
        {"at": at(7), "level": "odd", "node": "till", "date": "2026-05-01"},
    )
    letter = {"token": "a-1", "service": "slow", "reason": "boom", "detail": EVIL, "attempts": 3}
    put(place, "dead_letters", {**letter, "at": at(14), "date": "2026-05-01"})
    alert = {"broker": "north", "window_start": at(10), "date": "2026-05-01"}
    put(
        place,
        "alerts",
        {**alert, "rule": "error_rate", "subject": "slow", "value": 0.4, "threshold": 0.1},
        {**alert, "rule": "slow", "subject": "slow", "value": 3e6, "threshold": 1e6},
        {**alert, "rule": "new_rule", "subject": EVIL, "value": 2.0, "threshold": 1.0},
    )
    return place


# -- facts ------------------------------------------------------------------------------------


def test_percentiles_are_those_of_all_requests(tables: Path) -> None:
    facts = gather(str(tables))
    assert facts.requests == 211
    assert facts.errors == 4
    assert facts.overall["wait"] == {50: 10, 95: 20, 99: 20}
    # 210 requests were served: 199 in 1 ms, one in 5 ms, 6 in 2 s, 4 in 3 s.
    assert facts.overall["service"] == {50: 1000, 95: 5000, 99: 3_000_000}
    first, second = (facts.percentiles["service"][99][column] for column in (0, 1))
    assert (first, second) == (1000, 3_000_000)
    assert facts.percentiles["service"][50][5] is None


def test_services_are_ranked_by_how_slow_they_are(tables: Path) -> None:
    facts = gather(str(tables))
    assert [one.name for one in facts.services] == ["slow", "quick", EVIL]
    slow = facts.services[0]
    assert (slow.requests, slow.errors) == (10, 4)
    assert slow.percentiles["service"] == {50: 2_000_000, 95: 3_000_000, 99: 3_000_000}
    assert slow.trend[:2] == [None, 3_000_000]


def test_failures_are_counted_by_reason(tables: Path) -> None:
    facts = gather(str(tables))
    assert facts.failures == [("slow", "failed", "boom", 3), ("slow", "expired", "expired", 1)]
    assert facts.dead == [("slow", "boom", 1)]


def test_since_and_until_cut_everything(tables: Path) -> None:
    late = gather(str(tables), since=at(20))
    assert (late.requests, late.failures, late.dead, late.alerts) == (1, [], [], [])
    assert late.clock.begin == at(20)
    early = gather(str(tables), until=at(10))
    assert (early.requests, early.alerts) == (100, [])
    assert sum(sum(values) for values in early.logs.values()) == 3


@pytest.mark.parametrize(
    ("histogram", "percent", "value"),
    [({}, 50, None), ({7: 1}, 50, 7), ({1: 1, 2: 1}, 50, 1), ({1: 1, 2: 1}, 51, 2), ({1: 99, 9: 1}, 99, 1)],
)
def test_quantile(histogram: dict[int, int], percent: int, value: int | None) -> None:
    assert quantile(histogram, percent) == value


# -- numbers ----------------------------------------------------------------------------------


def test_numbers_have_units() -> None:
    assert [micros(value) for value in (None, 0, 950, 1500, 2_500_000, 180_000_000, 3.6e10)] == [
        "–",
        "0 µs",
        "950 µs",
        "1.5 ms",
        "2.5 s",
        "3 min",
        "10 h",
    ]
    assert [count(value) for value in (0, 1234, 12_345, 4_500_000)] == ["0", "1,234", "12.3 k", "4.5 M"]
    assert [share(value) for value in (None, 0.0, 0.0001, 0.123, 0.9999, 1.0)] == [
        "–",
        "0 %",
        "< 0.1 %",
        "12.3 %",
        "> 99.9 %",
        "100 %",
    ]
    assert [size(value) for value in (5, 2048, 3 << 20)] == ["5 B", "2 KiB", "3 MiB"]


@pytest.mark.parametrize("most", [0.003, 0.9, 1, 3, 4.2, 77, 1e6])
def test_ticks_begin_at_zero_and_cover_everything(most: float) -> None:
    found = ticks(most)
    assert found[0] == 0
    assert found[-1] >= most
    assert 3 <= len(found) <= 6


def test_decades_surround_their_values() -> None:
    assert decades(150, 90_000) == [100, 1000, 10_000, 100_000]
    assert decades(1000, 1000) == [1000, 10_000]


@pytest.mark.parametrize("length_s", [1, 59, 600, 7200, 86_400, 30 * 86_400, 2000 * 86_400])
def test_any_length_of_time_has_columns_and_ticks(length_s: int) -> None:
    clock = Clock(BEGIN, BEGIN + timedelta(seconds=length_s))
    assert clock.begin <= BEGIN < clock.end
    assert clock.columns <= 400
    assert clock.width_s == column_width_s(max(length_s, 10))
    assert len(ticks_of_time(clock.begin, clock.end)) <= 9
    assert clock.span_of(clock.columns - 1)


# -- the page ---------------------------------------------------------------------------------


class Strict(HTMLParser):
    """Elements that were opened are closed, in order."""

    VOID = ("meta", "link", "line", "path", "rect")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action")]
        assert not any(name.startswith("on") for name, _ in attrs), attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def read(page: str) -> Strict:
    parser = Strict()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


def test_the_page_is_whole_and_asks_nobody(tables: Path) -> None:
    page = make_report(str(tables))
    parser = read(page)
    # The tooltips' own, and none of a name's.
    assert parser.scripts == 1
    assert parser.addresses == ["data:,"]
    assert "alert(1)</script>" not in page
    assert "\u202e" not in page
    assert "default-src 'none'" in page
    assert not re.search(r"https?://|url\(|@import", page)


def test_the_page_tells_it_all(tables: Path) -> None:
    page = make_report(str(tables))
    for words in (
        *("What needs attention", "How much", "How fast", "What is slow", "What fails, and why"),
        *("Who calls whom", "Workers", "Topics", "Logs"),
        *("too many errors", "too slow", "new_rule", "boom", "price", "warnings and errors", "web", "w1"),
        *("prefers-color-scheme: dark", "broker north", "2026-05-01 12:00:00 to 12:02:00 UTC"),
    ):
        assert words.lower() in page.lower(), words


def test_why_workers_left(tmp_path: Path) -> None:
    """A worker that has left for no known reason is not one that is still there."""
    worker = {"broker": "north", "life": "1", "worker_link": "x", "last_seen_at": at(90)}
    worker |= {"requests": 0, "errors": 0, "missed_beats": 0}
    put(
        tmp_path,
        "workers",
        {**worker, "worker": "there", "sessions": 1, "ended": 0},
        {**worker, "worker": "gone", "sessions": 1, "ended": 1},
        {**worker, "worker": "back", "sessions": 2, "ended": 1},
        # Its beginning was never seen.
        {**worker, "worker": "half", "sessions": 1, "ended": 2},
        {**worker, "worker": "lost", "sessions": 1, "ended": 1, "last_down_reason": "silent"},
        {**worker, "worker": "again", "sessions": 2, "ended": 1, "last_down_reason": "silent"},
    )
    page = make_report(str(tmp_path))
    found = {}
    for row in re.findall(r"<tr>.*?</tr>", page, re.DOTALL):
        cells = [re.sub(r"<[^>]*>", "", cell).strip() for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)]
        if len(cells) > 2:
            found[cells[1]] = cells[-1]
    assert found == {
        "there": "–",
        "gone": "left",
        "back": "–",
        "half": "left",
        "lost": "silent",
        "again": "silent",
    }


def test_workers_that_are_there_did_not_leave(tmp_path: Path) -> None:
    """How often workers left counts their ends, and not how many there are."""
    facts = {"broker": "north", "life": "1", "worker_link": "x", "last_seen_at": at(90)}
    facts |= {"requests": 0, "errors": 0, "missed_beats": 0, "sessions": 1}
    there = [{**facts, "service": "calm", "worker": f"c{n}", "ended": 0} for n in range(FLAPPING)]
    gone = [{**facts, "service": "busy", "worker": f"b{n}", "ended": 1} for n in range(FLAPPING)]
    few = [{**facts, "service": "rare", "worker": f"r{n}", "ended": 1} for n in range(FLAPPING - 1)]
    put(tmp_path, "workers", *there, *gone, *few)
    page = make_report(str(tmp_path))
    assert re.findall(r"Workers left [^.]*\.", page) == [f"Workers left busy ({FLAPPING} times)."]


def test_empty_tables_say_so(tmp_path: Path) -> None:
    page = make_report(str(tmp_path))
    read(page)
    for words in (
        *("nothing happened", "no rule was broken", "No requests ended", "Nothing was published"),
        *("Nobody called", "No worker was seen", "No node wrote", "nothing was given up"),
    ):
        assert words in page, words


def test_the_command(tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "new" / "page.html"
    assert run(["pipeline", "report", "--tables", str(tables), "--out", str(page)]) == 0
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert str(page) in capsys.readouterr().err
    assert run(["pipeline", "report", "--tables", str(tables), "--out", "-"]) == 0
    assert capsys.readouterr().out.startswith("<!DOCTYPE html>")
    assert run(["pipeline", "report", "--tables", str(tmp_path / "elsewhere")]) == 1
    assert "'polybus pipeline build' makes them" in capsys.readouterr().err
    assert run(["pipeline", "report", "--since", "1h", "--until", "2h"]) == 2
    assert "nothing is between" in capsys.readouterr().err
    assert run(["pipeline", "report", "--since", "soon"]) == 2


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("width", [1200, 400])
def test_a_browser_shows_it(tables: Path, tmp_path: Path, width: int) -> None:
    """No errors on its console, no request to anybody, and nothing wider than the window."""
    page = tmp_path / "report.html"
    facts = (
        "[document.documentElement.scrollWidth, innerWidth, performance.getEntriesByType('resource').length]"
    )
    check = f"<script>onload = () => {{ document.title = {facts} }}</script>"
    page.write_text(make_report(str(tables)).replace("</body>", f"{check}</body>"), encoding="utf-8")
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            # What a browser wants to know for itself it is not told.
            *("--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path / 'profile'}"),
            *(f"--window-size={width},900", "--enable-logging=stderr", "--dump-dom", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    title = re.search(r"<title>(\d+),(\d+),(\d+)</title>", done.stdout)
    assert title is not None, done.stdout[:500]
    whole, window, requests = map(int, title.groups())
    # The icon is the page's own data, and may be counted.
    assert requests <= 1
    assert whole <= window <= max(width, 500)
