"""Where the loop notes what happens: records in a buffer, taken once a turn.

`open_recorder` gives the compiled recorder if there is one, else its twin, which writes the same bytes and is
several times slower.  Neither looks at a clock: `now` is the loop's time, and `offset` what makes it the time
of day.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polybus.core import records
from polybus.core.actions import Observed
from polybus.core.journal import Journal
from polybus.core.model import Body
from polybus.core.records import Request
from polybus.journal.record import (
    Row,
    kept_of,
    microseconds,
    options_text,
    with_dispatch,
    write_observed,
    write_request,
    write_row,
)


class Recorder(Journal):
    """What the core tells, in a buffer."""

    # `compiled` or `plain`.
    kind: str
    # How many rows were noted since the last `take`.
    count: int
    # While this is true, records are noted without bodies, and `bodies_dropped` counts the bodies that would
    # have been kept.
    drops_bodies: bool
    bodies_dropped: int

    def take(self) -> tuple[int, bytes]:
        """What was noted since the last call: how many rows, and their bytes."""
        raise NotImplementedError


class PlainRecorder(Recorder):
    """The twin: the same bytes, by way of rows."""

    kind = "plain"

    def __init__(self, body_bytes: int = 0, keeps_bodies: Callable[[bytes], bool] | None = None) -> None:
        self.body_bytes = body_bytes
        self.keeps_bodies = keeps_bodies
        self.drops_bodies = False
        self.bodies_dropped = 0
        self._records: list[bytes] = []
        self.count = 0
        # Whose acceptance was noted last, with nothing after it.
        self._fresh: Request | None = None

    def note_request(
        self,
        what: str,
        request: Request,
        now: float,
        offset: float,
        reason: str,
        detail: str,
        body: Body | None,
    ) -> None:
        if (
            request is self._fresh
            and what == "dispatched"
            and request.dispatched_at == now
            and not (reason or detail or body)
        ):
            self._records[-1] = with_dispatch(self._records[-1], request, now, offset)
            self._fresh = None
            self.count += 1
            return
        kept = self._kept(request.service.name, body)
        self._append(write_request(what, request, now, offset, reason, detail, body, kept))
        if what == "accepted":
            self._fresh = request

    def note_dead(
        self, request: Request, now: float, offset: float, reason: str, detail: str, body: Body
    ) -> None:
        kept = self._kept(request.service.name, body)
        text = options_text(request.options)
        self._append(write_request("dead", request, now, offset, reason, detail, body, kept, text))

    def note_published(self, topic: bytes, body: Body, now: float, offset: float) -> None:
        kept = self._kept(topic, body)
        size = sum(map(len, body))
        row = Row("published", microseconds(now + offset), body_size=size, service=topic, body=kept)
        self._append(write_row(row))

    def _kept(self, name: bytes, body: Body | None) -> tuple[bytes, ...] | None:
        kept = kept_of(body, name, self.body_bytes, self.keeps_bodies)
        # An empty body takes no room.
        if self.drops_bodies and kept is not None and any(kept):
            self.bodies_dropped += 1
            return None
        return kept

    def note(self, observed: Observed, offset: float) -> None:
        limit = self.body_bytes
        if self.drops_bodies and observed.body is not None:
            self._kept(observed.service, observed.body)
            limit = 0
        self._append(write_observed(observed, offset, limit, self.keeps_bodies))

    def _append(self, record: bytes) -> None:
        self._records.append(record)
        self._fresh = None
        self.count += 1

    def take(self) -> tuple[int, bytes]:
        taken = self.count, b"".join(self._records)
        self._records, self._fresh, self.count = [], None, 0
        return taken


def records_are_compiled() -> bool:
    """Whether the records of the core are the structures that compiled code reads without asking."""
    return not str(records.__file__).endswith(".py")


def open_recorder(body_bytes: int, keeps_bodies: Callable[[bytes], bool] | None = None) -> Recorder:
    """The best recorder there is."""
    kind: Any = PlainRecorder
    # Asked before the import: over interpreted records the compiled recorder would read what is not there.
    if records_are_compiled():
        try:
            from polybus.journal._recorder import CompiledRecorder

            kind = CompiledRecorder
        except ImportError:
            pass  # it alone was not compiled
    recorder: Recorder = kind(body_bytes, keeps_bodies)
    return recorder
