"""Where a program's questions about jobs go out: one connection for every thread of every process.

A connection is made when a thread first asks something, and is closed when the thread ends, with
`close`, or when the program ends.  It outlives restarts of the broker (see `brain`): what was not
answered is asked again, and because a submission names its job, asking twice does not run it twice.
A process that was forked leaves its parent's connections alone and makes its own.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Final, Protocol

from polybus.client.client import Client, Pending
from polybus.client.questions import Plan, Question, T, unconfirmed
from polybus.errors import JobRefused, PolybusError, RequestFailed, RequestTimeout

# Many submissions are committed to disk together: the more of them are on their way, the faster they are. The
# broker allows a client 10,000.
WINDOW: Final = 4000


# How long a program that ends waits for the receipts of what it sent without waiting.
LAST_S: Final = 2.0

_log: Final = logging.getLogger("polybus")


class Posted(Protocol):
    """A submission on its way."""

    def confirm(self, timeout_s: float) -> None: ...

    async def aconfirm(self, timeout_s: float) -> None: ...


class Desk(Protocol):
    """What a bus needs to ask questions; `polybus.testing` has one without sockets."""

    # Whether the jobs run in this very process, where `__main__` means the same as here.
    is_here: bool

    def clock(self) -> float: ...

    def ask(self, question: Question) -> bytes: ...

    def ask_many(
        self, service: bytes, bodies: Iterable[bytes], timeout_s: float, window: int | None = None
    ) -> Iterator[bytes | RequestFailed]:
        """The answers, in order; every question has its time. At most `window` are on their way."""
        ...

    def pieces(self, question: Question) -> Generator[tuple[bytes, bool], None, None]:
        """The pieces of an answer as they come, each with whether it is the final one."""
        ...

    def post(self, question: Question, job: str) -> Posted:
        """Submit a job without waiting for the receipt."""
        ...

    def flush(self, timeout_s: float) -> None:
        """Wait for the receipts of all that was posted by this thread."""
        ...

    def close(self) -> None: ...


def log_unconfirmed(error: BaseException) -> None:
    _log.warning("a job that was sent without waiting may be lost: %s", error)


def raise_first(errors: Sequence[BaseException]) -> None:
    """Raise the first of the errors of jobs that were sent without waiting; the others are logged."""
    for error in errors[1:]:
        log_unconfirmed(error)
    if errors:
        raise errors[0]


def run(plan: Plan[T], desk: Desk) -> T:
    """Carry out a plan, with everything that it asks."""
    try:
        question = next(plan)
        while True:
            try:
                answer = desk.ask(question)
            except PolybusError as error:
                question = plan.throw(error)
            else:
                question = plan.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value


class Connection:
    """A client for one thread, and a lock for the rare case that another thread waits for its receipt."""

    def __init__(self, client: Client) -> None:
        self.client: Final = client
        self.lock: Final = threading.RLock()
        self.pid: Final = os.getpid()
        # Questions that nobody has waited for yet, oldest first.
        self.posted: Final[deque[OwnPosted]] = deque()

    def post(self, question: Question, job: str) -> OwnPosted:
        with self.lock:
            while self.posted and self.posted[0].is_done:
                self.posted.popleft().report()
            pending = self.client.submit(question.service, question.body, question.timeout_s)
            posted = OwnPosted(self, pending, job)
            self.posted.append(posted)
            return posted

    def flush(self, timeout_s: float) -> None:
        """Wait for all receipts, then raise the first error; the others are logged."""
        until = time.monotonic() + timeout_s
        errors: list[PolybusError] = []
        with self.lock:
            while self.posted:
                posted = self.posted.popleft()
                try:
                    posted.confirm(max(0.0, until - time.monotonic()))
                except PolybusError as error:
                    errors.append(error)
        raise_first(errors)

    def close(self) -> None:
        """Close it, unless its thread is just using it: then it is closed when that thread ends."""
        if self.pid == os.getpid() and self.lock.acquire(blocking=False):
            try:
                if self.posted:
                    try:
                        self.flush(LAST_S)
                    except PolybusError as error:
                        log_unconfirmed(error)
                self.client.close()
            finally:
                self.lock.release()


class Tenant:
    """Stands for a thread: when it goes, with its thread or with the desk, the connection is closed."""

    __slots__ = ("__weakref__", "connection")

    def __init__(self, connection: Connection) -> None:
        self.connection: Final = connection
        # The end of the program counts, too.
        weakref.finalize(self, connection.close)


class OwnPosted:
    """A submission on its way, for any thread to wait for."""

    __slots__ = ("_connection", "_job", "_pending", "_seen")

    def __init__(self, connection: Connection, pending: Pending, job: str) -> None:
        self._connection = connection
        self._pending = pending
        self._job = job
        self._seen = False

    @property
    def is_done(self) -> bool:
        return self._pending.is_done

    def confirm(self, timeout_s: float) -> None:
        """Until the broker has it; raises if it does not take it."""
        with self._connection.lock:
            self._seen = True
            try:
                self._pending.result(timeout_s)
            except RequestFailed as refusal:
                raise JobRefused(self._job, refusal.code, refusal.detail) from None
            except RequestTimeout:
                raise unconfirmed(self._job, timeout_s) from None

    async def aconfirm(self, timeout_s: float) -> None:
        from asyncio import to_thread

        await to_thread(self.confirm, timeout_s)

    def report(self) -> None:
        """It is done and nobody asked how it went: a refusal must not be lost without a word."""
        if not self._seen:
            try:
                self.confirm(0.0)
            except JobRefused as error:
                _log.warning("job %s, sent without waiting, was refused: %s", self._job, error)


class ThreadDesk:
    """Asks through a `Client` of the calling thread."""

    is_here = False
    clock = staticmethod(time.monotonic)

    def __init__(self, make: Callable[[], Client]) -> None:
        self._make = make
        self._own = threading.local()
        # For `close`: threads that have ended take theirs with them.
        self._tenants: weakref.WeakSet[Tenant] = weakref.WeakSet()

    def _connection(self) -> Connection:
        tenant: Tenant | None = getattr(self._own, "tenant", None)
        if tenant is not None:
            connection = tenant.connection
            if connection.pid == os.getpid() and not connection.client.is_closed:
                return connection
            if connection.pid != os.getpid():
                # The parent's sockets: neither to be used nor to be closed here.
                _inherited.append(tenant)
        tenant = Tenant(Connection(self._make()))
        self._own.tenant = tenant
        self._tenants.add(tenant)
        return tenant.connection

    def ask(self, question: Question) -> bytes:
        connection = self._connection()
        with connection.lock:
            return connection.client.call(question.service, question.body, question.timeout_s)

    def ask_many(
        self, service: bytes, bodies: Iterable[bytes], timeout_s: float, window: int | None = None
    ) -> Iterator[bytes | RequestFailed]:
        connection = self._connection()
        with connection.lock:
            yield from connection.client.call_many(service, bodies, window, timeout_s, return_errors=True)

    def pieces(self, question: Question) -> Generator[tuple[bytes, bool], None, None]:
        # Whoever looks on wants to do something meanwhile, and some dialects allow one question at a time.
        with self._make() as client:
            yield from client.pieces(question.service, question.body, question.timeout_s)

    def post(self, question: Question, job: str) -> OwnPosted:
        return self._connection().post(question, job)

    def flush(self, timeout_s: float) -> None:
        self._connection().flush(timeout_s)

    def close(self) -> None:
        """Close the connections of all threads; the next question makes a new one."""
        for tenant in list(self._tenants):
            tenant.connection.close()


_inherited: list[Tenant] = []
