"""`verify`: what is right passes, and everything that can be wrong is found and named."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from polybus.core.ledger import GUARANTEED, REVIVED
from polybus.errors import JournalMoved
from polybus.journal import fates
from polybus.journal import verify as verify_module
from polybus.journal.archiver import write_note
from polybus.journal.columns import SCHEMA
from polybus.journal.log import OPEN, LogHead, write_head
from polybus.journal.reader import hour_of, segment_files
from polybus.journal.record import Row
from polybus.journal.retention import RETAINED, Retained
from polybus.journal.verify import Verdict, verify
from support.journals import HOUR_US, NOON_US, SECOND_US, Logs, everything, life_of

NOW = datetime.fromtimestamp(NOON_US / 1e6, UTC)
WHOLE = ("dispatched", "replied")


def started(at_us: int = NOON_US) -> Row:
    return Row("started", at_us)


def stopped(at_us: int) -> Row:
    return Row("stopped", at_us)


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


def wrong(verdict: Verdict) -> list[tuple[str, str]]:
    return [(problem.kind, problem.token) for problem in verdict.problems]


def test_a_journal_in_order(logs: Logs) -> None:
    logs.write([started()])
    for number in range(3):
        at = NOON_US + number * HOUR_US // 2
        logs.write([row for n in range(20) for row in life_of(f"life-{number}{n:02}", at + n * 5000, *WHOLE)])
        if number < 2:
            logs.archive()
    logs.write(
        [
            *life_of("life-a", NOON_US, "dispatched", "retried", "dispatched", "partial", "replied"),
            *life_of("life-b", NOON_US, "dispatched", "requeued", "dispatched", "failed", "dead"),
            *life_of("life-c", NOON_US, "expired", "dead"),
            *life_of("life-d", NOON_US, "dispatched", "cancelled", "late"),
            stopped(NOON_US + 2 * HOUR_US),
        ]
    )
    verdict = verify(logs.journal)
    assert (verdict.problems, verdict.counts, verdict.holes) == ([], {}, [])
    assert verdict.ends == {"cancelled": 1, "expired": 1, "failed": 1, "replied": 61}
    assert (verdict.requests, verdict.lives, verdict.killed, verdict.segments, verdict.logs) == (
        64,
        1,
        0,
        2,
        2,
    )
    assert msgspec.json.encode(verdict)


def test_an_empty_journal_is_in_order(tmp_path: Path) -> None:
    assert verify(tmp_path).is_well


def test_what_is_open_is_listed(logs: Logs) -> None:
    logs.write(
        [started(), *life_of("life-1", NOON_US), *life_of("life-2", NOON_US, "dispatched")], suffix=OPEN
    )
    verdict = verify(logs.journal, is_running=True)
    assert verdict.is_well
    assert [fate.token for fate in verdict.fates["open"]] == ["life-1", "life-2"]
    assert "dispatched at 2023-11-14" in verdict.fates["open"][1].text


def test_what_a_killed_broker_had_is_lost_with_it(logs: Logs) -> None:
    logs.write([started(), *life_of("life-1", NOON_US, "dispatched")])
    logs.write([started(NOON_US + SECOND_US)], life="next")
    verdict = verify(logs.journal, is_running=True)
    assert verdict.is_well
    (fate,) = verdict.fates["lost"]
    assert fate.token == "life-1"
    assert "the broker was killed at" in fate.text
    assert verdict.killed == 1


def test_a_job_over_a_restart(logs: Logs) -> None:
    first = life_of("life-1", NOON_US, "dispatched", reason=GUARANTEED)
    logs.write([started(), *first])
    rest = life_of("life-1", NOON_US + SECOND_US, "requeued", "dispatched", "replied")[1:]
    logs.write([started(NOON_US + SECOND_US), *rest, stopped(NOON_US + 2 * SECOND_US)], life="next")
    verdict = verify(logs.journal, kept={}.get)
    assert (verdict.problems, verdict.counts) == ([], {})


def test_a_job_whose_acceptance_went_with_a_killed_broker(logs: Logs) -> None:
    logs.write([started()])
    logs.write([started(NOON_US + SECOND_US), *life_of("life-1", NOON_US, *WHOLE)[1:]], life="next")
    assert verify(logs.journal).is_well
    # One that said goodbye takes nothing along.
    logs.write([stopped(NOON_US + 1)])
    assert wrong(verify(logs.journal)) == [("P2", "life-1")]


def test_an_orphan_that_is_answered_after_a_restart(logs: Logs) -> None:
    logs.write([started(), *life_of("life-1", NOON_US, "dispatched", reason=GUARANTEED)])
    # The next life does not know when it was given to its worker.
    logs.write([started(), life_of("life-1", NOON_US, "replied")[1]], life="next")
    assert (verify(logs.journal, kept={}.get).problems) == []


def test_a_revived_job_ends_twice(logs: Logs) -> None:
    once = life_of("life-1", NOON_US, "dispatched", "failed", "dead", reason=GUARANTEED)
    again = life_of("life-1", NOON_US + SECOND_US, *WHOLE, reason=REVIVED)
    logs.write([started(), *once, *again])
    assert verify(logs.journal).is_well
    logs.write(life_of("life-1", NOON_US + 2 * SECOND_US, *WHOLE, reason=REVIVED))
    assert verify(logs.journal).is_well


def test_an_end_that_was_not_on_disk(logs: Logs) -> None:
    logs.write([started(), *life_of("life-1", NOON_US, *WHOLE, reason=GUARANTEED)])
    rest = life_of("life-1", NOON_US + SECOND_US, *WHOLE)[1:]
    logs.write([started(NOON_US + SECOND_US), *rest], life="next")
    verdict = verify(logs.journal)
    assert verdict.is_well
    assert verdict.counts == {"again": 1}


def test_two_ends(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Far apart, too: when the second comes the first is forgotten long ago."""
    monkeypatch.setattr(fates.Fates.__init__, "__defaults__", (5,))
    logs.write([started(), *life_of("life-1", NOON_US, *WHOLE)])
    logs.archive()
    logs.write([row for n in range(2, 9) for row in life_of(f"life-{n}", NOON_US + n * 5000, *WHOLE)])
    logs.write(life_of("life-1", NOON_US + SECOND_US, "cancelled")[1:])
    verdict = verify(logs.journal)
    assert wrong(verdict) == [("P3", "life-1")]
    assert "it ended twice: replied at" in verdict.problems[0].text
    # In another life, but the first had time to write it down.
    logs.write([Row("beat", NOON_US + HOUR_US)])
    logs.write([started(NOON_US + 2 * HOUR_US), *life_of("life-2", NOON_US, "replied")[1:]], life="next")
    assert wrong(verify(logs.journal)) == [("P3", "life-1"), ("P3", "life-2")]


