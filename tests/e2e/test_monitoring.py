"""Looking on with real sockets: tables, top in a terminal, taps with permission, the monitor's topics."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from polybus.client.admin import AdminClient, QuestionRefused
from polybus.client.client import Client
from polybus.client.handlers import Request
from polybus.client.worker import Worker
from support.commands import Running, Served, closing, environment, polybus, wait_until
from support.live import Peer
from support.patience import patient
from support.waiting import until

WAIT_MS = int(patient(20_000))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path, "--set", "broker.drain_s=0.5")
    yield served
    assert not any("Traceback" in line for line in served.errors), served.errors
    served.close()


def echo(request: Request) -> bytes:
    return bytes(request.body)


@contextlib.contextmanager
def serving(broker: Served, service: str = "echo") -> Iterator[None]:
    worker = Worker({service: echo}, broker.endpoints["majordomo.workers"])
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        with AdminClient(broker.endpoints["admin.port"]) as admin:
            wait_until(lambda: any(row["workers"] for row in admin.ask("services")))
        yield
    finally:
        worker.stop()
        thread.join(patient(20))


def ask(broker: Served, do: str, **facts: Any) -> Any:
    with AdminClient(broker.endpoints["admin.port"]) as admin:
        return admin.ask(do, **facts)


def call(broker: Served, service: str, body: bytes) -> bytes:
    with Client(broker.endpoints["majordomo.clients"]) as client:
        return client.call(service, body)


class Listener:
    """A SUB socket."""

    def __init__(self, endpoint: str, prefix: bytes) -> None:
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SUBSCRIBE, prefix)
        self.socket.connect(endpoint)

    def until(self, topic: bytes) -> dict[str, Any]:
        """The next publication of this topic."""
        while True:
            assert self.socket.poll(WAIT_MS), f"no {topic!r} came"
            found, body = self.socket.recv_multipart()
            if found == topic:
                content: dict[str, Any] = json.loads(body)
                return content

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close(0)


@pytest.mark.parametrize("dialect", ["ebus", "emqp"])
def test_the_monitor_tells_subscribers_of_both_dialects(broker: Served, dialect: str) -> None:
    with Listener(broker.endpoints[f"{dialect}.subscribe"], b"polybus/monitor/") as listener:
        # The first summary shows that the subscription was read.
        first = listener.until(b"polybus/monitor/summary")
        assert (first["broker"], first["workers"]) == ("polybus", 0)
        with serving(broker):
            up = listener.until(b"polybus/monitor/worker_up")
            assert (up["services"], up["dialect"]) == (["echo"], "mdr")
            assert call(broker, "echo", b"x") == b"x"
            wait_until(lambda: listener.until(b"polybus/monitor/summary")["replied"] == 1)
        down = listener.until(b"polybus/monitor/worker_down")
        assert down["worker"] == up["worker"]
        with Peer(broker.endpoints["dbp.port"]) as node:
            info = {"name": "probe", "ip": "127.0.0.1", "port": 7777, "function": "t", "heartbeat": 0.2}
            node.send(b"", b"UwU", b"1.0", json.dumps(info).encode())
            assert listener.until(b"polybus/monitor/node_up")["node"] == "probe"
            # It does not beat.
            assert listener.until(b"polybus/monitor/node_late")["node"] == "probe"
            assert listener.until(b"polybus/monitor/node_down")["node"] == "probe"
    # They are not kept for those who come later.
    assert ask(broker, "last", topic="polybus/", prefix=True) == []


def test_tables_show_liveness_and_load(broker: Served) -> None:
    with serving(broker), Peer(broker.endpoints["dbp.port"]) as node:
        info = {"name": "probe", "ip": "127.0.0.1", "port": 7777, "function": "t", "heartbeat": 60}
        node.send(b"", b"UwU", b"1.0", json.dumps(info).encode())
        wait_until(lambda: len(ask(broker, "nodes")) == 1)
        call(broker, "echo", b"x")
        (row,) = [row for row in ask(broker, "services") if row["service"] == "echo"]
        assert (row["state"], row["load"], row["late_workers"], row["answered"]) == ("alive", 0.0, 0, 1)
        assert row["up_s"] >= row["silent_s"] >= 0
        (found,) = ask(broker, "nodes")
        assert (found["address"], found["function"], found["state"]) == ("127.0.0.1:7777", "t", "alive")
        for command, words in (
            ("services", ("state", "alive", "load", "done/s")),
            ("workers", ("load", "missed", "mdr")),
            ("nodes", ("probe", "127.0.0.1:7777", "missed")),
        ):
            done = polybus(command, "--data-dir", str(broker.data_dir), cwd=broker.data_dir)
            assert done.returncode == 0, done.stderr
            for word in words:
                assert word in done.stdout.decode(), (command, word, done.stdout)


def test_listening_in_needs_permission(broker: Served, tmp_path: Path) -> None:
    place = ("--data-dir", str(broker.data_dir))
    done = polybus("tap", "--bodies", *place, cwd=tmp_path)
    assert done.returncode == 1
    assert b"monitor.tap is 'meta'" in done.stderr
    with (
        serving(broker),
        closing(
            Running("tap", "--service", "echo", "--count", "3", "--json", *place, cwd=tmp_path)
        ) as listening,
    ):
        listening.wait_for(listening.errors, "tapping")
        call(broker, "echo", b"secret")
        assert listening.end() == 0
        records = [json.loads(line) for line in listening.output]
        assert [record["what"] for record in records] == ["accepted", "dispatched", "replied"]
        assert all("body_base64" not in record for record in records)


def test_the_rule_changes_on_sighup(tmp_path: Path) -> None:
    config = tmp_path / "polybus.toml"
    config.write_text('[monitor]\ntap = "off"\n')
    with closing(Served(tmp_path, "--config", str(config))) as broker:
        with (
            AdminClient(broker.endpoints["admin.port"]) as admin,
            pytest.raises(QuestionRefused, match=r"monitor\.tap is 'off'"),
        ):
            next(admin.tap())
        config.write_text('[monitor]\ntap = "bodies"\n')
        broker.process.send_signal(signal.SIGHUP)

        def may_listen() -> bool:
            with AdminClient(broker.endpoints["admin.port"]) as admin:
                records = admin.tap("echo", bodies=True)
                try:
                    return next(records) == {}
                except QuestionRefused:
                    return False
                finally:
                    records.close()  # type: ignore[attr-defined]

        wait_until(may_listen)


# -- top --------------------------------------------------------------------------------------


def busy_look(*place: str, cwd: Path) -> Any:
    """What `top` sees in a second; None if no call was answered in it."""
    done = polybus("top", "--once", "--json", *place, cwd=cwd)
    assert done.returncode == 0, done.stderr
    look = json.loads(done.stdout)
    return look if look["services"][0]["done_per_s"] > 0 else None


def test_top_once(broker: Served, tmp_path: Path) -> None:
    place = ("--data-dir", str(broker.data_dir))
    with serving(broker), Client(broker.endpoints["majordomo.clients"]) as client:
        is_over = threading.Event()

        def talk() -> None:
            while not is_over.is_set():
                client.call("echo", b"x")

        talking = threading.Thread(target=talk)
        talking.start()
        try:
            # A second in which nothing gets the processor has no calls.
            look = until(lambda: busy_look(*place, cwd=tmp_path), "a second with calls")
            shown = polybus("top", "--once", *place, cwd=tmp_path, env={"COLUMNS": "60"})
        finally:
            is_over.set()
            talking.join(patient(20))
    (echo_row,) = look["services"]
    assert 0 < echo_row["p50_s"] <= echo_row["p95_s"] < 10
    assert look["totals"]["replied_per_s"] > 0
    assert shown.returncode == 0, shown.stderr
    text = shown.stdout.decode()
    assert "echo" in text
    assert "done/s" in text
    assert all(len(line) <= 60 for line in text.splitlines())
    wrong = polybus("top", "--sort", "colour", *place, cwd=tmp_path)
    assert wrong.returncode == 2


class Terminal:
    """A command in a terminal of its own, as a person has it."""

    def __init__(self, *arguments: str, rows: int = 24, columns: int = 80) -> None:
        self._screen = b""
        self.pid, self._fd = pty.fork()
        if not self.pid:
            os.environ.clear()
            os.environ.update({**environment(), "TERM": "xterm-256color"})
            os.environ.pop("COLUMNS", None)
            os.execv(sys.executable, [sys.executable, "-m", "polybus", *arguments])
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def shows(self, words: str) -> bool:
        """Whether it has shown this, on one line."""
        self._read(0.05)
        plain = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", self._screen).decode(errors="replace")
        return words in plain

    def forget(self) -> None:
        self._screen = b""

    def _read(self, wait_s: float) -> bool:
        while select.select([self._fd], [], [], wait_s)[0]:
            try:
                found = os.read(self._fd, 65536)
            except OSError:
                # The other side is closed.
                return False
            if not found:
                return False
            self._screen += found
        return True

    def end(self) -> int:
        while self._read(0.2):
            pass
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self._fd)
        return status


def test_top_in_a_terminal(broker: Served) -> None:
    with serving(broker):
        terminal = Terminal("top", "--data-dir", str(broker.data_dir), rows=20, columns=50)
        wait_until(lambda: terminal.shows("echo"))
        assert terminal.shows("by rate")
        terminal.press(b"n")
        wait_until(lambda: terminal.shows("by name"))
        terminal.press(b"s")
        terminal.forget()
        wait_until(lambda: terminal.shows("by rate"))
        terminal.press(b"q")
        assert terminal.end() == 0
        # The terminal got its old screen back.
        assert b"\x1b[?1049l" in terminal._screen


@pytest.mark.long
def test_top_outlives_the_broker(tmp_path: Path) -> None:
    with closing(Served(tmp_path)) as broker:
        terminal = Terminal("top", "--data-dir", str(broker.data_dir))
        wait_until(lambda: terminal.shows("polybus serving"))
        broker.process.kill()
        wait_until(lambda: terminal.shows("still trying"))
        terminal.press(b"\x03")
        assert terminal.end() in (0, 130)
