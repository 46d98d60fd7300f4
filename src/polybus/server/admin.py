"""The admin socket: questions about the live bus, and the few orders an operator may give.

    question  [identity, "", "PBADM1", id, {"do": "services", …}]
    answer    [identity, "", "PBADM1", id, {"ok": …}]  or  {"error": "…"}

Everything is JSON.  A tap is answered with one message for each thing observed, under the id of
the question, for as long as the asker repeats it (every few seconds): a listener that died costs
nothing for long.  A listener that reads too slowly misses records and is told how many.

An answer that has to wait, for the store or for the disk, is a `Later`; questions that came after it may be
answered before it, which is why answers carry the id of their question.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Struct

from polybus.core import events, views
from polybus.core.actions import Observed
from polybus.core.bus import Bus
from polybus.core.model import Address
from polybus.dialects.port import Message
from polybus.server.effects import Outbox
from polybus.wire.frames import EMPTY, MAX_TEXT_BYTES

TAG: Final = b"PBADM1"
# A tap must be asked for again within this time.
TAP_LEASE_S: Final = 10.0
# More listeners than this are a mistake; each costs an encoding of every event.
MAX_TAPS: Final = 64
# Bodies in tap records are cut here.
TAP_BODY_BYTES: Final = 1024
# Requests listed in one answer.
MAX_LISTED: Final = 1000


class Tap(Struct):
    peer: Address
    question: bytes
    until: float
    service: str = ""
    what: str = ""
    bodies: bool = False
    missed: int = 0


class TapRecord(Struct, frozen=True):
    """An observation on its way to one listener."""

    tap: Tap
    frames: Message
    # What it says that the listener missed before it; if it is missed as well, nobody has said so yet.
    missed_before: int


class BadQuestion(Exception):
    """The asker is told this."""


class Later:
    """An answer that is given later, once."""

    def __init__(self) -> None:
        self._tell: Callable[[dict[str, Any]], None] | None = None
        self._answer: dict[str, Any] | None = None

    def give(self, value: Any) -> None:
        self._finish({"ok": value})

    def refuse(self, why: str) -> None:
        self._finish({"error": why})

    def then(self, tell: Callable[[dict[str, Any]], None]) -> None:
        """Who is to be told; at once if the answer is already there."""
        if self._answer is not None:
            tell(self._answer)
        else:
            self._tell = tell

    def _finish(self, answer: dict[str, Any]) -> None:
        if self._answer is None:
            self._answer = answer
            if self._tell is not None:
                self._tell(answer)


class AdminEar:
    """The ear of the admin socket, and the fan-out of observations to taps."""

    def __init__(
        self,
        bus: Bus,
        outbox: Outbox,
        wall: Callable[[], float],
        facts: Callable[[], dict[str, Any]],
        on_drain: Callable[[], None] = lambda: None,
        more: Mapping[str, Callable[[dict[str, Any], float], Any]] | None = None,
    ) -> None:
        self._bus = bus
        # The server's part of draining: what is still unanswered after a while is left so.
        self._on_drain = on_drain
        self._wall = wall
        # What the server knows beside the core: endpoints, pump, uptime, errors.
        self._facts = facts
        self._outbox = outbox
        self._taps: dict[tuple[Address, bytes], Tap] = {}
        self._rates = views.Rates()
        outbox.handlers[Observed] = self._observed
        outbox.handlers[TapRecord] = lambda record: outbox.put(record.tap.peer[0], record.frames, record)
        outbox.refusals[TapRecord] = self._missed
        self._commands: dict[str, Callable[[dict[str, Any], float], Any]] = {
            "ping": lambda question, now: {"pong": True},
            "status": lambda question, now: {**views.totals(bus), **self._facts()},
            "services": lambda question, now: views.services(bus, now, _dialect, self._rates),
            "workers": lambda question, now: views.workers(bus, now, _dialect),
            "nodes": lambda question, now: views.nodes(bus, now),
            "requests": lambda question, now: views.requests(bus, now, _dialect, MAX_LISTED),
            "cancel": self._cancel,
            "drain": self._drain,
            **(more or {}),
        }

    def receive(self, link: int, frames: Message, now: float) -> None:
        peer = (link, bytes(frames[0]))
        if (
            len(frames) != 5
            or len(frames[1])
            or frames[2] != TAG
            or len(frames[3]) > 255
            or len(frames[4]) > MAX_TEXT_BYTES
        ):
            self._bus.handle(
                events.Invalid(peer, "admin", "unknown_tag", "not a question to the admin socket"), now
            )
            return
        number = bytes(frames[3])
        try:
            question = msgspec.json.decode(bytes(frames[4]), type=dict[str, Any])
            if question.get("do") == "tap":
                self._tap(peer, number, question, now)
                return
            command = self._commands.get(str(question.get("do")))
            if command is None:
                raise BadQuestion(
                    f"unknown command {question.get('do')!r}; known: {', '.join(self._commands)}, tap"
                )
            value = command(question, now)
            if isinstance(value, Later):
                value.then(partial(self._answer, peer, number))
                return
            answer: dict[str, Any] = {"ok": value}
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
            answer = {"error": f"the question is no JSON object: {error}"}
        except BadQuestion as error:
            answer = {"error": str(error)}
        self._answer(peer, number, answer)

    def _answer(self, peer: Address, number: bytes, answer: dict[str, Any]) -> None:
        self._outbox.put(peer[0], [peer[1], EMPTY, TAG, number, msgspec.json.encode(answer)], None)

    def expire(self, now: float) -> None:
        """Let go of listeners that no longer ask, and count what was done. Called about every second."""
        self._rates.sample(self._bus.services, now)
        for key in [key for key, tap in self._taps.items() if tap.until < now]:
            del self._taps[key]
        self._bus.watched = bool(self._taps)

    def _tap(self, peer: Address, number: bytes, question: dict[str, Any], now: float) -> None:
        tap = self._taps.get((peer, number))
        if tap is None:
            if len(self._taps) >= MAX_TAPS:
                raise BadQuestion(f"{MAX_TAPS} taps are open; close one first")
            tap = self._taps[peer, number] = Tap(
                peer,
                number,
                0.0,
                str(question.get("service", "")),
                str(question.get("what", "")),
                bool(question.get("bodies", False)),
            )
        tap.until = now + TAP_LEASE_S
        if question.get("stop"):
            del self._taps[peer, number]
        self._bus.watched = bool(self._taps)

    def _observed(self, record: Observed) -> None:
        service = record.service.decode(errors="replace")
        for tap in self._taps.values():
            if (tap.service and tap.service != service) or (tap.what and tap.what != record.what):
                continue
            view = observation_view(record, self._wall(), tap.bodies)
            missed, tap.missed = tap.missed, 0
            if missed:
                view["missed_before"] = missed
            frames: Message = [tap.peer[1], EMPTY, TAG, tap.question, msgspec.json.encode({"ok": view})]
            self._outbox.put(tap.peer[0], frames, TapRecord(tap, frames, missed))

    def _missed(self, record: TapRecord) -> None:
        record.tap.missed += record.missed_before + 1

    def _cancel(self, question: dict[str, Any], now: float) -> Any:
        name = str(question.get("request", ""))
        if not name:
            # Requests of dialects without ids have an empty one: nobody may mean them by saying nothing.
            raise BadQuestion("which request? Give its token or its id as 'request'")
        found = [
            request
            for request in self._bus.requests.values()
            if name in (request.token.decode(), views.peer_name((0, request.request_id)))
        ]
        if not found:
            raise BadQuestion(
                f"no unanswered request is called {name!r}; 'polybus queues --requests' lists them"
            )
        if len(found) > 1:
            tokens = ", ".join(request.token.decode() for request in found)
            raise BadQuestion(
                f"{len(found)} clients have a request {name!r}; name one by its token: {tokens}"
            )
        self._bus.handle(events.CancelToken(found[0].token), now)
        return {"cancelled": found[0].token.decode()}

    def _drain(self, question: dict[str, Any], now: float) -> Any:
        self._bus.handle(events.Drain(), now)
        self._on_drain()
        return {"state": self._bus.state.name.lower(), "requests": self._bus.request_count}


def observation_view(record: Observed, wall: float, bodies: bool) -> dict[str, Any]:
    """An observation for people and tables."""
    view: dict[str, Any] = {
        "at": wall,
        "what": record.what,
        "token": record.token.decode(),
        "request_id": views.peer_name((0, record.request_id)) if record.request_id else "",
        "service": record.service.decode(errors="replace"),
        "client": views.peer_name(record.client) if record.client else "",
        "client_dialect": _dialect(record.client_voice),
        "worker": views.peer_name(record.worker) if record.worker else "",
        "worker_dialect": _dialect(record.worker_voice),
        "attempt": record.attempt,
        "reason": record.reason,
        "detail": record.detail,
        "bytes": record.size,
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


def _dialect(voice: Any) -> str:
    return getattr(voice, "dialect", "")
