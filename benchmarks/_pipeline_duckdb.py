"""The pipeline's tables, made by DuckDB: what a fast engine without a cluster, a stream or a history needs.

It reads the same segments and writes each table as Parquet files.  It is made as fast as SQL allows: ended
requests are read once and kept in memory for the four tables that are made of them.  It does not do what the
pipeline does besides: no batch can be added later, nothing is there exactly once after a crash.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import duckdb

# The power of ten with 100 p <= x < 1000 p; see `polybus.spark`.
_POWERS: Final = " ".join(f"WHEN x < {10**n} THEN {10 ** (n - 3)}" for n in range(3, 16))
MACROS: Final = f"""
CREATE MACRO power_of(x) AS CASE {_POWERS} ELSE {10**13} END;
CREATE MACRO step_of(x, p) AS CASE WHEN x < 200 * p THEN 2 * p WHEN x < 500 * p THEN 5 * p ELSE 10 * p END;
CREATE MACRO middle(x, step) AS x - x % step + step // 2;
CREATE MACRO bucket(x) AS CASE WHEN x < 100 THEN x ELSE middle(x, step_of(x, power_of(x))) END;
CREATE MACRO day_of(us) AS strftime(make_timestamp(us), '%Y-%m-%d');
"""
ENDS: Final = """
CREATE TEMP TABLE ends AS
SELECT *, CASE WHEN accepted_us IS NOT NULL THEN greatest(0, coalesce(dispatched_us, at_us) - accepted_us) END
          AS wait_us,
       CASE WHEN dispatched_us IS NOT NULL THEN greatest(0, at_us - dispatched_us) END AS service_us,
       at_us - at_us % 10000000 AS start_us
FROM (SELECT broker, life, seq, token, request_id, service, client, client_dialect, worker, worker_dialect,
             coalesce(worker_link, '') AS worker_link, epoch_us("at") AS at_us,
             epoch_us(accepted_at) AS accepted_us, epoch_us(dispatched_at) AS dispatched_us,
             attempt, what, reason, detail, size, body_size
      FROM events WHERE what IN ('replied', 'failed', 'expired', 'cancelled'));
CREATE TEMP TABLE hands AS
SELECT broker, life, seq, coalesce(worker_link, '') AS worker_link, worker, worker_dialect, service, what,
       reason, epoch_us("at") AS at_us, epoch_us(accepted_at) AS accepted_us
FROM events WHERE what IN ('worker_up', 'worker_down', 'heartbeat_missed');
"""
_PERCENTILES: Final = ", ".join(
    f"min(us) FILTER (seen >= (total * {q} + 99) // 100) AS p{q}" for q in (50, 95, 99)
)


def _histogram(name: str) -> str:
    """Buckets of a time, with the percentiles that follow from them."""
    return f"""
    (SELECT broker, service, start_us, list({{'us': us, 'count': n}} ORDER BY us) AS buckets, {_PERCENTILES}
     FROM (SELECT *, sum(n) OVER (PARTITION BY broker, service, start_us ORDER BY us) AS seen,
                  sum(n) OVER (PARTITION BY broker, service, start_us) AS total
           FROM (SELECT broker, service, start_us, bucket({name}) AS us, count(*) AS n
                 FROM ends WHERE {name} IS NOT NULL AND service IS NOT NULL GROUP BY ALL))
     GROUP BY broker, service, start_us)"""


METRICS: Final = f"""
CREATE TEMP TABLE service_metrics AS
WITH counts AS (
    SELECT broker, service, start_us, count(*) AS requests,
           count(*) FILTER (what = 'replied') AS replied, count(*) FILTER (what = 'failed') AS failed,
           count(*) FILTER (what = 'expired') AS expired, count(*) FILTER (what = 'cancelled') AS cancelled,
           sum(size) AS bytes_in, sum(body_size) AS bytes_out
    FROM ends WHERE service IS NOT NULL GROUP BY ALL),
downs AS (
    SELECT broker, service, at_us - at_us % 10000000 AS start_us, count(*) AS workers_down
    FROM (SELECT broker, at_us, unnest(string_split(service, ',')) AS service
          FROM hands WHERE what = 'worker_down')
    WHERE service <> '' GROUP BY ALL)
SELECT broker, service, make_timestamp(start_us) AS window_start, coalesce(requests, 0) AS requests,
       coalesce(replied, 0) AS replied, coalesce(failed, 0) AS failed, coalesce(expired, 0) AS expired,
       coalesce(cancelled, 0) AS cancelled, coalesce(workers_down, 0) AS workers_down,
       coalesce(requests, 0) / 10.0 AS rate, (failed + expired) / requests AS error_rate,
       coalesce(bytes_in, 0) AS bytes_in, coalesce(bytes_out, 0) AS bytes_out,
       w.p50 AS wait_p50_us, w.p95 AS wait_p95_us, w.p99 AS wait_p99_us,
       s.p50 AS service_p50_us, s.p95 AS service_p95_us, s.p99 AS service_p99_us,
       w.buckets AS wait_buckets, s.buckets AS service_buckets, day_of(start_us) AS date
