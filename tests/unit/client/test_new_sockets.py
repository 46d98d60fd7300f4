"""A conversation that has ended goes on over a new socket, in every dialect whose client or worker needs one.

A broker sees two things: who speaks to it (the identity), and over which connection.  A peer that kept its
socket would keep both; so the broker here counts the connections too, because some peers keep their identity.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest

from polybus import AsyncClient, AsyncWorker, Client, Request, RequestTimeout, Worker
from polybus.client import hub
from polybus.client.sessions import ebus
from polybus.client.sessions.dbp import DbpWorker
from polybus.client.sessions.emqp import EmqpClient, EmqpWorker
from polybus.client.sessions.mdp1 import Mdp1Worker
from polybus.client.sessions.mdp2 import Mdp2Worker
from polybus.client.sessions.mdr import MdrWorker
from polybus.client.sessions.port import WorkerSession
from support.fake_brokers import Background, FakeBroker
from support.patience import patient
from support.waiting import until

SHELLS = ("sync", "async")
# Long enough that the request has left the client: what a closed socket still holds is dropped.
GIVE_UP_S = patient(0.7)
# How a broker ends the conversation with a worker.
DISCONNECT = {
    "ebus": [b"EBW01", b"DISCONNECT"],
    "emqp": [b"", b"eMQP/1.0", b"KBYE", b"b1"],
    "mdp1": [b"", b"MDPW01", b"\x05"],
    "mdp2": [b"MDPW02", b"\x06"],
    "mdr": [b"MDRW01", b"\x06"],
    "dbp": [b"", b"</3", b"1700000000.0", b""],
}
SESSIONS: dict[str, type[WorkerSession]] = {
    "emqp": EmqpWorker,
    "mdp1": Mdp1Worker,
    "mdp2": Mdp2Worker,
    "mdr": MdrWorker,
    "dbp": DbpWorker,
}
# Clients of these dialects must not be confused with what they were before.
WITHOUT_IDS: dict[str, Callable[[bytes], list[bytes]]] = {
    "mdp1": lambda body: [b"", b"MDPC01", b"echo", body],
    "mdp2": lambda body: [b"MDPC02", b"\x03", b"echo", body],
    "dbp": lambda body: [b"", b"o_O", b"1700000000.0", body],
}


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    broker = FakeBroker()
    yield broker
    broker.close()


# -- workers --------------------------------------------------------------------------------------


def echo(request: Request) -> bytes:
    return request.body


async def aecho(request: Request) -> bytes:
    return request.body


@pytest.fixture(params=SHELLS)
def serve(request: pytest.FixtureRequest, broker: FakeBroker) -> Iterator[Callable[[str], None]]:
    """Starts a worker, in a thread of its own or in an event loop there."""
    running: list[tuple[Callable[[], None], Background]] = []

    def start(dialect: str) -> None:
        if request.param == "sync":
            worker = Worker({"echo": echo}, broker.endpoint, dialect)
            running.append((worker.stop, Background(worker.run)))
            return
        loops: list[tuple[asyncio.AbstractEventLoop, AsyncWorker]] = []

        async def run() -> None:
            worker = AsyncWorker({"echo": aecho}, broker.endpoint, dialect)
            loops.append((asyncio.get_running_loop(), worker))
            await worker.run()

        thread = Background(lambda: asyncio.run(run()))
        loop, worker = until(lambda: loops, "the loop runs")[0]
        running.append((lambda: loop.call_soon_threadsafe(worker.stop) and None, thread))

    yield start
    for stop, thread in running:
        stop()
        thread.join()


def greeting(dialect: str, frames: list[bytes]) -> list[bytes]:
    """What two greetings of the same worker have in common, and nothing else that it says."""
    return frames[:2] if dialect == "dbp" else frames[:3]


def set_patience(monkeypatch: pytest.MonkeyPatch, dialect: str, beat_s: float) -> None:
    """Workers of this dialect count a broker as lost after three such beats of silence."""
    if dialect == "ebus":
        monkeypatch.setattr(ebus, "BEAT_S", beat_s)
    else:
        monkeypatch.setattr(SESSIONS[dialect], "beat_s", beat_s)
        monkeypatch.setattr(SESSIONS[dialect], "dead_after_s", 3 * beat_s)


def is_replaced(broker: FakeBroker) -> bool:
    made, ended = broker.connections()
    return made == 2 and ended == 1


@pytest.mark.parametrize("dialect", DISCONNECT)
def test_a_worker_that_is_disconnected_comes_back_on_a_new_socket(
    broker: FakeBroker, serve: Callable[[str], None], dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Silence alone would make it come back as well.
    set_patience(monkeypatch, dialect, 1000.0)
    serve(dialect)
    first, hello = broker.receive()
    until(lambda: broker.connections() == (1, 0))
    broker.send(first, *DISCONNECT[dialect])
    second, _ = broker.receive_until(lambda frames: greeting(dialect, frames) == greeting(dialect, hello))
    assert second != first
    until(lambda: is_replaced(broker), "the worker has closed the first socket and opened one more")


def test_a_worker_hears_at_once_what_comes_over_its_new_socket(
    broker: FakeBroker, serve: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only when its next heartbeat is due: an event loop has to watch the new socket."""
    set_patience(monkeypatch, "mdr", 1000.0)
    serve("mdr")
    for number in (b"1", b"2", b"3"):
        identity, _ = broker.receive()
        broker.send(identity, b"MDRW01", b"\x02", b"token", b"", number, b"in")
        assert broker.receive() == (identity, [b"MDRW01", b"\x04", b"token", b"", number, b"in"])
        broker.send(identity, *DISCONNECT["mdr"])


