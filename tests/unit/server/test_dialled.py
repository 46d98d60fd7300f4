"""The connections to nodes at their own address: made, used, and closed."""

from __future__ import annotations

import errno
import select
from collections.abc import Iterator

import pytest
import zmq

from polybus.core import actions as act
from polybus.core.bus import Bus
from polybus.dialects.port import Message
from polybus.server.dialled import AT_ONCE, NUMBER, Dialled
from support.live import wait_for


class Ear:
    def __init__(self) -> None:
        self.heard: list[tuple[int, Message]] = []
        self.fails = False

    def receive(self, link: int, frames: Message, now: float) -> None:
        self.heard.append((link, frames))
        if self.fails:
            self.fails = False
            raise RuntimeError("a bug")


class Place:
    """A node: a REP or a DEALER with an address."""

    def __init__(self, kind: int) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(kind)
        self.socket.linger = 0
        self.socket.rcvtimeo = 10_000
        self.endpoint = f"tcp://127.0.0.1:{self.socket.bind_to_random_port('tcp://127.0.0.1')}"


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture
def dialled(ear: Ear) -> Iterator[Dialled]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def make() -> zmq.Socket[bytes]:
        socket = context.socket(zmq.DEALER)
        socket.linger = 0
        return socket

    dialled = Dialled(Bus(b"n"), make, ear)
    yield dialled
    dialled.close()
    context.term()


@pytest.fixture(params=[zmq.REP, zmq.DEALER])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    place = Place(request.param)
    yield place
    place.socket.close()
    place.context.term()


def turn(dialled: Dialled) -> None:
    """What the loop of a broker does."""
    readable, _, _ = select.select([dialled.fileno()], [], [], 0.05)
    if readable or dialled.next_at == 0.0:
        dialled.receive(0, [], 0.0)


def test_a_question_and_its_answer(dialled: Dialled, ear: Ear, place: Place) -> None:
    assert not dialled
    dialled.dial(act.Dial(b"one", place.endpoint), 0.0)
    assert dialled
    for number in range(3):
        assert dialled.send([b"one", b"", b"<3", b"%d" % number]) == 0
        frames = place.socket.recv_multipart()
        assert frames[-2:] == [b"<3", b"%d" % number]
        place.socket.send_multipart([*frames[:-2], b"u.u", b"%d" % number])
        wait_for(lambda: turn(dialled) or ear.heard)
        assert ear.heard.pop() == (NUMBER, [b"one", b"", b"u.u", b"%d" % number])


def test_hanging_up_closes_all_connections_to_an_endpoint(dialled: Dialled, place: Place) -> None:
    for identity in (b"one", b"two"):
        dialled.dial(act.Dial(identity, place.endpoint), 0.0)
    assert len(dialled) == 2
    dialled.hang_up(act.HangUp(b"one", place.endpoint))
    assert len(dialled) == 0
    assert dialled.send([b"two", b"", b"<3"]) == errno.EHOSTUNREACH
    dialled.hang_up(act.HangUp(b"one", place.endpoint))
    turn(dialled)


def test_what_cannot_be_dialled_is_not_there(dialled: Dialled) -> None:
    dialled.dial(act.Dial(b"one", "tcp://nowhere"), 0.0)
    assert len(dialled) == 0
    assert dialled.send([b"one", b"", b"<3"]) == errno.EHOSTUNREACH


def test_nothing_is_left_unread_after_many_messages_or_a_bug(dialled: Dialled, ear: Ear) -> None:
    place = Place(zmq.DEALER)
    try:
        dialled.dial(act.Dial(b"one", place.endpoint), 0.0)
        assert dialled.send([b"one", b"", b"<3"]) == 0
        place.socket.recv_multipart()
        ear.fails = True
        count = 2 * AT_ONCE + 1
        for number in range(count):
            place.socket.send_multipart([b"", b"%d" % number])

        def everything() -> bool:
            try:
                turn(dialled)
            except RuntimeError:
                assert dialled.next_at == 0.0
            return len(ear.heard) == count

        wait_for(everything)
        assert [frames[2] for _, frames in ear.heard] == [b"%d" % number for number in range(count)]
    finally:
        place.socket.close()
        place.context.term()
