"""Calls of jobs: what can be sent, alone or as a part of a flow."""

from __future__ import annotations

import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Unpack

from polybus.client import questions
from polybus.client.handles import JobHandle, R
from polybus.client.questions import JobSettings, Order, Question, Settings, Spec

if TYPE_CHECKING:
    from polybus.client.app import Bus
    from polybus.client.jobs import Job

# Stands for the result of the job before, when arguments are checked.
_PREVIOUS: Final = object()


class Ids:
    """Ids that no other process, thread or fork of this one makes."""

    def __init__(self) -> None:
        self._pid = 0
        self._prefix = ""
        self._numbers = itertools.count()

    def new(self) -> str:
        if self._pid != os.getpid():
            self._prefix, self._pid = os.urandom(9).hex(), os.getpid()
        return f"{self._prefix}-{next(self._numbers):x}"


new_id: Final = Ids().new


class Sendable(ABC, Generic[R]):
    """What can be sent: a call, a chain or a group of them."""

    @property
    @abstractmethod
    def bus(self) -> Bus: ...

    @property
    @abstractmethod
    def queue(self) -> str:
        """Where it begins."""

    @abstractmethod
    def order(self, job_id: str, delay_s: float = 0.0, ttl_s: float | None = None) -> tuple[Order, bytes]:
        """What is submitted, and its body; raises if something about it is wrong."""

    @abstractmethod
    def read(self, body: bytes) -> R:
        """The result."""

    def send(
        self, *, id: str | None = None, delay_s: float = 0.0, ttl_s: float | None = None, wait: bool = True
    ) -> JobHandle[R]:
        """Send it; returns when the broker has it on disk.

        The same `id` again is the same job and runs once.  `delay_s` is how long it waits first, `ttl_s`
        after how long nobody wants it any more.  Without `wait` the receipt is not waited for:
        `handle.confirm()` or `bus.flush()` does it later.
        """
        job_id, body = self._prepare(id, delay_s, ttl_s)
        bus = self.bus
        with bus.sending(self.queue):
            if not wait:
                posted = bus.desk.post(Question(questions.SUBMIT, body, bus.timeout_s), job_id)
                return JobHandle(bus, job_id, self.read, posted)
            bus.do(questions.submit(job_id, body, bus.timeout_s))
            return JobHandle(bus, job_id, self.read)

    async def asend(
        self, *, id: str | None = None, delay_s: float = 0.0, ttl_s: float | None = None, wait: bool = True
    ) -> JobHandle[R]:
        job_id, body = self._prepare(id, delay_s, ttl_s)
        bus = self.bus
        plan = questions.submit(job_id, body, bus.timeout_s)
        with bus.sending(self.queue):
            if not wait:
                return JobHandle(bus, job_id, self.read, bus.adesk.post(plan, job_id))
            await bus.ado(plan)
            return JobHandle(bus, job_id, self.read)

    def _prepare(self, id: str | None, delay_s: float, ttl_s: float | None) -> tuple[str, bytes]:
        questions.check_seconds("delay_s", delay_s, "a job")
        questions.check_seconds("ttl_s", ttl_s, "a job")
        job_id = new_id() if id is None else questions.check_id(id)
        return job_id, questions.write_order(*self.order(job_id, delay_s, ttl_s))


class Call(Sendable[R]):
    """One call of a job: what it is to be called with, and how it is to be run."""

    __slots__ = ("args", "job", "kwargs", "settings")

    def __init__(
        self, job: Job[Any, R, Any], args: Sequence[Any], kwargs: Mapping[str, Any], settings: Settings
    ) -> None:
        self.job: Final = job
        self.args: Final = tuple(args)
        self.kwargs: Final = dict(kwargs)
        self.settings: Final = settings

    @property
    def bus(self) -> Bus:
        return self.job.bus

    @property
    def queue(self) -> str:
        return self.settings.queue

    def set(self, **settings: Unpack[JobSettings]) -> Call[R]:
        """The same call with other settings."""
        return Call(self.job, self.args, self.kwargs, self.job.with_settings(settings, self.settings))

    def delay(self) -> JobHandle[R]:
        return self.send()

    async def adelay(self) -> JobHandle[R]:
        return await self.asend()

    def message(self, follows: bool = False) -> bytes:
        """The call as it travels; one that follows another gets that one's result as its first argument."""
        job = self.job
        job.check_arguments((_PREVIOUS, *self.args) if follows else self.args, self.kwargs)
        return questions.write_message(job.path, job.callable, self.args, self.kwargs)

    def order(self, job_id: str, delay_s: float = 0.0, ttl_s: float | None = None) -> tuple[Order, bytes]:
        return self.order_first(job_id, delay_s, ttl_s, [])

    def order_first(
        self, job_id: str, delay_s: float, ttl_s: float | None, then: list[Spec]
    ) -> tuple[Order, bytes]:
        settings = self.settings
        order = Order(
            job_id,
            settings.queue,
            settings.guarantee,
            settings.retries,
            settings.timeout_s,
            settings.backoff_s,
            delay_s or None,
            ttl_s,
            None,
            then,
        )
        return order, self.message()

    def spec(self, follows: bool) -> Spec:
        """The call inside another submission."""
        settings = self.settings
        return Spec(
            settings.queue,
            self.message(follows).decode(),
            settings.guarantee,
            settings.retries,
            settings.timeout_s,
            settings.backoff_s,
        )

    def read(self, body: bytes) -> R:
        return self.job.read_result(body)

    def __repr__(self) -> str:
        shown = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return f"<Call {self.job.name}({', '.join(shown)})>"
