"""The lines that every guaranteed job costs: what is packed, and what is found in them again."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import msgpack
from msgspec.structs import replace

from polybus.core import rows
from polybus.core.ledger import Accepted, Attempt, Ended, JobEntry, Outcome
from polybus.core.model import JobOptions
from polybus.core.rows import new_accepted, new_ended
from support.ledgers import job, letter, token

OUTCOME = Outcome(token(1), "emqp", b"c", b"1", b"echo", 7.0, "failed", "it broke", [b"a", b"b"])


def options(number: int) -> JobOptions:
    return JobOptions(guarantee=True, backoff_s=1e6 + number)


@pytest.mark.parametrize("asked", [{}, {"retries": 3}, {"guarantee": True, "then": (b"x",), "group": b"g"}])
def test_of_options_only_what_is_not_as_usual_is_written(asked: dict[str, Any]) -> None:
    said = {name: list(value) if isinstance(value, tuple) else value for name, value in asked.items()}
    assert msgpack.decode(msgpack.encode(rows.pack_options(JobOptions(**asked)))) == said


def test_options_that_repeat_are_packed_once_and_not_kept_for_ever() -> None:
    """A broker sees more sets of options than it can remember: chains and groups may all differ."""
    first = rows.pack_options(options(0))
    again = []
    for number in range(1, 4):
        rows.pack_options(options(number))
        again.append(rows.pack_options(options(0)) is first)
    # It may have been time to forget all of them in between.
    assert sum(again) >= 2
    kept = [rows.pack_options(options(number)) for number in range(4, 3000)]
    assert rows.pack_options(options(0)) is not first
    assert rows.pack_options(options(0)) == first
    assert all(msgpack.decode(raw)["backoff_s"] == 1e6 + number for number, raw in enumerate(kept, 4))


def test_a_whole_job_is_found_again_in_its_row() -> None:
    history = (Attempt(1, 2.0, "w", "failed", "it broke"),)
    entry = job(1, due_at=9.0, attempt=2, worker="w", history=history)
    assert rows.unpack_job(rows.pack_job(entry)) == entry
    assert Accepted(entry).packed() == rows.pack_job(entry)


def test_a_new_job_is_written_as_it_was_packed() -> None:
    entry = job(1, expires_at=None)
    raw = rows.pack_options(entry.options)
    client = (entry.link, entry.identity, entry.request_id, entry.voice)
    row = rows.pack_new_job(entry.token, *client, entry.service, entry.body, raw, entry.accepted_at)
    for promised, is_new in ((False, True), (True, False)):
        line = new_accepted(entry.token, row, promised, is_new)
        assert (line.token, line.row, line.promised, line.is_new) == (entry.token, row, promised, is_new)
        assert line.packed() == row
        assert line.job == entry
        assert line == Accepted(entry, promised)
    # What is as usual at the end of an entry is not written.
    assert len(row) < len(rows.pack_job(entry))


def test_an_end_is_written_as_it_was_packed() -> None:
    row = rows.pack_answer(token(1), "emqp", b"c", b"1", b"echo", 7.0, [b"a"])
    line = new_ended(token(1), row)
    outcome = Outcome(token(1), "emqp", b"c", b"1", b"echo", 7.0, body=[b"a"])
    assert (line.token, line.dead, line.packed(), line.outcome) == (token(1), None, row, outcome)
    assert line == Ended(token(1), outcome)
    whole = Ended(token(1), OUTCOME)
    assert rows.unpack_outcome(whole.packed() or b"") == OUTCOME
    assert (Ended(token(1)).packed(), Ended(token(1)).outcome) == (None, None)


def test_lines_are_equal_if_they_say_the_same() -> None:
    accepted = Accepted(job(1))
    assert accepted == Accepted(job(1))
    assert hash(accepted) == hash(Accepted(job(1)))
    others: list[Any] = [
        Accepted(job(2)),
        Accepted(job(1), True),
        Accepted(job(1, attempt=1)),
        Ended(token(1)),
    ]
    for other in others:
        assert not accepted == other  # noqa: SIM201
        assert accepted != other
    ended = Ended(token(1), OUTCOME, letter(1))
    assert ended == Ended(token(1), OUTCOME, letter(1))
    assert hash(ended) == hash(Ended(token(1), OUTCOME, letter(1)))
    others = [Ended(token(2), OUTCOME, letter(1)), Ended(token(1), replace(OUTCOME, at=8.0), letter(1))]
    for other in (*others, Ended(token(1), OUTCOME), Ended(token(1), None, letter(1)), accepted):
        assert not ended == other  # noqa: SIM201
        assert ended != other


def test_a_row_without_fields_that_were_added_later_is_read() -> None:
    entry = job(1)
    said = [getattr(entry, name) for name in JobEntry.__struct_fields__[:8]]
    row = msgpack.encode([*said[:7], {"guarantee": True, "retries": 3}, entry.accepted_at])
    assert rows.unpack_job(row) == job(1, expires_at=None)


def test_lines_can_be_read_by_people() -> None:
    entry, dead = job(1), letter(1)
    assert repr(Accepted(entry, True)) == f"Accepted({entry!r}, True)"
    assert repr(Ended(token(1), OUTCOME, dead)) == f"Ended({token(1)!r}, {OUTCOME!r}, {dead!r})"
