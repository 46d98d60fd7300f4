"""The child processes of a command: started together, watched, and all gone at the end.

Each child gets a pipe as standard input that closes when this process ends, however it ends, and a session
of its own, so that Ctrl-C reaches this process alone, which then ends them in order.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from typing import IO, Any, Final

from polybus.errors import ConnectionLost

# How long a child may take after it was asked to end.
END_S: Final = 3.0
WATCH_S: Final = 0.2


class Processes:
    """Children that run `polybus.cli.demo_part`; leaving the `with` ends them."""

    def __init__(self) -> None:
        self._children: list[tuple[str, subprocess.Popen[bytes]]] = []
        # What children say on standard error, for the case that one fails.
        self._errors: Final[IO[bytes]] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the children

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [sys.executable, "-m", "polybus.cli.demo_part", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        self._children.append((name, child))
        return child

    def line_of(self, child: subprocess.Popen[bytes], beginning: str, timeout_s: float) -> str:
        """The first line of a child's output that begins so."""
        assert child.stdout is not None
        text = b""
        until = time.monotonic() + timeout_s
        while True:
            for line in text.split(b"\n")[:-1]:
                if line.startswith(beginning.encode()):
                    return line.decode()
            left_s = until - time.monotonic()
            if left_s <= 0 or not select.select([child.stdout], [], [], left_s)[0]:
                raise ConnectionLost(f"a process was not ready within {timeout_s:g} s; try again")
            more = os.read(child.stdout.fileno(), 65536)
            if not more:
                child.wait(END_S)
                self.check()
                raise ConnectionLost("a process closed its output before it was ready; try again")
            text += more

    def check(self) -> None:
        """Make sure that all children live."""
        for name, child in self._children:
            if child.poll() is not None:
                self._errors.seek(0)
                last = self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]
                raise ConnectionLost(
                    f"{name} ended with status {child.returncode}: {last or 'it said nothing'}"
                )

    def watch(self) -> None:
        """Wait until a child ends by itself, which is an error, or somebody interrupts."""
        while True:
            self.check()
            time.sleep(WATCH_S)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *exception: Any) -> None:
        # Workers first: they say goodbye to a broker that is still there.
        for _, child in reversed(self._children):
            self._ask_to_end(child)
        until = time.monotonic() + END_S
        for _, child in reversed(self._children):
            try:
                child.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            if child.stdout is not None:
                child.stdout.close()
        self._errors.close()

    def _ask_to_end(self, child: subprocess.Popen[bytes]) -> None:
        if child.poll() is None:
            child.terminate()
        if child.stdin is not None:
            child.stdin.close()
