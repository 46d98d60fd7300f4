"""One subscriber: what it said, what it wants, and what it has still to get.

Bytes for it leave in the order in which they were put here.  Publications are refused when too much waits,
all of a turn or none, so that what it gets is never cut.  The values for a new subscription are always
taken, because without them the stream would have a gap; but its next subscription is not read until they
are on their way.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from polybus.wire.zmtp import Parser

if TYPE_CHECKING:
    from polybus.core.actions import Fanout
    from polybus.server.audiences import Audience, Hall

# What is handed to libzmq at once at most. With the few messages that its pipe holds this bounds what a
# subscriber that does not read occupies there; larger pieces do not go faster.
CHUNK_BYTES: Final = 64 * 1024


class Waiting:
    """Bytes for a subscriber, and how many publications they are."""

    __slots__ = ("at", "data", "publications")

    def __init__(self, data: bytes, publications: int) -> None:
        self.data = data
        self.publications = publications
        # How many of the bytes are taken already.
        self.at = 0

    @property
    def is_done(self) -> bool:
        return self.at >= len(self.data)

    def take(self, room: int) -> bytes:
        """The next bytes, at most so many."""
        at = self.at
        piece = self.data if not at and len(self.data) <= room else self.data[at : at + room]
        self.at = at + len(piece)
        return piece


class WaitingValues(Waiting):
    """Values that become bytes when it is their turn: all at once they would be much more than is needed."""

    __slots__ = ("_next", "_values", "_write", "owed")

    def __init__(self, values: Sequence[Fanout], write: Callable[[Fanout], bytes], owed: int) -> None:
        super().__init__(b"", 0)
        self._values = values
        self._write = write
        self._next = 0
        self.owed = owed

    @property
    def is_done(self) -> bool:
        return self.at >= len(self.data) and self._next >= len(self._values)

    def take(self, room: int) -> bytes:
        if self.at >= len(self.data):
            forms: list[bytes] = []
            size = 0
            while self._next < len(self._values) and size < room:
                form = self._write(self._values[self._next])
                forms.append(form)
                size += len(form)
                self._next += 1
            self.data, self.at = b"".join(forms), 0
        return super().take(room)


class Subscriber:
    __slots__ = (
        "_behind",
        "_head",
        "_head_bytes",
        "_head_publications",
        "audience",
        "bytes_waiting",
        "delivered",
        "dropped",
        "hall",
        "heard_at",
        "identity",
        "is_closing",
        "is_gone",
        "is_posted",
        "is_ready",
        "link",
        "owed",
        "parser",
        "publications_waiting",
        "since",
        "ttl_s",
        "wanted",
    )

    def __init__(self, link: int, identity: bytes, hall: Hall, now: float) -> None:
        self.link = link
        self.identity = identity
        self.hall = hall
        self.audience: Audience | None = None
        self.parser = Parser()
        # Its prefixes, in order.
        self.wanted: list[bytes] = []
        self.since = self.heard_at = now
        # It may be given up after so long a silence; 0 if it did not say so.
        self.ttl_s = 0.0
        # The handshake is done; it is being turned away; it is no longer there; something for it is on its
        # way to libzmq, and whether that was taken is not known yet.
        self.is_ready = self.is_closing = self.is_gone = self.is_posted = False
        self._behind: deque[Waiting] = deque()
        # The bytes to be sent next; how many of them are publications, and which are over with them.
        self._head = b""
        self._head_bytes = self._head_publications = 0
        self.bytes_waiting = self.publications_waiting = 0
        # Bytes of values that it asked for and that are not sent yet, about.
        self.owed = 0
        self.delivered = self.dropped = 0

    # -- what it wants ----------------------------------------------------------------------------

    def wants(self, prefix: bytes) -> bool:
        at = bisect_left(self.wanted, prefix)
        return at < len(self.wanted) and self.wanted[at] == prefix

    def want(self, prefix: bytes) -> None:
        insort(self.wanted, prefix)

    def unwant(self, prefix: bytes) -> None:
        del self.wanted[bisect_left(self.wanted, prefix)]

    def covers(self, prefix: bytes) -> bool:
        """Whether it gets everything that begins so already."""
        return any(self.wants(prefix[:length]) for length in range(len(prefix)))

    def longer(self, prefix: bytes) -> list[bytes]:
        """What it wants already of that which begins so."""
        first = last = bisect_left(self.wanted, prefix)
        while last < len(self.wanted) and self.wanted[last].startswith(prefix):
            last += 1
        return self.wanted[first:last]

    # -- what it gets -----------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """Whether anything waits here for it."""
        return bool(self._head or self._behind)

    def push(self, data: bytes, publications: int) -> None:
        self._behind.append(Waiting(data, publications))
        self.bytes_waiting += len(data)
        self.publications_waiting += publications

    def push_values(self, values: Sequence[Fanout], write: Callable[[Fanout], bytes], owed: int) -> None:
        self._behind.append(WaitingValues(values, write, owed))

    def push_first(self, data: bytes, publications: int) -> None:
        """What libzmq did not take comes before anything that was put here since."""
        self._behind.appendleft(Waiting(data, publications))
        self.bytes_waiting += len(data)
        self.publications_waiting += publications

    def next(self) -> bytes:
        """What is to be sent next; the same until it is `sent`."""
        if self._head:
            return self._head
        pieces: list[bytes] = []
        room = CHUNK_BYTES
        while self._behind and room > 0:
            first = self._behind[0]
            piece = first.take(room)
            pieces.append(piece)
            room -= len(piece)
            if not isinstance(first, WaitingValues):
                self._head_bytes += len(piece)
            elif first.is_done:
                self.owed -= first.owed
            if first.is_done:
                self._behind.popleft()
                self._head_publications += first.publications
        self._head = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return self._head

    def sent(self) -> None:
        """libzmq took it."""
        self.bytes_waiting -= self._head_bytes
        self.publications_waiting -= self._head_publications
        self.delivered += self._head_publications
        self._head = b""
        self._head_bytes = self._head_publications = 0

    def view(self, now: float) -> dict[str, Any]:
        return {
            "subscriber": f"{self.link}:{self.identity.hex()}",
            "prefixes": len(self.wanted),
            "first_prefixes": [prefix.decode(errors="replace") for prefix in self.wanted[:3]],
            "up_s": round(now - self.since, 3),
            "delivered": self.delivered,
            "dropped": self.dropped,
            "waiting": self.publications_waiting,
            "waiting_bytes": self.bytes_waiting,
        }
