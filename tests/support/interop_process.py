"""Processes for the interop tests: the broker, and peers that are told what to do line by line.

A peer that a test talks to reads one JSON object a line from its standard input and answers each with one
line.  Every process leads a process group of its own, so that whatever it started ends with it.  What a
process logs is kept in a file and shown when something goes wrong.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import zmq

from polybus import Worker
from polybus.config import PORTS
from support.patience import patient
from support.ports import steady_ports
from support.waiting import until as until

# How long anything may take before a test gives up. Long, because other work may share the machine.
PATIENCE_S: Final = patient(20.0)
POLL_S: Final = 0.02
LOG_CHARS: Final = 3000
# How often a broker is started with other ports.
TRIES: Final = 5


@contextlib.contextmanager
def running(worker: Worker) -> Iterator[None]:
    """One of our own workers, in a thread."""
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


class Process:
    """A program under test, with its output and its log."""

    def __init__(self, command: Sequence[str], log: Path, environ: Mapping[str, str] | None = None) -> None:
        self._log = log
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=log.parent,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(environ or {})},
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def line(self, timeout_s: float = PATIENCE_S) -> str:
        """The next line of its output."""
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise AssertionError(f"the process said nothing for {timeout_s:g} s\n{self.log()}") from None
        if not line:
            raise AssertionError(f"the process ended with code {self._process.wait()}\n{self.log()}")
        return line.rstrip("\n")

    def write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def ask(self, do: str, timeout_s: float = PATIENCE_S, **details: Any) -> Any:
        """Have a peer do something and get what came of it."""
        self.write(json.dumps({"do": do, **details}))
        return json.loads(self.line(timeout_s))

    def finish(self, text: str = "", timeout_s: float = PATIENCE_S) -> str:
        """Give it its last input and wait for its end: everything that it wrote."""
        assert self._process.stdin is not None
        self._process.stdin.write(text)
        self._process.stdin.close()
        self.wait(timeout_s)
        self._reader.join(timeout_s)
        lines = []
        while not self._lines.empty():
            lines.append(self._lines.get())
        return "".join(lines)

    def signal(self, number: int) -> None:
        """To the program alone; `kill` is for all that it started."""
        self._process.send_signal(number)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the process did not end within {timeout_s:g} s\n{self.log()}") from None

    def kill(self) -> None:
        """End it and everything that it started, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                # What was not read by its process cannot be flushed any more.
                with contextlib.suppress(OSError):
                    pipe.close()

    def log(self) -> str:
        return f"-- {self._log.name}\n{self._log.read_text(errors='replace')[-LOG_CHARS:]}"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")


class Broker:
    """`polybus serve` on free ports, which it keeps when it is started again."""

    def __init__(self, folder: Path, settings: Mapping[str, Mapping[str, Any]]) -> None:
        self._folder = folder
        self._settings = {section: dict(options) for section, options in settings.items()}
        self._runs = 0
        chosen = [name for name in PORTS if not _is_set(settings, *name.split("."))]
        # Nobody but the test's own peers may hear of it, and those are told by the test.
        self._settings.setdefault("beacon", {}).setdefault("enabled", False)
        self._settings.setdefault("journal", {}).setdefault("archive", False)
        for left in range(TRIES, 0, -1):
            for name, port in steady_ports(chosen).items():
                section, option = name.split(".")
                self._settings.setdefault(section, {})[option] = port
            try:
                self.start()
                return
            except AssertionError as error:
                # Somebody else on this machine was quicker to take one of them.
                if left == 1 or " is in use" not in str(error):
                    raise

    def start(self) -> None:
        config = self._folder / "polybus.toml"
        config.write_text(_toml(self._settings))
        command = [sys.executable, "-c", "from polybus.cli.main import main; main()", "serve"]
        options = ["--config", str(config), "--data-dir", str(self._folder / "data")]
        self._runs += 1
        self.process = Process([*command, *options], self._folder / f"broker-{self._runs}.log")
        try:
            word, *pairs = self.process.line().split()
            assert word == "ready", self.process.log()
        except BaseException:
            self.process.kill()
            raise
        self.endpoints = dict(pair.split("=", 1) for pair in pairs)

    def ask(self, do: str, **details: Any) -> Any:
        """A question to the admin socket."""
        with zmq.Context() as context, context.socket(zmq.REQ) as socket:
            socket.linger = 0
            socket.connect(self.endpoints["admin.port"])
            socket.send_multipart([b"PBADM1", b"1", json.dumps({"do": do, **details}).encode()])
            assert socket.poll(int(PATIENCE_S * 1000)), f"no answer to {do}\n{self.process.log()}"
            answer = json.loads(socket.recv_multipart()[2])
        assert "ok" in answer, answer
        return answer["ok"]

    def workers(self, service: str, free_slots: int = 0) -> list[dict[str, Any]]:
        """The workers of a service that have at least so many free slots."""
        return [
            worker
            for worker in self.ask("workers")
            if service in worker["services"] and worker["free_slots"] >= free_slots
        ]

    def kill(self) -> None:
        self.process.kill()


def _is_set(settings: Mapping[str, Mapping[str, Any]], section: str, option: str) -> bool:
    return option in settings.get(section, {})


def _toml(settings: Mapping[str, Mapping[str, Any]]) -> str:
    # JSON's texts and numbers are TOML's, too.
    lines = []
    for section, options in settings.items():
        lines.append(f"[{section}]")
        lines += [f"{name} = {json.dumps(value)}" for name, value in options.items()]
    return "\n".join(lines) + "\n"
