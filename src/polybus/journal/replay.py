"""Requests of the past, to be sent again, and how their new replies compare with those of then.

Which requests is decided by narrow columns only; then the chosen ones are read with their bodies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from polybus.journal.columns import STAMP
from polybus.journal.reader import Told, read_rows
from polybus.journal.record import TERMINAL

SAME: Final = "same"
DIFFERENT: Final = "different"
FAILED: Final = "failed"
INCOMPARABLE: Final = "not comparable"
RESULTS: Final = (SAME, DIFFERENT, FAILED, INCOMPARABLE)
# Tokens that are looked up in one reading.
AT_ONCE: Final = 50_000
NOT_KEPT: Final = "its body was not kept (see journal.body_bytes)"


class Recorded(Struct):
    """A request as it was, and what became of it."""

    token: str
    service: str
    at: datetime
    size: int
    # None if it was not kept.
    body: list[bytes] | None
    # None if it never ended.
    outcome: str | None = None
    reason: str | None = None
    reply: list[bytes] | None = None
    reply_size: int = 0
    # The reply of a step in a chain goes to the next one, and is not in the journal.
    is_step: bool = False

    @property
    def can_be_sent(self) -> bool:
        return self.body is not None


class Compared(Struct, frozen=True):
    """How a new reply compares with the recorded one, and why."""

    result: str
    why: str = ""


class Selection(Struct):
    """Which requests are wanted."""

    since: datetime | None = None
    until: datetime | None = None
    # About the service; any if there is none.
    service: pc.Expression | None = None
    outcome: str = ""
    tokens: Sequence[str] = ()
    limit: int = 0


class Chosen(Struct, frozen=True):
    """The requests in the order in which they came, and how many there were before the limit."""

    requests: list[Recorded]
    total: int


def choose(journal: Path, wanted: Selection, damage: Told | None = None) -> Chosen:
    """Read the requests that are wanted."""
    tokens = _tokens(journal, wanted, damage)
    chosen = tokens[: wanted.limit] if wanted.limit else tokens
    found: dict[str, Recorded] = {}
    for at in range(0, len(chosen), AT_ONCE):
        found |= _read(journal, chosen[at : at + AT_ONCE], damage)
    return Chosen([found[token] for token in chosen if token in found], len(tokens))


def _tokens(journal: Path, wanted: Selection, damage: Told | None) -> list[str]:
    """Tokens of what is wanted, in the order in which it was accepted."""
    since, until = wanted.since, wanted.until
    if wanted.outcome:
        # The end of a request has the time at which it was accepted.
        where = pc.field("what") == wanted.outcome
        for limit, holds in ((since, pc.Expression.__ge__), (until, pc.Expression.__lt__)):
            if limit is not None:
                where = where & holds(pc.field("accepted_at"), pa.scalar(limit, STAMP))
        until = None
        column = "accepted_at"
    else:
        where = pc.field("what") == "accepted"
        column = "at"
    if wanted.service is not None:
        where = where & wanted.service
    if wanted.tokens:
        where = where & pc.field("token").isin(list(wanted.tokens))
    tables = list(
        read_rows(
            journal, since=since, until=until, where=where, columns=["token", column, "seq"], damage=damage
        )
    )
    if not tables:
        return []
    ordered = pa.concat_tables(tables).sort_by([(column, "ascending"), ("seq", "ascending")])
    return list(dict.fromkeys(ordered["token"].to_pylist()))


def _read(journal: Path, tokens: list[str], damage: Told | None) -> dict[str, Recorded]:
    columns = ("token", "request_id", "service", "at", "what", "reason", "size", "body_size", "body", "seq")
    where = pc.field("token").isin(tokens) & pc.field("what").isin(["accepted", *sorted(TERMINAL)])
    rows: list[dict[str, Any]] = []
    for table in read_rows(journal, where=where, columns=columns, damage=damage):
        rows += table.to_pylist()
    # Acceptance first; a job that ended more than once counts as it did the last time.
    rows.sort(key=lambda row: (row["what"] != "accepted", row["at"], row["seq"]))
    found: dict[str, Recorded] = {}
    named: dict[str, bool] = {}
    for row in rows:
        token = row["token"]
        if row["what"] == "accepted":
            # A job that an operator queued again has its body where it was accepted for the first time.
            if token not in found:
                found[token] = Recorded(token, row["service"] or "", row["at"], row["size"] or 0, row["body"])
                named[token] = row["request_id"] is not None
        elif token in found:
            request = found[token]
            request.outcome, request.reason = row["what"], row["reason"]
            request.reply, request.reply_size = row["body"], row["body_size"] or 0
            request.is_step = named[token] and row["request_id"] is None
    return found


# -- comparing ------------------------------------------------------------------------------------


def compare(
    was: Recorded, reply: Sequence[bytes] | None, reason: str, ignore: Iterable[str] = ()
) -> Compared:
    """Compare a new answer with the recorded one.

    `reply` is None if there was none, for this `reason`; `ignore` are fields of JSON replies that may differ.
    """
    if was.is_step:
        return Compared(INCOMPARABLE, "a step in a chain: its reply went to the next step")
    if was.outcome == "replied":
        if reply is None:
            return Compared(FAILED, f"it replied, now: {reason}")
        return _compare_bodies(was, list(reply), tuple(ignore))
    if was.outcome == "failed":
        if reply is not None:
            return Compared(DIFFERENT, f"it failed ({was.reason}), now it replies")
        if reason == was.reason:
            return Compared(SAME, f"it failed then, too: {reason}")
        return Compared(DIFFERENT, f"it failed with {was.reason}, now: {reason}")
    if reply is None:
        return Compared(FAILED, f"it had no reply, and has none now: {reason}")
    return Compared(INCOMPARABLE, f"it had no reply: {was.outcome or 'it never ended'}")


def _compare_bodies(was: Recorded, reply: list[bytes], ignore: tuple[str, ...]) -> Compared:
    if was.reply is None:
        size = sum(map(len, reply))
        if size != was.reply_size and not ignore:
            return Compared(DIFFERENT, f"the reply had {was.reply_size} bytes, now {size}")
        return Compared(INCOMPARABLE, "the reply was not kept (see journal.body_bytes)")
    if was.reply == reply:
        return Compared(SAME)
    if ignore and _without(was.reply, ignore) == _without(reply, ignore):
        return Compared(SAME, "but for what is ignored")
    return Compared(DIFFERENT, _first_difference(was.reply, reply))


def _without(frames: list[bytes], ignore: tuple[str, ...]) -> list[Any]:
    """Frames as JSON values without some fields; what is no JSON stays as it is."""
    values: list[Any] = []
    for frame in frames:
        try:
            values.append(_strip(json.loads(frame), ignore))
        except (ValueError, RecursionError):
            values.append(frame)
    return values


def _strip(value: Any, ignore: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {name: _strip(each, ignore) for name, each in value.items() if name not in ignore}
    return [_strip(each, ignore) for each in value] if isinstance(value, list) else value


def _first_difference(was: list[bytes], now: list[bytes]) -> str:
    if len(was) != len(now):
        return f"the reply had {len(was)} frames, now {len(now)}"
    for number, (one, other) in enumerate(zip(was, now, strict=True), 1):
        if one != other:
            place = next(
                (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
                min(len(one), len(other)),
            )
            which = f"frame {number}, " if len(was) > 1 else ""
            return f"the reply differs: {which}byte {place} of {len(one)}, now {len(other)}"
    return ""
