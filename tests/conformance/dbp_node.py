"""A DBP node in frames as the document has them, with the time as decimal text."""

from __future__ import annotations

import json
import time
from typing import Any

from support.live import WAIT_S, LiveBroker, Peer

NOW = b"1700000000.0"
BEAT_S = 0.2
# The document says 3 to 5 missed intervals.
FEWEST, MOST = 3, 5


class Node(Peer):
    """A DEALER that adds the empty frame and the time."""

    def __init__(self, broker: LiveBroker) -> None:
        super().__init__(broker["dbp.port"])

    def say(self, command: bytes, *rest: bytes) -> None:
        self.send(b"", command, NOW, *rest)

    def hear(self, timeout_s: float = WAIT_S) -> list[bytes]:
        """The next message that is no heartbeat: command and what follows the time."""
        empty, command, when, *rest = self.recv_until(lambda frames: frames[1] != b"<3", timeout_s)
        assert empty == b""
        assert abs(float(when) - time.time()) < 60
        return [command, *rest]

    def register(self, name: bytes, heartbeat_s: float = 60.0, **more: Any) -> None:
        self.say(b"UwU", info(name, heartbeat_s, **more))
        command, _ = self.hear()
        assert command == b"OwO"


def info(name: bytes, heartbeat_s: float = 60.0, **more: Any) -> bytes:
    entry = {"name": name.decode(), "ip": "127.0.0.1", "port": 7777, "function": "test"}
    return json.dumps({**entry, "heartbeat": heartbeat_s, **more}).encode()


def is_listed(broker: LiveBroker, name: bytes) -> bool:
    with Node(broker) as client:
        client.say(b"u_U", name)
        command, body = client.hear()
        assert command == b"o_O"
        return name.decode() in json.loads(body)
