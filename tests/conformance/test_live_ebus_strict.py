"""EBUS with `ebus.strict`: every message of the broker is in the document's tables, frame by frame."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Final

import pytest

from conformance.live_settings import BEAT_S, UNHURRIED
from polybus import Client, Request, RequestFailed, Worker, WorkerRejected
from support.live import LiveBroker, Peer, wait_for
from support.patience import patient

# The tables of the document; a name stands for a frame whose content is free.
TABLES: Final[dict[bytes, tuple[bytes | str, ...]]] = {
    b"HEARTBEAT": (b"", b"EBW01", b"HEARTBEAT"),
    b"PING": (b"", b"EBW01", b"PING"),
    b"DISCONNECT": (b"", b"EBW01", b"DISCONNECT"),
    b"REJECT": (b"", b"EBW01", b"REJECT"),
    b"REPLY": (b"", b"EBW01", b"REPLY", "id", "data"),
    b"REQUEST": (b"", b"EBC01", b"REQUEST", "service", "id", "data"),
}
# "json formatted data (optional)".
OPTIONAL: Final = "data"


def differences(frames: list[bytes]) -> str:
    """What is not as the table of the message has it; empty if everything is."""
    word = frames[2] if len(frames) > 2 else b""
    table = TABLES.get(word)
    if table is None:
        return f"no table of the document has {frames}"
    least = len(table) - (OPTIONAL in table)
    if not least <= len(frames) <= len(table):
        return f"{len(frames)} frames, not {least} to {len(table)}: {frames}"
    for position, (frame, expected) in enumerate(zip(frames, table, strict=False)):
        if isinstance(expected, bytes) and frame != expected:
            return f"frame {position} is {frame!r}, not {expected!r}: {frames}"
    return ""


class Witness(Peer):
    """A peer that compares everything it hears with the tables."""

    heard: set[bytes]

    def get(self, timeout_s: float) -> list[bytes] | None:
        frames = super().get(timeout_s)
        if frames is not None:
            assert not differences(frames), differences(frames)
            self.__dict__.setdefault("heard", set()).add(frames[2])
        return frames

    def recv_word(self, word: bytes) -> list[bytes]:
        return self.recv_until(lambda frames: frames[2] == word)


@pytest.fixture(scope="module")
def strict() -> Iterator[LiveBroker]:
    # More beats than elsewhere: a worker of these tests says nothing while its client is spoken to.
    with LiveBroker({**UNHURRIED, "ebus.strict": True, "ebus.liveness": 10}) as broker:
        yield broker
        assert broker.is_alive, broker.errors()
        assert not broker.crashes(), broker.crashes()


@pytest.mark.conforms("EBUS-20", "EBUS-21", "EBUS-22", "EBUS-23", "EBUS-24", "EBUS-25")
# What a peer puts first itself makes no difference to what it gets.
@pytest.mark.parametrize("lead", [(), (b"",)], ids=["plain", "empty frame"])
@pytest.mark.parametrize("unused", [(), (b"null",)], ids=["short", "upstream"])
def test_every_message_of_the_broker_is_in_the_tables(
    strict: LiveBroker, service: bytes, lead: tuple[bytes, ...], unused: tuple[bytes, ...]
) -> None:
    with Witness(strict["ebus.backend"]) as worker, Witness(strict["ebus.frontend"]) as client:
        worker.send(*lead, b"EBW01", b"READY", *unused, service)
        wait_for(lambda: strict.has_workers(service.decode()))

        worker.send(*lead, b"EBW01", b"PING")
        assert worker.recv_word(b"HEARTBEAT") == [b"", b"EBW01", b"HEARTBEAT"]
        client.send(*lead, b"EBC01", b"PING")
        assert client.recv() == [b"", b"EBW01", b"HEARTBEAT"]

        request = (*lead, b"EBC01", b"REQUEST", service)
        client.send(*request, b"id-1", b'{"n": 1}', b"5000")
        *head, token, body = worker.recv_word(b"REQUEST")
        assert (head, body) == ([b"", b"EBC01", b"REQUEST", service], b'{"n": 1}')
        worker.send(*lead, b"EBW01", b"REPLY", token, b'{"n": 2}')
        assert client.recv() == [b"", b"EBW01", b"REPLY", b"id-1", b'{"n": 2}']

        # Without data there is no frame for it, either way.
        client.send(*request, b"id-2")
        frames = worker.recv_word(b"REQUEST")
        assert len(frames) == 5
        worker.send(*lead, b"EBW01", b"REPLY", frames[4])
        assert client.recv() == [b"", b"EBW01", b"REPLY", b"id-2"]

        # A rejection, a request that expires, and one that cannot be read.
        client.send(*request, b"id-3", b"x")
        worker.send(*lead, b"EBW01", b"REJECT", worker.recv_word(b"REQUEST")[4], b"not today")
        assert client.recv() == [b"", b"EBW01", b"REJECT"]
        client.send(*lead, b"EBC01", b"REQUEST", service + b"-nobody", b"id-4", b"x", b"50")
        assert client.recv() == [b"", b"EBW01", b"REJECT"]
        client.send(*request, b"id-5", b"x", b"soon")
        assert client.recv() == [b"", b"EBW01", b"REJECT"]

        # What a client withdraws the worker is not told: the document has no word for it.
        client.send(*request, b"id-6", b"x")
        worker.recv_word(b"REQUEST")
        client.send(*lead, b"EBC01", b"CANCEL", service, b"id-6")
        assert client.recv() == [b"", b"EBW01", b"REJECT"]
        worker.send(*lead, b"EBW01", b"PING")
        worker.recv_word(b"HEARTBEAT")

        # Silence: the broker asks whether the worker is there, and then ends the conversation.
        assert worker.recv() == [b"", b"EBW01", b"PING"]
        assert worker.recv_word(b"DISCONNECT") == [b"", b"EBW01", b"DISCONNECT"]
        assert worker.heard | client.heard == set(TABLES)


@pytest.mark.conforms("EBUS-22")
@pytest.mark.parametrize("lead", [(), (b"",)], ids=["plain", "empty frame"])
def test_an_unknown_worker_gets_the_documents_disconnect(strict: LiveBroker, lead: tuple[bytes, ...]) -> None:
    with Witness(strict["ebus.backend"]) as worker:
        worker.send(*lead, b"EBW01", b"HEARTBEAT")
        assert worker.recv() == [b"", b"EBW01", b"DISCONNECT"]
        assert worker.get(BEAT_S / 2) is None


@pytest.mark.conforms("EBUS-27")
def test_lists_are_json(strict: LiveBroker, service: bytes) -> None:
    with Peer(strict["ebus.backend"]) as worker, Peer(strict["ebus.frontend"]) as client:
        worker.send(b"EBW01", b"READY", service)
        wait_for(lambda: strict.has_workers(service.decode()))
        client.send(b"EBC01", b"SERVICES", b"", b"q1")
        *head, body = client.recv()
        assert head == [b"", b"EBW01", b"SERVICES", b"q1"]
        assert service.decode() in json.loads(body)
        client.send(b"EBC01", b"WORKERS", b"", b"q2")
        *head, body = client.recv()
        assert head == [b"", b"EBW01", b"WORKERS", b"q2"]
        (entry,) = [entry for entry in json.loads(body) if entry["service"] == service.decode()]
        assert set(entry) == {"id", "service", "load"}
        with Client(strict["ebus.frontend"], "ebus", timeout_s=patient(10)) as own:
            assert service.decode() in json.loads(own.call("SERVICES"))
            assert own.invalid == 0


@pytest.mark.conforms("EBUS-23", "EBUS-25")
def test_our_own_peers_understand_the_documents_form(strict: LiveBroker, service: bytes) -> None:
    def handle(request: Request) -> bytes:
        if request.body == b"no":
            raise WorkerRejected("not today")
        return request.body

    name = service.decode()
    worker = Worker({name: handle}, strict["ebus.backend"], "ebus")
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        with Client(strict["ebus.frontend"], "ebus", timeout_s=patient(10)) as client:
            assert client.call(name, b"x") == b"x"
            with pytest.raises(RequestFailed) as caught:
                client.call(name, b"no")
            assert caught.value.code == "rejected"
            assert client.invalid == 0
    finally:
        worker.stop()
        thread.join(patient(10))
    assert worker.invalid == 0
