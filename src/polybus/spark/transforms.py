"""What becomes of the journal's rows: a function for each table.

Most take the rows of a batch as a DataFrame, and give one.  Two tables would cost more than all others
together that way, because they have to do with each request: they take the names of segments, and executors
make their rows in columns (`columns`, `histograms`).

Where rows sum up many events, those of two batches can be added, and give the same as one batch would have
given: for most tables the store does that (`Table.merged`); `service_metrics` has histograms, which are added
by executors (`histograms`).  Nothing depends on the order of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from polybus.spark import columns, files, histograms
from polybus.spark.schema import TABLES, TOPICS_WINDOW_S

# What executors run in Python: they need not have polybus.
for module in (columns, files, histograms):
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]

TERMINAL: Final = histograms.TERMINAL
# Identities that ZeroMQ or our own client library makes up for who has none: with each connection others.
MADE_UP: Final = "^(00[0-9a-f]{8}|pb-[0-9a-f]{16})$"
UNNAMED: Final = "(unnamed)"
MICRO: Final = 1_000_000


def ordered(frame: DataFrame, name: str) -> DataFrame:
    """The columns of a table in its own order."""
    return frame.select(*TABLES[name].schema.names)


def date_of(stamp: Column) -> Column:
    # Sessions are in UTC. (A format would be ten times slower.)
    return stamp.cast("date").cast("string")


def window_of(stamp: Column, seconds: int) -> Column:
    """When the window began, counted from 1970."""
    width = seconds * MICRO
    micros = F.unix_micros(stamp)
    return F.timestamp_micros(micros - F.pmod(micros, F.lit(width)))


def between(begin: Column, end: Column) -> Column:
    """Microseconds from one to the other; a clock that was set back does not make them negative."""
    return F.greatest(F.unix_micros(end) - F.unix_micros(begin), F.lit(0).cast("long"))


# -- requests ---------------------------------------------------------------------------------


def served() -> Column:
    return F.when(F.col("dispatched_at").isNotNull(), between(F.col("dispatched_at"), F.col("at")))


def is_terminal() -> Column:
    return F.col("what").isin(*TERMINAL)


def traces(batches: columns.Batches) -> columns.Batches:
    """One row for each request that reached its end, of segments whose names come in."""
    return columns.of_segments(TERMINAL, columns.TRACE_COLUMNS, columns.traces_of, batches)


def service_metrics(segments: DataFrame, old: pa.Table) -> DataFrame:
    """Rates, errors and percentiles of each service in each window; `old` are rows that are there.

    Histograms are bytes here (`histograms.unpacked`)."""

    def parts_of(batches: columns.Batches) -> columns.Batches:
        kinds = (*TERMINAL, histograms.DOWN)
        rows = columns.of_segments(kinds, histograms.NEEDED, lambda table: table, batches)
        return histograms.parts_of_batches(rows)

    parts = segments.mapInArrow(parts_of, _metrics_types(histograms.PART))
    if old.num_rows:
        parts = parts.unionByName(
            segments.sparkSession.createDataFrame(histograms.packed(old.select(histograms.PART)))
        )
    whole = parts.repartition(*histograms.KEYS)
    rows = whole.mapInArrow(histograms.whole_of_batches, _metrics_types(histograms.FINISHED))
    return ordered(rows, "service_metrics")


def _metrics_types(names: Sequence[str]) -> StructType:
    known = TABLES["service_metrics"].schema
    types = ((name, pa.binary() if name.endswith("_buckets") else known.field(name).type) for name in names)
    return from_arrow_schema(pa.schema(types))


def calls(events: DataFrame) -> DataFrame:
    """Who called whom, and how that went."""
    # First by what is in the rows, because names and dates cost time; there are few rows then.
    edges = (
        events.where(is_terminal() & F.col("service").isNotNull())
        .groupBy("broker", F.col("at").cast("date").alias("day"), "client", "client_dialect", "service")
        .agg(
            F.count("*").alias("requests"),
            F.count_if(F.col("what").isin("failed", "expired")).alias("errors"),
            F.sum(F.coalesce(served(), F.lit(0))).alias("service_us"),
            F.sum(F.coalesce("size", F.lit(0))).alias("bytes_in"),
            F.sum(F.coalesce("body_size", F.lit(0))).alias("bytes_out"),
            F.min("at").alias("first_at"),
            F.max("at").alias("last_at"),
        )
    )
    named = F.when(F.col("client").rlike(MADE_UP), UNNAMED).otherwise(F.col("client"))
    joined = edges.groupBy(
        "broker",
        F.col("day").cast("string").alias("date"),
        named.alias("client"),
        "client_dialect",
        "service",
    ).agg(
        *(F.sum(name).alias(name) for name in ("requests", "errors", "service_us", "bytes_in", "bytes_out")),
        F.min("first_at").alias("first_at"),
        F.max("last_at").alias("last_at"),
    )
    return ordered(joined, "calls")


# -- workers ----------------------------------------------------------------------------------


def workers(events: DataFrame) -> DataFrame:
    """What is known of a worker's connection: when it came and went, and what it did."""
    what = F.col("what")
    up, down = what == "worker_up", what == "worker_down"
    keys = ("broker", "life", "worker_link", "worker")
    about = events.where(
        F.col("worker").isNotNull()
        & (is_terminal() | what.isin("worker_up", "worker_down", "heartbeat_missed"))
    )
    # In two steps, because Spark sorts all rows if a text or a struct is to be the greatest: the first leaves
    # the rows that came and went as they are, and one row for all that a worker did.
    few = about.groupBy(
        "broker",
        "life",
        F.coalesce("worker_link", F.lit("")).alias("worker_link"),
        "worker",
        "worker_dialect",
        F.when(up, F.col("service")).alias("service"),
        F.when(down, F.struct("at", "seq", "reason")).alias("went"),
    ).agg(
        F.count_if(up).alias("sessions"),
        F.count_if(down).alias("ended"),
        F.min(F.when(up, F.col("at"))).alias("first_up_at"),
        F.max(F.when(up, F.col("at"))).alias("last_up_at"),
        F.sum(
            F.when(down, F.coalesce(between(F.col("accepted_at"), F.col("at")), F.lit(0))).otherwise(0)
        ).alias("closed_us"),
        F.count_if(what == "heartbeat_missed").alias("missed_beats"),
        F.count_if(is_terminal()).alias("requests"),
        F.count_if(what == "failed").alias("errors"),
        F.sum(F.when(is_terminal(), F.coalesce(served(), F.lit(0))).otherwise(0)).alias("busy_us"),
        F.max("at").alias("last_seen_at"),
    )
    sums = ("sessions", "ended", "closed_us", "missed_beats", "requests", "errors", "busy_us")
    found = few.groupBy(*keys).agg(
        *(F.sum(name).alias(name) for name in sums),
        *(F.max(name).alias(name) for name in ("worker_dialect", "service", "last_up_at", "last_seen_at")),
        F.min("first_up_at").alias("first_up_at"),
        F.max("went").alias("last_down"),
    )
    is_up = F.col("sessions") > F.col("ended")
    running = F.when(is_up, between(F.col("last_up_at"), F.col("last_seen_at"))).otherwise(0)
    rows = found.withColumn("up_us", F.col("closed_us") + running).select(
        "*",
        F.col("last_down.at").alias("last_down_at"),
        F.col("last_down.reason").alias("last_down_reason"),
        F.when(F.col("up_us") > 0, F.col("busy_us") / F.col("up_us")).alias("busy"),
    )
    return ordered(rows, "workers")


