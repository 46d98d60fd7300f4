"""docs/protocol-notes.md names statements by their ids: they exist, and no dialect is left out."""

from __future__ import annotations

import re
from pathlib import Path

from conformance.ids import STATEMENTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocol-notes.md"
ID = re.compile(r"\b(?:EBUS|EMQP|MDR|MDP1|MDP2|MMI|DBP)-\d+\b")


def test_every_statement_that_is_named_exists() -> None:
    named = set(ID.findall(PAGE.read_text(encoding="utf-8")))
    assert named <= set(STATEMENTS)
    assert {ident.partition("-")[0] for ident in named} == {ident.partition("-")[0] for ident in STATEMENTS}


def test_every_gap_names_a_statement() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    gaps = [row for row in rows if not row.startswith("| gap ")]
    assert len(gaps) > 40
    assert [row for row in gaps if not ID.search(row.split(" | ")[1])] == []
