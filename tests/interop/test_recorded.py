"""What the original implementations really sent, read by polybus. Needs none of them (`record.py` does)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polybus.dialects import emqp_admin
from polybus.dialects.dbp import Dbp
from polybus.dialects.emqp import Emqp
from polybus.dialects.emqp_admin import EmqpAdmin
from polybus.dialects.port import RouterEar
from polybus.wire import dbp, emqp
from support.exchange import Exchange

FOLDER = Path(__file__).parent / "recorded"
Frames = list[bytes]
Recorded = tuple[str, str, Frames]


def recorded(name: str) -> list[Recorded]:
    messages = json.loads((FOLDER / f"{name}.json").read_text())["messages"]
    return [(one["from"], one["to"], [frame_of(frame) for frame in one["frames"]]) for one in messages]


def frame_of(frame: str | dict[str, str]) -> bytes:
    return frame.encode() if isinstance(frame, str) else bytes.fromhex(frame["hex"])


EVENTMQ = recorded("eventmq")
HERMES = recorded("hermes")
READERS: dict[tuple[str, str], Callable[[Frames, int], Any]] = {
    ("client", "router"): emqp.read_from_client,
    ("scheduler", "router"): emqp.read_from_client,
    ("manager", "router"): emqp.read_from_worker,
    ("shell", "router"): emqp.read_from_admin,
    ("router", "client"): emqp.read_as_client,
    ("router", "scheduler"): emqp.read_as_scheduler,
    ("router", "manager"): emqp.read_as_worker,
    ("router", "shell"): emqp.read_as_client,
    ("node", "catalog"): dbp.read_from_node,
    ("service", "caller"): dbp.read_as_node,
}
KINDS = {
    b"ACK": emqp.Ack,
    b"DISCONNECT": emqp.Disconnect,
    b"HEARTBEAT": emqp.Heartbeat,
    b"HELLO": emqp.Hello,
    b"INFORM": emqp.Inform,
    b"KBYE": emqp.Goodbye,
    b"PUBLISH": emqp.Publish,
    b"READY": emqp.Ready,
    b"REPLY": emqp.Reply,
    b"REQUEST": emqp.Request,
    b"ROUTER_SHOW_SCHEDULERS": emqp.ShowSchedulers,
    b"ROUTER_SHOW_WORKERS": emqp.ShowWorkers,
    b"SCHEDULE": emqp.Schedule,
    b"STATUS": emqp.Status,
    b"UNSCHEDULE": emqp.Unschedule,
    b"UwU": dbp.Registration,
    b"UoU": dbp.Update,
    b"u_U": dbp.InfoRequest,
    b"o_O": dbp.Answer,
    b"pong": dbp.Pong,
}


def read(message: Recorded) -> Any:
    sender, receiver, frames = message
    assert frames[0] == b""
    return READERS[sender, receiver](frames, 1)


def first(messages: list[Recorded], sender: str, receiver: str, kind: type, **fields: Any) -> Any:
    """The first recorded message of a kind, read."""
    for message in messages:
        if message[:2] == (sender, receiver) and not message[2][1].startswith(b"Error"):
            found = read(message)
            if type(found) is kind and all(getattr(found, name) == value for name, value in fields.items()):
                return found
    raise AssertionError(f"no {kind.__name__} from {sender} to {receiver} was recorded")


def name_of(message: Recorded) -> str:
    sender, receiver, frames = message
    command = frames[2] if frames[1] == emqp.TAG else frames[1]
    return f"{sender}-{receiver}-{command.decode()[:24]}"


@pytest.mark.parametrize("message", EVENTMQ, ids=name_of)
def test_every_message_of_eventmq_is_what_it_says(message: Recorded) -> None:
    assert type(read(message)) is KINDS[message[2][2]]


@pytest.mark.parametrize("message", EVENTMQ, ids=name_of)
def test_we_write_what_eventmq_writes(message: Recorded) -> None:
    found = read(message)
    if isinstance(found, emqp.Inform):
        # The same list of queues, with and without blanks.
        assert emqp.read_from_worker(emqp.write_from_worker(found)) == found
        return
    writers: dict[str, Callable[[Any], list[Any]]] = {
        "client": emqp.write_from_client,
        "scheduler": emqp.write_from_client,
        "manager": emqp.write_from_worker,
        "shell": emqp.write_from_admin,
    }
    write = writers.get(message[0])
    if write is not None:
        assert write(found) == message[2][1:]


def test_what_eventmq_s_messages_mean() -> None:
    every = emqp.Headers(reply_requested=True, guarantee=True, retry_count=3, timeout_s=60)
    request = first(EVENTMQ, "client", "router", emqp.Request, headers=every)
    assert request.queue == b"urgent"
    reply = first(EVENTMQ, "manager", "router", emqp.Reply)
    assert reply.original_id == request.msg_id
    assert json.loads(reply.body[0]) == {"value": 5}
    plain = first(EVENTMQ, "client", "router", emqp.Request, headers=emqp.NO_HEADERS)
    assert emqp.receipt_of(first(EVENTMQ, "router", "client", emqp.Reply)) == plain.msg_id
    inform = first(EVENTMQ, "manager", "router", emqp.Inform)
    assert (inform.role, inform.queues) == ("worker", (emqp.Queue(10, b"default"), emqp.Queue(40, b"urgent")))
    assert first(EVENTMQ, "router", "manager", emqp.Ack).acked_id == inform.msg_id
    assert first(EVENTMQ, "scheduler", "router", emqp.Inform).role == "scheduler"
    schedule = first(EVENTMQ, "client", "router", emqp.Schedule)
    unschedule = first(EVENTMQ, "client", "router", emqp.Unschedule)
    assert (schedule.interval_s, schedule.cron) == (1, b"")
    assert emqp.jobs_to_remove(unschedule) == (emqp.schedule_hash(schedule),)
    publish = first(EVENTMQ, "client", "router", emqp.Publish)
    assert (publish.topic, publish.body) == (b"weather.berlin", [b'{"sun": true}'])


def test_the_admin_port_answers_with_eventmq_s_names() -> None:
    told = [frames for _, receiver, frames in EVENTMQ if receiver == "shell"]
    reports = [json.loads(frames[4]) for frames in told if frames[2] == b"REPLY"]
    ex = Exchange()
    ex.listen(1, RouterEar(ex.bus, "emqp", Emqp(ex.bus, wall=lambda: 0.0).tags))
    ex.send(1, b"worker", b"", emqp.TAG, b"INFORM", b"1", b'[[10, "default"]]', b"worker")
    ex.send(1, b"scheduler", b"", emqp.TAG, b"INFORM", b"2", b"", b"scheduler")
    ours = [
        report(ex.bus, ex.now) for report in (emqp_admin.status, emqp_admin.workers, emqp_admin.schedulers)
    ]
    assert [set(report) for report in ours] == [set(report) for report in reports]
    for section in ("connected_workers", "connected_schedulers"):
        (theirs,), (mine,) = ([r[section] for r in side if section in r] for side in (reports, ours))
        assert set(next(iter(mine.values()))) == set(next(iter(theirs.values())))


def test_the_dialect_takes_everything_that_eventmq_s_peers_send() -> None:
    ex = Exchange()
    asked_to_stop: list[bool] = []
    dialect = Emqp(ex.bus, wall=lambda: 0.0)
    ex.listen(1, RouterEar(ex.bus, "emqp", dialect.tags))
    ex.listen(2, EmqpAdmin(ex.bus, lambda: asked_to_stop.append(True)))
    order = ["manager", "scheduler", "client", "shell", "router"]
    for sender, receiver, frames in sorted(EVENTMQ, key=lambda message: order.index(message[0])):
        # Goodbyes would end what others still talk about.
        if receiver == "router" and frames[2] != b"KBYE":
            ex.send(2 if sender == "shell" else 1, sender.encode(), *frames)
    assert ex.bus.counters.invalid == 0
    assert asked_to_stop == [True]
    got = {peer: [message[2] for message in ex.got(1, peer.encode())] for peer in order[:3]}
    # Receipts for two requests and two schedules; the ACK and a job for the one slot that was offered.
    assert got["client"].count(b"REPLY") == 4
    assert got["manager"] == [b"ACK", b"REQUEST"]
    assert [word for word in got["scheduler"] if word != b"REPLY"] == [b"ACK", b"SCHEDULE", b"UNSCHEDULE"]


@pytest.mark.parametrize("message", HERMES, ids=name_of)
def test_every_message_of_hermes_is_what_it_says(message: Recorded) -> None:
    if not message[2][1].startswith(b"Error"):
        assert type(read(message)) is KINDS[message[2][1]]


def test_what_hermes_messages_mean() -> None:
    info = first(HERMES, "node", "catalog", dbp.Registration).info
    assert (info.name, info.ip) == (b"rohan", "127.0.0.1")
    assert info.interfaces
    assert first(HERMES, "node", "catalog", dbp.Update).name == b"rohan"
    assert first(HERMES, "node", "catalog", dbp.InfoRequest, service=b"")
    assert first(HERMES, "node", "catalog", dbp.InfoRequest, service=b"rohan")
    assert first(HERMES, "service", "caller", dbp.Answer).body == [b"rohan:cba"]


def test_the_dialect_takes_everything_that_hermes_sends() -> None:
    ex = Exchange()
    dialect = Dbp(ex.bus, lambda: 0.0)
    ex.listen(1, RouterEar(ex.bus, "dbp", dialect.tags))
    for sender, _, frames in HERMES:
        if sender == "node":
            ex.send(1, sender.encode(), *frames)
    assert ex.bus.counters.invalid == 0
    answers = ex.got(1, b"node")
    assert [message[1] for message in answers] == [b"OwO", b"u.u", b"o_O", b"o_O"]
    # Hermes takes a message of fewer frames, or with a longer time, for a broken one.
    assert all(len(message) == 4 and len(message[2]) == 4 for message in answers)
    everything, one = (json.loads(message[3]) for message in answers[2:])
    assert one == everything
    assert one["rohan"]["topics"] == ["horses"]


def test_what_hermes_does_not_know_becomes_a_failure() -> None:
    """The outbound ear takes "Error: …" in the place of the command for what it is."""
    ex = Exchange()
    dialect = Dbp(ex.bus, lambda: 0.0, outbound_link=3)
    ex.listen(3, dialect.outbound_ear)
    (error,) = (frames for _, _, frames in HERMES if frames[1].startswith(b"Error"))
    ex.send(3, b"nobody", *error)
    assert ex.bus.counters.invalid == 0
    assert ex.bus.counters.late == 1
