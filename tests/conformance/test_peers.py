"""Our own peers against a broker made by hand: a ROUTER that says what the test types."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import zmq

from polybus import Client, Worker
from polybus.client.sessions.dbp import DbpWorker
from polybus.client.sessions.mdp1 import Mdp1Worker
from polybus.client.sessions.mdp2 import Mdp2Worker
from polybus.client.sessions.mdr import MdrWorker
from polybus.client.sessions.port import WorkerSession
from support.patience import patient

NOW = b"1700000000.0"
WAIT_MS = int(patient(10_000))


class Handmade:
    """A broker's socket; what comes in is split into identity and frames."""

    def __init__(self) -> None:
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.endpoint = f"tcp://127.0.0.1:{self.socket.bind_to_random_port('tcp://127.0.0.1')}"
        # Peers that are connected, as the socket itself sees it.
        seen = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
        self._monitor: zmq.Socket[bytes] = self.socket.get_monitor_socket(seen)

    def recv(self) -> tuple[bytes, list[bytes]]:
        assert self.socket.poll(WAIT_MS), "the peer said nothing"
        identity, *frames = self.socket.recv_multipart()
        return identity, frames

    def send(self, identity: bytes, *frames: bytes) -> None:
        self.socket.send_multipart([identity, *frames])

    def next_event(self) -> int:
        assert self._monitor.poll(WAIT_MS), "no peer came or went"
        return int.from_bytes(self._monitor.recv_multipart()[0][:2], "little")

    def close(self) -> None:
        self.socket.disable_monitor()
        self._monitor.close(0)
        self.socket.close(0)


@pytest.fixture
def handmade() -> Iterator[Handmade]:
    broker = Handmade()
    yield broker
    broker.close()


@contextmanager
def running(dialect: str, endpoint: str) -> Iterator[None]:
    worker = Worker({"echo": lambda request: request.body}, endpoint, dialect)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(patient(10))
        assert not thread.is_alive()


def is_begin(dialect: str, frames: list[bytes]) -> bool:
    """Whether a message begins a conversation, as the documents have it."""
    begins: dict[str, Callable[[], bool]] = {
        "ebus": lambda: b"READY" in frames,
        "mdp1": lambda: frames[:4] == [b"", b"MDPW01", b"\x01", b"echo"],
        "mdp2": lambda: frames[:3] == [b"MDPW02", b"\x01", b"echo"],
        "mdr": lambda: frames[:3] == [b"MDRW01", b"\x01", b"echo"],
        "dbp": lambda: frames[:2] == [b"", b"UwU"],
    }
    return begins[dialect]()


@pytest.mark.parametrize(
    ("dialect", "disconnect"),
    [
        pytest.param("ebus", (b"", b"EBW01", b"DISCONNECT"), marks=pytest.mark.conforms("EBUS-9", "EBUS-22")),
        pytest.param("mdp1", (b"", b"MDPW01", b"\x05"), marks=pytest.mark.conforms("MDP1-14", "MDP1-25")),
        pytest.param("mdp2", (b"MDPW02", b"\x06"), marks=pytest.mark.conforms("MDP2-16", "MDP2-26")),
        pytest.param("mdr", (b"MDPW02", b"\x06"), marks=pytest.mark.conforms("MDR-18", "MDR-29")),
        pytest.param("dbp", (b"", b"</3", NOW), marks=pytest.mark.conforms("DBP-13", "DBP-24")),
    ],
)
def test_disconnect_makes_a_worker_begin_anew_on_a_new_socket(
    handmade: Handmade, dialect: str, disconnect: tuple[bytes, ...]
) -> None:
    with running(dialect, handmade.endpoint):
        first, frames = handmade.recv()
        assert is_begin(dialect, frames)
        assert handmade.next_event() == zmq.EVENT_ACCEPTED
        handmade.send(first, *disconnect)
        # The next thing that it says is the beginning of a new conversation, and somebody else says it.
        second, frames = handmade.recv()
        assert is_begin(dialect, frames)
        assert second != first
        assert {handmade.next_event(), handmade.next_event()} == {zmq.EVENT_ACCEPTED, zmq.EVENT_DISCONNECTED}


