"""What becomes of the journal's rows: functions from DataFrame to DataFrame, one or two for each table.

Where rows sum up many events, those of two batches can be added, and give the same as one batch would have
given: for most tables the store does that (`Table.merged`); `service_metrics` is made of histograms, which
are added here.  Nothing depends on the order of rows.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from polybus.spark.rules import Rules
from polybus.spark.schema import METRICS_WINDOW_S, MINUTE_S, TABLES, TOPICS_WINDOW_S

TERMINAL: Final = ("replied", "failed", "expired", "cancelled")
# Identities that ZeroMQ or our own client library makes up for who has none: with each connection others.
MADE_UP: Final = "^(00[0-9a-f]{8}|pb-[0-9a-f]{16})$"
UNNAMED: Final = "(unnamed)"
QUANTILES: Final = (50, 95, 99)
# Longer than anything waits: ten days in microseconds.
LARGEST_POWER: Final = 10
MICRO: Final = 1_000_000
# What a row counts for: its request's wait and, if there was one, its time of service; or its services, if it
# tells that a worker is gone.
_ITEMS: Final = """
explode(case
    when what = 'worker_down' then
        transform(split(name, ','), n -> struct(n as service, 'down' as measure, cast(null as bigint) as us))
    when service_us is null then
        array(struct(name as service, 'wait' as measure, wait_us as us))
    else
        array(struct(name as service, 'wait' as measure, wait_us as us),
              struct(name as service, 'service' as measure, service_us as us))
end) as item
"""
_COUNTS: Final = ("requests", *TERMINAL, "workers_down", "bytes_in", "bytes_out")


def ordered(frame: DataFrame, name: str) -> DataFrame:
    """The columns of a table in its own order."""
    return frame.select(*TABLES[name].schema.names)


def date_of(stamp: Column) -> Column:
    return F.date_format(stamp, "yyyy-MM-dd")


def window_of(stamp: Column, seconds: int) -> Column:
    """When the window began, counted from 1970."""
    width = seconds * MICRO
    micros = F.unix_micros(stamp)
    return F.timestamp_micros(micros - F.pmod(micros, F.lit(width)))


def between(begin: Column, end: Column) -> Column:
    """Microseconds from one to the other; a clock that was set back does not make them negative."""
    return F.greatest(F.unix_micros(end) - F.unix_micros(begin), F.lit(0).cast("long"))


def bucket(micros: str) -> Column:
    """The middle of the bucket that the time in a column belongs to: at most one percent beside it.

    Histograms with fixed buckets add up exactly, whatever is added to what: tables that are made in one go
    and tables that grew are the same.
    """
    # As one text: a column made piece by piece costs hundreds of calls into Java, for each batch.
    branches = [f"when {micros} < 100 then {micros}"]
    for power in range(LARGEST_POWER + 1):
        unit = 10**power
        for upto, step in ((200 * unit, 2 * unit), (500 * unit, 5 * unit), (1000 * unit, 10 * unit)):
            branches.append(f"when {micros} < {upto}L then {micros} - {micros} % {step}L + {step // 2}L")
    return F.expr(f"case {' '.join(branches)} else {micros} end")


# -- requests ---------------------------------------------------------------------------------


def waited() -> Column:
    return between(F.col("accepted_at"), F.coalesce(F.col("dispatched_at"), F.col("at")))


def served() -> Column:
    return F.when(F.col("dispatched_at").isNotNull(), between(F.col("dispatched_at"), F.col("at")))


def is_terminal() -> Column:
    return F.col("what").isin(*TERMINAL)


def traces(events: DataFrame) -> DataFrame:
    """One row for each request that reached its end."""
    ended = events.where(is_terminal()).select(
        "*",
        F.col("at").alias("finished_at"),
        F.when(F.col("accepted_at").isNotNull(), waited()).alias("wait_us"),
        served().alias("service_us"),
        F.col("attempt").alias("attempts"),
        F.col("what").alias("outcome"),
        F.col("body_size").alias("reply_size"),
        date_of(F.col("at")).alias("day"),
    )
    return ordered(ended.drop("date").withColumnRenamed("day", "date"), "traces")


def service_metrics_parts(events: DataFrame) -> DataFrame:
    """How many requests of a window had which wait, and which time of service: histograms in long form."""
    items = (
        events.where(is_terminal() | (F.col("what") == "worker_down"))
        .where(F.col("service").isNotNull())
        .select(
            "broker",
            "what",
            "size",
            "body_size",
            F.col("service").alias("name"),
            window_of(F.col("at"), METRICS_WINDOW_S).alias("window_start"),
            F.when(F.col("accepted_at").isNotNull(), waited()).alias("wait_us"),
            served().alias("service_us"),
        )
        .select(
            *("broker", "what", "size", "body_size", "window_start", "name"),
            bucket("wait_us").alias("wait_us"),
            bucket("service_us").alias("service_us"),
        )
        .select("broker", "what", "size", "body_size", "window_start", F.expr(_ITEMS))
        .select("broker", "what", "size", "body_size", "window_start", "item.*")
    )
    # Each request is counted once, with its wait.
    first = F.col("measure") == "wait"
    return items.groupBy("broker", "service", "window_start", "measure", "us").agg(
        F.count("*").alias("n"),
        F.count_if(first).alias("requests"),
        *(F.count_if(first & (F.col("what") == outcome)).alias(outcome) for outcome in TERMINAL),
        F.count_if(F.col("measure") == "down").alias("workers_down"),
        _sum_if(first, F.col("size")).alias("bytes_in"),
        _sum_if(first, F.col("body_size")).alias("bytes_out"),
    )


def _sum_if(condition: Column, value: Column) -> Column:
    return F.sum(F.when(condition, F.coalesce(value, F.lit(0))).otherwise(0))


def service_metrics_again(rows: DataFrame) -> DataFrame:
    """Rows of the table as parts: their histograms in long form, and their counts."""
    keys = ("broker", "service", "window_start")
    zero = F.lit(0).cast("long")
    counts = rows.select(
        *keys,
        F.lit("counts").alias("measure"),
        F.lit(None).cast("long").alias("us"),
        zero.alias("n"),
        *_COUNTS,
    )
    parts = [counts]
    for measure in ("wait", "service"):
        one = rows.select(*keys, F.explode(f"{measure}_buckets").alias("bucket"))
        parts.append(
            one.select(
                *keys,
                F.lit(measure).alias("measure"),
                F.col("bucket.us").alias("us"),
                F.col("bucket.count").alias("n"),
                *(zero.alias(name) for name in _COUNTS),
            )
        )
    return reduce(DataFrame.unionByName, parts)


def added(parts: DataFrame, old: DataFrame) -> DataFrame:
    """Histograms of a batch, together with those of rows that are there."""
    keys = ("broker", "service", "window_start", "measure", "us")
    both = parts.unionByName(service_metrics_again(old))
    return both.groupBy(*keys).agg(F.sum("n").alias("n"), *(F.sum(name).alias(name) for name in _COUNTS))


def service_metrics(parts: DataFrame) -> DataFrame:
    """Rates, errors and percentiles of each service in each window."""
    keys = ("broker", "service", "window_start")
    sums = parts.groupBy(*keys).agg(
        *(F.sum(name).alias(name) for name in _COUNTS),
        *(_list(measure) for measure in ("wait", "service")),
        *(_total(measure).alias(f"{measure}_n") for measure in ("wait", "service")),
    )
    for measure in ("wait", "service"):
        sums = sums.withColumn(f"{measure}_at", quantiles(measure))
    rows = sums.select(
        "*",
        *(
            F.col(f"{measure}_at.p{q}").alias(f"{measure}_p{q}_us")
            for measure in ("wait", "service")
            for q in QUANTILES
        ),
        (F.col("requests") / F.lit(float(METRICS_WINDOW_S))).alias("rate"),
        F.when(F.col("requests") > 0, (F.col("failed") + F.col("expired")) / F.col("requests")).alias(
            "error_rate"
        ),
        date_of(F.col("window_start")).alias("date"),
    )
    return ordered(rows, "service_metrics")


def _list(measure: str) -> Column:
    wanted = (F.col("measure") == measure) & F.col("us").isNotNull()
    pairs = F.collect_list(F.when(wanted, F.struct(F.col("us"), F.col("n").alias("count"))))
    return F.array_sort(pairs).alias(f"{measure}_buckets")


def _total(measure: str) -> Column:
    return F.sum(F.when((F.col("measure") == measure) & F.col("us").isNotNull(), F.col("n")))


def quantiles(measure: str) -> Column:
    """The first buckets at which so many percent of the values are reached; null without values."""
    names = [f"p{q}" for q in QUANTILES]
    nothing = ", ".join(f"'{name}', cast(null as bigint)" for name in names)
    found = ", ".join(
        f"'p{q}', coalesce(s.p{q}, if((s.upto + b.count) * 100 >= {measure}_n * {q}, b.us, null))"
        for q in QUANTILES
    )
    return F.expr(
        f"aggregate({measure}_buckets, named_struct('upto', 0L, {nothing}), "
        f"(s, b) -> named_struct('upto', s.upto + b.count, {found}))"
    )


def calls(events: DataFrame) -> DataFrame:
    """Who called whom, and how that went."""
    named = F.when(F.col("client").rlike(MADE_UP), UNNAMED).otherwise(F.col("client"))
    ended = events.where(is_terminal() & F.col("service").isNotNull())
    edges = ended.groupBy(
        "broker",
        date_of(F.col("at")).alias("date"),
        named.alias("client"),
        "client_dialect",
        "service",
    ).agg(
        F.count("*").alias("requests"),
        F.count_if(F.col("what").isin("failed", "expired")).alias("errors"),
        F.sum(F.coalesce(served(), F.lit(0))).alias("service_us"),
        F.sum(F.coalesce("size", F.lit(0))).alias("bytes_in"),
        F.sum(F.coalesce("body_size", F.lit(0))).alias("bytes_out"),
        F.min("at").alias("first_at"),
        F.max("at").alias("last_at"),
    )
    return ordered(edges, "calls")


# -- workers ----------------------------------------------------------------------------------


def workers(events: DataFrame) -> DataFrame:
    """What is known of a worker's connection: when it came and went, and what it did."""
    what = F.col("what")
    up, down = what == "worker_up", what == "worker_down"
    about = events.where(
        F.col("worker").isNotNull()
        & (is_terminal() | what.isin("worker_up", "worker_down", "heartbeat_missed"))
    )
    found = about.groupBy(
        "broker", "life", F.coalesce("worker_link", F.lit("")).alias("worker_link"), "worker"
    ).agg(
        F.max("worker_dialect").alias("worker_dialect"),
        F.max(F.when(up, F.col("service"))).alias("service"),
        F.count_if(up).alias("sessions"),
        F.count_if(down).alias("ended"),
        F.min(F.when(up, F.col("at"))).alias("first_up_at"),
        F.max(F.when(up, F.col("at"))).alias("last_up_at"),
        F.max(F.when(down, F.struct("at", "seq", "reason"))).alias("last_down"),
        F.sum(
            F.when(down, F.coalesce(between(F.col("accepted_at"), F.col("at")), F.lit(0))).otherwise(0)
        ).alias("closed_us"),
        F.count_if(what == "heartbeat_missed").alias("missed_beats"),
        F.count_if(is_terminal()).alias("requests"),
        F.count_if(what == "failed").alias("errors"),
        F.sum(F.when(is_terminal(), F.coalesce(served(), F.lit(0))).otherwise(0)).alias("busy_us"),
        F.max("at").alias("last_seen_at"),
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


# -- alerts -----------------------------------------------------------------------------------


def alerts(metrics: DataFrame, rules: Rules) -> DataFrame:
    """What deserves attention in some windows of `service_metrics`; whole minutes of it."""
    enough = F.col("requests") >= rules.least_requests
    found = [
        _alert(metrics.where(enough & (F.col("error_rate") >= rules.error_rate)), "error_rate", "error_rate",
               rules.error_rate),
        _alert(metrics.where(enough & (F.col("service_p95_us") >= rules.slow_us)), "slow", "service_p95_us",
               rules.slow_us),
        _alert(
            metrics.where((F.col("expired") > 0) & (F.col("replied") == 0) & (F.col("failed") == 0)),
            "silent", "expired", 1),
    ]  # fmt: skip
    minute = window_of(F.col("window_start"), MINUTE_S)
    flaps = (
        metrics.where(F.col("workers_down") > 0)
        .groupBy("broker", "service", minute.alias("window_start"))
        .agg(F.sum("workers_down").alias("workers_down"))
        .where(F.col("workers_down") >= rules.flaps)
    )
    found.append(_alert(flaps, "flapping", "workers_down", rules.flaps))
    return reduce(DataFrame.unionByName, found)


def _alert(rows: DataFrame, rule: str, value: str, threshold: float) -> DataFrame:
    named = rows.select(
        "broker",
        F.lit(rule).alias("rule"),
        F.col("service").alias("subject"),
        "window_start",
        F.col(value).cast("double").alias("value"),
        F.lit(float(threshold)).alias("threshold"),
        date_of(F.col("window_start")).alias("date"),
    )
    return ordered(named, "alerts")
