"""`make pipeline-check`: a day of traffic with known counts, and every table of it, row for row.

    python tests/pipeline/run.py [--quick] [--seed N] [--keep]

A broker, with workers and clients of all dialects, has a busy day: successes, failures, retries, timeouts,
expiries, cancellations, dead letters, publications, log records, a schedule, a worker that is killed, one
that flaps, a restart on request and one by SIGKILL.  What the clients saw must be what the journal says.
Beside it lies a day that never was (`day.py`), which is 24 hours long.

Then `polybus pipeline build` makes the tables, once in the middle of the day and once at its end, and a third
time with nothing to do.  (With --quick the first two are made in this process, with one Java.)  Every table
is held against a plain reading of the same journal (`expected.py`).
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline.building import Here, archive_all, check, pipeline, place_of, rows_of, versions
from pipeline.day import Day, Life, plain_rows, write_logs
from pipeline.expected import Rows
from pipeline.traffic import SETTINGS, Broker, Traffic
from polybus.journal.archiver import OPEN_LOGS
from polybus.journal.log import last_number

# What of it is there when the tables are built for the first time.
MORNING: Final = 0.6


class Check:
    def __init__(self, folder: Path, is_quick: bool, seed: int) -> None:
        self.folder = folder
        self.tables = folder / "tables"
        self.problems: list[str] = []
        self.rows = 0
        self.wrong = 0
        self._began = time.monotonic()
        self._scale = 20 if is_quick else 150
        self._lives: list[Life] = Day(4_000 if is_quick else 30_000, seed).lives()
        self._here = Here() if is_quick else None
        self._log_rows = 500 if is_quick else 5_000

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", flush=True)

    def run(self) -> None:
        with Broker(self.folder, SETTINGS) as broker:
            traffic = Traffic(broker, self._scale)
            try:
                self._day(broker, traffic)
            finally:
                traffic.close()
            if crashes := broker.crashes():
                self.problems.append(f"the broker raised:\n{crashes}")
        self._check(broker, traffic)

    def _day(self, broker: Broker, traffic: Traffic) -> None:
        traffic.open()
        traffic.morning()
        self.say(f"the morning: {traffic.tally.requests} requests")
        broker.stop()
        self._write_day(broker, 0.0, MORNING)
        archive_all(broker.folder / "data")
        took = self._build(broker.journal)
        self.say(f"the first build took {took:.1f} s")
        # The tables must be right at any time, not only in the end.
        self._compare(rows_of(broker.journal), "at noon")
        broker.start()
        traffic.wait_for_workers()
        traffic.evening()
        jobs = traffic.leave_jobs(5)
        traffic.rest()
        broker.kill()
        broker.start()
        traffic.wait_for_workers()
        traffic.fetch_jobs(jobs)
        traffic.call_all(3, 1, "night")
        traffic.rest()
        self.say(f"the evening: {traffic.tally.requests} requests in all")
        broker.stop()

    def _build(self, journal: Path) -> float:
        return (
            pipeline("build", journal, self.tables)
            if self._here is None
            else self._here.build(journal, self.tables)
        )

    def _write_day(self, broker: Broker, begin: float, end: float) -> None:
        """A part of each life of the day that never was; only while no broker numbers its logs."""
        folder = broker.journal / OPEN_LOGS
        number = last_number(folder) + 1
        for life in self._lives:
            first, until = (1 + int(len(life.rows) * share) for share in (begin, end))
            number = write_logs(folder, life, first, until, number, self._log_rows)

    def _check(self, broker: Broker, traffic: Traffic) -> None:
        self._write_day(broker, MORNING, 1.0)
        archive_all(broker.folder / "data")
        rows = rows_of(broker.journal)
        whats = Counter(row["what"] for row in rows)
        self.say(
            f"the journal: {len(rows)} rows, " + ", ".join(f"{n} {what}" for what, n in sorted(whats.items()))
        )
        live = [row for row in rows if row["broker"] == "live"]
        self.problems += traffic.tally.problems(live)
        self.problems += self._not_as_made([row for row in rows if row["broker"] != "live"])
        took = self._build(broker.journal)
        self.say(f"the second build took {took:.1f} s")
        if self._here is not None:
            self._here.close()
        before = versions(self.tables)
        took = pipeline("build", broker.journal, self.tables)
        self.say(f"a build with nothing to do took {took:.1f} s")
        if versions(self.tables) != before:
            self.problems.append(
                f"a build with nothing to do changed tables: {before} {versions(self.tables)}"
            )
        self.rows = self._compare(rows, "at night")

    def _not_as_made(self, found: Rows) -> list[str]:
        """Whether the journal holds what we made, and nothing else."""
        made = {place_of(row): row for row in plain_rows(self._lives)}
        problems = [
            f"in the journal, but not as it was made: {r}" for r in found if made.get(place_of(r)) != r
        ]
        if len(found) != len(made):
            problems.append(f"{len(made)} rows were made, the journal has {len(found)}")
        return problems

    def _compare(self, rows: Rows, title: str) -> int:
        count, wrong = check(rows, self.tables, title)
        self.wrong += wrong
        return count


def main() -> int:
    parser = argparse.ArgumentParser(description="A day of traffic, and every table of it, row for row.")
    parser.add_argument("--quick", action="store_true", help="less traffic, for CI")
    parser.add_argument("--seed", type=int, default=1, help="of the day that never was (1)")
    parser.add_argument("--keep", action="store_true", help="keep the folder in any case")
    options = parser.parse_args()
    # So that everything that was started is ended.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    folder = Path(tempfile.mkdtemp(prefix="polybus-pipeline-"))
    check = Check(folder, options.quick, options.seed)
    keep = True
    try:
        check.run()
        keep = options.keep or bool(check.wrong or check.problems)
    finally:
        if keep:
            print(f"the folder of the run: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    for problem in check.problems[:20]:
        print(f"wrong: {problem[:2000]}")
    mismatches = check.wrong + len(check.problems)
    print(f"pipeline-check: tables=9 rows={check.rows} mismatches={mismatches}")
    return 1 if mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
