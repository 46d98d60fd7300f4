"""The scribe: the thread that owns the store and writes down what the core noted.

    loop:    submit(number, lines) …            … results() → Written(number)
    scribe:            take all that waits → one transaction → tell

While one transaction is being synced the next batches gather, and become one transaction together: the
slower the disk, the larger the transactions.  Nothing here makes the loop wait.

When a write fails, what was to be accepted is refused, because its clients wait and may go elsewhere; all
other lines happened already and are kept, in order, until they can be written.  What the failed transaction
was to accept is taken back (`Ended` without an outcome) in front of them: after an I/O error nobody knows
whether the disk kept it.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeGuard

from msgspec import Struct

from polybus.core.ledger import Line, Valued
from polybus.core.rows import Accepted, Ended
from polybus.errors import StoreError, StoreFull
from polybus.store.port import Store

# A disk that is full or gone is asked again this often.
RETRY_S: Final = 1.0
# More than this waiting means that the disk does not keep up (seconds of work), or is away: then nothing
# new should be accepted. Lines of what is already accepted are always taken.
WAITING_LINES: Final = 200_000
WAITING_BYTES: Final = 256 * 1024 * 1024
# One transaction: large enough to be cheap, small enough that the first batch in it is not kept waiting.
TRANSACTION_LINES: Final = 20_000
# What a line costs beside its body.
LINE_BYTES: Final = 300


class Written(Struct, frozen=True):
    """All lines up to this batch are on disk, but for what was refused."""

    number: int


class Unwritten(Struct, frozen=True):
    """These jobs of the batch are not stored. Its other lines are kept, and `Written` will come for them."""

    number: int
    refused: tuple[bytes, ...]
    reason: str


class Sick(Struct, frozen=True):
    reason: str


class Well(Struct, frozen=True):
    pass


class Answered(Struct, frozen=True):
    """A question was answered, with a value or with an error; `tell` hands it to whoever asked."""

    done: Callable[[Any, Exception | None], None]
    value: Any = None
    error: Exception | None = None

    def tell(self) -> None:
        self.done(self.value, self.error)


Result = Written | Unwritten | Sick | Well | Answered
_Batch = tuple[int, Sequence[Line], int]
_Question = tuple[Callable[[Store], Any], Callable[[Any, Exception | None], None]]


class Scribe:
    """`wake` is called from the scribe's thread whenever there are results. `store` belongs to the scribe
    from `start` to the end of `stop`, which closes it."""

    def __init__(
        self,
        store: Store,
        wake: Callable[[], None],
        *,
        retry_s: float = RETRY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._wake = wake
        self._retry_s = retry_s
        self._clock = clock
        # Shared, under the lock.
        self._news = threading.Condition(threading.Lock())
        self._batches: deque[_Batch] = deque()
        self._questions: list[_Question] = []
        self._waiting_lines = 0
        self._waiting_bytes = 0
        self._stopping = False
        # Filled by the thread, emptied by the loop; a deque needs no lock for that.
        self._results: deque[Result] = deque()
        # The thread's own: lines of failed transactions, the last batch that they belong to, and why nothing
        # can be written.
        self._kept: list[Line] = []
        self._kept_bytes = 0
        self._number = 0
        self._trouble = ""
        self._again_at = 0.0
        self._told = False
        self._thread = threading.Thread(target=self._work, name="scribe", daemon=True)

    # -- for the loop -------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def submit(self, number: int, lines: Sequence[Line]) -> None:
        """Have these lines written. Numbers rise. Never blocks, never refuses: look at `is_full` before."""
        size = _size(lines)
        with self._news:
            self._batches.append((number, lines, size))
            self._waiting_lines += len(lines)
            self._waiting_bytes += size
            self._news.notify()

    def ask(self, call: Callable[[Store], Any], done: Callable[[Any, Exception | None], None]) -> None:
        """Call something with the store, between transactions. The answer comes with `results`."""
        with self._news:
            self._questions.append((call, done))
            self._news.notify()

    def results(self) -> list[Result]:
        """What happened since the last time, in order."""
        taken = []
        while self._results:
            taken.append(self._results.popleft())
        return taken

    @property
    def is_full(self) -> bool:
        """Too much waits, or nobody writes: accept nothing more."""
        return (
            self._waiting_lines > WAITING_LINES
            or self._waiting_bytes > WAITING_BYTES
            or not self._thread.is_alive()
        )

    @property
    def waiting_lines(self) -> int:
        return self._waiting_lines

    def stop(self, timeout_s: float = 10.0) -> int:
        """Write what waits, close the store, and say how many lines could not be written."""
        with self._news:
            self._stopping = True
            self._news.notify()
        self._thread.join(timeout_s)
        return self._waiting_lines

    # -- the thread ---------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while self._turn():
                pass
            self._store.close()
        except BaseException as error:
            # Nothing is written any more; `is_full` says so too, because the thread has ended.
            self._results.append(Sick(f"the scribe has stopped: {in_words(error)}"))
            self._wake()

    def _turn(self) -> bool:
        """What waits becomes one transaction, then questions are answered. False after the last turn."""
        with self._news:
            if not (self._batches or self._questions or self._stopping):
                self._news.wait(self._pause_s())
            batches = self._take_batches()
            questions, self._questions = self._questions, []
            is_last = self._stopping and not self._batches
            hurry = self._stopping
        now = self._clock()
        if self._trouble and now < self._again_at and not hurry:
            self._refuse(batches, self._trouble)
        else:
            self._transact(batches)
        for call, done in questions:
            self._tell(self._answer(call, done))
        if self._told:
            self._told = False
            self._wake()
        return not is_last

    def _pause_s(self) -> float | None:
        """How long there is nothing to do if nobody says anything."""
        return max(0.0, self._again_at - self._clock()) if self._trouble else None

    def _take_batches(self) -> list[_Batch]:
        taken, lines = [], 0
        while self._batches and lines < TRANSACTION_LINES:
            batch = self._batches.popleft()
            taken.append(batch)
            lines += len(batch[1])
        return taken

    def _transact(self, batches: list[_Batch]) -> None:
        try:
            self._write_kept()
            if batches or self._kept or self._trouble:
                lines = self._kept.copy()
                for _, batch, _ in batches:
                    lines += batch
                self._store.write(lines)
        except Exception as error:
            self._again_at = self._clock() + self._retry_s
            reason = in_words(error)
            if reason != self._trouble:
                self._tell(Sick(reason))
            self._trouble = reason
            self._refuse(batches, reason, doubtful=not isinstance(error, StoreFull))
            return
        self._count(batches, len(self._kept), self._kept_bytes)
        self._kept.clear()
        self._kept_bytes = 0
        number = batches[-1][0] if batches else self._number
        if number:
            self._tell(Written(number))
            self._number = 0
        if self._trouble:
            self._trouble = ""
            self._tell(Well())

    def _write_kept(self) -> None:
        """After a long time without a disk there may be a lot: not all of it at once."""
        while len(self._kept) > TRANSACTION_LINES:
            first = self._kept[:TRANSACTION_LINES]
            self._store.write(first)
            del self._kept[:TRANSACTION_LINES]
            size = _size(first)
            self._kept_bytes -= size
            self._count([], len(first), size)

    def _refuse(self, batches: list[_Batch], reason: str, doubtful: bool = False) -> None:
        """Keep what happened; say no to what was to be accepted."""
        kept: list[Line] = []
        for number, batch, _ in batches:
            refused = tuple(line.token for line in batch if _is_refusable(line))
            if doubtful:
                kept += [Ended(token) for token in refused]
            kept += [line for line in batch if not _is_refusable(line)]
            self._number = number
            if refused:
                self._tell(Unwritten(number, refused, reason))
        size = _size(kept)
        self._kept += kept
        self._kept_bytes += size
        self._count(batches, -len(kept), -size)

    def _tell(self, result: Result) -> None:
        self._results.append(result)
        self._told = True

    def _count(self, batches: list[_Batch], lines: int, size: int) -> None:
        """These batches, and so many other lines, wait no longer."""
        with self._news:
            self._waiting_lines -= lines + sum(len(batch) for _, batch, _ in batches)
            self._waiting_bytes -= size + sum(bytes_ for _, _, bytes_ in batches)

    def _answer(
        self, call: Callable[[Store], Any], done: Callable[[Any, Exception | None], None]
    ) -> Answered:
        try:
            return Answered(done, call(self._store))
        except Exception as error:
            return Answered(done, None, error)


def in_words(error: BaseException) -> str:
    """An error in words; one that nobody foresaw with its place, because it is a bug."""
    if isinstance(error, StoreError):
        return str(error)
    places = traceback.extract_tb(error.__traceback__)
    where = f" at {places[-1].filename}:{places[-1].lineno}" if places else ""
    return f"a bug in the store: {type(error).__name__}: {error}{where}"


def _is_refusable(line: Line) -> TypeGuard[Accepted]:
    return type(line) is Accepted and not line.promised


def _size(lines: Sequence[Line]) -> int:
    size = LINE_BYTES * len(lines)
    for line in lines:
        if type(line) is Accepted:
            accepted = line
            size += len(accepted.packed())
        elif type(line) is Ended:
            ended = line
            row = ended.packed()
            size += 0 if row is None else len(row)
        elif type(line) is Valued:
            size += sum(map(len, line.body))
    return size
