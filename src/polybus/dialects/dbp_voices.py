"""How DBP peers are spoken to.

A peer gets its own framing and its own form of the time back, and a refusal in the word that it knows,
so there is one voice for each of these combinations.  Nothing in an answer says which call it belongs to:
whoever serves gets its calls one after the other.
"""

from __future__ import annotations

from collections.abc import Callable

from polybus.core.actions import Acknowledge, Answer, Approve, Beat, Deny, Dismiss, Refuse
from polybus.core.model import Address, Request, Worker
from polybus.dialects.crossing import error_body, single_frame
from polybus.dialects.port import Message, Voice
from polybus.wire import dbp as wire
from polybus.wire.dbp_time import TimeForm, write_time
from polybus.wire.frames import EMPTY

Wall = Callable[[], float]


class NodeVoice(Voice):
    """A peer that came to our socket: client, service or both."""

    dialect = "dbp"

    def __init__(self, lead: Message, form: TimeForm, denied: bytes, broker: bytes, wall: Wall) -> None:
        self._lead = lead
        self._form = form
        self._denied = denied
        self._broker = broker
        self._wall = wall

    # -- a client ---------------------------------------------------------------------------------

    def answer(self, action: Answer) -> Message:
        body = [single_frame(action.body, "DBP")]
        return [action.client[1], *self._lead, *wire.write_answer(body, self._wall(), self._form)]

    def refuse(self, action: Refuse) -> Message:
        body = [error_body(action, key="Error")]
        return [action.client[1], *self._lead, *wire.write_answer(body, self._wall(), self._form)]

    def pong(self, peer: Address) -> Message:
        return [peer[1], *self._lead, wire.PONG, write_time(self._wall(), self._form), self._broker]

    # -- a service --------------------------------------------------------------------------------

    def deliver(self, worker: Worker, request: Request) -> Message:
        body = [single_frame(request.body, "DBP")]
        tail = wire.write_call(request.service.name, body, self._wall(), self._form)
        return [worker.address[1], *self._lead, *tail]

    def beat(self, action: Beat) -> Message | None:
        tail = wire.write_heartbeat(self._broker, self._wall(), self._form)
        return [action.worker.address[1], *self._lead, *tail]

    def dismiss(self, action: Dismiss) -> Message | None:
        return [action.peer[1], *self._lead, *wire.write_disconnect(self._wall(), self._form)]

    # -- a node of the catalog --------------------------------------------------------------------

    def approve(self, action: Approve) -> Message:
        # The heartbeat timing is agreed by repeating it.
        heartbeat_s = action.entry.heartbeat_s
        config = {"heartbeat_s": heartbeat_s} if heartbeat_s else {}
        return [action.node[1], *self._lead, *wire.write_approved(config, self._wall(), self._form)]

    def deny(self, action: Deny) -> Message:
        tail = wire.write_denied(action.reasons, self._wall(), self._form, self._denied)
        return [action.node[1], *self._lead, *tail]

    def acknowledge(self, action: Acknowledge) -> Message:
        return [action.node[1], *self._lead, *wire.write_acknowledge(self._wall(), self._form)]


class DialledVoice(NodeVoice):
    """A service that we call at its own address. It knows calls; the original would take any other command
    for a mistake and answer that, so nothing else is sent there."""

    def __init__(self, form: TimeForm, broker: bytes, wall: Wall) -> None:
        super().__init__([EMPTY], form, wire.DENIED, broker, wall)

    def beat(self, action: Beat) -> None:
        return None

    def dismiss(self, action: Dismiss) -> None:
        return None
