"""From a failing service to an alert on the bus, and from the table of dead letters back into the queue."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
import zmq

from polybus import Client, Request, RequestFailed, Worker
from polybus.cli import dead_letters
from polybus.cli.alarm import Alarm, read_rules
from polybus.cli.main import run
from polybus.client.admin import AdminClient
from polybus.client.pubsub import Subscription
from polybus.journal.reader import segment_files
from polybus.spark.pipeline import Pipeline
from polybus.spark.tables import read_table
from support.commands import Served
from support.patience import patient
from support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Two windows may share them; one of these has ten.
CALLS = 24


class Mail:
    """A worker that fails until it is repaired."""

    def __init__(self) -> None:
        self.works = False

    def send(self, request: Request) -> bytes:
        if not self.works:
            raise TimeoutError("smtp is down")
        return b"sent"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    settings = ("jobs.backoff_s=0.05", "limits.request_ttl_s=3")
    words = [word for setting in settings for word in ("--set", setting)]
    served = Served(tmp_path, *words, env={"POLYBUS_JOURNAL_ARCHIVE": "true"})
    yield served
    served.close()


@contextlib.contextmanager
def working(broker: Served, mail: Mail) -> Iterator[None]:
    worker = Worker({"email": mail.send}, broker.endpoints["emqp.workers"], dialect="emqp")
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        with AdminClient(broker.endpoints["admin.port"]) as admin:
            until(lambda: any(row["workers"] for row in admin.ask("services")), "the worker")
        yield
    finally:
        worker.stop()
        thread.join(patient(20))


def archived(journal: Path) -> Counter[str]:
    """What the broker's archiver has made segments of."""
    if not journal.exists():
        return Counter()
    found: Counter[str] = Counter()
    for path in segment_files(journal):
        found.update(pq.read_table(path, columns=["what"])["what"].to_pylist())
    return found


@pytest.mark.long
@pytest.mark.timeout(480)
def test_a_failing_service(
    broker: Served, tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    mail = Mail()
    journal, tables = broker.data_dir / "journal", tmp_path / "tables"

    def jobs(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        place = ("--tables", str(tables), "--data-dir", str(broker.data_dir))
        status = run(["jobs", *arguments, *(place if arguments[0] == "retry" else place[2:])])
        done = capsys.readouterr()
        return status, done.out, done.err

    def told(*arguments: str) -> Any:
        status, out, err = jobs("retry", "--from-table", *arguments, "--json")
        assert status == 0, err
        return json.loads(out)

    with working(broker, mail):
        with Client(broker.endpoints["emqp.clients"], "emqp") as client:
            for answer in client.call_many("email", [b"x"] * CALLS, return_errors=True):
                assert isinstance(answer, RequestFailed)
        with (
            Client(broker.endpoints["majordomo.clients"], "mdr") as client,
            pytest.raises(RequestFailed, match="expired"),
        ):
            client.submit("fax", b"anybody?", patient(20)).result(patient(20))
        for name in ("ada", "bob"):
            assert run(["send", "email", name, "--guarantee", "--data-dir", str(broker.data_dir)]) == 0
        until(lambda: archived(journal)["dead"] >= 3, "the dead letters")

        # The alert, on the bus.
        with zmq.Context() as context:
            place = broker.endpoints["ebus.subscribe"]
            with Subscription("ebus", ("polybus.alert.email",), place, context) as heard:
                alarm = Alarm(None, broker.data_dir)
                rules = read_rules(["error_rate=50%"])
                Pipeline(spark, str(journal), str(tables), rules=rules, alarm=alarm).build()
                found = heard.get(patient(20))
        assert found is not None
        assert found[0] == "polybus.alert.email"
        alert = json.loads(found[1])
        assert (alert["rule"], alert["service"], alert["value"], alert["threshold"]) == (
            *("error_rate", "email"),
            *(1.0, 0.5),
        )
        assert "failed or expired" in capsys.readouterr().err
        subjects = {row["subject"] for row in read_table(str(tables), "alerts").to_pylist()}
        assert subjects == {"email", "fax"}

        # The way back.
        kept = {row["token"] for row in json.loads(jobs("dead", "--json")[1])}
        assert len(kept) == 2
        which = 'service = "email" AND detail LIKE "%smtp%"'
        assert set(told(which, "--dry-run")["would_retry"]) == kept
        assert {row["token"] for row in json.loads(jobs("dead", "--json")[1])} == kept
        status, out, err = jobs("retry", "--from-table", 'service = "fax"', "--dry-run")
        assert status == 0
        assert "not kept by the broker: 1" in out
        assert "polybus journal replay --token" in err
        status, _, err = jobs("retry", "--from-table", 'servce = "email"')
        assert status == 2
        assert "`servce` cannot be resolved" in err
        assert "SQLSTATE" not in err
        assert "Traceback" not in err
        status, _, err = jobs("retry", "--from-table", "service = = 1")
        assert status == 2
        assert "Syntax error" in err
        status, _, err = jobs("retry", "--from-table", 'service = "nobody"')
        assert status == 0
        assert "no dead letter" in err
        mail.works = True
        status, out, _ = jobs("retry", "--from-table", which)
        assert status == 0
        assert "retried: 2, not kept by the broker: 0, refused: 0" in out
        with AdminClient(broker.endpoints["admin.port"]) as admin:
            until(lambda: all(admin.ask("job", job=token)["state"] == "done" for token in kept), "both")
        assert set(told(which)["gone"]) == kept


def test_an_empty_table_needs_no_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dead_letters, "_matching", lambda *_: pytest.fail("Spark was asked"))
    assert dead_letters.find_letters(str(tmp_path), "true") == []
    assert "is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `x` cannot be resolved. Did you mean one "
            "of the following? [`at`]. SQLSTATE: 42703; line 1 pos 0;\n'Filter ('x = 1)\n+- LogicalRDD",
            "A column with name `x` cannot be resolved. Did you mean one of the following? [`at`].",
        ),
        ("[PARSE_SYNTAX_ERROR] Syntax error at or near '='. SQLSTATE: 42601", "Syntax error at or near '='."),
        ("something else", "something else."),
    ],
)
def test_sparks_sentence(text: str, words: str) -> None:
    assert dead_letters.sentence(text) == words
