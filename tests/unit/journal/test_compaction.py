"""Compaction and retention: every row exactly once at any moment, and nothing goes that somebody needs."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polybus.journal import compaction
from polybus.journal.archiver import OPEN_LOGS, SEGMENTS
from polybus.journal.compaction import INTENT, Compaction, Compactor
from polybus.journal.reader import segment_files
from polybus.journal.record import Row
from polybus.journal.retention import (
    COMPACTED,
    READERS,
    RETAINED,
    STALE_S,
    Readers,
    Removal,
    Retention,
    ranges_of,
)
from polybus.journal.segment import sections
from support.journals import HOUR_US, NOON_US, Logs
from support.killing import every_step

HOUR_S = 3600.0
NOON_S = NOON_US / 1e6
LATER_S = NOON_S + 100 * HOUR_S
ROWS = 10


def landed(journal: Path, hours: int = 2, segments: int = 3) -> Path:
    """A journal with so many segments of ten rows in each hour from noon on."""
    logs = Logs(journal)
    for hour in range(hours):
        for number in range(segments):
            begin = NOON_US + hour * HOUR_US + number * 1_000_000
            logs.write([Row("accepted", begin + n, token=b"%d" % n) for n in range(ROWS)])
            logs.archive()
    return journal


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return landed(tmp_path_factory.mktemp("template"))


@pytest.fixture
def journal(template: Path, tmp_path: Path) -> Path:
    return copied(template, tmp_path / "journal")


def copied(template: Path, place: Path) -> Path:
    shutil.copytree(template, place)
    return place


def numbers(journal: Path) -> list[int]:
    """The numbers of all rows that a reader finds."""
    found: list[int] = []
    for path in segment_files(journal):
        found += pq.read_table(path, columns=["seq"], partitioning=None)["seq"].to_pylist()
    return sorted(found)


def landing(journal: Path) -> list[int]:
    return sorted(int(path.name.split("-")[0]) for path in (journal / SEGMENTS).rglob("*.parquet"))


def compact(journal: Path, wall: float = LATER_S, **settings: int) -> list[Compaction]:
    """Until nothing is left to do."""
    compactor = Compactor(journal, 300.0, wall=lambda: wall, **settings)
    reports = []
    while True:
        reports.append(compactor.turn())
        if reports[-1].path is None and not reports[-1].removed and not reports[-1].damage:
            return reports


def everything(hours: int = 2, segments: int = 3) -> list[int]:
    return list(range(1, hours * segments * ROWS + 1))


def read_upto(journal: Path, upto: int, at: float = LATER_S, name: str = "tables") -> None:
    (journal / READERS).mkdir(exist_ok=True)
    (journal / READERS / f"{name}.json").write_text(json.dumps({"name": name, "upto": upto, "at": at}))


def test_small_segments_of_an_hour_become_one_file(journal: Path) -> None:
    reports = compact(journal)
    assert [(report.segments, report.rows) for report in reports if report.path] == [(3, 30), (3, 30)]
    names = sorted(path.name.rpartition("-")[0] for path in (journal / COMPACTED).rglob("*.parquet"))
    assert names == ["000000000001-000000000003", "000000000004-000000000006"]
    assert numbers(journal) == everything()
    assert landing(journal) == []
    assert compact(journal) == [Compaction()]


def test_segments_of_a_hundred_kilobytes_are_small(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    for number in range(2):
        body = random.Random(number).randbytes(100_000)
        logs.write([Row("accepted", NOON_US + number, token=b"%d" % number, body=(body,))])
        logs.archive()
    assert min(path.stat().st_size for path in (tmp_path / SEGMENTS).rglob("*.parquet")) > 100_000
    assert [report.segments for report in compact(tmp_path) if report.path] == [2]


def test_no_file_claims_segments_of_another_when_one_cannot_be_read(tmp_path: Path) -> None:
    journal = landed(tmp_path, hours=1, segments=7)
    paths = sorted((journal / SEGMENTS).rglob("*.parquet"))
    paths[1].write_bytes(flipped(paths[1]))
    compact(journal, file_bytes=3 * max(path.stat().st_size for path in paths) + 10)
    claimed = sorted(ranges_of((journal / COMPACTED).rglob("*.parquet")))
    assert claimed == [(3, 5), (6, 7)]
    assert landing(journal) == [1, 2]


def test_an_hour_that_has_not_ended_is_left_alone(journal: Path) -> None:
    compact(journal, wall=NOON_S + HOUR_S + 299.0)
    assert landing(journal) == [1, 2, 3, 4, 5, 6]
    compact(journal, wall=NOON_S + HOUR_S + 300.0)
    assert landing(journal) == [4, 5, 6]
    assert numbers(journal) == everything()


def test_large_segments_stay_and_are_claimed_by_nobody(journal: Path) -> None:
    path = next((journal / SEGMENTS).rglob("000000000002-*"))
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.replace_schema_metadata({"more": "more" * 10_000}), path)
    compact(journal, small_bytes=path.stat().st_size)
    # One and three are no neighbours.
    assert landing(journal) == [1, 2, 3]
    assert numbers(journal) == everything()


def test_files_do_not_become_too_large(journal: Path) -> None:
    size = max(path.stat().st_size for path in (journal / SEGMENTS).rglob("*.parquet"))
    compact(journal, file_bytes=2 * size + 10)
    assert len(list((journal / COMPACTED).rglob("*.parquet"))) == 2
    assert landing(journal) == [3, 6]
    assert numbers(journal) == everything()


def test_what_lands_late_makes_a_file_of_its_own(journal: Path) -> None:
    compact(journal)
    logs = Logs(journal)
    for n in range(2):
        logs.write([Row("accepted", NOON_US + n)])
        logs.archive()
    compact(journal)
    assert len(list((journal / COMPACTED).rglob("*.parquet"))) == 3
    assert len(numbers(journal)) == 62


def test_what_lands_late_is_compacted_though_others_of_its_hour_are_held(journal: Path) -> None:
    read_upto(journal, 0)
    compact(journal)
    logs = Logs(journal)
    for n in range(2):
        logs.write([Row("accepted", NOON_US + n)])
        logs.archive()
    compact(journal)
    assert sorted(ranges_of((journal / COMPACTED).rglob("*.parquet"))) == [(1, 3), (4, 6), (7, 8)]
    assert landing(journal) == [*range(1, 9)]


def test_what_a_reader_has_not_read_stays_in_the_landing(journal: Path) -> None:
    read_upto(journal, 2)
    reports = compact(journal)
    assert landing(journal) == [3, 4, 5, 6]
    assert "tables has read up to 2" in reports[-1].held
    assert numbers(journal) == everything()
    read_upto(journal, 6)
    read_upto(journal, 4, name="second")
    compact(journal)
    assert landing(journal) == [5, 6]
    # It has not been heard of for too long.
    read_upto(journal, 4, at=LATER_S - STALE_S - 1, name="second")
    compact(journal)
    assert landing(journal) == []
    assert Readers(journal, LATER_S).stale == ["second.json"]


def test_nothing_leaves_the_landing_while_it_is_pinned(journal: Path) -> None:
    (journal / READERS).mkdir()
    pin = journal / READERS / "rebuild.pin"
    pin.touch()
    os.utime(pin, (LATER_S, LATER_S))
    assert "rebuild.pin" in compact(journal)[-1].held
    assert landing(journal) == [1, 2, 3, 4, 5, 6]
    assert numbers(journal) == everything()
    os.utime(pin, (LATER_S - STALE_S - 1,) * 2)
    compact(journal)
    assert landing(journal) == []


def test_a_note_of_a_reader_that_makes_no_sense_holds_everything(journal: Path) -> None:
    (journal / READERS).mkdir()
    (journal / READERS / "odd.json").write_text("{")
    os.utime(journal / READERS / "odd.json", (LATER_S, LATER_S))
    compact(journal)
    assert landing(journal) == [1, 2, 3, 4, 5, 6]


def flipped(path: Path) -> bytes:
    """The segment with one bit changed so that it can still be read, with other values."""
    good, table = path.read_bytes(), pq.read_table(path, partitioning=None)
    for at in range(4, len(good)):
        bad = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        try:
            found = pq.read_table(io.BytesIO(bad))
        except (OSError, ValueError, pa.ArrowException):
            continue
        if found.schema == table.schema and found.num_rows == table.num_rows and found != table:
            return bad
    raise AssertionError("every changed bit makes it unreadable")


def test_a_flipped_bit_in_a_segment_is_not_compacted(journal: Path) -> None:
    """The values could be read: only the checksum of their page tells."""
    broken = next((journal / SEGMENTS).rglob("000000000002-*"))
    before = numbers(journal)
    broken.write_bytes(flipped(broken))
    damage = [text for report in compact(journal) for text in report.damage]
    assert len(damage) == 1
    assert str(broken) in damage[0]
    assert broken.exists()
    assert numbers(journal) == before


def test_a_segment_that_cannot_be_read_is_told_once_and_left_out(journal: Path) -> None:
    broken = next((journal / SEGMENTS).rglob("000000000002-*"))
    broken.write_bytes(b"PAR1 no")
    reports = compact(journal)
    damage = [text for report in reports for text in report.damage]
    assert len(damage) == 1
    assert str(broken) in damage[0]
    compact(journal)
    assert landing(journal) == [1, 2, 3]
    assert not list((journal / COMPACTED).rglob(".*"))
    broken.unlink()
    assert numbers(journal) == [n for n in everything() if not 10 < n <= 20]


def test_a_file_that_lacks_rows_is_never_shown(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted again as it is on disk, before it takes the place of its segments."""
    with monkeypatch.context() as patch:
        patch.setattr(compaction.SegmentWriter, "write", lambda writer, table: setattr(writer, "rows", 30))
        with pytest.raises(OSError, match="has 0 rows instead of 30; its segments stay as they are"):
            Compactor(journal, wall=lambda: LATER_S).turn()
    assert [path.name for path in (journal / COMPACTED).rglob("*.parquet") if path.name[0] != "."] == []
    assert landing(journal) == [1, 2, 3, 4, 5, 6]
    compact(journal)
    assert numbers(journal) == everything()
    assert not [path for path in (journal / COMPACTED).rglob(".*") if path.is_file()]


