"""The statements of EBUS 1.0, by id, spelled out from the document for workers.

The document says MUST of what a worker does; the same holds for the broker at the other end where it says
so (EBUS-7, EBUS-13).  EBUS-20 to EBUS-25 are the document's tables, which the broker sends with
`ebus.strict`; EBUS-28 to EBUS-34 are the forms of upstream's peers, which it sends otherwise.  EBUS-27 is
from the client's document and public brokers.
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
    "EBUS-20": "frames of HEARTBEAT: empty, EBW01, HEARTBEAT",
    "EBUS-21": "frames of PING: empty, EBW01, PING",
    "EBUS-22": "frames of DISCONNECT: empty, EBW01, DISCONNECT",
    "EBUS-23": "frames of REJECT: empty, EBW01, REJECT",
    "EBUS-24": "frames of REPLY: empty, EBW01, REPLY, id, data (optional)",
    "EBUS-25": "frames of REQUEST: empty, EBC01, REQUEST, service, id, data (optional)",
    "EBUS-26": "a worker may itself be a client: it sends EBC01 requests and gets REPLYs",
    "EBUS-27": "SERVICES and WORKERS queries are answered by the broker, in JSON",
    "EBUS-28": "upstream: HEARTBEAT carries EBW01, behind an empty frame if the peer sends one",
    "EBUS-29": "upstream: PING carries EBW01, behind an empty frame if the peer sends one",
    "EBUS-30": "upstream: DISCONNECT carries EBW01, behind an empty frame if the peer sends one",
    "EBUS-31": "upstream: REJECT has the id and the reason; without a reason the request expired",
    "EBUS-32": "upstream: REPLY as in the document, behind an empty frame if the client sends one",
    "EBUS-33": "upstream: EBC01, REQ, id, data, milliseconds until stale, to a worker of one service",
    "EBUS-34": "upstream: SERVICES and WORKERS are answered with the deflated BSON document {l: list}",
}

IDS: Final = EBUS
