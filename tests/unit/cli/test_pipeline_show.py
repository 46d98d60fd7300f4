"""Tables in the terminal and in a pipe, and what a running pipeline tells of itself."""

from __future__ import annotations

import io
import os
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from rich.console import Console

from polybus.cli.pipeline_progress import Progress, waiting_since
from polybus.cli.pipeline_show import BRIEF, print_table, print_tables
from polybus.spark.batches import Batch
from polybus.spark.schema import TABLES

AT = datetime(2026, 5, 1, 8, 30, tzinfo=UTC)
SERVICE = "accounting.invoices.monthly-and-quarterly"
DETAIL = "ValueError: " + "no-money-" * 20


@pytest.fixture
def place(tmp_path: Path) -> str:
    schema = TABLES["dead_letters"].schema
    row = {"at": AT, "token": "5f3a9c01-17", "service": SERVICE, "attempts": 5, "reason": "failed"}
    full = {name: {**row, "detail": DETAIL}.get(name) for name in schema.names}
    write_deltalake(str(tmp_path / "dead_letters"), pa.Table.from_pylist([full], schema))
    return str(tmp_path)


def test_a_pipe_gets_every_character(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_table(place, "dead_letters", 10, json_=False)
    text = capsys.readouterr().out
    (line,) = [line for line in text.splitlines() if "5f3a9c01-17" in line]
    assert SERVICE in line
    assert DETAIL in line
    print_tables(place, json_=False)
    assert "2026-05-01 08:30:00" in capsys.readouterr().out


def shown(place: str, width: int) -> list[str]:
    out = io.StringIO()
    print_table(place, "dead_letters", 10, json_=False, console=Console(file=out, width=width))
    return out.getvalue().splitlines()


def test_a_narrow_terminal_gets_a_line_for_each_column(place: str) -> None:
    lines = shown(place, 80)
    assert max(map(len, lines)) <= 80
    text = "".join(line.strip() for line in lines)
    assert SERVICE in text
    assert "row 1" in lines[1]
    heads = [line.strip() for line in lines if line[:1].strip()]
    assert all(
        any(head.startswith(name.replace("_", " ")) for head in heads) for name in BRIEF["dead_letters"]
    )
    # It goes on in the next lines, without a letter missing.
    assert DETAIL.replace(" ", "") in "".join(text.split())


def test_a_wide_terminal_gets_a_table(place: str) -> None:
    assert any(SERVICE in line and DETAIL[:40] in line for line in shown(place, 400))


def batch(**facts: Any) -> Batch:
    newest = datetime.now(UTC) - timedelta(seconds=34)
    name = f"{7:012}-0a.parquet"
    return Batch(**{"number": 3, "rows": 4, "seconds": 14.2, "newest": newest, "upto": name, **facts})


def segment(journal: Path, number: int) -> Path:
    path = journal / "segments" / "date=2026-05-01" / "hour=08" / f"{number:012}-0a.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_an_idle_pipeline_is_not_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment(tmp_path, 7)
    Progress(str(tmp_path), as_json=False).tell(batch())
    assert capsys.readouterr().err == "batch 3: 4 rows in 14.2 s, up to date\n"


def test_a_pipeline_is_as_far_behind_as_the_oldest_segment_that_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.time()
    for number, age_s in ((7, 500.0), (8, 50.0), (9, 5.0)):
        os.utime(segment(tmp_path, number), (began, began - age_s))
    assert waiting_since(tmp_path, batch().upto) == pytest.approx(began - 50.0)
    Progress(str(tmp_path), as_json=False).tell(batch(rows=100_000, seconds=2.0))
    told = capsys.readouterr().err
    found = re.search(r"100,000 rows in 2\.0 s \(50,000 a second\), ([\d.]+) s behind\n$", told)
    assert found, told
    assert 50.0 <= float(found[1]) <= 50.1 + time.time() - began


def test_of_a_journal_elsewhere_only_the_age_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    Progress("s3://bucket/journal", as_json=False).tell(batch(rows=1))
    assert "1 row in 14.2 s, the newest is 34." in capsys.readouterr().err
