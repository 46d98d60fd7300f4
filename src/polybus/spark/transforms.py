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

from polybus.spark.schema import METRICS_WINDOW_S, TABLES, TOPICS_WINDOW_S

TERMINAL: Final = ("replied", "failed", "expired", "cancelled")
# Identities that ZeroMQ or our own client library makes up for who has none: with each connection others.
MADE_UP: Final = "^(00[0-9a-f]{8}|pb-[0-9a-f]{16})$"
UNNAMED: Final = "(unnamed)"
QUANTILES: Final = (50, 95, 99)
# Longer than anything waits: ten days in microseconds.
LARGEST_POWER: Final = 10
MICRO: Final = 1_000_000
# The power of ten of which a time is a hundred or more.
_UNITS: Final = " ".join(
    f"when {{0}} < {1000 * 10**power}L then {10**power}L" for power in range(LARGEST_POWER)
)
_COUNTS: Final = ("requests", *TERMINAL, "workers_down", "bytes_in", "bytes_out")


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


def with_buckets(frame: DataFrame, *names: str) -> DataFrame:
    """Each of these times becomes the middle of its bucket: at most 1.25 percent beside it.

    Histograms with fixed buckets add up exactly, whatever is added to what: tables that are made in one go
    and tables that grew are the same.  Three steps, because Java does not compile what is too long.
    """
    others = [name for name in frame.columns if name not in names]
    units = {name: F.expr(f"case {_UNITS.format(name)} else {10**LARGEST_POWER}L end") for name in names}
    scaled = frame.select(*others, *names, *(unit.alias(f"{name}_unit") for name, unit in units.items()))
    steps = scaled.select(
        *others,
        *names,
        *(
            F.expr(
                f"case when {name} < 100 then 1L when {name} < 200 * {name}_unit then 2 * {name}_unit "
                f"when {name} < 500 * {name}_unit then 5 * {name}_unit else 10 * {name}_unit end"
            ).alias(f"{name}_step")
            for name in names
        ),
    )
    middles = (F.expr(f"{name} - {name} % {name}_step + {name}_step div 2").alias(name) for name in names)
    return steps.select(*others, *middles)


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
    keys = ("broker", "service", "window_start")
    ended = with_buckets(
        events.where(is_terminal() & F.col("service").isNotNull()).select(
            *("broker", "service", "what", "size", "body_size"),
            window_of(F.col("at"), METRICS_WINDOW_S).alias("window_start"),
            F.when(F.col("accepted_at").isNotNull(), waited()).alias("wait_us"),
            served().alias("service_us"),
        ),
        "wait_us",
        "service_us",
    )
    sets = [[*keys, "wait_us"], [*keys, "service_us"]]
    # Each request is counted once, with its wait.
    counted = ended.groupingSets(sets, *keys, "wait_us", "service_us").agg(
        F.grouping("wait_us").alias("second"),
        F.count("*").alias("n"),
        *(F.count_if(F.col("what") == outcome).alias(outcome) for outcome in TERMINAL),
        F.sum(F.coalesce("size", F.lit(0))).alias("bytes_in"),
        F.sum(F.coalesce("body_size", F.lit(0))).alias("bytes_out"),
    )
    is_first = F.col("second") == 0
    zero = F.lit(0).cast("long")
    requests = counted.where(is_first | F.col("service_us").isNotNull()).select(
        *keys,
        F.when(is_first, "wait").otherwise("service").alias("measure"),
        F.coalesce("wait_us", "service_us").alias("us"),
        "n",
        F.when(is_first, F.col("n")).otherwise(zero).alias("requests"),
        *(F.when(is_first, F.col(name)).otherwise(zero).alias(name) for name in TERMINAL),
        zero.alias("workers_down"),
        *(F.when(is_first, F.col(name)).otherwise(zero).alias(name) for name in ("bytes_in", "bytes_out")),
    )
    return requests.unionByName(_workers_down(events))


def _workers_down(events: DataFrame) -> DataFrame:
    """Of how many workers a window was the last."""
    gone = events.where((F.col("what") == "worker_down") & F.col("service").isNotNull()).select(
        "broker",
        F.explode(F.split("service", ",")).alias("service"),
        window_of(F.col("at"), METRICS_WINDOW_S).alias("window_start"),
    )
    zero = F.lit(0).cast("long")
    others = (name for name in _COUNTS if name != "workers_down")
    return (
        gone.groupBy("broker", "service", "window_start")
        .agg(F.count("*").alias("workers_down"))
        .select(
            *("broker", "service", "window_start"),
            F.lit("down").alias("measure"),
            F.lit(None).cast("long").alias("us"),
            zero.alias("n"),
            "workers_down",
            *(zero.alias(name) for name in others),
        )
    )


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
