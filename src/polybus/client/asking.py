"""What a program asks the broker about jobs, through connections of its own: many at once, or by id.

`Bus` is made of this and of what an application offers.  A question is a plan (see `questions`) that is
carried out by a desk: one for threads, one for event loops, others in tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, overload

from polybus.client import questions
from polybus.client.annotations import ResultReader
from polybus.client.base import BaseClient
from polybus.client.calls import Sendable
from polybus.client.client import Client
from polybus.client.desk import WINDOW, Desk, ThreadDesk, run
from polybus.client.handles import JobHandle
from polybus.client.many import MESSAGES, Many, ManyResults
from polybus.client.questions import Plan
from polybus.errors import ConnectionLost, JobError, JobRefused, RequestTimeout
from polybus.telemetry import tracing

if TYPE_CHECKING:
    from polybus.client.aio_jobs import AsyncDesk
    from polybus.telemetry.spans import Tracing

T = TypeVar("T")
C = TypeVar("C", bound=BaseClient)
# What a span calls the destination of jobs that may have several.
MANY: Final = "many queues"


class Asking:
    """Connections to one broker, and the questions that need no job at hand."""

    def __init__(
        self, address: str | None, dialect: str, timeout_s: float, client_tag: str | None = None
    ) -> None:
        self.address: Final = address
        self.dialect: Final = dialect
        self.timeout_s: Final = timeout_s
        self._client_tag: Final = client_tag
        self.desk: Desk = ThreadDesk(self._new_client)
        self._adesk: AsyncDesk | None = None
        # Where the broker was when it was last looked for.
        self._seen_at: str | None = None
        # Found out with the first job: a bus is made when a module is imported, and providers are set later.
        self._tracing: Tracing | None = None
        self._looked_for_tracing = False

    def client(self, **settings: Any) -> Client:
        """A client for the same broker; takes what `Client` takes."""
        return Client(self.address, self.dialect, **{"tag": self._client_tag, **settings})

    def sending(self, queue: str) -> AbstractContextManager[Any]:
        """While jobs are sent: a span, if somebody traces this program. The broker learns of it."""
        if not self._looked_for_tracing:
            self._looked_for_tracing = True
            self._tracing = tracing()
        if self._tracing is None:
            return nullcontext()
        return self._tracing.during("send", queue)

    # -- many at once ---------------------------------------------------------------------------

    @overload
    def send_many(
        self, calls: Iterable[Sendable[Any]], *, return_errors: Literal[False] = False
    ) -> list[JobHandle[Any]]: ...

    @overload
    def send_many(
        self, calls: Iterable[Sendable[Any]], *, return_errors: bool
    ) -> list[JobHandle[Any] | JobRefused]: ...

    def send_many(
        self, calls: Iterable[Sendable[Any]], *, return_errors: bool = False
    ) -> list[JobHandle[Any] | JobRefused] | list[JobHandle[Any]]:
        """Send thousands of calls, chains and groups; returns when the broker has them all on disk.

        The handles come in the order of the calls.  If the broker refuses one, `JobRefused` is raised after
        the others have been sent, or stands in its place with `return_errors`.
        """
        many = Many(self, calls)
        with self.sending(MANY):
            try:
                for answer in self.desk.ask_many(questions.SUBMIT, many.bodies(), self.timeout_s, MESSAGES):
                    many.take(answer)
            except RequestTimeout:
                raise questions.unconfirmed(many.awaited, self.timeout_s) from None
            return many.end(return_errors)

    @overload
    async def asend_many(
        self, calls: Iterable[Sendable[Any]], *, return_errors: Literal[False] = False
    ) -> list[JobHandle[Any]]: ...

    @overload
    async def asend_many(
        self, calls: Iterable[Sendable[Any]], *, return_errors: bool
    ) -> list[JobHandle[Any] | JobRefused]: ...

    async def asend_many(
        self, calls: Iterable[Sendable[Any]], *, return_errors: bool = False
    ) -> list[JobHandle[Any] | JobRefused] | list[JobHandle[Any]]:
        many = Many(self, calls)
        with self.sending(MANY):
            try:
                async for answer in self.adesk.ask_many(
                    questions.SUBMIT, many.bodies(), self.timeout_s, MESSAGES
                ):
                    many.take(answer)
            except RequestTimeout:
                raise questions.unconfirmed(many.awaited, self.timeout_s) from None
            return many.end(return_errors)

    def get_many(
        self,
        handles: Iterable[JobHandle[Any]],
        timeout_s: float | None = None,
        *,
        return_errors: bool = False,
    ) -> list[Any]:
        """The results of many jobs, in order, asked for all at once.

        The first job without a result is raised as `JobHandle.get` does, or each stands in its place with
        `return_errors`.  `timeout_s` is for each result.
        """
        many = ManyResults(handles)
        self.flush()
        limit_s = math.inf if timeout_s is None else timeout_s
        try:
            for answer in self.desk.ask_many(questions.RESULT, many.bodies(), limit_s):
                if isinstance(answer, bytes):
                    many.take(answer)
                    continue
                try:
                    self.do(questions.reason(many.next.id, answer))
                except JobError as error:
                    many.fail(error, return_errors)
        except RequestTimeout:
            raise questions.no_result(many.next.id, limit_s) from None
        return many.end()

    async def aget_many(
        self,
        handles: Iterable[JobHandle[Any]],
        timeout_s: float | None = None,
        *,
        return_errors: bool = False,
    ) -> list[Any]:
        many = ManyResults(handles)
        await self.aflush()
        limit_s = math.inf if timeout_s is None else timeout_s
        try:
            async for answer in self.adesk.ask_many(questions.RESULT, many.bodies(), limit_s):
                if isinstance(answer, bytes):
                    many.take(answer)
                    continue
                try:
                    await self.ado(questions.reason(many.next.id, answer))
                except JobError as error:
                    many.fail(error, return_errors)
        except RequestTimeout:
            raise questions.no_result(many.next.id, limit_s) from None
        return many.end()

    # -- by id ----------------------------------------------------------------------------------

    def handle(self, job_id: str) -> JobHandle[Any]:
        """The handle of a job that was sent by anybody, by its id."""
        return JobHandle(self, questions.check_id(job_id), ResultReader().read)

    def result(self, job_id: str, timeout_s: float | None = None) -> Any:
        """What a job returned; see `JobHandle.get`."""
        return self.handle(job_id).get(timeout_s)

    async def aresult(self, job_id: str, timeout_s: float | None = None) -> Any:
        return await self.handle(job_id).aget(timeout_s)

    def cancel(self, job_id: str) -> bool:
        """Take a job out of its queue, or stop it; False if it was over already."""
        return self.handle(job_id).cancel()

    async def acancel(self, job_id: str) -> bool:
        return await self.handle(job_id).acancel()

    def schedules(self) -> list[dict[str, Any]]:
        """All schedules that the broker keeps."""
        found: list[dict[str, Any]] = self.do(self._schedule({"do": "list"}))
        return found

    async def aschedules(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self.ado(self._schedule({"do": "list"}))
        return found

    def unschedule(self, key: str) -> bool:
        """End a schedule; False if there is none with this key."""
        return bool(self.do(self._schedule({"do": "remove", "key": key})).get("removed"))

    async def aunschedule(self, key: str) -> bool:
        return bool((await self.ado(self._schedule({"do": "remove", "key": key}))).get("removed"))

    def _schedule(self, question: dict[str, Any]) -> Plan[Any]:
        return questions.schedule(str(question.get("key", "")), question, self.timeout_s)

    # -- the way to the broker ------------------------------------------------------------------

    def do(self, plan: Plan[T]) -> T:
        """Carry out a plan of `questions` through the connection of this thread."""
        return run(plan, self.desk)

    async def ado(self, plan: Plan[T]) -> T:
        from polybus.client.aio_jobs import arun

        return await arun(plan, self.adesk)

    @property
    def adesk(self) -> AsyncDesk:
        if self._adesk is None:
            # Programs without asyncio do not pay for it.
            from polybus.client.aio import AsyncClient
            from polybus.client.aio_jobs import LoopDesk

            self._adesk = LoopDesk(lambda: self._connected(AsyncClient))
        return self._adesk

    def _new_client(self) -> Client:
        return self._connected(Client)

    def _connected(self, kind: type[C]) -> C:
        """A connection of a thread or of a loop. While the broker is away it goes to where it was."""
        settings: dict[str, Any] = {
            "timeout_s": self.timeout_s,
            "window": WINDOW,
            "tag": self._client_tag,
        }
        try:
            client = kind(self.address, self.dialect, **settings)
        except ConnectionLost:
            if self._seen_at is None:
                raise
            client = kind(self._seen_at, self.dialect, **settings)
        self._seen_at = client.endpoint
        return client

    def use(self, desk: Desk, adesk: AsyncDesk | None) -> tuple[Desk, AsyncDesk | None]:
        """Ask elsewhere from now on; returns what was used before. For `polybus.testing`."""
        before = self.desk, self._adesk
        self.desk, self._adesk = desk, adesk
        return before

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait for the receipts of everything that this thread sent with `wait=False`."""
        self.desk.flush(self.timeout_s if timeout_s is None else timeout_s)

    async def aflush(self, timeout_s: float | None = None) -> None:
        await self.adesk.flush(self.timeout_s if timeout_s is None else timeout_s)

    def close(self) -> None:
        """Let go of the connections; the next question makes a new one."""
        self.desk.close()

    async def aclose(self) -> None:
        """Let go of the connection of the running event loop."""
        if self._adesk is not None:
            await self._adesk.close()
