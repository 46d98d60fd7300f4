"""How DBP peers are spoken to.

A peer gets its own framing and its own form of the time back, and a refusal in the word that it knows,
so there is one voice for each of these combinations.  Nothing in an answer says which call it belongs to:
whoever serves gets its calls one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from polybus.core.actions import (
    HEARTBEAT_MISSED,
    UNKNOWN_WORKER,
    Acknowledge,
    Answer,
    Approve,
    Ask,
    Beat,
    Deny,
    Dismiss,
    Refuse,
)
from polybus.core.model import Address, Request, Worker
from polybus.core.views import peer_name
from polybus.dialects.crossing import error_body, single_frame
from polybus.dialects.ended import Ended
from polybus.dialects.port import Message, Voice
from polybus.wire import dbp as wire
from polybus.wire.dbp_time import TimeForm, write_time
from polybus.wire.frames import EMPTY

Wall = Callable[[], float]


# What the core's words for the end of a conversation mean for a DBP peer.
REASONS: Final = {
    UNKNOWN_WORKER: "a sign of life without a registration on this connection; it must register first",
    HEARTBEAT_MISSED: "its heartbeats are missing and it does not answer",
}
# Everybody is told goodbye when the broker stops, which is in the log anyway.
SHUTDOWN: Final = "shutdown"


class ExplainedEnds(Ended):
    """DISCONNECT has no frame for a reason, so `tell` gets it, for the log."""

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        super().__init__()
        self._tell = tell

    def explain(self, peer: Address, reason: str) -> None:
        if self._tell is not None and reason != SHUTDOWN:
            self._tell(f"DISCONNECT to the DBP peer {peer_name(peer)}: {REASONS.get(reason, reason)}")


class NodeVoice(Voice):
    """A peer that came to our socket: client, service or both."""

    dialect = "dbp"

    def __init__(
        self,
        lead: Message,
        form: TimeForm,
        denied: bytes,
        broker: bytes,
        wall: Wall,
        agreed: Mapping[str, Any],
        ended: ExplainedEnds,
        strict: bool = False,
    ) -> None:
        """`agreed` is what a node that sends heartbeats is told about them beside their timing."""
        self._ended = ended
        self._strict = strict
        self._lead = lead
        self._agreed = agreed
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
        if action.peer in self._ended:
            return None
        self._ended.add(action.peer)
        self._ended.explain(action.peer, action.reason)
        tail = wire.write_disconnect(self._wall(), self._form, strict=self._strict)
        return [action.peer[1], *self._lead, *tail]

    # -- a node of the catalog --------------------------------------------------------------------

    def approve(self, action: Approve) -> Message:
        # The heartbeat timing is agreed by repeating it.
        heartbeat_s = action.entry.heartbeat_s
        config: Mapping[str, Any] = {}
        if heartbeat_s and not action.entry.quiet:
            config = {"heartbeat_s": heartbeat_s, **self._agreed}
        tail = wire.write_approved(config, self._wall(), self._form, self._strict)
        return [action.node[1], *self._lead, *tail]

    def deny(self, action: Deny) -> Message:
        tail = wire.write_denied(action.reasons, self._wall(), self._form, self._denied)
        return [action.node[1], *self._lead, *tail]

    def acknowledge(self, action: Acknowledge) -> Message:
        tail = wire.write_acknowledge(self._wall(), self._form, self._strict)
        return [action.node[1], *self._lead, *tail]

    def ask(self, action: Ask) -> Message:
        # A heartbeat asks for one.
        tail = wire.write_heartbeat(self._broker, self._wall(), self._form)
        return [action.peer[1], *self._lead, *tail]


class DialledVoice(NodeVoice):
    """A service that we call at its own address. It knows calls, and the word by which it is asked; the
    original would take any other command for a mistake and answer that, so nothing else is sent there."""

    def __init__(self, form: TimeForm, broker: bytes, wall: Wall, is_original: bool) -> None:
        super().__init__([EMPTY], form, wire.DENIED, broker, wall, {}, ExplainedEnds())
        self._is_original = is_original

    def ask(self, action: Ask) -> Message:
        if not self._is_original:
            return super().ask(action)
        return [action.peer[1], *self._lead, wire.PING, write_time(self._wall(), self._form), EMPTY]

    def beat(self, action: Beat) -> None:
        return None

    def dismiss(self, action: Dismiss) -> None:
        return None
