"""The bus alone, with a clock that only moves when told: events in, actions out.

stage = Stage()
stage.worker("w", "echo", credit=2)
stage.submit("c", "1", "echo")
stage.actions(act.Deliver)      # what was asked for since the last look
stage.wait(1.0)                 # time passes in small steps, with a tick at each

Names are text here and bytes on the bus; clients live on link 1, workers on link 2.  `observed` collects all
observations, `taken` what was asked for and not looked at yet.
"""

from __future__ import annotations

from typing import Any, TypeVar

from polybus.core import actions as act
from polybus.core import events
from polybus.core.bus import Bus
from polybus.core.model import PLAIN_CALL, Address, Heartbeat, JobOptions, Limits, Reason, Request, Worker

CLIENTS, WORKERS = 1, 2
NEVER_DEAD = Heartbeat(dead_after_s=0.0)

A = TypeVar("A")


def client(name: str) -> Address:
    return (CLIENTS, name.encode())


def worker(name: str) -> Address:
    return (WORKERS, name.encode())


class Stage:
    def __init__(self, limits: Limits | None = None, watched: bool = True) -> None:
        self.bus = Bus(b"n-", limits, watched)
        self.now = 1000.0
        self.taken: list[Any] = []
        self.observed: list[act.Observed] = []

    def do(self, event: Any) -> None:
        self.bus.handle(event, self.now)
        for action in self.bus.take():
            if isinstance(action, act.Observed):
                self.observed.append(action)
            else:
                self.taken.append(action)

    def actions(self, kind: type[A]) -> list[A]:
        """The actions of one kind since the last look, which are no longer there then."""
        found = [action for action in self.taken if isinstance(action, kind)]
        self.taken = [action for action in self.taken if not isinstance(action, kind)]
        return found

    def one(self, kind: type[A]) -> A:
        found = self.actions(kind)
        assert len(found) == 1, (kind.__name__, found)
        return found[0]

    def nothing(self) -> bool:
        """Whether nothing was asked for since the last look."""
        taken, self.taken = self.taken, []
        return not taken

    def wait(self, seconds: float, step: float = 0.05) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + step, end)
            self.do(events.Tick())

    # -- peers ------------------------------------------------------------------------------------

    def worker(
        self,
        name: str,
        *services: str,
        credit: int = 1,
        weight: int = 0,
        heartbeat: Heartbeat = NEVER_DEAD,
        **more: Any,
    ) -> Worker:
        offers = tuple((service.encode(), weight) for service in services or ("echo",))
        self.do(events.WorkerUp(worker(name), name, offers, heartbeat, credit, **more))
        return self.bus.workers[worker(name)]

    def gone(self, name: str, why: str = "it left") -> None:
        self.do(events.WorkerGone(worker(name), why))

    def heard(self, name: str) -> None:
        self.do(events.Heard(worker(name), name))

    def submit(
        self,
        client_name: str,
        request_id: str,
        service: str = "echo",
        body: list[bytes] | None = None,
        options: JobOptions = PLAIN_CALL,
        **more: Any,
    ) -> None:
        body = [f"{client_name}/{request_id}".encode()] if body is None else body
        self.do(
            events.Submit(
                client(client_name),
                client_name,
                request_id.encode(),
                service.encode(),
                body,
                options,
                **more,
            )
        )

    def request(self, client_name: str, request_id: str) -> Request:
        """An unanswered request."""
        return self.bus.clients[client(client_name)].outstanding[request_id.encode()]

    def token(self, client_name: str, request_id: str) -> bytes:
        return self.request(client_name, request_id).token

    def result(self, name: str, token: bytes = b"", body: list[bytes] | None = None) -> None:
        self.do(events.Result(worker(name), token, [b"done"] if body is None else body))

    def part(self, name: str, token: bytes = b"", body: list[bytes] | None = None) -> None:
        self.do(events.Part(worker(name), token, [b"part"] if body is None else body))

    def fail(self, name: str, token: bytes = b"", reason: Reason = Reason.FAILED) -> None:
        self.do(events.Failure(worker(name), token, "it broke", [], reason))

    def delivered(self) -> list[tuple[str, str]]:
        """(worker, request id) of what was handed out since the last look."""
        return [
            (action.worker.address[1].decode(), action.request.request_id.decode())
            for action in self.actions(act.Deliver)
        ]

    def told(self, what: str) -> list[act.Observed]:
        return [record for record in self.observed if record.what == what]
