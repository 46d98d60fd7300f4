"""DISCONNECT and KBAI of eMQP, and conversations that break, over real sockets."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from typing import Self

import pytest
import zmq

from conformance.live_settings import BEAT_S, UNHURRIED
from polybus import AsyncClient, Client, Worker
from polybus.cli.keeper import Keeper
from polybus.client.scheduler import Scheduler
from polybus.client.sessions.emqp import EmqpWorker
from support.emqp_component import TAG, Component
from support.fake_brokers import Background, FakeBroker
from support.live import LiveBroker, wait_for
from support.patience import patient
from support.waiting import until

WORDS = {False: b"KBYE", True: b"KBAI"}
# A broker that should have stopped is given this long.
STOP_S = patient(20.0)


class Company:
    """One of each kind of component that a broker may be connected with."""

    def __init__(self, broker: LiveBroker, strict: bool = False) -> None:
        self._broker = broker
        self._strict = strict
        self.worker = Component(broker, "workers")
        self.scheduler = Component(broker, "clients")
        self.client = Component(broker, "clients")
        # Clients that wait for nothing; the last one is known by nothing but a publication.
        self.idle = Component(broker, "clients")
        self.publisher = Component(broker, "publish")

    def _greet(self) -> None:
        self.worker.inform(b'[[10, "queue"]]')
        self.scheduler.inform(b"", b"scheduler")
        for client in (self.client, self.idle):
            client.say(b"UNSCHEDULE", b"u-1", b"", b"", b"nothing")
            assert self.scheduler.hear()[0] == b"UNSCHEDULE"
            assert self._strict or client.hear()[0] == b"REPLY"
        self.publisher.say(b"PUBLISH", b"p-1", b"news", b"x")
        self._broker.ask("ping")

    @property
    def components(self) -> list[Component]:
        return [self.worker, self.scheduler, self.client, self.idle, self.publisher]

    def __enter__(self) -> Self:
        try:
            self._greet()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for component in self.components:
            component.close()


@pytest.fixture
def settings() -> dict[str, object]:
    return dict(UNHURRIED)


def check_disconnect(broker: LiveBroker, port: str, word: bytes) -> None:
    """Whether a broker that gets DISCONNECT on this port does all that the document asks for."""
    with Company(broker) as company:
        disconnect(broker, company, port, word)
    assert not broker.crashes(), broker.crashes()


def disconnect(broker: LiveBroker, company: Company, port: str, word: bytes) -> None:
    worker, client = company.worker, company.client
    for number in (1, 2):
        client.submit(b"queue", b"reply-requested", b"job-%d" % number)
    worker.say(b"READY", b"ready-1")
    token, _ = worker.take()
    with Component(broker, port) as sender:
        sender.say(b"DISCONNECT", b"d-1")
        command, own_id, acked = sender.hear()
        assert (command, acked) == (b"ACK", b"d-1")
        assert own_id
        # Nothing more is taken.
        for command, *rest in (
            (b"REQUEST", b"queue", b"", b"x"),
            (b"SCHEDULE", b"queue", b"", b"9", b"x", b""),
        ):
            company.idle.say(command, b"late-1", *rest)
            said, _, refusal, original = company.idle.hear()
            assert (said, original, json.loads(refusal)["error"]) == (b"REPLY", b"late-1", "draining")
        # What is pending completes: a job that runs, and one that still waits.
        worker.say(b"REPLY", b"reply-1", b"first", token)
        worker.say(b"READY", b"ready-2")
        second, _ = worker.take()
        worker.say(b"REPLY", b"reply-2", b"second", second)
        assert client.result(b"job-1") == b"first"
        assert client.result(b"job-2") == b"second"
        # Everybody who is connected hears goodbye, once, and nothing after it.
        told = [*company.components, *([sender] if port != "admin" else [])]
        for component in told:
            command, own_id = component.hear()
            assert command == word
            assert own_id
        assert broker.process.wait(STOP_S) == 0
        for component in told:
            assert component.get(0) is None
        (line,) = [line for line in broker.errors().splitlines() if "told to drain" in line]
        assert "told to drain by a DISCONNECT over eMQP; draining: 2 requests are unanswered" in line


@pytest.mark.conforms("EMQP-8", "EMQP-9", "EMQP-33", "EMQP-34", "EMQP-35")
def test_disconnect_on_the_admin_port(settings: dict[str, object]) -> None:
    with LiveBroker(settings) as broker:
        check_disconnect(broker, "admin", b"KBYE")


@pytest.mark.conforms("EMQP-8", "EMQP-33", "EMQP-34", "EMQP-35", "EMQP-42")
@pytest.mark.parametrize("port", ["clients", "workers"])
def test_disconnect_on_any_port_if_the_setting_allows_it(settings: dict[str, object], port: str) -> None:
    with LiveBroker({**settings, "emqp.disconnect": "any"}) as broker:
        check_disconnect(broker, port, b"KBYE")


@pytest.mark.conforms("EMQP-8", "EMQP-42")
@pytest.mark.parametrize("port", ["clients", "workers"])
def test_disconnect_on_other_ports_is_refused_by_default(
    broker: LiveBroker, service: bytes, port: str
) -> None:
    with Component(broker, port) as peer:
        peer.say(b"DISCONNECT", b"d-1")
        command, _, refusal, original = peer.hear()
        assert (command, original, json.loads(refusal)["error"]) == (b"REPLY", b"d-1", "not_admin")
        peer.submit(service, b"")


@pytest.mark.conforms("EMQP-33")
@pytest.mark.parametrize("strict", [False, True])
def test_a_broker_that_is_stopped_by_a_signal_says_goodbye_as_well(
    settings: dict[str, object], strict: bool
) -> None:
    with LiveBroker({**settings, "emqp.strict": strict}) as broker, Company(broker, strict) as company:
        broker.process.send_signal(signal.SIGTERM)
        assert [component.hear()[0] for component in company.components] == [WORDS[strict]] * 5
        assert broker.process.wait(STOP_S) == 0


@pytest.mark.conforms("EMQP-36", "EMQP-37")
@pytest.mark.parametrize("word", [b"KBAI", b"KBYE"])
def test_a_client_that_said_goodbye_hears_none(settings: dict[str, object], word: bytes) -> None:
    with (
        LiveBroker(settings) as broker,
        Component(broker, "clients") as gone,
        Component(broker, "clients") as other,
    ):
        for client in (gone, other):
            client.submit(b"queue", b"guarantee")
        gone.say(word, b"bye-1")
        # Counted, so the goodbye was read as well; and not answered any more.
        gone.say(b"NONSENSE", b"n-1")
        wait_for(lambda: broker.ask("status")["invalid"] == 1)
        broker.process.send_signal(signal.SIGTERM)
        # They were told in one go, so the other would have heard it by now, too.
        assert other.hear()[0] == b"KBYE"
        assert broker.process.wait(STOP_S) == 0
        assert gone.get(0) is None


# -- lost brokers, lost workers --------------------------------------------------------------------------


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    made = FakeBroker()
    yield made
    made.close()


def converse(fake: FakeBroker, role: bytes) -> bytes:
    """Take the INFORM of a component, as a broker does; who it was."""
    identity, frames = fake.receive_until(lambda frames: frames[2] == b"INFORM")
    assert (frames[:2], frames[5]) == ([b"", TAG], role)
    fake.send(identity, b"", TAG, b"ACK", b"a-1", frames[3])
    return identity


async def _acall(endpoint: str) -> bytes:
    async with AsyncClient(endpoint, "emqp", timeout_s=patient(20)) as client:
        return await client.call("queue", b"work")


def call(shell: str, endpoint: str) -> bytes:
    if shell == "async":
        return asyncio.run(_acall(endpoint))
    with Client(endpoint, "emqp", timeout_s=patient(20)) as client:
        return client.call("queue", b"work")


@pytest.mark.conforms("EMQP-36", "EMQP-46")
@pytest.mark.parametrize("shell", ["sync", "async"])
@pytest.mark.parametrize("word", [b"KBAI", b"KBYE"])
def test_a_client_leaves_a_broker_that_says_goodbye(fake: FakeBroker, word: bytes, shell: str) -> None:
    background = Background(call, shell, fake.endpoint)
    identity, request = fake.receive()
    fake.send(identity, b"", TAG, word, b"b-1")
    # The client asks again, with the same id, on another connection; it closed the first one before that.
    again, repeated = fake.receive()
    assert repeated == request
    until(lambda: fake.connections() == (2, 1))
    fake.send(again, b"", TAG, b"REPLY", b"b-2", b"done", request[3])
    assert background.join() == b"done"
    assert fake.is_quiet()


@pytest.mark.conforms("EMQP-33", "EMQP-34", "EMQP-45")
@pytest.mark.parametrize("shell", ["sync", "async"])
def test_a_client_that_is_asked_to_leave_says_goodbye(fake: FakeBroker, shell: str) -> None:
    background = Background(call, shell, fake.endpoint)
    identity, request = fake.receive()
    fake.send(identity, b"", TAG, b"DISCONNECT", b"b-1")
    sender, goodbye = fake.receive()
    assert (sender, goodbye[:3]) == (identity, [b"", TAG, b"KBYE"])
    assert len(goodbye) == 4
    # Nothing more on that connection; what is unanswered is asked for in a new conversation.
    again, repeated = fake.receive()
    assert repeated == request
    until(lambda: fake.connections() == (2, 1))
    fake.send(again, b"", TAG, b"REPLY", b"b-2", b"done", request[3])
    assert background.join() == b"done"


@pytest.mark.conforms("EMQP-36", "EMQP-46")
@pytest.mark.parametrize("what", ["a request", "a publication"])
def test_a_client_that_waits_for_nothing_hears_the_goodbye_as_well(fake: FakeBroker, what: str) -> None:
    with Client(fake.endpoint, "emqp", timeout_s=patient(20)) as client:
        first = client.submit("queue", b"first")
        identity, request = fake.receive()
        fake.send(identity, b"", TAG, b"REPLY", b"b-1", b"done", request[3])
        assert first.result() == b"done"
        fake.send(identity, b"", TAG, b"KBAI", b"b-2")
        socket = client._lines._sockets[0]
        assert socket is not None
        until(lambda: socket.getsockopt(zmq.EVENTS) & zmq.POLLIN)
        client._lines.pump.suspect(0)
        if what == "a request":
            second = Background(lambda: client.call("queue", b"second"))
        else:
            client.publish("topic", b"second")
        again, frames = fake.receive()
        assert frames[-1] == b"second"
        until(lambda: fake.connections() == (2, 1))
        if what == "a request":
            fake.send(again, b"", TAG, b"REPLY", b"b-3", b"done", frames[3])
            assert second.join() == b"done"
        assert fake.is_quiet()


@pytest.mark.conforms("EMQP-23")
def test_a_worker_restarts_the_conversation_with_a_broker_that_is_silent(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EmqpWorker, "beat_s", BEAT_S)
    monkeypatch.setattr(EmqpWorker, "dead_after_s", 4 * BEAT_S)
    worker = Worker({"echo": lambda request: request.body}, fake.endpoint, "emqp")
    background = Background(worker.run)
    converse(fake, b"worker")
    _, frames = fake.receive_until(lambda frames: frames[2] != b"HEARTBEAT")
    assert frames[2] == b"READY"
    # From now on nothing is heard from the broker: the worker begins from the beginning, and works again.
    again = converse(fake, b"worker")
    fake.receive_until(lambda frames: frames[2] == b"READY")
    fake.send(again, b"", TAG, b"REQUEST", b"r-1", b"echo", b"reply-requested", b"still there?")
    _, frames = fake.receive_until(lambda frames: frames[2] == b"REPLY")
    assert frames[4:] == [b"still there?", b"r-1"]
    worker.stop()
    background.join()


@pytest.mark.conforms("EMQP-25")
@pytest.mark.parametrize("how", ["it is silent", "the connection is cut"])
def test_a_scheduler_restarts_the_conversation_with_a_lost_broker(fake: FakeBroker, how: str) -> None:
    scheduler = Scheduler(Keeper(None), fake.endpoint, beat_s=BEAT_S)
    background = Background(scheduler.run)
    first = converse(fake, b"scheduler")
    if how == "the connection is cut":
        fake.restart()
    again = converse(fake, b"scheduler")
    assert again != first
    # It is a scheduler as before: what it is asked to run, it runs.
    fake.send(again, b"", TAG, b"SCHEDULE", b"s-1", b"queue", b"", b"600", b"tick", b"")
    _, frames = fake.receive_until(lambda frames: frames[2] == b"REQUEST")
    assert (frames[4], frames[6]) == (b"queue", b"tick")
    scheduler.stop()
    background.join()


@pytest.mark.conforms("EMQP-25")
def test_a_scheduler_that_was_lost_is_taken_back(hasty: LiveBroker) -> None:
    def is_known() -> bool:
        return any(one["role"] == "scheduler" for one in hasty.ask("workers"))

    # It does not beat: on a machine that stalls it may be lost before anybody looks.
    with Component(hasty, "clients") as scheduler:

        def has_begun() -> bool:
            scheduler.inform(b"", b"scheduler")
            return is_known()

        wait_for(has_begun)
        wait_for(lambda: not is_known())
        while scheduler.get(0) is not None:
            continue
        # Lost, it is sent nothing; it says INFORM, and is sent what is for schedulers again.
        with Component(hasty, "clients") as client:
            client.say(b"UNSCHEDULE", b"u-1", b"", b"", b"nothing")
            command, _, refusal, original = client.hear()
            assert (command, original, json.loads(refusal)["error"]) == (b"REPLY", b"u-1", "unknown_schedule")
            assert scheduler.get(2 * BEAT_S) is None

            def is_taken_back() -> bool:
                scheduler.inform(b"", b"scheduler")
                client.say(b"UNSCHEDULE", b"u-2", b"", b"", b"nothing")
                # Not refused, so there was a scheduler to tell.
                return client.hear()[2:] == [b"u-2"]

            wait_for(is_taken_back)
            assert scheduler.hear()[:2] == [b"UNSCHEDULE", b"u-2"]
        scheduler.say(b"KBYE", b"bye-1")
        wait_for(lambda: not is_known())
