"""What the ledger keeps of a job: while it is there, how it ended, and if it was given up. See `ledger`."""

from __future__ import annotations

from msgspec import Struct

from polybus.core.model import JobOptions


class Attempt(Struct, frozen=True, gc=False):
    """One try that did not succeed."""

    number: int
    at: float
    worker: str
    reason: str
    detail: str = ""


class JobEntry(Struct, frozen=True, gc=False):
    """A request that was accepted with a guarantee and has not ended."""

    token: bytes
    # Its client: the name of the link, the identity there, its own id for the request, how to answer it.
    link: str
    identity: bytes
    request_id: bytes
    voice: str
    service: bytes
    body: list[bytes]
    options: JobOptions
    accepted_at: float
    # When it is stale; None means never.
    expires_at: float | None = None
    # Not before this time: a retry that waits, or a delayed job. 0 means at once.
    due_at: float = 0.0
    attempt: int = 0
    # Who has it; empty if nobody.
    worker: str = ""
    history: tuple[Attempt, ...] = ()


class Outcome(Struct, frozen=True, gc=False):
    """How a guaranteed request ended, kept for clients that ask again. `reason` is empty for an answer."""

    token: bytes
    link: str
    identity: bytes
    request_id: bytes
    service: bytes
    at: float
    reason: str = ""
    detail: str = ""
    body: list[bytes] = []


class DeadLetter(Struct, frozen=True, gc=False):
    """A job that was given up, whole, with the reason of every attempt in its history."""

    job: JobEntry
    at: float
    reason: str
    detail: str = ""