FROM counts FULL JOIN downs USING (broker, service, start_us)
LEFT JOIN {_histogram("wait_us")} AS w USING (broker, service, start_us)
LEFT JOIN {_histogram("service_us")} AS s USING (broker, service, start_us);
"""
TABLES: Final = {
    "traces": """
        SELECT broker, life, seq, token, request_id, service, client, client_dialect, worker, worker_dialect,
               make_timestamp(accepted_us) AS accepted_at, make_timestamp(dispatched_us) AS dispatched_at,
               make_timestamp(at_us) AS finished_at, wait_us, service_us, attempt AS attempts,
               what AS outcome,
               reason, detail, size, body_size AS reply_size, day_of(at_us) AS date FROM ends""",
    "service_metrics": "SELECT * FROM service_metrics",
    "calls": """
        SELECT broker, day_of(at_us) AS date,
               CASE WHEN regexp_full_match(client, '00[0-9a-f]{8}') THEN '(unnamed)' ELSE client END
               AS client,
               client_dialect, service, count(*) AS requests,
               count(*) FILTER (what IN ('failed', 'expired')) AS errors,
               sum(coalesce(service_us, 0)) AS service_us,
               sum(size) AS bytes_in, sum(body_size) AS bytes_out, make_timestamp(min(at_us)) AS first_at,
               make_timestamp(max(at_us)) AS last_at
        FROM ends WHERE service IS NOT NULL GROUP BY 1, 2, 3, 4, 5""",
    "workers": """
        SELECT *, closed_us + CASE WHEN sessions > ended THEN last_seen_us - last_up_us ELSE 0 END AS up_us,
               busy_us / nullif(closed_us
                   + CASE WHEN sessions > ended THEN last_seen_us - last_up_us ELSE 0 END, 0) AS busy
        FROM (SELECT broker, life, worker_link, worker, max(worker_dialect) AS worker_dialect,
                     max(service) FILTER (what = 'worker_up') AS service,
                     count(*) FILTER (what = 'worker_up') AS sessions,
                     count(*) FILTER (what = 'worker_down') AS ended,
                     min(at_us) FILTER (what = 'worker_up') AS first_up_us,
                     max(at_us) FILTER (what = 'worker_up') AS last_up_us,
                     max(at_us) FILTER (what = 'worker_down') AS last_down_us,
                     arg_max(reason, (at_us, seq)) FILTER (what = 'worker_down') AS last_down_reason,
                     coalesce(sum(at_us - accepted_us) FILTER (what = 'worker_down'), 0) AS closed_us,
                     count(*) FILTER (what = 'heartbeat_missed') AS missed_beats,
                     count(*) FILTER (is_end) AS requests, count(*) FILTER (what = 'failed') AS errors,
                     coalesce(sum(service_us), 0) AS busy_us, max(at_us) AS last_seen_us
              FROM (SELECT broker, life, seq, worker_link, worker, worker_dialect, service, what, reason,
                           at_us, accepted_us, NULL AS service_us, false AS is_end FROM hands
                    UNION ALL
                    SELECT broker, life, seq, worker_link, worker, worker_dialect, NULL, what, NULL,
                           at_us, NULL,
                           service_us, true FROM ends)
              WHERE worker IS NOT NULL GROUP BY 1, 2, 3, 4)""",
    "last_values": """
        SELECT broker, topic, newest.* FROM (
            SELECT broker, service AS topic,
                   arg_max({'at': "at", life: life, seq: seq, size: body_size, body: body}, ("at", seq))
                   AS newest
            FROM events WHERE what = 'published' GROUP BY 1, 2)""",
    "topics": """
        SELECT broker, service AS topic, make_timestamp(start_us) AS window_start, count(*) AS messages,
               sum(body_size) AS bytes, day_of(start_us) AS date
        FROM (SELECT broker, service, body_size, epoch_us("at") - epoch_us("at") % 60000000 AS start_us
              FROM events WHERE what = 'published') GROUP BY 1, 2, start_us""",
    "logs": """
        SELECT broker, life, seq, "at", reason AS level,
               regexp_extract(service, '^[^/]*/[^/]*/(.*)$', 1) AS node,
               service AS topic, detail AS message, day_of(epoch_us("at")) AS date
        FROM events WHERE what = 'log'""",
    "dead_letters": """
        SELECT broker, life, seq, "at", token, request_id, service, client, client_dialect, worker,
               attempt AS attempts, reason, detail, accepted_at, size, headers, body,
               day_of(epoch_us("at")) AS date FROM events WHERE what = 'dead'""",
    "alerts": """
        SELECT broker, 'error_rate' AS rule, service AS subject, window_start, error_rate AS value,
               0.1 AS threshold, date FROM service_metrics WHERE requests >= 10 AND error_rate >= 0.1
        UNION ALL
        SELECT broker, 'slow', service, window_start, service_p95_us, 1e6, date
        FROM service_metrics WHERE requests >= 10 AND service_p95_us >= 1000000
        UNION ALL
        SELECT broker, 'silent', service, window_start, expired, 1, date
        FROM service_metrics WHERE requests > 0 AND replied = 0 AND failed = 0 AND expired > 0
        UNION ALL
        SELECT broker, 'flapping', service, date_trunc('minute', window_start) AS minute, sum(workers_down),
               3, any_value(date)
        FROM service_metrics GROUP BY broker, service, minute HAVING sum(workers_down) >= 3""",
}


def build(journal: Path, tables: Path, threads: int) -> dict[str, int]:
    """Make all tables; how many rows each has."""
    tables.mkdir(parents=True, exist_ok=True)
    counts: dict[str, int] = {}
    with duckdb.connect(config={"threads": threads}) as connection:
        connection.execute("SET enable_progress_bar = false")
        connection.execute(MACROS)
        files = str(journal / "segments" / "*" / "*" / "*.parquet").replace("'", "''")
        connection.execute(
            f"CREATE VIEW events AS SELECT * FROM read_parquet('{files}', hive_partitioning = false)"
        )
        connection.execute(ENDS)
        connection.execute(METRICS)
        for name, query in TABLES.items():
            target = str(tables / f"{name}.parquet").replace("'", "''")
            done = connection.execute(f"COPY ({query}) TO '{target}' (FORMAT parquet)").fetchone()
            counts[name] = 0 if done is None else int(done[0])
        return counts
