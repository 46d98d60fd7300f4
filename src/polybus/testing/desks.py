"""How a bus asks its questions in a test: of the memory bus, at once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Iterator
from typing import TYPE_CHECKING

from polybus.client.questions import Plan, Question
from polybus.errors import JobRefused, RequestFailed

if TYPE_CHECKING:
    from polybus.client.aio_jobs import Posts, TaskPosted
    from polybus.testing.memory import MemoryBus


class MemoryPosted:
    """A submission that was made without waiting, and what came of it."""

    def __init__(self, refused: JobRefused | None) -> None:
        self._refused = refused

    def confirm(self, timeout_s: float) -> None:  # noqa: ARG002
        if self._refused is not None:
            raise self._refused

    async def aconfirm(self, timeout_s: float) -> None:
        self.confirm(timeout_s)


class MemoryDesk:
    is_here = True

    def __init__(self, memory: MemoryBus) -> None:
        self._memory = memory
        self._posted: list[MemoryPosted] = []

    def clock(self) -> float:
        return self._memory.clock.monotonic()

    def ask(self, question: Question) -> bytes:
        return self._memory.ask(question)

    def ask_many(
        self,
        service: bytes,
        bodies: Iterable[bytes],
        timeout_s: float,
        window: int | None = None,  # noqa: ARG002
    ) -> Iterator[bytes | RequestFailed]:
        for body in bodies:
            try:
                yield self._memory.ask(Question(service, body, timeout_s))
            except RequestFailed as refusal:
                yield refusal

    def pieces(self, question: Question) -> Generator[tuple[bytes, bool], None, None]:
        # The job has run when the first of them is handed out: here, time only passes for somebody.
        parts: list[bytes] = []
        try:
            last = self._memory.ask(question, parts)
        finally:
            yield from ((part, False) for part in parts)
        yield last, True

    def post(self, question: Question, job: str) -> MemoryPosted:
        refused = None
        try:
            self.ask(question)
        except RequestFailed as refusal:
            refused = JobRefused(job, refusal.code, refusal.detail)
        posted = MemoryPosted(refused)
        self._posted.append(posted)
        return posted

    def flush(self, timeout_s: float) -> None:
        posted, self._posted = self._posted, []
        for each in posted:
            each.confirm(timeout_s)

    def close(self) -> None:
        pass


class MemoryAsyncDesk:
    """The same for coroutines: nothing is awaited, because nothing takes real time."""

    def __init__(self, memory: MemoryBus) -> None:
        self._desk = MemoryDesk(memory)
        self.clock = self._desk.clock
        self._posts: Posts | None = None

    async def ask(self, question: Question) -> bytes:
        return self._desk.ask(question)

    async def ask_many(
        self,
        service: bytes,
        bodies: Iterable[bytes],
        timeout_s: float,
        window: int | None = None,  # noqa: ARG002
    ) -> AsyncIterator[bytes | RequestFailed]:
        for answer in self._desk.ask_many(service, bodies, timeout_s):
            yield answer

    async def pieces(self, question: Question) -> AsyncGenerator[tuple[bytes, bool], None]:
        for piece in self._desk.pieces(question):
            yield piece

    def post(self, plan: Plan[None], job: str) -> TaskPosted:
        from polybus.client.aio_jobs import Posts, arun

        self._posts = self._posts or Posts()
        return self._posts.add(arun(plan, self), job)

    async def flush(self, timeout_s: float) -> None:
        if self._posts is not None:
            await self._posts.flush(timeout_s)

    async def close(self) -> None:
        pass
