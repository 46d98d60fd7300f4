"""What the bus looks like from outside, as far as it is not plain copying."""

from __future__ import annotations

import pytest

from polybus.core.model import Heartbeat, QueuePolicy, Service
from polybus.core.views import (
    RATE_SPAN_S,
    Rates,
    request_view,
    requests,
    service_view,
    services,
    totals,
    worker_view,
    workers,
)
from support.stage import Stage


def test_a_rate_is_counted_over_the_last_seconds() -> None:
    rates = Rates()
    service = Service(b"mail")
    services = {b"mail": service}
    rates.sample(services, 100.0)
    assert rates.of(service, 100.0) == 0.0
    service.answered = 30
    service.failed = 20
    assert rates.of(service, 110.0) == 5.0
    rates.sample(services, 110.0)
    assert rates.of(service, 120.0) == 2.5
    rates.sample(services, 110.0 + RATE_SPAN_S)
    # What was done before the older of the two counts is not counted any more.
    assert rates.of(service, 120.0) == 0.0


def test_a_count_is_not_taken_too_often() -> None:
    rates = Rates()
    service = Service(b"mail")
    for step in range(10):
        rates.sample({b"mail": service}, 100.0 + step)
        service.answered += 10
    assert 9.0 < rates.of(service, 110.0) < 11.0


def test_a_new_service_has_done_all_it_did_since_the_count() -> None:
    rates = Rates()
    rates.sample({}, 100.0)
    service = Service(b"new")
    service.answered = 20
    assert rates.of(service, 110.0) == 2.0


def test_how_long_the_oldest_has_waited_in_milliseconds() -> None:
    stage = Stage()
    stage.submit("c", "1", "mail")
    stage.now += 0.5
    stage.submit("c", "2", "mail")
    view = service_view(stage.bus.services[b"mail"], stage.now + 1.23456, str)
    assert (view["oldest_queued_s"], view["oldest_s"], view["queued"]) == (1.735, 1.735, 2)


def test_every_fact_about_services_workers_and_requests() -> None:
    """The names and values that `polybus status`, the dashboard and the metrics read."""
    stage = Stage()
    stage.bus.change_policies([("mail", QueuePolicy(concurrency=5, rate_per_s=100.0))])
    worker = stage.worker("w", "mail", credit=2, weight=3, heartbeat=Heartbeat(8.0, 2.0))
    stage.now += 1.5
    stage.submit("c", "1", "mail", ttl_s=60.0)
    stage.result("w", stage.token("c", "1"))
    stage.submit("c", "2", "mail", ttl_s=60.0)
    stage.submit("c", "3", "mail", ttl_s=60.0)
    request = stage.request("c", "2")
    stage.now += 0.25
    name_of = {"w": "mdr", "c": "ebus"}.__getitem__
    assert worker_view(worker, stage.now, name_of) == {
        "worker": "w",
        "dialect": "mdr",
        "role": "worker",
        "services": {"mail": 3},
        "state": "serving",
        "credit": 2,
        "free_slots": 0,
        "in_flight": 2,
        "unanswered": 2,
        "load": 1.0,
        "done": 1,
        "late": False,
        "dead_after_s": 8.0,
        "up_s": 1.75,
        "silent_s": 0.25,
        "silent_since": None,
        "missed_beats": 0,
    }
    assert service_view(stage.bus.services[b"mail"], stage.now, name_of, 0.5) == {
        "service": "mail",
        "state": "alive",
        "workers": 1,
        "late_workers": 0,
        "silent_workers": 0,
        "up_s": 1.75,
        "silent_s": 0.25,
        "missed_beats": 0,
        "load": 1.0,
        "dialects": ["mdr"],
        "free_slots": 0,
        "queued": 0,
        "oldest_queued_s": None,
        "in_flight": 2,
        "accepted": 3,
        "answered": 1,
        "failed": 0,
        "depth": 0,
        "oldest_s": None,
        "rate_per_s": 0.5,
        "running": 2,
        "waiting": 0,
        "limits": {"concurrency": 5, "rate_per_s": 100.0},
        "guarantee": False,
    }
    assert request_view(request, stage.now, name_of) == {
        "token": request.token.decode(),
        "request_id": "2",
        "service": "mail",
        "client": "c",
        "dialect": "ebus",
        "state": "dispatched",
        "worker": "w",
        "silent_workers": [],
        "attempt": 1,
        "age_s": 0.25,
        "expires_in_s": 59.75,
        "bytes": 3,
    }


