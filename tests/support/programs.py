"""Programs that run beside a test, and what they must know to find its broker."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from polybus.cli.find import PORT_OF
from support.commands import WAIT_S, wait_until

ADMIN = "POLYBUS_ADMIN_PORT"


def peer_places(endpoints: Mapping[str, str]) -> dict[str, str]:
    """The environment variables by which clients, workers and commands find the broker of these endpoints."""
    places = {
        f"POLYBUS_{dialect.upper()}_{role.upper()}": endpoints[setting]
        for (dialect, role), setting in PORT_OF.items()
    }
    return {**places, ADMIN: endpoints["admin.port"]}


class Program:
    """A process whose output, of both kinds, is read all the time; leaving the block ends it."""

    def __init__(self, command: Sequence[str] | str, folder: Path, env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            shell=isinstance(command, str),
            cwd=folder,
            env={**env, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.decode(errors="replace").rstrip("\n"))

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def wait_for(self, found: Callable[[str], bool]) -> str:
        """The first line of which this is true."""

        def first() -> str | None:
            return next((line for line in list(self.lines) if found(line)), None)

        # Its last words may be read a moment after its end.
        wait_until(lambda: first() is not None or not self._reader.is_alive())
        line = first()
        assert line is not None, self.lines
        return line

    def ask_to_end(self) -> None:
        self._process.terminate()

    def end(self, timeout_s: float = WAIT_S) -> int:
        """Wait for the end by itself; the exit status."""
        status = self._process.wait(timeout_s)
        self._reader.join(timeout_s)
        return status

    def close(self) -> None:
        if not self.is_over:
            self._process.kill()
        self.end()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
