"""The producers: guaranteed jobs in every dialect, asked for until somebody says that they are safe.

    producers.py receipts FOLDER '{"endpoints": {…}, "services": […], "seed": 1, "rate_per_s": 12}'
    producers.py results  FOLDER …

`receipts` are programs as people write them, with the library's client: a job counts as acked when its
receipt is there, and not before.  `results` speak frames, wait for what the job returned, and write down
every answer they get.  One thread each.  Both give a job a name and use the same name when they ask again,
on the same connection or on another.  A line on standard input, or its end, stops them: no more new jobs,
but what is not acked is still asked for until it is.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

import zmq
from notes import Notebook
from talk import DIALECTS, Heard, hear

from polybus import Client, Options, Pending, RequestFailed, RequestTimeout

CLIENT_PORTS: Final = {
    "ebus": "ebus.frontend",
    "emqp": "emqp.clients",
    "mdp1": "majordomo.clients",
    "mdp2": "majordomo.clients",
    "mdr": "majordomo.clients",
    "dbp": "dbp.port",
}
# How many a producer has under way at most.
WINDOW: Final = 16
# No word for this long: ask again.
ASK_AGAIN_S: Final = 4.0
# The library asks again by itself; a program that has heard nothing for this long begins anew.
GIVE_UP_S: Final = 15.0
# After how many of its jobs a producer drops its connection for no reason and goes on with another.
FICKLE: Final = 1 / 50
# How long a producer that has nothing to do waits before it looks again.
LOOK_EVERY_S: Final = 0.2
# A refused submission is tried again after a moment.
REFUSED_PAUSE_S: Final = 0.2
# Nearly all jobs are short; some take long enough to be hit.  16 ms on average: a worker that takes one at a
# time has less than half of its time to work, and catches up after it was away.
DURATIONS_MS: Final = (*[0] * 18, 1, 1, 5, 20, 100, 250)
# The service of the pool of `polybus worker`, which takes EventMQ's job messages.
POOL: Final = "crash.pool"
# Words of the broker that say no to a submission; anything else is how the job itself ended.
REFUSALS: Final = frozenset(
    {
        "queue_full",
        "out_of_memory",
        "too_many_outstanding",
        "too_many_services",
        "draining",
        "store_unavailable",
    }
)

stopping = threading.Event()


class Producer:
    """What all producers have in common: their jobs and their notes."""

    def __init__(self, name: str, dialect: str, folder: Path, plan: dict[str, Any]) -> None:
        self.name = name
        self.dialect = dialect
        self.endpoint: str = plan["endpoints"][CLIENT_PORTS[dialect]]
        self.notes = Notebook(folder / "notes", name)
        self.random = random.Random(f"{plan['seed']}/{name}")
        self._services: list[str] = plan["services"]
        self._pause_s = 1.0 / plan["rate_per_s"]
        self._made = 0
        self._whim = False
        self._next_at = time.monotonic()

    def is_due(self) -> bool:
        """Whether it is time for another job."""
        return not stopping.is_set() and time.monotonic() >= self._next_at

    def wait_s(self, has_room: bool) -> float:
        """How long to wait for answers before there is something else to do."""
        if stopping.is_set() or not has_room:
            return LOOK_EVERY_S
        return min(max(0.001, self._next_at - time.monotonic()), LOOK_EVERY_S)

    def is_fickle(self) -> bool:
        """Whether to drop the connection now, on a whim."""
        whim, self._whim = self._whim, False
        return whim

    def new_job(self) -> tuple[str, str, str]:
        """Its name, its service, and what the worker gets."""
        self._made += 1
        self._whim = self._whim or self.random.random() < FICKLE
        # After a pause (a broker that was down) it does not make up for lost time.
        self._next_at = max(self._next_at + self._pause_s, time.monotonic() - self._pause_s)
        job = f"{self.name}-{self._made:06d}"
        service, ms = self.random.choice(self._services), self.random.choice(DURATIONS_MS)
        if service == POOL:
            return job, service, pool_message(job, ms)
        return job, service, json.dumps({"job": job, "ms": ms})


def pool_message(job: str, ms: int) -> str:
    run = {
        "path": "app",
        "callable": "mark",
        "args": [job, ms],
        "kwargs": {},
        "class_args": [],
        "class_kwargs": {},
    }
    return json.dumps(["run", run])


def submission(job: str, service: str, message: str, reply: str) -> bytes:
    """The body of a call of `polybus.submit`."""
    head = {"service": service, "id": job, "guarantee": True, "retries": 5, "backoff_s": 0.1, "reply": reply}
    return json.dumps(head).encode() + b"\n" + message.encode()


# -- with the library -----------------------------------------------------------------------------


class Receipts(Producer):
    """A program that wants to know that its jobs are safe, and no more."""

    def __init__(self, dialect: str, folder: Path, plan: dict[str, Any]) -> None:
        super().__init__(f"receipt-{dialect}", dialect, folder, plan)
        self._client = Client(self.endpoint, dialect)
        self._open: deque[tuple[str, bytes, Pending, float]] = deque()

    def run(self) -> None:
        while not stopping.is_set() or self._open:
            while self.is_due() and len(self._open) < WINDOW:
                job, service, message = self.new_job()
                self._ask(job, submission(job, service, message, "receipt"))
            wait_s = self.wait_s(len(self._open) < WINDOW)
            if self._open:
                self._look(wait_s)
            else:
                stopping.wait(wait_s)
            if self.is_fickle() or self._is_late():
                self._start_over()
        self._client.close()

    def _ask(self, job: str, body: bytes) -> None:
        self.notes.note("submit", job)
        pending = self._client.submit("polybus.submit", body, GIVE_UP_S)
        self._open.append((job, body, pending, time.monotonic()))

    def _is_late(self) -> bool:
        return bool(self._open) and time.monotonic() - self._open[0][3] > GIVE_UP_S

    def _look(self, timeout_s: float) -> None:
        """Wait for the first of the open ones."""
        job, body, pending, _ = self._open[0]
        try:
            answer = pending.result(timeout_s)
        except RequestTimeout:
            return
        except RequestFailed as error:
            self._open.popleft()
            self.notes.note("refused", job, error=error.code, detail=str(error))
            time.sleep(REFUSED_PAUSE_S)
            self._ask(job, body)
        else:
            self._open.popleft()
            self.notes.note(
                "receipt" if json.loads(answer) == {"job": job} else "garbled", job, body=answer.decode()
            )

    def _start_over(self) -> None:
        """Another client, under another identity, asks for what the first has no receipt for."""
        unsure = [(job, body) for job, body, *_ in self._open]
        self._open.clear()
        self._client.close()
        self._client = Client(self.endpoint, self.dialect)
        for job, body in unsure:
            self._ask(job, body)


class HeaderReceipts(Producer):
    """eMQP's own way: a job with the header `guarantee`; under the same message id it is the same job."""

    def __init__(self, folder: Path, plan: dict[str, Any]) -> None:
        super().__init__("header-receipt-emqp", "emqp", folder, plan)
        self._client = Client(self.endpoint, "emqp")

    def run(self) -> None:
        open_: deque[tuple[str, Pending]] = deque()
        options = Options(guarantee=True, retries=5)
        while not stopping.is_set() or open_:
            while self.is_due() and len(open_) < WINDOW:
                job, service, message = self.new_job()
                self.notes.note("submit", job)
                pending = self._client.submit(
                    service, message.encode(), 3600.0, options=options, wants_reply=False
                )
                open_.append((job, pending))
            wait_s = self.wait_s(len(open_) < WINDOW)
            if not open_:
                stopping.wait(wait_s)
                continue
            job, pending = open_[0]
            # The library itself asks again after a reconnect: under the same message id.
            with contextlib.suppress(RequestTimeout):
                try:
                    pending.result(wait_s)
                except RequestFailed as error:
                    # It was not taken, so it is nobody's: the next one is another job.
                    self.notes.note("refused", job, error=error.code, detail=str(error))
                else:
                    self.notes.note("receipt", job)
                open_.popleft()
        self._client.close()


