"""What the broker says about itself, and to whom."""

from __future__ import annotations

import json
from typing import Any

import pytest

from polybus.core import events, monitor, views
from polybus.core.actions import Fanout, Observed
from polybus.core.lifecycle import NodeState
from polybus.core.model import PLAIN_CALL, Heartbeat
from support.stage import Stage, client

LINK = 5
BEATS = Heartbeat(dead_after_s=3.0, beat_every_s=1.0)


class Studio:
    def __init__(self) -> None:
        self.stage = Stage(watched=False)
        self.stage.bus.wall_offset = 1_000_000.0
        self.monitor = monitor.Monitor(self.stage.bus, lambda: {"broker": "b1"}, str)

    def subscribe(self, prefix: bytes, wanted: bool = True) -> None:
        self.stage.do(events.Subscribe(LINK, prefix, wanted))

    def said(self) -> list[tuple[str, dict[str, Any]]]:
        """What was published since the last look."""
        for record in self.stage.observed:
            self.monitor.observed(record)
        self.stage.observed.clear()
        self.stage._collect()
        return [(one.topic.decode(), json.loads(one.body[0])) for one in self.stage.actions(Fanout)]


def test_nothing_is_observed_while_nobody_listens() -> None:
    studio = Studio()
    for prefix in (b"", b"p", b"weather/"):
        studio.subscribe(prefix)
    studio.stage.worker("w", "echo")
    assert studio.stage.observed == []
    studio.monitor.tick(studio.stage.now)
    assert studio.said() == []


def test_who_listens_is_counted() -> None:
    studio = Studio()
    bus = studio.stage.bus
    studio.subscribe(b"polybus/", wanted=False)
    assert bus.monitored == 0
    studio.subscribe(b"polybus/monitor/node_up")
    studio.subscribe(b"polybus/")
    studio.subscribe(b"polybus/")
    assert bus.monitored == 3
    for _ in range(5):
        studio.subscribe(b"polybus/", wanted=False)
    assert bus.monitored == 1
    studio.subscribe(b"polybus/monitor/node_up", wanted=False)
    assert bus.monitored == 0


def test_peers_that_come_and_go_are_told() -> None:
    studio = Studio()
    studio.subscribe(b"polybus/monitor/")
    stage = studio.stage
    stage.worker("w", "echo", "sum")
    stage.submit("c", "1", "echo")
    stage.result("w")
    stage.gone("w", "it left")
    told = studio.said()
    assert [topic for topic, _ in told] == ["polybus/monitor/worker_up", "polybus/monitor/worker_down"]
    up, down = (content for _, content in told)
    assert up == {
        "at": 1_001_000.0,
        "event": "worker_up",
        "services": ["echo", "sum"],
        "worker": "w",
        "dialect": "w",
    }
    assert (down["worker"], down["reason"]) == ("w", "it left")


def test_nodes_are_told_by_name() -> None:
    for what, event in (
        ("registered", "node_up"),
        ("node_late", "node_late"),
        ("node_down", "node_down"),
        ("bridge_up", "bridge_up"),
    ):
        found = monitor.event_of(Observed(1.0, what, service=b"probe", reason="r"), 7.0, str)
        assert found is not None
        assert found[0] == b"polybus/monitor/" + event.encode()
        assert found[1]["reason"] == "r"
        assert found[1].get("node", "probe") == "probe"
    assert monitor.event_of(Observed(1.0, "accepted", service=b"probe"), 7.0, str) is None


def test_they_are_no_last_values() -> None:
    studio = Studio()
    studio.subscribe(b"polybus/")
    studio.stage.worker("w", "echo")
    studio.monitor.tick(studio.stage.now)
    assert len(studio.said()) == 2
    assert len(studio.stage.bus.last) == 0
    assert studio.stage.bus.counters.published == 0


def test_the_summary_has_rates() -> None:
    studio = Studio()
    studio.subscribe(b"polybus/monitor/summary")
    stage = studio.stage
    stage.worker("w", "echo", credit=2, heartbeat=BEATS)
    studio.said()
    studio.monitor.tick(stage.now)
    ((topic, first),) = studio.said()
    assert topic == "polybus/monitor/summary"
    assert first["accepted_per_s"] == 0.0
    assert (first["broker"], first["workers"], first["workers_late"]) == ("b1", 1, 0)
    assert (first["event"], first["state"]) == ("summary", "serving")
    assert "no store" in first["store"]
    assert (first["requests"], first["services"], first["clients"]) == (0, 1, 0)
    assert (first["nodes"], first["nodes_late"]) == (0, 0)
    for number in range(4):
        stage.submit("c", str(number), "echo")
    stage.result("w")
    stage.now += 2.0
    studio.monitor.tick(stage.now)
    second = studio.said()[-1][1]
    assert (second["accepted_per_s"], second["replied_per_s"]) == (2.0, 0.5)
    assert second["workers_late"] == 1
    assert (second["requests"], second["clients"], second["accepted"]) == (3, 1, 4)
    assert second["busiest"] == [{"service": "echo", "workers": 1, "queued": 1, "running": 2}]
    # After a while without listeners it begins anew.
    studio.subscribe(b"polybus/monitor/summary", wanted=False)
    studio.monitor.tick(stage.now)
    assert studio.monitor.summary(stage.now + 1)["accepted_per_s"] == 0.0


