"""Environments in which the original implementations run, each with its own pinned packages.

`make setup` makes them (this module as a program); the tests only look for them, so that they need no package
index.  An environment is kept in `.cache/interop/<name>-<hash of the recipe>`; a changed lock file or another
Python needs a new one.  Where it is missing, the tests are skipped and name `make setup`; in CI (`CI=true`)
they fail, because there a missing peer must not look like a passing test.

The environments of the benchmarks (Celery, Dramatiq) are others; `benchmarks/` makes those.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
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
STAMP: Final = ".complete"
# To be raised when the way of installing changes.
RECIPE: Final = "1"
INSTALL_S: Final = 300
PEERS: Final = ("eventmq", "hermes")
# The last lines of an installer's output say what went wrong.
TOLD_CHARS: Final = 1500


class PeerUnavailable(Exception):
    """An original implementation could not be installed."""


def environment(name: str) -> Path:
    """The folder of the environment `name`, which `make setup` made."""
    folder = _folder(name)
    if not (folder / STAMP).exists():
        raise PeerUnavailable(f"the environment of the peer {name!r} is missing: run 'make setup'")
    return folder


def peer(name: str) -> Path:
    """The same for a test: where the environment is missing the test is skipped, and in CI it fails."""
    import pytest

    try:
        return environment(name)
    except PeerUnavailable as error:
        if in_ci():
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def make(name: str) -> Path:
    """The folder of the environment `name`, made if it is not there. Processes wait for each other."""
    folder = _folder(name)
    CACHE.mkdir(parents=True, exist_ok=True)
    with exclusively(CACHE / f"{name}.lock"):
        if not (folder / STAMP).exists():
            print(f"setup: installing the peer {name} for the interop tests", file=sys.stderr, flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            try:
                _install(folder, _lock_file(name))
            except (OSError, subprocess.SubprocessError) as error:
                shutil.rmtree(folder, ignore_errors=True)
                raise PeerUnavailable(_explain(name, _lock_file(name), error)) from None
            (folder / STAMP).touch()
    return folder


@contextmanager
def exclusively(path: Path) -> Iterator[None]:
    """Hold a lock that all processes of this machine respect."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _lock_file(name: str) -> Path:
    return LOCKS / f"requirements-{name}.lock"


def _folder(name: str) -> Path:
    return CACHE / f"{name}-{_key(_lock_file(name))}"


def _key(lock_file: Path) -> str:
    facts = (RECIPE, sys.version, platform.machine(), lock_file.read_text())
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:12]


def _install(folder: Path, lock_file: Path) -> None:
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


def main() -> int:
    """Make what is missing. Without a peer everything but its tests works, so only CI insists on it."""
    failed = False
    for name in PEERS:
        try:
            make(name)
        except PeerUnavailable as error:
            failed = True
            print(f"setup: {error}", file=sys.stderr)
            if not in_ci():
                print(f"setup: the interop tests with {name} will be skipped", file=sys.stderr)
    return int(failed and in_ci())


if __name__ == "__main__":
    sys.exit(main())
