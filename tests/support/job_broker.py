"""A broker that keeps its ports and its data over restarts, and workers for `support.job_app`."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from polybus.client.admin import AdminClient
from polybus.config import PORTS, variable
from support.commands import environment
from support.live import POLYBUS, START_S, WAIT_S, read_line
from support.ports import steady_ports
from support.programs import peer_places
from support.waiting import PATIENCE_S, until

TESTS = Path(__file__).resolve().parents[1]


class JobBroker:
    """`polybus serve` with a store, which can be killed and started again."""

    def __init__(self, folder: Path, settings: Mapping[str, object] | None = None) -> None:
        self.folder = folder
        self._env = environment({variable(name): str(port) for name, port in steady_ports(PORTS).items()})
        self._env |= {variable(name): str(value) for name, value in (settings or {}).items()}
        self._errors = folder / "stderr"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [str(POLYBUS), "serve", "--data-dir", str(self.folder / "data")],
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self._env,
                cwd=self.folder,
            )
        words = read_line(self._process, START_S).split()
        assert words[:1] == ["ready"], (words, self._errors.read_text())
        self.endpoints = dict(word.split("=", 1) for word in words[1:])
        #: The environment of those who are to find it.
        self.places = peer_places(self.endpoints)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(WAIT_S)
            assert process.stdout is not None
            process.stdout.close()

    def stop(self) -> int:
        """End it in good order; its exit status."""
        process, self._process = self._process, None
        assert process is not None
        process.terminate()
        status = process.wait(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()
        return status

    def restart(self) -> None:
        self.kill()
        self.start()

    def said(self) -> str:
        """What it wrote to standard error, in all its lives."""
        return self._errors.read_text(errors="replace")

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """It is there and does nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def crashes(self) -> str:
        errors = self._errors.read_text()
        return errors if "Traceback" in errors else ""

    def has_workers(self, *queues: str) -> bool:
        with AdminClient(self.endpoints["admin.port"]) as admin:
            serving = {row["service"] for row in admin.ask("services") if row["workers"]}
        return serving >= set(queues)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class JobWorker:
    """`polybus worker support.job_app:bus`."""

    def __init__(self, broker: JobBroker, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [str(POLYBUS), "worker", "support.job_app:bus", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment({**broker.places, "PYTHONPATH": str(TESTS)}),
            cwd=broker.folder,
        )
        self.errors: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        try:
            until(
                lambda: self._process.poll() is not None or broker.has_workers("default", "parcels", "slow"),
                "a worker",
            )
            assert self._process.poll() is None, self.errors
        except BaseException:
            self.close()
            raise

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.errors.append(line.decode(errors="replace").rstrip("\n"))

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(WAIT_S)
            raise
        finally:
            self._reader.join(WAIT_S)
            assert self._process.stderr is not None
            self._process.stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
