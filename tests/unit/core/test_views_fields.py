"""Services, workers and requests as operators see them: every field."""

from __future__ import annotations

import pytest

from polybus.core import events, monitor, views
from polybus.core.actions import Answer, Observed, Refuse
from polybus.core.lifecycle import NodeState
from polybus.core.model import Heartbeat, JobOptions, QueuePolicy, Reason
from support.stage import LedgerStage, Stage

BEATS = Heartbeat(dead_after_s=3.0, beat_every_s=1.0)


def test_a_service_with_workers_and_a_queue() -> None:
    stage = Stage()
    stage.worker("w", "echo", "sum", credit=2, heartbeat=BEATS)
    stage.now += 1.0
    stage.worker("v", "echo", credit=1)
    for number in range(5):
        stage.submit("c", str(number))
    stage.submit("c", "9", "sum")
    stage.now += 0.5
    for token in list(stage.bus.workers[2, b"v"].inflight):
        stage.result("v", token)
    stage.now += 0.5
    service = stage.bus.services[b"echo"]
    service.policy = QueuePolicy(concurrency=7, rate_per_s=9.0, guarantee=True)
    assert views.service_view(service, stage.now, str, 1.5) == {
        "service": "echo",
        "state": "alive",
        "workers": 2,
        "silent_workers": 0,
        "late_workers": 1,
        "up_s": 2.0,
        "silent_s": 0.5,
        "missed_beats": 0,
        "load": 1.0,
        "dialects": ["v", "w"],
        "free_slots": 0,
        "queued": 1,
        "oldest_queued_s": 1.0,
        "in_flight": 3,
        "accepted": 5,
        "answered": 1,
        "failed": 0,
        "depth": 1,
        "oldest_s": 1.0,
        "rate_per_s": 1.5,
        "running": 3,
        "waiting": 0,
        "limits": {"concurrency": 7, "rate_per_s": 9.0},
        "guarantee": True,
    }
    alone = views.service_view(stage.bus.services[b"sum"], stage.now, str)
    assert (alone["state"], alone["in_flight"], alone["queued"], alone["rate_per_s"]) == ("late", 0, 1, 0.0)
    assert (alone["limits"], alone["guarantee"]) == ({"concurrency": 0, "rate_per_s": 0.0}, False)


def test_a_service_that_nobody_offers() -> None:
    stage = Stage()
    stage.submit("c", "1")
    view = views.service_view(stage.bus.services[b"echo"], stage.now, str)
    assert (view["state"], view["workers"], view["up_s"], view["silent_s"]) == ("unserved", 0, None, None)
    assert (view["load"], view["dialects"], view["free_slots"], view["in_flight"]) == (None, [], 0, 0)


def test_a_worker_and_its_request() -> None:
    stage = Stage()
    worker = stage.worker("w", "echo", "sum", credit=4, weight=7, heartbeat=BEATS)
    stage.submit("c", "1", body=[b"abc", b"de"])
    request = stage.request("c", "1")
    stage.now += 1.25
    assert views.worker_view(worker, stage.now, str) == {
        "worker": "w",
        "dialect": "w",
        "role": "worker",
        "services": {"echo": 7, "sum": 7},
        "state": "serving",
        "credit": 4,
        "free_slots": 3,
        "in_flight": 1,
        "load": 0.25,
        "done": 0,
        "late": False,
        "dead_after_s": 3.0,
        "up_s": 1.25,
        "silent_s": 1.25,
        "silent_since": None,
        "unanswered": 1,
        "missed_beats": 0,
    }
    assert views.request_view(request, stage.now, lambda _: "some") == {
        "token": request.token.decode(),
        "request_id": "1",
        "service": "echo",
        "client": "c",
        "dialect": "some",
        "state": request.state.name.lower(),
        "worker": "w",
        "silent_workers": [],
        "attempt": 1,
        "age_s": 1.25,
        "expires_in_s": round(request.expires_at - stage.now, 3),
        "bytes": 5,
    }
    stage.submit("c", "2", "nobody")
    assert views.request_view(stage.request("c", "2"), stage.now, str)["worker"] is None


