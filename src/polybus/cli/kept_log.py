"""A log file of lines with a bound: when it is full it becomes `NAME.1`, whose predecessor goes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

# Two of these for each part: enough for days of a healthy part, and for the end of a talkative one.
MAX_BYTES: Final = 2 << 20


class KeptLog:
    """Appends lines. A full disk costs lines, never the process."""

    def __init__(
        self, path: Path, max_bytes: int = MAX_BYTES, clock: Callable[[], float] = time.time
    ) -> None:
        self.path: Final = path
        self._max_bytes = max_bytes
        self._clock = clock
        self._file = path.open("ab", buffering=0)

    def write(self, line: str) -> None:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._clock()))
        text = f"{at} {line}\n".encode(errors="backslashreplace")
        with contextlib.suppress(OSError):
            if self._file.tell() + len(text) > self._max_bytes:
                self._turn_over()
            self._file.write(text)

    def _turn_over(self) -> None:
        self._file.close()
        try:
            self.path.replace(self.path.with_name(f"{self.path.name}.1"))
        finally:
            self._file = self.path.open("ab", buffering=0)

    def close(self) -> None:
        self._file.close()
