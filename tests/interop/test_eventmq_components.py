"""EventMQ's scheduler, administrative shell and publisher on polybus."""

from __future__ import annotations

import json
import time

import zmq

from support.interop_eventmq import EventMQ
from support.interop_process import Broker, until
from support.patience import patient

# What EventMQ's own router tells (`Router.get_status` and its neighbours).
STATUS_KEYS = {
    "inflight_messages_by_queue",
    "latency_messages_by_queue",
    "max_latency_messages_by_queue",
    "waiting_messages_by_queue",
    "processed_messages_by_queue",
    "processed_messages_by_worker",
}


def test_the_scheduler_runs_jobs_until_they_are_unscheduled(broker: Broker, eventmq: EventMQ) -> None:
    eventmq.manager("one", broker.endpoints["emqp.workers"], 1)
    eventmq.scheduler(broker.endpoints["emqp.clients"])
    client = eventmq.client(broker.endpoints["emqp.clients"])
    admin = broker.endpoints["emqp.admin"]
    until(lambda: broker.workers("default", 1), "the manager's READY")
    until(lambda: any(one["role"] == "scheduler" for one in broker.ask("workers")), "the scheduler's INFORM")
    (beat,) = eventmq.shell_report(admin, "show_schedulers")["connected_schedulers"].values()
    assert beat["hb"] > 0

    first, second = ([str(eventmq.marks_folder), name] for name in ("first", "second"))
    started = time.time()
    assert client.ask("schedule", func="emq_jobs.mark", interval_secs=1, args=first)
    runs = eventmq.await_marks("first", 3)
    # At once, and then every second.
    assert runs[0]["at"] - started < patient(1.5)
    assert runs[2]["at"] - started > 1.5

    assert client.ask("unschedule", func="emq_jobs.mark", args=first)
    # The receipt of the removal, for whoever wants to read it.
    assert client.ask("receive", within_s=10)[2] == "REPLY"
    assert client.ask("schedule", func="emq_jobs.mark", interval_secs=1, args=second)
    # Messages keep their order, so at the first run of the second job the first one is gone.
    eventmq.await_marks("second")
    count = len(eventmq.marks("first"))
    eventmq.await_marks("second", 3)
    assert len(eventmq.marks("first")) == count


def test_a_scheduler_comes_back_to_a_restarted_broker(broker: Broker, eventmq: EventMQ) -> None:
    eventmq.scheduler(broker.endpoints["emqp.clients"])

    def schedulers() -> list[str]:
        return [one["worker"] for one in broker.ask("workers") if one["role"] == "scheduler"]

    (before,) = until(schedulers, "the scheduler's INFORM")
    broker.kill()
    broker.start()
    (after,) = until(schedulers, "the scheduler's return")
    assert after != before


def test_the_shell_sees_what_it_sees_of_eventmq(broker: Broker, eventmq: EventMQ) -> None:
    admin = broker.endpoints["emqp.admin"]
    eventmq.manager("one", broker.endpoints["emqp.workers"], 2, [(10, "default"), (40, "urgent")])
    until(lambda: broker.workers("urgent", 2), "the manager's READYs")
    client = eventmq.client(broker.endpoints["emqp.clients"])
    client.ask("defer", func="emq_jobs.hold", args=[str(eventmq.marks_folder), "job", "go"], queue="urgent")
    eventmq.await_marks("job.begun")

    status = eventmq.shell_report(admin, "status")
    assert set(status) == STATUS_KEYS
    assert status["inflight_messages_by_queue"] == {"urgent": 1}
    assert status["processed_messages_by_queue"] == {"urgent": 1}

    shown = eventmq.shell_report(admin, "show_workers")
    assert set(shown) == {"connected_workers", "connected_queues"}
    ((name, worker),) = shown["connected_workers"].items()
    assert set(worker) == {"queues", "hb", "available_slots"}
    assert sorted(worker["queues"]) == [[10, "default"], [40, "urgent"]]
    assert worker["available_slots"] == 1
    assert shown["connected_queues"] == {"default": [[10, name]], "urgent": [[40, name]]}
    assert eventmq.shell_report(admin, "show_schedulers") == {"connected_schedulers": {}}


def test_the_shell_can_shut_the_broker_down(broker: Broker, eventmq: EventMQ) -> None:
    printed = eventmq.shell(broker.endpoints["emqp.admin"], "shutdown")
    assert "'ACK'" in printed
    assert broker.process.wait() == 0


def test_publications_reach_eventmq_subscribers(broker: Broker, eventmq: EventMQ) -> None:
    client = eventmq.client(broker.endpoints["emqp.clients"])
    client.ask("subscribe", address=broker.endpoints["emqp.subscribe"], topic="weather")
    until(lambda: broker.ask("status")["subscriptions"], "the subscription")
    place = broker.endpoints["emqp.publish"]
    client.ask("publish", address=place, topic="news", message="not for us")
    client.ask("publish", address=place, topic="weather.berlin", message={"sun": True})
    assert client.ask("publication", within_s=10) == ["weather.berlin", json.dumps({"sun": True})]

    # EBUS subscribers get the same.
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.linger = 0
        socket.subscribe("weather")
        socket.connect(broker.endpoints["ebus.subscribe"])
        until(lambda: broker.ask("status")["subscriptions"] == 2, "the second subscription")
        client.ask("publish", address=place, topic="weather.rome", message=["rain"])
        # What it missed comes first: the last value of every topic that it asked for.
        for topic, message in ((b"weather.berlin", {"sun": True}), (b"weather.rome", ["rain"])):
            assert socket.poll(int(patient(10.0) * 1000))
            assert socket.recv_multipart() == [topic, json.dumps(message).encode()]