@pytest.mark.parametrize(
    ("heartbeat", "silent_s", "is_late"),
    [
        (Heartbeat(3.0, 1.0), 1.49, False),
        (Heartbeat(3.0, 1.0), 1.5, True),
        # Without an interval of its own, three beats fit into its life.
        (Heartbeat(6.0), 2.99, False),
        (Heartbeat(6.0), 3.0, True),
        (Heartbeat(0.0), 1e9, False),
        (Heartbeat(0.0, 1.0), 1e9, False),
    ],
)
def test_when_a_worker_is_late(heartbeat: Heartbeat, silent_s: float, is_late: bool) -> None:
    stage = Stage()
    worker = stage.worker("w", heartbeat=heartbeat)
    assert views.is_late(worker, stage.now + silent_s) == is_late


def test_late_nodes_are_counted_one_by_one() -> None:
    stage = Stage()
    for number in range(3):
        name = b"n%d" % number
        stage.do(events.Register((2, name), "v", name, {"ip": "10.0.0.1", "port": number}, 1.0))
    stage.bus.nodes[b"n1"].state = NodeState.LATE
    summary = monitor.Monitor(stage.bus, dict, str).summary(stage.now)
    assert (summary["nodes"], summary["nodes_late"]) == (3, 1)


def test_names_that_are_no_text_are_told_all_the_same() -> None:
    facts = {"worker": (2, b"w"), "worker_voice": "x", "detail": "d"}
    record = Observed(1.0, "worker_up", service=b"caf\xe9,sum", **facts)
    found = monitor.event_of(record, 7.0000001, str)
    assert found == (
        b"polybus/monitor/worker_up",
        {
            "at": 7.0,
            "event": "worker_up",
            "services": ["caf�", "sum"],
            "worker": "w",
            "dialect": "x",
            "detail": "d",
        },
    )
    node = monitor.event_of(Observed(1.0, "node_late", service=b"caf\xe9"), 7.0, str)
    assert node is not None
    assert node[1] == {"at": 7.0, "event": "node_late", "node": "caf�"}


def test_what_a_client_is_told_of_its_job() -> None:
    stage = LedgerStage()
    stage.worker("w", credit=2)
    stage.job("good", retries=0)
    stage.job("bad", retries=0)
    stage.write()
    stage.now += 1.5
    assert stage.facts("good") == {
        "job": "good",
        "state": "running",
        "service": "echo",
        "attempt": 1,
        "retries": 0,
        "age_s": 1.5,
        "history": [],
    }
    stage.result("w", stage.job_request("good").token)
    stage.write()
    assert stage.facts("good") == {"job": "good", "service": "echo", "state": "done"}
    stage.fail("w", stage.job_request("bad").token)
    stage.write()
    facts = stage.facts("bad")
    assert {name: facts[name] for name in ("job", "service", "state", "reason", "detail")} == {
        "job": "bad",
        "service": "echo",
        "state": "failed",
        "reason": "failed",
        "detail": "it broke",
    }
    assert "history" in facts


def test_a_last_value_is_asked_for_by_the_frames_of_a_body_put_together() -> None:
    stage = Stage()
    stage.do(events.Publish(b"weather/oslo", [b"cold"]))
    stage.submit("c", "1", "lvc", [b"weather/", b"oslo"])
    assert stage.one(Answer).body == [b"cold"]
    before = stage.bus.counters.rejected
    stage.submit("c", "2", "lvc", [b"weather/rome"])
    assert stage.one(Refuse).reason is Reason.UNKNOWN_TOPIC
    assert stage.bus.counters.rejected == before + 1


def test_a_schedule_that_is_refused_is_counted() -> None:
    stage = LedgerStage()
    before = stage.bus.counters.rejected
    stage.do(
        events.Schedule((1, b"c"), "v", b"1", None, False, "key", b"echo", b"x", JobOptions(), cron="no cron")
    )
    assert stage.one(Refuse).request_id == b"1"
    assert stage.bus.counters.rejected == before + 1
