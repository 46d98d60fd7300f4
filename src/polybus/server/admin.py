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

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from polybus.core import events, views
from polybus.core.actions import Observed
from polybus.core.bus import Bus
from polybus.core.lifecycle import BusState
from polybus.core.model import Address
from polybus.dialects.port import Message
from polybus.server.draining import draining
from polybus.server.effects import Outbox
from polybus.server.taps import TAG, NotAllowed, Taps, dialect_of
from polybus.telemetry.logs import log
from polybus.wire.frames import EMPTY, MAX_TEXT_BYTES

# Requests listed in one answer.
MAX_LISTED: Final = 1000


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
    """The ear of the admin socket."""

    def __init__(
        self,
        bus: Bus,
        outbox: Outbox,
        wall: Callable[[], float],
        facts: Callable[[], dict[str, Any]],
        on_drain: Callable[[], None] = lambda: None,
        more: Mapping[str, Callable[[dict[str, Any], float], Any]] | None = None,
        tap: str = "meta",
    ) -> None:
        self._bus = bus
        # The server's part of draining: what is still unanswered after a while is left so.
        self._on_drain = on_drain
        # What the server knows beside the core: endpoints, pump, uptime, errors.
        self._facts = facts
        self._outbox = outbox
        self.taps = Taps(bus, outbox, wall, tap)
        self.rates = views.Rates()
        outbox.handlers[Observed] = self.taps.observed
        self._commands: dict[str, Callable[[dict[str, Any], float], Any]] = {
            "ping": lambda question, now: {"pong": True},
            "status": lambda question, now: {**views.totals(bus), **self._facts()},
            "services": lambda question, now: views.services(bus, now, dialect_of, self.rates),
            "workers": lambda question, now: views.workers(bus, now, dialect_of),
            "nodes": lambda question, now: views.nodes(bus, now),
            "requests": lambda question, now: views.requests(bus, now, dialect_of, MAX_LISTED),
            "cancel": self._cancel,
            "drain": self._drain,
            **(more or {}),
        }

    def add(self, commands: Mapping[str, Callable[[dict[str, Any], float], Any]]) -> None:
        """More questions that are answered."""
        self._commands.update(commands)

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
                self.taps.tap(peer, number, question, now)
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
        except (BadQuestion, NotAllowed) as error:
            answer = {"error": str(error)}
        self._answer(peer, number, answer)

    def _answer(self, peer: Address, number: bytes, answer: dict[str, Any]) -> None:
        self._outbox.put(peer[0], [peer[1], EMPTY, TAG, number, msgspec.json.encode(answer)], None)

    def expire(self, now: float) -> None:
        """Let go of listeners that no longer ask, and count what was done. Called about every second."""
        self.rates.sample(self._bus.services, now)
        self.taps.expire(now)

    def _cancel(self, question: dict[str, Any], now: float) -> Any:
        if "client" in question:
            return self._cancel_all_of(str(question["client"]), now)
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

    def _cancel_all_of(self, name: str, now: float) -> Any:
        """For a client that gives up and whose dialect has no word for it; what is guaranteed survives it."""
        if not name:
            raise BadQuestion("whose requests? Give the identity of a client as 'client'")
        found = [
            request
            for address, client in self._bus.clients.items()
            if name == views.peer_name(address)
            for request in client.outstanding.values()
        ]
        given_up = [request.token for request in found if not request.durable]
        for token in given_up:
            self._bus.handle(events.CancelToken(token, "its client gave up"), now)
        return {
            "cancelled": [token.decode() for token in given_up],
            "kept": [request.token.decode() for request in found if request.durable],
        }

    def _drain(self, question: dict[str, Any], now: float) -> Any:
        bus = self._bus
        is_news = bus.state is BusState.SERVING
        bus.handle(events.Drain(), now)
        drain_s = self._facts()["drain_s"]
        if is_news:
            state = draining(bus.state is BusState.DRAINED, bus.request_count, drain_s)
            log(f"told to drain over the admin socket; {state}", unanswered=bus.request_count)
        self._on_drain()
        return {"state": bus.state.name.lower(), "requests": bus.request_count, "drain_s": drain_s}
