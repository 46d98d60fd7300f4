"""`polybus status` for people: groups with headings, aligned, with units."""

from __future__ import annotations

from typing import Any

import pytest

from polybus.cli import status


def shown(capsys: pytest.CaptureFixture[str], answer: dict[str, Any]) -> str:
    status.show(answer)
    return capsys.readouterr().out


def test_lines_are_grouped_and_aligned_and_numbers_have_units(capsys: pytest.CaptureFixture[str]) -> None:
    answer = {
        "state": "serving",
        "clients": 3,
        "requests": 12345,
        "accepted": 7,
        "refusals": {"queue_full": 2},
        "pending_messages": 4,
        "pending_bytes": 5 * 1024 * 1024 // 2,
        "held_bytes": 12,
        "broker": "here",
        "pid": 4711,
        "up_s": 5.25,
        "endpoints": {"admin.port": "tcp://127.0.0.1:1"},
        "archiver_behind_s": 0.01,
        "news": True,
        "list": ["a", "b"],
    }
    text = shown(capsys, answer)
    assert (
        text
        == """\
broker
  broker            here
  state             serving
  process           4711
  up                   5.2 s

requests
  requests          12,345 unanswered
  held bytes            12 B
  accepted               7 requests

requests rejected, by reason
  queue full             2 requests

clients and answers that wait for them
  clients                3 clients
  pending messages       4 answers
  pending bytes        2.5 MiB

journal and archiver
  archiver behind       10 ms

others
  news              True
  list              a, b

endpoints
  admin.port        tcp://127.0.0.1:1
"""
    )


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1024, "1.0 KiB"), (1 << 20, "1.0 MiB"), (3 << 40, "3,072.0 GiB")],
)
def test_sizes(count: int, text: str) -> None:
    assert " ".join(status.size(count)) == text
