"""EventMQ's client and job managers on polybus: jobs run, answers come back, managers come and go."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from polybus.wire.context import new_context
from support.interop_eventmq import EventMQ
from support.interop_process import Broker, Process, until
from support.live import Peer

TAG = "eMQP/1.0"


def answers(client: Process, count: int) -> list[list[str]]:
    """So many messages of the broker, without the empty frame."""
    found = []
    for _ in range(count):
        message = client.ask("receive", within_s=10)
        assert message is not None, f"the client got {found} and then nothing"
        assert message[:2] == ["", TAG]
        found.append(message[2:])
    return found


def ready_manager(eventmq: EventMQ, broker: Broker, name: str, slots: int = 2, **options: Any) -> Process:
    before = len(broker.workers("default"))
    manager = eventmq.manager(name, broker.endpoints["emqp.workers"], slots, **options)
    until(lambda: len(broker.workers("default", slots)) == before + 1, f"{slots} READYs of {name}")
    return manager


def test_jobs_run_and_their_results_come_back(broker: Broker, eventmq: EventMQ) -> None:
    ready_manager(eventmq, broker, "one", 3)
    client = eventmq.client(broker.endpoints["emqp.clients"])
    marks = str(eventmq.marks_folder)

    # Without reply-requested: the receipt, which names the message, and nothing else.
    sent = [client.ask("defer", func="emq_jobs.mark", args=[marks, f"plain{n}"]) for n in range(5)]
    assert [[body for _, _, body in answers(client, 5)]] == [sent]
    for number in range(5):
        assert len(eventmq.await_marks(f"plain{number}")) == 1

    # With it: the receipt, then the result with the id of the request.
    asked = client.ask("defer", func="emq_jobs.add", args=[2, 3], reply_requested=True)
    receipt, result = answers(client, 2)
    assert receipt[0] == result[0] == "REPLY"
    assert receipt[2:] == [asked]
    assert result[2:] == [json.dumps({"value": 5}), asked]

    # EventMQ turns an exception into its text, and no result into null.
    failing = client.ask("defer", func="emq_jobs.fail", args=["no good"], reply_requested=True)
    assert answers(client, 2)[1][2:] == [json.dumps({"value": "no good"}), failing]
    empty = client.ask("defer", func="emq_jobs.nothing", reply_requested=True)
    assert answers(client, 2)[1][2:] == [json.dumps({"value": None}), empty]

    # send_request with the same message by hand.
    job = ["run", {"path": "emq_jobs", "callable": "add", "args": [40, 2]}]
    by_hand = client.ask("request", message=job, reply_requested=True, guarantee=True, retry_count=2)
    assert answers(client, 2)[1][2:] == [json.dumps({"value": 42}), by_hand]
    assert broker.ask("status")["invalid"] == 0


def test_a_traced_job_runs_in_an_unmodified_manager(broker: Broker, eventmq: EventMQ) -> None:
    """The context of a trace is a header that EventMQ does not know; it reads on."""
    ready_manager(eventmq, broker, "one", 1)
    context = new_context("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "shop=1,b=timeout:x")
    job = ["run", {"path": "emq_jobs", "callable": "add", "args": [40, 2]}]
    headers = ",".join(["reply-requested", *context]).encode()
    with Peer(broker.endpoints["emqp.clients"]) as client:
        client.send(b"", TAG.encode(), b"REQUEST", b"m1", b"default", headers, json.dumps(job).encode())
        result = client.recv_until(lambda frames: len(frames) == 6)

    assert result[4:] == [json.dumps({"value": 42}).encode(), b"m1"]


def test_a_job_that_takes_too_long_is_ended_by_its_manager(broker: Broker, eventmq: EventMQ) -> None:
    ready_manager(eventmq, broker, "one", 1)
    client = eventmq.client(broker.endpoints["emqp.clients"])
    held = client.ask(
        "defer",
        func="emq_jobs.hold",
        args=[str(eventmq.marks_folder), "slow", "never"],
        reply_requested=True,
        timeout=1,
    )
    assert answers(client, 2)[1][2:] == [json.dumps({"value": "TimeoutError"}), held]
    # The manager replaces the worker that it lost, and that one is READY.
    eventmq.release("never")
    after = client.ask("defer", func="emq_jobs.add", args=[1, 1], reply_requested=True)
    assert answers(client, 2)[1][2:] == [json.dumps({"value": 2}), after]


def test_decorated_functions_and_queues(broker: Broker, eventmq: EventMQ) -> None:
    ready_manager(eventmq, broker, "plain", 1)
    eventmq.manager("mailer", broker.endpoints["emqp.workers"], 1, [(10, "mail")])
    until(lambda: broker.workers("mail", 1), "the mailer's READY")
    client = eventmq.client(broker.endpoints["emqp.clients"])
    marks = str(eventmq.marks_folder)
    assert client.ask("delay", function="decorated", args=[marks, "by-default"])
    assert client.ask("delay", function="decorated_for_mail", args=[marks, "by-mail"])
    assert client.ask("defer", func="emq_jobs.mark", args=[marks, "for-nobody"], queue="unknown")
    assert [mark["manager"] for mark in eventmq.await_marks("by-default")] == ["plain"]
    assert [mark["manager"] for mark in eventmq.await_marks("by-mail")] == ["mailer"]
    # As in EventMQ, what is for a queue without workers goes to the default queue.
    assert [mark["manager"] for mark in eventmq.await_marks("for-nobody")] == ["plain"]


def test_the_heavier_queue_goes_first(broker: Broker, eventmq: EventMQ) -> None:
    queues = [(10, "default"), (40, "urgent")]
    ready_manager(eventmq, broker, "one", 1, queues=queues)
    client = eventmq.client(broker.endpoints["emqp.clients"])
    marks = str(eventmq.marks_folder)
    client.ask("defer", func="emq_jobs.hold", args=[marks, "first", "go"])
    eventmq.await_marks("first.begun")
    for number in range(3):
        client.ask("defer", func="emq_jobs.mark", args=[marks, f"later{number}"])
    for number in range(3):
        client.ask("defer", func="emq_jobs.mark", args=[marks, f"urgent{number}"], queue="urgent")
    answers(client, 7)
    eventmq.release("go")
    eventmq.await_marks("later2")
    names = [f"{kind}{number}" for kind in ("urgent", "later") for number in range(3)]
    at = [eventmq.marks(name)[0]["at"] for name in names]
    assert at == sorted(at)


def test_a_killed_manager_s_job_is_run_by_another(broker: Broker, eventmq: EventMQ) -> None:
    managers = {name: ready_manager(eventmq, broker, name, 1) for name in ("one", "two")}
    client = eventmq.client(broker.endpoints["emqp.clients"])
    args = [str(eventmq.marks_folder), "job", "go"]
    asked = client.ask("defer", func="emq_jobs.hold", args=args, reply_requested=True)
    victim = eventmq.await_marks("job.begun")[0]["manager"]
    managers.pop(victim).kill()
    (survivor,) = managers
    assert [mark["manager"] for mark in eventmq.await_marks("job.begun", 2)] == [victim, survivor]
    eventmq.release("go")
    assert answers(client, 2)[1][2:] == [json.dumps({"value": "job"}), asked]
    assert [mark["manager"] for mark in eventmq.marks("job")] == [survivor]
    assert [worker["services"] for worker in broker.ask("workers")] == [{"default": 10}]


def test_a_manager_that_says_goodbye_gets_no_more_jobs(broker: Broker, eventmq: EventMQ) -> None:
    leaving = ready_manager(eventmq, broker, "leaving", 2)
    client = eventmq.client(broker.endpoints["emqp.clients"])
    marks = str(eventmq.marks_folder)
    leaving.signal(signal.SIGTERM)
    until(lambda: not broker.workers("default"), "the manager's KBYE")
    client.ask("defer", func="emq_jobs.mark", args=[marks, "afterwards"])
    answers(client, 1)
    # Its workers end within a second or two, and then it does.
    assert leaving.wait() == 0
    ready_manager(eventmq, broker, "staying", 1)
    assert [mark["manager"] for mark in eventmq.await_marks("afterwards")] == ["staying"]


def test_managers_come_back_to_a_restarted_broker(broker: Broker, eventmq: EventMQ) -> None:
    ready_manager(eventmq, broker, "one", 2)
    client = eventmq.client(broker.endpoints["emqp.clients"])
    marks = str(eventmq.marks_folder)
    client.ask("defer", func="emq_jobs.mark", args=[marks, "before"])
    answers(client, 1)
    eventmq.await_marks("before")
    broker.kill()
    broker.start()
    # Nobody tells the manager that this broker does not know it: it notices the silence and begins anew.
    until(lambda: broker.workers("default", 2), "the manager's return")
    asked = client.ask("defer", func="emq_jobs.add", args=[20, 22], reply_requested=True)
    assert answers(client, 2)[1][2:] == [json.dumps({"value": 42}), asked]


@pytest.mark.conforms("EMQP-33")
def test_components_that_were_told_goodbye_go_on_with_the_next_broker(
    broker: Broker, eventmq: EventMQ
) -> None:
    ready_manager(eventmq, broker, "one", 2)
    client = eventmq.client(broker.endpoints["emqp.clients"])
    asked = client.ask("defer", func="emq_jobs.add", args=[20, 22], reply_requested=True)
    assert answers(client, 2)[1][2:] == [json.dumps({"value": 42}), asked]
    broker.ask("drain")
    assert answers(client, 1)[0][0] == "KBYE"
    assert broker.process.wait() == 0
    broker.kill()
    broker.start()
    until(lambda: broker.workers("default", 2), "the manager's return")
    asked = client.ask("defer", func="emq_jobs.add", args=[2, 3], reply_requested=True)
    assert answers(client, 2)[1][2:] == [json.dumps({"value": 5}), asked]


def test_a_manager_that_leaves_in_the_middle_of_a_job_loses_nothing(broker: Broker, eventmq: EventMQ) -> None:
    managers = {name: ready_manager(eventmq, broker, name, 1) for name in ("one", "two")}
    client = eventmq.client(broker.endpoints["emqp.clients"])
    args = [str(eventmq.marks_folder), "job", "go"]
    asked = client.ask("defer", func="emq_jobs.hold", args=args, reply_requested=True)
    leaving = managers[eventmq.await_marks("job.begun")[0]["manager"]]
    leaving.signal(signal.SIGTERM)
    until(lambda: len(broker.workers("default")) == 1, "the manager's KBYE")
    eventmq.release("go")
    # Both managers may have run it; the client hears of one result.
    assert answers(client, 2)[1][2:] == [json.dumps({"value": "job"}), asked]
    assert leaving.wait() == 0
    after = client.ask("defer", func="emq_jobs.add", args=[1, 2], reply_requested=True)
    assert [answer[2:] for answer in answers(client, 2)] == [[after], [json.dumps({"value": 3}), after]]
