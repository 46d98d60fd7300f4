"""Peers of the Majordomo family that talk to a broker process over real sockets."""

from __future__ import annotations

import time

from support.live import WAIT_S, LiveBroker, Peer, wait_for
from support.majordomo import Frames, Talk


class Talker(Peer):
    """A peer of one dialect: what MDP/0.1 puts first is added and taken off."""

    def __init__(self, broker: LiveBroker, port: str, talk: Talk) -> None:
        super().__init__(broker[f"majordomo.{port}"])
        self.talk = talk
        self.lead = [b""] if talk.name == "mdp1" else []

    def say(self, frames: Frames) -> None:
        self.send(*self.lead, *frames)

    def hear(self, timeout_s: float = WAIT_S) -> Frames:
        """The next message that is no heartbeat."""
        beat = [self.talk.worker, self.talk.beat_answer or self.talk.beat]
        frames = self.recv_until(lambda frames: frames[len(self.lead) :] != beat, timeout_s)
        assert frames[: len(self.lead)] == self.lead
        return frames[len(self.lead) :]


def worker_of(broker: LiveBroker, talk: Talk, service: bytes) -> Talker:
    """A worker that the broker knows."""
    worker = Talker(broker, "workers", talk)
    before = workers_of(broker, service)
    worker.say(talk.ready(service))
    wait_for(lambda: workers_of(broker, service) == before + 1)
    return worker


def workers_of(broker: LiveBroker, service: bytes) -> int:
    known = {view["service"]: view["workers"] for view in broker.ask("services")}
    return int(known.get(service.decode(), 0))


def bye(talk: Talk) -> Frames:
    """The broker's DISCONNECT: the request-id draft shows it with the tag of MDP/0.2."""
    return [b"MDPW02", b"\x06"] if talk.name == "mdr" else talk.farewell()


def let_pass(peer: Peer, seconds: float) -> None:
    """Listen for so long, to whatever comes."""
    until = time.monotonic() + seconds
    while (left_s := until - time.monotonic()) > 0:
        peer.get(left_s)


def silent(peer: Peer, seconds: float) -> bool:
    """Whether nothing at all comes for so long."""
    return peer.get(seconds) is None
