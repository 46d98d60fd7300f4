"""`make pipeline-kills`: driver and Java killed in mid-stream, and not a row lost or counted twice.

    python tests/pipeline/kills.py [--kills 10] [--seed N] [--keep]

A journal grows while `polybus pipeline run` follows it.  Everything of the pipeline, Java included, gets
SIGKILL again and again, at moments that are told by what lies on the disk:

    begun      the batch is planned (Spark has written down what belongs to it), no table has it
    written    files of a large table are there that its history does not know
    half       some tables have the batch, others do not
    all        the batch is planned and some table has it: a moment later
    random     any time, also while Spark starts

After a kill it is looked whether the batch was still open.  In the end `build` takes in the rest, and
`rebuild` makes the tables from nothing elsewhere: both must be what a plain reading of the journal gives.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline.building import check, command, pipeline, rows_of
from pipeline.day import Day, Life, write_logs
from pipeline.expected import KEYS
from polybus.journal.archive import Archive
from polybus.journal.archiver import OPEN_LOGS
from support.commands import environment

MOMENTS: Final = ("begun", "written", "half", "all", "random")
# Events of the journal for each kill, and in how many portions they come.
EVENTS: Final = 2_000
PORTIONS: Final = 12
PORTION_S: Final = 0.4
# How long a moment is waited for; Spark needs some of it to start.
PATIENCE_S: Final = 240.0
RANDOM_S: Final = (0.5, 60.0)
LATER_S: Final = 0.05
LOOK_S: Final = 0.002


class Growing:
    """A journal that grows by a portion at a time."""

    def __init__(self, journal: Path, lives: list[Life], kills: int) -> None:
        self.journal = journal
        self._lives = lives
        self._done = [0] * len(lives)
        self._log = 1
        self._steps = kills * PORTIONS
        self._step = 0
        (journal / OPEN_LOGS).mkdir(parents=True)
        # Segments that were read are also compacted and let go, behind the back of the pipeline.
        self._archive = Archive(journal)

    def grow(self) -> None:
        """The next portion of each life, archived; nothing, if there is none left."""
        if self._step >= self._steps:
            return
        self._step += 1
        for number, life in enumerate(self._lives):
            end = len(life.rows) * self._step // self._steps
            first = self._done[number]
            self._log = write_logs(self.journal / OPEN_LOGS, life, first + 1, end + 1, self._log)
            self._done[number] = end
        assert self._archive.work()

    def grow_all(self) -> None:
        self._step = max(self._step, self._steps - 1)
        self.grow()


class Disk:
    """What the pipeline has on disk: plans and commits of Spark, and the histories of the tables."""

    def __init__(self, tables: Path) -> None:
        self._tables = tables

    def open_batch(self) -> int | None:
        """The batch that is planned and not committed."""
        planned = self._numbers("_checkpoint/offsets")
        return max(planned) if planned - self._numbers("_checkpoint/commits") else None

    def _numbers(self, name: str) -> set[int]:
        with contextlib.suppress(FileNotFoundError):
            return {int(entry) for entry in os.listdir(self._tables / name) if entry.isdigit()}
        return set()

    def versions(self) -> dict[str, int]:
        found = {}
        for name in KEYS:
            found[name] = -1
            with contextlib.suppress(FileNotFoundError):
                logs = os.listdir(self._tables / name / "_delta_log")
                found[name] = sum(entry.endswith(".json") and entry[:20].isdigit() for entry in logs)
        return found

    def folders(self, table: str) -> set[str]:
        """The folders of a large table in which batches lie."""
        with contextlib.suppress(FileNotFoundError):
            return {entry for entry in os.listdir(self._tables / table) if not entry.startswith("_")}
        return set()


class Killer:
    def __init__(self, growing: Growing, tables: Path, kills: int, seed: int) -> None:
        self._growing = growing
        self._tables = tables
        self._disk = Disk(tables)
        self._random = random.Random(seed)
        # Each moment is struck about as often as the others.
        self._moments = [MOMENTS[n % len(MOMENTS)] for n in range(kills)]
        self.kills = 0
        self.struck: Counter[str] = Counter()
        self.problems: list[str] = []

    def run(self) -> None:
        for moment in self._moments:
            began = time.monotonic()
            process = subprocess.Popen(
                command("run", self._growing.journal, self._tables),
                env=environment(),
                cwd=self._growing.journal.parent,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            try:
                hit = self._wait(process, moment, self._random.uniform(*RANDOM_S))
            finally:
                self._kill(process)
            if moment in ("begun", "written", "half") and self._disk.open_batch() is None:
                hit = ""
            self.kills += 1
            self.struck[f"{moment}{'' if hit else ' missed'}"] += 1
            print(
                f"kill {self.kills}: {moment}: {hit or 'missed'} after {time.monotonic() - began:.1f} s",
                flush=True,
            )

    def _wait(self, process: subprocess.Popen[bytes], moment: str, random_s: float) -> str:
        """Until the moment has come; what was seen then, nothing if it did not come."""
        until = time.monotonic() + (random_s if moment == "random" else PATIENCE_S)
        disk = self._disk
        grown_at = 0.0
        # What was there before the batch that is to be struck.
        batch = None
        before = disk.versions()
        folders = disk.folders("traces")
        # Left open by the kill before: its plan is none that this start made.
        left = disk.open_batch()
        while time.monotonic() < until:
            if process.poll() is not None:
                assert process.stderr is not None
                error = process.stderr.read().decode(errors="replace")[-3000:]
                self.problems.append(f"the pipeline ended by itself with {process.returncode}: {error}")
                return ""
            now = time.monotonic()
            open_batch = disk.open_batch()
            if open_batch is None:
                batch, before, folders = None, disk.versions(), disk.folders("traces")
                if now - grown_at > PORTION_S:
                    self._growing.grow()
                    grown_at = time.monotonic()
            elif moment != "random":
                batch = open_batch
                versions = disk.versions()
                have = [name for name in KEYS if versions[name] > before[name]]
                new = disk.folders("traces") - folders
                if moment == "begun" and not have and batch != left:
                    return f"batch {batch} is planned"
                if moment == "written" and new and "traces" not in have:
                    return f"batch {batch} has written {len(new)} folder of traces"
                if moment == "half" and 0 < len(have) < len(KEYS) - 1:
                    return f"batch {batch} is in {', '.join(have)}"
                if moment == "all" and have:
                    time.sleep(LATER_S * self._random.random() * 10)
                    return f"batch {batch} was in {', '.join(have)} a moment before"
            time.sleep(LOOK_S)
        return "at random" if moment == "random" else ""

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        """All of it at once: the group, and whoever left the group."""
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(process.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()
        psutil.wait_procs(family, 10)
        if process.stderr is not None:
            process.stderr.close()


def run(folder: Path, kills: int, seed: int) -> tuple[int, int, int]:
    """How many kills, rows and mismatches."""
    began = time.monotonic()
    lives = Day(EVENTS * kills, seed).lives()
    growing = Growing(folder / "journal", lives, kills)
    tables, again = folder / "tables", folder / "again"
    growing.grow()
    killer = Killer(growing, tables, kills, seed)
    killer.run()
    print(
        "struck: " + ", ".join(f"{count} × {what}" for what, count in sorted(killer.struck.items())),
        flush=True,
    )
    growing.grow_all()
    pipeline("build", growing.journal, tables)
    rows = rows_of(growing.journal)
    made = sum(len(life.rows) for life in lives)
    if len(rows) != made:
        killer.problems.append(f"{made} rows were made, the journal has {len(rows)}")
    count, wrong = check(rows, tables, "after the kills")
    pipeline("rebuild", growing.journal, again)
    _, wrong_again = check(rows, again, "from nothing")
    for problem in killer.problems:
        print(f"wrong: {problem}", flush=True)
    print(f"{len(rows)} rows of the journal, {time.monotonic() - began:.0f} s", flush=True)
    return killer.kills, count, wrong + wrong_again + len(killer.problems)


def main() -> int:
    parser = argparse.ArgumentParser(description="Driver and Java killed in mid-stream.")
    parser.add_argument("--kills", type=int, default=10, help="how many (10)")
    parser.add_argument("--seed", type=int, default=None, help="of the journal and of random moments")
    parser.add_argument("--keep", action="store_true", help="keep the folder in any case")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    # So that everything that was started is ended.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    print(f"seed {seed}, {options.kills} kills", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="polybus-pipeline-kills-"))
    keep = True
    try:
        kills, rows, mismatches = run(folder, options.kills, seed)
        keep = options.keep or bool(mismatches)
    finally:
        if keep:
            print(f"the folder of the run: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"pipeline-kills: kills={kills} tables=9 rows={rows} mismatches={mismatches}")
    return 1 if mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
