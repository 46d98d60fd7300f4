"""The processes of a run: a broker, workers that are killed and come back, and producers that persist."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import psutil
import zmq
from producers import POOL

from support.commands import environment
from support.ports import steady_ports
from support.waiting import until

HERE: Final = Path(__file__).resolve().parent
POLYBUS: Final = Path(sys.executable).with_name("polybus")
START_S: Final = 30.0
ASK_S: Final = 10.0
WORKER_PORTS: Final = {
    "ebus": "ebus.backend",
    "emqp": "emqp.workers",
    "mdp1": "majordomo.workers",
    "mdp2": "majordomo.workers",
    "mdr": "majordomo.workers",
    "dbp": "dbp.port",
}
PORTS: Final = (
    *("ebus.frontend", "ebus.backend", "ebus.publish", "ebus.subscribe"),
    *("emqp.clients", "emqp.workers", "emqp.admin", "emqp.publish", "emqp.subscribe"),
    *("majordomo.clients", "majordomo.workers", "dbp.port", "dbp.udp", "admin.port"),
)
# A lost worker is noticed soon, and nothing is given up because the run is rough.
SETTINGS: Final[dict[str, dict[str, object]]] = {
    "broker": {"drain_s": 1.0},
    "majordomo": {"heartbeat_s": 0.25, "liveness": 20},
    "emqp": {"heartbeat_s": 0.25, "timeout_s": 1.5},
    "limits": {"orphan_grace_s": 2.0, "attempts": 100, "request_ttl_s": 3600.0},
    "jobs": {"backoff_s": 0.1, "backoff_max_s": 1.0},
}
# Which dialects share a process of plain workers.
PLAIN: Final = (("ebus", "mdp1"), ("mdp2", "mdr"), ("emqp", "dbp"))
POOL_PROCESSES: Final = 2


class Process:
    """A program that may be ended at any time and started again."""

    def __init__(
        self, name: str, command: list[str], folder: Path, env: dict[str, str], talks: bool = False
    ) -> None:
        self.name = name
        self._command = command
        self._folder = folder
        self._env = env
        self._talks = talks
        self.starts = 0
        self.started_at = 0.0
        self.popen: subprocess.Popen[bytes] | None = None
        # Processes that former starts had started themselves: they must not outlive them.
        self._orphans: list[psutil.Process] = []

    @property
    def log(self) -> Path:
        return self._folder / "logs" / f"{self.name}-{self.starts:03d}.log"

    def start(self) -> None:
        self.starts += 1
        self.started_at = time.monotonic()
        with self.log.open("wb") as log:
            self.popen = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE if self._talks else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=self._env,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        assert self.popen is not None
        return self.popen.pid

    @property
    def is_alive(self) -> bool:
        return self.popen is not None and self.popen.poll() is None

    def said(self, word: str) -> bool:
        """Whether a line of its output begins with this word."""
        lines = self.log.read_text(errors="replace").splitlines(keepends=True)
        return any(line.startswith(word) and line.endswith("\n") for line in lines)

    def wait_for(self, word: str, timeout_s: float = START_S) -> None:
        until(lambda: self.said(word) or not self.is_alive, f"{self.name} says {word!r}", timeout_s)
        assert self.said(word), f"{self.name} has ended; see {self.log}\n{self.log.read_text()[-2000:]}"

    def family(self) -> list[psutil.Process]:
        """The process and all that it started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            return [process, *process.children(recursive=True)]
        return []

    def kill(self, only_first: bool = False) -> None:
        """End it and everything that it started, at once; or only itself: the others must notice."""
        if self.popen is None:
            return
        # Some have a session of their own, so that no signal to a group would reach them.
        family = self.family()
        self._orphans += family[1:]
        for process in family[:1] if only_first else family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.popen.wait()
        if self.popen.stdin is not None:
            with contextlib.suppress(OSError):
                self.popen.stdin.close()

    def leftovers(self) -> list[psutil.Process]:
        """Processes of former starts that are still there, although their first one is gone."""
        self._orphans = [process for process in self._orphans if _lives(process)]
        return self._orphans

    def tell(self, line: str) -> None:
        assert self.popen is not None
        assert self.popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.popen.stdin.write(line.encode() + b"\n")
            self.popen.stdin.flush()


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


