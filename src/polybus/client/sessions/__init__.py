"""Sans-IO sessions, one module a dialect behind one port, and how to get one by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from polybus.client.sessions.dbp import DbpClient, DbpWorker
from polybus.client.sessions.ebus import EbusClient, EbusWorker
from polybus.client.sessions.emqp import EmqpClient, EmqpWorker
from polybus.client.sessions.mdp1 import Mdp1Client, Mdp1Worker
from polybus.client.sessions.mdp2 import Mdp2Client, Mdp2Worker
from polybus.client.sessions.mdr import MdrClient, MdrWorker
from polybus.client.sessions.port import ClientSession, WorkerSession

_CLIENTS: Final[Mapping[str, Callable[[], ClientSession]]] = {
    "mdr": MdrClient,
    "mdp1": Mdp1Client,
    "mdp2": Mdp2Client,
    "ebus": EbusClient,
    "emqp": EmqpClient,
    "dbp": DbpClient,
}
_WORKERS: Final[Mapping[str, Callable[[bytes, int], WorkerSession]]] = {
    "mdr": MdrWorker,
    "mdp1": Mdp1Worker,
    "mdp2": Mdp2Worker,
    "ebus": EbusWorker,
    "dbp": DbpWorker,
}

# What a queue weighs unless its worker says otherwise, as in EventMQ.
DEFAULT_WEIGHT: Final = 10


def client_session(dialect: str, tag: bytes = b"") -> ClientSession:
    """A client's conversation; `tag` is frame 0 where the dialect leaves it open (`addresses.tag_for`)."""
    return MdrClient(tag) if tag else _CLIENTS[dialect]()


def worker_sessions(
    dialect: str,
    services: Sequence[bytes],
    credit: int,
    weights: Mapping[bytes, int],
    prefix: bytes,
    holding: Callable[[], Sequence[bytes]] | None = None,
    tag: bytes = b"",
) -> list[WorkerSession]:
    """The conversations that it takes to offer these services: one each, but for eMQP, which lists them."""
    if dialect == "emqp":
        queues = [(weights.get(name, DEFAULT_WEIGHT), name) for name in services]
        return [EmqpWorker(queues, credit, prefix, holding=holding)]
    if tag:
        return [MdrWorker(name, credit, tag) for name in services]
    return [_WORKERS[dialect](name, credit) for name in services]
