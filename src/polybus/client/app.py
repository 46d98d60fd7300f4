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

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Final, ParamSpec, Protocol, TypeVar, Unpack, overload

from polybus.client.addresses import check_dialect, tag_for
from polybus.client.asking import Asking
from polybus.client.handlers import Handler, Request, takes_request
from polybus.client.jobs import Job
from polybus.client.questions import JobSettings, Settings
from polybus.client.worker import DEFAULT_CREDIT, Worker
from polybus.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])
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


class Bus(Asking):
    """Services and jobs, and the broker that they are offered to.

    `timeout_s` is how long the broker may take to answer: to send a receipt, not to run a job.  `client_tag`
    and `worker_tag` are the broker's settings of these names, if they were set (mdr).
    """

    # Whether a worker process is importing an application.
    is_loading: ClassVar[bool] = False

    def __init__(
        self,
        address: str | None = None,
        dialect: str = "mdr",
        *,
        timeout_s: float = 30.0,
        client_tag: str | None = None,
        worker_tag: str | None = None,
    ) -> None:
        super().__init__(address, check_dialect(dialect), timeout_s, client_tag)
        # A wrong tag is said here, and not with the first call.
        tag_for(dialect, "client", client_tag)
        tag_for(dialect, "worker", worker_tag)
        #: What workers of this application put into frame 0; None leaves it to the environment.
        self.worker_tag: Final = worker_tag
        self.services: Final[dict[str, Handler]] = {}
        self.weights: Final[dict[str, int]] = {}
        #: The jobs by their names; a worker runs these and nothing else.
        self.jobs: Final[dict[str, Job[Any, Any, Any]]] = {}
        #: Patterns of further functions that a worker may run (see `allow`).
        self.allowed: Final[list[str]] = []
        self.hooks: Final[dict[str, list[Callable[..., Any]]]] = {name: [] for name in HOOKS}
        self._worker: Worker | None = None

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
        return Worker(
            self.services,
            self.address,
            self.dialect,
            credit=credit,
            weights=self.weights,
            tag=self.worker_tag,
        )

    def run(self, *, credit: int = DEFAULT_CREDIT) -> None:
        """Serve until `stop`, or Ctrl-C, after which the program ends with status 130 as others do.

        A broker that is not there yet is waited for. What a handler was in the middle of goes to another
        worker. Does nothing while 'polybus worker' loads the application, which it serves itself.
        """
        if Bus.is_loading:
            return
        try:
            self._worker = self.worker(credit=credit)
            self._worker.run()
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        finally:
            self._worker = None

    def stop(self) -> None:
        """Let `run` return. Any thread, or a signal handler, may call this."""
        if self._worker is not None:
            self._worker.stop()

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
