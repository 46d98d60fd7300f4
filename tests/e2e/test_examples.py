"""Every program in examples/ runs against a broker and prints what it promises; a new one needs expectations.

The one with two brokers is run by test_bridge.py, those that end in the tables of Spark by tests/spark.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from polybus.client.admin import AdminClient
from support.commands import Served, environment, polybus, wait_until
from support.patience import patient
from support.programs import ADMIN, Program, peer_places

FOLDER = Path(__file__).resolve().parents[2] / "examples"
RUN_S = patient(40.0)


class Example(NamedTuple):
    """Arguments of a run, what it prints, and what it needs: the greeting service, by its dialect, or
    workers for its own jobs, by a queue that they serve."""

    file: str
    arguments: tuple[str, ...] = ()
    prints: tuple[str, ...] = ()
    service: str = ""
    queue: str = ""
    status: int = 0


EXAMPLES = (
    Example("hello/client.py", (), ("hello world",), "mdr"),
    Example("hello/client.py", ("--dialect", "emqp", "Ada", "Grace"), ("hello Ada", "hello Grace"), "ebus"),
    Example("hello/client.py", ("",), ("refused: rejected, whom shall I greet?",), "mdp2", status=1),
    Example(
        "hello/client.py",
        # EBUS takes back what it gives up: nothing is left for the next example.
        ("--dialect", "ebus", "--timeout", "0.3"),
        ("hello gave no answer within 0.3 s; start examples/hello/service.py",),
        status=1,
    ),
    Example(
        "hello/client.py",
        ("--dialect", "http"),
        ("'http' is no dialect; known are mdr, mdp1, mdp2, ebus, emqp, dbp",),
        status=1,
    ),
    Example(
        "majordomo/streaming.py",
        (),
        ("mdr: 0, 1, 2, that was all", "mdp2: 0, 1, 2, that was all", "ebus: that was all"),
    ),
    Example("ebus/topics.py", (), ("ebus to emqp: weather.ebus sunny", "emqp to ebus: weather.emqp sunny")),
    Example("majordomo/client.py", (), ("mmi.service: 200", "hello from 2011"), "emqp"),
    Example(
        "majordomo/client.py",
        ("nothing",),
        ("mmi.service: 404", "nobody serves it; start examples/hello/service.py"),
    ),
    Example("emqp/client.py", (), ("receipt: REPLY for my job", "result: hello job for my job"), "mdp1"),
    Example(
        "dbp/node.py",
        (),
        ("registration: approved", "catalog: tells the temperature", "answer: 21.5 degrees in Rome"),
    ),
    Example(
        "majordomo/asynchronous.py",
        (),
        ("100 answers, the last one CALL 99", "at the same time", "a-b-c", "given up"),
    ),
    Example(
        "jobs/jobs.py",
        (),
        (
            "sent 'hello' to ada@example.org",
            "Invoice(number=7, due=datetime.date(2026, 3, 1))",
            "fetched example.org at attempt 2",
            "failed after 1 attempt: ValueError: no money for 100",
            *["sent 'invoice 7' to bob@example.org"] * 3,
            "waiting, then cancelled: True",
            "JobCancelled",
            "1000 on disk, the last one: sent 'news' to 999@example.org",
        ),
        queue="email",
    ),
    Example(
        "logs/logs.py",
        (),
        (
            "info: lab.probe: measuring ",
            "warning: lab.probe: 90 degrees {'sensor': 't1'}",
            "error: lab.probe: cannot save ",
            "  FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/results'",
            "warnings and worse: 2",
        ),
    ),
    Example(
        "jobs/flows.py",
        (),
        (
            "chain: 30",
            "group: [3, 2, 1]",
            "group and then: 6",
            "and so on: 600",
            *(f"progress: page {page} of 3" for page in (1, 2, 3)),
            "progress: converted",
            "scheduled: example removed: True",
            "asyncio: ['waited', 'waited', 'waited', 'waited', 'waited']",
        ),
        queue="default",
    ),
    Example("ebus/peers.py", (), ("asked: REPLY id-1 HELLO", "asked again: REPLY id-1 HELLO", "runs: 1")),
    Example("emqp/worker.py", (), ("job on reverse, headers reply-requested", "answer: stressed")),
    Example("majordomo/worker.py", (), ("asked in mdp1", "asked in ebus", "asked in dbp")),
    Example(
        "schedules/schedules.py",
        (),
        (
            "set: rome",
            *["ran: measured.rome, attempt 1"] * 3,
            "set: nightly 30 2 * * * Europe/Berlin",
            "removed: True and again: False",
        ),
        queue="default",
    ),
)
# Runs beside the others.
SERVICE = "hello/service.py"
# What another program imports, what test_bridge.py runs, and what tests/spark runs.
ELSEWHERE = {
    "ground_station/instrument.py",
    "bridge/two_networks.py",
    "ground_station/station.py",
    "ground_station/tables.py",
    "pipeline/queries.py",
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a program that is to find the broker."""
    served = Served(tmp_path_factory.mktemp("examples"))
    try:
        yield peer_places(served.endpoints)
        assert not any("Traceback" in line for line in served.errors), served.errors
    finally:
        served.close()


