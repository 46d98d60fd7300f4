"""Answers that were given, kept for clients that ask again with the same id.

Kept by age, by bytes and by count, the oldest leaving first.  A client record lives as long as it
has unanswered requests or kept answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from polybus.core.records import Client

if TYPE_CHECKING:
    from polybus.core.actions import Answer, Refuse
    from polybus.core.tables import Tables

# What one kept answer costs beside its body.
KEPT_OVERHEAD_BYTES: Final = 400


def keep(bus: Tables, client: Client, request_id: bytes, answer: Answer | Refuse, now: float) -> None:
    body = answer.body
    size = (len(body[0]) if len(body) == 1 else sum(map(len, body))) + KEPT_OVERHEAD_BYTES
    client.known[request_id] = answer
    bus.replies.append((now, client, request_id, size))
    bus.replies_bytes += size
    while len(bus.replies) > bus.max_replies or bus.replies_bytes > bus.max_replies_bytes:
        _drop_oldest_reply(bus)


def _drop_oldest_reply(bus: Tables) -> None:
    _, client, request_id, size = bus.replies.popleft()
    bus.replies_bytes -= size
    client.known.pop(request_id, None)
    release_client(bus, client)


def release_client(bus: Tables, client: Client) -> None:
    if not client.known:
        bus.clients.pop(client.address, None)


def forget_old(bus: Tables, now: float) -> None:
    """Let go of answers that are too old to be asked for again."""
    while bus.replies and bus.replies[0][0] < now - bus.limits.replies_age_s:
        _drop_oldest_reply(bus)
