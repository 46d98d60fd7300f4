"""The two lines that every guaranteed job costs, and how its entries are packed.

A job is packed where it is made, because everything about it is at hand there: to build an entry, hand it to
the thread that writes, and have that look at every part of it again costs more than the packing.  So these
lines carry bytes, and the entry itself is only made if somebody asks for it.

MessagePack, each entry an array.  What stands at the end of an entry and is as usual may be left out, and
fields that are added there later, with a default, are missing in old rows: both are read.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Raw, msgpack
from msgspec.structs import astuple, fields

from polybus.core.entries import DeadLetter, JobEntry, Outcome
from polybus.core.model import JobOptions

# Options repeat; those with chains and groups may all differ.
_OPTIONS_REMEMBERED: Final = 1024


class _JobRow(JobEntry, frozen=True, array_like=True):
    pass


class _OutcomeRow(Outcome, frozen=True, array_like=True):
    pass


_pack = msgpack.Encoder().encode
_read_job = msgpack.Decoder(_JobRow).decode
_read_outcome = msgpack.Decoder(_OutcomeRow).decode
_defaults: Final = {field.name: field.default for field in fields(JobOptions)}
_packed_options: dict[JobOptions, Raw] = {}
_last_options: JobOptions | None = None
_last_raw: Any = None


def pack_options(options: JobOptions) -> Raw:
    """What is not as usual."""
    global _last_options, _last_raw
    # Jobs that come one after the other mostly have the very same options, and to hash them takes its time.
    if options is _last_options:
        return _last_raw  # type: ignore[no-any-return]
    raw = _packed_options.get(options)
    if raw is None:
        if len(_packed_options) >= _OPTIONS_REMEMBERED:
            _packed_options.clear()
        said = {name: getattr(options, name) for name in _defaults}
        raw = Raw(_pack({name: value for name, value in said.items() if value != _defaults[name]}))
        _packed_options[options] = raw
    _last_options, _last_raw = options, raw
    return raw


def pack_job(job: JobEntry) -> bytes:
    return _pack(
        (
            job.token,
            job.link,
            job.identity,
            job.request_id,
            job.voice,
            job.service,
            job.body,
            pack_options(job.options),
            job.accepted_at,
            job.expires_at,
            job.due_at,
            job.attempt,
            job.worker,
            job.history,
        )
    )


def pack_new_job(
    token: bytes,
    link: str,
    identity: bytes,
    request_id: bytes,
    voice: str,
    service: bytes,
    body: list[Any],
    options: Raw,
    accepted_at: float,
) -> bytes:
    """A job that nobody has had yet, may begin at once and never grows stale: as most are."""
    return _pack((token, link, identity, request_id, voice, service, body, options, accepted_at))


def unpack_job(row: bytes) -> JobEntry:
    return JobEntry(*astuple(_read_job(row)))


def pack_outcome(outcome: Outcome) -> bytes:
    return _pack(
        (
            outcome.token,
            outcome.link,
            outcome.identity,
            outcome.request_id,
            outcome.service,
            outcome.at,
            outcome.reason,
            outcome.detail,
            outcome.body,
        )
    )


def pack_answer(
    token: bytes, link: str, identity: bytes, request_id: bytes, service: bytes, at: float, body: list[Any]
) -> bytes:
    """The outcome of a job that was answered."""
    return _pack((token, link, identity, request_id, service, at, "", "", body))


def unpack_outcome(row: bytes) -> Outcome:
    return Outcome(*astuple(_read_outcome(row)))


class Accepted:
    """A job is there. If it was a dead letter or had an outcome before, it has neither any more.

    If it is `promised`, it follows from what was accepted before (the next step of a chain), so nobody can be
    told that it was not accepted after all: if it cannot be written now, it is written later, like all that
    has happened."""

    __slots__ = ("_job", "is_new", "promised", "row", "token")

    token: bytes
    # The packed entry; None if it is to be packed yet.
    row: bytes | None
    promised: bool
    # Whether nothing is known of its token yet: nobody need look for what the job was before.
    is_new: bool
    _job: JobEntry | None

    def __init__(self, job: JobEntry, promised: bool = False) -> None:
        self.token = job.token
        self.row = None
        self.promised = promised
        self.is_new = False
        self._job = job

    @property
    def job(self) -> JobEntry:
        if self._job is not None:
            return self._job
        assert self.row is not None
        return unpack_job(self.row)

    def packed(self) -> bytes:
        row = self.row
        return pack_job(self.job) if row is None else row

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Accepted) and (self.job, self.promised) == (other.job, other.promised)

    def __hash__(self) -> int:
        return hash(self.token)

    def __repr__(self) -> str:
        return f"Accepted({self.job!r}, {self.promised!r})"


def new_accepted(token: bytes, row: bytes, promised: bool, is_new: bool) -> Accepted:
    line = Accepted.__new__(Accepted)
    line.token = token
    line.row = row
    line.promised = promised
    line.is_new = is_new
    line._job = None
    return line


class Ended:
    """A job reached its end. `outcome` is kept if somebody may ask for it; `dead` if it was given up."""

    __slots__ = ("_outcome", "dead", "row", "token")

    token: bytes
    # The packed outcome; None if there is none, or if it is to be packed yet.
    row: bytes | None
    dead: DeadLetter | None
    _outcome: Outcome | None

    def __init__(self, token: bytes, outcome: Outcome | None = None, dead: DeadLetter | None = None) -> None:
        self.token = token
        self.row = None
        self.dead = dead
        self._outcome = outcome

    @property
    def outcome(self) -> Outcome | None:
        return self._outcome if self.row is None else unpack_outcome(self.row)

    def packed(self) -> bytes | None:
        """The outcome packed, if there is one."""
        outcome = self._outcome
        return self.row if outcome is None else pack_outcome(outcome)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ended) and (self.token, self.outcome, self.dead) == (
            other.token,
            other.outcome,
            other.dead,
        )

    def __hash__(self) -> int:
        return hash(self.token)

    def __repr__(self) -> str:
        return f"Ended({self.token!r}, {self.outcome!r}, {self.dead!r})"


def new_ended(token: bytes, row: bytes) -> Ended:
    line = Ended.__new__(Ended)
    line.token = token
    line.row = row
    line.dead = None
    line._outcome = None
    return line
