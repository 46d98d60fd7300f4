"""Log records: what nodes publish as `log/<level>/<node>`, kept for whoever asks later.

A record is kept as it came and read when somebody wants to see it: taking one in costs no more than its
topic.  Each stands in two rows, both in the order of arrival: all records of its kind (ordinary: debug and
info; serious: warning and worse), from which the oldest leave, and the records of its level and node, by
which it is found.  Whoever is the oldest of the one is the oldest of the other.

There are limits to their number, bytes and age.  What has no room is made room for by ordinary records, as
long as they have more than their share; so warnings outlive the rest, and the rest is never quite gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from heapq import merge
from itertools import islice, takewhile
from math import isfinite
from typing import Any, Final

import msgspec

LOG_TOPICS: Final = b"log/"
LEVELS: Final = ("debug", "info", "warning", "error", "critical")
SERIOUS: Final = LEVELS.index("warning")
# As they come in topics; some loggers say it otherwise.
_RANKS: Final = {
    **{name.encode(): rank for rank, name in enumerate(LEVELS)},
    b"warn": LEVELS.index("warning"),
    b"fatal": LEVELS.index("critical"),
}

COUNT: Final = 100_000
BYTES: Final = 64 * 1024 * 1024
AGE_S: Final = 86_400.0
WARNINGS_AGE_S: Final = 7 * 86_400.0
# What a record costs beside its text.
OVERHEAD_BYTES: Final = 400
# More than this of one record nobody reads in a log; up to the second size it is cut where its message ends,
# beyond that it is not even looked into.
RECORD_BYTES: Final = 16 * 1024
READ_BYTES: Final = 128 * 1024
MESSAGE_CHARS: Final = 8 * 1024
LOGGER_CHARS: Final = 255
# With more brackets than this a record is no record but an attempt to make us dig.
NESTED: Final = 256
# One part in so many of the room belongs to ordinary records, however many serious ones there are.
ORDINARY_SHARE: Final = 10
# A follower that is further behind than this gets the newest, and is told how many it missed.
BEHIND: Final = 5_000
UNKNOWN_NODE: Final = "unknown"
TOPICS_REMEMBERED: Final = 4096


class LogRecord:
    __slots__ = ("is_cut", "kept_at", "node", "number", "rank", "size", "text")

    def __init__(self, rank: int, node: str, text: bytes, is_cut: bool, kept_at: float) -> None:
        self.rank = rank
        self.node = node
        self.text = text
        self.is_cut = is_cut
        self.kept_at = kept_at
        self.size = OVERHEAD_BYTES + len(text) + len(node)
        self.number = 0

    @property
    def level(self) -> str:
        return LEVELS[self.rank]


class Row:
    """Records of one kind, the oldest first."""

    def __init__(self) -> None:
        self.records: deque[LogRecord] = deque()
        self.held_bytes = 0


class Logs:
    """All records that are kept."""

    def __init__(self, count: int = COUNT, bytes_: int = BYTES, age_s: float = AGE_S) -> None:
        self.count = count
        self.max_bytes = bytes_
        self.age_s = age_s
        self.warnings_age_s = max(age_s, WARNINGS_AGE_S)
        self.taken = 0
        # How many left because of the limits (not of age), and how many were cut.
        self.evicted = 0
        self.cut = 0
        # Told of each, while somebody follows.
        self.on_put: Callable[[LogRecord], None] | None = None
        self._ordinary = Row()
        self._serious = Row()
        self._found: dict[tuple[int, str], deque[LogRecord]] = {}
        # Of both kinds together.
        self._held = 0
        self.held_bytes = 0

    def __len__(self) -> int:
        return self._held

    def change(self, count: int, bytes_: int, age_s: float, warnings_age_s: float) -> None:
        """Let other limits hold from now on."""
        self.count, self.max_bytes, self.age_s, self.warnings_age_s = count, bytes_, age_s, warnings_age_s
        self._make_room()

    def put(self, record: LogRecord) -> None:
        self.taken += 1
        record.number = self.taken
        self.cut += record.is_cut
        row = self._serious if record.rank >= SERIOUS else self._ordinary
        row.records.append(record)
        row.held_bytes += record.size
        self._held += 1
        self.held_bytes += record.size
        key = (record.rank, record.node)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = deque()
        found.append(record)
        if self._held > self.count or self.held_bytes > self.max_bytes:
            self._make_room()
        if self.on_put is not None:
            self.on_put(record)

    def _make_room(self) -> None:
        ordinary, serious = self._ordinary, self._serious
        while self._held > self.count or self.held_bytes > self.max_bytes:
            has_more = (
                len(ordinary.records) * ORDINARY_SHARE > self.count
                or ordinary.held_bytes * ORDINARY_SHARE > self.max_bytes
            )
            self._drop_oldest(ordinary if has_more or not serious.records else serious)
            self.evicted += 1

    def _drop_oldest(self, row: Row) -> None:
        record = row.records.popleft()
        row.held_bytes -= record.size
        self._held -= 1
        self.held_bytes -= record.size
        key = (record.rank, record.node)
        found = self._found[key]
        found.popleft()
        if not found:
            del self._found[key]

    def forget_old(self, now: float) -> None:
        """Called about every second."""
        for row, age_s in ((self._ordinary, self.age_s), (self._serious, self.warnings_age_s)):
            while row.records and now - row.records[0].kept_at > age_s:
                self._drop_oldest(row)

    # -- looking up -------------------------------------------------------------------------------

    def newest(self, level: str, node: str, since: float, limit: int) -> list[LogRecord]:
        """The newest records of this level or worse, of nodes that this pattern fits, oldest first."""
        newest_first = merge(*map(reversed, self._rows(level, node)), key=_newest_first)
        found = takewhile(lambda record: record.kept_at >= since, newest_first)
        return list(islice(found, limit))[::-1]

    def after(self, number: int, level: str, node: str, limit: int) -> tuple[list[LogRecord], int]:
        """What came after the record of this number, the oldest first; and how many were passed over,
        because whoever asks is too far behind."""
        rows = [
            list(takewhile(lambda record: record.number > number, reversed(row)))
            for row in self._rows(level, node)
        ]
        waiting = sum(map(len, rows))
        if waiting > BEHIND:
            newest = list(islice(merge(*rows, key=_newest_first), limit))
            return newest[::-1], waiting - len(newest)
        return sorted((record for row in rows for record in row), key=_oldest_first)[:limit], 0

    def nodes(self) -> dict[str, dict[str, int]]:
        """How many records of each level there are, by node."""
        nodes: dict[str, dict[str, int]] = {}
        for (rank, node), found in sorted(self._found.items()):
            nodes.setdefault(node, {})[LEVELS[rank]] = len(found)
        return nodes

    def _rows(self, level: str, node: str) -> list[deque[LogRecord]]:
        least = LEVELS.index(level)
        if not node and least in (0, SERIOUS):
            # What is asked for most is there in one piece.
            rows = (self._ordinary, self._serious) if not least else (self._serious,)
            return [row.records for row in rows]
        if node and not any(sign in node for sign in "*?["):
            keys: Iterable[tuple[int, str]] = ((rank, node) for rank in range(least, len(LEVELS)))
            return [self._found[key] for key in keys if key in self._found]
        return [
            found
            for (rank, name), found in self._found.items()
            if rank >= least and (not node or fnmatchcase(name, node))
        ]


def _newest_first(record: LogRecord) -> int:
    return -record.number


def _oldest_first(record: LogRecord) -> int:
    return record.number


# -- reading ----------------------------------------------------------------------------------


def read(topic: bytes, body: Sequence[Any], now: float) -> LogRecord | None:
    """A publication as a record; None if its topic is not that of one."""
    meaning = _meaning(topic)
    if meaning is None:
        return None
    text, is_cut = _text(body)
    return LogRecord(meaning[0], meaning[1], text, is_cut, now)


@lru_cache(TOPICS_REMEMBERED)
def _meaning(topic: bytes) -> tuple[int, str] | None:
    """Level and node of a topic; the same ones come again and again."""
    parts = topic.split(b"/", 2)
    rank = _RANKS.get(parts[1].lower()) if len(parts) == 3 else None
    return None if rank is None else (rank, parts[2].decode(errors="replace") or UNKNOWN_NODE)


def _text(body: Sequence[Any]) -> tuple[bytes, bool]:
    """What is kept of a body, and whether that is not all of it."""
    if len(body) == 1 and len(body[0]) <= RECORD_BYTES:
        return bytes(body[0]), False
    size = sum(map(len, body))
    if size <= RECORD_BYTES:
        return b"\n".join(bytes(frame) for frame in body), False
    if size <= READ_BYTES:
        fields = _fields(b"\n".join(bytes(frame) for frame in body))
        message = fields.get("message")
        if isinstance(message, str):
            return _shortened(fields, message), True
    first = next(frame for frame in body if len(frame))
    return bytes(memoryview(first)[:RECORD_BYTES]), True


def _shortened(fields: dict[str, Any], message: str) -> bytes:
    kept = {"at": fields.get("at"), "logger": str(fields.get("logger", ""))[:LOGGER_CHARS]}
    message = message[:MESSAGE_CHARS]
    while len(text := msgspec.json.encode({**kept, "message": message})) > RECORD_BYTES and message:
        # Some characters are six bytes long in JSON.
        message = message[: len(message) // 2]
    return text[:RECORD_BYTES]


def _fields(text: bytes) -> dict[str, Any]:
    """The fields of a record that is a JSON object; none of anything else."""
    if text[:1] != b"{" or text.count(b"{") + text.count(b"[") > NESTED:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, ValueError, RecursionError):
        # No JSON, no UTF-8, or a number of thousands of digits.
        return {}


def message_of(record: LogRecord) -> str:
    return str(_message(record, _fields(record.text)))


def view(record: LogRecord, wall_offset: float) -> dict[str, Any]:
    """A record for people and programs; whatever came in, these fields have these types."""
    fields = _fields(record.text)
    received_at = round(record.kept_at + wall_offset, 3)
    at, logger, extra = fields.get("at"), fields.get("logger"), fields.get("extra")
    return {
        "number": record.number,
        "at": at if isinstance(at, float) and isfinite(at) else _whole(at, received_at),
        "received_at": received_at,
        "level": record.level,
        "node": record.node,
        "logger": logger[:LOGGER_CHARS] if isinstance(logger, str) else "",
        "message": _message(record, fields),
        "extra": extra if isinstance(extra, dict) else {},
        "cut": record.is_cut,
    }


def _whole(at: Any, otherwise: float) -> float:
    # Further away than this is no time, and may be no float either.
    return float(at) if type(at) is int and abs(at) < 1 << 53 else otherwise


def _message(record: LogRecord, fields: dict[str, Any]) -> str:
    message = fields.get("message")
    if isinstance(message, str):
        return message
    if message is not None:
        return msgspec.json.encode(message).decode()
    return record.text.decode(errors="backslashreplace")
