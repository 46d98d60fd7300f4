"""The examples that read the tables: they run in the session of the tests, on a journal of real traffic."""

from __future__ import annotations

import runpy
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from polybus import Client, Request, RequestFailed, Worker, WorkerRejected
from polybus.client.admin import AdminClient
from polybus.spark.pipeline import Pipeline
from support.commands import Served, environment
from support.patience import patient
from support.programs import peer_places
from support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STATION_S = 60.0
STATION = [
    "antenna: registered",
    "receiver: registered",
    "weather: registered",
    "in the catalog: antenna, receiver, weather",
    "late subscriber: telemetry.antenna {'azimuth': 180.0, 'elevation': 0.0}",
    "late subscriber: telemetry.receiver {'snr_db': 4.0}",
    "late subscriber: telemetry.weather {'wind_ms': 8.0, 'celsius': 18.5}",
    "over DBP: 180.0",
    "after one left and one fell silent: antenna",
]


def hello(request: Request) -> bytes:
    if not request.body:
        raise WorkerRejected("whom shall I greet?")
    return b"hello " + request.body


def make_traffic(broker: Served) -> None:
    """Calls that are answered and one that is refused; and a pass of the ground station."""
    worker = Worker({"hello": hello}, broker.endpoints["ebus.backend"], "ebus")
    thread = threading.Thread(target=worker.run)
    thread.start()
    with Client(broker.endpoints["majordomo.clients"], "mdr", timeout_s=patient(20)) as client:
        assert list(client.call_many("hello", [b"%d" % number for number in range(50)]))
        with pytest.raises(RequestFailed, match="whom shall I greet"):
            client.call("hello", b"")
    worker.stop()
    thread.join(patient(20))
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "ground_station" / "station.py")],
        env=environment(peer_places(broker.endpoints)),
        capture_output=True,
        text=True,
        timeout=patient(STATION_S),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == STATION


def archived(admin: AdminClient) -> bool:
    facts = admin.ask("status")
    return facts["journal_waiting_bytes"] == 0 and facts["archiver_rows"] >= facts["journal_written"]


@pytest.mark.long
def test_the_examples_read_the_tables(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broker = Served(tmp_path, env={"POLYBUS_JOURNAL_ARCHIVE": "true"})
    try:
        make_traffic(broker)
        with AdminClient(broker.endpoints["admin.port"]) as admin:
            until(lambda: archived(admin), "all of it is archived")
    finally:
        broker.close()
    tables = tmp_path / "tables"
    Pipeline(spark, str(broker.data_dir / "journal"), str(tables), watch=lambda batch: None).build()
    monkeypatch.setenv("POLYBUS_TABLES", str(tables))
    capsys.readouterr()

    runpy.run_path(str(EXAMPLES / "ground_station" / "tables.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == [
        "messages by topic:",
        "  telemetry.antenna: 41",
        "  telemetry.receiver: 41",
        "  telemetry.weather: 5",
        "newest values:",
        "  telemetry.antenna: {'azimuth': 180.0, 'elevation': 0.0}",
        "  telemetry.receiver: {'snr_db': 4.0}",
        "  telemetry.weather: {'celsius': 18.5, 'wind_ms': 8.0}",
    ]

    runpy.run_path(str(EXAMPLES / "pipeline" / "queries.py"), run_name="__main__")
    printed = capsys.readouterr().out
    rows = [[word.strip() for word in line.split("|")[1:-1]] for line in printed.splitlines() if "|" in line]
    # What was asked for: 50 answered, one refused.
    assert next(row for row in rows if row[:2] == ["hello", "51"])[2:4] == ["50", "1"]
    # The times of service have a p95 that is a positive number of microseconds.
    assert int(float(next(row for row in rows if row[0] == "hello" and len(row) == 2)[1])) > 0
    assert ["mdr", "ebus", "hello", "51"] in rows
    assert "hello: 1 × rejected" in printed
    assert "telemetry.antenna: 41" in printed
    assert "Spark and DuckDB agree: True" in printed
