"""Logs, liveness and screens, as questions of the admin socket and as services."""

from __future__ import annotations

from typing import Any

import pytest

from polybus.core import events
from polybus.server.looking import MAX_FOLLOWERS, TIMED_S
from support.lookout import WORKER, Lookout


def logs(lookout: Lookout, **facts: Any) -> dict[str, Any]:
    (answer,) = lookout.ask("logs", **facts)
    found: dict[str, Any] = answer["ok"]
    return found


def messages(found: dict[str, Any]) -> list[str]:
    return [record["message"] for record in found["records"]]


def test_logs_by_level_node_and_time() -> None:
    lookout = Lookout()
    lookout.log("info", "a", "one")
    lookout.now += 10
    lookout.log("error", "b", "two")
    assert messages(logs(lookout)) == ["one", "two"]
    assert messages(logs(lookout, level="warning")) == ["two"]
    assert messages(logs(lookout, node="a")) == ["one"]
    assert messages(logs(lookout, since=1_000_105.0)) == ["two"]
    assert messages(logs(lookout, limit=1)) == ["two"]
    assert lookout.ask("log_nodes") == [{"ok": {"a": {"info": 1}, "b": {"error": 1}}}]
    (status,) = lookout.ask("status")
    assert (status["ok"]["logs"], status["ok"]["logs_evicted"]) == (2, 0)


@pytest.mark.parametrize(
    "facts", [{"level": "loud"}, {"limit": 0}, {"after": "x"}, {"wait_s": 99}, {"node": 5}]
)
def test_wrong_questions(facts: dict[str, Any]) -> None:
    lookout = Lookout()
    assert "the question is wrong" in lookout.ask("logs", **facts)[0]["error"]
    lookout.call("logs", facts)
    assert "the question is wrong" in lookout.answers()[0]


def test_following() -> None:
    lookout = Lookout()
    lookout.log("info", "a", "old")
    first = logs(lookout)
    where: dict[str, Any] = {"after": first["cursor"], "life": first["life"], "wait_s": 5}
    assert lookout.ask("logs", level="warning", node="a*", **where) == []
    lookout.log("info", "a", "not this")
    lookout.log("error", "b", "nor this")
    assert lookout.told() == []
    lookout.log("error", "ab", "this")
    (answer,) = lookout.told()
    assert messages(answer["ok"]) == ["this"]
    assert lookout.bus.logs.on_put is None
    # What came meanwhile is there at once.
    assert messages(logs(lookout, **where)) == ["not this", "nor this", "this"]
    where["after"] = answer["ok"]["cursor"]
    assert lookout.ask("logs", **where) == []
    lookout.tick(6.0)
    (answer,) = lookout.told()
    assert answer["ok"]["records"] == []
    # To another life of the broker everything is new.
    assert len(logs(lookout, after=10_000, life="other")["records"]) == 4


def test_pages_of_what_follows() -> None:
    lookout = Lookout()
    for number in range(5):
        lookout.log("info", "a", str(number))
    page = logs(lookout, after=0, limit=2)
    assert (messages(page), page["cursor"]) == (["0", "1"], 2)
    page = logs(lookout, after=2, limit=9)
    assert (messages(page), page["cursor"]) == (["2", "3", "4"], 5)


def test_followers_are_limited() -> None:
    lookout = Lookout()
    for _ in range(MAX_FOLLOWERS):
        assert lookout.ask("logs", after=0, wait_s=5) == []
    (answer,) = lookout.ask("logs", after=0, wait_s=5)
    assert "follow the logs already" in answer["error"]
    lookout.log("info", "a", "x")
    assert len(lookout.told()) == MAX_FOLLOWERS


def test_the_service_reads_and_writes() -> None:
    lookout = Lookout()
    lookout.call("logs", {"message": "hot", "level": "warning", "node": "probe", "extra": {"t": 3}})
    assert lookout.answers() == [{"written": True}]
    lookout.call("logs", {"level": "warning"})
    (answer,) = lookout.answers()
    (record,) = answer["records"]
    assert (record["message"], record["node"], record["extra"]) == ("hot", "probe", {"t": 3})
    assert record["at"] == 1_000_100.0
    # It is published like any other.
    assert lookout.bus.last.get(b"log/warning/probe") is not None
    lookout.call("logs")
    assert len(lookout.answers()[0]["records"]) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"\xff",
        [],
        {"message": 3},
        {"message": "m", "level": "loud"},
        {"message": "m", "node": ""},
        {"message": "m", "node": "a\nb"},
        {"message": "m", "extra": 3},
    ],
)
def test_wrong_records_are_refused(body: Any) -> None:
    lookout = Lookout()
    lookout.call("logs", body)
    (answer,) = lookout.answers()
    assert isinstance(answer, str)
    assert len(lookout.bus.logs) == 0


def test_liveness_from_everywhere() -> None:
    lookout = Lookout()
    lookout.worker()
    lookout.call("monitor")
    (answer,) = lookout.answers()
    assert answer["services"]["echo"]["state"] == "alive"
    (same,) = lookout.ask("monitor")
    assert same["ok"] == answer


def test_unknown_services_name_the_known() -> None:
    lookout = Lookout()
    lookout.call("nothing")
    (answer,) = lookout.answers()
    assert "polybus.logs, polybus.monitor" in answer
    assert "polybus.tap" in answer


def test_a_screen() -> None:
    lookout = Lookout()
    lookout.worker()
    (answer,) = lookout.ask("top")
    assert lookout.bus.timed
    lookout.submit(b"1")
    lookout.submit(b"2", b"other")
    lookout.now += 0.25
    lookout.do(events.Result(WORKER, b"", [b"done"]))
    (answer,) = lookout.ask("top", sort="queue")
    look = answer["ok"]
    assert [row["service"] for row in look["services"]] == ["other", "echo"]
    echo = look["services"][1]
    assert (echo["answered"], echo["workers"], list(echo["times"].values())) == (1, 1, [1])
    assert (look["totals"]["broker"], look["totals"]["requests"]) == ("b1", 1)
    assert [row["worker"] for row in look["workers"]] == ["w"]
    for sort in ("rate", "running", "failed", "name"):
        assert len(lookout.ask("top", sort=sort, limit=1)[0]["ok"]["services"]) == 1
    assert "the question is wrong" in lookout.ask("top", sort="colour")[0]["error"]
    lookout.tick(TIMED_S + 1)
    assert not lookout.bus.timed


def test_the_monitor_speaks_while_somebody_listens() -> None:
    lookout = Lookout()
    lookout.do(events.Subscribe(5, b"polybus/monitor/", True))
    lookout.worker()
    lookout.tick()
    assert lookout.said() == ["polybus/monitor/worker_up", "polybus/monitor/summary"]
    lookout.do(events.Subscribe(5, b"polybus/monitor/", False))
    lookout.tick()
    assert lookout.said() == []
