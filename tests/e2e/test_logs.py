"""Log records from programs to people: the handler, the broker, `polybus logs`; also over restarts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from polybus.client.admin import AdminClient
from polybus.client.client import Client
from polybus.client.pubsub import Publisher as PublishingSocket
from support.commands import Running, Served, closing, environment, polybus, wait_until
from support.patience import patient
from support.ports import steady_ports
from support.programs import Program, peer_places

PROGRAM = """
import logging, sys
import polybus

logging.basicConfig(level=logging.DEBUG, handlers=[polybus.LogHandler(node=sys.argv[1], dialect=sys.argv[2])])
log = logging.getLogger("lab")
log.debug("began")
log.warning("%s degrees", 90, extra={"sensor": "t1"})
try:
    {}["nothing"]
except KeyError:
    log.exception("it broke")
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path, "--set", "broker.drain_s=0.5")
    yield served
    assert not any("Traceback" in line for line in served.errors), served.errors
    served.close()


def asked(broker: Served, **facts: Any) -> list[dict[str, Any]]:
    with AdminClient(broker.endpoints["admin.port"]) as admin:
        found: list[dict[str, Any]] = admin.ask("logs", **facts)["records"]
        return found


@pytest.mark.parametrize("dialect", ["ebus", "emqp"])
def test_a_program_that_ends_at_once_loses_nothing(broker: Served, tmp_path: Path, dialect: str) -> None:
    (tmp_path / "lab.py").write_text(PROGRAM)
    command = [sys.executable, "lab.py", "probe", dialect]
    with Program(command, tmp_path, environment(peer_places(broker.endpoints))) as program:
        assert program.end() == 0, program.lines
    wait_until(lambda: len(asked(broker)) == 3)
    began, hot, broke = asked(broker)
    assert (began["level"], began["message"], began["logger"]) == ("debug", "began", "lab")
    assert (hot["level"], hot["message"], hot["extra"]) == ("warning", "90 degrees", {"sensor": "t1"})
    assert (broke["level"], broke["node"]) == ("error", "probe")
    assert "KeyError: 'nothing'" in broke["message"]
    place = ("--data-dir", str(broker.data_dir))
    done = polybus("logs", "--level", "warning", *place, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode()
    assert "warning  probe lab 90 degrees sensor=t1" in text
    assert "\n    KeyError: 'nothing'" in text
    assert "began" not in text
    lines = polybus("logs", "--node", "pro*", "--since", "1h", "-n", "2", "--json", *place, cwd=tmp_path)
    assert [json.loads(line)["level"] for line in lines.stdout.splitlines()] == ["warning", "error"]
    nodes = polybus("logs", "--nodes", "--json", *place, cwd=tmp_path)
    assert json.loads(nodes.stdout) == [
        {"node": "probe", "debug": 1, "info": 0, "warning": 1, "error": 1, "critical": 0}
    ]
    nothing = polybus("logs", "--node", "other", *place, cwd=tmp_path)
    assert (nothing.returncode, nothing.stdout) == (0, b"")
    assert polybus("logs", "--level", "loud", *place, cwd=tmp_path).returncode == 2


def test_every_dialect_reads_and_writes_by_calling(broker: Served) -> None:
    for dialect, setting in (
        ("mdr", "majordomo.clients"),
        ("mdp1", "majordomo.clients"),
        ("mdp2", "majordomo.clients"),
        ("ebus", "ebus.frontend"),
        ("emqp", "emqp.clients"),
        ("dbp", "dbp.port"),
    ):
        with Client(broker.endpoints[setting], dialect=dialect) as client:
            record = {"message": f"from {dialect}", "level": "error", "node": dialect}
            assert json.loads(client.call("polybus.logs", json.dumps(record).encode())) == {"written": True}
            found = json.loads(client.call("polybus.logs", b'{"node": "%b"}' % dialect.encode()))
            assert [one["message"] for one in found["records"]] == [f"from {dialect}"]


def test_hostile_records_harm_nobody(broker: Served) -> None:
    bodies = [b"", b"\xff" * 100, b"{" * 3000, b'{"message": ["x"], "at": "noon"}', b"y" * 3_000_000]
    with Publisher(broker) as publisher:
        for body in bodies:
            publisher.publish(b"log/error/hostile", body)
        publisher.publish(b"log/nonsense", b"no record")
        publisher.publish(b"log/info/good", b"fine")
    wait_until(lambda: len(asked(broker)) == len(bodies) + 1)
    found = asked(broker)
    assert [record["cut"] for record in found] == [False, False, False, False, True, False]
    assert len(found[4]["message"]) == 16 * 1024
    assert found[3]["message"] == '["x"]'
    done = polybus("logs", "--data-dir", str(broker.data_dir), cwd=broker.data_dir)
    assert done.returncode == 0
    with AdminClient(broker.endpoints["admin.port"]) as admin:
        status = admin.ask("status")
    assert (status["logs"], status["logs_cut"], status["internal_errors"]) == (6, 1, 0)


def test_limits_are_settings(tmp_path: Path) -> None:
    with (
        closing(Served(tmp_path, "--set", "logs.count=10", "--set", "logs.age_s=3600")) as broker,
        Publisher(broker) as publisher,
    ):
        publisher.publish(b"log/warning/n", b"keep me")
        for number in range(100):
            publisher.publish(b"log/debug/n", b"%d" % number)
        wait_until(lambda: bool(asked(broker)) and asked(broker)[-1]["message"] == "99")
        found = [record["message"] for record in asked(broker)]
        assert found == ["keep me", *(str(number) for number in range(91, 100))]


@pytest.mark.long
def test_following_over_a_restart(tmp_path: Path) -> None:
    """Both the program that logs and the person who follows go on when the broker is killed."""
    ports = steady_ports(("admin.port", "ebus.publish"))
    settings = [word for name, port in ports.items() for word in ("--set", f"{name}={port}")]
    writer = (
        "import logging, sys, polybus\n"
        "log = logging.Logger('lab')\n"
        f"log.addHandler(polybus.LogHandler('127.0.0.1:{ports['ebus.publish']}', node='probe'))\n"
        "for line in sys.stdin:\n"
        "    log.error(line.strip())\n"
    )
    place = ("--admin", str(ports["admin.port"]))
    with closing(Served(tmp_path, *settings)) as first:
        following = Running("logs", "-f", "--level", "error", "--json", *place, cwd=tmp_path)
        with closing(following):
            program = subprocess.Popen(
                [sys.executable, "-c", writer], stdin=subprocess.PIPE, env=environment(), text=True
            )
            assert program.stdin is not None

            def say(word: str) -> None:
                assert program.stdin is not None
                program.stdin.write(word + "\n")
                program.stdin.flush()

            def heard(word: str) -> bool:
                return any(json.loads(line)["message"] == word for line in list(following.output))

            say("one")
            wait_until(lambda: heard("one"))
            first.process.kill()
            first.end()
            following.wait_for(following.errors, "does not answer")
            say("two")
            with closing(Served(tmp_path, *settings)):
                wait_until(lambda: heard("two"), timeout_s=patient(40))
                say("three")
                wait_until(lambda: heard("three"))
                program.stdin.close()
                assert program.wait(patient(20)) == 0
                assert following.end(signal.SIGINT) == 130


class Publisher:
    """EBUS publications as they are."""

    def __init__(self, broker: Served) -> None:
        self._socket = PublishingSocket("ebus", broker.endpoints["ebus.publish"], zmq.Context.instance())
        self._socket.join(patient(20))

    def publish(self, topic: bytes, body: bytes) -> None:
        self._socket.send([topic, body], 20)

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close(5)
