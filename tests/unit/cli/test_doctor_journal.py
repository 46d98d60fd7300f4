"""What the doctor says about the journal."""

from __future__ import annotations

from typing import Any

import pytest

from polybus.cli.doctor_journal import journal_findings

WELL: dict[str, Any] = {
    "journal": "on",
    "journal_written": 7,
    "journal_lost": 0,
    "archiver": "process 12",
    "archiver_behind_s": 0.5,
    "archiver_segments": 3,
    "archiver_damage": 0,
}
DAMAGED = {"archiver_damage": 2, "archiver_last_damage": "x.log: cut off"}


@pytest.mark.parametrize(
    ("facts", "marks", "words"),
    [
        ({}, ["ok", "ok"], "7 records written"),
        ({"journal": "off"}, ["ok"], "off"),
        ({"journal_lost": 5}, ["warn", "ok"], "5 lost"),
        ({"journal_bodies_dropped": 4}, ["warn", "ok"], "raise journal.buffer_bytes"),
        ({"journal": "it cannot be written: No space left"}, ["fail", "ok"], "the bus goes on"),
        ({"archiver": "off"}, ["ok", "ok"], "polybus archive"),
        ({"archiver": "off: it needs the package pyarrow"}, ["ok", "warn"], "pip install pyarrow"),
        ({"archiver": "No space left"}, ["ok", "warn"], "is it full"),
        ({"archiver_behind_s": 100.0}, ["ok", "warn"], "100 s behind"),
        (DAMAGED, ["ok", "warn"], "x.log: cut off"),
        ({"archiver_held_back": "tables has read up to 3 only"}, ["ok", "ok"], "tables has read"),
    ],
)
def test_what_is_found(facts: dict[str, Any], marks: list[str], words: str) -> None:
    found = list(journal_findings({**WELL, **facts}))
    assert [mark for _, mark, _, _ in found] == marks
    assert words in " ".join(f"{what} {advice}" for _, _, what, advice in found)
