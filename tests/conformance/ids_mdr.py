"""The statements of the Majordomo request-id draft, by id, in the order of its text."""

from __future__ import annotations

from typing import Final

MDR: Final[dict[str, str]] = {
    "MDR-1": "S: two sockets, clients and workers",
    "MDR-2": "M: the broker uses ROUTER sockets",
    "MDR-3": "client dialog: one or more REQUESTs may be sent without waiting for a reply",
    "MDR-4": "client dialog: each REQUEST gets any number of PARTIALs and exactly one FINAL",
    "MDR-5": "frames of the client's REQUEST",
    "MDR-6": "frames of the client's PARTIAL",
    "MDR-7": "frames of the client's FINAL",
    "MDR-8": "M: clients use a DEALER",
    "MDR-9": "M: clients take zero or more PARTIALs",
    "MDR-10": "M: clients keep track of their REQUESTs and get a FINAL for each",
    "MDR-11": "Y: clients recover from a silent broker as they like",
    "MDR-12": "frames of READY",
    "MDR-13": "frames of the worker's REQUEST",
    "MDR-14": "frames of the worker's PARTIAL",
    "MDR-15": "frames of the worker's FINAL",
    "MDR-16": "frames of PING",
    "MDR-17": "frames of PONG",
    "MDR-18": "frames of DISCONNECT",
    "MDR-19": "M: a worker connects one DEALER to one broker",
    "MDR-20": "every command carries the header, so that every message can be validated",
    "MDR-21": "one service per worker; many workers may serve the same",
    "MDR-22": "M: no second READY",
    "MDR-23": "READY has no answer",
    "MDR-24": "Y: a worker may DISCONNECT at any time, even before READY",
    "MDR-25": "M: after a worker's DISCONNECT it is sent nothing more",
    "MDR-26": "Y: the broker may DISCONNECT a worker at any time after its first command",
    "MDR-27": "M: a valid but unexpected command is answered with DISCONNECT, then silence",
    "MDR-28": "S: invalid messages are dropped and the peer is treated as invalid",
    "MDR-29": "M: a worker that gets DISCONNECT closes its socket and reconnects on a new one",
    "MDR-30": "M: a worker sends zero or more PARTIALs, then exactly one FINAL",
    "MDR-31": "M: REQUEST, PARTIAL and FINAL of workers have precisely one address frame, then an empty one",
    "MDR-32": "M: REQUEST, PARTIAL and FINAL of workers have precisely one id frame, behind the empty one",
    "MDR-33": "PING is valid at any time after READY",
    "MDR-34": "every command but DISCONNECT is a heartbeat",
    "MDR-35": "S: no heartbeats while other commands are sent",
    "MDR-36": "M: a worker sends PING at an agreed interval",
    "MDR-37": "M: the broker is disconnected for a worker after 3 to 5 missed intervals",
    "MDR-38": "M: the broker answers PING with PONG",
    "MDR-39": "M: a worker is disconnected for the broker after 3 to 5 missed intervals",
    "MDR-40": "S: lost broker: the worker starts a new conversation",
    "MDR-41": "S: lost worker: nothing more is sent to it",
    "MDR-42": "requests go to the least recently used worker",
    "MDR-43": "requests of dead or disconnected workers are resent to others",
}

IDS: Final = MDR