def test_what_cannot_be(logs: Logs) -> None:
    logs.write(
        [
            started(),
            *life_of("life-1", NOON_US, "replied"),
            *life_of("life-2", NOON_US, "dispatched", "replied", "dispatched"),
            *life_of("life-3", NOON_US, "dispatched", "replied")[1:],
            Row("expired", NOON_US, token=b"life-4"),
            *life_of("life-5", NOON_US),
            *life_of("life-5", NOON_US, *WHOLE),
            *life_of("life-6", NOON_US, *WHOLE),
        ]
    )
    verdict = verify(logs.journal)
    assert wrong(verdict) == [
        ("P3", "life-1"),
        ("P3", "life-2"),
        ("P2", "life-3"),
        ("P2", "life-4"),
        ("P2", "life-4"),
        ("P2", "life-5"),
    ]


def test_guarantees_are_checked_against_the_store(logs: Logs) -> None:
    logs.write(
        [
            started(),
            *life_of("life-1", NOON_US, "dispatched", reason=GUARANTEED),
            *life_of("life-2", NOON_US, "dispatched", reason=GUARANTEED),
            *life_of("life-3", NOON_US, "dispatched", reason=GUARANTEED),
            *life_of("life-4", NOON_US, reason=GUARANTEED),
            Row("beat", NOON_US + 60 * SECOND_US),
            *life_of("life-5", NOON_US + 60 * SECOND_US, reason=GUARANTEED),
        ]
    )
    logs.write([started(NOON_US + 70 * SECOND_US)], life="next")
    kept = {"life-1": "open", "life-2": "ended"}
    verdict = verify(logs.journal, kept=kept.get, now=NOW, is_running=True)
    assert wrong(verdict) == [("P1", "life-3"), ("P1", "life-4")]
    named = {kind: [fate.token for fate in found] for kind, found in verdict.fates.items()}
    assert named == {"open": ["life-1"], "unsure": ["life-2"], "lost": ["life-5"]}
    assert "its client was told nothing" in verdict.fates["lost"][0].text
    # One of them ended between the reading and the asking.
    asked: list[str] = []

    def ends_meanwhile(token: str) -> str | None:
        if not asked:
            logs.write(life_of("life-3", NOON_US + 80 * SECOND_US, "replied")[1:], life="next")
        asked.append(token)
        return kept.get(token)

    verdict = verify(logs.journal, kept=ends_meanwhile, now=NOW, is_running=True)
    assert wrong(verdict) == [("P1", "life-4")]
    # Nobody asked the store: then nobody can say that they are lost.
    assert verify(logs.journal).counts == {"open": 4}


