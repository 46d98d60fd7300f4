"""The port between wire and core: ears that hear, voices that speak.

An **ear** belongs to one bound socket.  It gets whole messages, finds the reader by the tag frame,
and the dialect turns what it reads into core events.  A **voice** turns core actions into frames for one
kind of peer (dialect, role, framing); the core carries it along with the peer and never looks inside.
Voices are few and shared: one for each combination a dialect needs, not one a peer.

A voice method returns all the frames, the peer's identity first, or None where the dialect has no
word for it.  `LocalProtocolError` from `deliver` or `answer` means that this dialect cannot carry the body.

`at` is the index of the tag frame: 1, or 2 if the peer puts an empty frame first.  What a peer puts
first it also gets first, so voices come in pairs, `by_framing(at)` choosing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from polybus.core import events
from polybus.core.actions import (
    Accept,
    Acknowledge,
    Answer,
    Approve,
    Ask,
    Beat,
    Deny,
    Dismiss,
    Refuse,
    Reschedule,
    Stop,
    Stream,
)
from polybus.core.bus import Bus
from polybus.core.model import Request, Worker
from polybus.errors import RemoteProtocolError
from polybus.wire.frames import EMPTY, Frame

Message = list[Frame]
# link, frames, index of the tag frame, now
Hear = Callable[[int, Message, int, float], None]
# the same with the error: what a dialect answers to a message that it could not read
Rebuke = Callable[[int, Message, int, RemoteProtocolError, float], None]


class Voice:
    """How one kind of peer is spoken to. A dialect overrides what it has words for."""

    dialect = "none"
    # Whether `join` may put further requests into a message that `deliver` has written.
    joins = False

    def accept(self, action: Accept) -> Message | None:
        return None

    def stream(self, action: Stream) -> Message | None:
        return None

    def answer(self, action: Answer) -> Message | None:
        return None

    def refuse(self, action: Refuse) -> Message | None:
        return None

    def deliver(self, worker: Worker, request: Request) -> Message | None:
        return None

    def join(self, message: Message, request: Request) -> bool:
        """Add a request for the same worker; False if it needs a message of its own."""
        return False

    def stop(self, action: Stop) -> Message | None:
        return None

    def beat(self, action: Beat) -> Message | None:
        return None

    def dismiss(self, action: Dismiss) -> Message | None:
        return None

    def reschedule(self, action: Reschedule) -> Message | None:
        return None

    def approve(self, action: Approve) -> Message | None:
        return None

    def deny(self, action: Deny) -> Message | None:
        return None

    def acknowledge(self, action: Acknowledge) -> Message | None:
        return None

    def ask(self, action: Ask) -> Message | None:
        return None


class Ear(Protocol):
    """What a bound socket hands its messages to."""

    def receive(self, link: int, frames: Message, now: float) -> None: ...


class RouterEar:
    """The ear of a ROUTER socket: dialects told apart by their tag frame. `rebuke_unknown` answers messages
    that begin with no tag of theirs; without one they are counted, that is all."""

    def __init__(
        self,
        bus: Bus,
        name: str,
        table: Mapping[bytes, tuple[Hear, Rebuke]],
        rebuke_unknown: Rebuke | None = None,
    ) -> None:
        self._bus = bus
        self._name = name
        self._hear = {tag: hear for tag, (hear, _) in table.items()}
        self._rebuke = {tag: rebuke for tag, (_, rebuke) in table.items()}
        self._rebuke_unknown = drop if rebuke_unknown is None else rebuke_unknown

    def receive(self, link: int, frames: Message, now: float) -> None:
        # frames[0] is the peer's identity; an empty frame may stand before the dialect's own.
        hear = self._hear.get(frames[1]) if len(frames) > 1 else None  # type: ignore[call-overload]
        at = 1
        if hear is None:
            at = 2 if len(frames) > 2 and not len(frames[1]) else 1
            tag = frames[at] if len(frames) > at else EMPTY
            hear = self._hear.get(tag) if type(tag) is bytes else None
            if hear is None:
                self._strange(link, frames, at, tag, now)
                return
        try:
            hear(link, frames, at, now)
        except RemoteProtocolError as error:
            peer = (link, bytes(frames[0]))
            self._bus.handle(events.Invalid(peer, self._name, error.reason, str(error)), now)
            self._rebuke[bytes(frames[at])](link, frames, at, error, now)

    def _strange(self, link: int, frames: Message, at: int, tag: Frame, now: float) -> None:
        peer = (link, bytes(frames[0]))
        error = RemoteProtocolError("unknown_tag", f"no dialect here begins with {bytes(tag)[:16]!r}")
        self._bus.handle(events.Invalid(peer, self._name, error.reason, str(error)), now)
        self._rebuke_unknown(link, frames, at, error, now)


def drop(link: int, frames: Message, at: int, error: RemoteProtocolError, now: float) -> None:
    """The rebuke of dialects that answer bad input with silence: it was counted, that is all."""


V = TypeVar("V")


def by_framing(make: Callable[[Message], V]) -> Sequence[V]:
    """Two voices, to be indexed by `at`: without and with an empty first frame."""
    plain = make([])
    return (plain, plain, make([EMPTY]))