def test_every_example_has_an_expectation() -> None:
    files = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.py")}
    assert files == {SERVICE, *ELSEWHERE, *(example.file for example in EXAMPLES)}


def test_every_folder_says_what_is_in_it() -> None:
    folders = {
        path.parent for path in FOLDER.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }
    assert [str(folder) for folder in folders if not (folder / "README.md").exists()] == []
    for folder in folders - {FOLDER}:
        text = (folder / "README.md").read_text()
        assert [path.name for path in folder.glob("*.py") if path.name not in text] == []


@pytest.mark.parametrize(
    "example", EXAMPLES, ids=lambda example: " ".join((example.file, *example.arguments))
)
def test_example(example: Example, places: dict[str, str], tmp_path: Path) -> None:
    if example.queue:
        with working(example, places):
            assert run(example, places, tmp_path) == list(example.prints)
        return
    if not example.service:
        assert run(example, places, tmp_path) == list(example.prints)
        return
    requests = sum("hello" in line or "refused" in line for line in example.prints)
    arguments = ("--dialect", example.service, "--requests", str(requests))
    command = [sys.executable, str(FOLDER / SERVICE), *arguments]
    with Program(command, tmp_path, environment(places)) as service, AdminClient(places[ADMIN]) as admin:
        wait_until(lambda: any(row["service"] == "hello" and row["workers"] for row in admin.ask("services")))
        assert run(example, places, tmp_path) == list(example.prints)
        assert service.end() == 0
        assert service.lines[0] == "serving hello"
        assert service.lines[-1] == f"handled {requests}"


@contextmanager
def working(example: Example, places: dict[str, str]) -> Iterator[None]:
    """Workers for the jobs of an example, until they are done."""
    file = FOLDER / example.file
    command = [sys.executable, "-m", "polybus", "worker", f"{file.stem}:bus", "-c", "1"]
    with AdminClient(places[ADMIN]) as admin, Program(command, file.parent, environment(places)) as worker:
        worker.wait_for(lambda line: line.startswith("ready "))
        yield
        worker.ask_to_end()
        assert worker.end() == 0
        wait_until(lambda: not any(row["workers"] for row in admin.ask("services")))


def run(example: Example, places: dict[str, str], folder: Path) -> list[str]:
    """The lines that an example prints."""
    with Program(
        [sys.executable, str(FOLDER / example.file), *example.arguments], folder, environment(places)
    ) as program:
        assert program.end(RUN_S) == example.status, program.lines
        return program.lines


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here to ask")
def test_the_units_of_systemd_can_be_read(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("polybus")
    units = []
    for unit in (FOLDER / "systemd").glob("*.service"):
        units.append(str(tmp_path / unit.name))
        text = unit.read_text().replace("/opt/polybus/bin/polybus", str(program))
        # Whether there is such a user is a matter of the machine.
        Path(units[-1]).write_text(text.replace("User=polybus\n", ""))
    done = subprocess.run(
        ["systemd-analyze", "verify", *units], capture_output=True, text=True, timeout=RUN_S, check=False
    )
    mentioned = [line for line in (done.stdout + done.stderr).splitlines() if str(tmp_path) in line]
    assert (len(units), done.returncode, mentioned) == (2, 0, [])


@pytest.mark.parametrize("unit", sorted((FOLDER / "systemd").glob("*.service")), ids=lambda unit: unit.name)
def test_the_units_use_options_that_exist(unit: Path) -> None:
    (line,) = (line for line in unit.read_text().splitlines() if line.startswith("ExecStart="))
    _, command, *words = line.split()
    done = polybus(command, "--help", cwd=FOLDER)
    assert [word for word in words if word.startswith("--") and word not in done.stdout.decode()] == []
