"""What is on disk and in the documents: numbers of the log's format, names of files, limits, defaults."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest

from polybus.journal import (
    archive,
    archiver,
    batches,
    compaction,
    fates,
    lock,
    log,
    numbering,
    pace,
    progress,
    reader,
    record,
    replay,
    retention,
    segment,
    trace,
    verify,
    writer,
)
from support.defaults import check_defaults

MODULES = (
    *(archive, archiver, compaction, fates, lock, log, numbering, pace, progress, reader, record, replay),
    *(retention, trace, verify, writer),
)
MIB = 1024 * 1024
DAY_S = 24 * 3600.0

FIGURES: dict[ModuleType, dict[str, object]] = {
    archiver: {
        "SEGMENTS": "segments",
        "OPEN_LOGS": "open",
        "HOUR_US": 3600 * 1_000_000,
        "SEGMENT_ROWS": 100_000,
    },
    compaction: {"INTENT": "compaction.json"},
    lock: {"LOCK": "archiver.lock"},
    log: {
        "MAGIC": b"PBJRNL1\n",
        "BATCH_MAGIC": b"PBJB",
        "MAX_HEAD_BYTES": 64 * 1024,
        "MAX_BATCH_BYTES": 256 * MIB,
        "PLAN": "plan.json",
        "STATE": "archived.json",
        "OPEN": ".open",
        "FINISHED": ".log",
        "DAMAGED": ".damaged",
    },
    # "It waits, up to ten seconds or 512 MiB." Niceness 19 is the lowest priority that Linux has.
    pace: {"MUCH_BYTES": 512 * MIB, "PATIENCE_S": 10.0, "NICENESS": 19, "TIMES": Path("/proc/stat")},
    progress: {"PROGRESS": "archiver.json"},
    reader: {"COMPACTED": "compacted", "FOLDER": "journal"},
    record: {
        "FLAG_BODY": 1,
        "FLAG_DISPATCHED": 2,
        "NO_LINK": 65_535,
        "SHORT_MAX": 65_535,
        "DETAIL_MAX": 65_536,
        "TERMINAL": {"replied", "failed", "expired", "cancelled"},
        # A record has the number of its dialect: a new one gets the next number.
        "DIALECTS": ("", "ebus", "emqp", "mdp1", "mdp2", "mdr", "dbp", "bridge", "broker", "none"),
    },
    replay: {"RESULTS": ("same", "different", "failed", "not comparable")},
    # "Readers and pins that were not written for a week no longer count."
    retention: {
        "COMPACTED": "compacted",
        "READERS": "readers",
        "RETAINED": "retained.json",
        "STALE_S": 7 * DAY_S,
        "DAY_S": DAY_S,
    },
    # In the metadata of files that are there already.
    segment: {"SECTIONS": b"polybus.sections"},
    # How far back a clock may be set without rows of a request getting out of its trace.
    trace: {"DESK": "jobs", "BRIDGE": "bridge", "SLACK": timedelta(hours=1)},
    # The requests of one kind that a report of `verify` names.
    verify: {"NAMED": 1000},
    # A log is finished every second, or once a minute if the broker has no archiver, or with 32 MiB. A disk
    # that failed is tried again every second. What happened is on disk about 20 ms later.
    writer: {
        "SYNC_S": 0.02,
        "ROLL_S": 1.0,
        "SLOW_ROLL_S": 60.0,
        "WAITING_BYTES": 256 * MIB,
        "ROLL_BYTES": 32 * MIB,
        "RETRY_S": 1.0,
    },
}
MAGNITUDES: dict[ModuleType, dict[str, float]] = {
    archive: {"LOOK_ALONE_S": 0.5, "LOCK_S": 0.1},
    archiver: {"SEGMENT_BYTES": 256 * MIB},
    batches: {"JOINED_BYTES": 4 * MIB},
    compaction: {"SMALL_BYTES": 2 * MIB, "FILE_BYTES": 32 * MIB},
    pace: {"LITTLE_BYTES": 2 * MIB, "LOOK_S": 0.5, "IDLE": 0.8},
}
# The settings `journal.keep_days`, `journal.keep_bytes` and `journal.compact_after_s` among them.
MEANINGS: dict[str, object] = {
    "archive.Keep.days": 7.0,
    "archive.Keep.bytes": 10 * 1024 * MIB,
    "archive.Keep.compact_after_s": 300.0,
    "fates.World.now": datetime.max.replace(tzinfo=UTC),
    "log.LogHead.version": 1,
    "record.Row.client_link": 65_535,
    "record.Row.worker_link": 65_535,
}

# A record has the number of its kind: a new kind gets the next number.
WHATS = [
    "none",
    "accepted",
    "dispatched",
    "partial",
    "replied",
    "failed",
    "expired",
    "cancelled",
    "rejected",
    "retried",
    "requeued",
    "claimed",
    "late",
    "answer_lost",
    "duplicate",
    "dead",
    "worker_up",
    "worker_down",
    "scheduler_up",
    "heartbeat_missed",
    "node_up",
    "node_late",
    "node_down",
    "node_asked",
    "registered",
    "updated",
    "denied",
    "bridge_up",
    "bridge_down",
    "published",
    "subscribed",
    "refused",
    "dropped",
    "log",
    "scheduled",
    "unscheduled",
    "schedule_odd",
    "started",
    "stopped",
    "beat",
    "invalid",
    "store_sick",
    "store_well",
    "hole",
    "other",
    "offered",
    "records_lost",
    "bodies_dropped",
]


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, figures in FIGURES.items() for name in figures]
)
def test_names_and_figures_are_what_the_documents_say(module: ModuleType, name: str) -> None:
    assert getattr(module, name) == FIGURES[module][name]


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, sizes in MAGNITUDES.items() for name in sizes]
)
def test_what_no_document_names_has_its_order_of_magnitude(module: ModuleType, name: str) -> None:
    about = MAGNITUDES[module][name]
    assert about / 2 <= getattr(module, name) <= about * 2


def test_a_field_that_is_left_out_says_nothing_unless_it_is_listed() -> None:
    check_defaults(MODULES, MEANINGS)


def test_the_kinds_of_records_keep_their_numbers() -> None:
    assert list(record.WHATS) == WHATS
    assert {name: WHATS.index(name) for name in WHATS} == record.WHAT_NUMBERS
    assert {name: record.DIALECTS.index(name) for name in record.DIALECTS} == record.DIALECT_NUMBERS
