"""Power cuts of the journal and of its archiver, in their short form; `make store-faults` is the long one."""

from __future__ import annotations

import random
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from polybus.journal import writer as writer_module
from polybus.journal.archiver import OPEN_LOGS, PLAN, Archiver
from polybus.journal.log import FINISHED, OPEN
from polybus.journal.record import Row, write_row
from polybus.journal.writer import JournalWriter
from store_faults.journal_cuts import cut_journal_everywhere, is_log
from store_faults.journal_disk import Disk, Recorder
from support.folders import quick_folder
from support.journals import NOON_US
from support.waiting import until

# Every sync on the way of a record from the broker to a compacted file.
SYNCS = {
    "a log": r"journal/open/\d+\.open",
    "the folder of the logs": r"journal/open",
    "the folder of the journal": r"journal",
    "a segment": r"journal/segments/.*\.parquet",
    "the folder of a segment": r"journal/segments/date=[^/]*/hour=[^/]*",
    "the folder of a day": r"journal/segments/date=[^/]*",
    "the folder of all segments": r"journal/segments",
    "the archiver's plan": r"journal/\.plan\.json",
    "the archiver's state": r"journal/\.archived\.json",
    "a compacted file": r"journal/compacted/.*\.parquet",
    "the folder of a compacted file": r"journal/compacted/date=[^/]*/hour=[^/]*",
    "the folder of a compacted day": r"journal/compacted/date=[^/]*",
    "the compactor's intent": r"journal/\.compaction\.json",
}


def test_a_power_cut_loses_no_record_that_was_written_and_doubles_none() -> None:
    with quick_folder() as folder:
        count = cut_journal_everywhere(folder, seed=1, steps=9)
    assert count.faults == []
    assert count.opened > 150
    assert count.ahead > 0
    assert count.torn > 0


def test_a_plan_names_logs_as_they_are_called_after_a_power_cut(tmp_path: Path) -> None:
    """The writer does not sync the last name of a log, so the archiver must, or it would archive it twice."""
    recorder, disk = Recorder(tmp_path), Disk()
    with recorder.active():
        writer = JournalWriter(tmp_path / "journal" / OPEN_LOGS, "tested", "life", {}, sync_s=0.0)
        writer.start()
        writer.append(1, write_row(Row("accepted", NOON_US)))
        writer.stop()
        assert Archiver(tmp_path / "journal").turn().rows == 1
    plans = 0
    for operation in recorder.operations:
        disk.do(operation)
        left = disk.after_a_cut("nothing", random.Random(1))
        plan = left.get(f"journal/{PLAN}")
        if plan is not None:
            plans += 1
            (name,) = msgspec.json.decode(plan)["logs"]
            assert f"journal/{OPEN_LOGS}/{name.replace(FINISHED, OPEN)}" not in left
    assert plans


@pytest.mark.parametrize("ignored", SYNCS.values(), ids=SYNCS.keys())
def test_the_cuts_would_find_a_journal_that_does_not_sync(ignored: str) -> None:
    with quick_folder() as folder:
        count = cut_journal_everywhere(
            folder,
            seed=1,
            steps=6,
            ignored=ignored,
            variants=("torn", "removals"),
            most_faults=1,
        )
    assert count.faults


def test_a_record_is_on_disk_at_most_20_ms_after_it_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer may wait that long for more records; what follows is the disk's own time."""
    recorder = Recorder(tmp_path)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        recorder.note("waited", round(seconds * 1000))

    clock = SimpleNamespace(sleep=sleep, monotonic=time.monotonic, time=time.time)
    monkeypatch.setattr(writer_module, "time", clock)
    with recorder.active():
        writer = JournalWriter(tmp_path / "journal" / OPEN_LOGS, "tested", "life", {}, roll_s=1e6)
        writer.start()
        for number in range(1, 6):
            recorder.note("appended", number)
            writer.append(1, write_row(Row("accepted", NOON_US + number)))
            until(lambda number=number: writer.state().written == number)
        writer.stop()
    waited, waiting_for = 0, None
    synced = 0
    for operation in recorder.operations:
        match operation.kind, operation.path:
            case "note", "appended":
                waiting_for, waited = operation.number, 0
            case "note", "waited":
                waited += operation.number
            case "sync", path if is_log(path) and waiting_for is not None:
                assert waited <= 20, f"record {waiting_for} waited {waited} ms"
                waiting_for = None
                synced += 1
    assert synced == 5
    assert waits
