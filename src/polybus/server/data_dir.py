"""The data directory of a broker: one broker at a time, and where it tells its endpoints.

The lock is the kernel's (flock): it ends with the process, however that ends, and leaves nothing to clean up.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Final

from polybus.errors import ConfigError

ENDPOINTS_FILE: Final = "endpoints.json"
LOCK_FILE: Final = "lock"


class DataDir:
    """Made if need be, and held until `release`."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ConfigError(
                f"cannot use the data directory {path}: {error.strerror}. Choose another with --data-dir."
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(self._lock, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._lock)
            raise ConfigError(
                f"the data directory {path} belongs to a running broker, process {holder}. "
                "Stop that one, or choose another directory with --data-dir."
            ) from None
        os.ftruncate(self._lock, 0)
        os.write(self._lock, f"{os.getpid()}\n".encode())

    def tell(self, endpoints: dict[str, str]) -> None:
        """Write down where the broker is reached, whole or not at all."""
        file = self.path / ENDPOINTS_FILE
        hidden = file.with_name(f".{file.name}.{os.getpid()}")
        hidden.write_text(json.dumps({"pid": os.getpid(), "endpoints": endpoints}, indent=1) + "\n")
        hidden.replace(file)

    def release(self) -> None:
        (self.path / ENDPOINTS_FILE).unlink(missing_ok=True)
        os.close(self._lock)
