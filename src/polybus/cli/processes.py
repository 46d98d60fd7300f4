"""The child processes of a command: started together, watched, and all gone at the end.

Each child gets a pipe as standard input that closes when this process ends, however it ends (`part`), and a
session of its own, so that Ctrl-C reaches this process alone, which then ends them in order.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import IO, Any, Final

from msgspec import Struct

from polybus.errors import ConnectionLost

# How long a child may take after it was asked to end.
END_S: Final = 3.0
WATCH_S: Final = 0.2


class Child(Struct):
    name: str
    process: subprocess.Popen[bytes]
    # What it says on standard error, for the case that it fails; None if somebody else reads that.
    errors: IO[bytes] | None
    # What it has said on standard output and nobody has asked for yet.
    said: bytes = b""
    may_end: bool = False

    def last_words(self) -> str:
        if self.errors is None:
            return "see above for why"
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip().rpartition("\n")[2] or "it said nothing"


class Processes:
    """Children; leaving the `with` ends them, the youngest first."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    def command(
        self,
        name: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        errors: int | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a command of polybus."""
        return self.module(name, "polybus.cli.part", *arguments, environment=environment, errors=errors)

    def module(
        self,
        name: str,
        module: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        errors: int | None = None,
    ) -> subprocess.Popen[bytes]:
        kept = tempfile.TemporaryFile() if errors is None else None  # noqa: SIM115 - closed with the child
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=kept if errors is None else errors,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        self._children.append(Child(name, process, kept))
        return process

    def named(self) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
        return ((child.name, child.process) for child in self._children)

    def line_of(self, process: subprocess.Popen[bytes], beginning: str, timeout_s: float) -> str:
        """The next line of a child's output that begins so."""
        child = self._child(process)
        assert process.stdout is not None
        until = time.monotonic() + timeout_s
        while True:
            *lines, child.said = child.said.split(b"\n")
            for number, line in enumerate(lines):
                if line.startswith(beginning.encode()):
                    child.said = b"\n".join([*lines[number + 1 :], child.said])
                    return line.decode(errors="replace")
            left_s = until - time.monotonic()
            if left_s <= 0 or not select.select([process.stdout], [], [], left_s)[0]:
                raise ConnectionLost(f"{child.name} was not ready within {timeout_s:g} s; try again")
            more = os.read(process.stdout.fileno(), 65536)
            if not more:
                process.wait(END_S)
                self.check()
                raise ConnectionLost(f"{child.name} closed its output before it was ready; try again")
            child.said += more

    def expect_end(self, process: subprocess.Popen[bytes]) -> None:
        """This one may end, and nobody is to complain."""
        self._child(process).may_end = True

    def check(self) -> None:
        """Make sure that all children live."""
        for child in self._children:
            status = child.process.poll()
            if status is not None and not child.may_end:
                raise ConnectionLost(f"{child.name} ended with status {status}: {child.last_words()}")

    def watch(self) -> None:
        """Wait until a child ends by itself, which is an error, or somebody interrupts."""
        while True:
            self.check()
            time.sleep(WATCH_S)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *exception: Any) -> None:
        # Workers first: they say goodbye to a broker that is still there.
        for child in reversed(self._children):
            self._ask_to_end(child.process)
        until = time.monotonic() + END_S
        for child in reversed(self._children):
            self._bury(child, until)

    def _child(self, process: subprocess.Popen[bytes]) -> Child:
        return next(child for child in self._children if child.process is process)

    def _ask_to_end(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.terminate()
        if process.stdin is not None:
            process.stdin.close()

    def _bury(self, child: Child, until: float) -> None:
        process = child.process
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
        # Java is the pipeline's child, and ends with it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdout, child.errors):
            if stream is not None:
                stream.close()
