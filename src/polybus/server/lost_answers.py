"""Answers that were lost because their clients do not read and no more may wait for them.

The journal names each of them.  Operators learn of them from the broker's log: one line in `INTERVAL_S` at
most, with the number since the last one, because a client that does not read loses thousands in a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from polybus.core.model import Address, Limits
from polybus.core.views import peer_name
from polybus.telemetry.logs import log

PER_CLIENT: Final = "limits.pending_bytes_per_client"
IN_ALL: Final = "limits.pending_bytes"
INTERVAL_S: Final = 10.0
# Clients that are counted by name between two lines; what others lose is in the sum alone.
MAX_CLIENTS: Final = 1_000


class LostAnswers:
    """How many there were, and at which limit."""

    def __init__(self, tell: Callable[..., None] = log) -> None:
        self._tell = tell
        self._told_at = 0.0
        # Since the start, and since the last line of the log.
        self._by_setting: Counter[str] = Counter()
        self._new: Counter[str] = Counter()
        self._new_by_client: Counter[Address] = Counter()

    def note(self, client: Address, setting: str) -> None:
        self._by_setting[setting] += 1
        self._new[setting] += 1
        if client in self._new_by_client or len(self._new_by_client) < MAX_CLIENTS:
            self._new_by_client[client] += 1

    def tick(self, limits: Limits, now: float) -> None:
        """Write a line if something is new and the last line is old enough. Called about every second."""
        if self._new and (not self._told_at or now - self._told_at >= INTERVAL_S):
            self.write(limits, now)

    def write(self, limits: Limits, now: float) -> None:
        """Write what is new since the last line, if anything is."""
        if not self._new:
            return
        self._told_at = now
        count = self._new.total()
        setting = self._new.most_common(1)[0][0]
        value = getattr(limits, setting.partition(".")[2])
        client, clients = self._new_by_client.most_common(1)[0][0], len(self._new_by_client)
        name = peer_name(client)
        whose = f"the client {name}" if clients == 1 else f"{clients} clients, most of them of {name}"
        if clients == MAX_CLIENTS:
            whose = f"{clients} clients or more, most of them of {name}"
        noun = "answer was" if count == 1 else "answers were"
        self._tell(
            f"{count} {noun} lost, of {whose}: they are not read, and what may wait for them is used up "
            f"({setting} = {value} bytes). Let the client read sooner or have fewer requests open, or raise "
            f"{setting}; 'polybus journal tail --what answer_lost' names the requests",
            "warning",
            lost=count,
            client=name,
            clients=clients,
            setting=setting,
            limit_bytes=value,
        )
        self._new.clear()
        self._new_by_client.clear()

    def facts(self) -> dict[str, Any]:
        return {"answers_lost_at": dict(self._by_setting)}
