"""The outbox: what the bus asks for becomes messages, and what could not be sent becomes an event."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import pytest

from polybus.core import actions as act
from polybus.core import events
from polybus.core.bus import Bus
from polybus.core.lifecycle import WorkerState
from polybus.core.model import Heartbeat, Limits, Reason
from polybus.dialects.port import Voice
from polybus.errors import LocalProtocolError
from polybus.server.effects import Outbox

CLIENT, WORKER = (1, b"c"), (2, b"w")
NOW = 10.0


class Loud(Voice):
    """Says the name of the action; what it is told not to say, it cannot."""

    def __init__(self, *mute: str) -> None:
        self._mute = mute

    def _say(self, word: str, to: bytes) -> list[Any]:
        if word in self._mute:
            raise LocalProtocolError(f"no word for {word}")
        return [to, word.encode()]

    def accept(self, action: act.Accept) -> list[Any]:
        return self._say("accept", action.client[1])

    def stream(self, action: act.Stream) -> list[Any]:
        return self._say("stream", action.client[1])

    def answer(self, action: act.Answer) -> list[Any]:
        return self._say("answer", action.client[1])

    def refuse(self, action: act.Refuse) -> list[Any]:
        return [action.client[1], b"refuse", action.reason.encode(), action.detail.encode()]

    def deliver(self, worker: Any, request: Any) -> list[Any]:
        return self._say("deliver", worker.address[1])

    def stop(self, action: act.Stop) -> list[Any]:
        return self._say("stop", action.worker.address[1])

    def beat(self, action: act.Beat) -> list[Any]:
        return self._say("beat", action.worker.address[1])

    def dismiss(self, action: act.Dismiss) -> list[Any]:
        return self._say("dismiss", action.peer[1])

    def reschedule(self, action: act.Reschedule) -> list[Any]:
        return self._say("reschedule", action.worker.address[1])

    def approve(self, action: act.Approve) -> list[Any]:
        return self._say("approve", action.node[1])

    def deny(self, action: act.Deny) -> list[Any]:
        return self._say("deny", action.node[1])

    def acknowledge(self, action: act.Acknowledge) -> list[Any]:
        return self._say("acknowledge", action.node[1])


class FakePump:
    """Takes everything but what it is told to refuse, by peer."""

    kind = "fake"

    def __init__(self) -> None:
        self.sent: list[tuple[int, list[Any]]] = []
        self.refuse: dict[bytes, int] = {}

    def send_many(self, messages: Sequence[tuple[int, Sequence[Any]]]) -> list[tuple[int, int]]:
        refused = []
        for position, (link, frames) in enumerate(messages):
            if bytes(frames[0]) in self.refuse:
                refused.append((position, self.refuse[bytes(frames[0])]))
            else:
                self.sent.append((link, list(frames)))
        return refused

    def recv_many(self, timeout_ms: int, limit: int = 1000) -> list[Any]:
        raise AssertionError


class Office:
    def __init__(self, voice: Voice | None = None) -> None:
        self.voice = voice or Loud()
        self.bus = Bus(b"n-")
        self.pump = FakePump()
        self.outbox = Outbox(self.bus, self.pump)
        self.outbox.handlers[act.Drained] = lambda action: None

    def worker(self, name: bytes = b"w", credit: int = 5) -> Any:
        address = (2, name)
        self.bus.handle(events.WorkerUp(address, self.voice, ((b"echo", 0),), Heartbeat(0.0), credit), NOW)
        return self.bus.workers[address]

    def submit(self, request_id: bytes = b"1", client: tuple[int, bytes] = CLIENT) -> None:
        self.bus.handle(events.Submit(client, self.voice, request_id, b"echo", [b"body"]), NOW)

    def settle(self) -> list[tuple[int, list[Any]]]:
        self.outbox.settle(NOW)
        sent, self.pump.sent = self.pump.sent, []
        return sent


def actions(office: Office) -> dict[str, Any]:
    """One of each, as the bus would note it."""
    worker, voice = office.worker(), office.voice
    office.bus.take()
    about = (CLIENT, voice, b"echo", b"1")
    return {
        "accept": act.Accept(*about),
        "stream": act.Stream(*about, [b"part"]),
        "answer": act.Answer(*about, [b"done"]),
        "refuse": act.Refuse(*about, Reason.FAILED, "no", []),
        "stop": act.Stop(worker, b"t"),
        "beat": act.Beat(worker),
        "dismiss": act.Dismiss((3, b"p"), voice, "why"),
        "reschedule": act.Reschedule(worker, "message"),
        "approve": act.Approve((3, b"p"), voice, None),  # type: ignore[arg-type]
        "deny": act.Deny((3, b"p"), voice, b"n", ()),
        "acknowledge": act.Acknowledge((3, b"p"), voice, b"n"),
        "say": act.Say((3, b"p"), [b"p", b"say"]),
    }


TO_CLIENTS = ("accept", "stream", "answer", "refuse")
TO_WORKERS = ("stop", "beat", "reschedule")
TO_OTHERS = ("dismiss", "approve", "deny", "acknowledge", "say")
LINKS = {**dict.fromkeys(TO_CLIENTS, 1), **dict.fromkeys(TO_WORKERS, 2), **dict.fromkeys(TO_OTHERS, 3)}


LIBRARY = b"pb-0123456789abcdef"


@pytest.mark.parametrize(
    ("identity", "reason", "is_neighbour", "is_told"),
    [
        (LIBRARY, Reason.DRAINING, False, False),
        # It asks the next broker only because this one goes.
        (LIBRARY, Reason.FAILED, False, True),
        (b"own name", Reason.DRAINING, False, True),
        # A neighbour gives what it gets back to somebody else.
        (LIBRARY, Reason.DRAINING, True, True),
    ],
)
def test_a_client_that_asks_the_next_broker_is_not_told_that_this_one_drains(
    identity: bytes, reason: Reason, is_neighbour: bool, is_told: bool
) -> None:
    office = Office()
    if is_neighbour:
        office.outbox.links_without_waiting.add(1)
    office.bus.actions.append(act.Refuse((1, identity), office.voice, b"echo", b"1", reason, "why", []))
    assert [frames[:3] for _, frames in office.settle()] == [[identity, b"refuse", reason.encode()]] * is_told


@pytest.mark.parametrize("kind", LINKS)
def test_every_action_goes_to_its_peer(kind: str) -> None:
    office = Office()
    action = actions(office)[kind]
    office.bus.actions.append(action)
    ((link, frames),) = office.settle()
    assert link == LINKS[kind]
    assert frames[1] == kind.encode()


# What is frames already needs no words.
@pytest.mark.parametrize("kind", sorted(LINKS.keys() - {"say"}))
def test_where_a_dialect_has_no_word_nothing_is_sent(kind: str) -> None:
    office = Office(Voice())
    action = actions(office)[kind]
    office.bus.actions.append(action)
    assert office.settle() == []


@pytest.mark.parametrize("kind", TO_CLIENTS)
@pytest.mark.parametrize("number", [errno.EHOSTUNREACH, errno.EIO])
def test_what_a_client_did_not_take_is_counted(kind: str, number: int) -> None:
    office = Office()
    office.pump.refuse[b"c"] = number
    action = actions(office)[kind]
    office.bus.actions.append(action)
    assert office.settle() == []
    assert office.bus.counters.answers_lost == 1


@pytest.mark.parametrize("has_room", [True, False])
def test_a_lost_answer_names_its_request(has_room: bool) -> None:
    office = Office()
    office.bus.listen(True, None)
    if not has_room:
        office.bus.change_limits(Limits(pending_bytes_per_client=1))
    office.outbox.handlers[act.Observed] = observed = Observations()
    office.worker()
    # As a client of MDP, which has no request ids.
    office.submit(b"")
    (token,) = office.bus.requests
    office.settle()
    office.pump.refuse[b"c"] = errno.EHOSTUNREACH if has_room else errno.EAGAIN
    office.bus.handle(events.Result(WORKER, token, [b"done"]), NOW)
    office.settle()
    (lost,) = [record for record in observed.records if record.what == "answer_lost"]
    assert (lost.token, lost.service, lost.client) == (token, b"echo", CLIENT)
    assert lost.client_voice is office.voice
    assert ("limits.pending_bytes_per_client" in lost.reason) == (not has_room)


class Observations:
    def __init__(self) -> None:
        self.records: list[act.Observed] = []

    def __call__(self, record: act.Observed) -> None:
        self.records.append(record)


TO_PEERS_THAT_WAIT = (*TO_CLIENTS, "approve", "deny", "acknowledge", "say")


@pytest.mark.parametrize("kind", TO_PEERS_THAT_WAIT)
def test_what_a_client_has_no_room_for_waits(kind: str) -> None:
    office = Office()
    action = actions(office)[kind]
    name = b"c" if kind in TO_CLIENTS else b"p"
    office.pump.refuse[name] = errno.EAGAIN
    office.bus.actions.append(action)
    assert office.settle() == []
    assert office.outbox.pending.messages == 1
    # What comes later waits behind it, even if there is room now.
    del office.pump.refuse[name]
    office.bus.actions.append(action)
    assert office.settle() == []
    office.outbox.pending.resume(NOW + 1.0)
    assert [frames[1] for _, frames in office.pump.sent] == [kind.encode()] * 2
    assert office.outbox.pending.messages == office.outbox.pending.bytes == 0
    assert office.bus.counters.answers_lost == 0


def test_others_do_not_wait_for_a_client_without_room() -> None:
    office = Office()
    office.worker()
    office.pump.refuse[b"c"] = errno.EAGAIN
    office.bus.actions.append(act.Answer(CLIENT, office.voice, b"echo", b"1", [b"done"]))
    office.settle()
    office.submit(b"2", (1, b"other"))
    assert [frames[0] for _, frames in office.settle()] == [b"w"]


@pytest.mark.parametrize("kind", TO_WORKERS)
def test_a_worker_that_cannot_be_reached_is_gone(kind: str) -> None:
    office = Office()
    office.pump.refuse[b"w"] = errno.EHOSTUNREACH
    action = actions(office)[kind]
    office.bus.actions.append(action)
    office.settle()
    assert WORKER not in office.bus.workers


def test_what_a_worker_had_before_its_connection_broke_it_may_answer_over_the_next() -> None:
    office = Office()
    office.worker(credit=2)
    office.submit(b"1")
    office.settle()
    (first,) = office.bus.requests
    office.pump.refuse[b"w"] = errno.EHOSTUNREACH
    office.submit(b"2")
    office.settle()
    assert WORKER not in office.bus.workers
    office.bus.handle(events.Result(WORKER, first, [b"done"]), NOW)
    assert (office.bus.counters.replied, office.bus.counters.late) == (1, 0)


@pytest.mark.parametrize("kind", TO_WORKERS)
def test_a_worker_whose_pipe_is_full_stays(kind: str) -> None:
    office = Office()
    office.pump.refuse[b"w"] = errno.EAGAIN
    action = actions(office)[kind]
    office.bus.actions.append(action)
    office.settle()
    assert WORKER in office.bus.workers


@pytest.mark.parametrize("kind", TO_OTHERS)
def test_nobody_waits_for_other_words(kind: str) -> None:
    office = Office()
    office.pump.refuse[b"p"] = errno.EHOSTUNREACH
    action = actions(office)[kind]
    office.bus.actions.append(action)
    assert office.settle() == []
    assert office.bus.counters.answers_lost == 0


def test_who_asked_for_it_is_told_of_other_refusals() -> None:
    office = Office()
    told: list[Any] = []
    office.outbox.refusals[act.Say] = told.append
    office.pump.refuse[b"p"] = errno.EHOSTUNREACH
    say = act.Say((3, b"p"), [b"p", b"say"])
    office.bus.actions.append(say)
    office.settle()
    assert told == [say]


def test_a_request_for_a_worker_that_is_gone_goes_to_the_next() -> None:
    office = Office()
    office.worker(b"w1")
    office.worker(b"w2")
    office.pump.refuse[b"w1"] = errno.EHOSTUNREACH
    office.submit(b"1")
    office.submit(b"2")
    assert office.settle() == [(2, [b"w2", b"deliver"])] * 2
    assert set(office.bus.workers) == {(2, b"w2")}
    assert office.bus.counters.requeued == 1


def test_a_request_for_a_full_worker_goes_to_the_next_and_costs_no_attempt() -> None:
    office = Office()
    full = office.worker(b"w1")
    office.worker(b"w2")
    office.pump.refuse[b"w1"] = errno.EAGAIN
    office.submit()
    assert office.settle() == [(2, [b"w2", b"deliver"])]
    assert full.state is WorkerState.CONGESTED
    (request,) = office.bus.requests.values()
    assert request.attempt == 1


def test_what_a_full_worker_gives_back_keeps_its_order() -> None:
    office = Office()
    office.worker(credit=3)
    office.pump.refuse[b"w"] = errno.EAGAIN
    for number in (b"1", b"2", b"3"):
        office.submit(number)
    office.settle()
    queue = office.bus.services[b"echo"].queue
    assert [queue.pop().request_id for _ in range(3)] == [b"1", b"2", b"3"]


class Joining(Loud):
    """Writes requests one behind the other, three in a message."""

    joins = True

    def deliver(self, worker: Any, request: Any) -> list[Any]:
        if b"unspeakable" in request.body:
            raise LocalProtocolError("no word for deliver")
        return [worker.address[1], b"deliver", request.request_id]

    def join(self, message: list[Any], request: Any) -> bool:
        if b"unspeakable" in request.body:
            raise LocalProtocolError("no word for deliver")
        if len(message) >= 5 or b"alone" in request.body:
            return False
        message.append(request.request_id)
        return True


def test_requests_for_one_worker_go_together() -> None:
    office = Office(Joining())
    office.worker(credit=9)
    for number in range(5):
        office.submit(b"%d" % number)
    assert office.settle() == [
        (2, [b"w", b"deliver", b"0", b"1", b"2"]),
        (2, [b"w", b"deliver", b"3", b"4"]),
    ]
    office.submit(b"5")
    assert office.settle() == [(2, [b"w", b"deliver", b"5"])], "each turn begins anew"


def test_each_worker_gets_its_own() -> None:
    office = Office(Joining())
    office.worker(b"w1")
    office.worker(b"w2")
    for number in range(4):
        office.submit(b"%d" % number)
    assert office.settle() == [(2, [b"w1", b"deliver", b"0", b"2"]), (2, [b"w2", b"deliver", b"1", b"3"])]


def test_what_goes_alone_is_not_overtaken() -> None:
    office = Office(Joining())
    office.worker(credit=9)
    for number, body in enumerate((b"", b"alone", b"", b"")):
        office.bus.handle(events.Submit(CLIENT, office.voice, b"%d" % number, b"echo", [body]), NOW)
    sent = [frames[2:] for _, frames in office.settle()]
    assert [number for numbers in sent for number in numbers] == [b"0", b"1", b"2", b"3"]
    assert sent[0] == [b"0"]


@pytest.mark.parametrize("kind", [*TO_WORKERS, *TO_OTHERS])
def test_other_words_keep_their_place_between_requests(kind: str) -> None:
    office = Office(Joining())
    between = actions(office)[kind]
    office.submit(b"1")
    office.submit(b"2")
    office.bus.actions.append(between)
    office.submit(b"3")
    assert [frames[1:] for _, frames in office.settle()] == [
        [b"deliver", b"1", b"2"],
        [kind.encode()],
        [b"deliver", b"3"],
    ]


@pytest.mark.parametrize("kind", TO_CLIENTS)
def test_words_to_clients_do_not_part_them(kind: str) -> None:
    office = Office(Joining())
    between = actions(office)[kind]
    office.submit(b"1")
    office.bus.actions.append(between)
    office.submit(b"2")
    assert (2, [b"w", b"deliver", b"1", b"2"]) in office.settle()


def test_all_requests_of_a_refused_message_go_back_in_their_order() -> None:
    office = Office(Joining())
    full = office.worker(credit=5)
    office.pump.refuse[b"w"] = errno.EAGAIN
    for number in range(5):
        office.submit(b"%d" % number)
    assert office.settle() == []
    assert full.state is WorkerState.CONGESTED
    assert (full.free, full.inflight) == (5, {})
    queue = office.bus.services[b"echo"].queue
    assert [queue.pop().request_id for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


def test_all_requests_of_a_worker_that_is_gone_go_to_the_next() -> None:
    office = Office(Joining())
    office.worker(b"w1")
    office.pump.refuse[b"w1"] = errno.EHOSTUNREACH
    for number in range(3):
        office.submit(b"%d" % number)
    office.worker(b"w2")
    assert office.settle() == [(2, [b"w2", b"deliver", b"0", b"1", b"2"])]
    assert office.bus.counters.requeued == 3


def test_one_that_cannot_be_told_is_refused_and_the_others_go() -> None:
    office = Office(Joining())
    office.worker()
    for number, body in enumerate((b"", b"unspeakable", b"")):
        office.bus.handle(events.Submit(CLIENT, office.voice, b"%d" % number, b"echo", [body]), NOW)
    assert office.settle() == [
        (2, [b"w", b"deliver", b"0", b"2"]),
        (1, [b"c", b"refuse", b"undeliverable", b"no word for deliver"]),
    ]


def test_nobody_is_left_is_an_end_too() -> None:
    """Everyone is gone: settling ends, and the requests wait."""
    office = Office()
    for name in (b"w1", b"w2", b"w3"):
        office.worker(name)
        office.pump.refuse[name] = errno.EHOSTUNREACH
    office.submit()
    assert office.settle() == []
    assert not office.bus.workers
    assert office.bus.services[b"echo"].queue.length == 1


def test_what_the_worker_cannot_be_told_is_refused() -> None:
    office = Office(Loud("deliver"))
    office.worker()
    office.submit()
    ((link, frames),) = office.settle()
    assert (link, frames) == (1, [b"c", b"refuse", b"undeliverable", b"no word for deliver"])
    assert not office.bus.requests


def test_an_answer_that_the_client_cannot_be_told_is_refused() -> None:
    office = Office(Loud("answer"))
    office.worker()
    office.submit()
    office.settle()
    (token,) = office.bus.requests
    office.bus.handle(events.Result(WORKER, token, [b"a", b"b"]), NOW)
    assert office.settle() == [(1, [b"c", b"refuse", b"undeliverable", b"no word for answer"])]
    office.submit()
    assert office.settle() == [(1, [b"c", b"refuse", b"undeliverable", b"no word for answer"])]


def test_publications_go_to_every_link_of_subscribers_in_its_own_words() -> None:
    office = Office()
    office.outbox.subscribers = [
        (5, lambda topic, body: [topic, *body]),
        (6, lambda topic, body: [topic, b"6"]),
    ]
    full: list[tuple[int, Any]] = []
    office.outbox.on_full_subscriber = lambda link, message: full.append((link, message))
    office.bus.handle(events.Publish(b"t", [b"x"]), NOW)
    assert office.settle() == [(5, [b"t", b"x"]), (6, [b"t", b"6"])]
    office.pump.refuse[b"t"] = errno.EAGAIN
    office.bus.handle(events.Publish(b"t", [b"x"]), NOW)
    office.settle()
    assert full == [(5, [b"t", b"x"]), (6, [b"t", b"6"])], "in their order"


def test_what_was_put_directly_goes_out() -> None:
    office = Office()
    office.outbox.put(4, [b"peer", b"answer"], None)
    office.outbox.put(4, None, None)
    assert office.settle() == [(4, [b"peer", b"answer"])]