def test_a_killed_broker_and_a_store_that_has_forgotten_leave_a_doubt(logs: Logs) -> None:
    """Its answer may have been told in the last milliseconds; a store keeps outcomes only for a while."""
    logs.write(
        [
            started(),
            *life_of("life-1", NOON_US, "dispatched", reason=GUARANTEED),
            Row("beat", NOON_US + 60 * SECOND_US),
        ]
    )
    logs.write([started(NOON_US + 70 * SECOND_US)], life="next")
    verdict = verify(logs.journal, kept={}.get, now=NOW + timedelta(days=400), is_running=True)
    assert wrong(verdict) == []
    assert [fate.token for fate in verdict.fates["unsure"]] == ["life-1"]
    assert "the store has forgotten it" in verdict.fates["unsure"][0].text


def test_numbers(logs: Logs) -> None:
    logs.write([started(), *life_of("life-1", NOON_US, *WHOLE)])
    logs.archive()
    logs.skip(5)
    logs.write(life_of("life-2", NOON_US, *WHOLE))
    verdict = verify(logs.journal)
    assert verdict.is_well
    assert [(hole.first, hole.last, hole.records) for hole in verdict.holes] == [(5, 9, 5)]
    logs.archive()
    assert verify(logs.journal).holes == verdict.holes
    # A segment that somebody copied, and one that somebody removed.
    first, second = segment_files(logs.journal)
    copy = first.with_name("000000000009-00000000.parquet")
    copy.write_bytes(first.read_bytes())
    (problem,) = [p for p in verify(logs.journal).problems if p.kind == "numbers"]
    assert "4 records are there twice: 1 to 4" in problem.text
    copy.unlink()
    logs.write(life_of("life-3", NOON_US + HOUR_US, *WHOLE))
    logs.archive()
    second.unlink()
    (problem,) = verify(logs.journal).problems
    assert "8 records are missing and nothing says why: 5 to 12" in problem.text


def test_what_may_be_in_a_hole_is_not_called_lost(logs: Logs) -> None:
    logs.write([started(), *life_of("life-1", NOON_US, "dispatched")])
    logs.skip(1)
    logs.write([*life_of("life-2", NOON_US, *WHOLE)[1:], stopped(NOON_US + SECOND_US)])
    verdict = verify(logs.journal)
    assert verdict.is_well
    assert verdict.counts == {"unsure": 1}


def loss(at_us: int, size: int) -> Row:
    return Row("records_lost", at_us, size=size, reason="journal.buffer_bytes", detail="the buffer is full")


