"""The command line against a real broker on free ports."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from polybus.cli.main import run
from polybus.client.addresses import DIALECTS
from polybus.client.admin import AdminClient
from polybus.client.client import Client
from polybus.client.handlers import Request
from polybus.client.worker import Worker
from polybus.config import PORTS, variable
from polybus.errors import RequestFailed, WorkerRejected
from support.commands import Running, Served, closing, environment, polybus, wait_until
from support.patience import patient


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    served = Served(
        tmp_path, "--name", "tested", "--set", "broker.drain_s=0.5", "--set", "monitor.tap=bodies"
    )
    yield served
    served.close()


def hello(request: Request) -> bytes:
    return b"hello " + request.body


def count(request: Request) -> Any:
    for number in range(int(request.body)):
        yield b"%d" % number
    return b"end"


def refuse(request: Request) -> bytes:
    raise WorkerRejected("not today")


@contextlib.contextmanager
def working(broker: Served) -> Iterator[None]:
    """A worker of three services, in a thread."""
    worker = Worker({"hello": hello, "count": count, "refuse": refuse}, broker.endpoints["majordomo.workers"])
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        with AdminClient(broker.endpoints["admin.port"]) as admin:
            wait_until(lambda: len(admin.ask("workers")) == 3)
        yield
    finally:
        worker.stop()
        thread.join(patient(10))


class Commands:
    """Runs commands that end, in this process: dozens of interpreters would take their time."""

    def __init__(
        self, folder: Path, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[bytes]
    ) -> None:
        self._patch = patch
        self._capture = capture
        patch.chdir(folder)
        for name in set(os.environ) - set(environment()):
            patch.delenv(name)
        patch.setenv("COLUMNS", "200")

    def run(self, *arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> Done:
        self._capture.readouterr()
        with self._patch.context() as patch:
            patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            status = run(list(arguments))
        return Done(status, *self._capture.readouterr())

    def ok(self, broker: Served, *arguments: str, stdin: bytes = b"") -> bytes:
        """The output of a command to this broker that must succeed."""
        done = self.run(*arguments, "--data-dir", str(broker.data_dir), stdin=stdin)
        assert done.returncode == 0, done
        return done.stdout


class Done(NamedTuple):
    returncode: int
    stdout: bytes
    stderr: bytes


@pytest.fixture
def commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Commands:
    monkeypatch.setattr("polybus.cli.giving_up.ASK_S", patient(10))
    return Commands(tmp_path, monkeypatch, capfdbinary)


def refused(done: Any) -> str:
    """The one sentence of a command that must fail."""
    assert done.returncode == 1, done
    assert done.stdout == b""
    text: str = done.stderr.decode()
    assert text.startswith("polybus: "), text
    assert text.endswith((".\n", "?\n")), text
    assert text.count("\n") == 1, text
    return text


# -- serve ------------------------------------------------------------------------------------


def test_serve_announces_itself_and_ends_with_0_after_sigterm(tmp_path: Path) -> None:
    with closing(Served(tmp_path, "--json")) as served:
        # A bridge is only there if it has a name.
        assert set(served.endpoints) == set(PORTS) - {"bridge.port"}
        facts = json.loads(served.wait_for(served.output, "{"))
        assert facts["endpoints"] == served.endpoints
        assert facts["pid"] == served.process.pid
        written = json.loads((served.data_dir / "endpoints.json").read_text())
        assert written["endpoints"] == served.endpoints
        served.wait_for(served.errors, "loopback only")
        assert served.end(signal.SIGTERM) == 0
        assert served.output[0].startswith("ready ")
        assert "draining" in served.errors[-2]
        assert not (served.data_dir / "endpoints.json").exists()


def test_interrupted_serve_drains_and_ends_with_130(broker: Served) -> None:
    assert broker.end(signal.SIGINT) == 130
    assert not any("Traceback" in line for line in broker.errors)


def test_sighup_takes_over_what_it_may_and_names_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "polybus.toml"
    file.write_text("[limits]\nqueue_length = 10\n[majordomo]\nheartbeat_s = 2.0\n")
    with closing(Served(tmp_path)) as served:
        file.write_text("[limits]\nqueue_length = 20\n[majordomo]\nheartbeat_s = 1.0\n")
        served.process.send_signal(signal.SIGHUP)
        served.wait_for(served.errors, "changed limits.queue_length 10 → 20")
        served.wait_for(served.errors, "needs a restart: majordomo.heartbeat_s 2.0 → 1.0")
        file.write_text("[limits\n")
        served.process.send_signal(signal.SIGHUP)
        served.wait_for(served.errors, "nothing was changed")
        assert served.end(signal.SIGTERM) == 0


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = polybus("serve", "--any-port", "--set", f"ebus.frontend={port}", cwd=tmp_path)
    assert f"127.0.0.1:{port} is in use" in refused(done)


def test_an_unknown_pump_ends_serve(tmp_path: Path) -> None:
    assert "compiled" in refused(polybus("serve", "--any-port", "--set", "broker.pump=magic", cwd=tmp_path))


# -- talking ----------------------------------------------------------------------------------


def test_calls(commands: Commands, broker: Served) -> None:
    with working(broker):
        for dialect in DIALECTS:
            assert commands.ok(broker, "call", "hello", "world", "--dialect", dialect) == b"hello world\n"
        assert commands.ok(broker, "call", "hello", "-", "--raw", stdin=b"\xff\n") == b"hello \xff\n"
        answer = json.loads(commands.ok(broker, "call", "hello", "you", "--json"))
        assert answer["body"] == "hello you"
        assert answer["ms"] > 0
        assert commands.ok(broker, "call", "count", "2", "--stream") == b"0\n1\nend\n"
        pieces = commands.ok(broker, "call", "count", "1", "--stream", "--json").splitlines()
        assert [json.loads(piece)["body"] for piece in pieces] == ["0", "end"]
        place = ("--address", broker.endpoints["majordomo.clients"])
        assert commands.run("call", "hello", *place).stdout == b"hello \n"
        assert "not today" in refused(commands.run("call", "refuse", *place))


def unanswered(broker: Served) -> list[dict[str, Any]]:
    with AdminClient(broker.endpoints["admin.port"]) as admin:
        rows: list[dict[str, Any]] = admin.ask("requests")
        return rows


def test_a_call_that_gives_up_takes_its_request_back(commands: Commands, broker: Served) -> None:
    give_up = ("call", "nobody", "--timeout", "0.2", "--data-dir", str(broker.data_dir))
    for dialect in DIALECTS:
        text = refused(commands.run(*give_up, "--dialect", dialect))
        assert "'nobody' gave no answer within 0.2 s: nobody serves it" in text
        assert "The request is cancelled" in text
        # EBUS says it itself, on another socket than the one that asked.
        wait_until(lambda: not unanswered(broker))
    assert "is cancelled" in refused(commands.run(*give_up, "--stream"))
    assert unanswered(broker) == []


def test_a_call_that_gives_up_without_an_admin_socket_says_so(commands: Commands, broker: Served) -> None:
    # One that belongs to somebody else is not told.
    place = ("--address", broker.endpoints["majordomo.clients"])
    with closing(Served(broker.data_dir)) as other:
        env = {"POLYBUS_ADMIN_PORT": other.endpoints["admin.port"].rpartition(":")[2]}
        text = refused(commands.run("call", "nobody", "--timeout", "0.2", *place, env=env))
    assert "'polybus services' shows who serves it" in text
    assert "stays with the broker until it expires" in text
    assert len(unanswered(broker)) == 1
    env = {"POLYBUS_ADMIN_PORT": broker.endpoints["admin.port"].rpartition(":")[2]}
    assert "is cancelled" in refused(commands.run("call", "nobody", "--timeout", "0.2", *place, env=env))
    assert len(unanswered(broker)) == 1


def test_a_guaranteed_job_outlives_the_call_that_gave_up(commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "polybus.toml").write_text("[queues.kept]\nguarantee = true\n")
    with closing(Served(tmp_path)) as broker:
        call = ("call", "kept", "--dialect", "emqp", "--timeout", "0.5", "--data-dir", str(broker.data_dir))
        text = refused(commands.run(*call))
        (row,) = unanswered(broker)
        assert f"goes on: 'polybus jobs show {row['token']}' shows it" in text


def test_a_call_without_an_answer_says_who_serves(commands: Commands, broker: Served) -> None:
    place = ("--data-dir", str(broker.data_dir))
    with working(broker):
        text = refused(commands.run("call", "helo", "--timeout", "0.2", *place))
        assert "nobody serves it. Did you mean 'hello'? Served are count, hello, refuse " in text
        going_on = threading.Event()

        def wait(request: Request) -> bytes:
            going_on.wait(patient(20))
            return b""

        slow = Worker({"slow": wait}, broker.endpoints["ebus.backend"], "ebus")
        thread = threading.Thread(target=slow.run)
        thread.start()
        try:
            with AdminClient(broker.endpoints["admin.port"]) as admin:
                wait_until(lambda: len(admin.ask("workers")) == 4)
            text = refused(commands.run("call", "slow", "--timeout", "0.3", *place))
        finally:
            going_on.set()
            slow.stop()
            thread.join(patient(10))
    assert "1 worker serves it; 1 request runs and 0 wait, this one included" in text


def test_what_the_default_queue_says_is_told_as_its_own(commands: Commands, broker: Served) -> None:
    place = ("--dialect", "emqp", "--data-dir", str(broker.data_dir))
    worker = Worker({"default": refuse, "mail": hello}, broker.endpoints["emqp.workers"], "emqp")
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        with AdminClient(broker.endpoints["admin.port"]) as admin:
            wait_until(lambda: len(admin.ask("workers")) == 1)
        text = refused(commands.run("call", "mial", *place))
        assert "nobody serves 'mial', so it went to the queue 'default', as eMQP has it" in text
        assert "a worker said: not today. Did you mean 'mail'?" in text
        assert "nobody serves" not in refused(commands.run("call", "default", *place))
    finally:
        worker.stop()
        thread.join(patient(10))


def test_sent_jobs_are_confirmed(commands: Commands, broker: Served) -> None:
    token = commands.ok(broker, "send", "later", "x", "--guarantee", "--retries", "2").decode().strip()
    listed = json.loads(commands.ok(broker, "queues", "--requests", "--json"))
    assert [(row["request_id"], row["service"], row["dialect"]) for row in listed] == [
        (token, "later", "emqp")
    ]
    assert (
        json.loads(commands.ok(broker, "send", "later", "--dialect", "mdr", "--json"))["service"] == "later"
    )


@pytest.mark.parametrize(("published", "subscribed"), [("ebus", "emqp"), ("emqp", "ebus"), ("ebus", "ebus")])
def test_publications_reach_subscribers(
    commands: Commands, broker: Served, published: str, subscribed: str
) -> None:
    place = ("--data-dir", str(broker.data_dir))
    arguments = ("subscribe", "news.", "--dialect", subscribed, "--count", "1", *place)
    with closing(Running(*arguments, cwd=broker.data_dir)) as subscriber:
        with AdminClient(broker.endpoints["admin.port"]) as admin:
            wait_until(lambda: admin.ask("status")["subscriptions"] == 1)
        commands.ok(broker, "publish", "other", "no", "--dialect", published)
        commands.ok(broker, "publish", "news.rome", "sun\x1b[1m\nny", "--dialect", published)
        assert subscriber.end() == 0
        assert subscriber.output == ["news.rome\tsun\\x1b[1m\\nny"]


# -- looking and acting -----------------------------------------------------------------------


def test_what_the_broker_knows(commands: Commands, broker: Served) -> None:
    assert json.loads(commands.ok(broker, "services", "--json")) == []
    with working(broker):
        commands.ok(broker, "call", "hello", "world")
        rows = {row["service"]: row for row in json.loads(commands.ok(broker, "services", "--json"))}
        assert rows["hello"]["answered"] == 1
        assert rows["hello"]["dialects"] == ["mdr"]
        assert b"hello" in commands.ok(broker, "services")
        assert len(json.loads(commands.ok(broker, "workers", "--json"))) == 3
        assert b"mdr" in commands.ok(broker, "workers")
        assert {row["service"] for row in json.loads(commands.ok(broker, "queues", "--json"))} >= {"hello"}
        assert b"free slots" in commands.ok(broker, "queues")
        assert json.loads(commands.ok(broker, "status", "--json"))["state"] == "serving"
        status = commands.ok(broker, "status").decode()
        assert "serving" in status
        # Every line is in the group that it belongs to.
        assert "\nothers\n" not in status
        waiting = status.partition("\nclients and answers that wait for them\n")[2].partition("\n\n")[0]
        assert re.search(r"^  pending messages +0 answers$", waiting, re.MULTILINE)
    assert json.loads(commands.ok(broker, "nodes", "--json")) == []
    admin = broker.endpoints["admin.port"]
    by_address = commands.run("services", "--admin", admin, "--json")
    by_environment = commands.run(
        "services", "--json", env={variable("admin.port"): admin.rpartition(":")[2]}
    )
    assert by_address.returncode == by_environment.returncode == 0


def test_tap_shows_a_request_from_begin_to_end(commands: Commands, broker: Served) -> None:
    place = ("--data-dir", str(broker.data_dir))
    with (
        working(broker),
        closing(
            Running("tap", "--service", "hello", "--bodies", "--count", "3", *place, cwd=broker.data_dir)
        ) as tap,
        closing(
            Running("tap", "--what", "replied", "--count", "1", "--json", *place, cwd=broker.data_dir)
        ) as answers,
    ):
        for running in (tap, answers):
            running.wait_for(running.errors, "tapping")
        commands.ok(broker, "call", "hello", "world", "--dialect", "ebus")
        assert tap.end() == answers.end() == 0
        assert [line.split()[1] for line in tap.output] == ["accepted", "dispatched", "replied"]
        assert "hello world" in tap.output[2]
        record = json.loads(answers.output[0])
        assert (record["client_dialect"], record["worker_dialect"]) == ("ebus", "mdr")


@pytest.mark.parametrize("arguments", [("tap",), ("subscribe", "x"), ("call", "nobody")])
def test_ctrl_c_is_quiet(broker: Served, arguments: tuple[str, ...]) -> None:
    place = ("--data-dir", str(broker.data_dir))
    with closing(Running(*arguments, *place, cwd=broker.data_dir)) as running:
        if arguments[0] == "call":
            with AdminClient(broker.endpoints["admin.port"]) as admin:
                wait_until(lambda: bool(admin.ask("requests")))
        else:
            running.wait_for(running.errors, "Ctrl-C")
        assert running.end(signal.SIGINT) == 130
        assert not any("Traceback" in line or "Abort" in line for line in running.errors)
    assert unanswered(broker) == []


def test_a_call_that_is_ended_takes_its_request_back(broker: Served) -> None:
    call = ("call", "nobody", "--dialect", "mdp1", "--data-dir", str(broker.data_dir))
    with closing(Running(*call, cwd=broker.data_dir)) as running:
        wait_until(lambda: bool(unanswered(broker)))
        assert running.end(signal.SIGTERM) == 143
        assert running.errors == []
    assert unanswered(broker) == []


def test_cancel_tells_the_client(commands: Commands, broker: Served) -> None:
    with Client(broker.endpoints["ebus.frontend"], "ebus") as client:
        pending = client.submit("nobody", b"x")
        with AdminClient(broker.endpoints["admin.port"]) as admin:
            wait_until(lambda: bool(admin.ask("requests")))
        (row,) = json.loads(commands.ok(broker, "queues", "--requests", "--json"))
        assert b"nobody" in commands.ok(broker, "queues", "--requests")
        assert commands.ok(broker, "cancel", row["token"]) == f"cancelled {row['token']}\n".encode()
        with pytest.raises(RequestFailed) as caught:
            pending.result(patient(10))
        assert caught.value.code in ("cancelled", "rejected")
    place = ("--data-dir", str(broker.data_dir))
    assert "queues --requests" in refused(commands.run("cancel", "nothing", *place))


def test_drain_ends_an_idle_broker(commands: Commands, broker: Served) -> None:
    assert json.loads(commands.ok(broker, "drain", "--json"))["requests"] == 0
    assert broker.end() == 0


def test_drain_does_not_wait_for_ever(commands: Commands, broker: Served) -> None:
    commands.ok(broker, "send", "nobody", "x")
    told = commands.ok(broker, "drain").decode()
    over = "it is answered or waits on disk, in 0.5 s at the latest"
    expected = f"1 request is unanswered; the broker ends when {over}"
    assert told == f"draining: {expected}\n"
    assert broker.end() == 0
    (line,) = [line for line in broker.errors if "drain" in line]
    assert line.endswith(f"told to drain over the admin socket; draining: {expected}")
    assert broker.errors[-1].endswith("stopped with 1 unanswered request")


# -- no broker --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("services", "--admin"),
        ("tap", "--admin"),
        ("call", "hello", "--address"),
        ("send", "hello", "--address"),
        ("publish", "news", "x", "--address"),
        ("subscribe", "news", "--address"),
    ],
)
def test_no_broker_is_one_sentence(commands: Commands, arguments: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    text = refused(commands.run(*arguments, f"127.0.0.1:{port}"))
    assert f"127.0.0.1:{port}" in text
    assert "polybus serve" in text


def test_a_broker_that_was_killed_is_one_sentence(commands: Commands, broker: Served) -> None:
    place = ("--data-dir", str(broker.data_dir))
    broker.end(signal.SIGKILL)
    assert "polybus serve" in refused(commands.run("services", *place))
    (broker.data_dir / "endpoints.json").unlink()
    assert "polybus serve" in refused(commands.run("services", *place))


# -- doctor -----------------------------------------------------------------------------------

# The default ports may be anybody's while the tests run.
NO_PORTS = {variable(name): "0" for name in PORTS}


def findings(output: bytes) -> dict[str, dict[str, str]]:
    return {finding["check"]: finding for finding in json.loads(output)}


def test_doctor_finds_the_broker(commands: Commands, broker: Served) -> None:
    place = ("--data-dir", str(broker.data_dir))
    own_port = broker.endpoints["ebus.frontend"].rpartition(":")[2]
    env = {**NO_PORTS, variable("ebus.frontend"): own_port}
    done = commands.run("doctor", "--json", *place, env=env)
    found = findings(done.stdout)
    assert done.returncode == 0, found
    assert "'tested' answers" in found["broker"]["found"]
    assert found["exposure"]["status"] == "ok"
    assert "belongs to the broker" in found["ebus.frontend"]["found"]
    assert {"python", "zeromq", "pump", "c compiler", "java", "file limit", "settings"} <= set(found)
    assert commands.run("doctor", *place, env=NO_PORTS).returncode == 0


def test_doctor_names_who_has_a_port_and_what_to_do(commands: Commands) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        env = {**NO_PORTS, variable("ebus.frontend"): str(taken.getsockname()[1])}
        place = ("--admin", "127.0.0.1:1")
        done = commands.run("doctor", "--json", *place, env=env)
        found = findings(done.stdout)["ebus.frontend"]
        assert done.returncode == 1
        assert found["status"] == "fail"
        assert "is in use" in found["found"]
        assert "POLYBUS_EBUS_FRONTEND" in found["advice"]
        assert b"1 to repair" in commands.run("doctor", *place, env=env).stdout
