"""EventMQ's own programs, started as its users start them: its scripts, its configuration file.

Times are as short as EventMQ allows (whole seconds).  A job manager starts its workers with the first
HEARTBEAT that it gets, so a broker that beats often makes for quick tests.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from support.interop_env import LOCKS
from support.interop_process import PATIENCE_S, Process, until
from support.ports import steady_ports

PEERS: Final = LOCKS / "peers"
HEARTBEATS: Final = {"HEARTBEAT_INTERVAL": 1, "HEARTBEAT_TIMEOUT": 1, "HEARTBEAT_LIVENESS": 3}
Queues = Sequence[tuple[int, str]]
DEFAULT_QUEUES: Final[Queues] = ((10, "default"),)


class EventMQ:
    """Starts EventMQ's components in a folder and ends them all."""

    def __init__(self, home: Path, folder: Path) -> None:
        self._home = home
        self._folder = folder
        self._processes: list[Process] = []
        self.marks_folder = folder / "marks"
        self.marks_folder.mkdir()

    def client(self, address: str) -> Process:
        """A program with EventMQ's client; `ask` makes it call it."""
        client = self._start("client", [str(PEERS / "emq_client.py")], {}, {"EMQ_BROKER_ADDR": address})
        assert json.loads(client.line()) == "ready"
        return client

    def manager(
        self, name: str, address: str, slots: int = 2, queues: Queues = DEFAULT_QUEUES, **settings: Any
    ) -> Process:
        options = {"WORKER_ADDR": address, "CONCURRENT_JOBS": slots, "QUEUES": json.dumps(queues), **settings}
        return self._script("emq-jobmanager", name, options, {"MANAGER": name})

    def scheduler(self, address: str) -> Process:
        options = {"SCHEDULER_ADDR": address, "REDIS_STARTUP_ERROR_HARD_KILL": "false"}
        return self._script("emq-scheduler", "scheduler", options)

    def router(self, addresses: dict[str, str] | None = None) -> tuple[Process, dict[str, str]]:
        """EventMQ's own broker, and the addresses of its clients, workers and administrators."""
        if addresses is None:
            ports = steady_ports(("clients", "workers", "admin"))
            addresses = {name: f"tcp://127.0.0.1:{port}" for name, port in ports.items()}
        options = {
            "FRONTEND_ADDR": addresses["clients"],
            "BACKEND_ADDR": addresses["workers"],
            "ADMINISTRATIVE_ADDR": addresses["admin"],
            # It insists on the folder of its log even if it does not keep one.
            "WAL": self._folder / "wal" / "wal.log",
        }
        router = self._script("emq-router", "router", options)
        until(lambda: "Listening for administrative commands" in router.log(), "the router's start")
        return router, addresses

    def shell(self, address: str, *commands: str) -> str:
        """What EventMQ's administrative shell prints when these commands are typed."""
        shell = self._script("emq-cli", "cli", {}, arguments=["--addr", address])
        return shell.finish("".join(f"{command}\n" for command in (*commands, "quit")))

    def shell_report(self, address: str, command: str) -> Any:
        """The answer to one question, which the shell prints as a Python value.

        It waits for a second only, and then prints None: such a question is asked again.
        """

        def answered() -> str:
            printed = self.shell(address, command)
            return printed if "{" in printed else ""

        printed = until(answered, f"an answer to {command!r}")
        return ast.literal_eval(printed[printed.index("{") : printed.rindex("}") + 1])

    def marks(self, name: str) -> list[dict[str, Any]]:
        """The runs of a job, the first one first."""
        files = self.marks_folder.glob(f"{name}.*.mark")
        found = [json.loads(file.read_text()) for file in files]
        return sorted((mark for mark in found if mark["name"] == name), key=lambda mark: float(mark["at"]))

    def await_marks(self, name: str, count: int = 1, timeout_s: float = PATIENCE_S) -> list[dict[str, Any]]:
        def enough() -> list[dict[str, Any]]:
            found = self.marks(name)
            return found if len(found) >= count else []

        return until(enough, f"run {count} of the job {name}", timeout_s)

    def release(self, name: str) -> None:
        """Let the jobs that wait for this name end."""
        (self.marks_folder / name).touch()

    def close(self) -> None:
        for process in self._processes:
            process.kill()

    def _script(
        self,
        script: str,
        name: str,
        options: Mapping[str, Any],
        environ: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
    ) -> Process:
        return self._start(name, [str(self._home / "bin" / script), *arguments], options, environ)

    def _start(
        self, name: str, command: Sequence[str], options: Mapping[str, Any], environ: Mapping[str, str] | None
    ) -> Process:
        stem = f"{name}-{len(self._processes)}"
        settings = self._folder / f"{stem}.conf"
        lines = [f"{option} = {value}" for option, value in {**HEARTBEATS, **options}.items()]
        sections = [f"[{section}]" for section in ("global", "jobmanager", "scheduler")]
        settings.write_text("\n".join(line for section in sections for line in (section, *lines)) + "\n")
        own = {"EVENTMQ_CONFIG_FILE": str(settings), "PYTHONPATH": str(PEERS)}
        process = Process(
            [str(self._home / "bin" / "python"), *command],
            self._folder / f"{stem}.log",
            {**own, **(environ or {})},
        )
        self._processes.append(process)
        return process
