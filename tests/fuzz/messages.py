"""What the fuzzer says: valid messages of every dialect and role, and ways to spoil them.

Everything is typed by hand.  Names come from a small pool of the fuzzer's own, so that it never touches the
services of real traffic.  `is_allowed` keeps two things out that are no fuzz: valid administration (it is
obeyed, as it should be) and addresses beyond the loopback (the broker dials what a node registers).
"""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable

Frames = list[bytes]
Make = Callable[[random.Random], Frames]

NAMES = [b"fuzz-%d" % number for number in range(8)]
EBUS_TYPES = (b"EBC01", b"EBW01")
EMQP = b"eMQP/1.0"
# Where nodes say that they listen: nobody is there, unless the run adds more.
DIALLED = [9, 5]
# Values that parsers stumble over.
AWKWARD = [
    b"",
    b"\x00",
    b"\xff" * 8,
    b"-1",
    b"0",
    b"1e999",
    b"NaN",
    b"9" * 400,
    "٣٤".encode(),
    b"{",
    b"[" * 10_000,
    b'{"a":' * 500,
    b"null",
    b"[[]]",
    b'[[10, ""]]',
    b'[[1e400, "x"]]',
    b"\xc3\x28",
    b"a" * 256,
    b"a" * 65_537,
    b"reply-requested,retry-count:99999999999999999999,timeout:-1",
    b"retry-count:,timeout:x,,,guarantee",
    *EBUS_TYPES,
    EMQP,
    b"MDPC01",
    b"MDPW02",
    b"MDRW01",
    b"PBADM1",
    b"u_U",
    b"UwU",
    b"PING",
    b"READY",
    b"REQUEST",
    b"DISCONNECT",
    b"\x01",
    b"\x06",
]


def name(rng: random.Random) -> bytes:
    return rng.choice(NAMES)


def ident(rng: random.Random) -> bytes:
    # From a small pool, so that ids repeat: caches and duplicates are to be met, too.
    return b"id-%d" % rng.randrange(50)


def body(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 10, 100, 1000, 9000)))


def lead(rng: random.Random, frames: Frames) -> Frames:
    return [b"", *frames] if rng.random() < 0.5 else frames


# -- valid messages, by dialect ---------------------------------------------------------------


def ebus(rng: random.Random) -> Frames:
    ttl = rng.choice((b"", b"0", b"300", b"2000"))
    return lead(
        rng,
        rng.choice(
            [
                [b"EBC01", b"REQ", name(rng), ident(rng), body(rng)],
                [b"EBC01", b"REQUEST", name(rng), ident(rng), body(rng), ttl],
                [b"EBC01", b"REQ", rng.choice((b"SERVICES", b"WORKERS")), ident(rng), b""],
                [b"EBC01", rng.choice((b"SERVICES", b"WORKERS")), ident(rng)],
                [b"EBC01", b"CANCEL", name(rng), ident(rng)],
                [rng.choice(EBUS_TYPES), rng.choice((b"PING", b"HEARTBEAT", b"DISCONNECT"))],
                [b"EBW01", b"READY", b"", name(rng)],
                [b"EBW01", b"READY", name(rng)],
                [b"EBW01", b"READY", b"", name(rng), b"5"],
                [b"EBW01", b"REPLY", ident(rng), body(rng)],
                [b"EBW01", b"REJECT", ident(rng), body(rng)],
            ]
        ),
    )


CRONS = (b"0 0 29 2 *", b"* * * *", b"61 * * * *", b"0 0 1 1 ?", b"\xff", b"*/0 * * * *", b"@yearly")


