"""Reading a store that nobody vouches for: everything is checked before anything is believed.

In this order, each step finding what the one before cannot: the file's first bytes; SQLite's own check of
pages and free lists (`quick_check`); the meta row's checksum; the number of the last commit, which must not
be behind the mark; the tables' definitions; the checksum of every row; and the count and sum of each table,
which find rows that vanished or came back.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Final

from msgspec import MsgspecError, Struct, msgpack

from polybus.errors import StoreDamaged, StoreTooNew
from polybus.store import files, sql
from polybus.store.codec import CODECS, checksum
from polybus.store.shelf import Shelf

# How many faults of one kind are told; after the first few they say nothing new.
_TOLD: Final = 3


class Meta(Struct, frozen=True, array_like=True):
    """The one row that vouches for the others."""

    version: int
    # The number of the last commit.
    commit: int
    # Of each table: how many rows, and the sum of their checksums.
    sums: dict[str, tuple[int, int]]


def pack_meta(meta: Meta) -> tuple[int, bytes, int]:
    payload = msgpack.encode(meta)
    return files.META_ROW, payload, checksum(files.META_TAG, files.META_ROW, payload)


_unpack_meta = msgpack.Decoder(Meta).decode


def check_pages(db: sqlite3.Connection, path: Path) -> None:
    """The structure of the file: every page used once, every tree in order. Reads the whole file."""
    wrong = [str(row[0]) for row in db.execute(f"PRAGMA quick_check({_TOLD})")]
    if wrong != ["ok"]:
        raise StoreDamaged(str(path), "; ".join(" ".join(line.split()) for line in wrong))


def read_meta(db: sqlite3.Connection, path: Path) -> Meta:
    rows = db.execute(sql.query("all", "meta")).fetchall()
    try:
        ((number, payload, crc),) = rows
        if number != files.META_ROW or checksum(files.META_TAG, number, payload) != crc:
            raise ValueError
        meta = _unpack_meta(payload)
    except (ValueError, TypeError, MsgspecError):
        raise StoreDamaged(str(path), "its meta row is not as it was written") from None
    if meta.version > sql.version():
        raise StoreTooNew(
            f"{path} has version {meta.version}, and this polybus knows {sql.version()}: "
            "a newer one wrote it. Use that, or start with another --data-dir."
        )
    return meta


def check_commit(meta: Meta, marked: int, path: Path) -> None:
    if meta.commit < marked:
        raise StoreDamaged(
            str(path),
            f"it ends with commit {meta.commit}, but {marked} was on disk: the last commits are lost",
        )


def check_tables(db: sqlite3.Connection, meta: Meta, path: Path) -> None:
    if db.execute(sql.query("objects")).fetchall() != files.expected_objects(meta.version):
        raise StoreDamaged(str(path), f"its tables are not those of version {meta.version}")
    if not meta.sums.keys() <= CODECS.keys():
        raise StoreDamaged(str(path), "its meta row speaks of tables that nobody knows")


def read_table(db: sqlite3.Connection, shelf: Shelf, sums: tuple[int, int], path: Path) -> list[Any]:
    """All entries of a table; the shelf knows them afterwards."""
    entries, take = [], shelf.take
    for number, payload, crc in db.execute(sql.query("all", shelf.name)):
        try:
            entries.append(take(number, payload, crc))
        except (ValueError, TypeError, MsgspecError) as error:
            raise StoreDamaged(str(path), f"{shelf.name} {number}: {error}") from None
    if shelf.sums != sums:
        has = f"has {shelf.count}" if shelf.count != sums[0] else "has others than were written"
        raise StoreDamaged(str(path), f"the table {shelf.name} should have {sums[0]} rows and {has}")
    return entries


def verified(table: str, row: tuple[int, bytes, int], path: Path) -> Any:
    """One row that was asked for later."""
    number, payload, crc = row
    if not isinstance(payload, bytes) or checksum(CODECS[table].tag, number, payload) != crc:
        raise StoreDamaged(str(path), f"{table} {number}: its checksum is wrong")
    return CODECS[table].unpack(payload)
