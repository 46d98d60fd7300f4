"""The layout of segments: little has to be read, and rows come in order all the same."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from polybus.journal import segment
from polybus.journal.columns import SCHEMA, to_table
from polybus.journal.log import LogHead
from polybus.journal.reader import read_segment
from polybus.journal.record import Row, write_row
from polybus.journal.segment import SegmentWriter, sections
from support.journals import NOON_US, damage_page

WHATS = ("accepted", "published", "dispatched", "replied", "log", "failed")


def rows(count: int, life: str = "one", first: int = 1) -> pa.Table:
    records = [write_row(Row(WHATS[n % len(WHATS)], NOON_US + first + n)) for n in range(count)]
    return to_table(LogHead("bus", life, 1, 0.0), first, count, b"".join(records))


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "LARGE", 60)


def written(path: Path, *tables: pa.Table) -> Path:
    with path.open("wb") as file, SegmentWriter(file) as writer:
        for table in tables:
            writer.write(table)
    assert writer.rows == sum(table.num_rows for table in tables)
    return path


def read(path: Path, where: pc.Expression | None = None, columns: list[str] | None = None) -> list[pa.Table]:
    def damage(what: str) -> None:
        raise AssertionError(what)

    return list(read_segment(path, where, columns, damage))


def test_each_use_has_a_row_group_of_its_own(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", rows(60))
    file = pq.ParquetFile(path)
    found = [set(file.read_row_group(n, ["what"])["what"].to_pylist()) for n in range(file.num_row_groups)]
    assert found == [{"replied", "failed"}, {"accepted", "dispatched"}, {"published"}, {"log"}]
    assert sections(file.metadata) == [range(4)]


def test_a_small_section_is_one_row_group(tmp_path: Path) -> None:
    assert pq.ParquetFile(written(tmp_path / "a.parquet", rows(59))).num_row_groups == 1


def test_rows_come_in_order_section_by_section(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", rows(60), rows(10, first=61), rows(80, first=71))
    tables = read(path)
    assert [table.num_rows for table in tables] == [60, 10, 80]
    assert pa.concat_tables(tables)["seq"].to_pylist() == list(range(1, 151))
    assert pa.concat_tables(tables).schema.equals(SCHEMA)


@pytest.mark.parametrize("is_rare", [False, True])
@pytest.mark.parametrize("group", [0, 1, 2])
def test_a_damaged_section_costs_its_own_rows_and_no_others(
    tmp_path: Path, group: int, is_rare: bool
) -> None:
    path = written(tmp_path / "a.parquet", *(rows(10, first=1 + 10 * n) for n in range(3)))
    damage_page(path, group, "seq")
    told: list[str] = []
    where = pc.field("seq") > 0
    tables = list(read_segment(path, where, ["seq"], told.append, is_rare))
    expected = [*range(1, 31)]
    del expected[10 * group : 10 * group + 10]
    assert pa.concat_tables(tables)["seq"].to_pylist() == expected
    assert len(told) == 1
    assert told[0].startswith(f"{path}: 10 of the segment's 30 rows cannot be read: ")


def test_a_rare_row_is_found_behind_damage_in_what_is_looked_at(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", rows(10), rows(6, first=11), rows(10, first=17))
    damage_page(path, 0, "what")
    told: list[str] = []
    is_log = pc.field("what") == "log"
    (table,) = read_segment(path, is_log & (pc.field("seq") < 16), ["seq"], told.append, True)
    assert table["seq"].to_pylist() == [15]
    assert len(told) == 1


def test_columns_that_nobody_wants_are_not_read(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", rows(10))
    damage_page(path, 0, "what")
    assert [table["seq"].to_pylist() for table in read(path, columns=["seq"])] == [[*range(1, 11)]]


def test_what_nobody_looks_for_is_not_read(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", rows(10))
    damage_page(path, 0, "seq")
    told: list[str] = []
    where = pc.field("what") == "dead"
    assert not list(read_segment(path, where, ["seq"], told.append, True))
    assert not told
    assert not list(read_segment(path, where, ["seq"], told.append))
    assert len(told) == 1


def test_lives_follow_one_another(tmp_path: Path) -> None:
    later = rows(60, life="a later one", first=1000)
    path = written(tmp_path / "a.parquet", pa.concat_tables([later, rows(70)]))
    (table,) = read(path)
    assert table["life"].to_pylist() == ["one"] * 70 + ["a later one"] * 60
    assert table["seq"].to_pylist() == [*range(1, 71), *range(1000, 1060)]


def test_some_rows_and_some_columns(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", rows(60), rows(60, first=61))
    where = pc.field("what").isin(["replied", "published"])
    tables = read(path, where, ["what"])
    assert [table.column_names for table in tables] == [["what"], ["what"]]
    assert pa.concat_tables(tables)["what"].to_pylist() == ["published", "replied"] * 20


def test_files_of_before_have_a_section_for_each_row_group(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(rows(30), path, row_group_size=10)
    assert [table["seq"][0].as_py() for table in read(path)] == [1, 11, 21]


@pytest.mark.parametrize("count", [2, 3, 6])
def test_few_rows_of_several_uses_come_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(segment, "LARGE", 2)
    path = written(tmp_path / "a.parquet", rows(count))
    assert pq.ParquetFile(path).num_row_groups > 1
    assert [table["seq"].to_pylist() for table in read(path)] == [[*range(1, count + 1)]]


@pytest.mark.parametrize("what", ["replied", "dispatched", "published", "log"])
def test_rows_of_one_use_are_one_row_group(tmp_path: Path, what: str) -> None:
    records = b"".join(write_row(Row(what, NOON_US + n)) for n in range(60))
    path = written(tmp_path / "a.parquet", to_table(LogHead("bus", "one", 1, 0.0), 1, 60, records))
    assert pq.ParquetFile(path).num_row_groups == 1
    assert [table.num_rows for table in read(path)] == [60]


def test_a_file_is_compressed_with_zstd_and_has_what_readers_look_for(tmp_path: Path) -> None:
    metadata = pq.ParquetFile(written(tmp_path / "a.parquet", rows(10))).metadata
    group = metadata.row_group(0)
    found = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
    assert {column.compression for column in found.values()} == {"ZSTD"}
    # By their least and largest values whole files are left out.
    bounded = {name for name, column in found.items() if column.is_stats_set}
    assert bounded == {"at", "seq", "what", "service", "token", "request_id"}
    # In the dictionary of `what` is found which kinds of rows there are; one of names that differ from row to
    # row would be as large as the column.
    listed = {name for name, column in found.items() if "RLE_DICTIONARY" in column.encodings}
    assert listed == {
        *("broker", "life", "what", "service", "reason", "attempt", "size", "body_size"),
        *("client", "client_dialect", "client_link", "worker", "worker_dialect", "worker_link"),
    }
