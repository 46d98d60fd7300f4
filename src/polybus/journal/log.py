"""The files of the append log.

A log file is a head and then batches.  The head tells which broker wrote it, in which of its lives, and the
number of the file.  A batch is what one or more turns of the broker's loop noted:

    offset  bytes
    0       4      b"PBJB"
    4       4      how many bytes of records follow the head of the batch
    8       4      how many records those are
    12      8      the number of the first of them, counted from 1 in each life of the broker
    20      4      CRC-32 of the sixteen bytes from 4 on, and of the records

A file that is being written is called NNNNNNNNNNNN.open; when it is finished, or when the next life of the
broker finds it, NNNNNNNNNNNN.log.  A batch that was cut off by a crash ends its file: it is reported, not
read.  Damage in the middle costs the batches that it hits; the next whole one is found by its mark.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec
from msgspec import Struct

from polybus.errors import JournalDamaged

MAGIC: Final = b"PBJRNL1\n"
BATCH_MAGIC: Final = b"PBJB"
BATCH: Final = struct.Struct("<4sIIQI")
_COVERED: Final = struct.Struct("<IIQ")
_LENGTH: Final = struct.Struct("<II")
# No writer makes larger ones; a length beyond it is damage.
MAX_BATCH_BYTES: Final = 256 * 1024 * 1024
MAX_HEAD_BYTES: Final = 64 * 1024
# The archiver's notes, beside the folder of the logs: what it is about to do, and what it has done.
PLAN: Final = "plan.json"
STATE: Final = "archived.json"
OPEN: Final = ".open"
FINISHED: Final = ".log"
# One that could not be read to its end; kept for whoever wants to have a look.
DAMAGED: Final = ".damaged"


class LogHead(Struct, frozen=True):
    """Who wrote a file."""

    broker: str
    # Different for each start of a broker.
    life: str
    number: int
    # Seconds since 1970.
    created_at: float
    # The names of links, by their numbers in records.
    links: dict[str, str] = {}
    version: int = 1


class Batch(Struct, frozen=True):
    """Records that were written together: the number of the first, how many, and their bytes."""

    first: int
    count: int
    payload: bytes
    # Where it is in its file.
    offset: int = 0


class Damage(Struct, frozen=True):
    """Bytes of a file that are no batch."""

    offset: int
    length: int
    what: str


_HEAD: Final = msgspec.json.Decoder(LogHead)


def write_head(head: LogHead) -> bytes:
    text = msgspec.json.encode(head)
    return MAGIC + _LENGTH.pack(len(text), crc32(text)) + text


def write_batch(first: int, count: int, payload: bytes) -> bytes:
    return batch_head(first, count, payload) + payload


def batch_head(first: int, count: int, payload: bytes) -> bytes:
    """What stands before the records of a batch."""
    covered = _COVERED.pack(len(payload), count, first)
    return BATCH_MAGIC + covered + crc32(payload, crc32(covered)).to_bytes(4, "little")


def read_head(path: Path) -> tuple[LogHead, int]:
    """The head of a file, and where its batches begin."""
    with path.open("rb") as file:
        return parse_head(file.read(len(MAGIC) + _LENGTH.size + MAX_HEAD_BYTES), str(path))


def parse_head(data: bytes, name: str) -> tuple[LogHead, int]:
    """The head of a file that begins with this data, and where its batches begin."""
    begin = len(MAGIC) + _LENGTH.size
    if len(data) < begin or not data.startswith(MAGIC):
        raise JournalDamaged(f"{name} does not begin like a log of the journal")
    length, crc = _LENGTH.unpack_from(data, len(MAGIC))
    text = data[begin : begin + length] if length <= MAX_HEAD_BYTES else b""
    if len(text) != length or crc32(text) != crc:
        raise JournalDamaged(f"the head of {name} is damaged: nobody can tell which broker wrote it")
    return _HEAD.decode(text), begin + length


def read_batches(path: Path, begin: int) -> Iterator[Batch | Damage]:
    """The batches of a file from a place on, and what is damaged between them."""
    return split_batches(path.read_bytes(), begin)


def split_batches(data: bytes, begin: int) -> Iterator[Batch | Damage]:
    """The same of what was read already."""
    at = begin
    while at < len(data):
        found = _batch_at(data, at)
        if isinstance(found, Batch):
            yield found
            at += BATCH.size + len(found.payload)
            continue
        # A whole batch may follow; the mark alone proves nothing, so it must hold together as well.
        after = data.find(BATCH_MAGIC, at + 1)
        while after >= 0 and not isinstance(_batch_at(data, after), Batch):
            after = data.find(BATCH_MAGIC, after + 1)
        end = len(data) if after < 0 else after
        yield Damage(at, end - at, found)
        at = end


def _batch_at(data: bytes, at: int) -> Batch | str:
    """The batch at a place, or why there is none."""
    if at + BATCH.size > len(data):
        return "a batch is cut off in its head"
    magic, length, count, first, crc = BATCH.unpack_from(data, at)
    if magic != BATCH_MAGIC or length > MAX_BATCH_BYTES:
        return "there is no batch where one should begin"
    begin = at + BATCH.size
    if begin + length > len(data):
        return "a batch is cut off"
    payload = data[begin : begin + length]
    if crc32(payload, crc32(_COVERED.pack(length, count, first))) != crc:
        return "the checksum of a batch is wrong"
    return Batch(first, count, payload, at)


# -- folders ----------------------------------------------------------------------------------


def log_path(folder: Path, number: int, suffix: str) -> Path:
    return folder / f"{number:012d}{suffix}"


def log_files(folder: Path, suffix: str = FINISHED) -> list[Path]:
    """The logs of a folder in the order in which they were written."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(path for path in folder.iterdir() if path.suffix == suffix and path.stem.isdigit())
    return []


def finish_leftovers(folder: Path) -> list[Path]:
    """Give logs that an earlier life left open their final name."""
    finished = []
    for path in log_files(folder, OPEN):
        target = path.with_suffix(FINISHED)
        path.rename(target)
        finished.append(target)
    if finished:
        sync_folder(folder)
    return finished


class _Noted(Struct):
    """What of the archiver's notes tells which logs there were."""

    log: int = 0
    logs: list[str] = []


def last_number(folder: Path) -> int:
    """The highest number that was given to a log here. It outlives the logs themselves: the archiver would
    take a second one of the same name for the one that it has archived."""
    # In this order: what is removed is noted first.
    numbers = [int(path.stem) for suffix in (OPEN, FINISHED, DAMAGED) for path in log_files(folder, suffix)]
    for name in (PLAN, STATE):
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
            noted = msgspec.json.decode((folder.parent / name).read_bytes(), type=_Noted)
            numbers += [noted.log, *(int(log.partition(".")[0]) for log in noted.logs)]
    return max(numbers, default=0)


def make_folder(folder: Path) -> None:
    """A folder that is there after a power cut, too."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