@pytest.mark.parametrize(("most", "parts"), [(10, [10, 10, 10]), (11, [20, 10]), (20, [20, 10]), (30, [30])])
def test_segments_are_joined_a_section_at_a_time(
    journal: Path, monkeypatch: pytest.MonkeyPatch, most: int, parts: list[int]
) -> None:
    """However many segments there are, only some of their rows are in memory together."""
    monkeypatch.setattr(compaction, "SECTION_ROWS", most)
    compact(journal)
    for path in (journal / COMPACTED).rglob("*.parquet"):
        metadata = pq.read_metadata(path)
        assert [len(groups) for groups in sections(metadata)] == [1] * len(parts)
        assert [metadata.row_group(place).num_rows for place in range(metadata.num_row_groups)] == parts
    assert numbers(journal) == everything()


def test_files_that_are_no_segments_are_left_alone(journal: Path) -> None:
    """Among them is what an archiver that died had begun to write."""
    folder = next((journal / SEGMENTS).rglob("000000000002-*")).parent
    others = [folder / "notes.txt", folder / ".000000000002-0000000a.parquet"]
    for path in others:
        path.write_bytes(b"PAR1 no")
    assert [text for report in compact(journal) for text in report.damage] == []
    assert all(path.read_bytes() == b"PAR1 no" for path in others)
    for path in others:
        path.unlink()
    assert landing(journal) == []
    assert numbers(journal) == everything()


