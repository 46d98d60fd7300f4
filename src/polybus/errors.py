"""Every error polybus raises on purpose, under one root.

A mistake of ours (or of the caller) is a `LocalProtocolError`; a mistake of the peer
is a `RemoteProtocolError`.  Any other exception that leaves a decoder is a bug.
Messages say what happened and what to do next.
"""

from __future__ import annotations

from typing import Final


class PolybusError(Exception):
    """The root of all polybus errors."""


class ProtocolError(PolybusError):
    """A message breaks the rules of its dialect."""


class LocalProtocolError(ProtocolError):
    """We were asked to send something that the dialect does not allow."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the dialect does not allow.

    `reason` is a short, stable word that is counted and journaled; the text explains it.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason: Final = reason


class ConfigError(PolybusError):
    """A setting is wrong; the text names it and says what it takes."""


class RequestFailed(PolybusError):
    """The bus answered a request with a failure.

    `code` is the short machine word (`expired`, `queue_full`, `rejected`, `failed`, …),
    `detail` the sentence for people, `body` what the worker sent, if it sent anything.
    """

    def __init__(self, code: str, detail: str = "", body: bytes = b"") -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.code: Final = code
        self.detail: Final = detail
        self.body: Final = body


class RequestTimeout(PolybusError):
    """No answer came in the time the caller allowed. The request may still run."""


class ConnectionLost(PolybusError):
    """The broker could not be reached or went away and did not come back in time."""


class WorkerRejected(PolybusError):
    """Raised by a handler to refuse a request: it is answered, never retried."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason: Final = reason


class JobError(PolybusError):
    """Something about one job; `job` is its id."""

    def __init__(self, job: str, text: str) -> None:
        # Both are arguments, so that the error survives pickling on its way between processes.
        super().__init__(job, text)
        self.job: Final = job
        self.text: Final = text

    def __str__(self) -> str:
        return self.text


class JobRefused(JobError):
    """The broker did not take a job, or a question about it: `code` says why, `detail` what to do."""

    def __init__(self, job: str, code: str, detail: str = "") -> None:
        super().__init__(job, f"{code}: {detail}" if detail else code)
        self.args = (job, code, detail)
        self.code: Final = code
        self.detail: Final = detail


class JobUnconfirmed(JobError, RequestTimeout):
    """No receipt came in time. The broker may have the job or not: the same id again is safe."""


class JobFailed(JobError):
    """A job ended without a result.

    `reason` is the short word (`failed`, `rejected`, `timeout`, `worker_lost`, …), `detail` the sentence of
    the last attempt, `history` one mapping for every attempt: number, at, worker, reason, detail.
    """

    def __init__(
        self, job: str, reason: str, detail: str = "", history: tuple[dict[str, object], ...] = ()
    ) -> None:
        super().__init__(job, f"{reason}: {detail}" if detail else reason)
        self.args = (job, reason, detail, history)
        self.reason: Final = reason
        self.detail: Final = detail
        self.history: Final = history


class JobCancelled(JobError):
    """A job was cancelled before it had a result."""


class JobExpired(JobError):
    """A job was stale before it had a result: nobody wanted it to run so late."""


class ResultTimeout(JobError, RequestTimeout):
    """A job had no result in the time that the caller allowed. It goes on: ask again, or cancel it."""


class UnknownJob(JobError):
    """The broker knows no job with this id: it never got it, or has forgotten its result."""


class StoreError(PolybusError):
    """The store of jobs and schedules cannot do what it was asked."""


class StoreFull(StoreError):
    """There is no room on the disk. Nothing of the transaction was kept; with room it works again."""


class StoreFailed(StoreError):
    """The disk refused a read or a write. Nothing of the transaction is promised."""


class StoreTooNew(StoreError):
    """The store was written by a newer version of polybus."""


class StoreDamaged(StoreError):
    """What is on the disk is not what was written: `file` is where, `what` is wrong.

    Nothing of it is served, because a job that is lost or run twice in silence is worse than a stop.
    """

    def __init__(self, file: str, what: str) -> None:
        super().__init__(
            f"the store is damaged: {file}: {what}. Put back a backup of the whole directory; or start with "
            "an empty one (--data-dir elsewhere); or save what is whole: polybus doctor --salvage DIR."
        )
        self.file: Final = file
        self.what: Final = what


class JournalDamaged(PolybusError):
    """What is in the journal is not what was written. What is whole can still be read."""


class JournalMissing(PolybusError):
    """There is no journal in a folder, or nothing in it of what was asked for."""


class JournalMoved(PolybusError):
    """Files of the journal were compacted or removed while they were read; reading once more helps."""

    def __init__(self, path: object) -> None:
        super().__init__(f"{path} was compacted or removed while it was read; run the command again")
