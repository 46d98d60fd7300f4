"""The statements of MDP/0.1 (ZeroMQ RFC 7), MDP/0.2 (RFC 18) and MMI (RFC 8), by id.

They follow the table of the request-id draft (MDR-*) in meaning and order: sockets, dialogs, frames,
opening and closing, processing, heartbeating, dispatch.
"""

from __future__ import annotations

from typing import Final

MDP1: Final[dict[str, str]] = {
    "MDP1-1": "clients and workers may use one socket or two; either takes either role",
    "MDP1-2": "M: the broker uses ROUTER sockets",
    "MDP1-3": "client dialog: each REQUEST gets exactly one REPLY",
    "MDP1-4": "frames of the client's REQUEST",
    "MDP1-5": "frames of the client's REPLY",
    "MDP1-6": "S: REQ clients work; the empty first frame is theirs",
    "MDP1-7": "Y: DEALER clients work; M: they make the empty first frame themselves, and get one",
    "MDP1-8": "Y: clients recover from a silent broker as they like",
    "MDP1-9": "worker dialog: READY, then per REQUEST one REPLY; heartbeats both ways",
    "MDP1-10": "frames of READY",
    "MDP1-11": "frames of the worker's REQUEST",
    "MDP1-12": "frames of the worker's REPLY",
    "MDP1-13": "frames of HEARTBEAT",
    "MDP1-14": "frames of DISCONNECT",
    "MDP1-15": "worker commands start with an empty frame, so that one socket serves both roles",
    "MDP1-16": "M: a worker connects one DEALER to one broker",
    "MDP1-17": "every command carries the header, so that every message can be validated",
    "MDP1-18": "one service per worker; many workers may serve the same",
    "MDP1-19": "M: no second READY",
    "MDP1-20": "READY has no answer",
    "MDP1-21": "M: after a worker's DISCONNECT, before or after READY, it is sent nothing more",
    "MDP1-22": "Y: the broker may DISCONNECT a worker at any time after its first command",
    "MDP1-23": "M: a valid but unexpected command is answered with DISCONNECT, then silence",
    "MDP1-24": "S: invalid messages are dropped and the peer is treated as invalid",
    "MDP1-25": "M: a worker that gets DISCONNECT closes its socket and reconnects on a new one",
    "MDP1-26": "M: REQUEST and REPLY of workers have precisely one address frame, then an empty one",
    "MDP1-27": "HEARTBEAT is valid at any time after READY",
    "MDP1-28": "every command but DISCONNECT is a heartbeat",
    "MDP1-29": "S: no HEARTBEAT while other commands are sent",
    "MDP1-30": "M: broker and worker send HEARTBEAT at regular, agreed intervals",
    "MDP1-31": "M: either is disconnected for the other after 3 to 5 missed intervals",
    "MDP1-32": "S: lost broker: the worker starts a new conversation",
    "MDP1-33": "S: lost worker: nothing more is sent to it",
    "MDP1-34": "requests go to the least recently used worker",
    "MDP1-35": "requests of dead or disconnected workers are resent to others",
}

MDP2: Final[dict[str, str]] = {
    "MDP2-1": "S: two sockets, clients and workers; either takes either role",
    "MDP2-2": "M: the broker uses ROUTER sockets",
    "MDP2-3": "client dialog: each REQUEST gets any number of PARTIALs and exactly one FINAL",
    "MDP2-4": "frames of the client's REQUEST",
    "MDP2-5": "frames of the client's PARTIAL",
    "MDP2-6": "frames of the client's FINAL",
    "MDP2-7": "M: clients use a DEALER, without an empty first frame",
    "MDP2-8": "M: clients take zero or more PARTIALs",
    "MDP2-9": "Y: clients recover from a silent broker as they like",
    "MDP2-10": "worker dialog: READY, then per REQUEST PARTIALs and one FINAL; heartbeats both ways",
    "MDP2-11": "frames of READY",
    "MDP2-12": "frames of the worker's REQUEST",
    "MDP2-13": "frames of the worker's PARTIAL",
    "MDP2-14": "frames of the worker's FINAL",
    "MDP2-15": "frames of HEARTBEAT",
    "MDP2-16": "frames of DISCONNECT",
    "MDP2-17": "M: a worker connects one DEALER to one broker",
    "MDP2-18": "every command carries the header, so that every message can be validated",
    "MDP2-19": "one service per worker; many workers may serve the same",
    "MDP2-20": "M: no second READY",
    "MDP2-21": "READY has no answer",
    "MDP2-22": "M: after a worker's DISCONNECT, before or after READY, it is sent nothing more",
    "MDP2-23": "Y: the broker may DISCONNECT a worker at any time after its first command",
    "MDP2-24": "M: a valid but unexpected command is answered with DISCONNECT, then silence",
    "MDP2-25": "S: invalid messages are dropped and the peer is treated as invalid",
    "MDP2-26": "M: a worker that gets DISCONNECT closes its socket and reconnects on a new one",
    "MDP2-27": "M: a worker sends zero or more PARTIALs, then exactly one FINAL",
    "MDP2-28": "M: REQUEST, PARTIAL and FINAL of workers have precisely one address frame, then an empty one",
    "MDP2-29": "HEARTBEAT is valid at any time after READY",
    "MDP2-30": "every command but DISCONNECT is a heartbeat",
    "MDP2-31": "S: no HEARTBEAT while other commands are sent",
    "MDP2-32": "M: broker and worker send HEARTBEAT at regular, agreed intervals",
    "MDP2-33": "M: either is disconnected for the other after 3 to 5 missed intervals",
    "MDP2-34": "S: lost broker: the worker starts a new conversation",
    "MDP2-35": "S: lost worker: nothing more is sent to it",
    "MDP2-36": "requests go to the least recently used worker",
    "MDP2-37": "requests of dead or disconnected workers are resent to others",
}

MMI: Final[dict[str, str]] = {
    "MMI-1": "mmi.service answers 200 if the named service has a worker, else 404",
    "MMI-2": "mmi.workers answers how many workers the named service has",
    "MMI-3": "any other mmi.* answers 501",
}

IDS: Final[dict[str, str]] = {**MDP1, **MDP2, **MMI}