# -- with frames ----------------------------------------------------------------------------------


class Asked:
    """A job whose result is waited for."""

    def __init__(self, job: str, service: bytes, body: bytes) -> None:
        self.job = job
        self.service = service
        self.body = body
        self.asked_at = 0.0


class Results(Producer):
    """A program that wants to know what its jobs returned, and counts the answers.

    Without request ids there is one question at a time on a connection, and a new connection for every doubt.
    """

    def __init__(self, dialect: str, folder: Path, plan: dict[str, Any], by_header: bool = False) -> None:
        super().__init__(f"{'header-' if by_header else ''}result-{dialect}", dialect, folder, plan)
        self._talk = DIALECTS[dialect]
        # A job that is known by its message id belongs to one client: that must keep its identity.
        self._by_header = by_header
        self._window = WINDOW if self._talk.has_ids else 1
        self._connection = 0
        self._requests = 0
        self._open: dict[bytes, Asked] = {}
        # All that was asked on this connection: a repetition may be answered after the first.
        self._jobs: dict[bytes, str] = {}
        self._socket = self._connect()

    def _connect(self) -> zmq.Socket[bytes]:
        self._connection += 1
        self._requests = 0
        self._jobs.clear()
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        socket.linger = 0
        socket.reconnect_ivl, socket.reconnect_ivl_max = 50, 500
        socket.identity = f"{self.name}-{self._connection}-{self.random.getrandbits(32):08x}".encode()
        socket.connect(self.endpoint)
        return socket

    def run(self) -> None:
        while not stopping.is_set() or self._open:
            while self.is_due() and len(self._open) < self._window:
                job, service, message = self.new_job()
                if self._by_header:
                    asked = Asked(job, service.encode(), message.encode())
                else:
                    asked = Asked(job, b"polybus.submit", submission(job, service, message, "result"))
                self._ask(asked)
            wait_s = self.wait_s(len(self._open) < self._window)
            if self._socket.poll(int(wait_s * 1000) + 1):
                while self._socket.poll(0):
                    self._take(hear(self._talk, self._socket.recv_multipart()))
            self._look_after()
        # Whatever is said now was not asked for.
        while self._socket.poll(500):
            self._take(hear(self._talk, self._socket.recv_multipart()))
        self._socket.close()

    def _ask(self, asked: Asked, request_id: bytes = b"") -> None:
        if not request_id:
            self._requests += 1
            request_id = f"{self._connection}.{self._requests}".encode()
        asked.asked_at = time.monotonic()
        self._open[request_id] = asked
        self._jobs[request_id] = asked.job
        self._note("submit", asked.job, request_id)
        frames = self._talk.write(asked.service, request_id, asked.body, self._by_header)
        self._socket.send_multipart([bytes(frame) for frame in frames])

    def _note(self, what: str, job: str, request_id: bytes, **facts: Any) -> None:
        self.notes.note(what, job, connection=self._connection, request=request_id.decode(), **facts)

    def _take(self, heard: Heard) -> None:
        if heard.what != "final":
            return
        request_id = heard.request_id or f"{self._connection}.{self._requests}".encode()
        asked = self._open.get(request_id)
        refused = heard.error in REFUSALS
        facts = {"body": heard.body.decode(errors="replace"), "error": heard.error}
        self._note("refused" if refused else "final", self._jobs.get(request_id, ""), request_id, **facts)
        if asked is None:
            return
        del self._open[request_id]
        if refused:
            time.sleep(REFUSED_PAUSE_S)
            self._ask(asked, b"" if not self._by_header else request_id)

    def _look_after(self) -> None:
        """Ask again for what has been silent for too long; now and then, on another connection."""
        now = time.monotonic()
        late = [(key, asked) for key, asked in self._open.items() if now - asked.asked_at > ASK_AGAIN_S]
        fickle = self.is_fickle()
        if self._by_header or (self._talk.has_ids and not fickle):
            for request_id, asked in late:
                self._ask(asked, request_id)
        elif late or fickle:
            again = list(self._open.values())
            self._open.clear()
            self._socket.close()
            self._socket = self._connect()
            for asked in again:
                self._ask(asked)


def main() -> None:
    kind, folder, plan = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    producers: list[Receipts | HeaderReceipts | Results]
    if kind == "receipts":
        producers = [*(Receipts(dialect, folder, plan) for dialect in DIALECTS), HeaderReceipts(folder, plan)]
    else:
        producers = [
            *(Results(dialect, folder, plan) for dialect in DIALECTS),
            Results("emqp", folder, plan, True),
        ]
    threads = [threading.Thread(target=producer.run, daemon=True) for producer in producers]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    sys.stdin.readline()
    stopping.set()
    for thread in threads:
        thread.join()
    print("done", flush=True)


if __name__ == "__main__":
    main()
