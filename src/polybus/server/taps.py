"""Listening in: what is observed goes to those who asked for it, as far as the settings allow.

There are two ways to listen.  The admin socket sends each record at once, for as long as the listener asks
again (`Tap`).  The service `polybus.tap` is for clients of any dialect, also of those that know nothing but
question and answer: each call is answered with what happened since the last one, as soon as something has
(`Poll`).

    {"service": "hello", "what": "replied,failed", "bodies": false, "wait_s": 5, "limit": 100}
    {"tap": "t1", "records": […], "missed": 0}        and then   {"tap": "t1", "wait_s": 5}

Both are leases, and both miss records, counted, rather than hold anybody up.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Callable
from difflib import get_close_matches
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from polybus.core import views
from polybus.core.actions import Accept, Answer, Observed
from polybus.core.bus import Bus
from polybus.core.desk import Call, Refused
from polybus.core.model import Address, Body, Reason
from polybus.dialects.port import Message
from polybus.server.effects import Outbox
from polybus.wire.frames import EMPTY

TAG: Final = b"PBADM1"
# A tap must be asked for again within this time.
TAP_LEASE_S: Final = 10.0
# Clients that call need a while between two calls.
POLL_LEASE_S: Final = 30.0
# More listeners than this are a mistake; each costs an encoding of every event.
MAX_TAPS: Final = 64
# Records that wait for one who calls: more are missed, counted.
POLL_RECORDS: Final = 1000
# Bodies in tap records are cut here.
TAP_BODY_BYTES: Final = 1024

# Everything that a tap can tell of, by subject.
KINDS: Final = (
    # The life of a request.
    "accepted", "dispatched", "partial", "replied", "failed", "expired", "cancelled", "rejected", "retried",
    "requeued", "claimed", "late", "answer_lost",
    # Workers, nodes, bridges.
    "worker_up", "worker_down", "offered", "scheduler_up", "heartbeat_missed", "node_up", "node_late",
    "node_down", "node_asked", "updated", "denied", "bridge_up", "bridge_down",
    # Topics and logs.
    "published", "subscribed", "unsubscribed", "refused", "dropped", "log",
    # Schedules.
    "scheduled", "unscheduled", "schedule_ran", "schedule_late", "schedule_skipped", "schedule_moved",
    "schedule_odd",
    # The broker itself.
    "invalid", "store_sick", "store_well",
)  # fmt: skip

OFF: Final = "nobody may listen in: monitor.tap is 'off' in the broker's settings"
NO_BODIES: Final = (
    "bodies are not shown: monitor.tap is 'meta' in the broker's settings; "
    "set it to 'bodies' there, or listen without them"
)


class NotAllowed(Exception):
    """Whoever wants to listen is told this."""


class Filter(Struct):
    """What somebody wants to hear of; without kinds all of them."""

    service: str = ""
    kinds: frozenset[str] = frozenset()
    bodies: bool = False


class Tap(Struct):
    peer: Address
    question: bytes
    until: float
    wants: Filter
    missed: int = 0


class TapRecord(Struct, frozen=True):
    """An observation on its way to one listener."""

    tap: Tap
    frames: Message
    # What it says that the listener missed before it; if it is missed as well, nobody has said so yet.
    missed_before: int


class PollCall(Struct):
    """The body of a call of `polybus.tap`."""

    tap: Annotated[str, Meta(max_length=64)] = ""
    service: Annotated[str, Meta(max_length=255)] = ""
    # Several are separated by commas.
    what: Annotated[str, Meta(max_length=1024)] = ""
    bodies: bool = False
    wait_s: Annotated[float, Meta(ge=0, le=20)] = 5.0
    limit: Annotated[int, Meta(ge=1, le=POLL_RECORDS)] = 100
    stop: bool = False


class Poll(Struct):
    name: str
    until: float
    wants: Filter
    records: deque[dict[str, Any]]
    missed: int = 0
    # Who waits for a record, until when, and how many it takes at most.
    waiting: Call | None = None
    waits_until: float = 0.0
    limit: int = 0


class Taps:
    """All listeners."""

    def __init__(self, bus: Bus, outbox: Outbox, wall: Callable[[], float], allowed: str = "meta") -> None:
        self._bus = bus
        self._outbox = outbox
        self._wall = wall
        self._allowed = allowed
        self._taps: dict[tuple[Address, bytes], Tap] = {}
        self._polls: dict[str, Poll] = {}
        self._opened = 0
        outbox.handlers[TapRecord] = lambda record: outbox.put(record.tap.peer[0], record.frames, record)
        outbox.refusals[TapRecord] = self._missed

    def __len__(self) -> int:
        return len(self._taps) + len(self._polls)

    def allow(self, allowed: str) -> None:
        """Let another rule hold from now on, also for those who listen already."""
        self._allowed = allowed
        if allowed == "off":
            self._taps.clear()
            for name in list(self._polls):
                self._close(name)
        self._look()

    # -- asking -----------------------------------------------------------------------------------

    def tap(self, peer: Address, number: bytes, question: dict[str, Any], now: float) -> None:
        """The question `tap` of the admin socket; answered with records alone."""
        if question.get("stop"):
            self._taps.pop((peer, number), None)
            self._look()
            return
        tap = self._taps.get((peer, number))
        if tap is None:
            wants = Filter(
                str(question.get("service", "")),
                read_kinds(str(question.get("what", ""))),
                bool(question.get("bodies", False)),
            )
            self._check(wants)
            tap = self._taps[peer, number] = Tap(peer, number, 0.0, wants)
        tap.until = now + TAP_LEASE_S
        self._look()

    def call(self, bus: Bus, call: Call, body: Body, now: float) -> None:
        """The service `polybus.tap`."""
        text = b"".join(bytes(frame) for frame in body)
        try:
            asked = msgspec.json.decode(text or b"{}", type=PollCall)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise Refused(Reason.BAD_JOB, f"the body is no question to polybus.tap: {error}") from None
        poll = self._polls.get(asked.tap) if asked.tap else self._open(asked)
        if poll is None:
            why = f"there is no tap {asked.tap!r}, or it was not asked for within {POLL_LEASE_S:g} s"
            raise Refused(Reason.REJECTED, f"{why}; call without 'tap' to open one")
        if poll.waiting is not None:
            # Whoever asks again no longer waits for the first answer.
            self._answer(poll)
        if call.receipt:
            bus.actions.append(Accept(call.client, call.voice, call.service, call.request_id))
        poll.until = now + POLL_LEASE_S
        poll.limit = asked.limit
        if call.wants_reply:
            poll.waiting, poll.waits_until = call, now + asked.wait_s
            if poll.records or not asked.wait_s or asked.stop:
                self._answer(poll)
        if asked.stop:
            self._close(poll.name)
        self._look()

    def _open(self, asked: PollCall) -> Poll:
        try:
            wants = Filter(asked.service, read_kinds(asked.what), asked.bodies)
            self._check(wants)
        except NotAllowed as error:
            raise Refused(Reason.REJECTED, str(error)) from None
        self._opened += 1
        # No name from before a restart is one of ours.
        name = f"{self._bus.nonce.decode()}t{self._opened}"
        poll = self._polls[name] = Poll(name, 0.0, wants, deque())
        return poll

    def _check(self, wants: Filter) -> None:
        if self._allowed == "off":
            raise NotAllowed(OFF)
        if wants.bodies and self._allowed != "bodies":
            raise NotAllowed(NO_BODIES)
        if len(self) >= MAX_TAPS:
            raise NotAllowed(f"{MAX_TAPS} taps are open; close one first")

    def expire(self, now: float) -> None:
        """Let go of listeners that no longer ask. Called about every second."""
        for key in [key for key, tap in self._taps.items() if tap.until < now]:
            del self._taps[key]
        for poll in list(self._polls.values()):
            if poll.waiting is not None and poll.waits_until <= now:
                self._answer(poll)
            if poll.until < now:
                self._close(poll.name)
        self._look()

    def _look(self) -> None:
        self._bus.listen(bool(self._taps or self._polls), self._bus.journal)

    # -- telling ----------------------------------------------------------------------------------

    def observed(self, record: Observed) -> None:
        if not self._taps and not self._polls:
            return
        service = record.service.decode(errors="replace")
        wall = self._wall()
        for tap in self._taps.values():
            if _fits(tap.wants, service, record.what):
                self._send(tap, self._view(record, wall, tap.wants))
        for poll in self._polls.values():
            if _fits(poll.wants, service, record.what):
                if len(poll.records) < POLL_RECORDS:
                    poll.records.append(self._view(record, wall, poll.wants))
                else:
                    poll.missed += 1
                if poll.waiting is not None:
                    self._answer(poll)

    def _view(self, record: Observed, wall: float, wants: Filter) -> dict[str, Any]:
        return observation_view(record, wall, wants.bodies and self._allowed == "bodies")

    def _send(self, tap: Tap, view: dict[str, Any]) -> None:
        missed, tap.missed = tap.missed, 0
        if missed:
            view["missed_before"] = missed
        frames: Message = [tap.peer[1], EMPTY, TAG, tap.question, msgspec.json.encode({"ok": view})]
        self._outbox.put(tap.peer[0], frames, TapRecord(tap, frames, missed))

    def _missed(self, record: TapRecord) -> None:
        record.tap.missed += record.missed_before + 1

    def _answer(self, poll: Poll) -> None:
        call, poll.waiting = poll.waiting, None
        if call is None:
            return
        records = [poll.records.popleft() for _ in range(min(poll.limit, len(poll.records)))]
        missed, poll.missed = poll.missed, 0
        body = msgspec.json.encode({"tap": poll.name, "records": records, "missed": missed})
        self._bus.actions.append(Answer(call.client, call.voice, call.service, call.request_id, [body]))

    def _close(self, name: str) -> None:
        poll = self._polls.pop(name)
        self._answer(poll)


def _fits(wants: Filter, service: str, what: str) -> bool:
    return (not wants.service or wants.service == service) and (not wants.kinds or what in wants.kinds)


def read_kinds(text: str) -> frozenset[str]:
    """The kinds that are named in a text, separated by commas."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in KINDS:
            near = get_close_matches(word, KINDS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise NotAllowed(f"nothing that happens is called {word!r}{hint} There are {', '.join(KINDS)}")
    return frozenset(words)


def observation_view(record: Observed, wall: float, bodies: bool) -> dict[str, Any]:
    """An observation for people and tables."""
    view: dict[str, Any] = {
        "at": wall,
        "what": record.what,
        "token": record.token.decode(),
        "request_id": views.peer_name((0, record.request_id)) if record.request_id else "",
        "service": record.service.decode(errors="replace"),
        "client": views.peer_name(record.client) if record.client else "",
        "client_dialect": dialect_of(record.client_voice),
        "worker": views.peer_name(record.worker) if record.worker else "",
        "worker_dialect": dialect_of(record.worker_voice),
        "attempt": record.attempt,
        "reason": record.reason,
        "detail": record.detail,
        # Of what was sent with it: a reply has its own.
        "bytes": record.size if record.body is None else sum(map(len, record.body)),
    }
    if record.dispatched_at:
        view["waited_s"] = round(record.dispatched_at - record.accepted_at, 6)
    if record.accepted_at:
        view["age_s"] = round(record.at - record.accepted_at, 6)
    if bodies and record.body is not None:
        view["body_base64"] = [
            base64.b64encode(memoryview(frame)[:TAP_BODY_BYTES]).decode() for frame in record.body
        ]
    return view


def dialect_of(voice: Any) -> str:
    return getattr(voice, "dialect", "")
