"""The messages of eMQP, but for those with rules of their own (`emqp_inform`, `emqp_schedule`).

A message id belongs to the one message that carries it; an answer names the id that it answers.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from polybus.wire.emqp_headers import Headers
from polybus.wire.emqp_inform import Inform
from polybus.wire.emqp_schedule import Schedule, Unschedule
from polybus.wire.frames import Frame

TAG: Final = b"eMQP/1.0"


class Ack(Struct, frozen=True):
    """Either way: I have your message `acked_id`. `version` answers the INFORM of a polybus worker."""

    msg_id: bytes
    acked_id: bytes
    version: int = 0


class Heartbeat(Struct, frozen=True):
    """Either way: I am here. The time is for people, never for logic."""

    msg_id: bytes
    unix_ts: float


class Disconnect(Struct, frozen=True):
    """To a component: say goodbye to all, finish what you have, and stop."""

    msg_id: bytes


class Goodbye(Struct, frozen=True):
    """Either way, KBAI or KBYE: send me nothing more and forget me."""

    msg_id: bytes


class Request(Struct, frozen=True, gc=False):
    """Client to broker, and broker to worker: run this job."""

    msg_id: bytes
    queue: bytes
    headers: Headers
    body: list[Frame]


class Publish(Struct, frozen=True):
    """Client to broker: tell this to everybody who subscribed to the topic."""

    msg_id: bytes
    topic: bytes
    headers: Headers
    body: list[Frame]


class Publication(Struct, frozen=True):
    """Broker to subscriber, on the subscribing socket, where messages have no tag."""

    topic: bytes
    body: list[Frame]


class Ready(Struct, frozen=True):
    """Worker to broker: I have one more free slot."""

    msg_id: bytes


class Reply(Struct, frozen=True):
    """Worker to broker, and broker to client: the answer to `original_id`.

    The document's form has no original id: it is empty then.  The broker's receipt for a request and its
    answers on the admin port have that form, too; see `receipt_of`.
    """

    msg_id: bytes
    body: list[Frame]
    original_id: bytes = b""


class Cancel(Struct, frozen=True):
    """Broker to polybus worker: nobody wants `token` any more. It is answered all the same."""

    msg_id: bytes
    token: bytes


class Progress(Struct, frozen=True):
    """Polybus worker to broker: how far `token` has come, before its answer."""

    msg_id: bytes
    token: bytes
    body: list[Frame]


class Leave(Struct, frozen=True):
    """Polybus worker to broker: give me nothing more. What I have begun I will finish."""

    msg_id: bytes


class Return(Struct, frozen=True):
    """Polybus worker to broker: I have not begun `token`; give it to somebody else."""

    msg_id: bytes
    token: bytes


class Orders(Struct, frozen=True):
    """Broker to polybus worker: run all of these."""

    msg_id: bytes
    jobs: list[Request]


class Done(Struct, frozen=True):
    """Polybus worker to broker: the answers to these tokens. I have a free slot again for each of them."""

    msg_id: bytes
    answers: list[tuple[bytes, Frame]]


class Slots(Struct, frozen=True):
    """Polybus worker to broker: I have so many more free slots."""

    msg_id: bytes
    count: int


class Hello(Struct, frozen=True):
    """Admin to broker: the public shell's greeting, which has no answer."""

    msg_id: bytes


class Status(Struct, frozen=True):
    """Admin to broker: how are the queues? The answer is a REPLY with JSON."""

    msg_id: bytes


class ShowWorkers(Struct, frozen=True):
    """Admin to broker: which workers are there?"""

    msg_id: bytes


class ShowSchedulers(Struct, frozen=True):
    """Admin to broker: which schedulers are there?"""

    msg_id: bytes


Common = Ack | Heartbeat | Disconnect | Goodbye
ClientMessage = Request | Publish | Schedule | Unschedule | Inform | Common
WorkerMessage = Reply | Ready | Inform | Progress | Leave | Return | Done | Slots | Common
AdminMessage = Hello | Status | ShowWorkers | ShowSchedulers | Disconnect
ReplyMessage = Reply | Common
OrderMessage = Request | Cancel | Orders | Common
SchedulerMessage = Schedule | Unschedule | Reply | Common