@pytest.mark.conforms("DBP-10", "DBP-52")
def test_a_dbp_worker_beats_as_often_as_its_approval_says(handmade: Handmade) -> None:
    heartbeat_s = 0.5
    with running("dbp", handmade.endpoint):
        identity, frames = handmade.recv()
        assert is_begin("dbp", frames)
        handmade.send(identity, b"", b"OwO", NOW, b'{"heartbeat_s": %g, "liveness": 4}' % heartbeat_s)
        approved_at = time.monotonic()
        for _ in range(3):
            _, frames = handmade.recv()
            assert frames[:2] == [b"", b"<3"]
            handmade.send(identity, b"", b"u.u", NOW, b"")
        # Its own interval is much longer.
        assert time.monotonic() - approved_at < 2 * DbpWorker.beat_s


@pytest.mark.conforms("MDR-44")
def test_a_worker_of_the_draft_takes_a_request_without_a_body_frame(handmade: Handmade) -> None:
    with running("mdr", handmade.endpoint):
        identity, frames = handmade.recv()
        assert is_begin("mdr", frames)
        handmade.send(identity, b"MDRW01", b"\x02", b"address", b"", b"id-1")
        while frames[1] in (b"\x01", b"PING"):
            _, frames = handmade.recv()
        assert frames == [b"MDRW01", b"\x04", b"address", b"", b"id-1", b""]


@pytest.mark.conforms("MDR-8", "MDR-9")
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_client_of_the_draft_takes_any_number_of_partials(handmade: Handmade, count: int) -> None:
    answers = _streamed(handmade, "mdr", count, lambda frames: (b"MDRC01", b"echo", frames[3]))
    assert answers == [b"%d" % number for number in range(count + 1)]


@pytest.mark.conforms("MDP2-7", "MDP2-8")
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_client_of_mdp2_takes_any_number_of_partials(handmade: Handmade, count: int) -> None:
    answers = _streamed(handmade, "mdp2", count, lambda _: (b"MDPC02", b"echo"))
    assert answers == [b"%d" % number for number in range(count + 1)]


def _streamed(
    handmade: Handmade, dialect: str, count: int, head: Callable[[list[bytes]], tuple[bytes, ...]]
) -> list[bytes]:
    def answer() -> None:
        identity, frames = handmade.recv()
        tag, *rest = head(frames)
        for number in range(count):
            handmade.send(identity, tag, b"\x02", *rest, b"%d" % number)
        handmade.send(identity, tag, b"\x03", *rest, b"%d" % count)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    with Client(handmade.endpoint, dialect, timeout_s=patient(10)) as client:
        answers = list(client.stream("echo", b"x"))
    thread.join(patient(10))
    return answers


@pytest.mark.parametrize(
    ("session", "beat"),
    [
        pytest.param(
            Mdp1Worker,
            [b"", b"MDPW01", b"\x04"],
            marks=pytest.mark.conforms("MDP1-13", "MDP1-30", "MDP1-31", "MDP1-32"),
        ),
        pytest.param(
            Mdp2Worker,
            [b"MDPW02", b"\x05"],
            marks=pytest.mark.conforms("MDP2-15", "MDP2-32", "MDP2-33", "MDP2-34"),
        ),
        pytest.param(
            MdrWorker,
            [b"MDRW01", b"PING"],
            marks=pytest.mark.conforms("MDR-16", "MDR-36", "MDR-37", "MDR-40"),
        ),
        pytest.param(DbpWorker, [b"", b"<3"], marks=pytest.mark.conforms("DBP-28", "DBP-29", "DBP-30")),
    ],
)
def test_a_worker_beats_and_gives_a_silent_broker_up(
    session: Callable[[bytes], WorkerSession], beat: list[bytes]
) -> None:
    worker = session(b"echo")
    worker.hello(100.0)
    interval_s = worker.beat_s
    assert worker.tick(100.0 + interval_s / 2) == []
    for number in range(1, 3):
        (message,) = worker.tick(100.0 + interval_s * number)
        assert message[: len(beat)] == beat
    assert not worker.is_lost(100.0 + interval_s * 2.9)
    assert worker.is_lost(100.0 + interval_s * 5)
