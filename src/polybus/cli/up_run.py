"""`polybus up`, the part with processes: starts them, reads them, and does what `Supervision` decides.

One thread and one selector: lines of children, and signals through a wakeup descriptor.  Each child has a
session of its own, so that Ctrl-C reaches this process alone, and a pipe as standard input that closes when
this process ends, however it ends (`part`).
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from polybus.cli.kept_log import KeptLog
from polybus.cli.supervision import Action, Kill, Over, Ready, Start, Supervision, Tell, Terminate
from polybus.cli.up_parts import Component, Heard, Kind, Plan, Reader, last_words, port_taken
from polybus.cli.up_screen import Screen
from polybus.errors import PolybusError

# Of one line that a child says; the rest of it is the next line.
LINE_BYTES: Final = 16_384
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED: Final = 130
# What a process wrote before it ended is in the pipe by then; somebody who inherited it may go on for ever.
LAST_READS: Final = 64


class Child(Struct):
    """One process of a part."""

    component: Component
    process: subprocess.Popen[bytes]
    read: Reader
    is_ready: bool = False
    rest: bytes = b""
    last_line: str = ""


class UpRun:
    """All parts of one `polybus up`, from the first start to the last end."""

    def __init__(self, plan: Plan, log_dir: Path, screen: Screen) -> None:
        self._components: Final = {component.name: component for component in plan.components}
        self._screen = screen
        self._supervision = Supervision({part.name: part.rules for part in plan.components})
        self._children: dict[str, Child] = {}
        log_dir.mkdir(parents=True, exist_ok=True)
        self._logs = {name: KeptLog(log_dir / f"{name}.log") for name in self._components}
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        # How often we were asked to end, and how much of that is done.
        self._asked = 0
        self._heeded = 0
        self._over: Over | None = None

    def run(self) -> int:
        """Until somebody ends it; the exit status."""
        self._selector.register(self._wake_r, selectors.EVENT_READ)
        with self._heeding_signals():
            try:
                self._carry_out(self._supervision.turn(time.monotonic()))
                while self._over is None:
                    self._step()
            finally:
                self._close()
        if self._over.why:
            raise PolybusError(self._over.why)
        return INTERRUPTED if self._asked > 1 else 0

    # -- one turn -------------------------------------------------------------------------------

    def _step(self) -> None:
        wait_s = self._supervision.next_at - time.monotonic()
        for key, _ in self._selector.select(None if wait_s == float("inf") else max(0.0, wait_s)):
            if key.fd == self._wake_r:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_r, 4096)
            else:
                self._hear(key.data)
        self._bury()
        self._heed()
        self._carry_out(self._supervision.turn(time.monotonic()))

    def _bury(self) -> None:
        for name, child in list(self._children.items()):
            status = child.process.poll()
            if status is None:
                continue
            for _ in range(LAST_READS):
                if not self._hear(child):
                    break
            self._let_go(child)
            del self._children[name]
            why = port_taken(last_words(status, child.last_line))
            self._logs[name].write(f"-- process {child.process.pid} {why}")
            self._carry_out(self._supervision.died(name, why, time.monotonic()))

    def _heed(self) -> None:
        while self._heeded < self._asked:
            if not self._heeded:
                self._screen.stopping(self._supervision.alive()[::-1])
            self._heeded += 1
            self._carry_out(self._supervision.stop(time.monotonic()))

    # -- what children say ----------------------------------------------------------------------

    def _hear(self, child: Child) -> bool:
        """Take in what a child has said; False if there was nothing."""
        assert child.process.stdout is not None
        try:
            more = os.read(child.process.stdout.fileno(), 65536)
        except BlockingIOError:
            return False
        if not more:
            with contextlib.suppress(KeyError):
                self._selector.unregister(child.process.stdout)
            return False
        *lines, child.rest = (child.rest + more).split(b"\n")
        while len(child.rest) > LINE_BYTES:
            lines.append(child.rest[:LINE_BYTES])
            child.rest = child.rest[LINE_BYTES:]
        for line in lines:
            self._take(child, line.decode(errors="backslashreplace").rstrip())
        return True

    def _take(self, child: Child, line: str) -> None:
        if not line:
            return
        name = child.component.name
        self._logs[name].write(child.component.without_secrets(line))
        child.last_line = line
        heard = child.read(line)
        if heard.kind is Kind.READY:
            # A job of the pool may print such a line as well.
            if not child.is_ready:
                child.is_ready = True
                text = self._screen.heard_ready(name, heard.text)
                self._carry_out(self._supervision.ready(name, text, time.monotonic()))
                return
            heard = Heard(Kind.SAID, line)
        self._screen.heard(name, heard)

    # -- what is decided ------------------------------------------------------------------------

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Start(name):
                    self._start(self._components[name])
                case Terminate(name):
                    self._children[name].process.terminate()
                case Kill(name):
                    self._kill(self._children[name])
                case Tell(name, text, is_bad):
                    self._screen.tell(name, text, is_bad)
                case Ready():
                    self._screen.ready()
                case Over():
                    self._over = action

    def _start(self, component: Component) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "polybus.cli.part", *component.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **component.environment},
            start_new_session=True,
        )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        child = Child(component, process, component.reader())
        self._children[component.name] = child
        self._selector.register(process.stdout, selectors.EVENT_READ, child)
        self._logs[component.name].write(f"-- process {process.pid}: polybus {' '.join(component.arguments)}")

    def _kill(self, child: Child) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.process.pid, signal.SIGKILL)

    def _let_go(self, child: Child) -> None:
        """Of a process that has ended; what it has started ends with it, as Java does."""
        self._kill(child)
        for stream in (child.process.stdin, child.process.stdout):
            assert stream is not None
            with contextlib.suppress(KeyError):
                self._selector.unregister(stream)
            with contextlib.suppress(OSError):
                stream.close()

    # -- the edges ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _heeding_signals(self) -> Iterator[None]:
        def asked(number: int, frame: object) -> None:
            self._asked += 1

        before = {number: signal.signal(number, asked) for number in SIGNALS}
        # It has to be handled by something, or it wakes nobody.
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda number, frame: None)
        fd = signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(fd)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _close(self) -> None:
        """However it ended: nothing is left behind."""
        for child in self._children.values():
            self._kill(child)
            child.process.wait()
            self._let_go(child)
        for log in self._logs.values():
            log.close()
        self._screen.close()
        self._selector.close()
        os.close(self._wake_r)
        os.close(self._wake_w)