# -- topics and logs --------------------------------------------------------------------------


def last_values(events: DataFrame) -> DataFrame:
    """The newest publication of each topic."""
    newest = (
        events.where(F.col("what") == "published")
        .groupBy("broker", F.col("service").alias("topic"))
        .agg(
            F.max_by(
                F.struct("at", "life", "seq", F.col("body_size").alias("size"), "body"), F.struct("at", "seq")
            ).alias("newest")
        )
    )
    return ordered(newest.select("broker", "topic", "newest.*"), "last_values")


def topics(events: DataFrame) -> DataFrame:
    """How much was published under each topic in each minute."""
    window = window_of(F.col("at"), TOPICS_WINDOW_S)
    published = events.where(F.col("what") == "published")
    counted = published.groupBy("broker", F.col("service").alias("topic"), window.alias("window_start")).agg(
        F.count("*").alias("messages"), F.sum("body_size").alias("bytes")
    )
    return ordered(counted.withColumn("date", date_of(F.col("window_start"))), "topics")


def logs(events: DataFrame) -> DataFrame:
    rows = events.where(F.col("what") == "log").select(
        "broker",
        "life",
        "seq",
        "at",
        F.col("reason").alias("level"),
        F.substring_index(F.col("service"), "/", 2).alias("front"),
        F.col("service").alias("topic"),
        F.col("detail").alias("message"),
        date_of(F.col("at")).alias("date"),
    )
    node = F.expr("substring(topic, length(front) + 2)")
    return ordered(rows.withColumn("node", node), "logs")


def dead_letters(events: DataFrame) -> DataFrame:
    """What was given up, with everything that is needed to send it again."""
    dead = events.where(F.col("what") == "dead").withColumn("attempts", F.col("attempt"))
    return ordered(dead.withColumn("date", date_of(F.col("at"))), "dead_letters")
