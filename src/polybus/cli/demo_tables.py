"""The second half of the demo: the journal of what just happened becomes tables, by way of Spark."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from polybus.client.admin import AdminClient
from polybus.errors import ConnectionLost, PolybusError

ARCHIVED_S: Final = 20.0
# Spark alone takes ten seconds to start, on a busy machine a minute.
BUILD_S: Final = 300.0
NO_SPARK: Final = (
    "no tables: Spark is not installed, which the data pipeline needs (pip install 'polybus[spark]'); "
    "the broker and its journal do without"
)
Progress = Callable[[str], None]


def missing() -> str:
    """Why there can be no tables; empty if there can."""
    return "" if importlib.util.find_spec("pyspark") and importlib.util.find_spec("deltalake") else NO_SPARK


def build(admin: AdminClient, data_dir: Path, progress: Progress) -> None:
    """Have everything archived that happened so far, and the tables made of it."""
    progress("waiting until the journal is archived")
    _wait_for_archive(admin)
    progress("starting Spark")
    _run_pipeline(data_dir, progress)


def show(console: Console, data_dir: Path) -> None:
    """Some of the tables, and the life of one request."""
    from polybus.cli.pipeline_show import print_table, print_tables
    from polybus.spark.tables import read_table

    place = str(data_dir / "tables")
    console.print()
    print_tables(place, False, console)
    for name, limit in (("service_metrics", 6), ("calls", 6), ("topics", 4)):
        console.print()
        print_table(place, name, limit, False, console)
    traces = read_table(place, "traces", ["token", "client_dialect", "worker_dialect"]).to_pylist()
    crossing = [row for row in traces if row["client_dialect"] != row["worker_dialect"]]
    if crossing:
        token = crossing[-1]["token"]
        console.print()
        console.print(Text(f"polybus trace {token}", "bold"))
        done = _polybus("trace", token, "--data-dir", str(data_dir))
        console.print(Text(done.stdout.decode(errors="replace").rstrip()))


def _wait_for_archive(admin: AdminClient) -> None:
    until = time.monotonic() + ARCHIVED_S
    wanted = int(admin.ask("status").get("journal_written", 0))
    while True:
        facts = admin.ask("status")
        if facts.get("journal_waiting_bytes", 1) == 0 and int(facts.get("archiver_rows", 0)) >= wanted > 0:
            return
        wanted = max(wanted, 1)
        if time.monotonic() > until:
            raise ConnectionLost(
                f"the journal was not archived within {ARCHIVED_S:g} s (journal: {facts.get('journal')}, "
                f"archiver: {facts.get('archiver')}); is this machine very busy? Try again"
            )
        time.sleep(0.05)


def _polybus(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "polybus", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )


def _run_pipeline(data_dir: Path, progress: Progress) -> None:
    """In a process of its own, as a user would: nothing of Java stays with us."""
    # A few hundred rows: Java's best compiler would take longer than all of them.
    quick = ("--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1")
    arguments = ("pipeline", "build", "--no-publish", "--data-dir", str(data_dir), *quick)
    child = subprocess.Popen(
        [sys.executable, "-m", "polybus", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        said = _lines(child, progress)
        if child.wait() != 0:
            raise PolybusError(f"the pipeline failed: {said or 'it said nothing'}")
    finally:
        # Java is the child's child; whoever interrupts us ends both.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _lines(child: subprocess.Popen[bytes], progress: Progress) -> str:
    """What the pipeline says, until it ends; its last line."""
    assert child.stderr is not None
    until = time.monotonic() + BUILD_S
    text = b""
    last = ""
    while select.select([child.stderr], [], [], max(0.0, until - time.monotonic()))[0]:
        more = os.read(child.stderr.fileno(), 65536)
        if not more:
            return last
        *whole, text = (text + more).split(b"\n")
        for line in whole:
            last = line.decode(errors="replace")
            progress(f"Spark: {last}")
    raise ConnectionLost(f"Spark did not finish within {BUILD_S:g} s; it said last: {last}")
