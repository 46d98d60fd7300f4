"""Schedules over real processes: the broker's own scheduler, and `polybus scheduler` beside it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from polybus import Client, Request, Worker
from support.commands import Running, polybus
from support.interop_process import Broker, running
from support.live import LiveBroker, Peer
from support.waiting import until

TAG = b"eMQP/1.0"
# A silent peer is given up after 4 s; ours beat every 3 s.
QUICK = {"emqp": {"heartbeat_s": 0.3, "timeout_s": 2.0, "liveness": 2}, "broker": {"drain_s": 1.0}}
EVERY_S = 0.25


# -- the broker's own -------------------------------------------------------------------------


@pytest.mark.long
def test_a_killed_broker_neither_loses_nor_doubles_a_run() -> None:
    with LiveBroker() as broker:
        asked = {"queue": "jobs", "message": "x", "every_s": EVERY_S, "key": "often"}
        set_at = broker.ask("schedule_add", **asked)["next_at"] - EVERY_S
        for life in range(4):

            def runs(at_least: int = 3 * (life + 1)) -> list[dict[str, Any]]:
                found: list[dict[str, Any]] = broker.ask("schedule_runs", key="often", limit=200)
                return found if len(found) >= at_least else []

            until(runs, "more runs")
            broker.restart()
        told = runs(1)[::-1]
        # Every due time since the schedule was set is in exactly one record.
        number = 0
        for run in told:
            number += 1 + run["missed"]
            assert run["due_at"] == pytest.approx(set_at + number * EVERY_S, abs=1e-3), run
            assert run["what"] in ("ran", "late")
        # And every run is one job, which is there or was done.
        jobs = [run["token"] for run in told]
        assert len(set(jobs)) == len(jobs)
        waiting = {row["job"] for row in broker.ask("jobs", limit=1000)}
        assert waiting >= set(jobs), set(jobs) - waiting
        assert broker.ask("schedule_rm", key="often")["removed"]


def test_a_client_of_another_dialect_sets_and_lists_and_removes() -> None:
    done: list[bytes] = []

    def work(request: Request) -> bytes:
        done.append(request.body)
        return b""

    with (
        LiveBroker() as broker,
        Client(broker["ebus.frontend"], "ebus") as client,
        running(Worker({"jobs": work}, broker["majordomo.workers"], "mdr")),
    ):

        def ask(**question: Any) -> Any:
            return json.loads(client.call("polybus.schedule", json.dumps(question).encode()))

        told = ask(do="add", queue="jobs", message="hello", every_s=0.2, runs=3, key="three")
        assert told["key"] == "three"
        until(lambda: len(done) == 3, "three runs")
        assert done == [b"hello"] * 3
        until(lambda: ask(do="list") == [], "the end of the schedule")


# -- polybus scheduler ------------------------------------------------------------------------


class Office:
    """A broker that can be restarted on the same ports, a worker, a client and a scheduler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "broker").mkdir()
        self.broker = Broker(folder / "broker", QUICK)
        self.done: list[bytes] = []
        self.components: list[Running] = []

    def work(self, request: Request) -> bytes:
        self.done.append(request.body)
        return b""

    def worker(self) -> Worker:
        return Worker({"jobs": self.work}, self.broker.endpoints["emqp.workers"], "emqp", credit=1)

    def scheduler(self, *options: str) -> Running:
        address = self.broker.endpoints["emqp.clients"]
        component = Running("scheduler", "--broker", address, *options, cwd=self.folder)
        self.components.append(component)
        component.wait_for(component.output, "ready ")
        return component

    def is_known(self) -> bool:
        return any(one["role"] == "scheduler" for one in self.broker.ask("workers"))

    def set(self, *frames: bytes, command: bytes = b"SCHEDULE") -> None:
        with Peer(self.broker.endpoints["emqp.clients"]) as client:
            client.send(b"", TAG, command, b"m-1", b"jobs", *frames)
            assert client.recv()[2:][0] == b"REPLY"

    def runs(self, count: int) -> Callable[[], bool]:
        """Whether there were so many more runs from now on."""
        before = len(self.done)
        return lambda: len(self.done) >= before + count

    def close(self) -> None:
        for component in self.components:
            component.close()
        self.broker.kill()


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    office = Office(tmp_path)
    yield office
    office.close()


