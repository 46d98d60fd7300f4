"""Three networks in a line, A – B – C, with a broker in each.

Where we may, each is a network namespace of its own, joined by two pairs of virtual interfaces; all of it is
made and removed here.  Where we may not, they are three addresses of the loopback, and a cut link is a middle
broker that stands still for a while.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from polybus.config import PORTS, variable  # noqa: E402
from support.live import POLYBUS, read_line  # noqa: E402
from support.ports import steady_ports  # noqa: E402

NAMES = ("A", "B", "C")
START_S = 30.0
ANSWER_S = 120.0
# Documentation's own networks: nothing real has these addresses, and they exist in the namespaces only.
LEFT, RIGHT = ("192.0.2.1", "192.0.2.2"), ("198.51.100.1", "198.51.100.2")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


class Namespaces:
    """The wires. Use as a context: whatever happens, they are removed."""

    is_real = True

    def __init__(self) -> None:
        self._tag = f"pb{os.getpid()}"
        self._made: list[str] = []

    def open(self) -> bool:
        """False if this machine does not let us."""
        try:
            for name in NAMES:
                ip("netns", "add", self.space(name))
                self._made.append(self.space(name))
                ip("-n", self.space(name), "link", "set", "lo", "up")
            self._wire("A", "B", LEFT)
            self._wire("B", "C", RIGHT)
        except (OSError, subprocess.SubprocessError):
            self.close()
            return False
        return True

    def space(self, name: str) -> str:
        return f"{self._tag}{name}"

    def _wire(self, one: str, other: str, addresses: Sequence[str]) -> None:
        here, there = self.space(one), self.space(other)
        ends = f"to{other}", f"to{one}"
        ip("-n", here, "link", "add", ends[0], "type", "veth", "peer", "name", ends[1], "netns", there)
        for space, end, address in zip((here, there), ends, addresses, strict=True):
            ip("-n", space, "addr", "add", f"{address}/24", "dev", end)
            ip("-n", space, "link", "set", end, "up")

    def bridge_host(self, name: str) -> str:
        """Where the neighbour to the left dials a broker."""
        return {"A": LEFT[0], "B": LEFT[1], "C": RIGHT[1]}[name]

    def host(self, name: str) -> str:
        return "127.0.0.1"

    def within(self, name: str, command: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self.space(name), *command]

    def cut(self, left: str, middle: subprocess.Popen[bytes]) -> Callable[[], None]:
        """Take the cable out to the right of `left`. What puts it in again."""
        space, end = self.space(left), f"to{NAMES[NAMES.index(left) + 1]}"
        ip("-n", space, "link", "set", end, "down")
        return lambda: ip("-n", space, "link", "set", end, "up")

    def close(self) -> None:
        for space in self._made:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, timeout=20, check=False)
        self._made.clear()


class Loopbacks:
    """The same on one machine's loopback."""

    is_real = False

    def bridge_host(self, name: str) -> str:
        return self.host(name)

    def host(self, name: str) -> str:
        return f"127.0.0.{2 + NAMES.index(name)}"

    def within(self, name: str, command: list[str]) -> list[str]:
        return command

    def cut(self, left: str, middle: subprocess.Popen[bytes]) -> Callable[[], None]:
        middle.send_signal(signal.SIGSTOP)
        return lambda: middle.send_signal(signal.SIGCONT)

    def close(self) -> None:
        return


class Program:
    """A process that takes orders as lines of JSON."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def order(self, do: str, **facts: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **facts}).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        line = read_line(self.process, ANSWER_S)
        assert line, "the agent died"
        answer = json.loads(line)
        assert "ok" in answer, answer
        return answer["ok"]

    def ask(self, do: str, **facts: Any) -> Any:
        self.order(do, **facts)
        return self.answer()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Line:
    """The brokers on their wires."""

    def __init__(self, wires: Namespaces | Loopbacks, settings: dict[str, object]) -> None:
        self.wires = wires
        self._settings = settings
        self._folder = tempfile.TemporaryDirectory(prefix="polybus-bridge-")
        self.ports = steady_ports(PORTS)
        self.brokers: dict[str, subprocess.Popen[bytes]] = {}

    def places(self, name: str) -> dict[str, str]:
        return {port: f"tcp://{self.wires.host(name)}:{number}" for port, number in self.ports.items()}

    def _environment(self, name: str) -> dict[str, str]:
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("POLYBUS_", "EBUS_", "EMQ_"))}
        bridge = self.ports["bridge.port"]
        settings: dict[str, object] = {
            **self.ports,
            "broker.host": self.wires.host(name),
            "beacon.enabled": "false",
            "journal.archive": "false",
            "bridge.name": name,
            "bridge.allow": ",".join(NAMES),
            "bridge.topics": "bridge/",
            # B listens on all its interfaces, which only its own namespace has.
            "bridge.port": f"tcp://{'0.0.0.0' if self.wires.is_real else self.wires.host(name)}:{bridge}",
            **self._settings,
        }
        if name != "C":
            after = NAMES[NAMES.index(name) + 1]
            settings["bridge.peers"] = f"tcp://{self.wires.bridge_host(after)}:{bridge}"
        return {**environ, **{variable(key): str(value) for key, value in settings.items()}}

    def start(self, name: str) -> None:
        folder = Path(self._folder.name, name)
        folder.mkdir(exist_ok=True)
        command = [str(POLYBUS), "serve", "--data-dir", str(folder / "data")]
        with (folder / "stderr").open("ab") as errors:
            process = subprocess.Popen(
                self.wires.within(name, command),
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=folder,
                env=self._environment(name),
            )
        self.brokers[name] = process
        words = read_line(process, START_S).split()
        assert words[:1] == ["ready"], (name, words, self.errors(name))

    def kill(self, name: str) -> None:
        process = self.brokers.pop(name)
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def cut(self, left: str) -> Callable[[], None]:
        return self.wires.cut(left, self.brokers["B"])

    def agent(self, name: str) -> Program:
        script = [sys.executable, str(Path(__file__).with_name("agent.py")), json.dumps(self.places(name))]
        return Program(self.wires.within(name, script))

    def ask(self, name: str, do: str) -> Any:
        """A question to the admin socket, from within."""
        admin = self.places(name)["admin.port"]
        command = [str(POLYBUS), do, "--admin", admin, "--json"]
        done = subprocess.run(
            self.wires.within(name, command), capture_output=True, timeout=30, check=False, text=True
        )
        return json.loads(done.stdout) if done.returncode == 0 else []

    def errors(self, name: str) -> str:
        path = Path(self._folder.name, name, "stderr")
        return path.read_text(errors="replace") if path.exists() else ""

    def crashes(self) -> str:
        return "\n".join(self.errors(name) for name in NAMES if "Traceback" in self.errors(name))

    def close(self) -> None:
        for name in list(self.brokers):
            self.kill(name)
        self.wires.close()
        self._folder.cleanup()