def emqp(rng: random.Random) -> Frames:
    queues = json.dumps([[rng.randrange(100), name(rng).decode()] for _ in range(rng.randrange(3))]).encode()
    headers = rng.choice((b"", b"reply-requested", b"reply-requested,guarantee", b"retry-count:3,timeout:5"))
    holding = json.dumps({"polybus": rng.choice((1, 2)), "holding": [f"t{rng.randrange(9)}"]}).encode()
    schedule = b'["run", {"callable": "f", "path": "m", "args": [], "kwargs": {}, "class_args": []}]'
    return lead(
        rng,
        [
            EMQP,
            *rng.choice(
                [
                    [b"REQUEST", ident(rng), name(rng), headers, body(rng)],
                    [b"PUBLISH", ident(rng), b"fuzz-topic", headers, body(rng)],
                    [b"PUBLISH", ident(rng), b"fuzz-topic", body(rng)],
                    # Far away: what is run waits for a worker for ever, and the tables would never settle.
                    [b"SCHEDULE", ident(rng), name(rng), b"nohaste", b"1000000", schedule, b""],
                    [b"SCHEDULE", ident(rng), name(rng), b"nohaste", b"-1", schedule, rng.choice(CRONS)],
                    [b"SCHEDULE", ident(rng), name(rng), b"nohaste", schedule],
                    [b"UNSCHEDULE", ident(rng), name(rng), headers, b"10", schedule, b""],
                    [b"INFORM", ident(rng), queues, b"worker"],
                    [b"INFORM", ident(rng), b"", b"scheduler"],
                    [b"INFORM", ident(rng), queues, b"worker", holding],
                    [b"READY", ident(rng)],
                    [b"REPLY", ident(rng), body(rng), ident(rng)],
                    [b"PROGRESS", ident(rng), ident(rng), body(rng)],
                    [b"RETURN", ident(rng), ident(rng)],
                    [b"LEAVE", ident(rng)],
                    [b"DONE", ident(rng), *(part(rng) for _ in range(3) for part in (ident, body))],
                    [b"SLOTS", ident(rng), rng.choice((b"1", b"7", b"0", b"-1", b"100000", b"9" * 20))],
                    [b"HEARTBEAT", ident(rng), b"1700000000.5"],
                    [b"ACK", ident(rng), ident(rng)],
                    [b"DISCONNECT", ident(rng)],
                    [rng.choice((b"KBYE", b"KBAI")), ident(rng)],
                ]
            ),
        ],
    )


def emqp_admin(rng: random.Random) -> Frames:
    word = rng.choice((b"HELLO", b"STATUS", b"ROUTER_SHOW_WORKERS", b"ROUTER_SHOW_SCHEDULERS"))
    return lead(rng, [EMQP, word, ident(rng)])


def majordomo(rng: random.Random) -> Frames:
    envelope = [ident(rng), b""]
    query = rng.choice((b"mmi.service", b"mmi.workers", b"mmi.services", b"mmi.nothing"))
    client = [
        [b"MDPC01", name(rng), body(rng)],
        [b"MDPC01", query, name(rng)],
        [b"MDPC02", b"\x01", name(rng), body(rng), body(rng)],
        [b"MDRC01", b"\x01", name(rng), ident(rng), body(rng)],
    ]
    worker = [
        [b"MDPW01", b"\x01", name(rng)],
        [b"MDPW01", b"\x03", *envelope, body(rng)],
        [b"MDPW01", rng.choice((b"\x04", b"\x05"))],
        [b"MDPW02", b"\x01", name(rng), b"10"],
        [b"MDPW02", rng.choice((b"\x03", b"\x04")), *envelope, body(rng)],
        [b"MDPW02", rng.choice((b"\x05", b"\x06"))],
        [b"MDRW01", b"\x01", name(rng)],
        [b"MDRW01", rng.choice((b"\x03", b"\x04")), *envelope, ident(rng), body(rng)],
        [b"MDRW01", rng.choice((b"PING", b"PONG", b"\x06"))],
    ]
    return lead(rng, rng.choice(client + worker))


