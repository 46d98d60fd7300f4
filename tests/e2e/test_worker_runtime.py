"""`polybus worker` with a real broker: crashes, limits, cancelling, stopping, and a broker that goes away."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from polybus import Client, JobCancelled, JobFailed, RequestFailed
from polybus.client.admin import AdminClient
from support import worker_app
from support.commands import Running, closing, environment, polybus
from support.job_broker import TESTS, JobBroker
from support.patience import patient
from support.waiting import until

APP = "support.worker_app:bus"
QUEUES = ("email", "slow", "shout")


class Worker(Running):
    """`polybus worker` of the application, known to the broker."""

    def __init__(self, broker: JobBroker, *arguments: str, app: str = APP, cwd: Path | None = None) -> None:
        super().__init__(
            "worker",
            app,
            *arguments,
            cwd=cwd or broker.folder,
            env={**broker.places, "PYTHONPATH": str(TESTS)},
        )
        try:
            self.wait_for(self.output, "ready ")
        except BaseException:
            self.close()
            raise

    def children(self) -> set[int]:
        """The processes that run jobs: children of the only child."""
        try:
            return {pid for nursery in _children(self.process.pid) for pid in _children(nursery)}
        except psutil.NoSuchProcess:
            return set()


def _children(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children()]


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobBroker]:
    with JobBroker(tmp_path) as made:
        for name, value in made.places.items():
            monkeypatch.setenv(name, value)
        yield made
        worker_app.bus.close()
        assert made.crashes() == ""


def services(broker: JobBroker) -> dict[str, Any]:
    with AdminClient(broker.endpoints["admin.port"]) as admin:
        return {row["service"]: row for row in admin.ask("services")}


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def call(body: bytes, queue: str = "email") -> Any:
    """What a worker answers to a job message, sent by an eMQP client."""
    with Client(dialect="emqp", timeout_s=patient(20)) as client:
        return json.loads(client.call(queue, body))


def message(path: object, name: object, *args: object, **more: object) -> bytes:
    return json.dumps(["run", {"path": path, "callable": name, "args": args, "kwargs": {}, **more}]).encode()


# -- running ------------------------------------------------------------------------------------


def test_jobs_services_and_what_a_job_knows(broker: JobBroker) -> None:
    with closing(Worker(broker, "-c", "2")) as worker:
        assert worker.output[0].startswith("ready email slow shout processes=2 broker=tcp://")
        assert worker_app.add.delay(1, 2).get(timeout_s=patient(20)) == 3
        token, attempt, pid = worker_app.who.delay().get(timeout_s=patient(20))
        assert attempt == 1
        assert isinstance(token, str)
        assert pid in worker.children()
        with Client(timeout_s=patient(20)) as client:
            assert client.call("shout", b"hey") == b"HEY"
        assert worker.end(signal.SIGTERM) == 0
        until(lambda: not services(broker)["email"]["workers"])


def test_only_the_queues_that_were_chosen(broker: JobBroker) -> None:
    with closing(Worker(broker, "-Q", "slow:3", "-c", "1")):
        assert services(broker)["slow"]["workers"] == 1
        assert services(broker).get("email", {"workers": 0})["workers"] == 0


def test_progress_reaches_a_client_that_can_hear_it(broker: JobBroker) -> None:
    app = broker.folder / "stepper.py"
    app.write_text(
        "import polybus\nbus = polybus.Bus()\n"
        "@bus.job(queue='steps')\n"
        "def walk() -> str:\n"
        "    for step in range(3):\n        polybus.current_job().progress(step)\n    return 'there'\n"
    )
    with closing(Worker(broker, "-c", "1", app="stepper:bus")), Client(timeout_s=patient(20)) as client:
        assert list(client.stream("steps", message("stepper", "walk"))) == [b"0", b"1", b"2", b'"there"']


@pytest.mark.parametrize("dialect", ["mdr", "mdp2", "ebus"])
def test_other_dialects(broker: JobBroker, dialect: str) -> None:
    with closing(Worker(broker, "--dialect", dialect, "-c", "2")) as worker:
        until(lambda: broker.has_workers(*QUEUES))
        assert worker_app.add.delay(2, 3).get(timeout_s=patient(20)) == 5
        with pytest.raises(RequestFailed, match="is not a job"):
            call(message("os", "getcwd"))
        with Client(timeout_s=patient(20)) as client:
            assert client.call("shout", b"hey") == b"HEY"
        assert worker.end(signal.SIGTERM) == 0


# -- what goes wrong in a job -------------------------------------------------------------------


def test_a_crash_is_a_failed_attempt_and_the_next_one_works(broker: JobBroker) -> None:
    with closing(Worker(broker, "-c", "1")) as worker:
        path = broker.folder / "crashed"
        assert worker_app.crash_once.delay(str(path)).get(timeout_s=patient(20)) == 2
        worker.wait_for(worker.errors, "crashed: its process exited with status 9")
        assert worker_app.add.delay(1, 1).get(timeout_s=patient(20)) == 2


def test_a_loop_in_c_ends_at_its_limit(broker: JobBroker) -> None:
    with closing(Worker(broker, "-c", "1")):
        with pytest.raises(JobFailed) as caught:
            worker_app.spin.delay().get(timeout_s=patient(20))
        assert (caught.value.reason, caught.value.detail) == ("timeout", "ran longer than 1 s")
        assert worker_app.add.delay(1, 1).get(timeout_s=patient(20)) == 2


def test_a_running_job_is_cancelled(broker: JobBroker) -> None:
    begun, go = broker.folder / "begun", broker.folder / "go"
    with closing(Worker(broker, "-c", "1")) as worker:
        children = worker.children()
        handle = worker_app.hold.delay(str(begun), str(go))
        until(begun.exists)
        assert handle.cancel()
        with pytest.raises(JobCancelled):
            handle.get(timeout_s=patient(20))
        # It ended: the only process is free again, and still the same.
        assert worker_app.add.delay(1, 1).get(timeout_s=patient(20)) == 2
        assert worker.children() == children


# -- the allow list -----------------------------------------------------------------------------


def test_what_was_let_in_is_run_for_eventmq_clients(broker: JobBroker) -> None:
    with closing(Worker(broker, "-c", "1")):
        assert call(message("support.shop", "sell", "tea")) == "1 tea"
        assert call(message("support.shop:Till", "add", 5, class_args=[10], class_kwargs={})) == 15


def test_nothing_else_is(broker: JobBroker) -> None:
    path = broker.folder / "owned"
    hostile = [
        message("os", "system", f"touch {path}"),
        message("subprocess", "check_call", ["touch", str(path)]),
        message("support.shop", "run_program", ["touch", str(path)]),
        message("builtins", "exec", f"open({str(path)!r}, 'w')"),
        message("support.shop", "__init__"),
        message("support.shop", "_private"),
        message("support.shop:Till", "__class__"),
        message("../../etc/passwd", "x"),
        message(["os"], "system"),
        message("os" + "." * 10_000, "system"),
        b'["run", ' + b"[" * 20_000,
        b"\x80\x04cos\nsystem\n(S'touch owned'\ntR.",
        b"",
        b"\xff" * 1000,
        b"null",
    ]
    with closing(Worker(broker, "-c", "1")) as worker:
        children = worker.children()
        for body in hostile:
            with pytest.raises(RequestFailed) as caught:
                call(body)
            assert caught.value.code == "rejected", (body[:60], caught.value)
        assert not path.exists()
        assert not (broker.folder / "owned").exists()
        assert worker_app.add.delay(1, 1).get(timeout_s=patient(20)) == 2
        assert worker.children() == children


# -- stopping -----------------------------------------------------------------------------------


def test_sigterm_finishes_what_runs_and_gives_back_the_rest(broker: JobBroker) -> None:
    begun, go = broker.folder / "begun", broker.folder / "go"
    with closing(Worker(broker, "-c", "1")) as first:
        # Quick ones first, so that this worker asks for many at a time.
        for handle in [worker_app.add.delay(n, n) for n in range(50)]:
            handle.get(timeout_s=patient(20))
        running = worker_app.hold.delay(str(begun), str(go))
        until(begun.exists)
        waiting = [worker_app.who.delay() for _ in range(10)]
        first.process.send_signal(signal.SIGTERM)
        first.wait_for(first.errors, "stopping")
        with closing(Worker(broker, "-c", "1")):
            answers = [handle.get(timeout_s=patient(20)) for handle in waiting]
            # Given back at once, at the price of no attempt, while the first one still runs.
            assert {attempt for _, attempt, _ in answers} == {1}
            assert first.process.poll() is None
            go.touch()
            assert running.get(timeout_s=patient(20)) == "done"
            assert first.end() == 0
    assert lines(begun) == ["begun"]


def test_what_a_busy_worker_cannot_begin_goes_to_another(broker: JobBroker) -> None:
    begun, go = broker.folder / "begun", broker.folder / "go"
    with closing(Worker(broker, "-c", "1")):
        for handle in [worker_app.add.delay(n, n) for n in range(50)]:
            handle.get(timeout_s=patient(20))
        running = worker_app.hold.delay(str(begun), str(go))
        until(begun.exists)
        waiting = [worker_app.who.delay() for _ in range(10)]
        with closing(Worker(broker, "-c", "1")):
            assert {handle.get(timeout_s=patient(20))[1] for handle in waiting} == {1}
            go.touch()
            assert running.get(timeout_s=patient(20)) == "done"


def test_after_the_grace_the_rest_is_killed_and_run_elsewhere(broker: JobBroker) -> None:
    begun, go = broker.folder / "begun", broker.folder / "go"
    with closing(Worker(broker, "-c", "1", "--grace", "0.3")) as first:
        handle = worker_app.hold.delay(str(begun), str(go))
        until(begun.exists)
        assert first.end(signal.SIGTERM) == 0
        assert any("did not end in time" in line for line in first.errors)
    go.touch()
    with closing(Worker(broker, "-c", "1")):
        assert handle.get(timeout_s=patient(20)) == "done"
    assert lines(begun) == ["begun"] * 2


def test_a_second_signal_stops_at_once(broker: JobBroker) -> None:
    begun, go = broker.folder / "begun", broker.folder / "go"
    with closing(Worker(broker, "-c", "1")) as worker:
        worker_app.hold.delay(str(begun), str(go))
        until(begun.exists)
        children = worker.children()
        worker.process.send_signal(signal.SIGINT)
        worker.wait_for(worker.errors, "stopping")
        assert worker.end(signal.SIGTERM) == 130
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))


def test_nobody_is_left_behind_when_the_worker_is_killed(broker: JobBroker) -> None:
    with closing(Worker(broker, "-c", "2")) as worker:
        family = {*worker.children(), *_children(worker.process.pid)}
        assert len(family) == 3
        worker.end(signal.SIGKILL)
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family))


# -- replacing processes ------------------------------------------------------------------------


def test_sighup_replaces_all_processes(broker: JobBroker) -> None:
    with closing(Worker(broker, "-c", "2")) as worker:
        until(lambda: len(worker.children()) == 2)
        before = worker.children()
        worker.process.send_signal(signal.SIGHUP)
        until(lambda: len(worker.children()) == 2 and not worker.children() & before)
        assert worker_app.add.delay(1, 1).get(timeout_s=patient(20)) == 2


def test_a_killed_nursery_is_replaced_with_its_children(broker: JobBroker) -> None:
    with closing(Worker(broker, "-c", "2")) as worker:
        (nursery,) = _children(worker.process.pid)
        os.kill(nursery, signal.SIGKILL)
        worker.wait_for(worker.errors, "starting anew")
        assert worker_app.add.delay(1, 1).get(timeout_s=patient(20)) == 2
        assert worker.end(signal.SIGTERM) == 0


def test_nurseries_that_are_killed_at_once_end_the_worker(broker: JobBroker) -> None:
    with closing(Worker(broker, "-c", "2")) as worker:

        def kill_and_look() -> bool:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                for nursery in _children(worker.process.pid):
                    os.kill(nursery, signal.SIGKILL)
            return worker.process.poll() is not None

        until(kill_and_look)
        worker.wait_for(worker.errors, "does not stay alive")
        # The first one lived, and one more may have: three short lives are the limit.
        assert sum("starting anew" in line for line in worker.errors) >= 2
        assert worker.process.returncode == 1


def test_max_jobs_and_prefix(broker: JobBroker) -> None:
    with closing(Worker(broker, "-c", "1", "--max-jobs", "3", "--prefix")) as worker:
        for n in range(4):
            worker_app.say.delay(f"line {n}").get(timeout_s=patient(20))
        found = [worker.wait_for(worker.output, f"line {n}") for n in range(4)]
        assert found == ["[1] line 0", "[1] line 1", "[1] line 2", "[2] line 3"]


def test_watch_loads_the_application_again(broker: JobBroker) -> None:
    text = "import polybus\nbus = polybus.Bus()\n@bus.job(queue='w')\ndef f() -> int:\n    return {}\n"
    app = broker.folder / "watched.py"
    app.write_text(text.format(1))
    with closing(Worker(broker, "-c", "1", "--watch", app="watched:bus")) as worker:
        assert call(message("watched", "f"), "w") == 1
        app.write_text(text.format("1 +"))
        worker.wait_for(worker.errors, "watched.py changed")
        # A mistake does not stop the worker.
        worker.wait_for(worker.errors, "so the old ones go on")
        assert call(message("watched", "f"), "w") == 1
        app.write_text(text.format(22) + "\n@bus.job(queue='new')\ndef g() -> int:\n    return 3\n")
        until(lambda: call(message("watched", "f"), "w") == 22)
        until(lambda: broker.has_workers("w", "new"))
        assert call(message("watched", "g"), "new") == 3


# -- the broker goes away -----------------------------------------------------------------------


def test_a_killed_broker_stops_no_job(broker: JobBroker) -> None:
    begun, go = broker.folder / "begun", broker.folder / "go"
    with closing(Worker(broker, "-c", "1")) as worker:
        handle = worker_app.hold.delay(str(begun), str(go))
        until(begun.exists)
        broker.kill()
        worker.wait_for(worker.errors, "is away")
        broker.start()
        worker.wait_for(worker.errors, "is back")
        go.touch()
        assert handle.get(timeout_s=patient(20)) == "done"
        assert worker_app.add.delay(1, 1).get(timeout_s=patient(20)) == 2
    # It was the worker's all the time: nobody ran it again.
    assert lines(begun) == ["begun"]


def test_an_answer_that_was_ready_while_the_broker_was_away(broker: JobBroker) -> None:
    begun, go = broker.folder / "begun", broker.folder / "go"
    with closing(Worker(broker, "-c", "1")) as worker:
        handle = worker_app.hold.delay(str(begun), str(go))
        until(begun.exists)
        broker.kill()
        worker.wait_for(worker.errors, "is away")
        go.touch()
        broker.start()
        assert handle.get(timeout_s=patient(20)) == "done"
    assert lines(begun) == ["begun"]


def test_a_worker_may_be_there_before_its_broker(tmp_path: Path) -> None:
    with JobBroker(tmp_path) as broker:
        broker.kill()
        env = {**broker.places, "PYTHONPATH": str(TESTS)}
        with closing(Running("worker", APP, "-c", "1", cwd=tmp_path, env=env)) as worker:
            worker.wait_for(worker.errors, "looking for the broker")
            broker.start()
            worker.wait_for(worker.output, "ready ")
            assert worker.end(signal.SIGTERM) == 0


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_broker_that_is_frozen_for_a_while(broker: JobBroker) -> None:
    begun, go = broker.folder / "begun", broker.folder / "go"
    with closing(Worker(broker, "-c", "1")) as worker:
        handle = worker_app.hold.delay(str(begun), str(go))
        until(begun.exists)
        with broker.frozen():
            # Longer than the silence after which a worker looks for its broker anew.
            until(lambda: any("is away" in line for line in worker.errors), timeout_s=patient(60))
        worker.wait_for(worker.errors, "is back")
        go.touch()
        assert handle.get(timeout_s=patient(30)) == "done"
        assert worker_app.add.delay(1, 1).get(timeout_s=patient(20)) == 2
    assert lines(begun) == ["begun"]


# -- mistakes on the command line ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere:bus"], "there is no module nowhere in"),
        (["support.worker_app"], "it takes module:attribute"),
        (["support.worker_app:buss"], "did you mean support.worker_app:bus?"),
        (["support.worker_app:add"], "not a polybus.Bus"),
        ([APP, "-Q", "email:much"], "--queue takes a name, or name:weight"),
        ([APP, "-Q", "email", "-Q", "email:3"], "--queue names email twice"),
        ([APP, "--broker", "not an address"], "address is 'not an address'"),
        ([APP, "--data-dir", "nothing-here"], "no broker runs with the data directory"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(tmp_path: Path, arguments: list[str], words: str) -> None:
    done = polybus("worker", *arguments, cwd=tmp_path, env={"PYTHONPATH": str(TESTS)})
    assert done.returncode in (1, 2)
    text = done.stderr.decode()
    assert words in text
    assert "Traceback" not in text


def test_help_tells_the_options(tmp_path: Path) -> None:
    text = polybus("worker", "--help", cwd=tmp_path).stdout.decode()
    for option in ("--queue", "--time-limit", "--max-memory", "--watch", "--cancel-grace", "--prefix"):
        assert option in text


def test_importing_the_runtime_makes_no_context() -> None:
    """The nursery must be free of threads when it forks."""
    code = (
        "import polybus.runtime.child, zmq, threading; print(zmq.Context._instance, threading.active_count())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True
    )
    assert done.stdout.split() == ["None", "1"]
