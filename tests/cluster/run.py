"""`make cluster-check`: the same journal, built by a Spark cluster and locally: the same tables.

    python tests/cluster/run.py [--quick] [--seed N] [--keep]

A journal of two brokers' day is made with known content.  A master and two workers are started from the pip
package; `polybus pipeline build` makes the tables on them, once as a command of ours and once given to
spark-submit, and a third time in local mode.  All nine tables are compared as sets of rows, with each other
and with a plain reading of the journal.  Both workers must have had a part in it.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import polybus.cli.submit
from cluster.standalone import Cluster, die_with_parent, spark_environment, spark_home
from pipeline.building import check, command, rows_of
from pipeline.day import Day, write_logs
from pipeline.expected import KEYS
from polybus.journal.archiver import OPEN_LOGS
from polybus.spark.tables import read_table
from support.commands import environment
from support.journals import archive

WORKERS: Final = 2
# A request is two or three rows.
EVENTS: Final = 50_000
QUICK_EVENTS: Final = 4_000
# A quiet machine takes half a minute for each build; one that is not is given time.
BUILD_S: Final = 900.0
ALL_S: Final = 2700
SMALL: Final = ("--conf", "spark.driver.memory=1g")
EXECUTORS: Final = ("--conf", "spark.executor.memory=768m")


class Check:
    def __init__(self, folder: Path, events: int, seed: int) -> None:
        self._folder = folder
        self._events = events
        self._seed = seed
        self._journal = folder / "journal"
        self._began = time.monotonic()
        self.rows = 0
        self.wrong = 0

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", flush=True)

    def run(self) -> None:
        self._make_journal()
        known = rows_of(self._journal)
        self.say(
            f"a journal of {len(known)} rows, {sum(1 for _ in self._journal.rglob('*.parquet'))} segments"
        )
        with Cluster(self._folder, WORKERS) as cluster:
            self.say(f"a master and {cluster.alive_workers()} workers at {cluster.url}")
            before = cluster.tasks()
            self._build("cluster", *self._pipeline("cluster", "--master", cluster.url, *SMALL, *EXECUTORS))
            before = self._share(cluster, before)
            self._build("submitted", *self._submit(cluster.url))
            self._share(cluster, before)
        self._build("local", *self._pipeline("local", *SMALL))
        self.rows, self.wrong = check(known, self._folder / "local", "local mode, and the journal")
        for name in ("cluster", "submitted"):
            self._compare(name, "local")

    def _make_journal(self) -> None:
        number = 1
        for life in Day(self._events, self._seed).lives():
            number = write_logs(self._journal / OPEN_LOGS, life, 1, len(life.rows) + 1, number)
        # Small segments, so that there is something to share.
        archive(self._journal, max(1000, self._events // 8))

    def _pipeline(self, tables: str, *more: str) -> list[str]:
        return command("build", self._journal, self._folder / tables, *more)

    def _submit(self, master: str) -> list[str]:
        """As people do it who have a cluster and their settings for it."""
        program = str(polybus.cli.submit.__file__)
        places = ("--journal", str(self._journal), "--tables", str(self._folder / "submitted"))
        options = ("--driver-memory", "1g", "--executor-memory", "768m", "--name", "submitted")
        quiet = ("--conf", "spark.log.level=ERROR")
        return [
            *(str(spark_home() / "bin" / "spark-submit"), "--master", master, *options, *quiet),
            *(program, "build", *places),
        ]

    def _build(self, title: str, *words: str) -> None:
        began = time.monotonic()
        scratch = {"SPARK_LOCAL_DIRS": str(self._folder / "scratch")}
        environ = environment((spark_environment() if title == "submitted" else {}) | scratch)
        work = self._folder / f"in-{title}"
        work.mkdir()
        done = subprocess.run(
            words,
            env=environ,
            cwd=work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BUILD_S,
            preexec_fn=die_with_parent(),
        )
        if done.returncode:
            raise RuntimeError(f"the build '{title}' ended with {done.returncode}:\n{done.stderr[-6000:]}")
        left = [path.name for path in work.iterdir()]
        if left:
            raise RuntimeError(f"the build '{title}' left {left} in the current folder")
        self.say(f"built: {title}, in {time.monotonic() - began:.1f} s")

    def _share(self, cluster: Cluster, before: list[int]) -> list[int]:
        """Whether all workers had work since then."""
        now = cluster.tasks()
        done = [after - earlier for after, earlier in zip(now, before, strict=True)]
        self.say(f"tasks of the workers: {', '.join(map(str, done))}")
        if not all(done):
            raise RuntimeError(f"a worker of the cluster had nothing to do: {done}\n{cluster.logs()}")
        return now

    def _compare(self, name: str, other: str) -> None:
        counts = []
        for table in KEYS:
            mine, theirs = self._rows(name, table), self._rows(other, table)
            wrong = (mine - theirs).total() + (theirs - mine).total()
            self.wrong += wrong
            counts.append(f"{table} {mine.total()}")
            for row in list((mine - theirs) + (theirs - mine))[:3]:
                print(f"  {table}: only in one of them: {row}", flush=True)
        self.say(f"{name} and {other}: {', '.join(counts)}; {self.wrong} wrong")

    def _rows(self, tables: str, name: str) -> Counter[str]:
        found = read_table(str(self._folder / tables), name)
        return Counter(repr(row) for row in found.to_pylist())


def _give_up(number: int, _: FrameType | None) -> NoReturn:
    # As an exception, so that everything that was started is ended.
    raise SystemExit(f"cluster-check: stopped by {signal.Signals(number).name}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smaller journal")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep the folder with journal, tables and logs")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, _give_up)
    signal.alarm(ALL_S)
    folder = Path(tempfile.mkdtemp(prefix="polybus-cluster-"))
    check = Check(folder, QUICK_EVENTS if options.quick else EVENTS, options.seed)
    try:
        check.run()
    except KeyboardInterrupt:
        print("cluster-check: stopped", file=sys.stderr)
        return 130
    finally:
        if options.keep:
            print(f"kept: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"cluster-check: workers={WORKERS} tables={len(KEYS)} rows={check.rows} mismatches={check.wrong}")
    return 1 if check.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