def dbp(rng: random.Random) -> Frames:
    when = rng.choice((struct.pack("<f", 1.7e9), struct.pack("<d", 1.7e9), b"1700000000.1"))
    entry = {
        "name": name(rng).decode(),
        "ip": "127.0.0.1",
        "port": rng.choice(DIALLED),
        "function": "fuzz",
        "heartbeat": rng.choice((0.05, 0.5, 1)),
        "credit": rng.choice((1, 3)),
    }
    router = {"ip": "127.0.0.1", "port": rng.choice(DIALLED)}
    original = {"name": name(rng).decode(), "interfaces": {"router": router}, "liveliness": 500}
    info = json.dumps(rng.choice((entry, original))).encode()
    return lead(
        rng,
        rng.choice(
            [
                [b"u_U", when, name(rng)],
                [b"u_U", when, b""],
                [b"u_U", when, name(rng), body(rng)],
                [b"o_O", when, body(rng)],
                [b"UwU", when, info],
                [b"UoU", when, info],
                [b"<3", when, name(rng)],
                [b"</3", when],
                [b"</3", when, name(rng)],
                [b"u.u", when],
                [b"<\\3", when],
                [b"ping", when, b""],
                [b"pong", when, name(rng)],
                [b"OwO", when],
            ]
        ),
    )


def admin(rng: random.Random) -> Frames:
    commands = ("ping", "status", "services", "workers", "nodes", "requests", "tap", "nothing", "logs", "top",
                "log_nodes", "monitor")  # fmt: skip
    question = {"do": rng.choice(commands), "service": name(rng).decode(), "bodies": True}
    if question["do"] == "logs":
        question |= {"node": rng.choice(("", "n*", "[", "fuzz")), "after": rng.randrange(99), "wait_s": 1}
    if rng.random() < 0.5:
        question["stop"] = True
    return [b"", b"PBADM1", ident(rng), json.dumps(question).encode()]


def publication(rng: random.Random) -> Frames:
    if rng.random() < 0.3:
        level, node = rng.choice((b"error", b"info", b"WARN", b"x", b"")), rng.choice((b"fuzz", b"", b"a/b"))
        return [
            b"log/" + level + b"/" + node,
            rng.choice((body(rng), b'{"message": 1, "at": {}}', b"{" * 999)),
        ]
    return [b"fuzz-topic-%d" % rng.randrange(20), body(rng)]


def subscription(rng: random.Random) -> Frames:
    return [
        rng.choice((b"\x01", b"\x00"))
        + rng.choice((b"", b"fuzz-topic", b"polybus/", b"x" * rng.randrange(300)))
    ]


def bridge(rng: random.Random) -> Frames:
    peer = f"fuzz-broker-{rng.randrange(3)}"
    greeting = {"name": peer, "instance": str(rng.randrange(2)), "credit": 10, "heartbeat_s": 1}
    offers = {name(rng).decode(): [peer, *(["x", "y"][: rng.randrange(3)])] for _ in range(rng.randrange(4))}
    advert = {"offers": offers, "withdrawn": [name(rng).decode()], "full": rng.random() < 0.2}
    call = {"hops": [peer], "ttl_ms": rng.choice((0, 10, 3000))}
    news = {
        "origin": f"{peer}#1",
        "number": rng.randrange(10**6),
        "at": 1.7e9,
        "hops": [peer],
        "snapshot": rng.random() < 0.3,
    }
    if rng.random() < 0.3:
        return [b"PBBR1", b"HELLO", b"1", json.dumps(greeting).encode()]
    return [
        b"PBBR1",
        *rng.choice(
            [
                [b"BEAT"],
                [b"BYE", b"tired"],
                [b"DENIED", b"unknown", b"say HELLO first"],
                [b"ADVERT", json.dumps(advert).encode()],
                [b"REQUEST", ident(rng), name(rng), json.dumps(call).encode(), body(rng)],
                [b"REQUEST", ident(rng), name(rng), json.dumps(call).encode(), body(rng)],
                [b"PARTIAL", ident(rng), body(rng)],
                [b"REPLY", ident(rng), body(rng)],
                [b"REFUSED", ident(rng), b"failed", b"no tea", body(rng)],
                [b"RETURN", ident(rng), b"elsewhere"],
                [b"CANCEL", ident(rng)],
                [b"PUBLISH", b"fuzz-topic", json.dumps(news).encode(), body(rng)],
            ]
        ),
    ]


