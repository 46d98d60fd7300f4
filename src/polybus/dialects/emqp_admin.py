"""The admin port of eMQP: questions with JSON answers under the names that public tools print, and the word
that makes the broker finish its work and stop.

Workers of every dialect are shown.  Times are milliseconds; `hb` is how the bus's own clock stood when the
peer was last heard, as in the public broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from polybus.core import events
from polybus.core.actions import Say
from polybus.core.bus import Bus
from polybus.core.model import Service
from polybus.core.views import peer_name
from polybus.dialects.emqp import message_ids
from polybus.dialects.port import Hear, Message, Rebuke, RouterEar
from polybus.errors import RemoteProtocolError
from polybus.wire import emqp as wire


class EmqpAdmin:
    """The ear of the admin port."""

    def __init__(self, bus: Bus, on_disconnect: Callable[[], None]) -> None:
        self._bus = bus
        self._on_disconnect = on_disconnect
        # Ids of this port go to its own peers only, so they may repeat those of the other ports.
        self._new_id = message_ids(bus)
        self.tags: dict[bytes, tuple[Hear, Rebuke]] = {wire.TAG: (self.hear, self.rebuke)}
        self._ear = RouterEar(bus, "emqp", self.tags)

    def receive(self, link: int, frames: Message, now: float) -> None:
        self._ear.receive(link, frames, now)

    def hear(self, link: int, frames: Message, at: int, now: float) -> None:
        message = wire.read_from_admin(frames, at)
        if isinstance(message, wire.Disconnect):
            self._say(link, frames, at, wire.write_ack(self._new_id(), message.msg_id))
            # At once: who has the ACK may count on it that no new work is taken.
            self._bus.handle(events.Drain(), now)
            self._on_disconnect()
        elif not isinstance(message, wire.Hello):
            self._tell(link, frames, at, REPORTS[type(message)](self._bus, now))

    def rebuke(self, link: int, frames: Message, at: int, error: RemoteProtocolError, now: float) -> None:
        self._tell(link, frames, at, {"error": error.reason, "detail": str(error)})

    def _tell(self, link: int, frames: Message, at: int, report: dict[str, Any]) -> None:
        self._say(link, frames, at, wire.write_reply(self._new_id(), [msgspec.json.encode(report)]))

    def _say(self, link: int, frames: Message, at: int, tail: Message) -> None:
        # What the peer put before the tag it gets back: its identity, and an empty frame if it sent one.
        peer = bytes(frames[0])
        self._bus.actions.append(Say((link, peer), [peer, *frames[1:at], *tail]))


def status(bus: Bus, now: float) -> dict[str, Any]:
    """How the queues are. In flight is what workers have; its latency counts from acceptance."""
    ages_ms: dict[str, list[int]] = {}
    for worker in bus.workers.values():
        for request in worker.inflight.values():
            ages_ms.setdefault(_name(request.service), []).append(int((now - request.accepted_at) * 1000))
    return {
        "inflight_messages_by_queue": {name: len(ages) for name, ages in ages_ms.items()},
        "latency_messages_by_queue": {name: sum(ages) // len(ages) for name, ages in ages_ms.items()},
        "max_latency_messages_by_queue": {name: max(ages) for name, ages in ages_ms.items()},
        "waiting_messages_by_queue": {
            _name(service): service.queue.length for service in bus.services.values() if service.queue.length
        },
        "processed_messages_by_queue": {
            _name(service): service.accepted - service.queue.length
            for service in bus.services.values()
            if service.accepted > service.queue.length
        },
        "processed_messages_by_worker": {
            peer_name(worker.address): worker.done + len(worker.inflight)
            for worker in bus.workers.values()
            if worker.done or worker.inflight
        },
    }


def workers(bus: Bus, now: float) -> dict[str, Any]:
    return {
        "connected_workers": {
            peer_name(worker.address): {
                "queues": [[weight, _name(service)] for service, weight in worker.offers.items()],
                "hb": worker.seen_at,
                "available_slots": worker.free,
            }
            for worker in bus.workers.values()
            if not worker.is_scheduler
        },
        "connected_queues": {
            _name(service): sorted(
                ([weight, peer_name(worker.address)] for worker, weight in service.roster.members.items()),
                reverse=True,
            )
            for service in bus.services.values()
            if service.roster.members
        },
    }


def schedulers(bus: Bus, now: float) -> dict[str, Any]:
    return {
        "connected_schedulers": {
            peer_name(scheduler.address): {"hb": scheduler.seen_at} for scheduler in bus.schedulers
        }
    }


def _name(service: Service) -> str:
    return service.name.decode(errors="replace")


REPORTS: Final[dict[type, Callable[[Bus, float], dict[str, Any]]]] = {
    wire.Status: status,
    wire.ShowWorkers: workers,
    wire.ShowSchedulers: schedulers,
}