class Plant:
    """All processes of a run, in a folder of their own."""

    def __init__(self, folder: Path, seed: int, rate_per_s: float, pools: int) -> None:
        self.folder = folder
        for name in ("logs", "marks", "notes"):
            (folder / name).mkdir(parents=True)
        ports = steady_ports(PORTS)
        self.endpoints = {name: f"tcp://127.0.0.1:{port}" for name, port in ports.items()}
        (folder / "polybus.toml").write_text(_settings(ports))
        env = environment({"PYTHONPATH": f"{HERE}:{HERE.parent}", "PYTHONUNBUFFERED": "1"})
        serve = [str(POLYBUS), "serve", "--config", "polybus.toml", "--data-dir", "data"]
        self.broker = Process("broker", serve, folder, env)
        self.plain = [Process(f"plain-{'-'.join(group)}", self._plain(group), folder, env) for group in PLAIN]
        pool_env = {**env, "CRASH_FOLDER": str(folder)}
        self.pools = [Process(f"pool-{n}", self._pool(), folder, pool_env) for n in range(1, pools + 1)]
        self.services = [f"crash.{dialect}" for dialect in WORKER_PORTS] + [POOL] * bool(pools)
        plan = {
            "endpoints": self.endpoints,
            "services": self.services,
            "seed": seed,
            "rate_per_s": rate_per_s,
        }
        command = [sys.executable, str(HERE / "producers.py")]
        self.producers = [
            Process(kind, [*command, kind, str(folder), json.dumps(plan)], folder, env, talks=True)
            for kind in ("receipts", "results")
        ]

    def _plain(self, dialects: tuple[str, ...]) -> list[str]:
        entries = [
            [dialect, self.endpoints[WORKER_PORTS[dialect]], f"crash.{dialect}"] for dialect in dialects
        ]
        return [sys.executable, str(HERE / "serving.py"), str(self.folder), json.dumps(entries)]

    def _pool(self) -> list[str]:
        broker = ["--broker", self.endpoints["emqp.workers"]]
        return [str(POLYBUS), "worker", "app:bus", "--processes", str(POOL_PROCESSES), *broker]

    @property
    def workers(self) -> list[Process]:
        return [*self.plain, *self.pools]

    @property
    def all(self) -> list[Process]:
        return [*self.producers, *self.workers, self.broker]

    def open(self) -> None:
        self.broker.start()
        for worker in self.workers:
            worker.start()
        self.broker.wait_for("ready")
        until(self._has_workers, "every service has a worker", START_S)
        for producer in self.producers:
            producer.start()
        for producer in self.producers:
            producer.wait_for("ready")

    def _has_workers(self) -> bool:
        for process in self.all:
            if process.popen is not None and not process.is_alive:
                raise AssertionError(f"{process.name} has ended:\n{process.log.read_text()[-2000:]}")
        known = {view["service"]: view["workers"] for view in self.ask("services")}
        return all(known.get(service, 0) for service in self.services)

    def ask(self, do: str, **facts: Any) -> Any:
        """A question to the admin socket."""
        with zmq.Context() as context, context.socket(zmq.REQ) as socket:
            socket.linger = 0
            socket.connect(self.endpoints["admin.port"])
            socket.send_multipart([b"PBADM1", b"1", json.dumps({"do": do, **facts}).encode()])
            assert socket.poll(int(ASK_S * 1000)), f"no answer to {do!r}; see {self.broker.log}"
            answer = json.loads(socket.recv_multipart()[2])
        assert "ok" in answer, (do, answer)
        return answer["ok"]

    def stop_producers(self, timeout_s: float) -> None:
        """No more new jobs; wait until all that were asked for are answered."""
        for producer in self.producers:
            producer.tell("stop")
        for producer in self.producers:
            producer.wait_for("done", timeout_s)

    def close(self) -> None:
        for process in self.all:
            process.kill()
            for orphan in process.leftovers():
                with contextlib.suppress(psutil.NoSuchProcess):
                    orphan.kill()


def _settings(ports: dict[str, int]) -> str:
    tree = {section: dict(options) for section, options in SETTINGS.items()}
    for name, port in ports.items():
        section, option = name.split(".")
        tree.setdefault(section, {})[option] = port
    # JSON's texts and numbers are TOML's, too.
    lines = []
    for section, options in tree.items():
        lines.append(f"[{section}]")
        lines += [f"{name} = {json.dumps(value)}" for name, value in options.items()]
    return "\n".join(lines) + "\n"
