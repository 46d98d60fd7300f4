"""An application on the bus: its services and jobs by decorator, its worker, its clients.

    bus = Bus()

    @bus.service("hello")
    def hello(body: bytes) -> bytes:
        return b"hello " + body

    @bus.job(queue="email", retries=3)
    def send(to: str, subject: str) -> str: ...

A service's function gets the body, or the whole `Request` if its first parameter is annotated with `Request`
or, without an annotation, named `request`.  Generators stream.  The function itself stays as it was and can
be called in tests.  A job (see `jobs`) is called with its own arguments; `bus.run()` serves the services,
`polybus worker module:bus` runs the jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, Protocol, TypeVar, Unpack, overload

from polybus.client import questions
from polybus.client.addresses import check_dialect
from polybus.client.annotations import ResultReader
from polybus.client.calls import Sendable
from polybus.client.client import Client
from polybus.client.desk import WINDOW, Desk, ThreadDesk, run
from polybus.client.handlers import Handler, Request, takes_request
from polybus.client.handles import JobHandle
from polybus.client.jobs import Job
from polybus.client.many import Many
from polybus.client.questions import JobSettings, Plan, Settings
from polybus.client.worker import DEFAULT_CREDIT, Worker
from polybus.errors import ConfigError, JobRefused, RequestTimeout

if TYPE_CHECKING:
    from polybus.client.aio_jobs import AsyncDesk

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

# What a program may have called around its jobs.
HOOKS: Final = ("start", "stop", "before", "after")


class JobDecorator(Protocol):
    """`@bus.job(...)`: a function becomes a job of what it returns, or of what its coroutine returns."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]]
    ) -> Job[P, R, Coroutine[Any, Any, R]]: ...

    @overload
    def __call__(self, function: Callable[P, R]) -> Job[P, R, R]: ...