def test_liveness_of_every_service_worker_and_node() -> None:
    stage = Stage()
    stage.worker("w", "echo", credit=4, heartbeat=BEATS)
    stage.worker("v", "sum")
    stage.submit("c", "1", "echo")
    stage.submit("c", "2", "nobody")
    stage.now += 2.0
    found = monitor.liveness(stage.bus, stage.now, str, views.Rates())
    assert found["counts"] == {"services": 3, "workers": 2, "nodes": 0}
    assert found["at"] == pytest.approx(stage.bus.wall_at(stage.now), abs=1e-5)
    assert found["nodes"] == []
    services = found["services"]
    assert {name: row["state"] for name, row in services.items()} == {
        "echo": "late",
        "nobody": "unserved",
        "sum": "alive",
    }
    assert (services["echo"]["load"], services["echo"]["up_s"], services["echo"]["silent_s"]) == (
        0.25,
        2.0,
        2.0,
    )
    assert (services["nobody"]["queued"], services["nobody"]["load"]) == (1, None)
    assert {row["worker"]: row["late"] for row in found["workers"]} == {"w": True, "v": False}


@pytest.mark.parametrize(
    ("what", "event", "about"),
    [
        ("registered", "node_up", {"node": "a,b"}),
        ("node_up", "node_up", {"node": "a,b"}),
        ("node_late", "node_late", {"node": "a,b"}),
        ("node_down", "node_down", {"node": "a,b"}),
        ("denied", "node_denied", {"node": "a,b"}),
        ("worker_up", "worker_up", {"services": ["a", "b"]}),
        ("offered", "worker_up", {"services": ["a", "b"]}),
        ("worker_down", "worker_down", {"services": ["a", "b"]}),
        ("heartbeat_missed", "worker_lost", {"services": ["a", "b"]}),
        ("scheduler_up", "scheduler_up", {"services": ["a", "b"]}),
        ("store_sick", "store_sick", {"services": ["a", "b"]}),
        ("store_well", "store_well", {"services": ["a", "b"]}),
        ("bridge_up", "bridge_up", {"services": ["a", "b"]}),
        ("bridge_down", "bridge_down", {"services": ["a", "b"]}),
    ],
)
def test_every_event_and_its_facts(what: str, event: str, about: dict[str, Any]) -> None:
    topic = b"polybus/monitor/" + event.encode()
    record = Observed(
        1.0, what, service=b"a,b", worker=(3, b"w"), worker_voice="emqp", reason="r", detail="d"
    )
    facts = {"at": 7.123457, "event": event, "worker": "w", "dialect": "emqp", "reason": "r", "detail": "d"}
    assert monitor.event_of(record, 7.1234567, str) == (topic, {**facts, **about})
    # What is not known is not told.
    assert monitor.event_of(Observed(1.0, what), 7.0, str) == (
        topic,
        {"at": 7.0, "event": event, **({"node": ""} if "node" in about else {})},
    )


@pytest.mark.parametrize(
    "what", ["accepted", "dispatched", "replied", "failed", "published", "updated", "log", "beat"]
)
def test_what_happens_to_single_requests_is_no_event(what: str) -> None:
    assert monitor.event_of(Observed(1.0, what, service=b"a"), 7.0, str) is None


def test_the_ten_busiest_services_are_named_the_busiest_first() -> None:
    studio = Studio()
    studio.subscribe(b"polybus/monitor/summary")
    for service in range(12):
        for number in range(service):
            studio.stage.submit("c", f"{service}/{number}", f"s{service}")
    studio.monitor.tick(studio.stage.now)
    busiest = studio.said()[-1][1]["busiest"]
    assert [(one["service"], one["queued"]) for one in busiest] == [
        (f"s{service}", service) for service in range(11, 1, -1)
    ]


def test_the_summary_counts_nodes_and_workers_that_went_silent() -> None:
    stage = Stage()
    made = monitor.Monitor(stage.bus, dict, str)
    for name in (b"a", b"b", b"c"):
        stage.do(events.Register((2, name), "v", name, {}, 60.0))
    stage.bus.nodes[b"b"].state = NodeState.LATE
    stage.worker("v", "sum")
    stage.worker("w", "echo", heartbeat=BEATS)
    stage.submit("c", "1", "echo")
    stage.wait(4.0)
    found = made.summary(stage.now)
    assert (found["nodes"], found["nodes_late"]) == (3, 1)
    # It had something to do and may still answer.
    assert (found["workers"], found["silent_workers"], found["services"]) == (1, 1, 2)
    stage.bus.store_trouble = ""
    stage.bus.wall_offset = 0.0
    found = made.summary(1.23456789)
    assert (found["store"], found["at"]) == ("well", 1.234568)
    assert monitor.liveness(stage.bus, 1.23456789, str, views.Rates())["at"] == 1.234568


