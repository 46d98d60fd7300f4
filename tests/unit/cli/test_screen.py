"""What `polybus top` shows: rates and times of two looks, in terminals of any size."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from polybus.cli.screen import (
    NODE_COLUMNS,
    SERVICE_COLUMNS,
    WORKER_COLUMNS,
    compare,
    draw,
    fitting,
    number,
    room,
)
from polybus.cli.top import SORTS, Live
from polybus.core.latency import place_of
from polybus.errors import ConnectionLost


def look(
    clock: float = 0.0, answered: int = 0, times: dict[str, int] | None = None, **more: Any
) -> dict[str, Any]:
    service = {
        "service": "hello\x1b[2J",
        "state": "alive",
        "workers": 1,
        "load": 0.5,
        "queued": 3,
        "oldest_s": 1.5,
        "running": 1,
        "waiting": 0,
        "accepted": answered + 4,
        "answered": answered,
        "failed": 0,
        "rate_per_s": 0.0,
        "times": times or {},
    }
    worker = {
        "worker": "w1",
        "dialect": "mdr",
        "state": "serving",
        "late": True,
        "load": None,
        "in_flight": 1,
        "done": answered,
        "up_s": 7200.0,
        "silent_s": 0.1,
        "missed_beats": 2,
    }
    node = {
        "node": "probe",
        "state": "late",
        "address": "127.0.0.1:7777",
        "load": 0.0,
        "up_s": 3.0,
        "silent_s": 9.0,
        "missed_beats": 4,
    }
    totals = {
        "broker": "b1",
        "up_s": 100.0,
        "state": "serving",
        "store": "well",
        "services": 1,
        "workers": 1,
        "nodes": 1,
        "clients": 2,
        "subscribers": 0,
        "logs": 5,
        "requests": 4,
        "accepted": answered + 4,
        "replied": answered,
        "failed": 0,
        "published": 0,
    }
    return {
        "at": 0.0,
        "clock": clock,
        "totals": totals,
        "services": [service],
        "workers": [worker],
        "workers_late": 1,
        "nodes": [node],
        "nodes_late": 1,
        **more,
    }


def test_rates_and_times_are_differences() -> None:
    fast, slow = str(place_of(0.001)), str(place_of(0.5))
    before = look(10.0, 100, {fast: 100})
    now = compare(before, look(12.0, 120, {fast: 101, slow: 19}))
    (service,) = now["services"]
    assert service["done_per_s"] == 10.0
    assert 0.4 < service["p50_s"] < 0.6
    assert now["totals"]["replied_per_s"] == 10.0
    assert now["totals"]["p95_s"] == service["p95_s"]
    assert now["workers"][0]["done_per_s"] == 10.0
    assert "times" not in service
    assert now["span_s"] == 2.0


def test_the_first_look_has_no_rates() -> None:
    now = compare(None, look(10.0, 100, {"40": 3}))
    assert now["services"][0]["done_per_s"] is None
    assert now["services"][0]["p50_s"] is not None
    # Another broker, which counts from the beginning; and a count that began anew.
    assert compare(look(10.0, 100), look(11.0, 5))["totals"]["replied_per_s"] is None
    assert compare(look(10.0, 1, {"40": 9}), look(11.0, 2, {"40": 1}))["services"][0]["p50_s"] is not None


def written(width: int, height: int, **more: Any) -> list[str]:
    console = Console(width=width, height=height, record=True, file=None, force_terminal=False)
    with console.capture() as captured:
        console.print(draw(compare(look(), look(1.0, 8, {"40": 8}, **more)), "rate", width, height))
    return captured.get().rstrip("\n").split("\n")


@pytest.mark.parametrize("width", [20, 30, 45, 80, 120, 200])
@pytest.mark.parametrize("height", [5, 24, 60])
def test_it_fits(width: int, height: int) -> None:
    lines = written(width, height)
    assert all(len(line) <= width for line in lines)
    text = "\n".join(lines)
    assert "\x1b[2J" not in text
    assert "hello" in text
    assert "w1" in text
    assert "probe" in text


def test_a_wide_screen_has_everything() -> None:
    text = "\n".join(written(160, 40))
    for words in (
        "b1 serving",
        "by rate",
        "replies 8/s",
        "done/s",
        "p95",
        "50%",
        "late",
        "127.0.0.1:7777",
        "2 h",
    ):
        assert words in text, words


def test_many_rows_are_cut_and_counted() -> None:
    rows = [{**look()["services"][0], "service": f"s{number}"} for number in range(50)]
    more = look()["totals"] | {"services": 50}
    lines = written(100, 30, services=rows, totals=more)
    assert len(lines) <= 30
    assert any("service (+" in line for line in lines)


def test_nothing_yet() -> None:
    empty = look(services=[], workers=[], nodes=[])
    console = Console(width=80)
    with console.capture() as captured:
        console.print(draw(compare(None, empty), "rate", 80, 24, trouble="no broker\nanswered"))
    assert "Nobody offers" in captured.get()
    assert "no broker\\nanswered" in captured.get()


@pytest.mark.parametrize(
    "counts", [(0, 0, 0), (1, 1, 1), (500, 0, 0), (500, 500, 500), (0, 9, 9), (3, 0, 200)]
)
@pytest.mark.parametrize("height", [1, 10, 24, 50])
def test_rows_share_the_room(counts: tuple[int, int, int], height: int) -> None:
    shown = room(counts, height)
    for most, count in zip(shown, counts, strict=True):
        assert most <= count
        assert bool(most) == bool(count)


def test_columns_leave_by_importance() -> None:
    for columns in (SERVICE_COLUMNS, WORKER_COLUMNS, NODE_COLUMNS):
        widths = [len(fitting(columns, width)) for width in range(10, 200)]
        assert widths == sorted(widths)
        assert widths[-1] == len(columns)
    assert [column.heading for column in fitting(SERVICE_COLUMNS, 34)] == [">queued", ">done/s"]


def test_numbers_are_short() -> None:
    values = (None, 0, 0.5, 9.96, 12.3, 9999, 12_345, 12_345_678)
    assert [number(value) for value in values] == ["–", "0", "0.5", "10.0", "12", "9999", "12k", "12M"]


class FakeAdmin:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_away = False

    def ask(self, do: str, sort: str, limit: int) -> dict[str, Any]:
        if self.is_away:
            raise ConnectionLost("no broker answered")
        self.asked.append(sort)
        return look(float(len(self.asked)), len(self.asked))


def test_keys() -> None:
    live = Live(FakeAdmin(), "rate")
    for key, sort in SORTS.items():
        assert live.press(key)
        assert live.sort == sort
    live.sort = "name"
    assert live.press("s")
    assert live.sort == "rate"
    assert live.press("?")
    assert live.sort == "rate"
    assert not live.press("q")
    assert not live.press("\x03")


def test_a_broker_that_goes_and_comes() -> None:
    admin = FakeAdmin()
    live = Live(admin, "rate")
    console = Console(width=100, height=30)

    def shown() -> str:
        with console.capture() as captured:
            console.print(live.draw(100, 30))
        return captured.get()

    admin.is_away = True
    live.ask()
    assert "no broker answered; still trying" in shown()
    admin.is_away = False
    live.ask()
    assert "b1 serving" in shown()
    admin.is_away = True
    live.ask()
    assert "still trying" in shown()
    assert "hello" in shown()
