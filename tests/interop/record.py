"""Record what the original implementations say to each other into `recorded/`.

    PYTHONPATH=tests .venv/bin/python tests/interop/record.py

EventMQ's client, job manager, scheduler and shell talk to EventMQ's own router, Hermes' service and client to
polybus (of which only Hermes' half is kept).  A tap stands between each peer and its broker.  One message of
each kind is kept, without the identity, which belongs to the connection.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

from support.interop_env import environment
from support.interop_eventmq import EventMQ
from support.interop_hermes import Hermes, beacon
from support.interop_process import Broker, until

FOLDER = Path(__file__).parent / "recorded"


class Tap:
    """Between one kind of peer and a port of its broker; both sides see each other's identities."""

    def __init__(self, peer: str, broker_name: str, broker: str) -> None:
        self.peer, self.broker_name = peer, broker_name
        self.messages: list[tuple[str, str, list[bytes]]] = []
        self._context: zmq.Context[Any] = zmq.Context()
        # Of all sockets made here: what a broker that is gone did not take is lost.
        self._context.linger = 0
        self._front = self._context.socket(zmq.ROUTER)
        self.endpoint = f"tcp://127.0.0.1:{self._front.bind_to_random_port('tcp://127.0.0.1')}"
        self._broker = broker
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def heard(self, command: bytes, at: int = 2) -> int:
        return sum(1 for _, _, frames in list(self.messages) if frames[at : at + 1] == [command])

    def close(self) -> None:
        self._done.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def _run(self) -> None:
        backs: dict[Any, bytes] = {}
        poller = zmq.Poller()
        poller.register(self._front, zmq.POLLIN)
        while not self._done.is_set():
            for socket, _ in poller.poll(50):
                frames = socket.recv_multipart()
                if socket is self._front:
                    identity = frames.pop(0)
                    back = next((back for back, one in backs.items() if one == identity), None)
                    if back is None:
                        back = self._context.socket(zmq.DEALER)
                        back.routing_id = identity if identity[0] else b"tap-" + identity.hex().encode()
                        back.connect(self._broker)
                        backs[back] = identity
                        poller.register(back, zmq.POLLIN)
                    self.messages.append((self.peer, self.broker_name, frames))
                    back.send_multipart(frames)
                else:
                    self.messages.append((self.broker_name, self.peer, frames))
                    self._front.send_multipart([backs[socket], *frames])


def record_eventmq(folder: Path) -> list[dict[str, Any]]:
    eventmq = EventMQ(environment("eventmq"), folder)
    _, places = eventmq.router()
    ports = {"client": "clients", "manager": "workers", "scheduler": "clients", "shell": "admin"}
    taps = {peer: Tap(peer, "router", places[port]) for peer, port in ports.items()}
    try:
        manager = eventmq.manager("one", taps["manager"].endpoint, 2, [(10, "default"), (40, "urgent")])
        eventmq.scheduler(taps["scheduler"].endpoint)
        client = eventmq.client(taps["client"].endpoint)
        until(lambda: taps["manager"].heard(b"READY") >= 2, "the manager's READYs")
        until(lambda: taps["scheduler"].heard(b"ACK"), "the scheduler's ACK")
        job = {"func": "emq_jobs.add", "args": [2, 3]}
        client.ask("defer", **job)
        every = {"reply_requested": True, "guarantee": True, "retry_count": 3, "timeout": 60}
        client.ask("defer", **job, **every, queue="urgent")
        until(lambda: taps["manager"].heard(b"REPLY"), "a result")
        client.ask("schedule", func="emq_jobs.add", interval_secs=1, args=[4, 5])
        until(lambda: taps["scheduler"].heard(b"REQUEST") >= 2, "a scheduled job")
        client.ask("unschedule", func="emq_jobs.add", args=[4, 5])
        client.ask("publish", address=taps["client"].endpoint, topic="weather.berlin", message={"sun": True})
        until(lambda: taps["client"].heard(b"PUBLISH"), "a publication")
        for peer in ("manager", "scheduler"):
            until(lambda peer=peer: taps[peer].heard(b"HEARTBEAT") >= 4, "heartbeats both ways")
        eventmq.shell(taps["shell"].endpoint, "status", "show_workers", "show_schedulers", "shutdown")
        until(lambda: taps["scheduler"].heard(b"KBYE"), "the router's goodbye")
        manager.signal(15)
        until(lambda: taps["manager"].heard(b"KBYE") >= 2, "goodbyes both ways")
    finally:
        eventmq.close()
        for tap in taps.values():
            tap.close()
    return kept([message for tap in taps.values() for message in tap.messages], 2)


def record_hermes(folder: Path) -> list[dict[str, Any]]:
    broker = Broker(folder, {})
    catalog = Tap("node", "catalog", broker.endpoints["dbp.port"])
    hermes = Hermes(environment("hermes"), folder)
    try:
        with beacon(catalog.endpoint):
            service, registration = hermes.service("rohan")
            service.ask("update", config={"name": "rohan", "topics": ["horses"]})
            client = hermes.client()
            client.ask("services", name="")
            client.ask("services", name="rohan")
        # What the service answers at its own address.
        direct = Tap("caller", "service", f"tcp://127.0.0.1:{registration['interfaces']['router']['port']}")
        with zmq.Context() as context, context.socket(zmq.REQ) as caller:
            caller.linger = 0
            caller.connect(direct.endpoint)
            stamp = bytes.fromhex("2de96f4e")
            for command, *body in ((b"ping", b"Hello!"), (b"u_U", b"rohan", b"abc"), (b"^o^", b"?")):
                caller.send_multipart([command, stamp, *body])
                assert caller.poll(5000)
                caller.recv_multipart()
        direct.close()
    finally:
        hermes.close()
        broker.kill()
        catalog.close()
    own = [message for message in catalog.messages if message[0] == "node"]
    return kept([*own, *(message for message in direct.messages if message[0] == "service")], 1)


def kept(messages: list[tuple[str, str, list[bytes]]], at: int) -> list[dict[str, Any]]:
    """One message of each kind: who to whom, the command, how many frames, and for requests the headers."""
    chosen: dict[Any, dict[str, Any]] = {}
    for sender, receiver, frames in messages:
        command = frames[at] if len(frames) > at else b""
        variant: Any = frames[5] if command in (b"REQUEST", b"SCHEDULE") else frames[-1] == b""
        if receiver == "shell":
            # Its answers differ by the first name in them.
            variant = frames[-1][:16]
        kind = (sender, receiver, command, len(frames), variant)
        entry = {"from": sender, "to": receiver, "frames": [text_of(frame) for frame in frames]}
        chosen.setdefault(kind, entry)
    return list(chosen.values())


def text_of(frame: bytes) -> str | dict[str, str]:
    try:
        text = frame.decode()
    except UnicodeDecodeError:
        return {"hex": frame.hex()}
    return text if text.isprintable() else {"hex": frame.hex()}


def patiently(record: Callable[[Path], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Hermes' service aborts now and then (see `support.interop_hermes`): it gets a few chances."""
    for _ in range(4):
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(AssertionError):
            return record(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        return record(Path(folder))


def main() -> None:
    recorders = {"EventMQ 0.3.13": record_eventmq, "Hermes 1.0.2": record_hermes}
    for name, record in recorders.items():
        messages = patiently(record)
        lines = ",\n".join("  " + json.dumps(message) for message in messages)
        file = FOLDER / f"{name.split()[0].lower()}.json"
        file.write_text(f'{{"implementation": "{name}",\n "messages": [\n{lines}\n]}}\n')
        print(f"{file.name}: {len(messages)} messages")


if __name__ == "__main__":
    main()
