"""The statements of eMQP/1.0, by id, spelled out from the document. There is no EMQP-4."""

from __future__ import annotations

from typing import Final

EMQP: Final[dict[str, str]] = {
    "EMQP-1": "S: clients are served fairly",
    "EMQP-2": "Y: any order of dispatch; weights decide between queues",
    "EMQP-3": "M: ROUTER sockets for clients and workers",
    "EMQP-5": "frames of ACK",
    "EMQP-6": "frames of REPLY",
    "EMQP-7": "frames of HEARTBEAT",
    "EMQP-8": "frames of DISCONNECT",
    "EMQP-9": "frames of KBAI",
    "EMQP-10": "frames of REQUEST",
    "EMQP-11": "frames of a client's PUBLISH, with headers",
    "EMQP-12": "frames of a publisher's PUBLISH, without headers",
    "EMQP-13": "frames of SCHEDULE, and the job runs when it says",
    "EMQP-14": "frames of UNSCHEDULE, and the job runs no more",
    "EMQP-15": "frames of a scheduler's INFORM",
    "EMQP-16": "frames of a worker's INFORM, with weighted queues",
    "EMQP-17": "frames of READY; each is one free slot",
    "EMQP-18": "HEARTBEAT is valid at any time after INFORM",
    "EMQP-19": "every command but DISCONNECT is a heartbeat",
    "EMQP-20": "S: no HEARTBEAT while other commands are sent",
    "EMQP-21": "M: worker and broker send heartbeats at regular, agreed intervals",
    "EMQP-22": "M: scheduler and broker send heartbeats at regular, agreed intervals",
    "EMQP-23": "S: lost broker: the worker restarts the conversation",
    "EMQP-24": "lost worker: nothing more is sent to it",
    "EMQP-25": "S: lost broker: the scheduler restarts the conversation, and is taken back",
    "EMQP-26": "M: headers are zero or more comma-separated values",
    "EMQP-27": "M: an empty string where there are no headers",
    "EMQP-28": "reply-requested: the job's result comes back; True if it has none",
    "EMQP-29": "retry-count:N: a failed job is tried N more times",
    "EMQP-30": "timeout:N: the job is killed after N seconds; 0 is never",
    "EMQP-31": "guarantee: the job completes even if client, broker or worker dies",
    "EMQP-32": "nohaste: a schedule runs first after its first interval, not at once",
    "EMQP-33": "M: who gets DISCONNECT says KBAI to everybody connected",
    "EMQP-34": "M: who gets DISCONNECT takes no new work",
    "EMQP-35": "M: who gets DISCONNECT lets what is pending complete",
    "EMQP-36": "M: after a KBAI nothing more is sent to that component",
    "EMQP-37": "S: after a KBAI the component is forgotten",
    "EMQP-38": "messages can be traced by their ids",
    "EMQP-39": "UNSCHEDULE: the queue is ignored, the job is removed from all queues",
    "EMQP-40": "SCHEDULE of what is scheduled already replaces it, whatever its times were",
    "EMQP-41": "reply-requested and the worker has no information: the client gets True",
    "EMQP-42": "with emqp.disconnect = any a DISCONNECT on the clients' or workers' port is obeyed",
    "EMQP-43": "strict: every message has the frames of the document's table, and there is no receipt",
    "EMQP-44": "who has not said INFORM, or was not given a job, is not treated as a worker of it",
}

IDS: Final = EMQP