def test_a_silent_worker_is_listed_with_what_it_holds() -> None:
    stage = Stage()
    stage.bus.wall_offset = 1e9
    stage.worker("w", "mail", credit=3, heartbeat=Heartbeat(8.0, 2.0))
    heard_at = stage.now
    for number in ("1", "2"):
        stage.submit("c", number, "mail", ttl_s=60.0)
    stage.wait(9.0)
    (found,) = workers(stage.bus, stage.now, str)
    assert (found["worker"], found["state"], found["late"]) == ("w", "silent", False)
    assert (found["in_flight"], found["unanswered"], found["free_slots"], found["load"]) == (2, 2, 0, None)
    assert found["silent_s"] == pytest.approx(stage.now - heard_at)
    assert found["silent_since"] == pytest.approx(heard_at + 1e9)
    (service,) = services(stage.bus, stage.now, str)
    assert (service["state"], service["workers"], service["silent_workers"]) == ("silent", 0, 1)
    assert [row["silent_workers"] for row in requests(stage.bus, stage.now, str, 10)] == [["w"], ["w"]]
    assert (totals(stage.bus)["workers"], totals(stage.bus)["silent_workers"]) == (0, 1)
    # Another one serves; the silent one still has its requests.
    stage.worker("v", "mail", credit=1)
    (service,) = services(stage.bus, stage.now, str)
    assert (service["state"], service["workers"], service["silent_workers"]) == ("alive", 1, 1)
    rows = requests(stage.bus, stage.now, str, 10)
    assert sorted((row["worker"] or "", *row["silent_workers"]) for row in rows) == [("", "w"), ("v", "w")]
    # One is answered: that one counts no more.
    stage.result("v", next(row["token"] for row in rows if row["worker"]).encode())
    assert [row["unanswered"] for row in workers(stage.bus, stage.now, str) if row["worker"] == "w"] == [1]
    # It is heard again.
    stage.heard("w")
    assert {row["state"] for row in workers(stage.bus, stage.now, str)} == {"serving"}
    (service,) = services(stage.bus, stage.now, str)
    assert (service["workers"], service["silent_workers"]) == (2, 0)
    assert not any(row["silent_workers"] for row in requests(stage.bus, stage.now, str, 10))


def test_a_silent_worker_whose_answer_does_not_count_is_not_named() -> None:
    stage = Stage()
    stage.worker("w", "mail", heartbeat=Heartbeat(8.0, 2.0))
    stage.submit("c", "1", "mail", ttl_s=60.0)
    stage.wait(9.0)
    token = stage.token("c", "1")
    for holding in stage.bus.holders[token].values():
        holding.is_whole = False
    assert [row["silent_workers"] for row in requests(stage.bus, stage.now, str, 10)] == [[]]


def test_totals_count_what_is_there() -> None:
    stage = Stage()
    stage.worker("w", "mail")
    for name in ("a", "b"):
        stage.submit(name, "1", "mail")
    found = totals(stage.bus)
    assert (found["state"], found["services"], found["workers"], found["clients"]) == ("serving", 1, 1, 2)
    assert (found["nodes"], found["requests"], found["schedules"]) == (0, 2, 0)
    assert (found["held_bytes"], found["kept_replies"], found["subscriptions"]) == (
        stage.bus.held_bytes,
        0,
        0,
    )
    assert (found["accepted"], found["refusals"]) == (2, {})
    # What people have alarms and dashboards on.
    assert {
        "kept_replies_bytes",
        "last_values",
        "last_values_bytes",
        "last_values_evicted",
        "publications_refused",
        "logs",
        "logs_bytes",
        "logs_evicted",
        "logs_cut",
        "node_datagrams",
        "node_datagrams_refused",
        "node_datagrams_sent",
        "nodes_asked",
        "nodes_lapsed",
    } <= found.keys()
    assert found["kept_replies_bytes"] == 0
