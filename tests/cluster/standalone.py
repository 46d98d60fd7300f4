"""A real Spark cluster on this machine: one master and some workers, each a process, from the pip package.

Everything listens on the loopback.  Leaving the block ends all of them, whatever happened; if the program
that made it is killed, the system ends them.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

from polybus.spark.java import find_java, java_home
from support.ports import steady_ports
from support.waiting import until

LOOPBACK: Final = "127.0.0.1"
START_S: Final = 120.0
STOP_S: Final = 15.0
MASTER: Final = "org.apache.spark.deploy.master.Master"
WORKER: Final = "org.apache.spark.deploy.worker.Worker"
_SET_PARENT_DEATH_SIGNAL: Final = 1
# An executor notes every task that it has finished; so we see who did what.
FINISHED_TASK: Final = "Finished task "


def spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def spark_environment() -> dict[str, str]:
    """What Spark's own commands need: our Java, our Python, and the loopback for everything that listens."""
    unwanted = ("SPARK_", "PYSPARK_", "POLYBUS_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return {
        **clean,
        "JAVA_HOME": str(java_home(find_java())),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_PUBLIC_DNS": LOOPBACK,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


class Cluster:
    def __init__(self, folder: Path, workers: int = 2, memory: str = "1g") -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._workers = workers
        self._memory = memory
        ports = steady_ports(["master", "page"])
        self.url = f"spark://{LOOPBACK}:{ports['master']}"
        self._ports = ports

    def __enter__(self) -> Self:
        try:
            self._start_all()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_all(self) -> None:
        page, port = str(self._ports["page"]), str(self._ports["master"])
        self._start("master", MASTER, "--host", LOOPBACK, "--port", port, "--webui-port", page)
        until(lambda: self._alive("master") and self._state(), "the start of the master", START_S)
        for number in range(self._workers):
            name = f"worker-{number}"
            work = str(self._folder / name)
            room = ("--cores", "1", "--memory", self._memory, "--work-dir", work, "--webui-port", "0")
            self._start(name, WORKER, "--host", LOOPBACK, *room, self.url)
        until(
            lambda: self._alive() and self.alive_workers() == self._workers,
            "the start of the workers",
            START_S,
        )

    def _start(self, name: str, program: str, *arguments: str) -> None:
        environ = spark_environment() | {
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_DIRS": str(self._folder / "scratch"),
            # The master would listen for jobs over HTTP, too.
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        }
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [spark_home() / "bin" / "spark-class", program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=environ,
                # A Ctrl-C is ours to hear; and its executors can be ended with it.
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        self._processes.append(process)

    def _alive(self, name: str = "") -> bool:
        dead = [process for process in self._processes if process.poll() is not None]
        assert not dead, f"Spark's {name or 'daemons'} ended:\n{self.logs()}"
        return True

    def _state(self) -> dict[str, Any]:
        """What the master tells of itself; nothing while it does not listen yet, or has no page yet."""
        with contextlib.suppress(OSError, ValueError):
            page = f"http://{LOOPBACK}:{self._ports['page']}/json/"
            # Not over a proxy that the environment may name.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(page, timeout=5) as answer:
                state: dict[str, Any] = json.load(answer)
                return state
        return {}

    def alive_workers(self) -> int:
        return int(self._state().get("aliveworkers", 0))

    def tasks(self) -> list[int]:
        """How many tasks each worker's executors have finished so far."""
        return [
            sum(
                path.read_text(errors="replace").count(FINISHED_TASK)
                for path in folder.glob("app-*/*/stderr")
            )
            for folder in (self._folder / f"worker-{number}" for number in range(self._workers))
        ]

    def logs(self) -> str:
        found = sorted([*self._folder.glob("*.log"), *self._folder.glob("worker-*/app-*/*/stderr")])
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in found)

    def close(self) -> None:
        """End all of them: on request first, so that workers end their executors, then without asking."""
        for process in reversed(self._processes):
            _signal_group(process, signal.SIGTERM)
        for process in reversed(self._processes):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
        for process in self._processes:
            _signal_group(process, signal.SIGKILL)
            process.wait()
        self._processes.clear()


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    """To the process and those that it started; the group is its own, and may outlive it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def die_with_parent() -> Callable[[], None] | None:
    if not sys.platform.startswith("linux"):
        return None
    # Loaded here: between fork and exec nothing should be.
    library = ctypes.CDLL(None, use_errno=True)
    return lambda: library.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
