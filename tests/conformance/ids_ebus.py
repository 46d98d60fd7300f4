"""The statements of EBUS 1.0, by id, spelled out from the document for workers.

The document says MUST of what a worker does; the same holds for the broker at the other end where it says
so (EBUS-7, EBUS-13).  EBUS-27 is from the client's document and public brokers.
"""

from __future__ import annotations

from typing import Final

EBUS: Final[dict[str, str]] = {
    "EBUS-1": "M: a peer connects a DEALER to the broker's ROUTER",
    "EBUS-2": "a request names its service",
    "EBUS-3": "M: a peer listens to the broker at all times",
    "EBUS-4": "M: a peer discards messages of the wrong sender type",
    "EBUS-5": "M: any valid inbound message counts as a heartbeat",
    "EBUS-6": "M: a peer sends PING when nothing came in for a set time",
    "EBUS-7": "M: PING is answered with HEARTBEAT, both ways",
    "EBUS-8": "M: each request has a unique id",
    "EBUS-9": "M: DISCONNECT closes all sockets; the peer may reconnect at once",
    "EBUS-10": "M: silence closes all sockets; the peer may reconnect",
    "EBUS-11": "Y: a rejected request is dropped",
    "EBUS-12": "Y: a REPLY is delivered to whoever asked",
    "EBUS-13": "Y: an unanswered request is resent with its id; it runs once, a resend gets the kept answer",
    "EBUS-14": "Y: unanswered requests expire",
    "EBUS-15": "a rejected request is not sent again because it was rejected",
    "EBUS-16": "M: a REPLY for a request of another peer is discarded",
    "EBUS-17": "Y: a channel is matched by the beginning of its name",
    "EBUS-18": "M: requests go through the DEALER; the broker answers REPLY or REJECT",
    "EBUS-19": "M: a publication names a channel",
    "EBUS-20": "frames of HEARTBEAT",
    "EBUS-21": "frames of PING",
    "EBUS-22": "frames of DISCONNECT",
    "EBUS-23": "frames of REJECT",
    "EBUS-24": "frames of REPLY",
    "EBUS-25": "frames of REQUEST",
    "EBUS-26": "a worker may itself be a client: it sends EBC01 requests and gets REPLYs",
    "EBUS-27": "SERVICES and WORKERS queries are answered by the broker",
}

IDS: Final = EBUS
