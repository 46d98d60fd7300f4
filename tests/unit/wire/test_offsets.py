"""A decoder is told where its frames begin: what stands before them changes nothing, in any dialect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from polybus.errors import RemoteProtocolError
from polybus.wire import bridge, dbp, ebus, emqp, mdp1, mdp2, mdr

Read = Callable[[list[Any], int], object]

# What a broker has before a message: the identity of its peer, perhaps an empty frame, perhaps more of them.
BEFORE = ([b"peer"], [b"peer", b""], [b"first", b"second", b"third"])

MDR = (
    (mdr.read_from_client, [b"MDRC01", b"\x01", b"echo", b"id", b"one", b"two"]),
    (mdr.read_as_client, [b"MDRC01", b"\x02", b"echo", b"id", b"one"]),
    (mdr.read_as_client, [b"MDRC01", b"\x03", b"echo", b"id", b"one"]),
    (mdr.read_from_worker, [b"MDRW01", b"\x01", b"echo", b"16"]),
    (mdr.read_as_worker, [b"MDRW01", b"\x02", b"client", b"", b"id", b"one"]),
    (mdr.read_as_worker, [b"MDRW01", b"TRACED", b"client", b"", b"id", b"context", b"one"]),
    (mdr.read_from_worker, [b"MDRW01", b"\x03", b"client", b"", b"id", b"one"]),
    (mdr.read_from_worker, [b"MDRW01", b"\x04", b"client", b"", b"id", b"one"]),
    (mdr.read_from_worker, [b"MDRW01", b"PING"]),
    (mdr.read_as_worker, [b"MDRW01", b"PONG"]),
    (mdr.read_as_worker, [b"MDRW01", b"\x06"]),
    (lambda frames, at: mdr.split_request(frames, at, {}), [b"MDRC01", b"\x01", b"echo", b"id", b"one"]),
    (mdr.split_final, [b"MDRW01", b"\x04", b"client", b"", b"id", b"one"]),
)
MDP = (
    (mdp1.read_from_client, [b"MDPC01", b"echo", b"one", b"two"]),
    (mdp1.read_as_client, [b"MDPC01", b"echo", b"one"]),
    (mdp1.read_from_worker, [b"MDPW01", b"\x01", b"echo", b"16"]),
    (mdp1.read_as_worker, [b"MDPW01", b"\x02", b"client", b"", b"one"]),
    (mdp1.read_from_worker, [b"MDPW01", b"\x03", b"client", b"", b"one"]),
    (mdp1.read_as_worker, [b"MDPW01", b"\x04"]),
    (mdp1.read_as_worker, [b"MDPW01", b"\x05"]),
    (mdp2.read_from_client, [b"MDPC02", b"\x01", b"echo", b"one", b"two"]),
    (mdp2.read_as_client, [b"MDPC02", b"\x02", b"echo", b"one"]),
    (mdp2.read_as_client, [b"MDPC02", b"\x03", b"echo", b"one"]),
    (mdp2.read_from_worker, [b"MDPW02", b"\x01", b"echo", b"16"]),
    (mdp2.read_as_worker, [b"MDPW02", b"\x02", b"client", b"", b"one"]),
    (mdp2.read_from_worker, [b"MDPW02", b"\x03", b"client", b"", b"one"]),
    (mdp2.read_from_worker, [b"MDPW02", b"\x04", b"client", b"", b"one"]),
    (mdp2.read_as_worker, [b"MDPW02", b"\x05"]),
    (mdp2.read_as_worker, [b"MDPW02", b"\x06"]),
)
DBP = (
    (dbp.read_from_node, [b"u_U", b"1.5", b"Gondor"]),
    (dbp.read_from_node, [b"u_U", b"1.5", b"Gondor", b"one", b"two"]),
    (dbp.read_as_node, [b"o_O", b"1.5", b"one", b"two"]),
    (dbp.read_from_node, [b"UwU", b"1.5", b'{"name":"Gondor"}', b'{"port":1}']),
    (dbp.read_from_node, [b"UoU", b"1.5", b'{"name":"Gondor"}', b'{"port":1}']),
    (dbp.read_as_node, [b"OwO", b"1.5", b'{"a":1}', b'{"b":2}']),
    (dbp.read_as_node, [b"OmO", b"1.5", b"why", b"and why"]),
    (dbp.read_from_node, [b"<3", b"1.5", b"Gondor"]),
    (dbp.read_from_node, [b"</3", b"1.5", b"Gondor"]),
    (dbp.read_from_node, [b"u.u", b"1.5", b"Gondor"]),
    (dbp.read_from_node, [b"<\\3", b"1.5"]),
    (dbp.read_as_node, [b"ping", b"1.5", b"one", b"two"]),
    (dbp.read_from_node, [b"pong", b"1.5", b"Gondor"]),
    (dbp.read_from_node, [b"what?", b"1.5", b"Gondor"]),
    (dbp.read_as_node, [b"what?", b"1.5", b"Gondor"]),
)
EBUS = (
    (ebus.read_from_client, [b"EBC01", b"REQ", b"echo", b"id", b"data", b"1500"]),
    (ebus.read_as_worker, [b"EBC01", b"REQUEST", b"echo", b"id", b"data", b"1500"]),
    (ebus.read_as_worker, [b"EBC01", b"REQ", b"id", b"data", b"1500"]),
    (ebus.read_from_client, [b"EBC01", b"CANCEL", b"echo", b"id"]),
    (ebus.read_as_worker, [b"EBC01", b"CANCEL", b"id"]),
    (ebus.read_from_client, [b"EBC01", b"SERVICES", b"", b"id"]),
    (ebus.read_from_client, [b"EBC01", b"WORKERS", b"", b"id"]),
    (ebus.read_as_client, [b"EBW01", b"SERVICES", b"id", b"data"]),
    (ebus.read_as_client, [b"EBW01", b"WORKERS", b"id", b"data"]),
    (ebus.read_as_client, [b"EBW01", b"WORKERS", b"", b"data"]),
    (ebus.read_from_worker, [b"EBW01", b"READY", b"", b"echo", b"16"]),
    (ebus.read_from_worker, [b"EBW01", b"REPLY", b"id", b"data"]),
    (ebus.read_from_worker, [b"EBW01", b"REJECT", b"id", b"data"]),
    (ebus.read_from_worker, [b"EBW01", b"HEARTBEAT", b"more"]),
    (ebus.read_from_worker, [b"EBC01", b"READY", b"", b"echo"]),
    (ebus.read_from_worker, [b"EBW01", b"REQ", b"echo", b"id"]),
    (ebus.read_from_worker, [b"EBW01", b"what?"]),
    (ebus.read_publish, [b"news", b"one", b"two"]),
)
EMQP = (
    (emqp.read_from_client, [b"eMQP/1.0", b"REQUEST", b"m1", b"q", b"guarantee", b"one"]),
    (emqp.read_from_client, [b"eMQP/1.0", b"PUBLISH", b"m1", b"t", b"guarantee", b"one"]),
    (emqp.read_from_client, [b"eMQP/1.0", b"SCHEDULE", b"m1", b"q", b"nohaste", b"10", b"one", b""]),
    (emqp.read_from_client, [b"eMQP/1.0", b"UNSCHEDULE", b"m1", b"q", b"nohaste", b"-1", b"one", b""]),
    (emqp.read_from_worker, [b"eMQP/1.0", b"INFORM", b"m1", b"[[1,'q']]", b"worker", b'{"polybus":2}']),
    (emqp.read_from_worker, [b"eMQP/1.0", b"INFORM", b"m1", b'[[1,"q"]]', b"worker", b'{"polybus":2}']),
    (emqp.read_from_client, [b"eMQP/1.0", b"INFORM", b"m1", b"", b"scheduler"]),
    (emqp.read_from_worker, [b"eMQP/1.0", b"REPLY", b"m1", b"one", b"m0"]),
    (emqp.read_from_worker, [b"eMQP/1.0", b"READY", b"m1"]),
    (emqp.read_as_client, [b"eMQP/1.0", b"ACK", b"m1", b"m0", b'{"polybus":2}']),
    (emqp.read_as_client, [b"eMQP/1.0", b"HEARTBEAT", b"m1", b"1.5"]),
    (emqp.read_publication, [b"news", b"one"]),
    (emqp.read_from_admin, [b"eMQP/1.0", b"STATUS", b"m1"]),
    (emqp.read_as_scheduler, [b"eMQP/1.0", b"KBYE", b"m1"]),
    (emqp.read_from_worker, [b"eMQP/1.0", b"PROGRESS", b"m1", b"t1", b"half"]),
    (emqp.read_from_worker, [b"eMQP/1.0", b"RETURN", b"m1", b"t1"]),
    (emqp.read_from_worker, [b"eMQP/1.0", b"DONE", b"m1", b"t1", b"one", b"t2", b"two"]),
    (emqp.read_from_worker, [b"eMQP/1.0", b"SLOTS", b"m1", b"7"]),
    (emqp.read_as_worker, [b"eMQP/1.0", b"CANCEL", b"m1", b"t1"]),
    (
        emqp.read_as_worker,
        [b"eMQP/1.0", b"ORDERS", b"m1", b"t1", b"q", b"attempt:1", b"one", b"t2", b"q", b"attempt:2", b"two"],
    ),
)
BRIDGE = (
    (bridge.read, [b"PBBR1", b"HELLO", b"1", b'{"name":"A","instance":"i"}']),
    (bridge.read, [b"PBBR1", b"DENIED", b"reason", b"text"]),
    (bridge.read, [b"PBBR1", b"BEAT"]),
    (bridge.read, [b"PBBR1", b"BYE", b"reason"]),
    (bridge.read, [b"PBBR1", b"ADVERT", b'{"offers":{"echo":["A"]}}']),
    (bridge.read, [b"PBBR1", b"REQUEST", b"id", b"echo", b'{"hops":["A"]}', b"one"]),
    (bridge.read, [b"PBBR1", b"PARTIAL", b"id", b"one"]),
    (bridge.read, [b"PBBR1", b"REPLY", b"id", b"one"]),
    (bridge.read, [b"PBBR1", b"REFUSED", b"id", b"reason", b"detail", b"one"]),
    (bridge.read, [b"PBBR1", b"RETURN", b"id", b"detail"]),
    (bridge.read, [b"PBBR1", b"CANCEL", b"id"]),
    (bridge.read, [b"PBBR1", b"PUBLISH", b"t", b'{"origin":"A","number":1,"at":1,"hops":["A"]}', b"one"]),
)


def outcome(read: Read, frames: list[Any], at: int) -> object:
    """The message, or why there is none, in the words that are told."""
    try:
        return read(frames, at)
    except RemoteProtocolError as error:
        return error.reason, str(error)


@pytest.mark.parametrize(("read", "frames"), [*MDR, *MDP, *DBP, *EBUS, *EMQP, *BRIDGE])
def test_what_stands_before_a_message_changes_nothing(read: Read, frames: list[Any]) -> None:
    # Whole, cut off anywhere, with more behind it, and with too much behind it.
    cut = [frames[:count] for count in range(len(frames))]
    for given in (frames, *cut, [*frames, b"more"], [*frames, *[b"more"] * 1100]):
        expected = outcome(read, given, 0)
        for before in BEFORE:
            assert outcome(read, [*before, *given], len(before)) == expected
