"""What deserves attention: a function of some rows of `service_metrics` and the rules.

These rows are few, and the driver has them already: asking executors would take longer.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from polybus.spark.rules import Rules
from polybus.spark.schema import ALERTS, MINUTE_S


def alerts(metrics: pa.Table, rules: Rules) -> pa.Table:
    """What deserves attention in these windows; whole minutes of them."""
    enough = pc.greater_equal(metrics["requests"], rules.least_requests)
    is_silent = pc.and_(
        pc.greater(metrics["expired"], 0),
        pc.equal(pc.add(metrics["replied"], metrics["failed"]), 0),
    )
    found = [
        _alerts(metrics, pc.and_(enough, _reached(metrics["error_rate"], rules.error_rate)), "error_rate",
                "error_rate", rules.error_rate),
        _alerts(metrics, pc.and_(enough, _reached(metrics["service_p95_us"], rules.slow_us)), "slow",
                "service_p95_us", rules.slow_us),
        _alerts(metrics, is_silent, "silent", "expired", 1),
        _flapping(metrics, rules.flaps),
    ]  # fmt: skip
    return pa.concat_tables(found)


def _reached(values: Any, threshold: float) -> Any:
    # Without requests there is no rate: null is nothing to complain about.
    return pc.fill_null(pc.greater_equal(values, threshold), False)


def _flapping(metrics: pa.Table, flaps: int) -> pa.Table:
    """Services whose workers went more often in a minute than they should."""
    gone = metrics.filter(pc.greater(metrics["workers_down"], 0))
    minutes = pc.floor_temporal(gone["window_start"], MINUTE_S, "second")
    place = gone.column_names.index("window_start")
    counted = (
        gone.set_column(place, "window_start", minutes)
        .group_by(["broker", "service", "window_start"])
        .aggregate([("workers_down", "sum")])
    )
    counted = counted.rename_columns({"workers_down_sum": "workers_down"})
    return _alerts(counted, _reached(counted["workers_down"], flaps), "flapping", "workers_down", flaps)


def _alerts(rows: pa.Table, wanted: Any, rule: str, value: str, threshold: float) -> pa.Table:
    some = rows.filter(wanted)
    count = some.num_rows
    columns: dict[str, Any] = {
        "broker": some["broker"],
        "rule": pa.array([rule] * count, pa.string()),
        "subject": some["service"],
        "window_start": some["window_start"],
        "value": some[value].cast(pa.float64()),
        "threshold": pa.array([float(threshold)] * count, pa.float64()),
        "date": pc.strftime(some["window_start"], "%Y-%m-%d"),
    }
    return pa.table([columns[name] for name in ALERTS.schema.names], schema=ALERTS.schema)