@pytest.mark.parametrize("dialect", DISCONNECT)
def test_a_worker_comes_back_to_a_restarted_broker_on_a_new_socket(
    broker: FakeBroker, serve: Callable[[str], None], dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Silence alone would make it come back as well.
    set_patience(monkeypatch, dialect, 1000.0)
    serve(dialect)
    first, hello = broker.receive()
    broker.restart()
    second, _ = broker.receive_until(lambda frames: greeting(dialect, frames) == greeting(dialect, hello))
    assert second != first


@pytest.mark.parametrize("dialect", [*SESSIONS, "ebus"])
def test_a_worker_leaves_a_silent_broker_on_a_new_socket(
    broker: FakeBroker, serve: Callable[[str], None], dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_patience(monkeypatch, dialect, 0.02)
    serve(dialect)
    first, hello = broker.receive()
    second, _ = broker.receive_until(
        lambda frames: greeting(dialect, frames) == greeting(dialect, hello) and broker.connections()[0] > 1
    )
    assert second != first
    until(lambda: broker.connections()[1] > 0, "the worker has closed the first socket")


@pytest.mark.conforms("EBUS-9", "EBUS-10")
@pytest.mark.parametrize("why", ["disconnect", "silence"])
def test_an_ebus_worker_has_no_socket_until_it_comes_back(
    broker: FakeBroker, serve: Callable[[str], None], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one is closed at once, not when the next is opened."""
    monkeypatch.setattr(hub, "RESTART_S", 10_000.0)
    set_patience(monkeypatch, "ebus", 0.02 if why == "silence" else 1000.0)
    serve("ebus")
    first, _ = broker.receive()
    if why == "disconnect":
        broker.send(first, *DISCONNECT["ebus"])
    until(lambda: broker.connections() == (1, 1), "the worker has closed its socket")


# -- clients --------------------------------------------------------------------------------------


class Caller:
    """A client in a thread, with or without an event loop, and what it does one after the other."""

    def __init__(self, shell: str, broker: FakeBroker, dialect: str) -> None:
        self._shell = shell
        self._broker = broker
        self._dialect = dialect

    def calls(self, *wanted: tuple[bytes, float]) -> Background:
        """Calls with these bodies and times to wait; what each came to, None if it took too long."""
        return Background(self._sync if self._shell == "sync" else self._async, wanted)

    def _sync(self, wanted: tuple[tuple[bytes, float], ...]) -> list[bytes | None]:
        results: list[bytes | None] = []
        with Client(self._broker.endpoint, self._dialect, timeout_s=patient(30.0)) as client:
            for body, wait_s in wanted:
                try:
                    results.append(client.call("echo", body, wait_s))
                except RequestTimeout:
                    results.append(None)
        return results

    def _async(self, wanted: tuple[tuple[bytes, float], ...]) -> list[bytes | None]:
        async def run() -> list[bytes | None]:
            results: list[bytes | None] = []
            async with AsyncClient(self._broker.endpoint, self._dialect, timeout_s=patient(30.0)) as client:
                for body, wait_s in wanted:
                    try:
                        results.append(await client.call("echo", body, wait_s))
                    except RequestTimeout:
                        results.append(None)
            return results

        return asyncio.run(run())


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("dialect", WITHOUT_IDS)
def test_a_client_without_ids_gives_a_request_up_together_with_its_socket(
    broker: FakeBroker, dialect: str, shell: str
) -> None:
    answer = WITHOUT_IDS[dialect]
    calls = Caller(shell, broker, dialect).calls((b"late", GIVE_UP_S), (b"next", patient(30.0)))
    first, _ = broker.receive()
    second, _ = broker.receive()
    assert second != first
    until(lambda: is_replaced(broker), "the client has closed the first socket and opened one more")
    broker.send(first, *answer(b"late"))
    broker.send(second, *answer(b"out"))
    assert calls.join() == [None, b"out"]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("dialect", WITHOUT_IDS)
def test_a_client_without_ids_meets_a_restarted_broker_on_a_new_socket(
    broker: FakeBroker, dialect: str, shell: str
) -> None:
    calls = Caller(shell, broker, dialect).calls((b"in", patient(30.0)))
    first, _ = broker.receive()
    broker.restart()
    # libzmq may have kept the message of the old socket and sent it once more.
    second, _ = broker.receive()
    while second == first:
        second, _ = broker.receive()
    broker.send(second, *WITHOUT_IDS[dialect](b"out"))
    assert calls.join() == [b"out"]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("why", ["disconnect", "silence"])
def test_an_ebus_client_keeps_its_name_on_a_new_socket(
    broker: FakeBroker, shell: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests have ids, so the broker may know it again; what the old socket still holds is gone."""
    monkeypatch.setattr(ebus, "BEAT_S", 0.02 if why == "silence" else 1000.0)
    calls = Caller(shell, broker, "ebus").calls((b"in", patient(30.0)))
    first, frames = broker.receive()
    until(lambda: broker.connections()[0] == 1)
    if why == "disconnect":
        broker.send(first, *DISCONNECT["ebus"])
    until(lambda: broker.connections()[0] > 1, "the client has opened one more socket")
    until(lambda: broker.connections()[1] > 0, "the client has closed the first socket")
    second, again = broker.receive_until(lambda frames: frames[2] == b"REQ")
    assert (second, again) == (first, frames)
    monkeypatch.undo()
    broker.send(second, b"", b"EBW01", b"REPLY", frames[4], b"out")
    assert calls.join() == [b"out"]


class Idler:
    """An eMQP client that has asked for something. It waits until it is let go, asks once more, and ends."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self._may_end = threading.Event()

    def start(self, shell: str) -> Background:
        return Background(self._run if shell == "sync" else lambda: asyncio.run(self._arun()))

    def let_go(self) -> None:
        self._may_end.set()

    def _run(self) -> None:
        with Client(self._broker.endpoint, "emqp", timeout_s=patient(30.0)) as client:
            pending = client.submit("echo", b"first")
            while not self._may_end.is_set():
                with contextlib.suppress(RequestTimeout):
                    pending.result(0.01)
            client.submit("echo", b"last")

    async def _arun(self) -> None:
        async with AsyncClient(self._broker.endpoint, "emqp", timeout_s=patient(30.0)) as client:
            await client.submit("echo", b"first")
            assert await asyncio.to_thread(self._may_end.wait, patient(30.0))
            await client.submit("echo", b"last")


def dismiss(broker: FakeBroker, word: bytes, times: int) -> list[bytes]:
    """Say goodbye to a client on its first connection, second, …; returns what it asks for there."""
    client, request = broker.receive()
    until(lambda: broker.connections() == (times, times - 1), "the client is on another connection")
    broker.send(client, b"", b"eMQP/1.0", word, b"b1")
    if word == b"DISCONNECT":
        # It says goodbye before it closes its socket, once.
        sender, goodbye = broker.receive()
        assert (sender, goodbye[:3]) == (client, [b"", b"eMQP/1.0", b"KBYE"])
    return request


@pytest.mark.conforms("EMQP-36", "EMQP-45", "EMQP-46")
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("word", [b"KBYE", b"KBAI", b"DISCONNECT"])
def test_an_emqp_client_has_no_socket_while_it_leaves_a_broker_alone(
    broker: FakeBroker, shell: str, word: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one is closed at once, not when the next is opened: nothing more can be sent through it."""
    idler = Idler(broker)
    running = idler.start(shell)
    dismiss(broker, word, times=1)
    # It comes back soon; after the second goodbye it stays away.
    until(lambda: broker.connections() == (2, 1), "the client is back")
    monkeypatch.setattr(EmqpClient, "pause_s", 10_000.0)
    request = dismiss(broker, word, times=2)
    until(lambda: broker.connections() == (2, 2), "the client has closed its socket")
    assert broker.is_quiet()
    # A client that ends does not wait any longer: what is unanswered goes out, on a new socket.
    idler.let_go()
    _, again = broker.receive()
    assert again == request
    _, last = broker.receive()
    assert last[-1] == b"last"
    running.join()
    until(lambda: broker.connections() == (3, 3), "the client has closed the last socket")


ANSWERS: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "emqp": lambda frames: [b"", b"eMQP/1.0", b"REPLY", b"b1", b"out", frames[3]],
    "mdr": lambda frames: [b"MDRC01", b"\x03", frames[2], frames[3], b"out"],
}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("dialect", ANSWERS)
def test_a_client_with_ids_comes_back_to_a_restarted_broker_under_its_name(
    broker: FakeBroker, dialect: str, shell: str
) -> None:
    """No answer can be confused here, so the socket stays and libzmq connects it anew."""
    calls = Caller(shell, broker, dialect).calls((b"in", patient(30.0)))
    first, frames = broker.receive()
    broker.restart()
    second, again = broker.receive()
    assert (second, again) == (first, frames)
    assert broker.connections()[0] == 1
    broker.send(second, *ANSWERS[dialect](again))
    assert calls.join() == [b"out"]
