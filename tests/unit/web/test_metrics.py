"""`/metrics`, checked as promtool would, over answers as the broker gives them."""

from __future__ import annotations

from typing import Any

import pytest

from polybus.web.ledger import MOST, Ledger
from polybus.web.metrics import render
from support.prometheus import families, problems, series

STATUS: dict[str, Any] = {
    "state": "serving",
    "broker": "polybus",
    "pump": "compiled",
    "up_s": 5.0,
    "store": "well",
    "journal": "no room on the disk",
    "services": 2,
    "clients": 1,
    "requests": 3,
    "held_bytes": 10,
    "replied": 7,
    "failed": 1,
    "expired": 2,
    "cancelled": 0,
    "rejected": 5,
    "refusals": {"queue_full": 3},
    "published": 11,
    "publications_dropped": 4,
    "journal_written": 100,
    "journal_lost": 1,
    "internal_errors": 0,
}


def row(
    service: str, accepted: int = 0, times: dict[str, int] | None = None, **values: Any
) -> dict[str, Any]:
    usual = {"answered": accepted, "failed": 0, "queued": 0, "running": 0, "waiting": 0, "workers": 1}
    return {
        "service": service,
        "accepted": accepted,
        "oldest_s": None,
        "times": times or {},
        **usual,
        **values,
    }


def top(*rows: dict[str, Any], rest: dict[str, Any] | None = None, up_s: float = 5.0) -> dict[str, Any]:
    return {
        "clock": 1000.0 + up_s,
        "totals": {"up_s": up_s},
        "services": list(rows),
        "rest": rest or {"services": 0},
        "workers_late": 0,
        "workers_by_dialect": {"mdr": 2, "emqp": 1},
        "nodes_late": 0,
    }


class FakeLive:
    """What `render` asks of `Live`."""

    viewers = 0

    def __init__(self, *tops: dict[str, Any] | None, status: dict[str, Any] | None = STATUS) -> None:
        self._tops = list(tops)
        self._status = status

    def top(self) -> dict[str, Any] | None:
        return self._tops[0]

    def status(self) -> dict[str, Any] | None:
        return self._status

    def scrape(self, **more: Any) -> str:
        text, kind = render(self, **more)  # type: ignore[arg-type]
        assert kind.startswith("text/plain; version=")
        assert not problems(text.decode())
        return text.decode()

    def next(self) -> str:
        del self._tops[0]
        return self.scrape()


def value(text: str, name: str, **labels: str) -> float | None:
    return series(text).get((name, frozenset(labels.items())))


def test_what_there_is() -> None:
    text = FakeLive(top(row("hello", 7, {"39": 5, "40": 2}, queued=4, oldest_s=1.5))).scrape()

    assert value(text, "polybus_up") == 1
    assert value(text, "polybus_requests_accepted_total", service="hello") == 7
    assert value(text, "polybus_queue_depth", service="hello") == 4
    assert value(text, "polybus_queue_oldest_seconds", service="hello") == 1.5
    assert value(text, "polybus_workers", dialect="mdr") == 2
    assert value(text, "polybus_requests_ended_total", outcome="expired") == 2
    assert value(text, "polybus_requests_refused_total", reason="queue_full") == 3
    assert value(text, "polybus_requests_refused_total", reason="other") == 2
    assert value(text, "polybus_publications_missed_total") == 4
    assert (value(text, "polybus_store_up"), value(text, "polybus_journal_up")) == (1, 0)
    info = families(text)["polybus_build_info"].samples[0]
    assert info.labels.keys() == {"version", "broker", "pump"}
    # The broker names no service "other", so there is none.
    assert value(text, "polybus_requests_accepted_total", service="other") is None


def test_times_are_a_histogram_of_the_brokers_own_classes() -> None:
    # Class 39 ends at 2**10 µs, class 40 begins there.
    text = FakeLive(top(row("hello", 7, {"39": 5, "40": 2}))).scrape()

    def bucket(le: str) -> float | None:
        return value(text, "polybus_request_duration_seconds_bucket", service="hello", le=le)

    assert (bucket("0.000512"), bucket("0.001024"), bucket("0.002048"), bucket("+Inf")) == (0, 5, 7, 7)
    assert value(text, "polybus_request_duration_seconds_count", service="hello") == 7
    total_s = value(text, "polybus_request_duration_seconds_sum", service="hello")
    assert total_s == pytest.approx(5 * 0.94e-3 + 2 * 1.12e-3, rel=0.02)


def test_a_broker_that_is_away_is_a_metric() -> None:
    text = FakeLive(None, status=None).scrape()

    assert value(text, "polybus_up") == 0
    assert "polybus_requests" not in text


