"""Alerts on their way to the bus: thresholds from options, messages, and a bus that is not there."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import zmq

from polybus.cli.alarm import Alarm, broker_of, message, read_rules
from polybus.cli.options import WrongUse
from polybus.client.pubsub import Subscription
from polybus.spark.rules import Rules
from support.live import LiveBroker
from support.patience import patient
from support.waiting import until

ROW: dict[str, Any] = {
    "broker": "north",
    "rule": "error_rate",
    "subject": "mail",
    "window_start": datetime(2026, 5, 1, 12, 0, 10, tzinfo=UTC),
    "value": 0.35,
    "threshold": 0.1,
    "date": "2026-05-01",
}


@pytest.mark.parametrize(
    ("texts", "rules"),
    [
        (None, Rules()),
        (["error_rate=0.05"], Rules(error_rate=0.05)),
        (["error_rate=5%", "requests=20"], Rules(error_rate=0.05, least_requests=20)),
        (["slow=500ms"], Rules(slow_us=500_000)),
        (["slow=2 s"], Rules(slow_us=2_000_000)),
        (["slow=1.5m", "flapping=7"], Rules(slow_us=90_000_000, flaps=7)),
    ],
)
def test_rules(texts: list[str] | None, rules: Rules) -> None:
    assert read_rules(texts) == rules


@pytest.mark.parametrize(
    "text",
    [
        "loud=1",
        "error_rate",
        "error_rate=0",
        "error_rate=2",
        "error_rate=x",
        "slow=5",
        "slow=fast",
        "flapping=0",
    ],
)
def test_rules_that_are_none(text: str) -> None:
    with pytest.raises(WrongUse, match="--rule"):
        read_rules([text])


@pytest.mark.parametrize(
    ("rule", "value", "threshold", "words"),
    [
        ("error_rate", 0.35, 0.1, "35.0% of the requests to mail"),
        ("slow", 2_500_000.0, 1e6, "2.5 s"),
        ("silent", 4.0, 1.0, "nobody answers for mail: 4 requests"),
        ("flapping", 5.0, 3.0, "lost 5 workers in a minute"),
        ("of tomorrow", 5.0, 3.0, "of tomorrow of mail: 5"),
    ],
)
def test_messages(rule: str, value: float, threshold: float, words: str) -> None:
    found = message({**ROW, "rule": rule, "value": value, "threshold": threshold})
    assert words in found["text"]
    assert found["window_start"] == "2026-05-01T12:00:10+00:00"
    assert found["window_s"] == (60 if rule == "flapping" else 10)
    assert (found["service"], found["broker"], found["value"]) == ("mail", "north", value)


def test_nobody_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is said once, and nothing breaks."""
    alarm = Alarm(None, tmp_path)
    for _ in range(3):
        alarm([ROW])
    said = capsys.readouterr().err
    assert said.count("alerts are not published") == 1
    assert said.count("alert at 2026-05-01 12:00:10 UTC") == 3


def test_many_are_not_all_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Alarm(None, tmp_path)([ROW] * 8)
    said = capsys.readouterr().err
    assert said.count("alert at") == 5
    assert "and 3 alerts before that" in said


@pytest.mark.parametrize("dialect", ["ebus", "emqp"])
def test_subscribers_get_them_in_order(dialect: str, tmp_path: Path) -> None:
    with LiveBroker() as broker, zmq.Context() as context:
        place = broker["ebus.publish"]
        with Subscription(dialect, ("polybus.alert.",), broker[f"{dialect}.subscribe"], context) as heard:
            # A connection is not enough: what is published before the subscription comes as last values.
            until(lambda: broker.ask("status")["subscriptions"], "the subscription")
            later = {**ROW, "window_start": datetime(2026, 5, 1, 13, tzinfo=UTC), "subject": "größe"}
            Alarm(place, tmp_path)([later, ROW])
            found = [heard.get(patient(10)), heard.get(patient(10))]
    assert [one and one[0] for one in found] == ["polybus.alert.mail", "polybus.alert.größe"]
    assert found[0] is not None
    assert json.loads(found[0][1])["rule"] == "error_rate"


def test_the_broker_of_a_journal(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    journal = str(tmp_path / "data" / "journal")
    assert broker_of(journal, Path("var")) == Path("var")
    (tmp_path / "data" / "endpoints.json").write_text("{}")
    assert broker_of(journal, Path("var")) == tmp_path / "data"
