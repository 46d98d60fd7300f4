"""`polybus up`: everything comes up, what dies comes back, and at the end nothing is left."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from polybus.cli.find import endpoints_in
from polybus.client.admin import AdminClient
from polybus.config import any_free_ports, variable
from support.commands import Running, closing, environment, polybus
from support.patience import patient
from support.ports import steady_ports
from support.programs import peer_places
from support.waiting import until

APP = """\
import os
import time

from polybus import Bus

bus = Bus()


@bus.job(queue="slow", retries=3, timeout_s=60)
def slow(path: str) -> str:
    with open(path, "a") as file:
        file.write("begun\\n")
    while not os.path.exists(path + ".go"):
        time.sleep(0.02)
    return "survived"
"""


def parts(running: Running) -> dict[str, psutil.Process]:
    """The children by the command that they run."""
    return {
        child.cmdline()[3]: child
        for child in psutil.Process(running.process.pid).children()
        if len(child.cmdline()) > 3
    }


def everything_below(running: Running) -> list[psutil.Process]:
    return psutil.Process(running.process.pid).children(recursive=True)


def lives(process: psutil.Process) -> bool:
    # It may be gone between the two questions.
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def all_gone(processes: list[psutil.Process]) -> bool:
    return not any(map(lives, processes))


def started(folder: Path, *arguments: str, app: str = "") -> Running:
    words = [app] if app else []
    return Running("up", *words, "--any-port", "--data-dir", "data", *arguments, cwd=folder)


def test_a_job_survives_the_broker_and_everything_ends_in_order(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    with closing(started(tmp_path, "--no-pipeline", "--workers", "1", app="shop:bus")) as running:
        running.wait_for(running.output, "ready after")
        address = running.wait_for(running.output, "Dashboard: ").split()[1]
        with urlopen(address.partition("?")[0] + "healthz", timeout=patient(10)) as answer:
            assert answer.status == 200
        endpoints = endpoints_in(tmp_path / "data")
        note = tmp_path / "note"
        sent = subprocess.run(
            [sys.executable, "-c", f"import shop; print(shop.slow.delay({str(note)!r}).id)"],
            cwd=tmp_path,
            env=environment(peer_places(endpoints)),
            capture_output=True,
            check=False,
        )
        assert sent.returncode == 0, sent
        until(note.exists)
        before = parts(running)
        before["serve"].kill()
        running.wait_for(running.output, "killed by signal 9; started again in 0.25 s")
        running.wait_for(running.output, "up again after")
        assert endpoints_in(tmp_path / "data") == endpoints
        assert parts(running)["worker"] == before["worker"]
        Path(f"{note}.go").touch()
        with AdminClient(endpoints["admin.port"]) as admin:
            job = sent.stdout.decode().strip()
            until(lambda: admin.ask("job", job=job)["state"] == "done")
        left = everything_below(running)
        assert running.end(signal.SIGTERM) == 0
        until(lambda: all_gone(left))
        ended = [line.split()[1] for line in running.output if line.endswith("   stopped")]
        assert ended == ["dashboard", "workers", "broker"]
        assert not any("Traceback" in line for line in (*running.output, *running.errors))
        names = {path.name for path in (tmp_path / "data" / "logs").iterdir()}
        assert names == {"broker.log", "workers.log", "dashboard.log"}


@pytest.mark.long
def test_nothing_survives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    with closing(started(tmp_path, "--no-pipeline", "--no-dashboard", "--workers", "1")) as running:
        running.wait_for(running.output, "ready after")
        called = polybus("call", "hello", "you", "--data-dir", "data", cwd=tmp_path)
        assert called.stdout == b"hello you\n"
        left = everything_below(running)
        assert len(left) >= 2
        assert running.end(signal.SIGKILL) == -signal.SIGKILL
        until(lambda: all_gone(left))


def test_a_port_that_is_taken_is_named_with_what_to_do(tmp_path: Path) -> None:
    port = steady_ports(["ebus.frontend"])["ebus.frontend"]
    free = {name: value for name, value in any_free_ports().items() if name != "ebus.frontend"}
    env = {variable(name): str(value) for name, value in {**free, "ebus.frontend": port}.items()}
    with socket.create_server(("127.0.0.1", port)):
        done = polybus(
            *("up", "--data-dir", "data", "--no-pipeline", "--no-dashboard"), cwd=tmp_path, env=env
        )
    assert done.returncode == 1
    assert f"127.0.0.1:{port} is in use" in done.stderr.decode()
    assert "polybus up --any-port" in done.stderr.decode()


def test_an_application_that_is_not_there_is_told_before_anything_starts(tmp_path: Path) -> None:
    done = polybus(
        "up",
        "nowhere:bus",
        "--any-port",
        "--data-dir",
        "data",
        "--no-pipeline",
        "--no-dashboard",
        cwd=tmp_path,
    )
    assert done.returncode == 1
    (sentence,) = done.stderr.decode().splitlines()
    assert sentence.startswith("polybus: nothing was started: there is no module nowhere in ")
    assert sentence.endswith("start this in the directory that holds it, or set PYTHONPATH.")
    assert done.stdout == b""
    assert not (tmp_path / "data").exists()


def test_whoever_ends_it_while_it_looks_at_an_application_ends_the_look_as_well(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text("import time\nopen('begun', 'w').close()\ntime.sleep(600)\n")
    with closing(started(tmp_path, "--no-pipeline", "--no-dashboard", app="stuck:bus")) as running:
        until((tmp_path / "begun").exists)
        below = everything_below(running)
        assert below
        assert running.end(signal.SIGTERM) == 128 + signal.SIGTERM
        until(lambda: all_gone(below))
