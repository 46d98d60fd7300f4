"""The journal's rows and the pipeline's tables, read without Spark, and held against each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.expected import COLUMNS, KEYS, Row, Rows

SHOWN: Final = 3


def journal_rows(files: Iterable[Path]) -> Rows:
    """All rows of some segments, with times as microseconds."""
    rows: Rows = []
    for path in files:
        rows += plain_rows(pq.ParquetFile(path).read())
    return rows


def plain_rows(table: pa.Table) -> Rows:
    for at, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            whole = table.column(at).cast(pa.timestamp("us", field.type.tz)).cast(pa.int64())
            table = table.set_column(at, field.name, whole)
    rows: Rows = table.to_pylist()
    return rows


def kind_of(kind: pa.DataType) -> str:
    """A type as `expected.COLUMNS` has it."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list of {kind_of(kind.value_type)}"
    if pa.types.is_struct(kind):
        fields = (kind.field(number) for number in range(kind.num_fields))
        return f"({', '.join(f'{field.name} {kind_of(field.type)}' for field in fields)})"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view":
        return "text"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or str(kind) == "binary_view":
        return "bytes"
    if pa.types.is_timestamp(kind) and kind.tz == "UTC":
        return "time"
    return str(kind)


class Difference:
    """How a table differs from what it should be."""

    def __init__(self, name: str, want: Rows, got: pa.Table) -> None:
        self.name = name
        self.rows = len(want)
        self.count = 0
        self._examples: Counter[str] = Counter()
        self.lines: list[str] = []
        self._check_columns(got.schema)
        if not self.count:
            self._check_rows(want, plain_rows(got))

    def _note(self, kind: str, what: str) -> None:
        self.count += 1
        self._examples[kind] += 1
        if self._examples[kind] <= SHOWN:
            self.lines.append(f"{self.name}: {kind}: {what}")

    def _check_columns(self, schema: pa.Schema) -> None:
        want = COLUMNS[self.name]
        got = {field.name: kind_of(field.type) for field in schema}
        for name in sorted(want.keys() | got.keys()):
            if want.get(name) != got.get(name):
                self._note("column", f"{name} is {got.get(name, 'missing')}, not {want.get(name, 'there')}")

    def _check_rows(self, want: Rows, got: Rows) -> None:
        names = KEYS[self.name]

        def key_of(row: Row) -> tuple[Any, ...]:
            return tuple(row[name] for name in names)

        left = {key_of(row): row for row in want}
        assert len(left) == len(want), f"{self.name}: two expected rows have the same key"
        seen: set[tuple[Any, ...]] = set()
        for row in got:
            key = key_of(row)
            if key in seen:
                self._note("twice", str(row))
                continue
            seen.add(key)
            right = left.get(key)
            if right is None:
                self._note("too much", str(row))
            elif right != row:
                parts = [f"{n}={row[n]!r}, not {right[n]!r}" for n in right if right[n] != row[n]]
                self._note("different", f"{dict(zip(names, key, strict=True))}: {'; '.join(parts)}")
        for key, row in left.items():
            if key not in seen:
                self._note("missing", str(row))


def compare_all(want: dict[str, Rows], read: Any, tables: Path) -> list[Difference]:
    """Every table against what it should be; `read(tables, name)` gives an Arrow table."""
    return [Difference(name, want[name], read(str(tables), name)) for name in KEYS]


def report(differences: list[Difference], title: str) -> tuple[int, int]:
    """Print a line for each table; how many rows there are, and how many are wrong."""
    rows = sum(difference.rows for difference in differences)
    wrong = sum(difference.count for difference in differences)
    counts = ", ".join(f"{d.name} {d.rows}" for d in differences)
    print(f"{title}: {counts}; {wrong} wrong", flush=True)
    for difference in differences:
        for line in difference.lines:
            print(f"  {line}", flush=True)
    return rows, wrong
