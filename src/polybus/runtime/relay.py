"""What children print, with the number of their process in front of every line.

It has a thread of its own: a terminal that is stopped, or a pipe that nobody reads, must not stop the
supervisor from talking to its broker.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
from typing import Final

READ_BYTES: Final = 64 * 1024
# A line that is longer is cut into several.
MAX_LINE: Final = 16 * 1024


class _Source:
    def __init__(self, label: str, target: int) -> None:
        self.label = label.encode()
        self.target = target
        self.rest = b""

    def lines(self, data: bytes) -> bytes:
        *whole, rest = (self.rest + data).split(b"\n")
        if len(rest) > MAX_LINE:
            whole.append(rest)
            rest = b""
        self.rest = rest
        return b"".join(self.label + line + b"\n" for line in whole)

    def last(self) -> bytes:
        rest, self.rest = self.rest, b""
        return self.label + rest + b"\n" if rest else b""


class Relay:
    """The outputs of all children on their way to ours."""

    def __init__(self) -> None:
        self._selector: Final = selectors.DefaultSelector()
        self._wake_r, self._wake_w = os.pipe()
        self._selector.register(self._wake_r, selectors.EVENT_READ)
        self._lock: Final = threading.Lock()
        self._new: list[tuple[int, _Source]] = []
        self._ending = False
        self._thread: Final = threading.Thread(target=self._run, name="polybus-relay", daemon=True)
        self._thread.start()

    def add(self, key: int) -> list[int]:
        """Descriptors for the standard output and error of a child; whoever gets them closes them."""
        given = []
        for target in (1, 2):
            reading, writing = os.pipe()
            with self._lock:
                self._new.append((reading, _Source(f"[{key}] ", target)))
            given.append(writing)
        os.write(self._wake_w, b"x")
        return given

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fd == self._wake_r:
                    os.read(self._wake_r, 4096)
                    with self._lock:
                        new, self._new = self._new, []
                    for fd, source in new:
                        self._selector.register(fd, selectors.EVENT_READ, source)
                else:
                    self._pass_on(key.fd, key.data)
            if self._ending and len(self._selector.get_map()) == 1:
                return

    def _pass_on(self, fd: int, source: _Source) -> None:
        data = os.read(fd, READ_BYTES)
        text = source.lines(data) if data else source.last()
        with contextlib.suppress(OSError):
            while text:
                text = text[os.write(source.target, text) :]
        if not data:
            self._selector.unregister(fd)
            os.close(fd)

    def close(self) -> None:
        """After the last child has gone: pass on what is left."""
        self._ending = True
        os.write(self._wake_w, b"x")
        self._thread.join(1.0)
