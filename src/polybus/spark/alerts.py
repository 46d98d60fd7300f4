"""What deserves attention: a function of `service_metrics` and the rules."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from polybus.spark.rules import Rules
from polybus.spark.schema import MINUTE_S
from polybus.spark.transforms import date_of, ordered, window_of


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
