"""What the bus looks like from outside, as far as it is not plain copying."""

from __future__ import annotations

import pytest

from polybus.core import events
from polybus.core.bridging import Bridging
from polybus.core.model import PLAIN_CALL, Heartbeat, QueuePolicy, Service
from polybus.core.views import (
    RATE_SPAN_S,
    Rates,
    is_late,
    load_of,
    nodes,
    peer_name,
    request_view,
    requests,
    service_view,
    services,
    totals,
    worker_view,
    workers,
)
from support.stage import NEVER_DEAD, Stage, client
from support.stage import worker as at


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


def test_a_silent_worker_whose_lease_ended_is_listed_with_the_services_of_its_requests() -> None:
    stage = Stage()
    stage.worker("w", "mail", "other", credit=3, heartbeat=Heartbeat(8.0, 2.0))
    stage.submit("c", "1", "mail", ttl_s=60.0)
    stage.wait(9.0)
    stage.bus.silent[at("w")].offers = {}
    (found,) = workers(stage.bus, stage.now, str)
    assert (found["state"], found["services"]) == ("silent", {"mail": 0})
    states = {row["service"]: row["state"] for row in services(stage.bus, stage.now, str)}
    assert states["mail"] == "silent"


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


@pytest.mark.parametrize(
    ("identity", "name"),
    [
        (b"probe 1", "probe 1"),
        ("Zürich".encode(), "Zürich"),
        (b"\xff\x01", "ff01"),
        (b"\x00probe", "0070726f6265"),
        (b"a\nb", "610a62"),
        (b"", ""),
    ],
)
def test_an_identity_is_told_as_text_if_people_can_read_it(identity: bytes, name: str) -> None:
    assert peer_name((1, identity)) == name


def test_times_and_shares_are_told_to_a_thousandth() -> None:
    stage = Stage()
    stage.bus.wall_offset = 1e6
    worker = stage.worker("w", "mail", credit=3, heartbeat=Heartbeat(8.0, 2.0))
    stage.now += 0.12216
    stage.submit("c", "1", "mail", ttl_s=60.0)
    request = stage.request("c", "1")
    stage.heard("w")
    now = stage.now + 1.23456
    view = worker_view(worker, now, str)
    assert (view["up_s"], view["silent_s"], view["load"]) == (1.357, 1.235, 0.333)
    view = service_view(stage.bus.services[b"mail"], now, str)
    assert (view["up_s"], view["silent_s"], view["load"]) == (1.357, 1.235, 0.333)
    view = request_view(request, now, str)
    assert (view["age_s"], view["expires_in_s"]) == (1.235, 58.765)
    stage.wait(9.0)
    (view,) = workers(stage.bus, stage.now, str)
    assert (view["state"], view["silent_since"]) == ("silent", 1_001_000.122)


def test_half_of_the_slots_are_taken() -> None:
    stage = Stage()
    worker = stage.worker("w", "mail", credit=2)
    stage.submit("c", "1", "mail")
    assert load_of((worker,)) == 0.5
    assert load_of(()) is None


def test_a_worker_with_very_frequent_heartbeats_is_late_as_well() -> None:
    stage = Stage()
    worker = stage.worker("w", heartbeat=Heartbeat(0.6, 0.2))
    assert not is_late(worker, stage.now + 0.29)
    assert is_late(worker, stage.now + 0.31)


def test_a_count_lasts_for_its_span_and_rates_are_told_to_a_hundredth() -> None:
    rates = Rates()
    service = Service(b"mail")
    services = {b"mail": service}
    rates.sample(services, 100.0)
    service.answered = 10
    # Too soon for another count, however often it is asked for.
    for soon in (1.0, 2.0, 3.0, RATE_SPAN_S - 0.1):
        rates.sample(services, 100.0 + soon)
    assert rates.of(service, 107.0) == 1.43


def test_a_scheduler_is_told_from_a_worker() -> None:
    stage = Stage()
    stage.do(events.SchedulerUp(at("s"), "emqp", NEVER_DEAD))
    stage.worker("w", "mail")
    assert {row["worker"]: row["role"] for row in workers(stage.bus, stage.now, str)} == {
        "s": "scheduler",
        "w": "worker",
    }


