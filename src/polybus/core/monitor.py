"""What the broker says about itself: events of its peers, and a summary, on topics of its own.

`polybus/monitor/<event>` when something happens, `polybus/monitor/summary` every second; both JSON, and only
while somebody has subscribed to a topic that begins with `polybus/`.  They are no last values: how things
stood when the last listener left would be told to the next as if it were so.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import nlargest
from itertools import islice
from typing import Any, Final

import msgspec

from polybus.core import views
from polybus.core.actions import Fanout, Observed
from polybus.core.bus import Bus
from polybus.core.lifecycle import NodeState
from polybus.core.model import Service

TOPIC: Final = b"polybus/monitor/"
SUMMARY: Final = TOPIC + b"summary"
# What is told, by what was observed. What happens to single requests is not: that is listening in, which
# needs permission (`monitor.tap`).
EVENTS: Final = {
    "registered": "node_up",
    "node_up": "node_up",
    "node_late": "node_late",
    "node_down": "node_down",
    "denied": "node_denied",
    "worker_up": "worker_up",
    "offered": "worker_up",
    "worker_down": "worker_down",
    "heartbeat_missed": "worker_lost",
    "scheduler_up": "scheduler_up",
    "store_sick": "store_sick",
    "store_well": "store_well",
    "bridge_up": "bridge_up",
    "bridge_down": "bridge_down",
}
# Events about a node, whose name is where others have a service.
ABOUT_NODES: Final = ("node_up", "node_late", "node_down", "node_denied")
COUNTED: Final = ("accepted", "replied", "failed", "rejected", "expired", "published")
# The busiest services are named; when there are more than the second number of them, looking for those would
# hold up everybody.
NAMED: Final = 10
LOOKED_THROUGH: Final = 5_000
# Of each kind so many are told of at once: the answer is one message.
LISTED: Final = 1_000


def event_of(record: Observed, wall: float, name_of: views.NameOf) -> tuple[bytes, dict[str, Any]] | None:
    """Topic and content of the event that an observation is; None if it is none."""
    name = EVENTS.get(record.what)
    if name is None:
        return None
    event: dict[str, Any] = {"at": round(wall, 6), "event": name}
    if name in ABOUT_NODES:
        event["node"] = record.service.decode(errors="replace")
    elif record.service:
        event["services"] = record.service.decode(errors="replace").split(",")
    if record.worker is not None:
        event["worker"] = views.peer_name(record.worker)
        event["dialect"] = name_of(record.worker_voice)
    for field in ("reason", "detail"):
        if getattr(record, field):
            event[field] = getattr(record, field)
    return TOPIC + name.encode(), event


class Monitor:
    """Says it, as actions of the bus."""

    def __init__(self, bus: Bus, facts: Callable[[], dict[str, Any]], name_of: views.NameOf) -> None:
        self._bus = bus
        # What the server knows beside the core.
        self._facts = facts
        self._name_of = name_of
        self._before: dict[str, int] = {}
        self._before_at = 0.0

    def observed(self, record: Observed) -> None:
        bus = self._bus
        if bus.monitored:
            found = event_of(record, bus.wall_at(record.at), self._name_of)
            if found is not None:
                self._say(*found)

    def tick(self, now: float) -> None:
        """Called about every second."""
        if not self._bus.monitored:
            self._before = {}
            return
        self._say(SUMMARY, self.summary(now))

    def summary(self, now: float) -> dict[str, Any]:
        """How things are, with rates since the last summary."""
        bus = self._bus
        counters = {name: getattr(bus.counters, name) for name in COUNTED}
        span_s = now - self._before_at
        before = self._before if span_s > 0 else {}
        rates = {
            f"{name}_per_s": round((count - before[name]) / span_s, 2) if before else 0.0
            for name, count in counters.items()
        }
        self._before, self._before_at = counters, now
        late = sum(1 for node in bus.nodes.values() if node.state is NodeState.LATE)
        return {
            "at": round(bus.wall_at(now), 6),
            "event": "summary",
            **self._facts(),
            "state": bus.state.name.lower(),
            "store": bus.store_trouble or "well",
            "requests": bus.request_count,
            "services": len(bus.services),
            "workers": len(bus.workers),
            "workers_late": sum(1 for worker in bus.workers.values() if views.is_late(worker, now)),
            "silent_workers": len(bus.silent),
            "nodes": len(bus.nodes),
            "nodes_late": late,
            "clients": len(bus.clients),
            **counters,
            **rates,
            "busiest": [_brief(service) for service in busiest(bus, NAMED)],
        }

    def _say(self, topic: bytes, content: dict[str, Any]) -> None:
        # Not `topics.publish`: these are no last values, and are not counted as somebody's publications.
        self._bus.actions.append(Fanout(topic, [msgspec.json.encode(content)], content["at"]))


def busiest(bus: Bus, most: int) -> list[Service]:
    """Services with the most work in hand and waiting."""
    if len(bus.services) > LOOKED_THROUGH:
        return []
    busy = [service for service in bus.services.values() if service.running or service.queue.length]
    return nlargest(most, busy, key=lambda service: service.running + service.queue.length)


def _brief(service: Service) -> dict[str, Any]:
    return {
        "service": service.name.decode(errors="replace"),
        "workers": len(service.roster.members),
        "queued": service.queue.length,
        "running": service.running,
    }


def liveness(bus: Bus, now: float, name_of: views.NameOf, rates: views.Rates) -> dict[str, Any]:
    """Whether every service, worker and node of every dialect is alive, since when, and what it carries."""
    fields = (
        "state", "dialects", "workers", "late_workers", "silent_workers", "up_s", "silent_s", "missed_beats",
        "load", "queued", "running", "rate_per_s", "answered", "failed",
    )  # fmt: skip
    services = {}
    silent = views.silent_by_service(bus)
    for name in islice(sorted(bus.services), LISTED):
        service = bus.services[name]
        row = views.service_view(service, now, name_of, rates.of(service, now), silent[name])
        services[row["service"]] = {field: row[field] for field in fields}
    workers = [
        views.worker_view(one, now, name_of, bus.wall_offset)
        for one in islice(views.all_workers(bus), LISTED)
    ]
    nodes = [views.node_view(bus.nodes[name], now) for name in islice(sorted(bus.nodes), LISTED)]
    # How many there are, in case not all are listed.
    workers_known = len(bus.workers) + len(bus.silent)
    counts = {"services": len(bus.services), "workers": workers_known, "nodes": len(bus.nodes)}
    at = round(bus.wall_at(now), 6)
    return {"at": at, "counts": counts, "services": services, "workers": workers, "nodes": nodes}