@pytest.mark.parametrize("archived", [False, True])
def test_what_may_be_in_a_hole_of_a_running_broker_is_not_called_open(logs: Logs, archived: bool) -> None:
    logs.write([started(), *life_of("life-1", NOON_US, "dispatched")])
    logs.skip(7)
    logs.write([*life_of("life-2", NOON_US + SECOND_US, "dispatched")])
    logs.skip(2)
    later = NOON_US + 2 * SECOND_US
    logs.write([loss(later, 9), *life_of("life-3", later, "dispatched")])
    if archived:
        logs.archive()
    verdict = verify(logs.journal, is_running=True)
    assert verdict.is_well
    assert verdict.counts == {"unsure": 2, "open": 1}
    assert [fate.token for fate in verdict.fates["open"]] == ["life-3"]
    texts = {fate.token: fate.text for fate in verdict.fates["unsure"]}
    assert "the 9 records that are missing since then, before 2023-11-14 22:00:02" in texts["life-1"]
    assert "the 2 records that are missing since then, before 2023-11-14 22:00:02" in texts["life-2"]
    assert all(text.endswith(": the buffer is full") for text in texts.values())
    assert [(hole.records, hole.why) for hole in verdict.holes] == [
        (7, "the buffer is full"),
        (2, "the buffer is full"),
    ]


def test_the_store_knows_which_jobs_are_open_though_records_are_missing(logs: Logs) -> None:
    logs.write(
        [
            started(),
            *life_of("life-1", NOON_US, "dispatched", reason=GUARANTEED),
            *life_of("life-2", NOON_US, "dispatched", reason=GUARANTEED),
            *life_of("life-3", NOON_US, "dispatched", reason=GUARANTEED),
        ]
    )
    logs.skip(7)
    logs.write([Row("beat", NOON_US + SECOND_US)])
    kept = {"life-1": "open", "life-2": "ended"}
    verdict = verify(logs.journal, kept=kept.get, now=NOW, is_running=True)
    assert verdict.is_well
    named = {kind: [fate.token for fate in found] for kind, found in verdict.fates.items()}
    assert named == {"open": ["life-1"], "unsure": ["life-2", "life-3"]}


def test_what_was_removed_because_of_its_age_is_not_missing(logs: Logs) -> None:
    logs.write([started(), *life_of("life-1", NOON_US), *life_of("life-2", NOON_US, *WHOLE)])
    logs.archive()
    (old,) = segment_files(logs.journal)
    logs.write(
        [*life_of("life-1", NOON_US + HOUR_US, *WHOLE)[1:], *life_of("life-3", NOON_US + HOUR_US, *WHOLE)]
    )
    logs.archive()
    old.unlink()
    # Not if nobody knows of it.
    assert {problem.kind for problem in verify(logs.journal).problems} == {"numbers", "P2"}
    write_note(logs.journal / RETAINED, Retained(f"{hour_of(old):%Y-%m-%dT%H}", 1))
    assert verify(logs.journal).is_well


def test_damage(logs: Logs) -> None:
    for number in range(2):
        logs.write(life_of(f"life-{number}", NOON_US, *WHOLE))
        logs.archive()
    path = segment_files(logs.journal)[0]
    content = bytearray(path.read_bytes())
    group = pq.ParquetFile(path).metadata.row_group(0)
    column = group.column(SCHEMA.get_field_index("token"))
    content[column.data_page_offset + column.total_compressed_size - 2] ^= 0x10
    path.write_bytes(content)
    verdict = verify(logs.journal)
    assert "damage" in {problem.kind for problem in verdict.problems}
    assert str(path) in verdict.problems[0].text
    assert verdict.ends == {"replied": 1}


@pytest.mark.parametrize("seed", range(10))
def test_a_flipped_bit_of_a_segment_is_found_or_does_no_harm(logs: Logs, seed: int) -> None:
    rows = [row for n in range(300) for row in life_of(f"life-{n}", NOON_US, *WHOLE, body=b"%d" % n * 9)]
    logs.write(rows)
    logs.archive()
    before = everything(logs.journal)
    (path,) = segment_files(logs.journal)
    content = bytearray(path.read_bytes())
    # The pages have checksums; what stands between them has none.
    place = random.Random(seed).randrange(8, len(content))
    content[place] ^= 1 << seed % 8
    path.write_bytes(content)
    kinds = [problem.kind for problem in verify(logs.journal).problems]
    assert kinds[:1] == ["damage"] or everything(logs.journal) == before, place


