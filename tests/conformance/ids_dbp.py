"""The statements of DBP, by id, spelled out from the document's text.

The document says READY where it means REGISTRATION, and leaves room that conformance tests fill with what
the original implementation does on the wire.
"""

from __future__ import annotations

from typing import Final

DBP: Final[dict[str, str]] = {
    "DBP-1": "M: the broker uses a ROUTER socket, on port 5246, for clients and services alike",
    "DBP-3": "frames of the info REQUEST: one service by name, or all when the name is empty",
    "DBP-4": "frames of the REPLY: information as a JSON object",
    "DBP-5": "S: REQ clients work, Y: DEALER clients work, M: they make the empty first frame themselves",
    "DBP-6": "what is not available is answered with an inactive warning",
    "DBP-7": "frames of REGISTRATION",
    "DBP-8": "M: service information has name, ip, port, function and heartbeat timing at least",
    "DBP-9": "frames of UPDATE; updated values replace the registered ones",
    "DBP-10": "frames of APPROVED, with optional configuration",
    "DBP-11": "frames of DENIED, with reasons, for unauthorised or unregistered services",
    "DBP-12": "frames of HEARTBEAT, with the service's name",
    "DBP-13": "frames of DISCONNECT",
    "DBP-14": "frames of the acknowledgement",
    "DBP-15": "heartbeats over UDP both ways; after a missed one, over TCP",
    "DBP-16": "service commands start with an empty frame, so that one socket serves clients and services",
    "DBP-17": "M: a service connects one DEALER to one broker",
    "DBP-18": "every command carries the header, so that every message can be validated",
    "DBP-19": "M: a service registers once; no further REGISTRATION on the same connection",
    "DBP-20": "M: after a service's DISCONNECT, before or after REGISTRATION, it is sent nothing more",
    "DBP-21": "Y: the broker may DISCONNECT a service at any time after its first command",
    "DBP-22": "M: a valid but unexpected command is answered with DISCONNECT, then silence",
    "DBP-23": "S: invalid messages are dropped and the peer is treated as invalid",
    "DBP-24": "M: a service that gets DISCONNECT closes its socket and registers again on a new one",
    "DBP-25": "HEARTBEAT is valid at any time after REGISTRATION",
    "DBP-26": "every command but DISCONNECT is a heartbeat",
    "DBP-27": "S: no HEARTBEAT while other commands are sent",
    "DBP-28": "M: broker and service send heartbeats at regular, agreed intervals",
    "DBP-29": "M: either is disconnected for the other after 3 to 5 missed intervals",
    "DBP-30": "S: lost broker: the service starts a new conversation",
    "DBP-31": "S: lost service: nothing more is sent to it",
    "DBP-32": "beacon: how a node finds the broker",
    "DBP-33": "monitoring: liveness of every service, and listening in on request",
    "DBP-34": "network bridge: messages cross between brokers of different networks, both ways",
    "DBP-35": "last value cache: a new subscriber gets the newest message of each topic at once",
    "DBP-36": "log aggregation: nodes' warnings and worse are collected on the bus",
    "DBP-37": "DENIED for unauthorised services: only the connection that registered a name updates it",
    "DBP-38": "only the connection that registered a name keeps it alive by heartbeats over TCP",
    "DBP-39": "only the connection that registered a name ends its registration while it is open",
    "DBP-40": "a node that closed its registering connection may change its description, not where calls go",
    "DBP-41": "the broker broadcasts its heartbeats over UDP",
    "DBP-42": "services send heartbeats to the broker over UDP, and over TCP after a missed one",
    "DBP-43": "with `strict`, every message of the broker has the frames of the document's tables",
    "DBP-44": "REGISTRATION and UPDATE take several frames of service information",
    "DBP-45": "an info REQUEST may name several services",
    "DBP-46": "nodes that provide services are required to register",
    "DBP-47": "what was answered with DISCONNECT is sent nothing more, whatever it says, until it registers",
    "DBP-48": "a service that sends what cannot be read, or no known command, is treated as invalid",
    "DBP-49": "a registered service that gets DISCONNECT is no longer registered, and gets no calls",
    "DBP-50": "after a missed beat, heartbeats go to the REP socket at the registered address",
    "DBP-51": "a service on a REP socket at its registered address is called there",
    "DBP-52": "a service follows the configuration in APPROVED",
    "DBP-53": "DENIED for unauthorised services: a REGISTRATION does not take a living node from its owner",
}

IDS: Final = DBP
