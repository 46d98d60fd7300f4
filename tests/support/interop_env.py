"""Environments in which the original implementations run, each with its own pinned packages.

An environment is made once and kept in `.cache/interop/<name>-<hash of the recipe>`; a changed lock file or
another Python makes a new one.  Processes that want the same one at the same time wait for each other.  If it
cannot be made, the tests fail and say so: a missing peer must not look like a passing test.
"""

from __future__ import annotations

import fcntl
import hashlib
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
LOCKS: Final = ROOT / "tests" / "interop"
CACHE: Final = ROOT / ".cache" / "interop"
# To be raised when the way of installing changes.
RECIPE: Final = "1"
INSTALL_S: Final = 90
# The last lines of an installer's output say what went wrong.
TOLD_CHARS: Final = 1500


class PeerUnavailable(Exception):
    """An original implementation could not be installed."""


def environment(name: str) -> Path:
    """The folder of the environment `name`, made if it is not there."""
    lock_file = LOCKS / f"requirements-{name}.lock"
    folder = CACHE / f"{name}-{_key(lock_file)}"
    stamp = folder / ".complete"
    CACHE.mkdir(parents=True, exist_ok=True)
    with exclusively(CACHE / f"{name}.lock"):
        if not stamp.exists():
            shutil.rmtree(folder, ignore_errors=True)
            try:
                _make(folder, lock_file)
            except (OSError, subprocess.SubprocessError) as error:
                shutil.rmtree(folder, ignore_errors=True)
                raise PeerUnavailable(_explain(name, lock_file, error)) from None
            stamp.touch()
    return folder


@contextmanager
def exclusively(path: Path) -> Iterator[None]:
    """Hold a lock that all processes of this machine respect."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _key(lock_file: Path) -> str:
    facts = (RECIPE, sys.version, platform.machine(), lock_file.read_text())
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:12]


def _make(folder: Path, lock_file: Path) -> None:
    uv = _uv()
    python = str(folder / "bin" / "python")
    if uv:
        _run(uv, "venv", "--quiet", "--python", sys.executable, str(folder))
        _run(uv, "pip", "install", "--quiet", "--no-deps", "--python", python, "-r", str(lock_file))
    else:
        _run(sys.executable, "-m", "venv", str(folder))
        _run(python, "-m", "pip", "install", "--quiet", "--no-deps", "-r", str(lock_file))


def _uv() -> str | None:
    own = ROOT / ".uv" / "bin" / "uv"
    return str(own) if own.exists() else shutil.which("uv")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S)


def _explain(name: str, lock_file: Path, error: Exception) -> str:
    said = getattr(error, "stderr", None) or str(error)
    if isinstance(said, bytes):
        said = said.decode(errors="replace")
    return (
        f"the environment of the peer {name!r} could not be made from {lock_file.name}. "
        f"Can the package index be reached? The installer said: {said.strip()[-TOLD_CHARS:]}"
    )


if __name__ == "__main__":
    for one in sys.argv[1:] or ("eventmq", "hermes"):
        print(environment(one))