def test_damaged_logs(logs: Logs) -> None:
    logs.write(life_of("life-1", NOON_US, *WHOLE))
    cut = logs.write(life_of("life-2", NOON_US, *WHOLE))
    cut.write_bytes(cut.read_bytes()[:-7])
    flipped = logs.write(life_of("life-3", NOON_US, *WHOLE))
    content = bytearray(flipped.read_bytes())
    content[-20] ^= 4
    flipped.write_bytes(content)
    logs.write(life_of("life-4", NOON_US, *WHOLE))
    for _ in range(2):
        verdict = verify(logs.journal)
        assert [problem.kind for problem in verdict.problems] == ["damage", "damage"]
        assert [hole.records for hole in verdict.holes] == [6]
        assert verdict.ends == {"replied": 2}
        assert all(
            path.stem in problem.text for path, problem in zip((cut, flipped), verdict.problems, strict=True)
        )
        # The archiver finds the same, and so does whoever looks later.
        logs.archive()


def test_the_end_of_a_log_that_is_being_written(logs: Logs) -> None:
    path = logs.write(life_of("life-1", NOON_US, *WHOLE), suffix=OPEN)
    path.write_bytes(path.read_bytes() + b"PBJB half")
    assert verify(logs.journal, is_running=True).is_well
    assert [problem.kind for problem in verify(logs.journal).problems] == ["damage"]