def test_names_that_are_no_text_are_told_all_the_same() -> None:
    stage = Stage()
    stage.do(events.WorkerUp(at("w"), "w", ((b"s\xff", 1),), NEVER_DEAD))
    stage.do(events.Submit(client("c"), "c", b"\xfe", b"s\xff", [], PLAIN_CALL))
    stage.do(events.Register((2, b"n"), "v", b"n\xff", {}, 0.0))
    (service,) = services(stage.bus, stage.now, str)
    (worker,) = workers(stage.bus, stage.now, str)
    (request,) = requests(stage.bus, stage.now, str, 9)
    (node,) = nodes(stage.bus, stage.now)
    assert (service["service"], worker["services"], node["node"]) == ("s\ufffd", {"s\ufffd": 1}, "n\ufffd")
    assert (request["service"], request["request_id"]) == ("s\ufffd", "fe")


def test_services_are_listed_by_name_with_their_rates_and_the_way_to_them() -> None:
    stage = Stage()
    for name in ("mail", "echo"):
        stage.worker(f"w {name}", name)
    assert [(row["service"], row["rate_per_s"], row["via"]) for row in services(stage.bus, 1.0, str)] == [
        ("echo", 0.0, []),
        ("mail", 0.0, []),
    ]
    rates = Rates()
    rates.sample(stage.bus.services, stage.now)
    stage.bus.services[b"mail"].answered += 20
    stage.bus.bridging = bridging = Bridging(stage.bus, "A")
    stage.do(events.WorkerUp(at("B"), "B", (), NEVER_DEAD))
    bridging.join("B", stage.bus.workers[at("B")], stage.now)
    bridging.hear("B", {b"far": ("B", "D")}, [], True, stage.now)
    rows = {row["service"]: row for row in services(stage.bus, stage.now + 10.0, str, rates)}
    assert {name: row["rate_per_s"] for name, row in rows.items()} == {
        "echo": 0.0,
        "far": 0.0,
        "mail": 2.0,
    }
    assert (rows["far"]["via"], rows["mail"]["via"]) == (["B", "D"], [])


def test_no_more_requests_are_listed_than_asked_for() -> None:
    stage = Stage()
    for number in range(4):
        stage.submit("c", str(number), "mail")
    for limit in (0, 1, 3, 4, 9):
        listed = [row["request_id"] for row in requests(stage.bus, stage.now, str, limit)]
        assert listed == [str(number) for number in range(min(limit, 4))]


def test_nodes_tell_how_they_are_heard_where_they_are_and_what_they_do() -> None:
    stage = Stage()
    serves = events.WorkerUp(at("called"), "v", ((b"called", 0),), NEVER_DEAD, 4)
    facts = {"ip": "10.0.0.1", "port": 7, "function": "probe"}
    stage.do(events.Register(at("called"), "v", b"called", facts, 1.0, serves=serves))
    stage.do(events.Register(at("asked"), "v", b"asked", {"ip": "10.0.0.2"}, 1.0, quiet=True))
    stage.do(events.Register(at("pulses"), "v", b"pulses", {"port": 9}, 1.0, ip="10.0.0.3"))
    stage.do(events.Pulse(b"pulses", ("10.0.0.3", 4000)))
    for number in ("1", "2"):
        stage.submit("c", number, "called")
    stage.result("called", stage.token("c", "1"))
    fields = ("node", "beats", "address", "function", "in_flight", "done", "load")
    assert [tuple(row[field] for field in fields) for row in nodes(stage.bus, stage.now)] == [
        ("asked", "asked", "", "", 0, 0, None),
        ("called", "tcp", "10.0.0.1:7", "probe", 1, 1, 0.25),
        ("pulses", "udp", "", "", 0, 0, None),
    ]


def test_totals_say_whether_things_can_be_written_down() -> None:
    stage = Stage()
    for trouble, told in (("", "well"), ("the disk is full", "the disk is full")):
        stage.bus.store_trouble = trouble
        assert totals(stage.bus)["store"] == told
