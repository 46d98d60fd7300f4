"""Thousands of submissions at once, and what came of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from polybus.client.calls import Sendable, new_id
from polybus.client.handles import JobHandle
from polybus.errors import JobRefused, RequestFailed

if TYPE_CHECKING:
    from polybus.client.app import Bus


class Many:
    """Calls on their way: written one by one as there is room, answered in the same order."""

    def __init__(self, bus: Bus, calls: Iterable[Sendable[Any]]) -> None:
        self._bus = bus
        self._calls = calls
        self._sent: list[JobHandle[Any]] = []
        self._taken: list[JobHandle[Any] | JobRefused] = []
        self._refused: JobRefused | None = None

    def bodies(self) -> Iterator[bytes]:
        for call in self._calls:
            job_id = new_id()
            body = call.write(job_id)
            self._sent.append(JobHandle(self._bus, job_id, call.read))
            yield body

    @property
    def awaited(self) -> str:
        """The job whose receipt is waited for."""
        return self._sent[len(self._taken)].id

    def take(self, answer: bytes | RequestFailed) -> None:
        handle = self._sent[len(self._taken)]
        if isinstance(answer, RequestFailed):
            error = JobRefused(handle.id, answer.code, answer.detail)
            self._refused = self._refused or error
            self._taken.append(error)
        else:
            self._taken.append(handle)

    def end(self, return_errors: bool) -> list[JobHandle[Any] | JobRefused]:
        if self._refused is not None and not return_errors:
            raise self._refused
        return self._taken
