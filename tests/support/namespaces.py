"""Network namespaces: networks of a test's own, which nothing else on the machine hears.

with Network() as network:
    network.here.run(...)      one machine, with a loopback of its own
with Network(2) as network:    two machines on one Ethernet: 10.45.0.1/24 and 10.45.0.2/24

They need root and iproute2; where these cannot be had, the test is skipped and says so.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import pytest

from support.commands import WAIT_S, environment
from support.programs import Program

# Here it does no harm.
ANNOUNCING = {"POLYBUS_BEACON_ENABLED": "true"}

_numbers = itertools.count(1)


POLYBUS = [sys.executable, "-m", "polybus"]


class Machine:
    """One namespace."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        # Its address on the common network; loopback if there is none.
        self.address = address

    def command(self, command: Sequence[str]) -> list[str]:
        """The same command, run in there."""
        return ["ip", "netns", "exec", self.name, *command]

    def polybus(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[bytes]:
        """A command of polybus to its end; it may listen for beacons, which are those of this network."""
        return subprocess.run(
            self.command([*POLYBUS, *arguments]),
            cwd=cwd,
            env=environment(ANNOUNCING),
            capture_output=True,
            timeout=WAIT_S,
            check=False,
        )

    def program(self, *arguments: str, folder: Path) -> Program:
        """A Python program that goes on."""
        return Program(self.command([sys.executable, *arguments]), folder, environment(ANNOUNCING))

    def serve(self, folder: Path, *options: str) -> Program:
        """A broker on the usual ports, which are free in a network of its own."""
        options = ("serve", "--data-dir", str(folder / "data"), *options)
        broker = self.program("-m", "polybus", *options, folder=folder)
        try:
            broker.wait_for(lambda line: line.startswith("ready "))
        except BaseException:
            broker.close()
            raise
        return broker

    def ip(self, *arguments: str) -> None:
        _ip("-n", self.name, *arguments)


class Network:
    """As many machines as wanted; those beyond the first are connected to it."""

    def __init__(self, machines: int = 1) -> None:
        if shutil.which("ip") is None:
            pytest.skip("needs iproute2 for a network namespace")
        if os.geteuid() != 0:
            pytest.skip("needs root for a network namespace")
        self.machines: list[Machine] = []
        try:
            for number in range(1, machines + 1):
                self._add(number)
            if machines > 1:
                self._connect()
        except subprocess.CalledProcessError as error:
            self.close()
            pytest.skip(f"no network namespace can be made here: {error.stderr.strip()}")
        except BaseException:
            self.close()
            raise

    def _add(self, number: int) -> None:
        name = f"polybus-{os.getpid()}-{next(_numbers)}"
        _ip("netns", "add", name)
        self.machines.append(Machine(name, f"10.45.0.{number}"))
        self.machines[-1].ip("link", "set", "lo", "up")

    def _connect(self) -> None:
        """A bridge in the first namespace, and a cable to it from every other one."""
        first = self.machines[0]
        first.ip("link", "add", "net0", "type", "bridge")
        first.ip("addr", "add", f"{first.address}/24", "dev", "net0")
        first.ip("link", "set", "net0", "up")
        for number, machine in enumerate(self.machines[1:], 1):
            cable = f"cable{number}"
            first.ip("link", "add", cable, "type", "veth", "peer", "name", "net0", "netns", machine.name)
            first.ip("link", "set", cable, "master", "net0", "up")
            machine.ip("addr", "add", f"{machine.address}/24", "dev", "net0")
            machine.ip("link", "set", "net0", "up")

    @property
    def here(self) -> Machine:
        return self.machines[0]

    def close(self) -> None:
        for machine in self.machines:
            subprocess.run(
                ["ip", "netns", "del", machine.name], capture_output=True, timeout=WAIT_S, check=False
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=WAIT_S, check=True)