def test_a_segment_that_is_gone_already_is_no_trouble(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[int] = []

    def holding(readers: Readers, number: int) -> str:
        """Somebody removes it by hand in this moment."""
        removed.append(number)
        next((journal / SEGMENTS).rglob(f"{number:012d}-*")).unlink()
        return ""

    monkeypatch.setattr(Readers, "holding", holding)
    compact(journal)
    assert sorted(removed) == [1, 2, 3, 4, 5, 6]
    assert landing(journal) == []
    assert numbers(journal) == everything()


def test_compaction_may_be_killed_anywhere(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in every_step():
        journal = copied(template, tmp_path / str(step.number))
        with step.dying(monkeypatch):
            compact(journal)
        assert numbers(journal) == everything(), step.number
        compact(journal)
        assert numbers(journal) == everything(), step.number
        assert landing(journal) == [], step.number
        assert not (journal / INTENT).exists()
        assert not [path for path in (journal / COMPACTED).rglob(".*") if path.is_file()], step.number
    assert step.number > 20


# -- retention --------------------------------------------------------------------------------------


def let_go(journal: Path, wall: float, days: float = 1.0, limit: int = 1 << 40) -> Removal:
    return Retention(journal, days, limit, lambda: wall).turn()


def test_hours_that_are_too_old_go(journal: Path) -> None:
    day = 86_400.0
    assert let_go(journal, NOON_S + HOUR_S + day - 1) == Removal()
    removal = let_go(journal, NOON_S + HOUR_S + day)
    assert (len(removal.hours), removal.files, removal.rows) == (1, 3, 30)
    assert numbers(journal) == everything()[30:]
    assert len(list((journal / SEGMENTS).rglob("hour=*"))) == 1
    noted = json.loads((journal / RETAINED).read_text())
    assert (noted["hours"], noted["rows"], noted["since"] > removal.hours[0]) == (1, 30, True)


def test_the_oldest_go_until_the_rest_is_small_enough(journal: Path) -> None:
    compact(journal)
    sizes = [path.stat().st_size for path in segment_files(journal)]
    removal = let_go(journal, NOON_S + 2 * HOUR_S, limit=sum(sizes) - 1)
    assert (len(removal.hours), removal.rows, removal.bytes) == (1, 30, sizes[0])
    assert numbers(journal) == everything()[30:]


def test_the_hour_that_has_not_ended_stays_whatever_it_takes(journal: Path) -> None:
    let_go(journal, NOON_S + HOUR_S + 10.0, limit=1)
    assert numbers(journal) == everything()[30:]


def test_rows_that_are_there_twice_are_counted_once(journal: Path) -> None:
    read_upto(journal, 0, name="slow")
    compact(journal)
    (journal / READERS / "slow.json").unlink()
    assert len(landing(journal)) == 6
    assert let_go(journal, LATER_S).rows == 60


def test_what_somebody_reads_is_not_let_go(journal: Path) -> None:
    read_upto(journal, 4)
    removal = let_go(journal, LATER_S)
    assert (removal.rows, removal.held) == (30, "tables has read up to 4 only")
    assert numbers(journal) == everything()[30:]


def test_damaged_logs_go_when_they_are_old(journal: Path) -> None:
    damaged = journal / OPEN_LOGS / "000000000009.damaged"
    damaged.touch()
    os.utime(damaged, (NOON_S, NOON_S))
    let_go(journal, NOON_S + 86_399)
    assert damaged.exists()
    let_go(journal, NOON_S + 86_401)
    assert not damaged.exists()


def test_retention_may_be_killed_anywhere(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = copied(template, tmp_path / "compacted")
    read_upto(first, 0)
    compact(first)
    (first / READERS / "tables.json").unlink()
    now = NOON_S + 2 * HOUR_S
    for step in every_step():
        journal = copied(first, tmp_path / str(step.number))
        with step.dying(monkeypatch):
            let_go(journal, now, days=1 / 24)
        found = numbers(journal)
        # Never twice, and from the hour on that was noted everything.
        assert len(found) == len(set(found)), step.number
        assert set(found) >= set(everything()[30:]), step.number
        if not (journal / RETAINED).exists():
            assert found == everything(), step.number
        let_go(journal, now, days=1 / 24)
        assert numbers(journal) == everything()[30:], step.number
    assert step.number > 8
