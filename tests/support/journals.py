"""Journals for tests: logs that are written as a broker would, and what is read from them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from polybus.journal.archiver import OPEN_LOGS, Archiver
from polybus.journal.log import FINISHED, LogHead, log_path, write_batch, write_head
from polybus.journal.reader import read_rows
from polybus.journal.record import Row, write_row

SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
# The beginning of an hour.
NOON_US = 1_700_000_000 * SECOND_US // HOUR_US * HOUR_US


class Logs:
    """A broker's logs, written by hand. Rows are numbered one after the other in each life."""

    def __init__(self, journal: Path, broker: str = "tested") -> None:
        self.journal = journal
        self._broker = broker
        self._number = 0
        self._next: dict[str, int] = {}

    def write(self, rows: Iterable[Row], life: str = "life", suffix: str = FINISHED) -> Path:
        """One file with these rows."""
        records = [write_row(row) for row in rows]
        first = self._next.get(life, 1)
        self._next[life] = first + len(records)
        self._number += 1
        folder = self.journal / OPEN_LOGS
        folder.mkdir(parents=True, exist_ok=True)
        path = log_path(folder, self._number, suffix)
        head = write_head(LogHead(self._broker, life, self._number, 0.0, {"1": "front", "2": "back"}))
        path.write_bytes(head + write_batch(first, len(records), b"".join(records)))
        return path

    def skip(self, count: int, life: str = "life") -> None:
        """So many rows were never written."""
        self._next[life] = self._next.get(life, 1) + count

    def archive(self, rows: int = 100_000) -> None:
        archive(self.journal, rows)


def archive(journal: Path, rows: int = 100_000) -> None:
    """Until nothing is left to do."""
    archiver = Archiver(journal, rows)
    while archiver.turn().logs:
        pass


def damage_page(path: Path, group: int, column: str) -> None:
    """Flip a bit in the last value of a column of one row group."""
    found = pq.ParquetFile(path).metadata.row_group(group)
    chunk = next(
        found.column(n) for n in range(found.num_columns) if found.column(n).path_in_schema == column
    )
    content = bytearray(path.read_bytes())
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    content[begin + chunk.total_compressed_size - 1] ^= 1
    path.write_bytes(content)


def everything(journal: Path, **wanted: Any) -> list[dict[str, Any]]:
    """The rows of a journal in the order of their numbers; nothing may be damaged unless that is taken."""
    found: list[str] = []
    wanted.setdefault("damage", found.append)
    tables = list(read_rows(journal, **wanted))
    assert not found, found
    rows = pa.concat_tables(tables).to_pylist() if tables else []
    return sorted(rows, key=lambda row: (row["life"], row["seq"])) if "columns" not in wanted else rows


def life_of(
    token: str,
    at_us: int,
    *steps: str,
    service: bytes = b"echo",
    body: bytes = b"ping",
    answer: bytes = b"pong",
    reason: str = "",
) -> list[Row]:
    """The rows of one request: `accepted`, then these steps, a millisecond each."""
    rows = [
        Row(
            "accepted",
            at_us,
            "mdr",
            accepted_at=at_us,
            size=len(body),
            body_size=len(body),
            client_link=1,
            token=token.encode(),
            request_id=b"id-" + token.encode(),
            service=service,
            client=b"ada",
            reason=reason,
            body=(body,),
        )
    ]
    sent = 0
    for number, step in enumerate(steps, 1):
        at = at_us + number * 1000
        has_worker = step == "dispatched" or (bool(sent) and step in ("replied", "partial", "failed"))
        sent = at if step == "dispatched" else sent
        rows.append(
            Row(
                step,
                at,
                "mdr",
                "ebus" if has_worker else "",
                at_us,
                sent,
                len(body),
                len(answer) if step == "replied" else 0,
                steps[:number].count("dispatched"),
                1,
                token=token.encode(),
                request_id=b"id-" + token.encode(),
                service=service,
                client=b"ada",
                worker=b"bob" if has_worker else b"",
                reason="" if step in ("dispatched", "replied", "partial") else f"{step}_reason",
                body=(answer,) if step == "replied" else None,
            )
        )
    return rows
