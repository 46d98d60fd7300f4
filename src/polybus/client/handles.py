"""What a program holds after it has sent something: a job's handle, a schedule."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from polybus.client import questions
from polybus.errors import RequestFailed, RequestTimeout

if TYPE_CHECKING:
    from polybus.client.asking import Asking
    from polybus.client.desk import Posted

R = TypeVar("R")


class JobHandle(Generic[R]):
    """A job that the broker has. Any thread may use it; every method has an `a…` twin to be awaited."""

    __slots__ = ("_bus", "_posted", "id", "read")

    def __init__(
        self, bus: Asking, job_id: str, read: Callable[[bytes], R], posted: Posted | None = None
    ) -> None:
        self._bus = bus
        self.read = read
        # What a receipt is still expected for, if the job was sent without waiting.
        self._posted = posted
        self.id: Final = job_id

    def get(self, timeout_s: float | None = None) -> R:
        """The job's result, as soon as there is one; without `timeout_s`, however long it takes.

        Raises `JobFailed`, `JobCancelled` or `JobExpired` if there will be none, and `ResultTimeout` if it
        takes longer: the job goes on then.
        """
        self.confirm(timeout_s)
        return self.read(self._bus.do(self._result(timeout_s)))

    async def aget(self, timeout_s: float | None = None) -> R:
        await self.aconfirm(timeout_s)
        return self.read(await self._bus.ado(self._result(timeout_s)))

    def _result(self, timeout_s: float | None) -> questions.Plan[bytes]:
        return questions.result(self.id, math.inf if timeout_s is None else timeout_s, self._bus.desk.clock)

    def progress(self, timeout_s: float | None = None) -> Iterator[Any]:
        """What the job says of its progress from now on (`current_job().progress`), until it ends.

        How it ends is for `get` to say.  `timeout_s` is for each word.  Only MDR and MDP/0.2 carry this; in
        other dialects nothing comes before the end.
        """
        self.confirm(timeout_s)
        with closing(self._bus.desk.pieces(self._question(timeout_s))) as pieces:
            try:
                for piece, is_last in pieces:
                    if not is_last:
                        yield msgspec.json.decode(piece)
            except RequestFailed as refusal:
                if refusal.code == questions.UNKNOWN_JOB:
                    raise questions.unknown(self.id) from None
            except RequestTimeout:
                raise questions.no_result(self.id, timeout_s or 0.0) from None

    async def aprogress(self, timeout_s: float | None = None) -> AsyncIterator[Any]:
        await self.aconfirm(timeout_s)
        async with aclosing(self._bus.adesk.pieces(self._question(timeout_s))) as pieces:
            try:
                async for piece, is_last in pieces:
                    if not is_last:
                        yield msgspec.json.decode(piece)
            except RequestFailed as refusal:
                if refusal.code == questions.UNKNOWN_JOB:
                    raise questions.unknown(self.id) from None
            except RequestTimeout:
                raise questions.no_result(self.id, timeout_s or 0.0) from None

    def _question(self, timeout_s: float | None) -> questions.Question:
        limit_s = math.inf if timeout_s is None else timeout_s
        return questions.Question(questions.RESULT, self.id.encode(), limit_s)

    def info(self) -> dict[str, Any]:
        """What the broker knows: job, state, service, attempt, retries, history, …"""
        self.confirm()
        return self._bus.do(questions.facts(self.id, self._bus.timeout_s))

    async def ainfo(self) -> dict[str, Any]:
        await self.aconfirm()
        return await self._bus.ado(questions.facts(self.id, self._bus.timeout_s))

    def state(self) -> str:
        """One of queued, running, waiting (for a retry, or its time), done, failed, cancelled, expired."""
        return str(self.info()["state"])

    async def astate(self) -> str:
        return str((await self.ainfo())["state"])

    def cancel(self) -> bool:
        """Take the job out of its queue, or stop it; False if it was over already."""
        self.confirm()
        return self._bus.do(questions.cancel(self.id, self._bus.timeout_s))

    async def acancel(self) -> bool:
        await self.aconfirm()
        return await self._bus.ado(questions.cancel(self.id, self._bus.timeout_s))

    def confirm(self, timeout_s: float | None = None) -> None:
        """Wait for the receipt of a job that was sent with `wait=False`; nothing to do for others."""
        if self._posted is not None:
            self._posted.confirm(self._bus.timeout_s if timeout_s is None else timeout_s)
            self._posted = None

    async def aconfirm(self, timeout_s: float | None = None) -> None:
        if self._posted is not None:
            await self._posted.aconfirm(self._bus.timeout_s if timeout_s is None else timeout_s)
            self._posted = None

    def __repr__(self) -> str:
        return f"<JobHandle {self.id}>"


class Schedule:
    """A schedule that the broker keeps."""

    __slots__ = ("_bus", "key", "next_at")

    def __init__(self, bus: Asking, key: str, next_at: float | None) -> None:
        self._bus = bus
        self.key: Final = key
        #: When it is due next, in UTC; as of the moment when the schedule was set.
        self.next_at: Final = None if next_at is None else datetime.fromtimestamp(next_at, UTC)

    def remove(self) -> bool:
        """End it; False if it had ended already. Jobs that it has started go on."""
        return self._bus.unschedule(self.key)

    async def aremove(self) -> bool:
        return await self._bus.aunschedule(self.key)

    def __repr__(self) -> str:
        return f"<Schedule {self.key} next at {self.next_at}>"
