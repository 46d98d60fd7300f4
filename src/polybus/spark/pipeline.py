"""The pipeline: which rows of a journal are in which batch, and what was done already.

Structured Streaming follows the segments as they come; its checkpoint remembers them.  What it streams are
their names: a batch reads the files itself.  (The rows that a stream hands to `foreachBatch` are no longer
columns, so each table would read everything, whatever it needs.)

Segments that were compacted are no business of a stream that has read them before.  One that begins from
nothing reads them first, as batch 0, while a pin keeps the compaction from moving more; the batches of the
stream follow, from 1 on, without what batch 0 had.

Next to the tables lie:

    _pipeline.json   the name of this pipeline in the tables' history, and how far its beginning is
    _checkpoint/     what Structured Streaming remembers
"""

from __future__ import annotations

import contextlib
import fcntl
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs
from msgspec import Struct
from pyspark.errors import StreamingQueryException

from polybus.errors import ConfigError, PolybusError
from polybus.spark.batches import Alarm, Batch, Input, Processor
from polybus.spark.beginning import Covered
from polybus.spark.rules import Rules
from polybus.spark.schema import TABLES
from polybus.spark.tables import Lake, file_system

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RAISED: Final = re.compile(r"[A-Za-z_][\w.]*(: |$)")
STATE: Final = "_pipeline.json"
CHECKPOINT: Final = "_checkpoint"
LOCK: Final = ".polybus-pipeline.lock"
SEGMENTS: Final = "segments"
COMPACTED: Final = "compacted"
READERS: Final = "readers"
# Files older than Spark's week are read as well.
ANY_AGE: Final = "36500d"
# At most so much of the journal in one batch of a stream that has to catch up: a few seconds' work, after
# which the tables are nearer to the present. Nobody waits for what is in the middle of a build.
BATCH_BYTES: Final = 64 * 1024 * 1024
BUILD_BYTES: Final = 512 * 1024 * 1024
POLL_S: Final = 1.0
# After so many batches small files are joined.
TIDY_EVERY: Final = 100
FILES: Final = "path string, modificationTime timestamp, length bigint, content binary"
# The columns of the journal; see `polybus.journal.columns`.
EVENTS: Final = (
    "broker string, life string, seq bigint, at timestamp, what string, token string, request_id string, "
    "service string, client string, client_dialect string, client_link string, worker string, "
    "worker_dialect string, worker_link string, attempt int, reason string, detail string, "
    "accepted_at timestamp, dispatched_at timestamp, size bigint, body_size bigint, headers string, "
    "body array<binary>"
)


class PipelineBusy(PolybusError):
    """Somebody else writes these tables."""


class PipelineFailed(PolybusError):
    """Spark gave up."""


class State(Struct):
    """What a pipeline knows of itself."""

    # In the history of the tables, and among the readers of the journal.
    writer: str
    # The compacted segments that batch 0 reads; None until they were looked up.
    beginning: list[str] | None = None
    # Batch 0 is in the tables.
    has_begun: bool = False
    # The tables are being removed: they are to be made from nothing.
    is_fresh: bool = False


class Reader(Struct, frozen=True):
    """What a pipeline tells the journal of itself."""

    name: str
    # Segments up to this number were read, and are never asked for again.
    upto: int = 0
    at: float = 0.0
    tables: str = ""


