"""A child: imports the application, then runs orders one by one until the pipe closes or it is asked to end.

Signals: SIGINT interrupts the job that `page.unwanted` names and nothing else, so Ctrl-C in a terminal does
nothing here.  SIGTERM interrupts whatever runs and ends the process.  Both raise `JobInterrupted` inside the
job, never inside our own code: a report that was half written would spoil all that follow.

What is left of the process group when the child is gone, such as programs that a job has started, is killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from typing import Final

import msgspec

from polybus.client.app import Bus
from polybus.client.current import JobInterrupted
from polybus.errors import PolybusError
from polybus.runtime import loading
from polybus.runtime.page import Page
from polybus.runtime.pipe import BELL, Kind, Order, OrderReader, write_report
from polybus.runtime.running import Runner, write_error
from polybus.telemetry import logs

READ_BYTES: Final = 1024 * 1024
# How long answers may lie in the ring while more jobs are run, and which are small enough for it.
BELL_EVERY_S: Final = 0.002
RING_REPORT_BYTES: Final = 16 * 1024
# How often the memory of the process is looked at between two jobs. It is also looked at after the last one.
MEMORY_EVERY_S: Final = 0.25
# Why a job is interrupted, as `JobInterrupted.reason` and the error object say it.
CANCELLED: Final = "cancelled"
TIMEOUT: Final = "timeout"
TERMINATED: Final = "terminated"


class _Ended(BaseException):
    """Raised while the child waits for orders, where nothing can be spoiled."""


class Child:
    """One process that runs jobs."""

    def __init__(self, pipe: socket.socket, page: Page, bus: Bus, max_memory: int, watched: bool) -> None:
        self._pipe: Final = pipe
        self._page: Final = page
        self._bus: Final = bus
        self._max_memory: Final = max_memory
        self._is_looked_after: Final = bool(max_memory) or watched
        self._watched: Final = watched
        self._runner: Final = Runner(bus, self._tell)
        self._lock: Final = threading.Lock()
        self._number = 0
        # True while the application's own code runs: only then may an exception be raised from a handler.
        self._exposed = False
        # The job that is to be interrupted as soon as that is safe, and why.
        self._interruption: tuple[int, str] | None = None
        self._idle = False
        self._ending = False
        self._looked_at = 0.0
        self._poller: Final = select.poll()
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        # When the bell was rung, and what was in the ring then.
        self._rang_at = 0.0
        self._rung = 0
        # Some of a job's reports went through the pipe: so do the others, to keep their order.
        self._piped = False
        self._modules = len(sys.modules)

    def serve(self) -> None:
        self._poller.register(self._pipe, select.POLLIN)
        self._poller.register(self._woken, select.POLLIN)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, self._on_cancel)
        signal.signal(signal.SIGTERM, self._on_end)
        for hook in self._bus.hooks.get("start", ()):
            hook()
        self._report(0, Kind.UP, 0.0, msgspec.json.encode(loading.facts_of(self._bus)))
        reader = OrderReader()
        while self._take(reader):
            pass
        for hook in self._bus.hooks.get("stop", ()):
            hook()
        self._runner.close()

    def _take(self, reader: OrderReader) -> bool:
        """Wait for orders and run them; False when the supervisor is gone or this process is to end."""
        try:
            self._idle = True
            # From here on a signal raises; one that came before has only left a word.
            data = b"" if self._ending else self._receive()
            self._idle = False
        except _Ended:
            return False
        return bool(data) and all(self._run_all(orders) for orders in reader.feed(data))

    def _receive(self) -> bytes:
        """Wait in a way that no signal can slip through: one that comes just before it wakes us, too."""
        while True:
            if any(fd == self._pipe.fileno() for fd, _ in self._poller.poll()):
                return self._pipe.recv(READ_BYTES)
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)

    def _run_all(self, orders: list[Order]) -> bool:
        """Run them one by one; False if there is no next: an empty list says so, or a signal."""
        page, clock, run = self._page, time.monotonic, self._run
        for order in orders:
            number = order.number
            if number <= page.dropped:
                continue
            began = clock()
            page.begin(number, began)
            if number <= page.dropped:
                self._report(number, Kind.SKIPPED, 0.0, b"")
                page.end()
                continue
            self._number = number
            self._piped = False
            kind, body = run(order, began)
            ended = clock()
            self._report(number, kind, ended - began, body)
            page.end()
            if self._ending:
                break
            if ended - self._rang_at > BELL_EVERY_S:
                self._ring(ended)
                if ended - self._looked_at > MEMORY_EVERY_S:
                    self._look_around(ended)
        self._ring(clock())
        if self._is_looked_after and orders and not self._ending:
            # Nothing else may come for hours.
            self._look_around(clock())
        return bool(orders) and not self._ending

    def _run(self, order: Order, now: float) -> tuple[Kind, bytes]:
        # The outer one is for a signal that comes between the job's end and the end of its exposure.
        try:
            try:
                self._exposed = True
                self._check()
                return self._runner.run(order, now)
            finally:
                self._exposed = False
                self._interruption = None
        except JobInterrupted as interrupted:
            return Kind.FAILED, write_error(interrupted.reason, "the job was interrupted")

    # -- signals --------------------------------------------------------------------------------

    def _on_cancel(self, *_: object) -> None:
        if self._is_unwanted():
            self._interrupt(CANCELLED)

    def _on_end(self, *_: object) -> None:
        self._ending = True
        if self._idle:
            self._idle = False
            raise _Ended
        self._interrupt(TIMEOUT if self._is_unwanted() else TERMINATED)

    def _is_unwanted(self) -> bool:
        return 0 < self._number == self._page.unwanted == self._page.running

    def _interrupt(self, reason: str) -> None:
        if self._exposed:
            if not self._runner.interrupt_task(reason):
                raise JobInterrupted(reason)
        elif self._page.running == self._number:
            # In the middle of `_tell`, or about to begin.
            self._interruption = self._number, reason

    def _check(self) -> None:
        interruption = self._interruption
        if interruption is not None and interruption[0] == self._number:
            raise JobInterrupted(interruption[1])

    # -- reports --------------------------------------------------------------------------------

    def _report(self, number: int, kind: Kind, took_s: float, body: bytes) -> None:
        data = write_report(number, kind, took_s, body)
        # Pieces of an answer may come from any thread, and only one may write to the ring.
        rings = number and kind != Kind.PART and not self._piped and len(data) <= RING_REPORT_BYTES
        if rings and self._page.put(data):
            return
        with self._lock:
            self._piped = True
            self._pipe.sendall(data)

    def _ring(self, now: float) -> None:
        """Let the supervisor know that there are answers."""
        self._rang_at = now
        if self._page.written != self._rung:
            with self._lock:
                self._rung = self._page.written
                self._pipe.sendall(BELL)

    def _tell(self, body: bytes) -> None:
        """A piece of the answer, from whatever thread of the job."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main:
            self._exposed = False
        try:
            self._report(self._number, Kind.PART, 0.0, body)
        finally:
            if is_main:
                self._exposed = True
                self._check()

    def _look_around(self, now: float) -> None:
        """What is looked at now and then, between jobs."""
        self._looked_at = now
        if self._max_memory and memory_bytes() > self._max_memory:
            self._report(0, Kind.LARGE, 0.0, b"%d" % memory_bytes())
        if self._watched and len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            self._report(0, Kind.FILES, 0.0, msgspec.json.encode(loading.loaded_files()))


def memory_bytes() -> int:
    """The memory of this process that is in RAM; what it was at its most where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def main(pipe: socket.socket, page_fd: int, name: str, max_memory: int, watched: bool) -> int:
    """Run a child to its end; the exit status of its process."""
    page = Page(page_fd)
    os.close(page_fd)
    try:
        bus = loading.load(name)
        if logs.is_json():
            # Now it is known whether the application has other plans.
            logs.handle_logging()
        child = Child(pipe, page, bus, max_memory, watched)
        child.serve()
    except (BrokenPipeError, ConnectionResetError):
        # The supervisor is gone, and with it everybody who wanted an answer.
        return 1
    except PolybusError as error:
        return _fault(pipe, str(error))
    except Exception as error:
        logs.log("the application cannot be started", "error", "polybus.worker", error)
        return _fault(pipe, f"the application cannot be started: {type(error).__name__}: {error}")
    return 0


def _fault(pipe: socket.socket, text: str) -> int:
    pipe.sendall(write_report(0, Kind.FAULT, 0.0, text.encode("utf-8", "replace")))
    return 1
