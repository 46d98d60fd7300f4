"""The thread that appends to the log, behind the bus.

    loop:    append(count, payload) …     (never waits, never raises)
    thread:  … write … sync … roll

What waits for the thread is bounded in bytes (`journal.buffer_bytes`).  If it does not fit, or if the disk
says no, it is let go and counted, and the numbers of the records go on.  So a journal that cannot be written
never stops the bus, and whoever reads it finds the hole and its size in the numbers.  Long before that the
loop leaves out bodies: see `polybus.server.journaling`.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct

from polybus.journal import lock
from polybus.journal.log import (
    FINISHED,
    MAX_BATCH_BYTES,
    OPEN,
    LogHead,
    batch_head,
    finish_leftovers,
    last_number,
    log_files,
    log_path,
    make_folder,
    sync_folder,
    write_head,
)

# What may wait for the disk unless the settings say otherwise.
WAITING_BYTES: Final = 256 * 1024 * 1024
# Records become durable at most so much later than they happened.
SYNC_S: Final = 0.02
# A log is finished when it is this large or this old; the archiver reads finished ones.
ROLL_BYTES: Final = 32 * 1024 * 1024
ROLL_S: Final = 1.0
# The same while nobody archives: it is no hurry then, and files should be few.
SLOW_ROLL_S: Final = 60.0
# How many pieces the system takes in one call; every system takes 16, also one that does not say how many.
PIECES: Final = max(16, min(os.sysconf("SC_IOV_MAX"), 1024))
# After an error the disk is tried again this much later.
RETRY_S: Final = 1.0
# A full buffer takes so long on a disk that writes 10 MB in a second.
STOP_S: Final = 30.0


class JournalState(Struct, frozen=True):
    """How the journal is doing."""

    written: int
    lost: int
    waiting_bytes: int
    # Why nothing can be written; empty if it can.
    trouble: str
    # The number of the last log that is finished, and how many were removed because there were too many.
    finished: int = 0
    removed: int = 0
    # Of the lost records, those that found no room in the buffer. The disk refused the others.
    overflowed: int = 0
    # Why the disk refused records the last time, also if it takes them again.
    refusal: str = ""


class JournalWriter:
    """Appends what it is given to logs in a folder. `append` and `state` are for the loop."""

    def __init__(
        self,
        folder: Path,
        broker: str,
        life: str,
        links: dict[int, str],
        *,
        waiting_bytes: int = WAITING_BYTES,
        sync_s: float = SYNC_S,
        roll_bytes: int = ROLL_BYTES,
        roll_s: float = ROLL_S,
        keep_bytes: int = 0,
        on_finished: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._broker = broker
        self._life = life
        self._links = {str(number): name for number, name in links.items()}
        self._most = waiting_bytes
        self._sync_s = sync_s
        self._roll_bytes = roll_bytes
        # May be changed by the loop any time.
        self.roll_s = roll_s
        # How much the logs may take if nobody archives them; 0 means that somebody does.
        self._keep_bytes = keep_bytes
        self._on_finished = on_finished
        self._clock = clock
        self._wall = wall
        # Shared; a deque needs no lock.
        self._waiting: deque[tuple[int, int, bytes]] = deque()
        self._news = threading.Event()
        self._stopping = False
        # The loop's own.
        self._next = 1
        self._overflowed = 0
        self._bytes_in = 0
        # The thread's own.
        self._bytes_out = 0
        self._file = -1
        self._size = 0
        self._opened_at = 0.0
        self._number = 0
        self._written = 0
        self._refused = 0
        self._trouble = ""
        self._refusal = ""
        self._begun = False
        self._finished = 0
        self._removed = 0
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)

    # -- for the loop -------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    @property
    def waiting_bytes(self) -> int:
        """Bytes in memory that are not on disk yet; the thread may be writing some of them."""
        return self._bytes_in - self._bytes_out

    @property
    def lost(self) -> int:
        """Records that are not in the journal and will not be."""
        return self._overflowed + self._refused

    def append(self, count: int, payload: bytes, *, force: bool = False) -> None:
        """Have these records written. `force` is for those that tell of losses: they may exceed the limit."""
        first = self._next
        self._next += count
        size = len(payload)
        if (self._bytes_in - self._bytes_out + size > self._most and not force) or size > MAX_BATCH_BYTES:
            self._overflowed += count
            return
        self._bytes_in += size
        self._waiting.append((first, count, payload))
        if not self._news.is_set():
            self._news.set()

    def state(self) -> JournalState:
        trouble = self._trouble
        if not self._stopping and not self._thread.is_alive():
            trouble = "the journal's thread has ended; what it said is on standard error"
        return JournalState(
            self._written,
            self.lost,
            self.waiting_bytes,
            trouble,
            self._finished,
            self._removed,
            self._overflowed,
            self._refusal,
        )

    def stop(self, timeout_s: float = STOP_S) -> int:
        """Write what waits and finish the log. How many records were lost in all."""
        self._stopping = True
        self._news.set()
        self._thread.join(timeout_s)
        # What a thread has not written by now goes with the process.
        return self._next - 1 - self._written

    # -- the thread ---------------------------------------------------------------------------

    def _work(self) -> None:
        self._try_to_begin()
        while not (self._stopping and not self._waiting):
            # With no log open there is nothing to finish.
            self._news.wait(self.roll_s if self._file >= 0 else None)
            # What comes meanwhile is written with it: fewer, larger writes, and the loop keeps its lock.
            # With a whole log's worth of records waiting, a pause would only let the buffer fill.
            if not self._stopping and self.waiting_bytes < self._roll_bytes:
                time.sleep(self._sync_s)
            self._news.clear()
            self._turn()
        self._finish()

    def _turn(self) -> None:
        taken = []
        size = 0
        while self._waiting and size < self._roll_bytes:
            one = self._waiting.popleft()
            taken.append(one)
            size += len(one[2])
        try:
            if taken:
                self._write(taken)
                self._trouble = ""
            if self._file >= 0 and (
                self._size >= self._roll_bytes or self._clock() - self._opened_at >= self.roll_s
            ):
                self._finish()
        except OSError as error:
            self._trouble = f"the journal cannot be written: {error.strerror or error} ({self._folder})"
            self._refusal = self._trouble
            self._refused += sum(count for _, count, _ in taken)
            self._finish()
            time.sleep(0 if self._stopping else RETRY_S)
        finally:
            self._bytes_out += size
        if self._waiting:
            self._news.set()

    def _try_to_begin(self) -> None:
        try:
            self._begin()
        except OSError as error:
            self._trouble = f"the journal cannot be begun: {error.strerror or error} ({self._folder})"

    def _begin(self) -> None:
        """Take up what an earlier life left."""
        make_folder(self._folder)
        finish_leftovers(self._folder)
        self._number = self._finished = last_number(self._folder)
        self._begun = True
        self._on_finished()
        self._make_room()

    def _write(self, taken: list[tuple[int, int, bytes]]) -> None:
        if not self._begun:
            self._begin()
        if self._file < 0:
            self._open()
        pieces: list[bytes] = []
        at = 0
        while at < len(taken):
            # Neighbours become one batch, unless numbers are missing in between or it would be too large.
            first, count, payload = taken[at]
            payloads = [payload]
            room = MAX_BATCH_BYTES - len(payload)
            at += 1
            while at < len(taken) and taken[at][0] == first + count and len(taken[at][2]) <= room:
                count += taken[at][1]
                payloads.append(taken[at][2])
                room -= len(taken[at][2])
                at += 1
            # Joined, so that the checksum is one call: each lets go of the interpreter and asks for it again.
            payload = b"".join(payloads)
            pieces += [batch_head(first, count, payload), payload]
        before = self._size
        try:
            _write_all(self._file, pieces)
            os.fdatasync(self._file)
        except OSError:
            # Half a batch would end the file for every reader.
            os.ftruncate(self._file, before)
            raise
        self._size += sum(map(len, pieces))
        self._written += sum(count for _, count, _ in taken)

    def _open(self) -> None:
        self._number += 1
        path = log_path(self._folder, self._number, OPEN)
        head = write_head(LogHead(self._broker, self._life, self._number, self._wall(), self._links))
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            _write_all(file, [head])
            sync_folder(self._folder)
        except OSError:
            os.close(file)
            path.unlink(missing_ok=True)
            raise
        self._file, self._size, self._opened_at = file, len(head), self._clock()

    def _finish(self) -> None:
        if self._file < 0:
            return
        file, self._file = self._file, -1
        os.close(file)
        path = log_path(self._folder, self._number, OPEN)
        try:
            path.rename(path.with_suffix(FINISHED))
            self._finished = self._number
            self._make_room()
        except OSError as error:
            self._trouble = f"the journal's log {path} cannot be finished: {error}"
        self._on_finished()

    def _make_room(self) -> None:
        """Nobody archives: the oldest logs go, so that the disk does not fill."""
        if not self._keep_bytes:
            return
        logs = [(path, path.stat().st_size) for path in log_files(self._folder)]
        excess = sum(size for _, size in logs) - self._keep_bytes
        if excess <= 0:
            return
        held = lock.take(self._folder.parent)
        if held is None:
            # Somebody archives after all.
            return
        try:
            for path, size in logs[:-1]:
                if excess <= 0:
                    break
                path.unlink(missing_ok=True)
                excess -= size
                self._removed += 1
        finally:
            os.close(held)


def _write_all(file: int, pieces: list[bytes]) -> None:
    """All of it, in one call if the system can."""
    for at in range(0, len(pieces), PIECES):
        some = pieces[at : at + PIECES]
        written = os.writev(file, some)
        if written < sum(map(len, some)):
            rest = memoryview(b"".join(some))[written:]
            while rest:
                rest = rest[os.write(file, rest) :]
