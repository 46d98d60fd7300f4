"""Thousands of jobs at once: their submissions, and their results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from polybus.client.calls import Sendable, new_id
from polybus.client.handles import JobHandle
from polybus.errors import JobError, JobRefused, RequestFailed

if TYPE_CHECKING:
    from polybus.client.asking import Asking


class Many:
    """Calls on their way: written one by one as there is room, answered in the same order."""

    def __init__(self, bus: Asking, calls: Iterable[Sendable[Any]]) -> None:
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


class ManyResults:
    """Results that are waited for together; each failure is looked into when it comes."""

    def __init__(self, handles: Iterable[JobHandle[Any]]) -> None:
        self.handles = list(handles)
        self._found: list[Any] = []

    def bodies(self) -> Iterator[bytes]:
        for handle in self.handles:
            yield handle.id.encode()

    @property
    def next(self) -> JobHandle[Any]:
        """The job whose result is waited for."""
        return self.handles[len(self._found)]

    def take(self, answer: bytes) -> None:
        self._found.append(self.next.read(answer))

    def fail(self, error: JobError, return_errors: bool) -> None:
        if not return_errors:
            raise error
        self._found.append(error)

    def end(self) -> list[Any]:
        return self._found
