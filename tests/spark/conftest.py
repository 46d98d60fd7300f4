"""One Spark session for all tests of this folder.

It takes ten seconds to start and half a gigabyte, so with several test processes all tests that need it go to
the same one: see the conftest above.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from polybus.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
# The first test starts Java and Spark, on a machine that may have other things to do.
TIMEOUT_S = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            # A test's own limit is nearer to it, and counts.
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = open_session(
        "local[2]",
        app="polybus tests",
        # Small data: every partition more is a task more that does nothing, and Java's best compiler takes
        # longer than all tests together.
        conf={
            "spark.sql.shuffle.partitions": "1",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        },
    )
    yield session
    session.stop()
