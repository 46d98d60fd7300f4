"""What the log says of answers that were lost for want of room: enough, and not too often."""

from __future__ import annotations

from typing import Any

import pytest

from polybus.core.model import Limits
from polybus.server import lost_answers
from polybus.server.lost_answers import IN_ALL, INTERVAL_S, PER_CLIENT, LostAnswers

NOW = 100.0
LIMITS = Limits(pending_bytes_per_client=5000, pending_bytes=9000)
ANN, BOB = (1, b"ann"), (1, b"bob")


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.fields: list[dict[str, Any]] = []

    def __call__(self, text: str, level: str, **fields: Any) -> None:
        assert level == "warning"
        self.lines.append(text)
        self.fields.append(fields)


def test_a_line_names_count_client_limit_and_remedy() -> None:
    log = Log()
    lost = LostAnswers(log)
    lost.tick(LIMITS, NOW)
    assert not log.lines, "nothing was lost"
    for _ in range(3):
        lost.note(ANN, PER_CLIENT)
    lost.tick(LIMITS, NOW)
    (line,) = log.lines
    assert line.startswith("3 answers were lost, of the client ann")
    assert "limits.pending_bytes_per_client = 5000 bytes" in line
    assert "or raise limits.pending_bytes_per_client" in line
    assert log.fields == [
        {"lost": 3, "client": "ann", "clients": 1, "setting": PER_CLIENT, "limit_bytes": 5000}
    ]
    assert lost.facts() == {"answers_lost_at": {PER_CLIENT: 3}}


def test_one_line_in_an_interval_with_the_count_since_the_last_one() -> None:
    log = Log()
    lost = LostAnswers(log)
    lost.note(ANN, PER_CLIENT)
    lost.tick(LIMITS, NOW)
    for second in range(1, int(INTERVAL_S)):
        lost.note(BOB, IN_ALL)
        lost.tick(LIMITS, NOW + second)
    assert len(log.lines) == 1
    lost.note(ANN, IN_ALL)
    lost.tick(LIMITS, NOW + INTERVAL_S)
    assert [fields["lost"] for fields in log.fields] == [1, int(INTERVAL_S)]
    assert "of 2 clients, most of them of bob" in log.lines[1]
    assert "limits.pending_bytes = 9000 bytes" in log.lines[1]
    lost.tick(LIMITS, NOW + 3 * INTERVAL_S)
    assert len(log.lines) == 2, "nothing is new"


def test_a_broker_that_stops_does_not_wait_for_the_interval() -> None:
    log = Log()
    lost = LostAnswers(log)
    lost.write(LIMITS, NOW)
    assert not log.lines
    for now in (NOW, NOW + 1):
        lost.note(ANN, PER_CLIENT)
        lost.write(LIMITS, now)
    assert [line.split(",")[0] for line in log.lines] == ["1 answer was lost"] * 2


def test_so_many_clients_are_counted_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_answers, "MAX_CLIENTS", 2)
    log = Log()
    lost = LostAnswers(log)
    for client in (ANN, BOB, (1, b"eve"), ANN):
        lost.note(client, PER_CLIENT)
    lost.tick(LIMITS, NOW)
    assert log.lines[0].startswith("4 answers were lost, of 2 clients or more, most of them of ann")
