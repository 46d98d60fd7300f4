"""`/metrics`: what the broker says about itself, as Prometheus wants to hear it.

Everything comes from two answers of the admin socket, `status` and `top`, through a collector that lives as
long as one scrape; there is no global registry.  Names follow the conventions: base units, `_total` for what
only grows.  A broker that is away is `polybus_up 0` and little else.

Labels are bounded.  So many services, those with the highest rates first, have series of their own, and
the others are summed up as service="other", and how many that are is a metric, too.  Whoever has a label
keeps it: series that came and went with the order of the day would be worthless, and sums would seem to fall.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from math import inf
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from polybus.web.ledger import BOUNDS_S, OTHER, Ledger

if TYPE_CHECKING:
    from polybus.web.live import Live

Answer = Mapping[str, Any]

# -- what there is: key of an answer → name, help. Those of services are in `Ledger`. ---------------

# `_total` is added to these.
COUNTERS: Final = {
    "dispatched": ("polybus_dispatches", "Times that a request was handed to a worker."),
    "retried": ("polybus_retries", "Attempts that failed and were followed by another."),
    "requeued": ("polybus_requeues", "Requests taken back from a lost or full worker and queued again."),
    "timeouts": ("polybus_attempt_timeouts", "Attempts that took longer than their time limit."),
    "dead": ("polybus_dead_letters", "Jobs that were given up and kept as dead letters."),
    "dead_letters_dropped": (
        "polybus_dead_letters_dropped",
        "Dead letters that were let go because there are too many.",
    ),
    "duplicates": ("polybus_duplicates", "Requests whose id was known already: they were not run again."),
    "replayed": (
        "polybus_replies_replayed",
        "Answers that were given once more, to a client that asked again.",
    ),
    "late": ("polybus_late_answers", "Answers that came when nobody waited for them any more."),
    "answers_lost": ("polybus_answers_lost", "Answers that could not be delivered to their client."),
    "invalid": ("polybus_invalid_messages", "Messages that could not be read."),
    "workers_lost": ("polybus_workers_lost", "Workers that fell silent or vanished."),
    "published": ("polybus_publications", "Messages published."),
    "publications_refused": ("polybus_publications_refused", "Publications that were not taken."),
    "publications_dropped": (
        "polybus_publications_missed",
        "Copies of publications that subscribers missed because they did not keep up.",
    ),
    "last_values_evicted": ("polybus_last_values_evicted", "Last values let go for want of room."),
    "logs_evicted": ("polybus_log_records_evicted", "Log records let go for want of room."),
    "journal_written": ("polybus_journal_records_written", "Records written to the journal."),
    "journal_lost": ("polybus_journal_records_lost", "Records that are missing in the journal."),
    "journal_bodies_dropped": (
        "polybus_journal_bodies_dropped",
        "Records of the journal whose bodies were left out because the disk was slower than the traffic.",
    ),
    "archiver_segments": ("polybus_archiver_segments", "Segments that the archiver has made."),
    "archiver_rows": ("polybus_archiver_rows", "Rows in the segments that the archiver has made."),
    "archiver_missing": ("polybus_archiver_rows_missing", "Records that the archiver found missing."),
    "archiver_restarts": ("polybus_archiver_restarts", "Times that the archiver was started again."),
    "beacons_sent": ("polybus_beacons_sent", "Beacons sent to nodes."),
    "internal_errors": ("polybus_internal_errors", "Exceptions in the broker that should not have been."),
    "spans_skipped": (
        "polybus_spans_skipped",
        "Requests without a span, because there were too many at once.",
    ),
}
GAUGES: Final = {
    "services": ("polybus_services", "Services that are known."),
    "silent_workers": (
        "polybus_workers_silent",
        "Workers that count as disconnected and may still answer what they have.",
    ),
    "clients": ("polybus_clients", "Clients that have requests, or whose answers are kept."),
    "nodes": ("polybus_nodes", "Nodes in the catalog."),
    "requests": ("polybus_requests_unanswered", "Requests that are accepted and have not ended."),
    "schedules": ("polybus_schedules", "Schedules that the broker keeps."),
    "held_bytes": ("polybus_held_bytes", "Bytes of bodies that unanswered requests hold."),
    "kept_replies": ("polybus_replies_kept", "Answers kept for clients that ask again."),
    "kept_replies_bytes": ("polybus_replies_kept_bytes", "Bytes of these answers."),
    "subscriptions": ("polybus_subscriptions", "Prefixes that are subscribed to."),
    "subscribers": ("polybus_subscribers", "Connected subscribers."),
    "subscribers_behind": ("polybus_subscribers_behind", "Subscribers that do not keep up at the moment."),
    "last_values": ("polybus_last_values", "Topics whose newest message is kept."),
    "last_values_bytes": ("polybus_last_values_bytes", "Bytes of these messages."),
    "logs": ("polybus_log_records", "Log records that are kept."),
    "journal_waiting_bytes": ("polybus_journal_waiting_bytes", "Bytes of records that wait to be written."),
    "archiver_behind_s": ("polybus_archiver_lag_seconds", "Age of the oldest log that is no segment yet."),
    "spans_open": ("polybus_spans_open", "Requests whose span has not ended."),
}
OUTCOMES: Final = ("replied", "failed", "expired", "cancelled")
# What a component says of itself if all is well; anything else is what is wrong with it.
HEALTH: Final = {
    "store": ("polybus_store_up", "Whether jobs can be written down.", "well"),
    "journal": ("polybus_journal_up", "Whether the journal is written; 0 also if it is turned off.", "on"),
}
PIPELINE: Final = {
    "lag_s": ("polybus_pipeline_lag_seconds", "How long the oldest segment waits that no table has yet."),
    "lag_segments": ("polybus_pipeline_lag_segments", "Segments that no table has yet."),
    "committed_at": (
        "polybus_pipeline_committed_timestamp_seconds",
        "When a table was last written, in seconds since 1970.",
    ),
}

_ledgers: Final[WeakKeyDictionary[Live, Ledger]] = WeakKeyDictionary()


def render(live: Live, pipeline: Answer | None = None) -> tuple[bytes, str]:
    """The text of `/metrics`, and its type. `pipeline` is what `/api/pipeline` says, if it was asked."""
    ledger = _ledgers.get(live)
    if ledger is None:
        ledger = _ledgers[live] = Ledger()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Scrape(live, ledger, pipeline))
    return generate_latest(registry), CONTENT_TYPE_LATEST


class _Scrape:
    """One look, as metric families."""

    def __init__(self, live: Live, ledger: Ledger, pipeline: Answer | None) -> None:
        self._live = live
        self._ledger = ledger
        self._pipeline = pipeline

    def collect(self) -> Iterator[Metric]:
        status, top = self._live.status(), self._live.top()
        is_up = status is not None and top is not None
        yield _gauge("polybus_up", "Whether the broker answers (1) or not (0).", float(is_up))
        yield _gauge("polybus_web_viewers", "Browsers that watch the dashboard.", self._live.viewers)
        if status is not None and top is not None:
            yield from _of_broker(status)
            yield from _of_peers(top)
            yield from self._of_services(top)
        if self._pipeline is not None and self._pipeline.get("tables"):
            yield from _of_pipeline(self._pipeline)

    def _of_services(self, top: Answer) -> Iterator[Metric]:
        ledger = self._ledger
        ledger.look(top)
        yield _gauge(
            "polybus_services_in_other",
            f'Services that are summed up as service="{OTHER}": {ledger.most} have labels of their own.',
            ledger.others,
        )
        for field, (name, text) in ledger.COUNTERS.items():
            yield _labelled(CounterMetricFamily(name, text, labels=["service"]), ledger.counted(field))
        for field, (name, text) in ledger.GAUGES.items():
            yield _labelled(GaugeMetricFamily(name, text, labels=["service"]), ledger.measured(field))
        times = HistogramMetricFamily(
            "polybus_request_duration_seconds",
            "From acceptance to the answer, as the broker counts it: times within a tenth, and of more than "
            "1000 answers between two looks one in 16, which stands for all.",
            labels=["service"],
        )
        for service, counts, total_s in ledger.times():
            buckets = [(_le(bound), count) for bound, count in zip((*BOUNDS_S, inf), counts, strict=True)]
            times.add_metric([service], buckets, total_s)
        yield times


def _of_broker(status: Answer) -> Iterator[Metric]:
    about = GaugeMetricFamily(
        "polybus_build_info",
        "Always 1; the labels say which broker this is.",
        labels=["version", "broker", "pump"],
    )
    about.add_metric([_version(), str(status.get("broker", "")), str(status.get("pump", ""))], 1)
    yield about
    if "up_s" in status:
        began = time.time() - float(status["up_s"])
        yield _gauge("polybus_start_time_seconds", "When the broker began, in seconds since 1970.", began)
    yield _gauge(
        "polybus_draining",
        "Whether the broker takes nothing new (1).",
        float(status.get("state") != "serving"),
    )
    for key, (name, text) in COUNTERS.items():
        if key in status:
            family = CounterMetricFamily(name, text)
            family.add_metric([], status[key])
            yield family
    for key, (name, text) in GAUGES.items():
        if key in status:
            yield _gauge(name, text, status[key])
    for key, (name, text, well) in HEALTH.items():
        if key in status:
            yield _gauge(name, text, float(status[key] == well))
    ended = CounterMetricFamily("polybus_requests_ended", "Requests by how they ended.", labels=["outcome"])
    yield _labelled(ended, ((outcome, status[outcome]) for outcome in OUTCOMES if outcome in status))
    refusals: dict[str, int] = dict(status.get("refusals", {}))
    refusals["other"] = refusals.get("other", 0) + int(status.get("rejected", 0)) - sum(refusals.values())
    refused = CounterMetricFamily(
        "polybus_requests_refused", "What was refused at the door, by reason.", labels=["reason"]
    )
    yield _labelled(refused, refusals.items())


def _of_peers(top: Answer) -> Iterator[Metric]:
    workers = GaugeMetricFamily("polybus_workers", "Connected workers by dialect.", labels=["dialect"])
    yield _labelled(workers, top.get("workers_by_dialect", {}).items())
    yield _gauge("polybus_workers_late", "Workers that owe a heartbeat.", top.get("workers_late", 0))
    yield _gauge("polybus_nodes_late", "Nodes that owe a heartbeat.", top.get("nodes_late", 0))


def _of_pipeline(pipeline: Answer) -> Iterator[Metric]:
    for key, (name, text) in PIPELINE.items():
        if pipeline.get(key) is not None:
            yield _gauge(name, text, pipeline[key])
    rows = GaugeMetricFamily("polybus_pipeline_table_rows", "Rows of a table.", labels=["table"])
    yield _labelled(rows, ((table["table"], table["rows"]) for table in pipeline["tables"]))


def _gauge(name: str, text: str, value: float) -> Metric:
    family = GaugeMetricFamily(name, text)
    family.add_metric([], value)
    return family


def _labelled(
    family: CounterMetricFamily | GaugeMetricFamily, values: Iterable[tuple[str, float]]
) -> CounterMetricFamily | GaugeMetricFamily:
    for label, value in values:
        family.add_metric([label], value)
    return family


def _le(bound: float) -> str:
    return "+Inf" if bound == inf else f"{bound:g}"


def _version() -> str:
    try:
        return version("polybus")
    except PackageNotFoundError:
        return "unknown"