def test_rates_are_told_to_a_hundredth_however_short_the_time() -> None:
    stage = Stage()
    made = monitor.Monitor(stage.bus, dict, str)
    made.summary(stage.now)
    stage.submit("c", "1", "echo")
    assert made.summary(stage.now + 0.7)["accepted_per_s"] == 1.43


def test_not_all_of_very_many_are_listed_but_all_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "LISTED", 2)
    stage = Stage()
    for name in "cab":
        stage.worker(f"w{name}", f"s{name}")
        stage.do(events.Register((2, name.encode()), "v", name.encode(), {}, 60.0))
    found = monitor.liveness(stage.bus, stage.now, str, views.Rates())
    assert found["counts"] == {"services": 3, "workers": 3, "nodes": 3}
    assert list(found["services"]) == ["sa", "sb"]
    assert [node["node"] for node in found["nodes"]] == ["a", "b"]
    assert len(found["workers"]) == 2


def test_nobody_looks_for_the_busiest_of_very_many_services(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "LOOKED_THROUGH", 2)
    stage = Stage()
    for number, busy in ((1, 1), (2, 2), (3, 0)):
        stage.submit("c", str(number), f"s{number}")
        assert len(monitor.busiest(stage.bus, 5)) == busy


def test_a_service_is_busy_while_something_runs_or_waits() -> None:
    stage = Stage()
    stage.worker("w", "runs", "idle", credit=5)
    stage.submit("c", "1", "runs")
    stage.submit("c", "2", "runs")
    stage.submit("c", "3", "waits")
    assert [service.name for service in monitor.busiest(stage.bus, 5)] == [b"runs", b"waits"]
    assert [service.name for service in monitor.busiest(stage.bus, 1)] == [b"runs"]


def test_every_fact_about_the_liveness_of_a_service() -> None:
    stage = Stage()
    stage.worker("w", "echo", credit=4, heartbeat=BEATS)
    stage.worker("quiet", "echo", credit=4, heartbeat=BEATS)
    for number in range(2):
        stage.submit("c", str(number), "echo")
    stage.heard("w")
    stage.wait(2.0)
    stage.heard("w")
    stage.wait(1.5)
    found = monitor.liveness(stage.bus, stage.now, str, views.Rates())
    row = views.service_view(stage.bus.services[b"echo"], stage.now, str, 0.0, 1)
    assert found["services"]["echo"] == {
        name: row[name]
        for name in (
            *("state", "dialects", "workers", "late_workers", "silent_workers", "up_s", "silent_s"),
            *("missed_beats", "load", "queued", "running", "rate_per_s", "answered", "failed"),
        )
    }
    assert (row["workers"], row["silent_workers"]) == (1, 1)
    assert found["counts"]["workers"] == 2
    assert len(found["workers"]) == 2


def test_names_that_are_no_text_are_told_all_the_same() -> None:
    for what, field, told in (("node_up", "node", "n\ufffd"), ("worker_up", "services", ["n\ufffd"])):
        found = monitor.event_of(Observed(1.0, what, service=b"n\xff"), 7.0, str)
        assert found is not None
        assert found[1][field] == told
    stage = Stage()
    stage.do(events.Submit(client("c"), "v", b"1", b"s\xff", [], PLAIN_CALL))
    made = monitor.Monitor(stage.bus, dict, str)
    assert [one["service"] for one in made.summary(stage.now)["busiest"]] == ["s\ufffd"]


def test_without_listeners_no_summary_is_made_and_rates_begin_anew() -> None:
    studio = Studio()
    studio.subscribe(b"polybus/monitor/summary")
    stage = studio.stage
    studio.monitor.tick(stage.now)
    for number in range(3):
        stage.submit("c", str(number), "echo")
    # Two summaries of one moment have no time between them.
    assert studio.monitor.summary(stage.now)["accepted_per_s"] == 0.0
    stage.now += 3.0
    for number in range(3):
        stage.submit("c", f"more {number}", "echo")
    assert studio.monitor.summary(stage.now)["accepted_per_s"] == 1.0
    # Nobody listens for a second: what happened before the next listener came is not in its first rates.
    studio.subscribe(b"polybus/monitor/summary", wanted=False)
    studio.monitor.tick(stage.now)
    stage.submit("c", "unheard", "echo")
    assert studio.monitor.summary(stage.now + 1.0)["accepted_per_s"] == 0.0


def test_what_others_observe_is_not_published_while_nobody_listens() -> None:
    """The journal and `polybus tap` make the bus observe, too."""
    studio = Studio()
    studio.stage = Stage(watched=True)
    studio.monitor = monitor.Monitor(studio.stage.bus, dict, str)
    studio.stage.worker("w", "echo")
    assert studio.stage.told("worker_up")
    assert studio.said() == []
    studio.subscribe(b"polybus/")
    studio.stage.gone("w")
    assert [topic for topic, _ in studio.said()] == ["polybus/monitor/worker_down"]
