"""EventMQ's client and job manager on polybus' own scheduler, and `polybus scheduler` on EventMQ's router."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.interop_eventmq import EventMQ
from support.interop_process import Broker, Process, until
from support.patience import patient

POLYBUS = [sys.executable, "-c", "from polybus.cli.main import main; main()"]


class Schedulers:
    """Starts `polybus scheduler` and ends what is left of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Process] = []

    def start(self, address: str) -> Process:
        options = ["--broker", address, "--store", str(self._folder / "schedules"), "--heartbeat", "0.3"]
        log = self._folder / f"polybus-scheduler-{len(self._started)}.log"
        process = Process([*POLYBUS, "scheduler", *options], log)
        self._started.append(process)
        assert process.line().startswith("ready ")
        return process

    def close(self) -> None:
        for process in self._started:
            process.kill()


@pytest.fixture
def schedulers(tmp_path: Path) -> Iterator[Schedulers]:
    schedulers = Schedulers(tmp_path)
    yield schedulers
    schedulers.close()


def job(eventmq: EventMQ, name: str) -> dict[str, object]:
    return {"func": "emq_jobs.mark", "args": [str(eventmq.marks_folder), name]}


def test_eventmq_s_schedules_are_kept_and_run_by_polybus(broker: Broker, eventmq: EventMQ) -> None:
    eventmq.manager("one", broker.endpoints["emqp.workers"], 2)
    client = eventmq.client(broker.endpoints["emqp.clients"])
    until(lambda: broker.workers("default", 2), "the manager's READYs")

    started = time.time()
    assert client.ask("schedule", **job(eventmq, "interval"), interval_secs=1)
    runs = eventmq.await_marks("interval", 3)
    # At once, and then every second, by EventMQ's unmodified job manager.
    assert runs[0]["at"] - started < patient(1.5)
    assert runs[2]["at"] - started > 1.5
    assert runs[0]["manager"] == "one"

    # Cron as EventMQ's users write it, without haste and for two runs.
    details = {"cron": "* * * * * */2", "headers": ["guarantee", "nohaste", "run_count:2"]}
    assert client.ask("schedule", **job(eventmq, "cron"), **details)
    eventmq.await_marks("cron", 2)
    rows = {row["message"].count('"cron"'): row for row in broker.ask("schedules")}
    assert list(rows) == [0]
    assert rows[0]["every_s"] == 1
    assert rows[0]["guarantee"] is True
    assert len(eventmq.marks("cron")) == 2

    # It survives the broker.
    broker.kill()
    broker.start()
    before = len(eventmq.marks("interval"))
    eventmq.await_marks("interval", before + 2)

    assert client.ask("unschedule", **job(eventmq, "interval"))
    until(lambda: broker.ask("schedules") == [], "the removal")
    # Runs that were due while the manager was on its way back are jobs already: they are run all the same.
    until(lambda: broker.ask("jobs") == [], "the end of the runs before the removal")
    assert client.ask("schedule", **job(eventmq, "after"), interval_secs=1)
    eventmq.await_marks("after")
    count = len(eventmq.marks("interval"))
    eventmq.await_marks("after", 3)
    assert len(eventmq.marks("interval")) == count


@pytest.mark.long
def test_our_scheduler_serves_eventmq_s_router(eventmq: EventMQ, schedulers: Schedulers) -> None:
    router, places = eventmq.router()
    eventmq.manager("one", places["workers"], 2)
    component = schedulers.start(places["clients"])
    client = eventmq.client(places["clients"])

    def known() -> dict[str, object]:
        shown = eventmq.shell_report(places["admin"], "show_schedulers")["connected_schedulers"]
        assert isinstance(shown, dict)
        return shown

    (name,) = until(known, "our INFORM")
    started = time.time()
    assert client.ask("schedule", **job(eventmq, "interval"), interval_secs=1)
    runs = eventmq.await_marks("interval", 3)
    assert runs[2]["at"] - started > 1.5
    details = {"cron": "* * * * * *", "headers": ["nohaste"]}
    assert client.ask("schedule", **job(eventmq, "cron"), **details)
    eventmq.await_marks("cron", 2)
    assert client.ask("unschedule", **job(eventmq, "cron"))

    # The router dies and comes back: the conversation begins anew, and what was kept goes on.
    router.kill()
    _, again = eventmq.router(places)
    assert again == places
    until(lambda: known().keys() - {name}, "our return")
    before = len(eventmq.marks("interval"))
    eventmq.await_marks("interval", before + 2)

    # So does the scheduler.
    component.signal(signal.SIGTERM)
    assert component.wait() == 0
    component = schedulers.start(places["clients"])
    before = len(eventmq.marks("interval"))
    eventmq.await_marks("interval", before + 2)
    assert client.ask("unschedule", **job(eventmq, "interval"))
    component.signal(signal.SIGTERM)
    assert component.wait() == 0
    until(lambda: not known(), "our goodbye")


def test_our_scheduler_is_used_by_our_broker(
    broker: Broker, eventmq: EventMQ, schedulers: Schedulers
) -> None:
    eventmq.manager("one", broker.endpoints["emqp.workers"], 2)
    component = schedulers.start(broker.endpoints["emqp.clients"])
    client = eventmq.client(broker.endpoints["emqp.clients"])
    until(lambda: broker.workers("default", 2), "the manager's READYs")
    assert client.ask("schedule", **job(eventmq, "interval"), interval_secs=1)
    eventmq.await_marks("interval", 2)
    assert broker.ask("schedules") == []
    # Without it the broker keeps what comes next itself; a removal reaches both.
    component.signal(signal.SIGTERM)
    assert component.wait() == 0
    until(lambda: all(one["role"] != "scheduler" for one in broker.ask("workers")), "its goodbye")
    assert client.ask("schedule", **job(eventmq, "own"), interval_secs=1)
    eventmq.await_marks("own", 2)
    assert len(broker.ask("schedules")) == 1
    assert client.ask("unschedule", **job(eventmq, "own"))
    until(lambda: broker.ask("schedules") == [], "the removal")
