"""Workers with one thread, in every dialect: while their handler runs they say and hear nothing.

The frames are those of the documents, and for MDP/0.1 those of the guide's worker API.  Between requests such
a worker beats; when the broker says that the conversation is over it begins a new one on a new socket.
"""

from __future__ import annotations

import json
import struct
import threading
import time
from typing import Final, Protocol

import zmq

from support.live import LiveBroker
from support.patience import patient

Frames = list[bytes]
EMQP: Final = b"eMQP/1.0"


class Talk(Protocol):
    """What a worker of one dialect says and hears."""

    # The setting of the port that it connects to.
    port: str

    def hello(self, service: bytes) -> list[Frames]: ...
    def beat(self, service: bytes) -> Frames: ...
    def request(self, frames: Frames) -> tuple[Frames, bytes] | None:
        """The envelope to answer with and the body, if this is a request."""

    def reply(self, envelope: Frames, body: bytes) -> list[Frames]: ...
    def is_goodbye(self, frames: Frames) -> bool: ...


class Majordomo:
    port = "majordomo.workers"

    def __init__(
        self, tag: bytes, lead: Frames, answer: bytes, beat: bytes, goodbye: bytes, ids: bool
    ) -> None:
        self._tag, self._lead, self._answer, self._beat = tag, lead, answer, beat
        self._goodbye, self._ids = goodbye, ids

    def hello(self, service: bytes) -> list[Frames]:
        return [[*self._lead, self._tag, b"\x01", service]]

    def beat(self, service: bytes) -> Frames:
        return [*self._lead, self._tag, self._beat]

    def request(self, frames: Frames) -> tuple[Frames, bytes] | None:
        frames = frames[len(self._lead) :]
        if frames[1] != b"\x02":
            return None
        end = 5 if self._ids else 4
        return frames[2:end], frames[end]

    def reply(self, envelope: Frames, body: bytes) -> list[Frames]:
        return [[*self._lead, self._tag, self._answer, *envelope, body]]

    def is_goodbye(self, frames: Frames) -> bool:
        return frames[-1] == self._goodbye and len(frames) == len(self._lead) + 2


class Ebus:
    port = "ebus.backend"

    def hello(self, service: bytes) -> list[Frames]:
        return [[b"EBW01", b"READY", b"", service]]

    def beat(self, service: bytes) -> Frames:
        return [b"EBW01", b"HEARTBEAT"]

    def request(self, frames: Frames) -> tuple[Frames, bytes] | None:
        return ([frames[2]], frames[3]) if frames[1] == b"REQ" else None

    def reply(self, envelope: Frames, body: bytes) -> list[Frames]:
        return [[b"EBW01", b"REPLY", *envelope, body]]

    def is_goodbye(self, frames: Frames) -> bool:
        return frames[1] == b"DISCONNECT"


class Emqp:
    port = "emqp.workers"

    def hello(self, service: bytes) -> list[Frames]:
        queues = json.dumps([[10, service.decode()]]).encode()
        return [[b"", EMQP, b"INFORM", b"i", queues, b"worker"], [b"", EMQP, b"READY", b"r"]]

    def beat(self, service: bytes) -> Frames:
        return [b"", EMQP, b"HEARTBEAT", b"h", b"%d" % time.time()]

    def request(self, frames: Frames) -> tuple[Frames, bytes] | None:
        return ([frames[3]], frames[6]) if frames[2] == b"REQUEST" else None

    def reply(self, envelope: Frames, body: bytes) -> list[Frames]:
        return [[b"", EMQP, b"REPLY", b"a", body, *envelope], [b"", EMQP, b"READY", b"r"]]

    def is_goodbye(self, frames: Frames) -> bool:
        return frames[2] in (b"KBYE", b"KBAI")


class Dbp:
    port = "dbp.port"

    def __init__(self, heartbeat_s: float) -> None:
        self._heartbeat_s = heartbeat_s

    def hello(self, service: bytes) -> list[Frames]:
        info = {
            "name": service.decode(),
            "ip": "127.0.0.1",
            "port": 1,
            "function": "slow",
            "heartbeat": self._heartbeat_s,
            "transport": "dealer",
        }
        return [[b"", b"UwU", _time(), json.dumps(info).encode()]]

    def beat(self, service: bytes) -> Frames:
        return [b"", b"<3", _time(), service]

    def request(self, frames: Frames) -> tuple[Frames, bytes] | None:
        return ([], frames[4]) if frames[1] == b"u_U" else None

    def reply(self, envelope: Frames, body: bytes) -> list[Frames]:
        return [[b"", b"o_O", _time(), body]]

    def is_goodbye(self, frames: Frames) -> bool:
        return frames[1] == b"</3"


def _time() -> bytes:
    return struct.pack("<d", time.time())


def talks(heartbeat_s: float) -> dict[str, Talk]:
    return {
        "mdp1": Majordomo(b"MDPW01", [b""], b"\x03", b"\x04", b"\x05", ids=False),
        "mdp2": Majordomo(b"MDPW02", [], b"\x04", b"\x05", b"\x06", ids=False),
        "mdr": Majordomo(b"MDRW01", [], b"\x04", b"PING", b"\x06", ids=True),
        "ebus": Ebus(),
        "emqp": Emqp(),
        "dbp": Dbp(heartbeat_s),
    }


class SilentWorker(threading.Thread):
    """A worker whose handler takes so long. `runs` has the bodies that it was given, in order; `answered` is
    how many of them it has answered."""

    def __init__(
        self, broker: LiveBroker, talk: Talk, service: bytes, handler_s: float, heartbeat_s: float
    ) -> None:
        super().__init__(daemon=True)
        self._endpoint = broker[talk.port]
        self._talk = talk
        self._service = service
        self.handler_s = handler_s
        self._heartbeat_s = heartbeat_s
        self._ending = threading.Event()
        self.runs: list[bytes] = []
        self.answered = 0
        self.begun = threading.Event()
        self.start()

    def run(self) -> None:
        with zmq.Context() as context:
            while not self._ending.is_set():
                with context.socket(zmq.DEALER) as socket:
                    socket.linger = 0
                    socket.connect(self._endpoint)
                    self._converse(socket)

    def _converse(self, socket: zmq.Socket[bytes]) -> None:
        talk = self._talk
        for frames in talk.hello(self._service):
            socket.send_multipart(frames)
        beat_at = time.monotonic() + self._heartbeat_s
        while not self._ending.is_set():
            if time.monotonic() >= beat_at:
                socket.send_multipart(talk.beat(self._service))
                beat_at = time.monotonic() + self._heartbeat_s
            if not socket.poll(int(self._heartbeat_s * 500)):
                continue
            frames = socket.recv_multipart()
            if talk.is_goodbye(frames):
                return
            request = talk.request(frames)
            if request is None:
                continue
            envelope, body = request
            self.runs.append(body)
            self.begun.set()
            # The handler. Nothing is sent and nothing is read until it is done, or the test is.
            if self._ending.wait(self.handler_s):
                return
            for frames in talk.reply(envelope, body + b" done"):
                socket.send_multipart(frames)
            self.answered += 1

    def end(self) -> None:
        """Close the socket at once, as a killed process would."""
        self._ending.set()
        self.join(patient(10.0))
