"""A broker as its own process, and peers that speak frames: for tests over real sockets.

with LiveBroker({"majordomo.heartbeat_s": 0.1}) as broker, Peer(broker["ebus.frontend"]) as client:
    client.send(b"EBC01", b"PING")
    assert client.recv() == [b"EBW01", b"HEARTBEAT"]

Every port is a free one.  All waiting is bounded, and leaving the block ends the process whatever happens.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import zmq

from polybus.config import variable
from support.patience import patient

POLYBUS = Path(sys.executable).with_name("polybus")
START_S = patient(20.0)
WAIT_S = patient(10.0)

T = TypeVar("T")


class LiveBroker:
    """`polybus serve` with these settings (`section.name` → value) and arguments, on free ports of the
    loopback."""

    def __init__(self, settings: Mapping[str, object] | None = None, arguments: Sequence[str] = ()) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="polybus-test-")
        self._stderr = Path(self._folder.name, "stderr")
        self._settings = dict(settings or {})
        self._arguments = list(arguments)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._start()

    def _start(self) -> None:
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("POLYBUS_", "EBUS_", "EMQ_"))}
        # No archiver at its side, unless its test wants one.
        for name, value in {"journal.archive": False, **self._settings}.items():
            environ[variable(name)] = str(value)
        with self._stderr.open("ab") as errors:
            self.process = subprocess.Popen(
                [
                    str(POLYBUS),
                    "serve",
                    "--any-port",
                    "--data-dir",
                    str(self.data_dir),
                    *self._arguments,
                ],
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environ,
                cwd=self._folder.name,
            )
        try:
            words = read_line(self.process, START_S).split()
            assert words[:1] == ["ready"], (words, self.errors())
        except BaseException:
            self.close()
            raise
        self.endpoints = dict(word.split("=", 1) for word in words[1:])

    def kill(self) -> None:
        """Let the process die without a chance to say or write anything."""
        self.process.kill()
        self.process.wait(WAIT_S)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def stop(self) -> None:
        """Let the process end as an operator would, with everything written."""
        self.process.terminate()
        self.process.wait(START_S)

    def restart(self) -> None:
        """Kill it, and start another with the same data, on other ports."""
        self.kill()
        self._start()

    def __getitem__(self, name: str) -> str:
        """The endpoint of a port setting."""
        return self.endpoints[name]

    @property
    def data_dir(self) -> Path:
        return Path(self._folder.name, "data")

    def errors(self) -> str:
        """What the broker wrote to stderr."""
        return self._stderr.read_text(errors="replace")

    def crashes(self) -> str:
        """What it wrote to stderr, if an exception is in it that nobody caught."""
        errors = self.errors()
        return errors if "Traceback" in errors else ""

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def rss_bytes(self) -> int:
        """Memory of the process that is in RAM."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def ask(self, do: str, timeout_s: float = WAIT_S, **facts: Any) -> Any:
        """A question to the admin socket."""
        with Peer(self["admin.port"], self._context) as peer:
            question = json.dumps({"do": do, **facts}).encode()
            peer.send(b"", b"PBADM1", b"1", question)
            answer = json.loads(peer.recv(timeout_s)[3])
            assert "ok" in answer, answer
            return answer["ok"]

    def has_workers(self, *services: str, count: int = 1) -> bool:
        """Whether all of these services have so many workers."""
        known = {view["service"]: view["workers"] for view in self.ask("services")}
        return all(known.get(service, 0) >= count for service in services)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WAIT_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._context.destroy(linger=0)
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Peer:
    """A socket that says and hears whole messages as they are on the wire; a DEALER unless said otherwise."""

    def __init__(
        self,
        endpoint: str,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
        kind: int = zmq.DEALER,
        identity: bytes = b"",
    ) -> None:
        self.socket: zmq.Socket[bytes] = (context or zmq.Context.instance()).socket(kind)
        self.socket.setsockopt(zmq.LINGER, 0)
        if identity:
            self.socket.setsockopt(zmq.IDENTITY, identity)
        if kind == zmq.SUB:
            self.socket.setsockopt(zmq.SUBSCRIBE, b"")
        self.socket.connect(endpoint)

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)

    def recv(self, timeout_s: float = WAIT_S) -> list[bytes]:
        """The next message, however long the broker takes within reason."""
        found = self.get(timeout_s)
        assert found is not None, f"nothing came within {timeout_s:g} s"
        return found

    def get(self, timeout_s: float) -> list[bytes] | None:
        """The next message, or None if none comes in time."""
        if not self.socket.poll(int(timeout_s * 1000), zmq.POLLIN):
            return None
        return self.socket.recv_multipart()

    def recv_until(self, wanted: Callable[[list[bytes]], bool], timeout_s: float = WAIT_S) -> list[bytes]:
        """The first message that is wanted; others, such as heartbeats, are passed over."""
        until = time.monotonic() + timeout_s
        while True:
            found = self.recv(max(0.0, until - time.monotonic()))
            if wanted(found):
                return found

    def close(self) -> None:
        self.socket.close(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_line(process: subprocess.Popen[bytes], timeout_s: float) -> str:
    """The next line of a process's output; an empty text if it ended first."""
    assert process.stdout is not None
    line = b""
    until = time.monotonic() + timeout_s
    # Byte by byte from the descriptor: a buffered reader would hide lines from select.
    while not line.endswith(b"\n"):
        left_s = until - time.monotonic()
        if left_s <= 0 or not select.select([process.stdout], [], [], left_s)[0]:
            raise TimeoutError(f"no line within {timeout_s:g} s; so far {line!r}")
        byte = os.read(process.stdout.fileno(), 1)
        if not byte:
            break
        line += byte
    return line.decode().rstrip("\n")


def wait_for(what: Callable[[], T], timeout_s: float = WAIT_S) -> T:
    """What `what` returns as soon as it is true."""
    until = time.monotonic() + timeout_s
    while True:
        value = what()
        if value:
            return value
        assert time.monotonic() < until, f"not within {timeout_s:g} s: {what}"
        select.select([], [], [], 0.01)
