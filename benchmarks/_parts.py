"""What the benchmarks are put together from: a broker, a proxy, the load generator, and their CPU time.

Everything runs in processes of its own, on free loopback ports, and ends with the benchmark.  CPU time is
read per thread, because a broker's main thread is its logic and the others are libzmq moving bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import zmq

HERE: Final = Path(__file__).resolve().parent
CACHE: Final = HERE.parent / ".cache" / "benchmarks"
# How long anything here may take to start or to stop.
PATIENCE_S: Final = 20.0
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class Broken(Exception):
    """Something did not work, as opposed to being slow."""


@dataclass(frozen=True)
class Goal:
    """What a benchmark hopes to find, what it found, and whether that is enough."""

    text: str
    value: float
    met: bool


def for_record(
    figures: Mapping[str, float], goals: Sequence[Goal], mishaps: Mapping[str, int]
) -> dict[str, object]:
    """What `figures.py` takes from a benchmark's JSON: its figures, its goals, and what went wrong."""
    told = [{"text": goal.text, "value": round(goal.value, 4), "met": bool(goal.met)} for goal in goals]
    return {"figures": dict(figures), "goals": told, "mishaps": dict(mishaps)}


def counted(status: Mapping[str, Any], counters: Sequence[str]) -> dict[str, int]:
    """Those of these counters of a broker that are not zero."""
    return {name: status[name] for name in counters if status.get(name)}


def exit_status(benchmark: str, mishaps: Mapping[str, int]) -> int:
    """The figures of a run are told even if something went wrong: the exit status and stderr say so."""
    if mishaps:
        print(f"{benchmark}: the broker counted what should not have happened: {mishaps}", file=sys.stderr)
    return 1 if mishaps else 0


@dataclass(frozen=True)
class Running:
    """A process that was started, where it listens, and what it wrote."""

    process: subprocess.Popen[bytes]
    endpoints: Mapping[str, str]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def check(self) -> None:
        if self.process.poll() is not None:
            what = f"{command_text(self.process.args)} has ended with {self.process.returncode}"
            raise Broken(f"{what}:\n{_tail(self.log)}")


@dataclass(frozen=True)
class Cpu:
    """CPU seconds of a process: its main thread, and all others together."""

    main: float
    others: float

    def __sub__(self, other: Cpu) -> Cpu:
        return Cpu(self.main - other.main, self.others - other.others)


