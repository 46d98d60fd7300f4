"""Times as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from polybus.cli.journal_places import read_time
from polybus.cli.options import WrongUse

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("90", timedelta(seconds=90)),
        ("1.5m", timedelta(seconds=90)),
        ("2h", timedelta(hours=2)),
        ("1d", timedelta(days=1)),
        ("250ms", timedelta(milliseconds=250)),
    ],
)
def test_a_while_ago(text: str, ago: timedelta) -> None:
    assert read_time(text, "--since", NOW) == NOW - ago


def test_clocks_and_dates() -> None:
    assert read_time("", "--since") is None
    here = NOW.astimezone()
    assert read_time("08:30", "--since", NOW) == here.replace(hour=8, minute=30)
    assert read_time("8:30:05", "--since", NOW) == here.replace(hour=8, minute=30, second=5)
    assert read_time("2026-05-01", "--since", NOW) == datetime(2026, 5, 1).astimezone()
    assert read_time("2026-05-01T08:30+02:00", "--since", NOW) == datetime(2026, 5, 1, 6, 30, tzinfo=UTC)
    for text in ("soon", "25:99", "2026-13-01"):
        with pytest.raises(WrongUse, match="--since"):
            read_time(text, "--since", NOW)
