"""What `jobs.py` is put together from: Redis, the environment of the peers, and processes that end with it.

Redis comes from the system; root may have it installed by this.  Celery and Dramatiq are installed from
`requirements-jobs.lock` into `.cache/benchmarks/jobs-<hash of the recipe>`.  What cannot be had is skipped
with a word.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from _parts import CACHE, HERE, PATIENCE_S, TICKS_PER_S, Broken, command_text, wait_until

LOCK_FILE: Final = HERE / "requirements-jobs.lock"
# To be raised when the way of installing changes.
RECIPE: Final = "1"
INSTALL_S: Final = 180.0
# How much an installer's or a worker's last words may be.
TOLD_CHARS: Final = 1500


class Missing(Exception):
    """Something that is needed for a comparison cannot be had here."""


# -- processes ----------------------------------------------------------------------------------


class Group:
    """A program and everything that it starts, with what it wrote in a file."""

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], log: Path, talks: bool = False
    ) -> None:
        self.command = command
        self.log = log
        pipe = subprocess.PIPE if talks else subprocess.DEVNULL
        with log.open("wb") as out:
            # In a folder of its own, so that no polybus.toml of the caller's is read.
            self.process = subprocess.Popen(
                command,
                stdin=pipe,
                stdout=subprocess.PIPE if talks else out,
                stderr=out,
                env=dict(environ),
                cwd=log.parent,
                start_new_session=True,
            )

    def check(self) -> None:
        """An error with its last words, if it has ended."""
        if self.process.poll() is not None:
            raise Broken(
                f"{command_text(self.command)} has ended with {self.process.returncode}:\n{self.words()}"
            )

    @property
    def is_alive(self) -> bool:
        self.check()
        return True

    def said(self, word: str) -> bool:
        """Whether a line of its output begins so; an error if it ended first."""
        lines = self.log.read_text(errors="replace").splitlines(keepends=True)
        self.check()
        return any(line.startswith(word) and line.endswith("\n") for line in lines)

    def words(self) -> str:
        return self.log.read_text(errors="replace")[-TOLD_CHARS:]

    def line(self, timeout_s: float) -> str:
        """The next line of one that talks: it says one at a time, so nothing hides in a buffer."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], timeout_s)[0]:
            raise Broken(f"{command_text(self.command)} said nothing for {timeout_s:.0f} s:\n{self.words()}")
        line = self.process.stdout.readline().decode()
        if not line:
            self.process.wait(PATIENCE_S)
            self.check()
        return line.rstrip("\n")

    def order(self, text: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(text.encode() + b"\n")
            self.process.stdin.flush()

    def close(self) -> None:
        """Ask it to end, and end whatever is left of it."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE_S / 2)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def cpu_of_groups(groups: Sequence[Group]) -> float:
    """CPU seconds of all living processes of these groups."""
    sessions = {group.process.pid for group in groups}
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name in parentheses may contain anything, so count from its end.
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) in sessions:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_S


# -- Redis --------------------------------------------------------------------------------------


def find_redis() -> str:
    """The path of redis-server; root on Debian and its kin gets it installed."""
    found = shutil.which("redis-server")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        print("bench-jobs: installing redis-server with apt-get", file=sys.stderr, flush=True)
        command = ["apt-get", "install", "--yes", "--no-install-recommends", "redis-server"]
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            for one in (["apt-get", "update"], command):
                subprocess.run(
                    one,
                    env={**os.environ, **quiet},
                    capture_output=True,
                    stdin=subprocess.DEVNULL,
                    timeout=INSTALL_S,
                )
        found = shutil.which("redis-server")
    if found is None:
        raise Missing("there is no redis-server; install it (Debian, Ubuntu: apt install redis-server)")
    return found


@contextlib.contextmanager
def redis(folder: Path, fsync: str) -> Iterator[tuple[Group, Path]]:
    """Redis on a Unix socket, which is faster than loopback, with its append-only file in this folder."""
    # The path of a Unix socket has at most 107 bytes, and a checkout may lie deep.
    short = Path(tempfile.mkdtemp(prefix="pb-"))
    socket = short / "redis"
    settings = {
        "port": "0",
        "unixsocket": str(socket),
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": fsync,
        # No snapshots on top of the append-only file: they would cost Redis time.
        "save": "",
    }
    arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
    try:
        with Group([find_redis(), *arguments], os.environ, folder / "redis.log") as group:
            wait_until(lambda: group.is_alive and socket.exists(), PATIENCE_S, "Redis was not ready", 0.02)
            yield group, socket
    finally:
        shutil.rmtree(short, ignore_errors=True)


# -- the peers' environment ---------------------------------------------------------------------


def peers_environment() -> Path:
    """The folder of an environment with Celery and Dramatiq, made if it is not there."""
    facts = (RECIPE, sys.version, platform.machine(), LOCK_FILE.read_text())
    key = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:12]
    folder = CACHE / f"jobs-{key}"
    stamp = folder / ".complete"
    if stamp.exists():
        return folder
    print("bench-jobs: installing Celery and Dramatiq into .cache", file=sys.stderr, flush=True)
    CACHE.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        uv = _run(str(HERE.parent / "scripts" / "bootstrap.sh"), "uv").strip()
        _run(uv, "venv", "--quiet", "--python", sys.executable, str(folder))
        _run(
            uv, "pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), "-r", str(LOCK_FILE)
        )
    except (OSError, subprocess.SubprocessError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        said = str(getattr(error, "stderr", None) or error).strip()[-TOLD_CHARS:]
        raise Missing(
            f"Celery and Dramatiq could not be installed; can the package index be reached? It said: {said}"
        ) from None
    stamp.touch()
    return folder


def _run(*command: str) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S)
    return done.stdout


# -- the disk -----------------------------------------------------------------------------------


def sync_ms(folder: Path, times: int = 50) -> float:
    """How long this disk takes to have 4 KiB for good, in the middle of several times."""
    path = folder / "sync"
    taken = []
    with path.open("wb", buffering=0) as file:
        for _ in range(times):
            file.write(bytes(4096))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - began)
    path.unlink()
    return sorted(taken)[times // 2] * 1000


def read_json(line: str) -> dict[str, Any]:
    try:
        figures: dict[str, Any] = json.loads(line)
    except ValueError:
        raise Broken(f"no figures but {line!r}") from None
    return figures
