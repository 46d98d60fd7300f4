"""A peer of eMQP that speaks frames, in any role: for tests over real sockets."""

from __future__ import annotations

import time

from conformance.live_settings import BEAT_S
from support.live import WAIT_S, LiveBroker, Peer

TAG = b"eMQP/1.0"


class Component(Peer):
    """A DEALER that adds the empty frame and the protocol version, and takes them off."""

    def __init__(self, broker: LiveBroker, port: str, identity: bytes = b"") -> None:
        super().__init__(broker[f"emqp.{port}"], identity=identity)

    def say(self, *frames: bytes) -> None:
        self.send(b"", TAG, *frames)

    def hear(self, timeout_s: float = WAIT_S) -> list[bytes]:
        """The next message that is no heartbeat."""
        empty, tag, *rest = self.recv_until(lambda frames: frames[2] != b"HEARTBEAT", timeout_s)
        assert (empty, tag) == (b"", TAG)
        return rest

    def inform(self, queues: bytes, role: bytes = b"worker", *more: bytes) -> None:
        self.say(b"INFORM", b"inform-1", queues, role, *more)
        command, own_id, acked, *_ = self.hear()
        assert (command, acked) == (b"ACK", b"inform-1")
        assert own_id

    def serve(self, queue: bytes, slots: int = 1) -> None:
        """Offer a queue, and take so many jobs of it."""
        self.inform(b'[[10, "%b"]]' % queue)
        for number in range(slots):
            self.say(b"READY", b"ready-%d" % number)

    def take(self, timeout_s: float = WAIT_S) -> tuple[bytes, bytes]:
        """Id and body of the next job."""
        command, token, _, _, body = self.hear(timeout_s)
        assert command == b"REQUEST"
        return token, body

    def submit(self, queue: bytes, headers: bytes, job: bytes = b"job-1", body: bytes = b"do it") -> None:
        """Send a job; the broker has said that it has it."""
        self.say(b"REQUEST", job, queue, headers, body)
        command, _, receipt = self.hear()
        assert (command, receipt) == (b"REPLY", job)

    def result(self, job: bytes = b"job-1") -> bytes:
        command, _, body, original = self.hear()
        assert (command, original) == (b"REPLY", job)
        return body

    def hear_beating(self, timeout_s: float = WAIT_S) -> tuple[bytes, bytes]:
        """First and last frame of the next message that is no heartbeat; meanwhile we show that we live."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            self.say(b"HEARTBEAT", b"beat-1", b"%d" % time.time())
            found = self.get(BEAT_S)
            if found is not None and found[2] != b"HEARTBEAT":
                return found[2], found[-1]
        raise AssertionError(f"nothing but heartbeats within {timeout_s:g} s")

    def is_idle(self) -> bool:
        """Whether nothing but heartbeats comes for two beats."""
        until = time.monotonic() + 2 * BEAT_S
        while (left_s := until - time.monotonic()) > 0:
            found = self.get(left_s)
            if found is not None and found[2] != b"HEARTBEAT":
                return False
        return True
