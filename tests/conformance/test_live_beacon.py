"""The beacon of a broker process, on loopback and a port of this test alone."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from support.commands import WAIT_S, Served, closing
from support.live import Peer
from support.ports import steady_ports


@pytest.mark.conforms("DBP-32")
def test_a_node_that_knows_what_to_listen_for_finds_the_broker(tmp_path: Path) -> None:
    port = steady_ports(["beacon"])["beacon"]
    options = ("--set", "beacon.enabled=true", "--set", f"beacon.port={port}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ear:
        # As the original implementation listens.
        ear.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        ear.bind(("", port))
        ear.settimeout(WAIT_S)
        with closing(Served(tmp_path, *options)) as broker:
            packet, (host, _) = ear.recvfrom(1024)
            word, number = packet.decode().split(" ")
            assert word == "SHALOM"
            assert f"tcp://{host}:{number}" == broker.endpoints["dbp.port"]
            with Peer(f"tcp://{host}:{number}") as node:
                node.send(b"", b"u_U", b"1700000000.0", b"")
                empty, command, _, body = node.recv()
                assert (empty, command) == (b"", b"o_O")
                assert json.loads(body) == {}
