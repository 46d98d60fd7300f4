"""Answers that were given, kept for clients that ask again with the same id.

Kept by age, by bytes and by count, the oldest leaving first.  A client record lives as long as it
has unanswered requests or kept answers.  Every answer passes here twice, the second time when it has long
left the processor's caches: so an answer notes itself for whom it is kept, and nothing else is built for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from polybus.core.actions import ELSEWHERE, Answer, Refuse
from polybus.core.model import Reason
from polybus.core.records import Client

if TYPE_CHECKING:
    from polybus.core.model import Body
    from polybus.core.tables import Tables

# What one kept answer costs beside its body.
KEPT_OVERHEAD_BYTES: Final = 400
_OVERHEAD = KEPT_OVERHEAD_BYTES  # a number of C when compiled


class KeptOutcome:
    """The outcome of a guaranteed request, as long as somebody may ask for it."""

    __slots__ = ("at", "client", "size", "token", "word")

    at: float
    client: Client
    token: bytes
    size: int
    word: Answer | Refuse


def new_outcome(at: float, client: Client, token: bytes, size: int, word: Answer | Refuse) -> KeptOutcome:
    """A function, because calling a class packs its arguments first."""
    kept = KeptOutcome.__new__(KeptOutcome)
    kept.at = at
    kept.client = client
    kept.token = token
    kept.size = size
    kept.word = word
    return kept


def body_size(body: Body) -> int:
    if len(body) == 1:
        return len(body[0])
    return sum(map(len, body))


def keep(bus: Tables, client: Client, answer: Answer, now: float) -> None:
    answer.kept_for = client
    answer.kept_at = now
    client.known[answer.request_id] = answer
    bus.note_reply(answer)
    bus.replies_bytes += body_size(answer.body) + _OVERHEAD
    if len(bus.replies) > bus.max_replies or bus.replies_bytes > bus.max_replies_bytes:
        _shed(bus)


def keep_refusal(bus: Tables, client: Client, refusal: Refuse, now: float) -> None:
    """The same for a request that was not answered by a worker: rare, so it is noted beside it."""
    if refusal.reason is Reason.UNDELIVERABLE and refusal.detail.startswith(ELSEWHERE):
        # It is given back to a neighbour. Should that send it again, it is no repetition.
        del client.known[refusal.request_id]
        release_client(bus, client)
        return
    client.known[refusal.request_id] = refusal
    bus.note_reply((now, client, refusal))
    bus.replies_bytes += body_size(refusal.body) + _OVERHEAD
    _shed(bus)


def _shed(bus: Tables) -> None:
    while len(bus.replies) > bus.max_replies or bus.replies_bytes > bus.max_replies_bytes:
        _drop_oldest_reply(bus)


def _drop_oldest_reply(bus: Tables) -> None:
    oldest = bus.replies.popleft()
    if isinstance(oldest, Answer):
        answer = oldest
        client: Client = answer.kept_for  # type: ignore[assignment]  # what is kept is kept for somebody
        answer.kept_for = None
        bus.replies_bytes -= body_size(answer.body) + _OVERHEAD
        client.known.pop(answer.request_id, None)
    else:
        _, client, refusal = oldest
        bus.replies_bytes -= body_size(refusal.body) + _OVERHEAD
        client.known.pop(refusal.request_id, None)
    release_client(bus, client)


def release_client(bus: Tables, client: Client) -> None:
    if not client.known:
        bus.clients.pop(client.address, None)


def forget_old(bus: Tables, now: float) -> None:
    """Let go of answers that are too old to be asked for again."""
    while bus.replies and _kept_at(bus.replies[0]) < now - bus.limits.replies_age_s:
        _drop_oldest_reply(bus)


def _kept_at(entry: Answer | tuple[float, Client, Refuse]) -> float:
    return entry.kept_at if isinstance(entry, Answer) else entry[0]


def kept(bus: Tables) -> Iterator[tuple[Client, Answer | Refuse]]:
    """All kept answers, the oldest first."""
    for entry in bus.replies:
        if isinstance(entry, Answer):
            assert entry.kept_for is not None
            yield entry.kept_for, entry
        else:
            yield entry[1], entry[2]
