"""The worker: offers services and runs a handler for every request.

    def hello(request: Request) -> bytes:
        return b"hello " + request.body

    Worker({"hello": hello}).run()

Requests are taken in batches and answered in batches, which is where the throughput comes from; handlers
run one at a time, in the thread that called `run`.  A keeper thread stands in while a handler takes long:
it sends what is finished after 5 ms, and it beats, answers pings and learns of cancellations.  The
sockets are never used by two threads at once: every use is under one lock, which the main loop holds
while it waits for messages and leaves while a handler runs. (A handler that does not let go of the
interpreter, in a C extension, stops the keeper as well.)
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Generator, Mapping
from typing import Any, Final

import zmq

from polybus.client.handlers import Answer, Handler, Request, answer_frames, failure_text
from polybus.client.hub import Hub
from polybus.client.patience import PAUSE_S, say_who_is_missing, say_who_was_found, teller
from polybus.errors import ConfigError, ConnectionLost, LocalProtocolError, WorkerRejected
from polybus.telemetry import tracing

# How many requests a worker holds at once: enough to fill a batch, few enough to be shared among workers.
DEFAULT_CREDIT: Final = 100
# How long an answer may wait for others to be sent with.
FLUSH_S: Final = 0.005
# How long the keeper goes on looking after the last work.
KEEN_S: Final = 0.25


class Worker:
    """Serves `services`, a mapping from name to handler, until `stop` is called.

    `credit` is how many requests the broker may hand over before the first is answered; a worker whose
    requests take long is better off with 1.  `weights` say which queue comes first (eMQP).  `tag` is what
    workers put into frame 0 of their commands at this broker, if its `majordomo.worker_tag` was set (mdr).
    """

    def __init__(
        self,
        services: Mapping[str, Handler],
        address: str | None = None,
        dialect: str = "mdr",
        *,
        credit: int = DEFAULT_CREDIT,
        weights: Mapping[str, int] | None = None,
        context: zmq.Context[Any] | None = None,
        tag: str | None = None,
    ) -> None:
        self._handlers: Final = {name.encode(): handler for name, handler in services.items()}
        self._tracing: Final = tracing()
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        try:
            self._hub: Final = Hub(
                list(services),
                address,
                dialect,
                credit,
                weights,
                (self._wake_r,),
                context,
                takes_context=self._tracing is not None,
                tag=tag,
            )
        except BaseException:
            self._close_pipe()
            raise
        self._lock: Final = threading.Lock()
        self._stopping = False
        self._running = False
        # When the main loop left for a handler; None while it looks after the sockets itself.
        self._away_since: float | None = None
        self._busy: Final = threading.Event()
        self.handled = 0

    @property
    def endpoint(self) -> str:
        return self._hub.endpoint

    @property
    def invalid(self) -> int:
        """How many messages of the broker could not be read."""
        return sum(session.invalid for session in self._hub.sessions)

    @property
    def restarts(self) -> int:
        """How many conversations with the broker ended and were begun again."""
        return self._hub.restarts

    def stop(self) -> None:
        """Finish the request at hand and let `run` return. Any thread, or a signal handler, may call this."""
        self._stopping = True
        with contextlib.suppress(OSError):
            os.write(self._wake_w, b"x")

    def run(self) -> None:
        """Serve until `stop`, or until the broker asks this worker to leave (eMQP).

        A broker that is not there yet is waited for.
        """
        if self._running:
            raise LocalProtocolError("the worker is running already")
        self._running = True
        hub = self._hub
        keeper = threading.Thread(target=self._keep, name="polybus-keeper", daemon=True)
        try:
            self._wait_for_bus()
            if self._stopping:
                return
            hub.unanswered = teller(hub)
            hub.open(time.monotonic())
            keeper.start()
            while not self._stopping:
                with self._lock:
                    self._away_since = None
                    hub.step(0.0 if hub.inbox else max(0.0, hub.deadline - time.monotonic()))
                    self._away_since = time.monotonic()
                if hub.denied is not None:
                    raise ConfigError(f"the broker does not take this worker: {'; '.join(hub.denied)}")
                if hub.inbox:
                    self._work()
                elif hub.leaving:
                    break
        finally:
            self._stopping = True
            self._busy.set()
            if keeper.is_alive():
                keeper.join()
            with self._lock, contextlib.suppress(ConnectionLost):
                hub.close()
            self._close_pipe()

    def _wait_for_bus(self) -> None:
        hub = self._hub
        if not hub.missing:
            return
        say_who_is_missing(hub)
        while hub.missing and not self._stopping:
            select.select([self._wake_r], [], [], PAUSE_S)
            if not self._stopping:
                hub.search()
        if not hub.missing:
            say_who_was_found(hub)

    def _close_pipe(self) -> None:
        os.close(self._wake_r)
        os.close(self._wake_w)

    # -- handlers -------------------------------------------------------------------------------

    def _work(self) -> None:
        """Handle what is in the inbox; what is finished goes out together, but not later than `FLUSH_S`."""
        if not self._busy.is_set():
            self._busy.set()
        hub, lock, handlers, clock = self._hub, self._lock, self._handlers, time.monotonic
        inbox = hub.inbox
        due = clock() + FLUSH_S
        for _ in range(len(inbox)):
            if self._stopping:
                break
            request = inbox.popleft()
            self.handled += 1
            handler = handlers.get(request.work.service)
            if self._tracing is None:
                self._handle(request, handler)
            else:
                with self._tracing.processing(request.work, hub.dialect):
                    self._handle(request, handler)
            now = clock()
            if now >= due:
                due = now + FLUSH_S
                with lock:
                    hub.step(0.0)
        # The rest goes out with the next step.

    def _handle(self, request: Request, handler: Handler | None) -> None:
        try:
            if request.cancelled:
                raise WorkerRejected("it was cancelled before it began")
            if handler is None:
                # eMQP hands what nobody serves to those who serve "default".
                handler = self._handlers.get(b"default")
                if handler is None:
                    raise WorkerRejected(f"this worker does not serve {request.service}")
            answer = handler(request)
            if type(answer) is not bytes and isinstance(answer, Generator):
                body = answer_frames(self._stream(request, answer))
            else:
                body = answer_frames(answer)
            with self._lock:
                self._hub.reply(request, body)
        except WorkerRejected as error:
            self._fail(request, error.reason, True)
        except Exception as error:
            # Whatever a handler raises is an answer, too; the worker goes on.
            self._fail(request, failure_text(error), False)

    def _stream(self, request: Request, pieces: Generator[Any, None, Answer]) -> Answer:
        """Send what a generator yields as it comes; what it returns is the end of the answer."""
        hub = self._hub
        while not request.cancelled:
            try:
                piece = next(pieces)
            except StopIteration as end:
                final: Answer = end.value
                return final
            frames = answer_frames(piece)
            with self._lock:
                hub.part(request, frames)
                # At once, and in order: a piece that waited behind a full pipe must not be overtaken.
                hub.flush()
        pieces.close()
        return None

    def _fail(self, request: Request, reason: str, rejected: bool) -> None:
        if self._tracing is not None:
            self._tracing.fail_current("rejected" if rejected else "failed", reason)
        with self._lock:
            self._hub.fail(request, reason, rejected)

    # -- the keeper -----------------------------------------------------------------------------

    def _keep(self) -> None:
        """Look after the sockets while the main loop is away."""
        hub = self._hub
        look_s = min(hub.beat_s / 2, KEEN_S)
        while not self._stopping:
            self._busy.wait()
            busy_at = looked_at = time.monotonic()
            while not self._stopping:
                time.sleep(FLUSH_S)
                now, away_since = time.monotonic(), self._away_since
                if away_since is None:
                    looked_at = now
                    if now - busy_at > KEEN_S:
                        break
                    continue
                busy_at = now
                # Finished answers, heartbeats, and now and then a look at what the broker says.
                if now - away_since >= FLUSH_S and (
                    hub.outbox or now >= hub.deadline or now - looked_at >= look_s
                ):
                    looked_at = now
                    self._stand_in()
            self._busy.clear()

    def _stand_in(self) -> None:
        # Held by the main loop: then it looks after the sockets itself.
        if self._lock.acquire(blocking=False):
            try:
                if self._away_since is not None:
                    with contextlib.suppress(ConnectionLost):
                        self._hub.step(0.0)
            finally:
                self._lock.release()