MAKERS: dict[str, Make] = {
    "ebus.frontend": ebus,
    "ebus.backend": ebus,
    "ebus.publish": publication,
    "ebus.subscribe": subscription,
    "emqp.clients": emqp,
    "emqp.workers": emqp,
    "emqp.publish": emqp,
    "emqp.admin": emqp_admin,
    "emqp.subscribe": subscription,
    "majordomo.clients": majordomo,
    "majordomo.workers": majordomo,
    "dbp.port": dbp,
    "bridge.port": bridge,
    "admin.port": admin,
}


# -- spoiling them ----------------------------------------------------------------------------


def flip(rng: random.Random, frames: Frames) -> None:
    at = rng.randrange(len(frames))
    if frames[at]:
        data = bytearray(frames[at])
        for _ in range(rng.choice((1, 1, 1, 5))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        frames[at] = bytes(data)


def drop(rng: random.Random, frames: Frames) -> None:
    del frames[rng.randrange(len(frames))]


def duplicate(rng: random.Random, frames: Frames) -> None:
    frames.insert(rng.randrange(len(frames) + 1), rng.choice(frames))


def swap(rng: random.Random, frames: Frames) -> None:
    a, b = rng.randrange(len(frames)), rng.randrange(len(frames))
    frames[a], frames[b] = frames[b], frames[a]


def truncate(rng: random.Random, frames: Frames) -> None:
    at = rng.randrange(len(frames))
    frames[at] = frames[at][: rng.randrange(len(frames[at]) + 1)]


def cut_off(rng: random.Random, frames: Frames) -> None:
    del frames[rng.randrange(len(frames)) :]


def extend(rng: random.Random, frames: Frames) -> None:
    frames[rng.randrange(len(frames))] += rng.randbytes(rng.choice((1, 10, 300)))


def awkward(rng: random.Random, frames: Frames) -> None:
    frames[rng.randrange(len(frames))] = rng.choice(AWKWARD)


def insert(rng: random.Random, frames: Frames) -> None:
    frames.insert(rng.randrange(len(frames) + 1), rng.choice(AWKWARD))


def many(rng: random.Random, frames: Frames) -> None:
    frames.extend([rng.choice((b"", b"x"))] * rng.choice((10, 1100)))


def huge(rng: random.Random, frames: Frames) -> None:
    frames[rng.randrange(len(frames))] = bytes(rng.choice((70_000, 1_000_000)))


def noise(rng: random.Random, frames: Frames) -> None:
    frames[:] = [rng.randbytes(rng.randrange(40)) for _ in range(rng.randrange(1, 8))]


MUTATIONS = (flip, drop, duplicate, swap, truncate, cut_off, extend, awkward, insert, noise)
RARE = (many, huge)


def make(rng: random.Random, port: str) -> Frames:
    """A message for this port: as it should be, of another port, or spoiled in one to four ways."""
    maker = MAKERS[port] if rng.random() < 0.95 else rng.choice(list(MAKERS.values()))
    frames = list(maker(rng))
    if rng.random() < 0.75:
        for _ in range(rng.randrange(1, 5)):
            if not frames:
                break
            rng.choice(MUTATIONS if rng.random() < 0.98 else RARE)(rng, frames)
    # A message has at least one frame.
    return frames or [b""]


_IP = re.compile(rb'"ip"\s*:\s*"([^"]*)"')


def is_allowed(port: str, frames: Frames) -> bool:
    if port == "emqp.admin":
        return b"DISCONNECT" not in frames
    if port == "admin.port":
        return not any(word in frame for frame in frames for word in (b"drain", b"cancel", b"\\u"))
    if port == "dbp.port":
        return all(
            frame.count(b'"ip"') == len(_IP.findall(frame)) and set(_IP.findall(frame)) <= {b"127.0.0.1"}
            for frame in frames
        )
    return True
