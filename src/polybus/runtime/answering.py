"""Requests of the broker on their way into the pool, and what became of them on their way back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from polybus.client.handlers import Request
from polybus.errors import LocalProtocolError
from polybus.runtime.connection import Connection
from polybus.runtime.handing import CANCELLED
from polybus.runtime.pipe import FRAMES, Kind
from polybus.runtime.seat import Task

if TYPE_CHECKING:
    from polybus.runtime.pool import Pool

BAD_RESULT: Final = "bad_result"


class Answering:
    """The part of the supervisor that stands between its connection and its pool."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log: Final = log
        self._link: Connection | None = None
        self._tasks: dict[Request, Task] = {}
        # Children are being killed: what becomes of their jobs is the broker's business now.
        self._abandoning = False
        self.handled = 0

    def _take_in(self, pool: Pool, link: Connection, now: float) -> None:
        inbox = link.inbox
        while inbox:
            request = inbox.popleft()
            work = request.work
            name = work.request_id or b""
            body: list[Any] = work.body
            if len(body) != 1 or type(body[0]) is not bytes:
                body = request.frames
            limits = work.attempt, work.timeout_s, work.ttl_s
            task = Task(request, name, work.service, body, now, *limits, work.context)
            self._tasks[request] = task
            pool.submit(task)

    def _heed_the_unwanted(self, pool: Pool, link: Connection, now: float) -> None:
        for request in link.unwanted:
            task = self._tasks.get(request)
            if task is not None:
                pool.cancel(task, now)
        link.unwanted.clear()
        for request in link.lost:
            task = self._tasks.get(request)
            # What runs may as well end; what has not begun is for somebody else.
            if task is not None and not task.is_running:
                pool.cancel(task, now)
        link.lost.clear()

    def _give_back(self, link: Connection, task: Task) -> None:
        del self._tasks[task.owner]
        link.give_back(task.owner)

    # -- what the pool tells --------------------------------------------------------------------

    def finished(self, task: Task, kind: int, body: bytes) -> None:
        link = self._link
        request = task.owner
        if link is None or self._tasks.pop(request, None) is None or self._abandoning:
            return
        self.handled += 1
        if kind == Kind.DONE:
            link.reply(request, [body])
        elif kind == Kind.FAILED:
            link.fail_with(request, body)
        else:
            try:
                link.reply(request, list(FRAMES.decode(body)))
            except LocalProtocolError as error:
                link.refuse(request, BAD_RESULT, str(error))

    def failed(self, task: Task, code: str, detail: str) -> None:
        link = self._link
        if link is None or self._tasks.pop(task.owner, None) is None or self._abandoning:
            return
        self.handled += 1
        if code != CANCELLED:
            name, queue = (text.decode("utf-8", "replace") for text in (task.id, task.queue))
            self._log(f"job {name} of {queue}: {code}: {detail}")
        link.refuse(task.owner, code, detail)

    def part(self, task: Task, body: bytes) -> None:
        if self._link is not None:
            self._link.part(task.owner, [body])
