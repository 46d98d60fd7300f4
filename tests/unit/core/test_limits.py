"""The figures and words of the core that the documents name, and what a field means that is left out."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import msgspec
import pytest

from polybus.core import (
    actions,
    bridging,
    cron,
    desk,
    dispatching,
    durable,
    entries,
    envelope,
    events,
    flows,
    job_views,
    last_values,
    latency,
    leases,
    ledger,
    logs,
    lvc,
    model,
    monitor,
    passage,
    restoring,
    rows,
    schedules,
    scheduling,
    tables,
    topics,
)
from polybus.core.model import JobOptions, Limits, Reason
from support.defaults import check_defaults

MODULES = (
    *(actions, desk, durable, entries, envelope, events, flows, ledger, model, rows, schedules, scheduling),
    *(cron, job_views, last_values, leases, logs, lvc, monitor, topics),
)
KIB, MIB, GIB = 1024, 1024**2, 1024**3

FIGURES: dict[ModuleType, dict[str, object]] = {
    # Said to neighbours on the wire, and written into the journal.
    actions: {
        "UNKNOWN_WORKER": "unknown_worker",
        "HEARTBEAT_MISSED": "heartbeat_missed",
        "ELSEWHERE": "elsewhere: ",
    },
    # "Neighbours are told within 20 ms."
    bridging: {"GATHER_S": 0.02},
    cron: {"MAX_TEXT": 255},
    # A job that takes less than 0.1 s is never written down as started.
    dispatching: {"LINGER_S": 0.1},
    envelope: {"MAX_HEAD_BYTES": 16 * MIB},
    job_views: {"PREVIEW_BYTES": KIB, "PREVIEW_FRAMES": 16},
    # "About once a second and 5,000 topics at a time."
    last_values: {
        "COUNT": 100_000,
        "BYTES": 256 * MIB,
        "OVERHEAD_BYTES": 500,
        "NOTE_EVERY_S": 1.0,
        "NOTED_AT_ONCE": 5_000,
    },
    # "Of more than 1000 answers between two looks it takes one in 16."
    latency: {"ALL_OF": 1000, "ONE_IN": 16},
    # A node is late after one and a half of its beats, and gone after four. A connection is tried twice in
    # half a second. At most 1,024 nodes are asked at their own address at a time.
    leases: {"MISSED_BEATS": 4, "LATE": 1.5, "FASTEST_BEAT_S": 0.1, "NOTICE_S": 0.25, "LINES": 1024},
    ledger: {"HISTORY": 100, "REVIVED": "revived", "LEFT_OUT": "left_out", "GUARANTEED": "guaranteed"},
    logs: {
        "LEVELS": ("debug", "info", "warning", "error", "critical"),
        "COUNT": 100_000,
        "BYTES": 64 * MIB,
        "AGE_S": 24 * 3600.0,
        "WARNINGS_AGE_S": 7 * 24 * 3600.0,
        "OVERHEAD_BYTES": 400,
        "RECORD_BYTES": 16 * KIB,
        "MESSAGE_CHARS": 8 * KIB,
        "LOGGER_CHARS": 255,
        "LOG_TOPICS": b"log/",
        "UNKNOWN_NODE": "unknown",
        "BEHIND": 5_000,
    },
    monitor: {
        "TOPIC": b"polybus/monitor/",
        "SUMMARY": b"polybus/monitor/summary",
        "ABOUT_NODES": ("node_up", "node_late", "node_down", "node_denied"),
        "COUNTED": ("accepted", "replied", "failed", "rejected", "expired", "published"),
        "LISTED": 1000,
        "NAMED": 10,
        "LOOKED_THROUGH": 5_000,
    },
    # Late "by fewer than 16,384 others of its broker"; of as many topics as there are last values.
    passage: {"WINDOW": 16_384, "NEWEST": last_values.COUNT},
    schedules: {
        "PUNCTUAL_S": 5.0,
        "MIN_INTERVAL_S": 0.1,
        "MAX_INTERVAL_S": 2_147_483_647.0,
        "MAX_KEY": 200,
        "MAX_MESSAGE_BYTES": MIB,
        "MAX_SCHEDULES": 10_000,
        "RAN": "ran",
        "LATE": "late",
        "SKIPPED": "skipped",
        "MOVED": "moved",
        "POSTPONED": "postponed",
    },
    # What finds no room stays due and is tried again every second.
    scheduling: {"TRY_AGAIN_S": 1.0},
    # Deadlines of plain requests are looked at every 100 ms; the monitor's summary comes every second.
    tables: {"BUSY_TICK_S": 0.1, "IDLE_TICK_S": 1.0},
    topics: {"OTHER_TOPICS": b"(other)", "OWN_TOPICS": b"polybus/"},
}
MAGNITUDES: dict[ModuleType, dict[str, float]] = {
    bridging: {"RETELL_S": 0.05},
    logs: {"READ_BYTES": 128 * KIB},
    passage: {"ORIGINS": 256},
}

# The defaults of docs/reference/settings.md.
LIMITS = Limits(
    body_bytes=64 * MIB,
    held_bytes=2 * GIB,
    queue_length=250_000,
    outstanding_per_client=250_000,
    pending_bytes_per_client=256 * MIB,
    pending_bytes=GIB,
    services=10_000,
    attempts=5,
    request_ttl_s=300.0,
    replies_age_s=300.0,
    replies_bytes=64 * MIB,
    replies_count=100_000,
    nodes=100_000,
    subscriptions=100_000,
    topics_counted=10_000,
    schedules=10_000,
    idle_service_s=600.0,
    orphan_grace_s=15.0,
    timeout_grace_s=5.0,
    outcomes_count=100_000,
    outcomes_bytes=256 * MIB,
    waiters=100_000,
    group_size=10_000,
)
# Written down job by job: what is left out of them is never written.
PLAIN = JobOptions(
    reply_requested=True,
    guarantee=False,
    retries=0,
    timeout_s=0.0,
    other=(),
    backoff_s=None,
    then=(),
    group=b"",
)
MEANINGS: dict[str, object] = {
    "durable.GivenUp.durable": True,
    # A job is guaranteed, and its client gets a receipt, unless it says otherwise.
    "envelope.JobSpec.guarantee": True,
    "envelope.Submission.guarantee": True,
    "envelope.Submission.reply": "receipt",
    "envelope.Listed.guarantee": True,
    "envelope.Listed.reply": "receipt",
    "scheduling.Question.guarantee": True,
    "events.Submit.options": PLAIN,
    "events.CancelToken.why": "an operator withdrew it",
    "events.WorkerUp.credit": 1,
    "events.Failure.reason": Reason.FAILED,
    "events.Schedule.options": PLAIN,
    "events.Schedule.receipt": True,
    "ledger.ScheduleEntry.options": JobOptions(reply_requested=False),
    "ledger.ScheduleEntry.timezone": "UTC",
    "ledger.ScheduleEntry.missed": "late",
    **{f"model.Limits.{name}": getattr(LIMITS, name) for name in Limits.__struct_fields__},
    "model.JobOptions.reply_requested": True,
    "model.Retrying.backoff_s": 1.0,
    "model.Retrying.backoff_max_s": 300.0,
    "model.Retrying.jitter": 0.1,
    "model.Node.admitted": True,
}


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, figures in FIGURES.items() for name in figures]
)
def test_figures_and_words_are_what_the_documents_say(module: ModuleType, name: str) -> None:
    assert getattr(module, name) == FIGURES[module][name]


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, sizes in MAGNITUDES.items() for name in sizes]
)
def test_what_no_document_names_has_its_order_of_magnitude(module: ModuleType, name: str) -> None:
    about = MAGNITUDES[module][name]
    assert about / 2 <= getattr(module, name) <= about * 2


def test_a_field_that_is_left_out_says_nothing_unless_it_is_listed() -> None:
    check_defaults(MODULES, MEANINGS)


def test_a_plain_call_asks_for_a_reply_and_nothing_else() -> None:
    assert model.PLAIN_CALL == PLAIN


def test_the_word_of_a_reason_is_its_name() -> None:
    assert {reason.value for reason in Reason} == {reason.name.lower() for reason in Reason}
    assert all(reason == reason.name.lower() for reason in Reason)


YEAR_S = 365 * 24 * 3600


@pytest.mark.parametrize(
    ("setting", "allowed", "refused"),
    [
        ("queue_length", 1, 0),
        ("request_ttl_s", 0.001, 0.0),
        ("request_ttl_s", 1.0, -1.0),
        ("request_ttl_s", YEAR_S, YEAR_S + 0.5),
    ],
)
def test_the_least_and_the_most_of_a_limit(setting: str, allowed: Any, refused: Any) -> None:
    assert getattr(msgspec.convert({setting: allowed}, Limits), setting) == allowed
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({setting: refused}, Limits)


def test_the_owner_of_jobs_is_no_peer_and_has_its_name_on_disk() -> None:
    link, identity = tables.DESK
    assert link < 0, "links are numbered from 0"
    assert link != restoring.NO_LINK, "nor is it a peer of a link that is no longer there"
    assert identity == b"jobs"
