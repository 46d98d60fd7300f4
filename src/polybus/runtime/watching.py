"""Which files of the application have changed, by looking at them now and then: it works everywhere."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

LOOK_EVERY_S: Final = 0.5


class Watcher:
    """Remembers the files and what they looked like."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int] | None] = {}

    def add(self, files: Iterable[str]) -> None:
        for file in files:
            if file not in self._seen:
                self._seen[file] = _look(file)

    def changed(self) -> list[str]:
        """Those that look different from the last time."""
        found = []
        for file, before in self._seen.items():
            after = _look(file)
            # An editor that saves may take it away for a moment: that alone is no change.
            if after is not None and after != before:
                self._seen[file] = after
                found.append(file)
        return found


def _look(file: str) -> tuple[int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