def cpu_of(pid: int) -> Cpu:
    main = others = 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            # The name in parentheses may contain anything, so count from its end.
            fields = (task / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        seconds = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
        if int(task.name) == pid:
            main = seconds
        else:
            others += seconds
    return Cpu(main, others)


def rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def end_children_with_us() -> None:
    """Let SIGTERM unwind the stack like Ctrl-C, so that everything that was started is stopped."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


# -- processes ----------------------------------------------------------------------------------


@contextlib.contextmanager
def started(
    command: Sequence[str],
    environ: Mapping[str, str] | None = None,
    ready: str = "ready",
    patience_s: float = PATIENCE_S,
) -> Iterator[Running]:
    """Run a command until the block ends; it has begun when it prints a line `ready name=endpoint …`."""
    folder = Path(tempfile.mkdtemp(prefix="polybus-bench-"))
    log = folder / "log"
    with log.open("wb") as out:
        # In a folder of its own, so that no polybus.toml of the caller's is read.
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environ, cwd=folder
        )
    try:
        line = _await_line(process, log, ready, patience_s)
        yield Running(process, dict(pair.split("=", 1) for pair in line.split()[1:]), log)
    finally:
        stop(process)
        shutil.rmtree(folder, ignore_errors=True)


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _await_line(process: subprocess.Popen[bytes], log: Path, ready: str, patience_s: float) -> str:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        for line in log.read_text(errors="replace").splitlines(keepends=True):
            if line.startswith(ready) and line.endswith("\n"):
                return line
        if ended:
            break
        time.sleep(0.02)
    raise Broken(f"{command_text(process.args)} did not get ready:\n{_tail(log)}")


def command_text(args: Any) -> str:
    return " ".join(map(str, args)) if isinstance(args, list | tuple) else str(args)


def _tail(log: Path, lines: int = 15) -> str:
    with contextlib.suppress(OSError):
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    return ""


def broker_command(data_dir: str) -> list[str]:
    return [str(Path(sys.executable).with_name("polybus")), "serve", "--any-port", "--data-dir", data_dir]


def broker_environment(pump: str = "", journal: bool = False) -> dict[str, str]:
    """The caller's, so that settings can be tried out with POLYBUS_*; but which pump runs is ours to say. The
    journal is off unless it is what is measured."""
    environ = {k: v for k, v in os.environ.items() if k not in ("POLYBUS_PUMP", "POLYBUS_BROKER_PUMP")}
    environ.setdefault("POLYBUS_BROKER_DRAIN_S", "1")
    if journal:
        environ["POLYBUS_JOURNAL_ENABLED"] = "true"
    else:
        environ.setdefault("POLYBUS_JOURNAL_ENABLED", "false")
    if pump:
        environ["POLYBUS_PUMP"] = pump
    return environ


@contextlib.contextmanager
def broker(pump: str = "", journal: bool = False) -> Iterator[Running]:
    with started(broker_command("data"), broker_environment(pump, journal)) as running:
        yield running


@contextlib.contextmanager
def proxy(kind: str = "requests") -> Iterator[Running]:
    """libzmq's own proxy: what a broker without any logic does."""
    with started([sys.executable, str(HERE / "_proxy.py"), kind]) as running:
        yield running


# -- asking the broker --------------------------------------------------------------------------


def ask_admin(endpoint: str, do: str, timeout_s: float = PATIENCE_S) -> Any:
    """A question to the admin socket, and its answer."""
    asker: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    try:
        asker.connect(endpoint)
        asker.send_multipart([b"", b"PBADM1", b"1", json.dumps({"do": do}).encode()])
        if not asker.poll(int(timeout_s * 1000)):
            raise Broken(f"the broker did not answer {do!r} in {timeout_s:.0f} s")
        answer = json.loads(asker.recv_multipart()[-1])
    finally:
        asker.close(linger=0)
    if "error" in answer:
        raise Broken(f"the broker refuses {do!r}: {answer['error']}")
    return answer["ok"]


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str, every_s: float = 0.2) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise Broken(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(every_s)


# -- the load generator -------------------------------------------------------------------------


@dataclass(frozen=True)
class Generator:
    """The command that makes load, and whether it is the one that does not stand in the way."""

    command: tuple[str, ...]
    compiled: bool


def make_generator() -> Generator:
    """Compile the generator if it is not there yet; without a C compiler there is one in Python."""
    binary = compiled("load")
    if binary is None:
        return Generator((sys.executable, str(HERE / "_load.py"), "-"), False)
    return Generator((str(binary), libzmq_path()), True)


def compiled(name: str) -> Path | None:
    """A program of ours, compiled if it is not there yet; None if there is no C compiler."""
    source, binary = HERE / f"{name}.c", CACHE / name
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    if not binary.exists() or binary.stat().st_mtime < source.stat().st_mtime:
        CACHE.mkdir(parents=True, exist_ok=True)
        fresh = binary.with_name(f"{name}.{os.getpid()}")
        done = subprocess.run(
            [compiler, "-O2", "-o", str(fresh), str(source), "-ldl", "-lpthread"],
            capture_output=True,
            text=True,
            timeout=120,
        )
        if done.returncode:
            raise Broken(f"{compiler} cannot compile {source.name}:\n{done.stderr}")
        fresh.replace(binary)
    return binary


def libzmq_path() -> str:
    """The library that pyzmq has loaded: its file name is hashed, so only the memory map knows it."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")
            name = path[2].rpartition("/")[2]
            if name.startswith("libzmq") and ".so" in name:
                return path[1] + path[2]
    raise Broken("pyzmq has no libzmq of its own to load; the generator cannot run")


def run_for_json(command: Sequence[str], timeout_s: float) -> dict[str, float]:
    """Run a command to its end; its last line is JSON."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise Broken(f"{command_text(command)} did not end within {timeout_s:.0f} s") from None
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise Broken(f"{command_text(command)} ended with {done.returncode}: {done.stderr.strip()}")
    figures: dict[str, float] = json.loads(lines[-1])
    return figures


def free_endpoint() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"tcp://127.0.0.1:{listener.getsockname()[1]}"
