"""polybus' client and worker on EventMQ's own router, which knows receipts but forwards no results."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from polybus import Client, Request, RequestTimeout, Worker
from support.commands import Running, closing
from support.interop_eventmq import EventMQ
from support.interop_process import running, until
from support.job_broker import TESTS


def slots(eventmq: EventMQ, admin: str) -> list[int]:
    """The free slots of each worker, as EventMQ's router counts them."""
    workers = eventmq.shell_report(admin, "show_workers")["connected_workers"]
    return sorted(worker["available_slots"] for worker in workers.values())


def test_a_polybus_worker_serves_eventmq_s_router(eventmq: EventMQ) -> None:
    _, places = eventmq.router()
    done: list[tuple[str, bytes]] = []

    def run(request: Request) -> bytes:
        done.append((request.service, request.body))
        return b'{"value": "done"}'

    weights = {"default": 10, "mail": 40}
    worker = Worker(dict.fromkeys(weights, run), places["workers"], "emqp", credit=3, weights=weights)
    with running(worker):
        until(lambda: slots(eventmq, places["admin"]) == [3], "three READYs")
        shown = eventmq.shell_report(places["admin"], "show_workers")
        ((name, entry),) = shown["connected_workers"].items()
        assert sorted(entry["queues"]) == [[10, "default"], [40, "mail"]]
        assert shown["connected_queues"] == {"default": [[10, name]], "mail": [[40, name]]}

        # EventMQ's client: its job is a JSON text that names a callable.
        client = eventmq.client(places["clients"])
        sent = client.ask("defer", func="emq_jobs.add", args=[1, 2], queue="mail", reply_requested=True)
        receipt = client.ask("receive", within_s=10)
        assert (receipt[2], receipt[4:]) == ("REPLY", [sent])
        until(lambda: len(done) == 1, "the job of EventMQ's client")
        queue, body = done.pop()
        assert queue == "mail"
        word, job = json.loads(body)
        assert (word, job["callable"], job["path"], job["args"]) == ("run", "add", "emq_jobs", [1, 2])

        # Ours: the body is ours as well.
        with Client(places["clients"], "emqp") as ours:
            pendings = [ours.submit("default", b"job %d" % number) for number in range(20)]
            until(lambda: len(done) == 20, "the jobs of polybus' client")
            assert sorted(done) == sorted(("default", b"job %d" % number) for number in range(20))
            # As many as there were free slots got a receipt; EventMQ's router is silent about the others.
            with pytest.raises(RequestTimeout):
                pendings[0].result(timeout_s=0.5)
            assert pendings[0].is_accepted
            assert not any(pending.is_done for pending in pendings)
            assert ours.invalid == 0

        # Every job was replied to and its slot offered again: the router counts as many as before.
        until(lambda: slots(eventmq, places["admin"]) == [3], "three slots again")
        status = eventmq.shell_report(places["admin"], "status")
        assert status["inflight_messages_by_queue"] == {}
        assert worker.invalid == 0
    until(lambda: slots(eventmq, places["admin"]) == [], "its goodbye")


def test_polybus_worker_serves_eventmq_s_router_and_says_nothing_strange(
    eventmq: EventMQ, tmp_path: Path
) -> None:
    router, places = eventmq.router()
    notes = tmp_path / "notes"
    arguments = ("support.worker_app:bus", "-Q", "email:7", "-c", "1", "--broker", places["workers"])
    with closing(Running("worker", *arguments, cwd=tmp_path, env={"PYTHONPATH": str(TESTS)})) as worker:
        # Its INFORM has one frame more than EventMQ's.
        worker.wait_for(worker.output, "ready email")
        until(lambda: slots(eventmq, places["admin"]) == [1], "a READY")
        with Client(places["clients"], "emqp") as client:
            for number in range(20):
                call = {"path": "support.worker_app", "callable": "note", "args": [str(notes), str(number)]}
                client.submit("email", json.dumps(["run", call]).encode())
            until(lambda: notes.exists() and len(notes.read_text().split()) == 20, "the jobs")
        assert worker.end(signal.SIGTERM) == 0
    assert sorted(notes.read_text().split(), key=int) == [str(number) for number in range(20)]
    until(lambda: slots(eventmq, places["admin"]) == [], "its goodbye")
    log = router.log()
    assert not [word for word in ("LEAVE", "RETURN", "PROGRESS", "Traceback") if word in log]
