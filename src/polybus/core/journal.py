"""What the core tells the journal: the port that `polybus.journal` fills.

It is a class and no protocol, so that compiled code calls a compiled journal without a detour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polybus.core.actions import Observed
    from polybus.core.model import Body
    from polybus.core.records import Request


class Journal:
    """Takes note of what happens, at once and without fail. `offset` makes our time the time of day."""

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
        """Something happened to a request. `body` is what was sent with it."""
        raise NotImplementedError

    def note_dead(
        self, request: Request, now: float, offset: float, reason: str, detail: str, body: Body
    ) -> None:
        """A request was given up, or nobody answered it in time. `body` is its own: it may be sent again."""
        raise NotImplementedError

    def note_published(self, topic: bytes, body: Body, now: float, offset: float) -> None:
        raise NotImplementedError

    def note(self, observed: Observed, offset: float) -> None:
        """Something else happened."""
        raise NotImplementedError
