"""Which dialect listens where: the links of a broker, made from its settings."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import zmq
from msgspec import Struct, field

from polybus.config import Settings, endpoint
from polybus.core.actions import Dismiss
from polybus.core.bus import Bus
from polybus.core.catalog import Revive
from polybus.dialects.dbp import Dbp
from polybus.dialects.ebus import Ebus
from polybus.dialects.emqp import Emqp
from polybus.dialects.emqp_admin import EmqpAdmin
from polybus.dialects.ended import Ended
from polybus.dialects.mdp1 import Mdp1
from polybus.dialects.mdp2 import Mdp2
from polybus.dialects.mdr import Mdr
from polybus.dialects.port import Ear, Message, RouterEar
from polybus.dialects.pubsub import PublishEar, SubscribeEar, ebus_publication, emqp_publication
from polybus.server import dialled
from polybus.server.bridge import PORT as BRIDGE_PORT
from polybus.server.bridge import Bridges
from polybus.server.dialled import Dialled
from polybus.server.effects import Publication
from polybus.server.links import Link, bind, make_socket
from polybus.server.subscribers import Subscribers
from polybus.telemetry import logs

# What an XSUB sends to get every publication, and the first byte of a subscription.
SUBSCRIBE_ALL = b"\x01"
TCP = "tcp://"


class DeafEar:
    """Stands in until the real ear of a link exists."""

    def receive(self, link: int, frames: Message, now: float) -> None:
        return


class Assembly(Struct):
    links: list[Link]
    # None if the setting turns it off.
    admin: Link | None
    dialled: Dialled
    subscribers: Subscribers
    bridges: Bridges
    # Links on which libzmq serves the subscribers, and how publications are written there.
    served_by_libzmq: list[tuple[int, Publication]] = field(default_factory=list)
    # How clients are answered, by names that mean the same after a restart.
    voices: dict[str, Any] = field(default_factory=dict)
    # The last word to clients that are told when the broker stops.
    goodbyes: Callable[[], list[Dismiss]] = list
    # What becomes of registrations of an earlier life; and what nodes are told about heartbeats.
    revive: Revive = lambda entry: None
    agreed: dict[str, Any] = field(default_factory=dict)


def open_links(
    context: zmq.Context[zmq.Socket[bytes]],
    bus: Bus,
    settings: Settings,
    wall: Callable[[], float],
    on_disconnect: Callable[[], None],
) -> Assembly:
    """Make and bind everything the settings ask for."""
    links: list[Link] = []
    # What is a little too large is refused with a reason; what is much too large is not read at all.
    frame_bytes = settings.limits.body_bytes * 2

    def add(kind: int, name: str, ear: Ear) -> Link | None:
        place = endpoint(settings, name)
        if place is None:
            return None
        link = Link(len(links), name, make_socket(context, kind, settings.broker, frame_bytes), ear)
        links.append(link)
        link.endpoint = bind(link.socket, place, name)
        return link

    admin = add(zmq.ROUTER, "admin.port", DeafEar())
    dialects = _dialects(bus, settings, wall, dialled.NUMBER, on_disconnect)
    ebus, emqp, dbp = dialects["ebus"], dialects["emqp"], dialects["dbp"]
    for name in ("ebus.frontend", "ebus.backend"):
        add(zmq.ROUTER, name, RouterEar(bus, "ebus", ebus.tags))
    for name in ("emqp.clients", "emqp.workers"):
        add(zmq.ROUTER, name, RouterEar(bus, "emqp", emqp.tags))
    add(zmq.ROUTER, "emqp.publish", RouterEar(bus, "emqp", emqp.publish_tags))
    add(zmq.ROUTER, "emqp.admin", EmqpAdmin(bus, on_disconnect))
    family = {**dialects["mdp1"].tags, **dialects["mdp2"].tags, **dialects["mdr"].tags}
    for name in ("majordomo.clients", "majordomo.workers"):
        add(zmq.ROUTER, name, RouterEar(bus, "majordomo", family, dialects["mdr"].rebuke))
    add(zmq.ROUTER, "dbp.port", dbp.ear)

    publishers = add(zmq.XSUB, "ebus.publish", PublishEar(bus, "ebus"))
    if publishers is not None:
        publishers.socket.send(SUBSCRIBE_ALL)
    subscribers = Subscribers(bus, settings.broker.pipe_messages, settings.broker.pipe_bytes)
    bridges = Bridges(bus, settings)
    if bridges.is_on:
        add(zmq.ROUTER, BRIDGE_PORT, bridges.ear)
        bridges.open(context, settings, links, frame_bytes)

    def dealer() -> zmq.Socket[bytes]:
        return make_socket(context, zmq.DEALER, settings.broker, frame_bytes)

    connections = Dialled(bus, dealer, dbp.outbound_ear)
    assembly = Assembly(links, admin, connections, subscribers, bridges, goodbyes=emqp.goodbyes)
    for name in ("ebus", "emqp", "mdp1", "mdp2", "mdr"):
        for at in (1, 2):
            assembly.voices[f"{name}.{at}"] = dialects[name].client_voices[at]
    for at in (1, 2):
        for form, voice in dbp.client_voices[at].items():
            assembly.voices[f"dbp.{at}.{form.value}"] = voice
    publications = {"ebus.subscribe": ebus_publication, "emqp.subscribe": emqp_publication}
    for name, publication in publications.items():
        dialect = name.split(".")[0]
        if (endpoint(settings, name) or "").startswith(TCP):
            link = add(zmq.STREAM, name, subscribers)
            if link is not None:
                subscribers.add(link.number, dialect, publication)
        else:
            # There are raw connections over TCP only; elsewhere nobody gets last values.
            link = add(zmq.XPUB, name, SubscribeEar(bus, dialect))
            if link is not None:
                assembly.served_by_libzmq.append((link.number, publication))
    if endpoint(settings, "dbp.port") is not None:
        assembly.revive = dbp.revive
    assembly.agreed = dbp.agreed
    endpoints = {link.name: link.endpoint for link in links if link.endpoint}
    dbp.about = lambda: {"name": settings.broker.name, "function": "broker", "endpoints": endpoints}
    return assembly


def _dialects(
    bus: Bus,
    settings: Settings,
    wall: Callable[[], float],
    outbound_link: int,
    on_disconnect: Callable[[], None],
) -> dict[str, Any]:
    ebus, emqp, majordomo, dbp = settings.ebus, settings.emqp, settings.majordomo, settings.dbp
    beats = (majordomo.heartbeat_s, majordomo.liveness)
    ended = Ended()
    return {
        "ebus": Ebus(bus, ebus.heartbeat_s, ebus.liveness, ebus.expiry_s, ebus.worker_credit, ebus.strict),
        "emqp": Emqp(
            bus,
            emqp.heartbeat_s,
            emqp.timeout_s,
            emqp.liveness,
            emqp.default_queue.encode(),
            emqp.strict,
            wall=wall,
            expiry_s=emqp.expiry_s or inf,
            on_disconnect=on_disconnect if emqp.disconnect == "any" else None,
        ),
        "mdp1": Mdp1(bus, *beats, ended),
        "mdp2": Mdp2(bus, *beats, ended),
        "mdr": Mdr(bus, *beats, majordomo.client_tag.encode(), majordomo.worker_tag.encode(), ended),
        "dbp": Dbp(
            bus,
            wall,
            strict=dbp.strict,
            outbound_link=outbound_link,
            default_heartbeat_s=dbp.heartbeat_s,
            broker=settings.broker.name.encode(),
            tell=logs.Rare(),
        ),
    }
