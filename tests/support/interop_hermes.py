"""Hermes' services and clients as processes, and the beacon that they wait for.

Hermes always listens on UDP port 5245 of this machine, so only one test at a time may use it: the lock is for
all processes.  The beacon goes to loopback only.

Hermes answers from several threads on one socket.  If a call comes in while the answer to the one before is
still on its way out of libzmq, that aborts the process (`Assertion failed: !_current_out`), now and then and
more often on a busy machine.  `revive` starts such a service again, as its operator would.
"""

from __future__ import annotations

import json
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from support.interop_env import LOCKS, exclusively
from support.interop_process import Process

BEACON_PORT: Final = 5245
EVERY_S: Final = 0.05
NODE: Final = LOCKS / "peers" / "hermes_node.py"


class Hermes:
    """Starts Hermes' nodes in a folder and ends them all; `wrap` says how a command is run elsewhere."""

    def __init__(
        self, home: Path, folder: Path, wrap: Callable[[list[str]], list[str]] = lambda command: command
    ) -> None:
        self._wrap = wrap
        self._home = home
        self._folder = folder
        self._processes: list[Process] = []
        self._services: dict[str, Process] = {}

    def service(self, name: str) -> tuple[Process, dict[str, Any]]:
        """A service that has registered, and what it says about it."""
        service = self._services[name] = self._start(f"service-{name}", "service", name)
        return service, json.loads(service.line())

    def revive(self) -> None:
        """Start services again that died of Hermes' own mistake."""
        for name, service in list(self._services.items()):
            if not service.is_alive and "Assertion failed" in service.log():
                self.service(name)

    def client(self) -> Process:
        client = self._start("client", "client")
        assert json.loads(client.line()) == {"connected": True}
        return client

    def close(self) -> None:
        for process in self._processes:
            process.kill()

    def _start(self, name: str, *arguments: str) -> Process:
        log = self._folder / f"hermes-{name}-{len(self._processes)}.log"
        command = [str(self._home / "bin" / "python"), str(NODE), *arguments]
        process = Process(self._wrap(command), log, {"PYTHONPATH": ""})
        self._processes.append(process)
        return process


@contextmanager
def beacon(endpoint: str) -> Iterator[None]:
    """Say where the broker is, again and again, to whoever listens on this machine."""
    message = f"SHALOM {endpoint.rpartition(':')[2]}".encode()
    done = threading.Event()

    def shine() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            while not done.wait(EVERY_S):
                sender.sendto(message, ("127.0.0.1", BEACON_PORT))

    with exclusively(Path(tempfile.gettempdir()) / f"polybus-udp-{BEACON_PORT}.lock"):
        thread = threading.Thread(target=shine)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
