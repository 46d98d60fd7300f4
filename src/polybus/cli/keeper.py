"""What `polybus scheduler` keeps: the schedules of one process, in memory, and on disk if it may."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from polybus.core.ledger import Line, Ran, Scheduled, ScheduleEntry, Unscheduled
from polybus.core.model import JobOptions
from polybus.core.schedules import Run, Schedules
from polybus.dialects.emqp import identify
from polybus.errors import ConfigError, StoreError
from polybus.server.data_dir import DataDir
from polybus.store.port import Store
from polybus.store.sqlite import SqliteStore
from polybus.wire import emqp as wire

# A run that could not be written down is tried again after this.
TRY_AGAIN_S: Final = 1.0


class Shelf:
    """A directory for schedules, for one process at a time; or none."""

    def __init__(self, path: Path | None) -> None:
        self.store: Store | None = None
        self._folder: DataDir | None = None
        if path is not None:
            try:
                self._folder = DataDir(path)
            except ConfigError:
                raise ConfigError(
                    f"--store {path} cannot be used: another scheduler or a broker uses it, or it may not be "
                    "written to. Choose another directory."
                ) from None
            self.store = SqliteStore(path)

    def close(self) -> None:
        if self.store is not None:
            self.store.close()
        if self._folder is not None:
            self._folder.release()


class Keeper:
    """What a scheduler asks for (`client.scheduler.Keeper`).

    What is due is written down as done before it is sent: a scheduler that dies in between has lost a run
    rather than run it twice.
    """

    def __init__(
        self,
        store: Store | None,
        timezone: str = "UTC",
        missed: str = "late",
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.schedules: Final = Schedules(identify=identify)
        self._store = store
        self._timezone = timezone
        self._missed = missed
        self._log = log
        if store is not None:
            for entry, why in self.schedules.load(store.load().schedules):
                log(f"schedule {entry.key} is kept but never run: {why}")

    def set(self, message: wire.Schedule, wall: float) -> None:
        entry = self._entry_of(message)
        before = self.schedules.get(entry.key)
        entry = self.schedules.add(entry, wall, haste=not message.headers.nohaste)
        replaced = self.schedules.replaced_by(entry)
        try:
            self._write([Scheduled(entry), *map(Unscheduled, replaced)])
        except StoreError:
            # What is not on disk was not taken.
            self.schedules.remove(entry.key)
            self.schedules.load([before] if before is not None else [])
            raise
        for key in replaced:
            self.schedules.remove(key)

    def _entry_of(self, message: wire.Schedule) -> ScheduleEntry:
        headers = message.headers
        return ScheduleEntry(
            wire.schedule_hash(message),
            message.queue,
            message.message,
            JobOptions(
                reply_requested=False,
                guarantee=headers.guarantee,
                retries=headers.retry_count,
                timeout_s=headers.timeout_s,
                other=headers.other,
            ),
            message.interval_s,
            message.cron.decode(),
            self._timezone,
            headers.run_count,
            missed=self._missed,
        )

    def remove(self, message: wire.Unschedule) -> None:
        """Remove every schedule of the job, in whatever queue it runs."""
        for job in wire.jobs_to_remove(message):
            keys = self.schedules.of_job(job)
            if keys:
                self._write([Unscheduled(key) for key in keys])
                for key in keys:
                    self.schedules.remove(key)
                return

    def next_at(self) -> float:
        return self.schedules.next_at()

    def due(self, wall: float) -> list[wire.Request]:
        runs = self.schedules.due(wall)
        lines: list[Line] = []
        for run in runs:
            lines.append(Ran(run.record(wall)))
            lines.append(Unscheduled(run.entry.key) if run.next is None else Scheduled(run.next))
        try:
            self._write(lines)
        except StoreError as error:
            self._log(f"{len(runs)} runs wait, because they cannot be written down: {error}")
            for run in reversed(runs):
                self.schedules.postpone(run, wall + TRY_AGAIN_S)
            return []
        return [request_of(run) for run in runs if run.starts_job]

    def _write(self, lines: list[Line]) -> None:
        if lines and self._store is not None:
            self._store.write(lines)


def request_of(run: Run) -> wire.Request:
    """As EventMQ's scheduler sends it, and with the options that the schedule was set with."""
    options = run.entry.options
    headers = wire.Headers(
        reply_requested=True,
        retry_count=options.retries,
        timeout_s=int(options.timeout_s),
        guarantee=options.guarantee,
        other=options.other,
    )
    return wire.Request(run.job_id, run.entry.queue, headers, [run.entry.message])
