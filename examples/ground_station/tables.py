"""The telemetry of the ground station in the tables that Spark made of the journal.

    polybus pipeline build
    python examples/ground_station/tables.py

POLYBUS_TABLES says where the tables are, if not in var/tables.
"""

from __future__ import annotations

import os

from polybus.spark.session import open_session
from polybus.spark.tables import read_table

TABLES = os.environ.get("POLYBUS_TABLES", "var/tables")


def main() -> None:
    spark = open_session("local[2]")
    spark.createDataFrame(read_table(TABLES, "topics")).createOrReplaceTempView("topics")
    spark.createDataFrame(read_table(TABLES, "last_values")).createOrReplaceTempView("last_values")

    print("messages by topic:")
    counted = spark.sql("""
        SELECT topic, sum(messages) AS messages FROM topics
        WHERE topic LIKE 'telemetry.%' GROUP BY topic ORDER BY topic
    """)
    for row in counted.collect():
        print(f"  {row.topic}: {row.messages}")

    # A body is a list of frames; telemetry has one, which is JSON.
    newest = spark.sql("""
        SELECT topic, from_json(decode(body[0], 'utf-8'), 'map<string, double>') AS values FROM last_values
        WHERE topic LIKE 'telemetry.%' ORDER BY topic
    """)
    print("newest values:")
    for row in newest.collect():
        values = {name: value for name, value in sorted(row["values"].items()) if name != "at"}
        print(f"  {row.topic}: {values}")


if __name__ == "__main__":
    main()