class Pipeline:
    """Makes and keeps the tables of a journal. Only one at a time may write the same tables."""

    def __init__(
        self,
        spark: SparkSession,
        journal: str,
        tables: str,
        *,
        rules: Rules | None = None,
        alarm: Alarm | None = None,
        watch: Callable[[Batch], None] | None = None,
        batch_bytes: int | None = None,
    ) -> None:
        self._spark = spark
        self._journal = journal.rstrip("/")
        self._tables = tables.rstrip("/")
        self._rules = rules or Rules()
        self._alarm = alarm
        self._watch = watch
        self._batch_bytes = batch_bytes
        # Everything up to this number was read, and something of this one.
        self._upto = self._seen = 0
        self._stopping = threading.Event()

    def build(self) -> None:
        """Take in everything there is, and end."""
        self._go(availableNow=True)

    def run(self, poll_s: float = POLL_S) -> None:
        """Take in everything there is and everything that comes, until `stop`."""
        self._go(processingTime=f"{poll_s:g} seconds")

    def stop(self) -> None:
        """Let `run` end after the batch that it has in hand."""
        self._stopping.set()

    def forget(self) -> None:
        """Remove the tables, so that `build` makes them from nothing. Can be interrupted and repeated."""
        with self._alone():
            self._write_state(State(f"polybus-{uuid.uuid4().hex[:12]}", is_fresh=True))
            self._finish_forgetting()

    # -- one run ------------------------------------------------------------------------------

    def _go(self, **trigger: Any) -> None:
        segments = f"{self._journal}/{SEGMENTS}"
        if not _exists(segments):
            raise ConfigError(
                f"there is no journal in {self._journal} (no folder {SEGMENTS!r} in it): name the folder "
                "'journal' in the data directory of a broker, and let its archiver run"
            )
        with self._alone():
            state = self._state()
            lake = Lake(self._tables, state.writer)
            for table in TABLES.values():
                lake.open(table)
                lake.sweep(table)
            processor = Processor(lake, self._rules, self._alarm)
            self._begin(state, processor)
            self._follow(state, lake, processor, segments, trigger)

    def _begin(self, state: State, processor: Processor) -> None:
        """Batch 0: what was compacted before this pipeline was there."""
        if state.has_begun:
            known = _get(self._reader(state))
            self._upto = 0 if known is None else msgspec.json.decode(known, type=Reader).upto
            return
        with self._pinned(state):
            if state.beginning is None:
                state.beginning = self._compacted()
                self._write_state(state)
            if state.beginning:
                compacted = [f"{self._journal}/{COMPACTED}/{name}" for name in state.beginning]
                self._report(processor.process(self._read(compacted), 0))
            state.has_begun = True
            self._write_state(state)
            # Only from here on the compaction may move what we have read.
            self._register(state)

    def _follow(
        self, state: State, lake: Lake, processor: Processor, segments: str, trigger: dict[str, Any]
    ) -> None:
        covered = Covered(state.beginning or [])

        def take(files: DataFrame, batch_id: int) -> None:
            # This batch began, so the one before is over, and never processed again.
            self._register(state)
            paths = sorted(row["path"] for row in files.select("path").collect())
            new = [path for path in paths if path not in covered]
            if new:
                self._report(processor.process(self._read(new), batch_id + 1))
            self._seen = max([self._seen, *(number_of(path.rpartition("/")[-1]) for path in paths)])
            # Those of the last number may lie in several hours, and be in this batch in part.
            self._upto = max(self._upto, self._seen - 1)
            if batch_id % TIDY_EVERY == TIDY_EVERY - 1:
                for table in TABLES.values():
                    lake.tidy(table)

        usual = BUILD_BYTES if "availableNow" in trigger else BATCH_BYTES
        stream = (
            self._spark.readStream.format("binaryFile")
            .schema(FILES)
            .option("recursiveFileLookup", "true")
            .option("pathGlobFilter", "*.parquet")
            .option("maxFileAge", ANY_AGE)
            .option("maxBytesPerTrigger", str(self._batch_bytes or usual))
            .load(segments)
            .select("path")
        )
        query = (
            stream.writeStream.foreachBatch(take)
            .queryName("polybus")
            .option("checkpointLocation", f"{self._tables}/{CHECKPOINT}")
            .trigger(**trigger)
            .start()
        )
        try:
            while not query.awaitTermination(1):
                if self._stopping.is_set() and not query.status["isTriggerActive"]:
                    break
        except StreamingQueryException as error:
            raise PipelineFailed(f"Spark gave up: {_cause(error)}") from error
        finally:
            query.stop()
        if "availableNow" in trigger:
            # There was no more.
            self._upto = max(self._upto, self._seen)
        self._register(state)

    def _report(self, batch: Batch | None) -> None:
        if batch is not None and self._watch is not None:
            self._watch(batch)

    # -- the journal --------------------------------------------------------------------------

    def _compacted(self) -> list[str]:
        system, root = file_system(f"{self._journal}/{COMPACTED}")
        found = system.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True))
        names = [info.path[len(root) + 1 :] for info in found if info.path.endswith(".parquet")]
        return sorted(name for name in names if not name.rsplit("/", 1)[-1].startswith((".", "_")))

    def _read(self, paths: list[str]) -> Input:
        rows = self._spark.read.schema(EVENTS).option("recursiveFileLookup", "true")
        events = rows.parquet(*paths).select("*", "_metadata.file_name")
        return Input(events, self._spark.createDataFrame(pa.table({"path": paths})))

    def _register(self, state: State) -> None:
        """Tell the compaction what we have read."""
        note = Reader(state.writer, self._upto, time.time(), self._tables)
        _put(self._reader(state), msgspec.json.encode(note))

    def _reader(self, state: State) -> str:
        return f"{self._journal}/{READERS}/{state.writer}.json"

    @contextlib.contextmanager
    def _pinned(self, state: State) -> Iterator[None]:
        path = f"{self._journal}/{READERS}/{state.writer}.pin"
        _put(path, b"{}")
        yield
        # Not in a finally: until the beginning is over, the pin stays, also over a crash.
        system, there = file_system(path)
        system.delete_file(there)

    # -- our own state ------------------------------------------------------------------------

    def _state(self) -> State:
        found = _get(f"{self._tables}/{STATE}")
        if found is None:
            state = State(f"polybus-{uuid.uuid4().hex[:12]}", is_fresh=True)
            self._write_state(state)
        else:
            state = msgspec.json.decode(found, type=State)
        if state.is_fresh:
            self._finish_forgetting()
            state.is_fresh = False
        return state

    def _finish_forgetting(self) -> None:
        for name in (CHECKPOINT, *TABLES):
            system, path = file_system(f"{self._tables}/{name}")
            if system.get_file_info(path).type is not pafs.FileType.NotFound:
                system.delete_dir(path)
        found = _get(f"{self._tables}/{STATE}")
        assert found is not None
        state = msgspec.json.decode(found, type=State)
        state.is_fresh = False
        self._write_state(state)

    def _write_state(self, state: State) -> None:
        _put(f"{self._tables}/{STATE}", msgspec.json.encode(state))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Where there are locks, nobody else writes meanwhile."""
        if "://" in self._tables:
            yield
            return
        folder = Path(self._tables)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOCK).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise PipelineBusy(
                    f"another pipeline writes the tables in {folder}: stop it first, or write others "
                    "(--tables)"
                ) from None
            yield


def number_of(segment: str) -> int:
    """The number of a segment, from its name; 0 without one."""
    front = segment.split("-", 1)[0]
    return int(front) if front.isdigit() else 0


def _cause(error: StreamingQueryException) -> str:
    """The sentence among Spark's pages."""
    text = str(error).split("terminated with exception:", 1)[-1].split("=== Streaming Query ===", 1)[0]
    lines = [line for line in text.splitlines() if line.strip() and not line.strip().startswith("SQLSTATE")]
    if "Traceback (most recent call last)" in text:
        # A failure in Python: its last lines that are not indented tell it.
        lines = [line for line in lines if _RAISED.match(line)][-1:] or lines
    return lines[0].strip() if lines else "no reason was given"


def _exists(uri: str) -> bool:
    system, path = file_system(uri)
    return bool(system.get_file_info(path).type is pafs.FileType.Directory)


def _get(uri: str) -> bytes | None:
    system, path = file_system(uri)
    try:
        with system.open_input_stream(path) as file:
            return bytes(file.read())
    except FileNotFoundError:
        return None


def _put(uri: str, data: bytes) -> None:
    """Write a small file whole or not at all."""
    system, path = file_system(uri)
    system.create_dir(path.rsplit("/", 1)[0], recursive=True)
    hidden = f"{path.rsplit('/', 1)[0]}/.{path.rsplit('/', 1)[1]}"
    with system.open_output_stream(hidden) as file:
        file.write(data)
    system.move(hidden, path)