def test_the_component_is_handed_schedules_and_runs_them(office: Office) -> None:
    component = office.scheduler("--json")
    assert json.loads(component.wait_for(component.output, "{")) == {
        "schedules": 0,
        "broker": office.broker.endpoints["emqp.clients"],
    }
    with running(office.worker()):
        office.set(b"guarantee", b"1", b"job", b"")
        # The broker has none of its own.
        assert office.broker.ask("schedules") == []
        until(office.runs(3), "three runs")
        office.set(b"", b"-1", b"bad", b"99 * * * *")
        assert "minute" in component.wait_for(component.errors, "not taken")
        office.set(b"", b"1", b"job", b"", command=b"UNSCHEDULE")
        # Guaranteed as well, so that its runs are not handed out before those that came before them.
        office.set(b"guarantee,nohaste", b"-1", b"other", b"* * * * * *")
        until(lambda: office.done.count(b"other") >= 3, "three runs of the other")
        # What was on its way when it was removed came before them.
        assert b"job" not in office.done[office.done.index(b"other") :]
    assert component.end(signal.SIGTERM) == 0
    assert "runs were sent" in component.errors[-1]
    until(lambda: not office.is_known(), "its goodbye")


def test_the_component_comes_back_to_a_restarted_router(office: Office) -> None:
    component = office.scheduler()
    with running(office.worker()):
        office.set(b"", b"1", b"job", b"")
        until(office.runs(2), "two runs")
        office.broker.kill()
        component.wait_for(component.errors, "connecting again")
        office.broker.start()
        until(office.is_known, "its return")
        until(office.runs(2), "two more runs")
    assert component.end(signal.SIGTERM) == 0


@pytest.mark.long
def test_what_the_component_keeps_is_there_after_a_restart(office: Office) -> None:
    options = ("--store", str(office.folder / "kept"))
    component = office.scheduler(*options)
    with running(office.worker()):
        office.set(b"nohaste", b"1", b"job", b"")
        until(office.runs(1), "a run")
        component.process.kill()
        component.end()
        component = office.scheduler(*options)
        assert "schedules=1" in component.output[0]
        until(office.runs(2), "two more runs")
        # There is one owner of the directory.
        other = polybus("scheduler", *options, cwd=office.folder)
        assert other.returncode == 1
        assert b"another scheduler" in other.stderr
    assert component.end(signal.SIGTERM) == 0


def test_the_component_waits_for_its_router(tmp_path: Path) -> None:
    """Nobody is there yet, and it can be ended all the same."""
    component = Running("scheduler", "--broker", "tcp://127.0.0.1:9", "--tz", "UTC", cwd=tmp_path)
    try:
        component.wait_for(component.errors, "waiting for the router at tcp://127.0.0.1:9")
        assert polybus("scheduler", "--tz", "Nowhere", cwd=tmp_path).returncode == 2
        assert component.end(signal.SIGINT) == 130
    finally:
        component.close()
    assert component.output == []


def test_runs_are_an_interval_apart(office: Office) -> None:
    """Not drifting: whatever a run takes, the next is due when it is due."""
    told = office.broker.ask("schedule_add", queue="jobs", message="x", every_s=EVERY_S, key="k")
    with running(office.worker()):
        until(office.runs(8), "eight runs")
    rows = office.broker.ask("schedule_runs", key="k", limit=100)[::-1]
    # Due times that had passed by the first look are one run, that of the last of them.
    first_at = told["next_at"] + EVERY_S * rows[0]["missed"]
    assert rows[0]["due_at"] == pytest.approx(first_at, abs=1e-6)
    for first, second in pairwise(rows):
        gap = second["due_at"] - first["due_at"]
        assert gap == pytest.approx(EVERY_S * (1 + second["missed"]), abs=1e-3)
