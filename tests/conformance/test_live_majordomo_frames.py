"""Every message that the broker sends to stock peers of the Majordomo family, compared with the documents.

The tables below are those of RFC 7, RFC 18 and the request-id draft, frame by frame.  The family has no
setting `strict`: what goes beyond the documents (the context of a trace) goes only to peers
that asked for it, and stock peers do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from support.live import WAIT_S, LiveBroker, Peer, wait_for
from support.live_majordomo import workers_of

# Frames that the documents leave to the peers.
SERVICE = b"<service>"
REQUEST_ID = b"<request id>"
# One frame, not empty; what stands in it is the broker's own affair.
ADDRESS = b"<client address>"
# Any number of frames, at least one.
BODY = b"<body>"

Table = dict[str, list[bytes]]


@dataclass(frozen=True)
class Document:
    """One document: what the broker sends, and what stock peers send to make it do so."""

    to_client: Table
    to_worker: Table
    request: list[bytes]
    ready: list[bytes]
    beat: list[bytes]
    # The beginning of a worker's answers; the address and the rest of the envelope follow.
    final: list[bytes]
    partial: list[bytes]
    envelope: slice


RFC_7 = Document(
    to_client={"REPLY": [b"", b"MDPC01", SERVICE, BODY]},
    to_worker={
        "REQUEST": [b"", b"MDPW01", b"\x02", ADDRESS, b"", BODY],
        "HEARTBEAT": [b"", b"MDPW01", b"\x04"],
        "DISCONNECT": [b"", b"MDPW01", b"\x05"],
    },
    request=[b"", b"MDPC01", SERVICE],
    ready=[b"", b"MDPW01", b"\x01", SERVICE],
    beat=[b"", b"MDPW01", b"\x04"],
    final=[b"", b"MDPW01", b"\x03"],
    partial=[],
    envelope=slice(3, 5),
)
RFC_18 = Document(
    to_client={
        "PARTIAL": [b"MDPC02", b"\x02", SERVICE, BODY],
        "FINAL": [b"MDPC02", b"\x03", SERVICE, BODY],
    },
    to_worker={
        "REQUEST": [b"MDPW02", b"\x02", ADDRESS, b"", BODY],
        "HEARTBEAT": [b"MDPW02", b"\x05"],
        "DISCONNECT": [b"MDPW02", b"\x06"],
    },
    request=[b"MDPC02", b"\x01", SERVICE],
    ready=[b"MDPW02", b"\x01", SERVICE],
    beat=[b"MDPW02", b"\x05"],
    final=[b"MDPW02", b"\x04"],
    partial=[b"MDPW02", b"\x03"],
    envelope=slice(2, 4),
)
DRAFT = Document(
    to_client={
        "PARTIAL": [b"MDRC01", b"\x02", SERVICE, REQUEST_ID, BODY],
        "FINAL": [b"MDRC01", b"\x03", SERVICE, REQUEST_ID, BODY],
    },
    to_worker={
        "REQUEST": [b"MDRW01", b"\x02", ADDRESS, b"", REQUEST_ID, BODY],
        "PONG": [b"MDRW01", b"PONG"],
        # As the draft has it, with the header of RFC 18.
        "DISCONNECT": [b"MDPW02", b"\x06"],
    },
    request=[b"MDRC01", b"\x01", SERVICE, REQUEST_ID],
    ready=[b"MDRW01", b"\x01", SERVICE],
    beat=[b"MDRW01", b"PING"],
    final=[b"MDRW01", b"\x04"],
    partial=[b"MDRW01", b"\x03"],
    envelope=slice(2, 5),
)


def fill(frames: list[bytes], service: bytes, request_id: bytes) -> list[bytes]:
    given = {SERVICE: service, REQUEST_ID: request_id}
    return [given.get(frame, frame) for frame in frames]


def body_in(frames: list[bytes], row: list[bytes], service: bytes, request_id: bytes) -> list[bytes] | None:
    """The body of a message that is what this row of a table says; None if it is anything else."""
    expected = fill(row, service, request_id)
    has_body = expected[-1] == BODY
    head = expected[:-1] if has_body else expected
    if len(frames) < len(expected) or (not has_body and len(frames) != len(expected)):
        return None
    for frame, wanted in zip(frames, head, strict=False):
        if not frame if wanted == ADDRESS else frame != wanted:
            return None
    return frames[len(head) :]


class Stock:
    """A peer that knows its document's table and nothing else."""

    def __init__(self, endpoint: str, table: Table, service: bytes) -> None:
        self.peer = Peer(endpoint)
        self.table = table
        self.service = service
        self.request_id = b""
        self.seen: set[str] = set()

    def hear(self, kind: str, timeout_s: float = WAIT_S) -> tuple[list[bytes], list[bytes]]:
        """The next message of this kind, whole and its body; heartbeats on the way are checked, too."""
        while True:
            frames = self.peer.recv(timeout_s)
            for name, row in self.table.items():
                body = body_in(frames, row, self.service, self.request_id)
                if body is not None:
                    self.seen.add(name)
                    break
            else:
                raise AssertionError(f"{frames} is in no row of {self.table}")
            if name == kind:
                return frames, body
            assert name == "HEARTBEAT", (kind, frames)


