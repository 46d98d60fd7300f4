# %% [markdown]
# # Questions to the tables
#
# A notebook in plain Python: editors run it cell by cell, `python examples/pipeline/queries.py` runs all of
# it. The tables are those of `polybus pipeline build`; POLYBUS_TABLES says where, if not in var/tables. What
# their columns mean is in docs/pipeline.md.

# %%
from __future__ import annotations

import os

import duckdb
from deltalake import DeltaTable

from polybus.spark.schema import TABLES
from polybus.spark.session import open_session
from polybus.spark.tables import read_table

PLACE = os.environ.get("POLYBUS_TABLES", "var/tables")

# %% [markdown]
# ## With Spark SQL
#
# Every table as a view. With `delta-spark` it would be `spark.read.format("delta").load(...)`; this needs no
# more than polybus brings.

# %%
spark = open_session("local[2]")
for name in TABLES:
    spark.createDataFrame(read_table(PLACE, name)).createOrReplaceTempView(name)

# %% [markdown]
# What was asked for, how it ended, and how long half of the requests took once they had a worker.

# %%
services = spark.sql("""
    SELECT service, count(*) AS requests,
           count_if(outcome = 'replied') AS replied,
           count_if(outcome IN ('failed', 'expired')) AS errors,
           percentile(service_us, 0.5) AS half_us
    FROM traces WHERE service NOT LIKE 'polybus.%'
    GROUP BY service ORDER BY requests DESC, service
""")
services.show(truncate=False)

# %% [markdown]
# p95 over any length of time: averages of percentiles are wrong, but buckets can be added up. The answer is
# the first bucket at which 95 of a hundred requests are counted.

# %%
slow = spark.sql("""
    WITH buckets AS (
        SELECT service, bucket.us AS us, sum(bucket.count) AS requests
        FROM service_metrics LATERAL VIEW explode(service_buckets) AS bucket GROUP BY service, bucket.us
    ), counted AS (
        SELECT service, us, sum(requests) OVER (PARTITION BY service ORDER BY us) AS upto,
               sum(requests) OVER (PARTITION BY service) AS all
        FROM buckets
    )
    SELECT service, min(us) AS p95_us FROM counted WHERE upto >= 0.95 * all
    GROUP BY service ORDER BY p95_us DESC
""")
slow.show(truncate=False)

# %% [markdown]
# Who calls whom, and what crosses from one dialect to another.

# %%
spark.sql("""
    SELECT client_dialect, worker_dialect, service, count(*) AS requests FROM traces
    WHERE worker_dialect IS NOT NULL GROUP BY ALL ORDER BY requests DESC, service
""").show(truncate=False)

# %% [markdown]
# ## With DuckDB
#
# The same files, without Spark and without Java. DuckDB reads only the columns and the files that it needs.

# %%
for name in TABLES:
    duckdb.register(name, DeltaTable(f"{PLACE}/{name}").to_pyarrow_dataset())

# %% [markdown]
# Why requests failed.

# %%
failures = duckdb.sql("""
    SELECT service, reason, count(*) AS requests FROM traces
    WHERE outcome IN ('failed', 'expired') GROUP BY ALL ORDER BY requests DESC, service
""").fetchall()
for service, reason, requests in failures:
    print(f"{service}: {requests} × {reason}")

# %% [markdown]
# The busiest topics.

# %%
for topic, messages in duckdb.sql("""
    SELECT topic, sum(messages)::BIGINT AS messages FROM topics
    GROUP BY topic ORDER BY messages DESC, topic LIMIT 5
""").fetchall():
    print(f"{topic}: {messages}")

# %% [markdown]
# Both of them read the same rows.

# %%
with_spark = {row.service: row.requests for row in services.collect()}
counted = "SELECT service, count(*) FROM traces WHERE service NOT LIKE 'polybus.%' GROUP BY service"
with_duckdb = dict(duckdb.sql(counted).fetchall())
print("Spark and DuckDB agree:", with_spark == with_duckdb)
