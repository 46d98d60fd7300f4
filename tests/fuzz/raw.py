"""Bytes on a listening port that are no ZeroMQ, or only begin like it.

Connections are plain TCP: garbage, the wrong protocol, half a greeting, a greeting and no more, a finished
handshake followed by frames that lie about their length or end in the middle of a message.  Some stay open
for a while and say nothing, as a peer on a bad line would.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections import deque
from collections.abc import Callable

from polybus.wire import zmtp
from support.zmtp import GREETING, dial, ready

# As many are held open as a broker must bear without a thought.
HELD = 40

TYPES = (b"DEALER", b"ROUTER", b"REQ", b"REP", b"PUB", b"SUB", b"XSUB", b"PUSH", b"PAIR", b"NONSENSE")


def payload(rng: random.Random) -> bytes:
    shaken = GREETING + ready(rng.choice(TYPES))
    ways: list[Callable[[], bytes]] = [
        lambda: rng.randbytes(rng.choice((1, 10, 64, 5000))),
        lambda: b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        lambda: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(100),
        lambda: b"",
        lambda: GREETING[: rng.randrange(64)],
        lambda: GREETING,
        lambda: GREETING[:12] + rng.randbytes(52),
        lambda: GREETING + rng.randbytes(50),
        lambda: GREETING + b"\x04" + bytes([255]) + b"\x05READY" + b"\xff" * 200,
        lambda: shaken + rng.randbytes(200),
        # A long frame of nearly 2^63 bytes; more frames announced and none sent; a truncated frame.
        lambda: shaken + b"\x02\x7f" + b"\xff" * 7 + b"x",
        lambda: shaken + b"\x01\x05EBC01\x01\x04PING",
        lambda: shaken + b"\x00\xffonly this much",
        # Many messages of one empty frame; commands that nobody knows.
        lambda: shaken + b"\x00\x00" * 200,
        lambda: shaken + b"\x04\x06\x05HELLO" + b"\x04\x00",
        lambda: shaken + b"\x00\x06\x01fuzz-" + b"\x04\x10\x09SUBSCRIBEfuzz-t",
        lambda: GREETING + ready(rng.choice((b"SUB", b"XSUB"))) + subscriber_words(rng),
        lambda: spoiled(rng, GREETING + ready(b"SUB") + subscriber_words(rng)),
    ]
    return rng.choice(ways)()


def subscriber_words(rng: random.Random) -> bytes:
    """What subscribers say, in any order and any number; it asks for values again and again."""
    prefix = rng.choice((b"", b"fuzz", b"fuzz-topic-1", b"\xff", b"x" * 255, b"x" * 256, b"x" * 20_000))
    words = [
        zmtp.write_subscription(True, prefix),
        zmtp.write_subscription(False, prefix),
        zmtp.write_message([b"\x01" + prefix]),
        zmtp.write_message([b"\x00" + prefix]),
        zmtp.write_message([prefix, prefix]),
        zmtp.write_ping(rng.choice((0.0, 0.1, 6000.0)), rng.randbytes(rng.randrange(17))),
        zmtp.write_pong(b""),
        zmtp.write_error("fuzz"),
    ]
    weights = (8, 4, 4, 2, 1, 3, 1, 0.1)
    return b"".join(rng.choices(words, weights, k=rng.choice((1, 5, 200, 3000 if len(prefix) < 300 else 5))))


def spoiled(rng: random.Random, data: bytes) -> bytes:
    """The same with some bytes changed, most likely near the beginning, and perhaps cut off."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 3))):
        changed[rng.randrange(min(len(changed), rng.choice((64, 120, len(changed)))))] = rng.randrange(256)
    return bytes(changed[: rng.choice((len(changed), rng.randrange(len(changed))))])


def datagram(rng: random.Random) -> bytes:
    """A heartbeat for a node that may be registered, or something like it, or nothing of the kind."""
    name = rng.choice((b"fuzz-1", b"fuzz-2", b"rohan", b"", b"x" * 255, b"x" * 256, b"\xff\0 a"))
    beat = b"<3 %b %b" % (rng.choice((b"1", b"1700000000.5", b"-1", b"9" * 40)), name)
    ways: list[Callable[[], bytes]] = [
        lambda: beat,
        lambda: spoiled(rng, beat),
        lambda: b"</3 1 " + name,
        lambda: b"SHALOM 5246",
        lambda: rng.randbytes(rng.choice((0, 1, 10, 400, 9000))),
    ]
    return rng.choice(ways)()


class RawPeers:
    def __init__(self, endpoints: dict[str, str]) -> None:
        self._endpoints = [e for e in endpoints.values() if e.startswith("tcp://")]
        self._held: deque[socket.socket] = deque()
        self._beats: socket.socket | None = None
        self._beats_to = [
            ("127.0.0.1", int(e.rpartition(":")[2])) for e in endpoints.values() if e.startswith("udp://")
        ]

    def beat(self, rng: random.Random) -> int:
        """Some datagrams; how many."""
        if self._beats is None:
            self._beats = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._beats.setblocking(False)
        for to in self._beats_to:
            # A full buffer loses it, as any network may.
            with contextlib.suppress(OSError):
                self._beats.sendto(datagram(rng), to)
        return len(self._beats_to)

    def poke(self, rng: random.Random) -> int:
        """One more connection; how many messages it was."""
        line = dial(rng.choice(self._endpoints))
        try:
            line.sendall(payload(rng))
        except OSError:
            # The broker closed it already, which is its right.
            line.close()
            return 1
        if rng.random() < 0.3:
            # A hard end: the other side reads an error, not an end of file.
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        if rng.random() < 0.3:
            self._held.append(line)
            if len(self._held) > HELD:
                self._held.popleft().close()
        else:
            line.close()
        return 1

    def close(self) -> None:
        while self._held:
            self._held.popleft().close()
        if self._beats is not None:
            self._beats.close()
            self._beats = None
