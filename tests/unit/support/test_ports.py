"""Ports of tests: what is taken is not given, and no two test processes choose from the same."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.ports import LOWEST, SIZE, held_part, is_free, steady_ports

TESTS = Path(__file__).resolve().parents[2]
ASK = "from support.ports import held_part; print(held_part(), flush=True); input()"


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_port_that_is_taken_is_not_free(kind: int) -> None:
    port = steady_ports(["one"])["one"]
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", port))
        if kind == socket.SOCK_STREAM:
            taken.listen()
        assert not is_free(port)
    assert is_free(port)


def test_ports_are_of_the_part_that_this_process_holds() -> None:
    ports = steady_ports("abcdef").values()
    assert len(set(ports)) == 6
    assert {(port - LOWEST) // SIZE for port in ports} == {held_part()}


def test_another_process_has_another_part_until_it_ends() -> None:
    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", ASK], cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    parts = [held_part()]
    others = [start() for _ in range(2)]
    try:
        for other in others:
            assert other.stdout is not None
            parts.append(int(other.stdout.readline()))
        assert len(set(parts)) == 3
    finally:
        for other in others:
            other.kill()
            other.communicate()
