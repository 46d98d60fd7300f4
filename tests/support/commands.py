"""`polybus` as people run it: commands that end, a broker that runs, and output that is waited for."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from support.patience import patient
from support.waiting import until

WAIT_S = patient(20.0)
PREFIXES = ("POLYBUS_", "EBUS_", "EMQ_")


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without settings of whoever runs the tests; nothing is announced or listened for, and
    no broker has an archiver at its side unless its test wants one."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
    quiet = {"POLYBUS_BEACON_ENABLED": "false", "POLYBUS_JOURNAL_ARCHIVE": "false"}
    return {**clean, "COLUMNS": "200", **quiet, **(more or {})}


def polybus(
    *arguments: str, cwd: Path, stdin: bytes = b"", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "polybus", *arguments],
        input=stdin,
        capture_output=True,
        cwd=cwd,
        env=environment(env),
        timeout=WAIT_S,
        check=False,
    )


R = TypeVar("R", bound="Running")


class Running:
    """A command that goes on; both of its outputs are read all the time."""

    def __init__(self, *arguments: str, cwd: Path, env: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "polybus", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=environment(env),
        )
        self.output: list[str] = []
        self.errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(stream, lines))
            for stream, lines in ((self.process.stdout, self.output), (self.process.stderr, self.errors))
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: object, lines: list[str]) -> None:
        for line in stream:  # type: ignore[attr-defined]
            lines.append(line.decode().rstrip("\n"))

    def wait_for(self, lines: list[str], words: str) -> str:
        """The first of these lines that contains the words."""

        def found() -> str:
            return next((line for line in list(lines) if words in line), "")

        wait_until(lambda: bool(found()) or self.process.poll() is not None)
        if not found():
            # It has ended; what it said may still be on its way.
            self.end()
        line = found()
        assert line, (words, self.output, self.errors)
        return line

    def end(self, signal_number: int | None = None) -> int:
        """The exit status, after this signal if one is given."""
        if signal_number is not None:
            self.process.send_signal(signal_number)
        status = self.process.wait(WAIT_S)
        for reader in self._readers:
            reader.join(WAIT_S)
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.end()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


class Served(Running):
    """`polybus serve` on free ports."""

    def __init__(self, folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self.data_dir = folder / "data"
        super().__init__(
            "serve", "--any-port", "--data-dir", str(self.data_dir), *arguments, cwd=folder, env=env
        )
        try:
            ready = self.wait_for(self.output, "ready ")
        except BaseException:
            self.close()
            raise
        self.endpoints = dict(word.split("=", 1) for word in ready.split()[1:])


@contextlib.contextmanager
def closing(running: R) -> Iterator[R]:
    try:
        yield running
    finally:
        running.close()


def wait_until(condition: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
    until(condition, timeout_s=timeout_s)
