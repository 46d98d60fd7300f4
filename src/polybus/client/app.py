"""An application on the bus: its services by decorator, its worker, its clients.

    bus = Bus()

    @bus.service("hello")
    def hello(body: bytes) -> bytes:
        return b"hello " + body

    bus.run()

A function gets the body, or the whole `Request` if its first parameter is annotated with `Request` or,
without an annotation, named `request`.  Generators stream.  The function itself stays as it was and can
be called in tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from polybus.client.addresses import check_dialect
from polybus.client.client import Client
from polybus.client.handlers import Handler, Request, takes_request
from polybus.client.worker import DEFAULT_CREDIT, Worker
from polybus.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])


class Bus:
    """Services, and the broker that they are offered to."""

    def __init__(self, address: str | None = None, dialect: str = "mdr") -> None:
        self.address: Final = address
        self.dialect: Final = check_dialect(dialect)
        self.services: Final[dict[str, Handler]] = {}
        self.weights: Final[dict[str, int]] = {}
        self._worker: Worker | None = None

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


def as_handler(function: Callable[..., Any]) -> Handler:
    """A function of the body, or of the request, as a handler of requests."""
    if takes_request(function):
        return function

    def handle(request: Request) -> Any:
        return function(request.body)

    return handle