@pytest.mark.parametrize(
    ("document", "answer"),
    [
        pytest.param(RFC_7, "REPLY", id="mdp1", marks=pytest.mark.conforms("MDP1-38")),
        pytest.param(RFC_18, "FINAL", id="mdp2", marks=pytest.mark.conforms("MDP2-41")),
        pytest.param(DRAFT, "FINAL", id="mdr", marks=pytest.mark.conforms("MDR-47")),
    ],
)
def test_every_message_has_the_frames_of_its_document(
    broker: LiveBroker, expiring: LiveBroker, document: Document, answer: str, service: bytes
) -> None:
    client = Stock(broker["majordomo.clients"], document.to_client, service)
    worker = Stock(broker["majordomo.workers"], document.to_worker, service)

    hopeful = Stock(expiring["majordomo.clients"], document.to_client, service)

    def ask(request_id: bytes, *body: bytes, client: Stock = client) -> None:
        client.request_id = worker.request_id = request_id
        client.peer.send(*fill(document.request, client.service, request_id), *body)

    with client.peer, worker.peer, hopeful.peer:
        worker.peer.send(*fill(document.ready, service, b""))
        wait_for(lambda: workers_of(broker, service) == 1)
        # One body frame, several, an empty one; pieces where there are some; a failure of the worker.
        for number, body in enumerate(([b"one"], [b"one", b"", b"\x00\xff"], [b""], [b"fail"])):
            ask(b"id-%d" % number, *body)
            order, given = worker.hear("REQUEST")
            assert given == body
            envelope = order[document.envelope]
            if document.partial:
                worker.peer.send(*document.partial, *envelope, b"piece", b"of", b"it")
                assert client.hear("PARTIAL")[1] == [b"piece", b"of", b"it"]
            reply = [b'{"error": "out of tea"}'] if body == [b"fail"] else [b"answer", *body]
            worker.peer.send(*document.final, *envelope, *reply)
            assert client.hear(answer)[1] == reply
        # Signs of life, asked for or not.
        worker.peer.send(*document.beat)
        worker.hear("PONG" if "PONG" in document.to_worker else "HEARTBEAT")
        # The end: a second READY is unexpected.
        worker.peer.send(*fill(document.ready, service, b""))
        worker.hear("DISCONNECT")
        # What the broker answers itself: management, and a request that nobody took in time.
        client.service = b"mmi.service"
        ask(b"id-mmi", service)
        assert client.hear(answer)[1] == [b"404"]
        ask(b"id-in-vain", b"nobody is there", client=hopeful)
        *_, body = hopeful.hear(answer)[1]
        assert b'"expired"' in body
    assert client.seen == set(document.to_client)
    assert worker.seen == set(document.to_worker)
