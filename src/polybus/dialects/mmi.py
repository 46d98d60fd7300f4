"""The Majordomo Management Interface (RFC 8): services named `mmi.*` that the broker answers itself.

The answer is a three-digit code as text, as in the RFC: 200 found, 404 not found, 501 not implemented.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from polybus.core.bus import Bus
from polybus.core.model import Body
from polybus.wire.frames import MAX_NAME_BYTES, Frame

PREFIX: Final = b"mmi."
# No service is called so: names are printable.
NOBODYS: Final = b"\0"


def answer(bus: Bus, service: bytes, body: Body) -> Body:
    """The reply to a request for `service`, which begins with `mmi.`."""
    query = QUERIES.get(service)
    if query is None:
        return [b"501"]
    frame: Frame = body[0] if body else b""
    # No service has a longer name; it is not copied only to find that out.
    return query(bus, bytes(frame) if len(frame) <= MAX_NAME_BYTES else NOBODYS)


def _service(bus: Bus, name: bytes) -> Body:
    known = bus.services.get(name)
    return [b"200" if known is not None and known.roster.members else b"404"]


def _workers(bus: Bus, name: bytes) -> Body:
    """How many workers offer the service; without a name, how many there are at all."""
    if not name:
        return [b"200", b"%d" % sum(not w.is_scheduler for w in bus.workers.values())]
    known = bus.services.get(name)
    return [b"200", b"%d" % len(known.roster.members)] if known else [b"404"]


def _services(bus: Bus, name: bytes) -> Body:
    """The names of all services that have workers, one frame each."""
    return [b"200", *sorted(s.name for s in bus.services.values() if s.roster.members)]


QUERIES: Final[dict[bytes, Callable[[Bus, bytes], Body]]] = {
    b"mmi.service": _service,
    b"mmi.workers": _workers,
    b"mmi.services": _services,
}
