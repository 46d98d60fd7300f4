"""`polybus trace` and `polybus journal`, on what real brokers wrote about real peers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from polybus import Client, Worker
from polybus.cli.main import run
from polybus.client.admin import AdminClient
from polybus.client.handlers import Request
from polybus.errors import RequestFailed
from polybus.journal import fates
from support.commands import Running, Served, closing, environment, wait_until
from support.journals import archive, everything
from support.patience import patient

QUICK = ("--set", "jobs.backoff_s=0.05", "--set", "broker.drain_s=0.5")
Handler = Callable[[Request], bytes]


class Shell:
    """Runs commands in this process."""

    def __init__(self, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str], folder: Path) -> None:
        self._capture = capture
        patch.chdir(folder)
        for name in set(os.environ) - set(environment()):
            patch.delenv(name)
        patch.setenv("COLUMNS", "200")

    def run(self, *arguments: str, status: int = 0) -> tuple[str, str]:
        self._capture.readouterr()
        got = run([*arguments])
        done = self._capture.readouterr()
        assert got == status, (arguments, done)
        return done.out, done.err

    def ok(self, *arguments: str) -> str:
        return self.run(*arguments)[0]

    def json(self, *arguments: str, status: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", status=status)[0])


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys, tmp_path)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    with closing(Served(tmp_path, *QUICK)) as served:
        yield served


PORTS = {"ebus": "ebus.backend", "emqp": "emqp.workers", "mdr": "majordomo.workers"}


@contextlib.contextmanager
def working(broker: Served, dialect: str = "ebus", **handlers: Handler) -> Iterator[Worker]:
    worker = Worker(dict(handlers), broker.endpoints[PORTS[dialect]], dialect)  # type: ignore[arg-type]
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        with AdminClient(broker.endpoints["admin.port"]) as admin:

            def are_there() -> bool:
                return set(handlers) <= {row["service"] for row in admin.ask("services") if row["workers"]}

            wait_until(are_there)
        yield worker
    finally:
        worker.stop()
        thread.join(patient(10))


def client_of(broker: Served, dialect: str = "mdr") -> Client:
    port = {"mdr": "majordomo.clients", "emqp": "emqp.clients"}[dialect]
    return Client(broker.endpoints[port], dialect, timeout_s=patient(10))  # type: ignore[arg-type]


def rows_of(broker: Served, what: str, count: int = 1) -> list[dict[str, Any]]:
    """The rows that say this, as soon as they are on disk."""
    found: list[dict[str, Any]] = []

    def are_there() -> bool:
        found[:] = [row for row in everything(broker.data_dir / "journal") if row["what"] == what]
        return len(found) >= count

    wait_until(are_there)
    return found


def data(broker: Served) -> tuple[str, str]:
    return "--data-dir", str(broker.data_dir)


def echo(request: Request) -> bytes:
    return b"re: " + request.body


def steps(trace: Any, number: int = 0) -> list[str]:
    return [step["what"] for step in trace["requests"][number]["steps"]]


# -- trace ----------------------------------------------------------------------------------------


def test_a_call_across_two_dialects(broker: Served, shell: Shell) -> None:
    with working(broker, echo=echo), client_of(broker) as client:
        assert [client.call("echo", body) for body in (b"1", b"2")] == [b"re: 1", b"re: 2"]
    first, second = rows_of(broker, "replied", 2)
    out = shell.ok("trace", first["token"], *data(broker))
    lines = out.splitlines()
    assert lines[0].startswith(f"{first['token']}  echo")
    assert "replied after" in lines[0]
    assert "(mdr, majordomo.clients), 1 bytes" in lines[1]
    assert "(ebus, ebus.backend), attempt 1" in lines[2]
    assert "replied" in lines[3]
    for name in (first["token"], first["request_id"]):
        found = shell.json("trace", name, *data(broker))
        assert steps(found) == ["accepted", "dispatched", "replied"]
    # By its beginning, if that is enough; else it is told who begins so.
    assert "re: 2" in shell.ok("trace", second["token"], "--bodies", *data(broker))
    common = first["token"][:-1]
    err = shell.run("trace", common, *data(broker), status=1)[1]
    assert first["token"] in err
    assert second["token"] in err
    err = shell.run("trace", "nobody", *data(broker), status=1)[1]
    assert "polybus journal tail" in err
    archive(broker.data_dir / "journal")
    assert shell.ok("trace", first["token"], *data(broker)) == out


def test_what_was_refused_or_expired(tmp_path: Path, shell: Shell) -> None:
    limits = ("--set", "limits.body_bytes=4096", "--set", "limits.request_ttl_s=0.2")
    with closing(Served(tmp_path, *QUICK, *limits)) as broker:
        with client_of(broker) as client:
            with pytest.raises(RequestFailed, match="too_large"):
                client.call("echo", bytes(5000))
            with pytest.raises(RequestFailed, match="expired"):
                client.call("echo", b"nobody is there")
        (refused,) = rows_of(broker, "rejected")
        found = shell.json("trace", refused["request_id"], *data(broker))
        assert found["requests"][0]["outcome"] == "rejected"
        assert "refused at the door" in shell.ok("trace", refused["request_id"], *data(broker))
        (ended,) = rows_of(broker, "dead")
        assert steps(shell.json("trace", ended["token"], *data(broker))) == ["accepted", "expired", "dead"]
        assert "no worker had it; expired: " in shell.ok("trace", ended["token"], *data(broker))


def test_a_job_with_retries_over_a_killed_broker(tmp_path: Path, shell: Shell) -> None:
    tries = []

    def mail(request: Request) -> bytes:
        tries.append(request.body)
        if len(tries) < 3:
            raise RuntimeError("smtp is down")
        return b"sent"

    with closing(Served(tmp_path, *QUICK)) as broker:
        job = shell.ok("send", "mail", "ada", "--guarantee", "--retries", "5", *data(broker)).strip()
        with client_of(broker) as client:
            client.send("nowhere", b"never answered")
            rows_of(broker, "accepted", 2)
            broker.end(signal.SIGKILL)
    with closing(Served(tmp_path, *QUICK)) as broker:
        with working(broker, "emqp", mail=mail):
            rows_of(broker, "replied")
        out = shell.ok("trace", job, *data(broker))
        for words in (
            "guaranteed: on disk before",
            "it had been killed",
            "attempt 1 failed",
            "smtp is down",
            "attempt 3",
            "replied",
        ):
            assert words in out
        found = shell.json("trace", job, *data(broker))
        assert steps(found) == [
            "accepted",
            *("dispatched", "retried") * 2,
            "dispatched",
            "replied",
        ]
        (lost,) = [row for row in everything(broker.data_dir / "journal") if row["service"] == "nowhere"]
        assert "lost: accepted when the broker was killed" in shell.ok("trace", lost["token"], *data(broker))
        out = shell.ok("journal", "verify", *data(broker))
        assert f"lost   {lost['token']} (nowhere)" in out
        assert "verify: ok" in out.splitlines()[-1]
        assert "lost=1" in out.splitlines()[-1]


def test_chains_and_groups(broker: Served, shell: Shell) -> None:
    def order(job: str, **more: Any) -> bytes:
        return json.dumps({"id": job, "reply": "result", **more}).encode() + b"\n"

    with working(broker, "emqp", a=echo, b=echo), client_of(broker) as client:
        then = [{"service": "b", "body": ""}]
        assert client.call("polybus.submit", order("chain", service="a", then=then) + b"x") == b"re: re: x"
        members = [{"service": "a", "body": str(number)} for number in range(3)]
        client.call("polybus.submit", order("many", group=members))
    rows_of(broker, "replied", 5)
    found = shell.json("trace", "chain", *data(broker))
    assert [request["service"] for request in found["requests"]] == ["a", "b"]
    # Each step leads to the others.
    other = shell.json("trace", found["requests"][1]["token"], *data(broker))
    assert [request["token"] for request in other["requests"]] == [r["token"] for r in found["requests"]]
    found = shell.json("trace", "many", *data(broker))
    assert sorted(request["request_id"] for request in found["requests"]) == ["many/0", "many/1", "many/2"]
    assert shell.ok("trace", "many/1", *data(broker)).count("accepted") == 1
    assert shell.json("journal", "verify", *data(broker))["ok"] is True


def test_over_a_bridge(tmp_path: Path, shell: Shell) -> None:
    def bridged(name: str, *peers: str) -> Served:
        folder = tmp_path / name
        folder.mkdir()
        more = ("--set", f"bridge.peers={peers[0]}") if peers else ()
        return Served(folder, *QUICK, "--set", f"bridge.name={name}", *more)

    with (
        closing(bridged("C")) as c,
        closing(bridged("B", c.endpoints["bridge.port"])) as b,
        closing(bridged("A", b.endpoints["bridge.port"])) as a,
        working(c, far=echo),
        client_of(a) as client,
        AdminClient(a.endpoints["admin.port"]) as admin,
    ):
        wait_until(lambda: any(row["service"] == "far" and row["workers"] for row in admin.ask("services")))
        assert client.call("far", b"there") == b"re: there"
        tokens = [rows_of(each, "replied")[0]["token"] for each in (a, b, c)]
        places = [part for each in (c, a, b) for part in ("--journal", str(each.data_dir))]
        # From either end, and from the middle.
        for token in tokens:
            found = shell.json("trace", token, *places)
            assert [request["token"] for request in found["requests"]] == tokens
        out = shell.ok("trace", tokens[0], *places)
        assert "to the broker B (bridge)" in out
        assert "from the broker B (bridge)" in out
        # With one journal only what that broker knows.
        assert len(shell.json("trace", tokens[0], *data(a))["requests"]) == 1


# -- tail -----------------------------------------------------------------------------------------


def test_tail(broker: Served, shell: Shell, tmp_path: Path) -> None:
    with working(broker, echo=echo), client_of(broker) as client:
        for number in range(5):
            client.call("echo", b"%d" % number)
        rows_of(broker, "replied", 5)
        lines = shell.ok("journal", "tail", "-n", "3", "--what", "replied", *data(broker)).splitlines()
        assert len(lines) == 3
        assert all(" replied " in line and "echo" in line for line in lines)
        out = shell.ok("journal", "tail", "--service", "ec*", "--json", "--bodies", "-n", "1", *data(broker))
        (row,) = map(json.loads, out.splitlines())
        assert (row["what"], row["service"], row["body_base64"]) == ("replied", "echo", ["cmU6IDQ="])
        assert "worker_up" in shell.ok("journal", "tail", *data(broker))
        lines = shell.ok("journal", "tail", "--service", "echo", "--since", "1h", *data(broker)).splitlines()
        assert len(lines) >= 15
        assert "No records" in shell.run("journal", "tail", "--service", "other", *data(broker))[1]
        assert (
            "nothing that happens"
            in shell.run("journal", "tail", "--what", "odd", *data(broker), status=2)[1]
        )
        assert shell.run("journal", "tail", "--since", "soon", *data(broker), status=2)[1]
        follow = Running(
            "journal", "tail", "-f", "-n", "1", "--what", "replied", "--bodies", *data(broker), cwd=tmp_path
        )
        with closing(follow):
            follow.wait_for(follow.output, "re: 4")
            client.call("echo", b"more")
            follow.wait_for(follow.output, "re: more")
            archive(broker.data_dir / "journal")
            client.call("echo", b"and more")
            follow.wait_for(follow.output, "re: and more")
            assert follow.end(signal.SIGINT) == 130
            assert [line.split("re: ")[1] for line in follow.output] == ["4", "more", "and more"]


# -- verify ---------------------------------------------------------------------------------------


def test_verify_finds_what_is_wrong_on_disk(broker: Served, shell: Shell) -> None:
    journal = broker.data_dir / "journal"
    with working(broker, echo=echo), client_of(broker) as client:
        for number in range(5):
            client.call("echo", b"%d" % number)
        rows_of(broker, "replied", 5)
    out = shell.ok("journal", "verify", *data(broker))
    assert "verify: ok" in out.splitlines()[-1]
    assert "requests=5 replied=5 open=0 lost=0" in out.splitlines()[-1]
    broker.end(signal.SIGTERM)
    (log,) = (journal / "open").iterdir()
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)
    out = shell.run("journal", "verify", *data(broker), status=1)[0]
    assert f"WRONG  damage: {log}" in out
    assert "wrong" in out.splitlines()[-1]
    archive(journal)
    found = shell.json("journal", "verify", *data(broker), status=1)
    assert found["ok"] is False
    assert [problem["kind"] for problem in found["problems"]] == ["damage"]


def test_verify_asks_the_store_for_what_is_guaranteed(
    tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Served(tmp_path, *QUICK)) as broker:
        jobs = [
            shell.ok("send", "mail", name, "--guarantee", *data(broker)).strip() for name in ("ada", "bob")
        ]
        tokens = {row["request_id"]: row["token"] for row in rows_of(broker, "accepted", 2)}
        broker.end(signal.SIGKILL)
    # Nobody runs: the store is looked into.
    found = shell.json("journal", "verify", *data(broker))
    assert sorted(fate["token"] for fate in found["fates"]["open"]) == sorted(tokens.values())
    with closing(Served(tmp_path, *QUICK)) as broker:
        # Somebody does: it is asked.
        found = shell.json("journal", "verify", *data(broker))
        assert found["counts"] == {"open": 2}
        shell.ok("jobs", "cancel", jobs[1], *data(broker))
        rows_of(broker, "cancelled")
        assert shell.json("journal", "verify", *data(broker))["counts"] == {"open": 1}
        broker.end(signal.SIGKILL)
    (store,) = (broker.data_dir / "store").glob("*.db")
    for path in store.parent.iterdir():
        path.unlink()
    # Somebody has thrown away what was promised. (It had time enough to be on disk.)
    monkeypatch.setattr(fates, "UNWRITTEN", timedelta(0))
    with closing(Served(tmp_path, *QUICK)) as broker:
        out = shell.run("journal", "verify", *data(broker), status=1)[0]
        assert f"WRONG  P1: request {tokens[jobs[0]]} (mail)" in out


# -- replay ---------------------------------------------------------------------------------------


def price(request: Request) -> bytes:
    if request.body == b"bad":
        raise ValueError("no price")
    return json.dumps({"price": len(request.body), "at": request.body.decode()}).encode()


def new_price(request: Request) -> bytes:
    if request.body == b"pear":
        raise ValueError("no pears")
    extra = 1 if request.body == b"plum" else 0
    return json.dumps({"price": len(request.body) + extra, "at": "later"}).encode()


def test_a_shadow_run(broker: Served, shell: Shell, tmp_path: Path) -> None:
    bodies = [b"apple", b"plum", b"pear", b"bad", bytes(5000)]
    with working(broker, "emqp", price=price, shadow=price), client_of(broker) as client:
        for body in bodies:
            with contextlib.suppress(RequestFailed):
                client.call("price", body)
        rows_of(broker, "replied", 4)
        rows_of(broker, "failed")
        ask = ("journal", "replay", "--service", "price", *data(broker))
        # Not by accident where they ran before.
        assert "--yes" in shell.run(*ask, status=2)[1]
        out = shell.ok(*ask, "--dry-run")
        assert "would send 4 of 5" in out
        assert "plum" in out
        found = shell.json(*ask, "--to", "shadow", "--rate", "0")
        assert {name: found[name] for name in ("sent", "same", "different", "failed", "not_comparable")} == {
            "sent": 4,
            "same": 4,
            "different": 0,
            "failed": 0,
            "not_comparable": 1,
        }
        assert "not kept" in found["differences"][0]["why"]
        assert "replay: sent=4 same=4" in shell.ok(*ask, "--yes", "--rate", "0").splitlines()[-1]
    with working(broker, "mdr", shadow2=new_price):
        to = ("--to", "shadow2", "--limit", "4", "--outcome")
        found = shell.json(*ask, *to, "replied", "--ignore", "at", "--rate", "0", status=1)
        assert (found["same"], found["different"], found["failed"]) == (1, 1, 1)
        out_file = tmp_path / "diff.jsonl"
        text = shell.run(*ask, *to, "failed", "--out", str(out_file), status=1)[0]
        assert "it failed (failed), now it replies" in text
        line, *_ = map(json.loads, out_file.read_text().splitlines())
        assert line["request"] == [{"body": "bad"}]
    assert "No requests" in shell.run(*ask, "--until", "1h")[1]
