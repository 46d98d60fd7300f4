"""What the scheduler component keeps, and what it does when its disk is full."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from polybus.cli.keeper import Keeper, Shelf
from polybus.core.cron import BadSchedule
from polybus.core.ledger import Line
from polybus.errors import ConfigError, StoreFull
from polybus.store.memory import MemoryStore
from polybus.wire import emqp as wire

WALL = 1_790_000_000.0
JOB = b'["run", {"path": "jobs", "callable": "f"}]'
NOHASTE = wire.Headers(nohaste=True, guarantee=True, retry_count=2, timeout_s=5, other=("x",))


def schedule(
    headers: wire.Headers = NOHASTE, interval_s: int | None = 60, cron: bytes = b""
) -> wire.Schedule:
    return wire.Schedule(b"m1", b"mail", JOB, headers, interval_s, cron)


class FullStore(MemoryStore):
    full = False

    def write(self, lines: Sequence[Line]) -> None:
        if self.full:
            raise StoreFull("no room on the disk")
        super().write(lines)


def test_a_run_is_sent_with_the_options_of_its_schedule() -> None:
    keeper = Keeper(None)
    keeper.set(schedule(), WALL)
    assert keeper.next_at() == WALL + 60
    assert keeper.due(WALL + 59) == []
    (request,) = keeper.due(WALL + 60)
    assert (request.queue, request.body) == (b"mail", [JOB])
    assert request.headers == wire.Headers(
        reply_requested=True, guarantee=True, retry_count=2, timeout_s=5, other=("x",)
    )
    assert request.msg_id.isascii()


def test_haste_and_the_number_of_runs() -> None:
    keeper = Keeper(None)
    keeper.set(schedule(wire.Headers(run_count=2)), WALL)
    assert [len(keeper.due(WALL + at)) for at in (0, 59, 60, 120, 600)] == [1, 0, 1, 0, 0]


def test_cron_is_read_in_the_zone() -> None:
    keeper = Keeper(None, "Europe/Berlin")
    keeper.set(schedule(cron=b"0 12 * * *", interval_s=None), WALL)
    assert (keeper.next_at() - 10 * 3600) % 86_400 == 0


def test_removed_it_is_gone() -> None:
    store = MemoryStore()
    keeper = Keeper(store)
    keeper.set(schedule(), WALL)
    keeper.remove(wire.Unschedule(b"m2", b"mail", JOB))
    keeper.remove(wire.Unschedule(b"m3", b"mail", JOB))
    assert keeper.due(WALL + 600) == []
    assert store.load().schedules == []


def test_what_is_on_disk_is_there_again() -> None:
    store = MemoryStore()
    first = Keeper(store)
    first.set(schedule(), WALL)
    first.due(WALL + 60)
    keeper = Keeper(store, missed="skip")
    assert keeper.next_at() == WALL + 120
    assert len(keeper.due(WALL + 610)) == 1
    late, ran = store.runs(next(iter(keeper.schedules)).key, 10)
    assert (late.what, late.due_at, late.missed, ran.what) == ("late", WALL + 600, 8, "ran")


def test_what_makes_no_sense_is_not_kept() -> None:
    keeper = Keeper(MemoryStore())
    with pytest.raises(BadSchedule, match="minute"):
        keeper.set(schedule(cron=b"61 * * * *", interval_s=None), WALL)
    assert len(keeper.schedules) == 0


def test_what_cannot_be_written_is_not_taken_and_not_run() -> None:
    store, said = FullStore(), list[str]()
    keeper = Keeper(store, log=said.append)
    keeper.set(schedule(), WALL)
    store.full = True
    with pytest.raises(StoreFull):
        keeper.set(schedule(interval_s=5), WALL)
    with pytest.raises(StoreFull):
        keeper.remove(wire.Unschedule(b"m2", b"mail", JOB))
    # The old one is still there, and waits for the disk.
    assert keeper.due(WALL + 60) == []
    assert keeper.due(WALL + 70) == []
    assert "1 runs wait" in said[0]
    store.full = False
    (request,) = keeper.due(WALL + 75)
    assert request.msg_id.startswith(next(iter(keeper.schedules)).key.encode())
    assert keeper.next_at() == WALL + 120
    store.full = True
    with pytest.raises(StoreFull):
        keeper.set(wire.Schedule(b"m4", b"mail", b"another", NOHASTE, 5), WALL)
    assert len(keeper.schedules) == 1


def test_a_directory_belongs_to_one_process(tmp_path: Path) -> None:
    first = Shelf(tmp_path / "schedules")
    with pytest.raises(ConfigError, match="another scheduler"):
        Shelf(tmp_path / "schedules")
    keeper = Keeper(first.store)
    keeper.set(schedule(), WALL)
    first.close()
    again = Shelf(tmp_path / "schedules")
    assert Keeper(again.store).next_at() == WALL + 60
    again.close()
    Shelf(None).close()


SHORT = b'{"do": "sweep", "interval_secs": %d}'


def sweeping(seconds: int, queue: bytes = b"mail") -> wire.Schedule:
    return wire.Schedule(b"m1", queue, SHORT % seconds, NOHASTE, seconds)


@pytest.mark.conforms("EMQP-40")
def test_another_interval_replaces_the_first_also_on_disk() -> None:
    store = MemoryStore()
    keeper = Keeper(store)
    keeper.set(sweeping(60), WALL)
    keeper.set(sweeping(90), WALL)
    assert [entry.interval_s for entry in keeper.schedules] == [90]
    assert [entry.interval_s for entry in store.load().schedules] == [90]


@pytest.mark.conforms("EMQP-39")
def test_a_removal_holds_for_every_queue_also_on_disk() -> None:
    store = MemoryStore()
    keeper = Keeper(store)
    keeper.set(sweeping(60), WALL)
    keeper.set(sweeping(60, b"post"), WALL)
    assert len(keeper.schedules) == 2
    # What an earlier run of the scheduler left is known as well.
    keeper = Keeper(store)
    keeper.remove(wire.Unschedule(b"m2", b"", b'{"do":"sweep"}'))
    assert len(keeper.schedules) == 0
    assert store.load().schedules == []
