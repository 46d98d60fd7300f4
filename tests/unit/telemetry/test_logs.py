"""Lines on standard error, for people and for programs."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator

import pytest

from polybus.telemetry import logs

RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


@pytest.fixture
def as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(logs.VARIABLE, "json")


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("shop.orders")
    handler = logs.JsonHandler()
    logger.addHandler(handler)
    logger.propagate = False
    yield logger
    logger.removeHandler(handler)
    logger.propagate = True


def test_text_is_for_people(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(logs.VARIABLE, raising=False)
    logs.log("a thing happened", "warning", broker="b")

    assert re.fullmatch(r"\d\d:\d\d:\d\d polybus: a thing happened\n", capfd.readouterr().err)


@pytest.mark.usefixtures("as_json")
def test_a_line_is_one_object(capfd: pytest.CaptureFixture[str]) -> None:
    logs.log("a thing\nhappened", "warning", "polybus.worker", job="j1", attempt=2)

    (line,) = capfd.readouterr().err.splitlines()
    record = json.loads(line)
    assert RFC_3339.fullmatch(record.pop("at"))
    assert record == {
        "level": "warning",
        "logger": "polybus.worker",
        "message": "a thing\nhappened",
        "fields": {"job": "j1", "attempt": 2},
    }


@pytest.mark.usefixtures("as_json")
def test_records_of_logging_go_the_same_way(
    capfd: pytest.CaptureFixture[str], logger: logging.Logger
) -> None:
    try:
        raise ValueError("no luck")
    except ValueError:
        logger.exception("order %d", 7, extra={"customer": "ann", "odd": object})

    record = json.loads(capfd.readouterr().err)
    assert (record["level"], record["logger"], record["message"]) == ("error", "shop.orders", "order 7")
    assert record["fields"]["customer"] == "ann"
    assert "object" in record["fields"]["odd"]
    assert record["fields"]["exception"].endswith("ValueError: no luck\n")


@pytest.mark.usefixtures("as_json")
def test_what_json_cannot_hold_is_told_all_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    endless: list[object] = []
    endless.append(endless)
    logs.log("lone \ud800", endless=endless)

    record = json.loads(capfd.readouterr().err)
    assert record["message"] == "lone ?"
    assert "endless" in record["fields"]["repr"]


@pytest.mark.usefixtures("as_json")
def test_the_trace_is_named_if_there_is_one(capfd: pytest.CaptureFixture[str]) -> None:
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    tracer = trace.TracerProvider().get_tracer("test")

    with tracer.start_as_current_span("x") as span:
        logs.log("inside")
    logs.log("outside")

    inside, outside = map(json.loads, capfd.readouterr().err.splitlines())
    context = span.get_span_context()
    assert inside["trace_id"] == format(context.trace_id, "032x")
    assert inside["span_id"] == format(context.span_id, "016x")
    assert "trace_id" not in outside


def test_what_anybody_can_cause_is_logged_rarely() -> None:
    now = [0.0]
    written: list[tuple[str, str]] = []
    rare = logs.Rare(10.0, lambda: now[0], lambda text, level: written.append((text, level)))
    for text in ("a", "b", "c"):
        rare(text)
    assert written == [("a", "warning")]
    now[0] = 10.0
    rare("d")
    assert written[1:] == [("d (2 others like this were not logged)", "warning")]
    now[0] = 20.0
    rare("e")
    assert written[2:] == [("e", "warning")]
