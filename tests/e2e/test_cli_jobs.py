"""`polybus jobs`, `schedule`, `queues` and `status` against a real broker with a real store."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polybus.cli.main import run
from polybus.client.admin import AdminClient
from polybus.client.handlers import Request
from polybus.client.worker import Worker
from support.commands import Served, environment, wait_until
from support.patience import patient

QUICK = ("--set", "jobs.backoff_s=0.05", "--set", "broker.drain_s=0.5")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path, *QUICK)
    yield served
    served.close()


class Shell:
    """Runs commands to one broker, in this process."""

    def __init__(
        self, broker: Served, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str], folder: Path
    ) -> None:
        self.broker = broker
        self._capture = capture
        patch.chdir(folder)
        for name in set(os.environ) - set(environment()):
            patch.delenv(name)
        patch.setenv("COLUMNS", "200")

    def run(self, *arguments: str, status: int = 0) -> tuple[str, str]:
        self._capture.readouterr()
        got = run([*arguments, "--data-dir", str(self.broker.data_dir)])
        done = self._capture.readouterr()
        assert got == status, (arguments, done)
        return done.out, done.err

    def ok(self, *arguments: str) -> str:
        return self.run(*arguments)[0]

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    def send(self, *arguments: str) -> str:
        return self.ok("send", *arguments).strip()


@pytest.fixture
def shell(
    broker: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    return Shell(broker, monkeypatch, capsys, tmp_path)


class Mailer:
    """A worker of the queue `mail` that fails until it is told to work, and blocks on demand."""

    def __init__(self) -> None:
        self.works = False
        self.seen: list[bytes] = []
        self.gate = threading.Event()

    def mail(self, request: Request) -> bytes:
        self.seen.append(request.body)
        if request.body == b"wait":
            self.gate.wait(patient(20))
        elif not self.works:
            raise RuntimeError("smtp is down")
        return b"sent " + request.body


@contextlib.contextmanager
def working(broker: Served, mailer: Mailer) -> Iterator[None]:
    worker = Worker({"mail": mailer.mail}, broker.endpoints["emqp.workers"], dialect="emqp")
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        with AdminClient(broker.endpoints["admin.port"]) as admin:
            wait_until(lambda: any(row["workers"] for row in admin.ask("services")))
        yield
    finally:
        mailer.gate.set()
        worker.stop()
        thread.join(patient(10))


def token_of(shell: Shell, job: str) -> str:
    token: str = shell.json("jobs", "show", job)["token"]
    return token


def dead_letters(shell: Shell, count: int) -> list[Any]:
    wait_until(lambda: len(shell.json("jobs", "dead")) == count)
    found: list[Any] = shell.json("jobs", "dead")
    return found


def test_a_job_from_its_queue_to_its_result(shell: Shell) -> None:
    job = shell.send("mail", "ada", "--guarantee", "--retries", "2")
    (row,) = shell.json("jobs", "ls")
    assert (row["job"], row["state"], row["guarantee"], row["service"]) == (job, "queued", True, "mail")
    assert row["token"] in shell.ok("jobs", "ls", "--state", "queued", "--queue", "mail")
    assert shell.run("jobs", "ls", "--state", "running")[1] == "No running jobs.\n"
    assert "ada" in shell.ok("jobs", "show", job)
    (queue,) = [row for row in shell.json("queues") if row["service"] == "mail"]
    assert (queue["depth"], queue["running"], queue["workers"]) == (1, 0, 0)
    mailer = Mailer()
    mailer.works = True
    with working(shell.broker, mailer):
        wait_until(lambda: not shell.json("jobs", "ls"))
    found = shell.json("jobs", "show", row["token"])
    assert (found["state"], found["dead"]) == ("done", False)
    assert "done" in shell.ok("jobs", "show", job)
    assert mailer.seen == [b"ada"]


def test_dead_letters_are_listed_shown_retried_and_dropped(shell: Shell) -> None:
    mailer = Mailer()
    with working(shell.broker, mailer):
        jobs = [shell.send("mail", name, "--guarantee", "--retries", "1") for name in ("ada", "bob", "eve")]
        letters = dead_letters(shell, 3)
        assert {letter["job"] for letter in letters} == set(jobs)
        assert {(letter["attempts"], letter["reason"]) for letter in letters} == {(2, "failed")}
        ada, bob, eve = (token_of(shell, job) for job in jobs)
        assert "smtp is down" in shell.ok("jobs", "dead", "--queue", "mail")
        shown = shell.ok("jobs", "show", ada)
        assert f"polybus jobs retry {ada}" in shown
        # Why it ended, both attempts, and what the worker sent.
        assert shown.count("smtp is down") == 4
        mailer.works = True
        assert shell.ok("jobs", "retry", ada) == "1 job queued again\n"
        wait_until(lambda: shell.json("jobs", "show", ada)["state"] == "done")
        assert len(dead_letters(shell, 2)) == 2
        assert shell.ok("jobs", "retry", "--all", "--queue", "mail") == "2 jobs queued again\n"
        # Which of them died first, and so runs first, is chance.
        wait_until(lambda: {shell.json("jobs", "show", job)["state"] for job in (bob, eve)} == {"done"})
        mailer.works = False
        shell.send("mail", "zoe", "--guarantee")
        (letter,) = dead_letters(shell, 1)
        assert (
            shell.run("jobs", "dead", "--drop", "nobody", "--yes", status=1)[0] == "0 dead letters dropped\n"
        )
        assert shell.ok("jobs", "dead", "--drop", letter["token"], "--yes") == "1 dead letter dropped\n"
        assert shell.run("jobs", "dead")[1] == "No dead letters.\n"
        assert (
            shell.run("jobs", "retry", bob, status=1)[1]
            == f"{bob} stays a dead letter: no dead letter is called so\n"
        )


def test_a_cancelled_job_stays_cancelled(shell: Shell) -> None:
    job = shell.send("mail", "ada", "--guarantee")
    token = token_of(shell, job)
    assert shell.ok("jobs", "cancel", job) == f"cancelled {token}\n"
    assert shell.json("jobs", "show", token)["state"] == "cancelled"
    error = shell.run("jobs", "cancel", job, status=1)[1]
    assert "polybus jobs ls" in error
    assert error.count("\n") == 1
    assert "polybus jobs ls" in shell.run("jobs", "show", "nobody", status=1)[1]


def test_jobs_and_dead_letters_survive_a_killed_broker(shell: Shell, tmp_path: Path) -> None:
    mailer = Mailer()
    with working(shell.broker, mailer):
        shell.send("mail", "bob", "--guarantee")
        dead_letters(shell, 1)
    job = shell.send("mail", "ada", "--guarantee", "--retries", "3")
    token = token_of(shell, job)
    shell.broker.end(signal.SIGKILL)
    shell.broker.close()
    again = Served(tmp_path, *QUICK)
    try:
        shell.broker = again
        assert [row["token"] for row in shell.json("jobs", "ls")] == [token]
        assert shell.json("jobs", "show", job)["retries"] == 3
        assert len(shell.json("jobs", "dead")) == 1
        mailer.works = True
        with working(again, mailer):
            assert shell.ok("jobs", "retry", "--all") == "1 job queued again\n"
            wait_until(lambda: not shell.json("jobs", "ls"))
        assert mailer.seen == [b"bob", b"ada", b"bob"]
    finally:
        again.close()


def test_limits_of_a_queue_are_kept_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = ("--set", "queues.mail.concurrency=2", "--set", "queues.mail.rate_per_s=50")
    served = Served(tmp_path, *QUICK, *limits, "--set", "queues.mail.guarantee=true")
    try:
        shell = Shell(served, monkeypatch, capsys, tmp_path)
        mailer = Mailer()
        with working(served, mailer):
            # The worker would take all of them; it runs one at a time.
            for _ in range(4):
                shell.send("mail", "wait")
            wait_until(lambda: len(mailer.seen) == 1)
            (queue,) = [row for row in shell.json("queues") if row["service"] == "mail"]
            assert (queue["running"], queue["depth"]) == (2, 2)
            assert queue["limits"] == {"concurrency": 2, "rate_per_s": 50.0}
            assert "2 at once, 50/s" in shell.ok("queues")
            # The settings of the queue guarantee what nobody asked to be guaranteed.
            assert all(row["guarantee"] for row in shell.json("jobs", "ls"))
            mailer.gate.set()
            wait_until(lambda: not shell.json("jobs", "ls"))
    finally:
        served.close()


def test_without_a_store_guarantees_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served = Served(tmp_path, *QUICK, "--set", "jobs.store=false")
    try:
        shell = Shell(served, monkeypatch, capsys, tmp_path)
        assert "jobs.store" in shell.run("send", "mail", "x", "--guarantee", status=1)[1]
        assert "jobs.store" in shell.run("jobs", "dead", status=1)[1]
        assert shell.run("jobs", "ls")[1] == "No jobs.\n"
    finally:
        served.close()


def test_schedules_run_and_are_told_about(shell: Shell) -> None:
    mailer = Mailer()
    mailer.works = True
    said = shell.ok(
        "schedule", "add", "mail", "tick", "--every", "200ms", "--key", "beat", "--runs", "2", "--now"
    )
    assert said.startswith("beat runs next at 20")
    rule = ["--cron", "0 6 * * mon-fri", "--tz", "Europe/Berlin", "--missed", "skip"]
    assert shell.json("schedule", "add", "mail", "morning", *rule, "--key", "early")["key"] == "early"
    assert "0 6 * * mon-fri (Europe/Berlin)" in shell.ok("schedule", "ls")
    with working(shell.broker, mailer):
        # After its last run a schedule is gone; what it did is still known.
        wait_until(lambda: [row["key"] for row in shell.json("schedule", "ls")] == ["early"])
        wait_until(lambda: mailer.seen == [b"tick", b"tick"])
    runs = shell.json("schedule", "runs", "beat")
    # On a busy machine a run may be late.
    assert len(runs) == 2
    assert all(run["what"] in ("ran", "late") for run in runs)
    wait_until(lambda: shell.json("jobs", "show", runs[0]["token"])["state"] == "done")
    told = shell.ok("schedule", "runs", "beat")
    assert all(run["what"] in told for run in runs)
    assert shell.run("schedule", "runs", "early")[1] == "early has not run yet.\n"
    assert shell.ok("schedule", "rm", "early") == "removed early\n"
    assert "polybus schedule ls" in shell.run("schedule", "rm", "early", status=1)[1]
    assert "often" in shell.run("schedule", "add", "mail", "x", "--cron", "often", status=1)[1]


def test_the_oldest_dead_letters_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served = Served(tmp_path, *QUICK, "--set", "jobs.dead_letters=2")
    try:
        shell = Shell(served, monkeypatch, capsys, tmp_path)
        with working(served, Mailer()):
            jobs = [shell.send("mail", "x", "--guarantee") for _ in range(4)]
            wait_until(lambda: shell.json("status")["dead_letters_dropped"] == 2)
            assert [row["job"] for row in shell.json("jobs", "dead")] == jobs[2:]
    finally:
        served.close()


def test_what_is_whole_of_a_store_is_salvaged(shell: Shell, tmp_path: Path) -> None:
    job = shell.send("mail", "ada", "--guarantee")
    saved = tmp_path / "saved"
    assert "running broker" in shell.run("doctor", "--salvage", str(saved), status=1)[1]
    shell.broker.end(signal.SIGTERM)
    assert "job: 1 saved, 0 lost" in shell.ok("doctor", "--salvage", str(saved))
    assert "not empty" in shell.run("doctor", "--salvage", str(saved), status=1)[1]
    shell.broker.close()
    again = Served(tmp_path, *QUICK, "--data-dir", str(saved))
    try:
        again.data_dir = saved
        shell.broker = again
        assert [row["job"] for row in shell.json("jobs", "ls")] == [job]
    finally:
        again.close()


def test_status(shell: Shell) -> None:
    status = shell.json("status")
    assert (status["state"], status["dead"], status["retried"]) == ("serving", 0, 0)
    assert status["store"] == "well"
    assert "serving" in shell.ok("status")