def test_labels_are_bounded_with_five_thousand_services() -> None:
    services = [row(f"service-{number}", 10, {"30": 10}, queued=1) for number in range(5000)]
    rest = {"services": 4800, "accepted": 48_000, "answered": 48_000, "failed": 0, "queued": 4800}
    text = FakeLive(top(*services[:200], rest={**rest, "times": {"30": 48_000}})).scrape()

    labels = {dict(labels)["service"] for _, labels in series(text) if "service" in dict(labels)}
    assert len(labels) == MOST + 1
    assert value(text, "polybus_services_in_other") == 5000 - MOST
    assert value(text, "polybus_requests_accepted_total", service="other") == 10 * (5000 - MOST)
    assert value(text, "polybus_queue_depth", service="other") == 5000 - MOST
    assert value(text, "polybus_request_duration_seconds_count", service="other") == 10 * (5000 - MOST)
    assert len(text.splitlines()) < 3000


def test_sums_never_fall_when_the_order_of_services_changes() -> None:
    """With room for one label: the service that has it keeps it, whoever is listed first."""
    ledger = Ledger(most=1)

    def look(*rows: dict[str, Any], rest: int = 0, up_s: float = 5.0) -> dict[str, float]:
        ledger.look(top(*rows, rest={"services": int(rest > 0), "accepted": rest}, up_s=up_s))
        return dict(ledger.counted("accepted"))

    assert look(row("a", 100), rest=40) == {"a": 100, "other": 40}
    # It is not listed this time: what it and the other did is told, under "other".
    assert look(row("b", 50), rest=105) == {"a": 100, "other": 55}
    # Nor is anything counted twice when it is listed again.
    assert look(row("a", 107), rest=60) == {"a": 100, "other": 67}
    assert look(row("a", 110), rest=60) == {"a": 103, "other": 67}
    # A service was forgotten.
    assert look(row("a", 110)) == {"a": 103, "other": 67}
    # The broker begins anew.
    assert look(row("a", 3), up_s=0.5) == {"a": 106, "other": 67}


def test_forgotten_services_make_room_for_others() -> None:
    ledger = Ledger(most=2)
    ledger.look(top(row("a", 1), row("b", 1)))
    ledger.look(top(row("b", 2), row("c", 5)))

    assert dict(ledger.counted("accepted")) == {"b": 2, "c": 5}


def test_times_that_the_broker_counts_anew_go_on_here() -> None:
    live = FakeLive(top(row("a", 1, {"30": 9})), top(row("a", 2, {"30": 2})), top(row("a", 3, {"30": 3})))
    name = "polybus_request_duration_seconds_count"

    assert value(live.scrape(), name, service="a") == 9
    assert value(live.next(), name, service="a") == 11
    assert value(live.next(), name, service="a") == 12


def test_a_service_called_other_is_itself() -> None:
    text = FakeLive(top(row("other", 3))).scrape()

    assert value(text, "polybus_requests_accepted_total", service="other (service)") == 3


def test_odd_names_are_escaped() -> None:
    name = 'a "quoted" \\ name\u00fc'
    text = FakeLive(top(row(name, 3))).scrape()

    assert value(text, "polybus_requests_accepted_total", service=name) == 3


def test_the_pipeline_if_there_is_one() -> None:
    tables = [{"table": "calls", "rows": 12}]
    pipeline = {"lag_s": 1.5, "lag_segments": 2, "committed_at": 1.7e9, "tables": tables}
    text = FakeLive(top()).scrape(pipeline=pipeline)

    assert value(text, "polybus_pipeline_lag_seconds") == 1.5
    assert value(text, "polybus_pipeline_table_rows", table="calls") == 12
    assert "polybus_pipeline" not in FakeLive(top()).scrape(pipeline={"tables": [], "lag_s": None})


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("polybus_a 1\n", "is not described"),
        ("# HELP polybus_a A thing.\n# TYPE polybus_a gauge\npolybus_a 1\npolybus_a 2\n", "is there twice"),
        ("# HELP polybus_a A thing.\n# TYPE polybus_a counter\npolybus_a 1\n", "does not end in _total"),
        ("# HELP polybus_a_ms A thing.\n# TYPE polybus_a_ms gauge\npolybus_a_ms 1\n", "base units"),
        ("# HELP polybus_a\n# TYPE polybus_a gauge\npolybus_a 1\n", "its help is no sentence"),
        ("# TYPE polybus_a gauge\npolybus_a 1\n", "not one HELP and one TYPE"),
        (
            '# HELP polybus_a A thing.\n# TYPE polybus_a histogram\npolybus_a_bucket{le="1"} 2\n'
            'polybus_a_bucket{le="+Inf"} 1\npolybus_a_count 1\npolybus_a_sum 1\n',
            "its counts fall",
        ),
        (
            '# HELP polybus_a A thing.\n# TYPE polybus_a histogram\npolybus_a_bucket{le="1"} 2\n'
            "polybus_a_count 2\npolybus_a_sum 1\n",
            "no last bucket +Inf",
        ),
    ],
)
def test_the_lint_finds_what_is_wrong(broken: str, said: str) -> None:
    assert any(said in problem for problem in problems(broken)), problems(broken)
