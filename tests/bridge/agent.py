"""The programs of one network in `make bridge`: clients of every dialect, publishers and subscribers.

    agent.py '{"ebus.frontend": "tcp://…", …}'

Orders are lines of JSON, each answered with one.  The load is made with plain sockets, because the library
hides what is to be counted: answers that come twice.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import zmq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from matrix.run import CLIENT_PORTS, DIALECTS
from polybus import Client, PolybusError

CALL_S = 30.0
PACE_MS = 10
# Requests of the load grow stale after this long; later than this plus a margin they are lost.
TTL_S = 12.0
MARGIN_S = 15.0
MDR_REQUEST, MDR_FINAL = b"\x01", b"\x03"


class Agent:
    def __init__(self, places: dict[str, str]) -> None:
        self.places = places
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.load: Load | None = None
        self.publisher: Publisher | None = None
        self.listener: Listener | None = None

    def socket(self, kind: int, port: str) -> zmq.Socket[bytes]:
        socket = self.context.socket(kind)
        socket.linger = 0
        if kind == zmq.SUB:
            socket.subscribe(b"bridge/")
        socket.connect(self.places[port])
        return socket

    def pairs(self, calls: int) -> dict[str, Any]:
        """A client of each dialect calls the worker of each dialect, so many times."""
        wrong: list[str] = []
        threads = [threading.Thread(target=self._row, args=(name, calls, wrong)) for name in DIALECTS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"calls": len(DIALECTS) ** 2 * calls, "wrong": wrong}

    def _row(self, client: str, calls: int, wrong: list[str]) -> None:
        with Client(self.places[CLIENT_PORTS[client]], client, timeout_s=CALL_S) as caller:
            for worker in DIALECTS:
                for number in range(calls):
                    body = f"{client} to {worker} {number} ".encode() + bytes(range(256)) * (number * 8)
                    try:
                        answer = caller.call(f"echo-{worker}", body)
                    except PolybusError as error:
                        wrong.append(f"{client} → {worker}: {type(error).__name__}: {error}")
                        continue
                    if answer != body:
                        wrong.append(f"{client} → {worker}: {len(body)} bytes came back as {len(answer)}")

    def load_start(self) -> dict[str, Any]:
        self.load = Load(self)
        return {}

    def load_stop(self) -> dict[str, Any]:
        assert self.load is not None
        return self.load.stop()

    def publish_start(self, name: str) -> dict[str, Any]:
        self.publisher = Publisher(self, name)
        return {}

    def publish_stop(self) -> dict[str, Any]:
        assert self.publisher is not None
        return self.publisher.stop()

    def publish_once(self, topics: dict[str, str]) -> dict[str, Any]:
        """One value each, by EBUS; the socket is given time to connect by asking for the value."""
        socket = self.socket(zmq.PUB, "ebus.publish")
        with Client(self.places["majordomo.clients"], "mdr", timeout_s=1) as client:
            for topic, text in topics.items():
                while True:
                    socket.send_multipart([topic.encode(), text.encode()])
                    try:
                        if client.call("lvc", topic.encode()) == text.encode():
                            break
                    except PolybusError:
                        pass
                    time.sleep(0.02)
        socket.close()
        return {}

    def listen(self) -> dict[str, Any]:
        self.listener = Listener(self)
        return {}

    def heard(self) -> dict[str, Any]:
        assert self.listener is not None
        return self.listener.heard()

    def late(self, topics: list[str]) -> dict[str, Any]:
        """What a subscriber that has just come gets, in both dialects."""
        found: dict[str, dict[str, str]] = {}
        for port in ("ebus.subscribe", "emqp.subscribe"):
            socket = self.socket(zmq.SUB, port)
            values = found[port] = {}
            until = time.monotonic() + 5
            while time.monotonic() < until and not set(topics) <= set(values):
                if socket.poll(100):
                    topic, body = socket.recv_multipart()[:2]
                    values.setdefault(topic.decode(), body.decode())
            socket.close()
        return found


class Load:
    """Requests by MDR and EBUS, one after the other without waiting, until it is stopped."""

    def __init__(self, agent: Agent) -> None:
        self.sent = 0
        self.open: dict[bytes, float] = {}
        self.answers: Counter[bytes] = Counter()
        self.words: Counter[str] = Counter()
        self.wrong = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(agent,))
        self._thread.start()

    def _run(self, agent: Agent) -> None:
        mdr = agent.socket(zmq.DEALER, "majordomo.clients")
        ebus = agent.socket(zmq.DEALER, "ebus.frontend")
        poller = zmq.Poller()
        poller.register(mdr, zmq.POLLIN)
        poller.register(ebus, zmq.POLLIN)
        give_up_at = 0.0
        while True:
            now = time.monotonic()
            if self._stopping.is_set():
                give_up_at = give_up_at or now + TTL_S + MARGIN_S
                if not self.open or now > give_up_at:
                    # What comes now would be a second answer.
                    self._take(poller, mdr, 200)
                    break
            else:
                for socket in (mdr, ebus):
                    self.sent += 1
                    service = f"echo-{DIALECTS[self.sent // 2 % len(DIALECTS)]}".encode()
                    name = b"%d" % self.sent
                    self.open[name] = now
                    if socket is mdr:
                        socket.send_multipart([b"MDRC01", MDR_REQUEST, service, name, name])
                    else:
                        ms = b"%d" % int(TTL_S * 1000)
                        socket.send_multipart([b"EBC01", b"REQUEST", service, name, name, ms])
            self._take(poller, mdr, PACE_MS)
        mdr.close()
        ebus.close()

    def _take(self, poller: zmq.Poller, mdr: zmq.Socket[bytes], wait_ms: int) -> None:
        until = time.monotonic() + wait_ms / 1000
        while (left_s := until - time.monotonic()) > 0:
            for socket, _ in poller.poll(left_s * 1000):
                self._note(socket.recv_multipart(), socket is mdr)

    def _note(self, frames: list[bytes], is_mdr: bool) -> None:
        if is_mdr:
            if frames[1] != MDR_FINAL:
                return
            name, body = frames[3], frames[4]
            word = "answered"
            if body.startswith(b'{"error"'):
                word = str(json.loads(body)["error"])
        else:
            if frames[1] not in (b"REPLY", b"REJECT"):
                return
            name, body = frames[2], frames[3] if len(frames) > 3 else b""
            word = "answered" if frames[1] == b"REPLY" else body.decode().partition(":")[0] or "expired"
        self.answers[name] += 1
        self.words[word] += 1
        if word == "answered" and body != name:
            self.wrong += 1
        self.open.pop(name, None)

    def stop(self) -> dict[str, Any]:
        self._stopping.set()
        self._thread.join()
        return {
            "sent": self.sent,
            "lost": len(self.open),
            "duplicates": sum(count - 1 for count in self.answers.values()),
            "words": dict(self.words),
            "wrong": self.wrong,
        }


class Publisher:
    """Numbers on a topic for each of the two dialects that publish."""

    def __init__(self, agent: Agent, name: str) -> None:
        self.last: dict[str, int] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(agent, name))
        self._thread.start()

    def _run(self, agent: Agent, name: str) -> None:
        ebus, emqp = agent.socket(zmq.PUB, "ebus.publish"), agent.socket(zmq.DEALER, "emqp.clients")
        number = 0
        while not self._stopping.wait(PACE_MS / 1000):
            number += 1
            body = b"%d" % number
            topics = {dialect: f"bridge/{dialect}/{name}" for dialect in ("ebus", "emqp")}
            ebus.send_multipart([topics["ebus"].encode(), body])
            emqp.send_multipart([b"", b"eMQP/1.0", b"PUBLISH", body, topics["emqp"].encode(), body])
            self.last = dict.fromkeys(topics.values(), number)
        # A moment for what is still in the pipes.
        ebus.close(1000)
        emqp.close(1000)

    def stop(self) -> dict[str, Any]:
        self._stopping.set()
        self._thread.join()
        return self.last


class Listener:
    """A subscriber of each dialect; what each got, and what it got twice."""

    def __init__(self, agent: Agent) -> None:
        self.got: dict[str, Counter[tuple[str, str]]] = {}
        self._sockets = {port: agent.socket(zmq.SUB, port) for port in ("ebus.subscribe", "emqp.subscribe")}
        self._lock = threading.Lock()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        poller = zmq.Poller()
        names = {}
        for port, socket in self._sockets.items():
            poller.register(socket, zmq.POLLIN)
            names[socket] = port
            self.got[port] = Counter()
        while True:
            for socket, _ in poller.poll():
                topic, body = socket.recv_multipart()[:2]
                with self._lock:
                    self.got[names[socket]][topic.decode(), body.decode()] += 1

    def heard(self) -> dict[str, Any]:
        with self._lock:
            topics: dict[str, dict[str, int]] = {}
            for port, counts in self.got.items():
                topics[port] = dict(Counter(topic for topic, _ in counts))
            twice = [
                f"{port}: {topic} {body} {count} times"
                for port, counts in self.got.items()
                for (topic, body), count in counts.items()
                if count > 1
            ]
            newest = {
                port: {topic: max(int(body) for t, body in counts if t == topic) for topic in topics[port]}
                for port, counts in self.got.items()
            }
        return {"topics": topics, "twice": twice, "newest": newest}


def main() -> None:
    agent = Agent(json.loads(sys.argv[1]))
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = {"ok": getattr(agent, order.pop("do"))(**order)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
