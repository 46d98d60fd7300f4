"""Thousands of jobs at once: their submissions, and their results."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from polybus.client import questions
from polybus.client.calls import Sendable, new_id
from polybus.client.desk import WINDOW
from polybus.client.handles import JobHandle
from polybus.client.questions import Order
from polybus.errors import JobError, JobRefused, RequestFailed

if TYPE_CHECKING:
    from polybus.client.asking import Asking

# Jobs in one message: enough that the message itself costs nearly nothing, few enough that none waits for the
# others to be written.
AT_ONCE: Final = 64
AT_ONCE_BYTES: Final = 256 * 1024
# So many messages on their way: together they have as many jobs as single submissions may have.
MESSAGES: Final = WINDOW // AT_ONCE


class Why(msgspec.Struct):
    """Why the broker does not take a job."""

    error: str
    detail: str = ""


class Receipt(msgspec.Struct):
    """The broker's answer to many jobs: those that it does not take, by their place in the message."""

    refused: dict[str, Why] = {}


_RECEIPT: Final = msgspec.json.Decoder(Receipt)


class Many:
    """Calls on their way: many in a message, written as there is room, answered in the same order."""

    def __init__(self, bus: Asking, calls: Iterable[Sendable[Any]]) -> None:
        self._bus = bus
        self._calls = calls
        self._sent: list[JobHandle[Any]] = []
        # How many jobs each message has that was sent and not answered yet.
        self._messages: deque[int] = deque()
        self._taken: list[JobHandle[Any] | JobRefused] = []
        self._refused: JobRefused | None = None

    def bodies(self) -> Iterator[bytes]:
        orders: list[Order] = []
        messages: list[bytes] = []
        size = 0
        for call in self._calls:
            job_id = new_id()
            order, message = call.order(job_id)
            orders.append(order)
            messages.append(message)
            size += len(message)
            self._sent.append(JobHandle(self._bus, job_id, call.read))
            if len(orders) == AT_ONCE or size > AT_ONCE_BYTES:
                yield self._close(orders, messages)
                orders, messages, size = [], [], 0
        if orders:
            yield self._close(orders, messages)

    def _close(self, orders: list[Order], messages: list[bytes]) -> bytes:
        self._messages.append(len(orders))
        return questions.write_orders(orders, messages)

    @property
    def awaited(self) -> str:
        """The job whose receipt is waited for."""
        return self._sent[len(self._taken)].id

    def take(self, answer: bytes | RequestFailed) -> None:
        """What the broker says about one message."""
        begin = len(self._taken)
        handles = self._sent[begin : begin + self._messages.popleft()]
        if isinstance(answer, RequestFailed):
            self._taken += [self._refuse(handle, answer.code, answer.detail) for handle in handles]
            return
        refused = _RECEIPT.decode(answer).refused
        if not refused:
            self._taken += handles
            return
        for position, handle in enumerate(handles):
            why = refused.get(str(position))
            self._taken.append(handle if why is None else self._refuse(handle, why.error, why.detail))

    def _refuse(self, handle: JobHandle[Any], code: str, detail: str) -> JobRefused:
        error = JobRefused(handle.id, code, detail)
        self._refused = self._refused or error
        return error

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