class Bus:
    """Services and jobs, and the broker that they are offered to.

    `timeout_s` is how long the broker may take to answer: to send a receipt, not to run a job.
    """

    def __init__(self, address: str | None = None, dialect: str = "mdr", *, timeout_s: float = 30.0) -> None:
        self.address: Final = address
        self.dialect: Final = check_dialect(dialect)
        self.timeout_s: Final = timeout_s
        self.services: Final[dict[str, Handler]] = {}
        self.weights: Final[dict[str, int]] = {}
        #: The jobs by their names; a worker runs these and nothing else.
        self.jobs: Final[dict[str, Job[Any, Any, Any]]] = {}
        #: Patterns of further functions that a worker may run (see `allow`).
        self.allowed: Final[list[str]] = []
        self.hooks: Final[dict[str, list[Callable[..., Any]]]] = {name: [] for name in HOOKS}
        self._worker: Worker | None = None
        self.desk: Desk = ThreadDesk(self._new_client)
        self._adesk: AsyncDesk | None = None

    # -- services -------------------------------------------------------------------------------

    def service(self, name: str, *, weight: int | None = None) -> Callable[[F], F]:
        """Offer a function as a service; `weight` says which queue comes first (eMQP)."""

        def register(function: F) -> F:
            if name in self.services:
                raise ConfigError(f"service {name!r} is offered twice")
            self.services[name] = as_handler(function)
            if weight is not None:
                self.weights[name] = weight
            return function

        return register

    def worker(self, *, credit: int = DEFAULT_CREDIT) -> Worker:
        """A worker for all services of this bus."""
        if self.jobs and not self.services:
            raise ConfigError("this bus has jobs and no services; 'polybus worker module:bus' runs its jobs")
        return Worker(self.services, self.address, self.dialect, credit=credit, weights=self.weights)

    def run(self, *, credit: int = DEFAULT_CREDIT) -> None:
        """Serve until `stop`, or Ctrl-C, after which the program ends with status 130 as others do.

        What a handler was in the middle of goes to another worker.
        """
        self._worker = self.worker(credit=credit)
        try:
            self._worker.run()
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        finally:
            self._worker = None

    def stop(self) -> None:
        """Let `run` return. Any thread, or a signal handler, may call this."""
        if self._worker is not None:
            self._worker.stop()

    def client(self, **settings: Any) -> Client:
        """A client for the same broker; takes what `Client` takes."""
        return Client(self.address, self.dialect, **settings)

    # -- what jobs there are --------------------------------------------------------------------

    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Job[P, R, Coroutine[Any, Any, R]]: ...

    @overload
    def job(self, function: Callable[P, R], /) -> Job[P, R, R]: ...

    @overload
    def job(self, *, name: str | None = None, **settings: Unpack[JobSettings]) -> JobDecorator: ...

    def job(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        **settings: Any,
    ) -> Any:
        """Make a function a job: `@bus.job`, or `@bus.job(queue="email", retries=3)`.

        `queue` is where it waits ("default"), `retries` how often it is tried again after a failure,
        `backoff_s` the first pause before that (each further one is twice as long), `timeout_s` how long
        it may run, `guarantee` whether it survives a crash of the broker (it does, unless you say
        False), `name` what workers know it by (its module and name).
        """

        def register(function: Callable[..., Any]) -> Job[Any, Any, Any]:
            try:
                complete = Settings(**settings)
            except TypeError as error:
                known = ", ".join(("name", *JobSettings.__annotations__))
                raise ConfigError(f"{error}; bus.job takes {known}") from None
            job: Job[Any, Any, Any] = Job(self, function, complete, name)
            if job.name in self.jobs:
                raise ConfigError(f"job {job.name} is defined twice; give one of them another name=")
            self.jobs[job.name] = job
            return job

        return register if function is None else register(function)

    @property
    def queues(self) -> list[str]:
        """The queues of all jobs, in the order in which they were defined."""
        return list(dict.fromkeys(job.settings.queue for job in self.jobs.values()))

    def allow(self, pattern: str) -> None:
        """Let workers run functions that are no jobs of this bus: `allow("shop.tasks.*")`.

        For jobs of EventMQ clients, which name a function by module and name.  `shop.tasks:*` means this one
        module, `shop.tasks:Mailer.*` the methods of a class.
        """
        if not isinstance(pattern, str) or not pattern.strip("*?.:"):
            raise ConfigError(f"allow takes a pattern such as 'shop.tasks.*', not {pattern!r}")
        self.allowed.append(pattern)

    def on_start(self, function: F) -> F:
        """Call this when a worker begins, in the process that runs jobs."""
        return self._hook("start", function)

    def on_stop(self, function: F) -> F:
        """Call this when a worker ends."""
        return self._hook("stop", function)

    def on_before(self, function: F) -> F:
        """Call this before every job, with what `current_job()` gives."""
        return self._hook("before", function)

    def on_after(self, function: F) -> F:
        """Call this after every job, with what `current_job()` gives and the error, or None."""
        return self._hook("after", function)

    def _hook(self, name: str, function: F) -> F:
        self.hooks[name].append(function)
        return function

    # -- many at once, and by id ----------------------------------------------------------------

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
        try:
            for answer in self.desk.ask_many(questions.SUBMIT, many.bodies(), self.timeout_s):
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
        try:
            async for answer in self.adesk.ask_many(questions.SUBMIT, many.bodies(), self.timeout_s):
                many.take(answer)
        except RequestTimeout:
            raise questions.unconfirmed(many.awaited, self.timeout_s) from None
        return many.end(return_errors)

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

            self._adesk = LoopDesk(
                lambda: AsyncClient(self.address, self.dialect, timeout_s=self.timeout_s, window=WINDOW)
            )
        return self._adesk

    def _new_client(self) -> Client:
        return self.client(timeout_s=self.timeout_s, window=WINDOW)

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

    def __enter__(self) -> Bus:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Bus:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def as_handler(function: Callable[..., Any]) -> Handler:
    """A function of the body, or of the request, as a handler of requests."""
    if takes_request(function):
        return function

    def handle(request: Request) -> Any:
        return function(request.body)

    return handle
