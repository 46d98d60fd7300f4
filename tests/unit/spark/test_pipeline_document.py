"""docs/pipeline.md names every column of every table, and its programs run."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from polybus.cli.alarm import read_rules
from polybus.spark.rules import Rules
from polybus.spark.schema import TABLES
from support.documents import ROOT, blocks

DOCUMENT = ROOT / "docs" / "pipeline.md"


def documented() -> dict[str, list[str]]:
    """The columns of each table, as the document has them."""
    found: dict[str, list[str]] = {}
    for part in re.split(r"^### ", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        name = re.match(r"`(\w+)`", part)
        assert name is not None, part[:40]
        found[name[1]] = re.findall(r"^\| `(\w+)` \| .+ \|$", part, re.MULTILINE)
    return found


def test_every_column_is_explained() -> None:
    assert documented() == {name: table.schema.names for name, table in TABLES.items()}


def test_the_rules_are_those_of_the_code() -> None:
    """What the document calls the usual limits."""
    assert read_rules(["error_rate=10%", "slow=1s", "flapping=3", "requests=10"]) == Rules()


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    at = datetime(2026, 5, 1, tzinfo=UTC)
    rows: dict[str, dict[str, Any]] = {
        "service_metrics": {"service": "mail", "window_start": at, "rate": 1.0, "service_p95_us": 77},
        "traces": {"service": "mail", "outcome": "failed", "reason": "boom", "date": "2026-05-01"},
    }
    for name, row in rows.items():
        schema = TABLES[name].schema
        full = {column: row.get(column) for column in schema.names}
        write_deltalake(f"var/tables/{name}", pa.Table.from_pylist([full], schema))


@pytest.mark.parametrize(("program", "words"), [("with_pandas.py", "mail    77"), ("with_duckdb.py", "boom")])
@pytest.mark.usefixtures("tables")
def test_programs_run(program: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    if program == "with_duckdb.py":
        pytest.importorskip("duckdb")
    (text,) = [block.text for block in blocks(DOCUMENT) if block.text.startswith(f"# {program}\n")]
    exec(compile(text, program, "exec"), {})
    assert words in capsys.readouterr().out