def test_many_requests_in_small_memory(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathered a few at a time, in the disorder in which a busy broker ends them."""
    monkeypatch.setattr(fates.Fates.__init__, "__defaults__", (500,))
    rows = [row for n in range(2000) for row in life_of(f"life-{n}", NOON_US + n * 700, *WHOLE)]
    rows.sort(key=lambda row: row.at)
    for at in range(0, len(rows), 900):
        logs.write(rows[at : at + 900])
    logs.archive()
    verdict = verify(logs.journal)
    assert (verdict.problems, verdict.counts, verdict.ends) == ([], {}, {"replied": 2000})


def test_a_journal_that_moves_all_the_time_is_given_up(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.write(life_of("life-1", NOON_US, *WHOLE))
    run, tries = verify_module._Check.run, 0
    moves = verify_module.TRIES

    def moving(check: verify_module._Check) -> Verdict:
        nonlocal tries
        tries += 1
        if tries <= moves:
            raise JournalMoved(logs.journal)
        return run(check)

    monkeypatch.setattr(verify_module._Check, "run", moving)
    with pytest.raises(JournalMoved):
        verify(logs.journal)
    assert tries == verify_module.TRIES == 5
    # As long as the last try succeeds there is a verdict.
    tries, moves = 0, verify_module.TRIES - 1
    assert verify(logs.journal).requests == 1


def test_what_a_verdict_tells_of_the_journal_as_a_whole(logs: Logs, tmp_path: Path) -> None:
    logs.write([started(), *life_of("life-1", NOON_US, *WHOLE)])
    logs.archive()
    logs.write([Row("beat", NOON_US + HOUR_US)])
    logs.write([started(NOON_US + 2 * HOUR_US), stopped(NOON_US + 3 * HOUR_US)], life="next")
    told: list[tuple[int, int]] = []
    verdict = verify(logs.journal, progress=lambda done, total: told.append((done, total)))
    assert (verdict.segments, verdict.logs, verdict.rows) == (1, 2, 7)
    assert (verdict.requests, verdict.brokers, verdict.lives, verdict.killed) == (1, 1, 2, 1)
    assert (verdict.first_at, verdict.last_at) == (NOW, NOW + timedelta(hours=3))
    assert not verdict.has_store
    assert verify(logs.journal, kept={}.get).has_store
    assert verify(logs.journal, is_running=True).killed == 1
    sizes = [path.stat().st_size for path in segment_files(logs.journal)]
    sizes += [path.stat().st_size for path in sorted((logs.journal / "open").iterdir())]
    reached = [sum(sizes[: number + 1]) for number in range(3)]
    assert told == [(done, sum(sizes)) for done in (*reached, sum(sizes))]
    nothing = verify(tmp_path / "nothing")
    assert (nothing.first_at, nothing.last_at, nothing.brokers) == (None, None, 0)


def test_the_life_that_runs_was_not_killed(logs: Logs) -> None:
    logs.write([started()])
    assert (verify(logs.journal, is_running=True).killed, verify(logs.journal).killed) == (0, 1)


def test_a_log_that_goes_while_it_is_read_only_spoils_the_progress(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = logs.write([started(), *life_of("life-1", NOON_US, *WHOLE)])
    read = verify_module.read_logs

    def gone_meanwhile(*arguments: object) -> object:
        path.unlink()
        return read(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(verify_module, "read_logs", gone_meanwhile)
    told: list[tuple[int, int]] = []
    size = path.stat().st_size
    verdict = verify(logs.journal, progress=lambda done, total: told.append((done, total)))
    assert (verdict.requests, told) == (1, [(0, size), (size, size)])


def test_a_log_that_is_read_in_two_parts_is_counted_once(logs: Logs) -> None:
    logs.write([started()])
    logs.skip(3)
    logs.write(life_of("life-1", NOON_US, *WHOLE))
    sizes = [path.stat().st_size for path in sorted((logs.journal / "open").iterdir())]
    told: list[tuple[int, int]] = []
    verify(logs.journal, progress=lambda done, total: told.append((done, total)))
    assert told == [(done, sum(sizes)) for done in (sizes[0], sum(sizes), sum(sizes))]


def test_only_the_first_of_many_are_named_and_all_are_counted(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_module, "NAMED", 3)
    logs.write([started(), *(row for n in range(5) for row in life_of(f"life-{n}", NOON_US))])
    verdict = verify(logs.journal)
    assert verdict.counts == {"lost": 5}
    assert [fate.token for fate in verdict.fates["lost"]] == ["life-0", "life-1", "life-2"]


def test_a_problem_names_the_request_and_its_service(logs: Logs) -> None:
    logs.write([started(), *life_of("life-1", NOON_US, "replied")])
    (problem,) = verify(logs.journal).problems
    assert problem.text == "request life-1 (echo): it was answered but never given to a worker"


def test_a_hole_tells_whose_records_are_missing_before_when_and_why(logs: Logs) -> None:
    logs.write([started()])
    logs.skip(3)
    logs.write([loss(NOON_US + SECOND_US, 3)])
    (hole,) = verify(logs.journal).holes
    assert (hole.broker, hole.life, hole.first, hole.last) == ("tested", "life", 2, 4)
    assert (hole.before, hole.why) == (NOW + timedelta(seconds=1), "the buffer is full")


def test_a_life_whose_first_record_is_there_is_not_excused_by_what_was_removed(logs: Logs) -> None:
    logs.write([started(), *life_of("life-1", NOON_US, *WHOLE)[1:]])
    logs.archive()
    write_note(logs.journal / RETAINED, Retained("2023-11-14T00", 1))
    assert wrong(verify(logs.journal)) == [("P2", "life-1")]


@pytest.mark.parametrize(
    ("reason", "detail", "why"),
    [("disk", "the disk is full", "the disk is full"), ("disk", "", "disk"), ("", "", "")],
)
def test_why_records_are_missing(logs: Logs, reason: str, detail: str, why: str) -> None:
    logs.write([started()])
    logs.skip(3)
    logs.write([Row("records_lost", NOON_US, size=3, reason=reason, detail=detail)])
    (hole,) = verify(logs.journal).holes
    assert hole.why == why


def test_what_follows_damage_in_a_log_is_read(logs: Logs) -> None:
    """A log is damaged in its middle, and the next log is whole."""
    path = logs.write(life_of("life-1", NOON_US, *WHOLE))
    other = logs.write(life_of("life-2", NOON_US, *WHOLE))
    head = len(write_head(LogHead("tested", "life", 1, 0.0, {"1": "front", "2": "back"})))
    batch = other.read_bytes()[head:]
    other.unlink()
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(bytes(damaged) + batch)
    verdict = verify(logs.journal)
    assert [problem.kind for problem in verdict.problems] == ["damage"]
    assert (verdict.requests, verdict.ends) == (1, {"replied": 1})
    assert [(hole.first, hole.last) for hole in verdict.holes] == [(1, 3)]
