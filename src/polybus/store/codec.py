"""Entries ⇄ bytes, and the checksum of a row.

MessagePack.  What every job costs (the job, its start, its outcome) is an array, half as long as a map; what
is rare is a map.  Jobs and outcomes come packed from the core (`core.rows`).  Both forms may grow: a field
that is added at the end of an entry, with a default, is read from old rows too.  Anything else needs a
migration (`schema/`) and a new number in the meta row.

The checksum is a CRC-32 that begins with the table and the number of the row, so that a row that turns up
in another's place is found as well.  It finds every damage of up to 32 neighbouring bits, and all but one
in four thousand million others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from zlib import crc32

from msgspec import Struct, msgpack
from msgspec.structs import astuple

from polybus.core.ledger import (
    Attempt,
    DeadLetter,
    NodeEntry,
    ScheduleEntry,
    ScheduleRun,
    Started,
    Valued,
)
from polybus.core.rows import pack_job, pack_outcome, unpack_job, unpack_outcome

# Spreads row numbers over all 32 bits; 2**64 divided by the golden ratio.
_SPREAD: Final = 0x9E3779B97F4A7C15


class Delay(Struct, frozen=True):
    """What a `Waiting` line says of its job."""

    token: bytes
    attempt: int
    due_at: float
    history: tuple[Attempt, ...]


class Group(Struct, frozen=True, array_like=True):
    key: bytes
    state: bytes


class _StartedRow(Started, frozen=True, array_like=True):
    pass


class _ValueRow(Valued, frozen=True, array_like=True):
    pass


# -- checksums --------------------------------------------------------------------------------


def checksum(tag: int, number: int, payload: bytes) -> int:
    # Compiled, these are numbers of 64 bits: whatever does not fit in them is not looked at anyway.
    seed = ((number * _SPREAD >> 32) ^ tag) & 0xFFFFFFFF
    return crc32(payload, seed)


# -- writing ----------------------------------------------------------------------------------

_pack = msgpack.Encoder().encode


def _pack_started(line: Started) -> bytes:
    return _pack((line.token, line.attempt, line.worker))


def _pack_value(value: Valued) -> bytes:
    return _pack((value.topic, value.body, value.at))


# -- reading ----------------------------------------------------------------------------------


def _reader(row: type[Any], entry: type[Any]) -> Callable[[bytes], Any]:
    read = msgpack.Decoder(row).decode
    return lambda payload: entry(*astuple(read(payload)))


class Codec(Struct, frozen=True):
    """How the entries of one table are written and read, and what they are known by. `tag` is for ever."""

    tag: int
    pack: Callable[[Any], bytes]
    unpack: Callable[[bytes], Any]
    key: Callable[[Any], Any]


# The tables of the store.
CODECS: Final = {
    "job": Codec(1, pack_job, unpack_job, lambda job: job.token),
    "started": Codec(2, _pack_started, _reader(_StartedRow, Started), lambda line: line.token),
    "delay": Codec(3, _pack, msgpack.Decoder(Delay).decode, lambda delay: delay.token),
    "outcome": Codec(4, pack_outcome, unpack_outcome, lambda outcome: outcome.token),
    "dead": Codec(5, _pack, msgpack.Decoder(DeadLetter).decode, lambda letter: letter.job.token),
    "schedule": Codec(6, _pack, msgpack.Decoder(ScheduleEntry).decode, lambda entry: entry.key),
    "run": Codec(7, _pack, msgpack.Decoder(ScheduleRun).decode, lambda run: (run.key, run.due_at)),
    "grouping": Codec(8, _pack, msgpack.Decoder(Group).decode, lambda group: group.key),
    "last_value": Codec(9, _pack_value, _reader(_ValueRow, Valued), lambda value: value.topic),
    "node": Codec(10, _pack, msgpack.Decoder(NodeEntry).decode, lambda node: node.name),
}
