"""The Majordomo family for tests: one broker socket, and the words of each of the three dialects.

`statement(mdp1=…, mdp2=…, mdr=…)` runs a test once for each dialect named, marked with the statements that
it shows there; the test gets the dialect's words as `talk`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from polybus.core.model import Limits
from polybus.dialects.ended import Ended
from polybus.dialects.mdp1 import Mdp1
from polybus.dialects.mdp2 import Mdp2
from polybus.dialects.mdr import Mdr
from polybus.dialects.port import RouterEar
from support.exchange import Exchange

Frames = list[bytes]

CLIENTS, WORKERS = 1, 2
BEAT_S = 2.5
DEAD_S = 7.5


@dataclass(frozen=True)
class Talk:
    """The frames of one dialect, from the tag on; `rid` is the request id where there is one."""

    name: str
    client: bytes
    worker: bytes
    has_ids: bool
    has_partials: bool
    request_head: Frames
    final_head: Frames
    partial_head: Frames
    worker_final: bytes
    worker_partial: bytes
    beat: bytes
    disconnect: bytes
    # What the broker says when it hears a beat, if it answers it.
    beat_answer: bytes = b""
    # The header of the broker's DISCONNECT, where it is another: the draft shows that of MDP/0.2.
    dismissal_tag: bytes = b""

    def request(self, service: bytes, rid: bytes, *body: bytes) -> Frames:
        return [self.client, *self.request_head, service, *self._rid(rid), *body]

    def final(self, service: bytes, rid: bytes, *body: bytes) -> Frames:
        """What a client gets at the end."""
        return [self.client, *self.final_head, service, *self._rid(rid), *body]

    def partial(self, service: bytes, rid: bytes, *body: bytes) -> Frames:
        """What a client gets before the end."""
        return [self.client, *self.partial_head, service, *self._rid(rid), *body]

    def ready(self, service: bytes, *credit: bytes) -> Frames:
        return [self.worker, b"\x01", service, *credit]

    def heartbeat(self) -> Frames:
        return [self.worker, self.beat]

    def farewell(self) -> Frames:
        return [self.worker, self.disconnect]

    def dismissal(self) -> Frames:
        """The same from the broker."""
        return [self.dismissal_tag or self.worker, self.disconnect]

    def order(self, token: bytes, rid: bytes, *body: bytes) -> Frames:
        """What a worker gets."""
        return [self.worker, b"\x02", token, b"", *self._rid(rid), *body]

    def reply(self, order: Frames, *body: bytes) -> Frames:
        """A worker's last word on what it got."""
        return [self.worker, self.worker_final, *self._envelope(order), *body]

    def part(self, order: Frames, *body: bytes) -> Frames:
        return [self.worker, self.worker_partial, *self._envelope(order), *body]

    def body_of(self, order: Frames) -> Frames:
        return order[5:] if self.has_ids else order[4:]

    def _envelope(self, order: Frames) -> Frames:
        return order[2:5] if self.has_ids else order[2:4]

    def _rid(self, rid: bytes) -> Frames:
        return [rid] if self.has_ids else []


MDP1 = Talk(
    "mdp1", b"MDPC01", b"MDPW01", False, False, [], [], [], b"\x03", b"", beat=b"\x04", disconnect=b"\x05"
)
MDP2 = Talk(
    "mdp2",
    b"MDPC02",
    b"MDPW02",
    False,
    True,
    [b"\x01"],
    [b"\x03"],
    [b"\x02"],
    b"\x04",
    b"\x03",
    beat=b"\x05",
    disconnect=b"\x06",
)
MDR = Talk(
    "mdr",
    b"MDRC01",
    b"MDRW01",
    True,
    True,
    [b"\x01"],
    [b"\x03"],
    [b"\x02"],
    b"\x04",
    b"\x03",
    beat=b"PING",
    disconnect=b"\x06",
    beat_answer=b"PONG",
    dismissal_tag=b"MDPW02",
)
TALKS = (MDP1, MDP2, MDR)


def statement(**ids: str) -> pytest.MarkDecorator:
    """Run a test for the dialects named; each value has the ids, separated by spaces."""
    chosen = [talk for talk in TALKS if talk.name in ids]
    return pytest.mark.parametrize(
        "talk",
        [
            pytest.param(
                talk, id=talk.name, marks=[pytest.mark.conforms(one) for one in ids[talk.name].split()]
            )
            for talk in chosen
        ],
    )


class Household(Exchange):
    """Two Majordomo sockets that take every dialect in every role."""

    def __init__(self, limits: Limits | None = None, make: Callable[..., Any] = Mdr) -> None:
        super().__init__(limits)
        ended = Ended()
        mdr = make(self.bus, BEAT_S, 3, ended=ended)
        tags = {**Mdp1(self.bus, BEAT_S, 3, ended).tags, **Mdp2(self.bus, BEAT_S, 3, ended).tags, **mdr.tags}
        for link in (CLIENTS, WORKERS):
            self.listen(link, RouterEar(self.bus, "majordomo", tags, mdr.rebuke))

    def ask(self, client: bytes, frames: Frames) -> None:
        self.send(CLIENTS, client, *frames)

    def say(self, worker: bytes, frames: Frames) -> None:
        self.send(WORKERS, worker, *frames)

    def answers(self, client: bytes) -> list[Any]:
        return self.got(CLIENTS, client)

    def orders(self, worker: bytes) -> list[Any]:
        return self.got(WORKERS, worker)

    def order(self, worker: bytes) -> Any:
        return self.one(WORKERS, worker)
