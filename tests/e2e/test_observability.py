"""What the outside sees of real processes: metrics as Prometheus scrapes them, and JSON lines.

The dashboard for Grafana in examples/ is checked against the same scrape.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from polybus import Client, RequestFailed
from support.commands import Running, Served, closing
from support.prometheus import families, problems, series
from support.waiting import until
from support.web_process import Dashboard

GRAFANA = Path(__file__).resolve().parents[2] / "examples" / "grafana" / "polybus.json"

DOCUMENT = GRAFANA.parents[2] / "docs" / "observability.md"

APP = """
import logging
from polybus import Bus
bus = Bus()

@bus.service("hello")
def hello(body: bytes) -> bytes:
    logging.getLogger("shop").warning("asked", extra={"size": len(body)})
    if body == b"fail":
        raise ValueError("no luck")
    return b"hello " + body
"""


class Watched:
    """Everything with JSON lines: a broker with its archiver, a worker, a dashboard with a table."""

    def __init__(self, broker: Served, worker: Running, web: Dashboard) -> None:
        self.broker, self.worker, self.web = broker, worker, web

    def scrape(self) -> str:
        answer = self.web.get("/metrics")
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/plain; version=")
        return answer.body.decode()

    def value(self, name: str, **labels: str) -> float | None:
        return series(self.scrape()).get((name, frozenset(labels.items())))


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    (folder / "app.py").write_text(APP)
    write_deltalake(str(folder / "tables" / "calls"), pa.table({"requests": [1, 2]}))
    env = {"POLYBUS_LOG_FORMAT": "json", "POLYBUS_JOURNAL_ARCHIVE": "true", "PYTHONPATH": str(folder)}
    with closing(Served(folder, env=env)) as broker:
        data = str(broker.data_dir)
        with closing(
            Running("worker", "app:bus", "-c", "1", "--data-dir", data, cwd=folder, env=env)
        ) as worker:
            worker.wait_for(worker.output, "ready")
            tables = str(folder / "tables")
            with closing(Dashboard(folder, "--data-dir", data, "--tables", tables, env=env)) as web:
                yield Watched(broker, worker, web)


def call(watched: Watched, *bodies: bytes) -> list[bytes | RequestFailed]:
    with Client(watched.broker.endpoints["majordomo.clients"]) as client:
        return list(client.call_many("hello", bodies, return_errors=True))


def test_metrics_of_real_traffic_pass_the_lint(watched: Watched) -> None:
    # From the first scrape on it is counted how long requests take.
    assert not problems(watched.scrape())
    call(watched, *[b"x"] * 20)

    # Answers of the broker are shared for a moment.
    until(lambda: watched.value("polybus_requests_answered_total", service="hello") == 20, "the answers")
    text = watched.scrape()

    assert not problems(text)
    found = series(text)
    hello = frozenset({("service", "hello")})
    assert found["polybus_requests_accepted_total", hello] == 20
    assert found["polybus_requests_answered_total", hello] == 20
    assert found["polybus_request_duration_seconds_count", hello] == 20
    assert 0 < found["polybus_request_duration_seconds_sum", hello] < 60
    assert found["polybus_workers", frozenset({("dialect", "emqp")})] == 1
    assert found["polybus_up", frozenset()] == 1
    assert found["polybus_journal_up", frozenset()] == 1


def test_refusals_are_counted_by_reason(watched: Watched) -> None:
    with Client(watched.broker.endpoints["majordomo.clients"]) as client, pytest.raises(RequestFailed):
        client.call("polybus.nothing")

    until(lambda: watched.value("polybus_requests_refused_total", reason="rejected") == 1, "the refusal")


def test_grafana_asks_for_metrics_that_exist(watched: Watched) -> None:
    # How far the pipeline is, is found out behind the back of the first scrape.
    until(lambda: watched.value("polybus_pipeline_lag_segments") is not None, "the pipeline's lag")
    text = watched.scrape()
    names = {sample.name for family in families(text).values() for sample in family.samples}
    labels = {label for _, pairs in series(text) for label, _ in pairs}

    queries = list(_queries(json.loads(GRAFANA.read_text())))

    assert len(queries) > 30
    asked = {name for query in queries for name in re.findall(r"\bpolybus_\w+", query)}
    assert asked - names == set()
    # So do those that the documents name; a histogram is named as a whole.
    told = set(re.findall(r"\bpolybus_[a-z_]+", DOCUMENT.read_text()))
    assert told - names - families(text).keys() == set()
    grouped = {
        label.strip()
        for query in queries
        for by in re.findall(r"\bby \(([^)]*)\)", query)
        for label in by.split(",")
    }
    shown = {label for query in queries for label in re.findall(r"\{\{(\w+)\}\}", query)}
    # Prometheus itself adds the job.
    assert (grouped | shown) - labels == set()


def _queries(value: Any) -> Iterator[str]:
    """Everything in the file that Prometheus is asked, and what it is called in legends."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("expr", "legendFormat", "definition") and isinstance(inner, str):
                yield inner
            yield from _queries(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _queries(inner)


def test_every_line_is_an_object(watched: Watched) -> None:
    """The last test: it ends the processes."""
    (answer,) = call(watched, b"fail")
    assert isinstance(answer, RequestFailed)
    until(lambda: any("no luck" in line for line in watched.worker.errors), "the failure")

    for process in (watched.web, watched.worker, watched.broker):
        process.end(signal.SIGTERM)

    records = {
        name: [json.loads(line) for line in process.errors]
        for name, process in (("broker", watched.broker), ("worker", watched.worker), ("web", watched.web))
    }
    for record in (record for lines in records.values() for record in lines):
        assert record.keys() >= {"at", "level", "logger", "message"}, record
    up = next(
        record for record in records["broker"] if record["message"].startswith("broker 'polybus' is up")
    )
    assert up["fields"]["pid"] == watched.broker.process.pid
    assert records["broker"][-1]["message"] == "stopped; everything was answered"
    said = [record for record in records["worker"] if record["logger"] == "shop"][-1]
    assert (said["level"], said["message"], said["fields"]) == ("warning", "asked", {"size": len(b"fail")})
    (failed,) = (record for record in records["worker"] if record["logger"] == "polybus.job")
    assert failed["message"] == "ValueError: no luck"
    assert failed["fields"]["queue"] == "hello"
    assert 'raise ValueError("no luck")' in failed["fields"]["exception"]
