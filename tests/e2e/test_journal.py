"""The journal of real brokers: killed, damaged, without room, and every row there exactly once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import zmq

from polybus.client.admin import AdminClient
from polybus.journal.archiver import SEGMENTS
from polybus.journal.log import FINISHED, OPEN, PLAN, log_files
from polybus.journal.progress import read_progress
from support.commands import polybus
from support.folders import small_file_system
from support.job_broker import JobBroker
from support.journals import everything
from support.live import Peer
from support.waiting import until

ARCHIVED = {"journal.archive": "true"}


def status(broker: JobBroker) -> dict[str, Any]:
    with AdminClient(broker.endpoints["admin.port"]) as admin:
        answer: dict[str, Any] = admin.ask("status")
    return answer


def publish(broker: JobBroker, count: int, size: int = 50) -> None:
    """So many publications, which have been taken when this returns."""
    before = status(broker)["published"]
    with Peer(broker.endpoints["emqp.publish"]) as publisher:
        for number in range(count):
            publisher.send(b"", b"eMQP/1.0", b"PUBLISH", b"id", b"t%d" % (number % 7), b"", bytes(size))
        until(lambda: status(broker)["published"] >= before + count, "publications")


def written(broker: JobBroker, least: int) -> int:
    """How many records are on disk, once they are so many."""
    return until(lambda: n if (n := status(broker)["journal_written"]) >= least else 0, "records on disk")


def archiver_pid(broker: JobBroker) -> int:
    """The archiver's process, as soon as there is one that works."""

    def found() -> int:
        kind, _, number = str(status(broker)["archiver"]).partition(" ")
        begun = read_progress(journal_of(broker.folder)).pid
        return begun if kind == "process" and int(number) == begun and is_alive(begun) else 0

    return until(found, "an archiver")


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    # One that ended and that nobody has looked after yet is not.
    return stat.rpartition(")")[2].split()[0] != "Z"


def lives(rows: list[dict[str, Any]]) -> list[list[int]]:
    """The numbers of the records of each life, in the order of the lives. Each must be there once."""
    names = Counter((row["broker"], row["life"], row["seq"]) for row in rows)
    assert not [name for name, count in names.items() if count > 1]
    begun = {row["life"]: row["at"] for row in rows if row["what"] == "started"}
    in_order = sorted(begun, key=begun.__getitem__)
    return [[row["seq"] for row in rows if row["life"] == life] for life in in_order]


def fill(path: Path) -> None:
    """Take all the room that there is."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        with contextlib.suppress(OSError):
            while True:
                os.write(file, bytes(4096))
    finally:
        os.close(file)


def journal_of(folder: Path) -> Path:
    return folder / "data" / "journal"


class Traffic:
    """Publications all the time, whether there is a broker or not."""

    def __init__(self, broker: JobBroker) -> None:
        self._endpoint = broker.endpoints["emqp.publish"]
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._publish)

    def _publish(self) -> None:
        with Peer(self._endpoint) as publisher:
            while not self._enough.wait(0.01):
                with contextlib.suppress(zmq.Again):
                    for number in range(20):
                        frames = [b"", b"eMQP/1.0", b"PUBLISH", b"id", b"t%d" % number, b"", bytes(50)]
                        publisher.socket.send_multipart(frames, zmq.NOBLOCK)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()


@pytest.mark.long
def test_brokers_and_archivers_are_killed_and_every_row_is_there_once(tmp_path: Path) -> None:
    on_disk = []
    journal = journal_of(tmp_path)
    with JobBroker(tmp_path, ARCHIVED) as broker, Traffic(broker):
        for life in range(3):
            if life:
                broker.restart()
            pid = archiver_pid(broker)
            # In the middle of a segment.
            until((journal / PLAN).exists, "a segment that is being made")
            os.kill(pid, signal.SIGKILL)
            until(lambda: status(broker)["archiver_restarts"], "another archiver")
            on_disk.append(written(broker, 100))
        # The last one ends in good order, with all that it has written in segments.
        pid = archiver_pid(broker)
        assert broker.stop() == 0
        assert not is_alive(pid)
        assert "archiver ended with status -9" in broker.said()
        assert not broker.crashes()
    left = [*log_files(journal / "open", OPEN), *log_files(journal / "open", FINISHED)]
    # On a machine that is very busy it is not done in time.
    assert not left or "archiver was not done" in broker.said()
    rows = everything(journal)
    for numbers, least in zip(lives(rows), on_disk, strict=True):
        # Without gaps, and at least what was on disk before the kill.
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) >= least
    assert [row["what"] for row in rows].count("stopped") == 1


def test_an_archiver_ends_with_a_broker_that_is_killed(tmp_path: Path) -> None:
    with JobBroker(tmp_path, ARCHIVED) as broker:
        pid = archiver_pid(broker)
        publish(broker, 100)
        journal = journal_of(tmp_path)
        # A log is finished and archived while the broker runs.
        until(lambda: list((journal / SEGMENTS).rglob("*.parquet")), "a segment")
        broker.kill()
        until(lambda: not is_alive(pid), "the archiver's end")
    rows = everything(journal)
    assert lives(rows) == [list(range(1, len(rows) + 1))]


def test_damaged_logs_are_told_and_the_rest_is_read(tmp_path: Path) -> None:
    with JobBroker(tmp_path) as broker:
        for _ in range(2):
            for part in range(1, 5):
                # A batch each, or more.
                publish(broker, 100)
                written(broker, part * 100 + 1)
            broker.kill()
            broker.start()
        broker.stop()
    journal = journal_of(tmp_path)
    logs = log_files(journal / "open")
    # Two lives that published, and one that did nothing.
    assert len(logs) == 3
    flipped, truncated = logs[0], logs[1]
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 0x10
    flipped.write_bytes(content)
    truncated.write_bytes(truncated.read_bytes()[:-1000])
    done = polybus("archive", "--once", "--data-dir", str(tmp_path / "data"), cwd=tmp_path)
    said = done.stderr.decode()
    assert done.returncode == 0, said
    assert f"{flipped}: the checksum of a batch is wrong" in said
    assert f"{truncated}: a batch is cut off" in said
    assert flipped.with_suffix(".damaged").exists()
    rows = everything(journal)
    whole = [row for row in rows if row["what"] == "published"]
    assert 0 < len(whole) < 800
    # What was cut off at the end of a life has nothing behind it that would show how much it was.
    (hole,) = [row for row in rows if row["what"] == "hole"]
    assert 0 < hole["size"] <= 100
    last = lives(rows)[-1]
    assert last == list(range(1, len(last) + 1))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_full_disk_costs_records_and_nothing_else(tmp_path: Path) -> None:
    with small_file_system("2m") as disk:
        (tmp_path / "data").mkdir()
        journal_of(tmp_path).symlink_to(disk)
        with JobBroker(tmp_path) as broker:
            publish(broker, 10)
            written(broker, 11)
            filler = disk / "filler"
            fill(filler)
            publish(broker, 100, 4000)
            sick = until(lambda: facts if (facts := status(broker))["journal_lost"] else {}, "a loss")
            assert "No space left" in sick["journal"]
            filler.unlink()

            def is_well() -> bool:
                publish(broker, 1)
                return bool(status(broker)["journal"] == "on")

            until(is_well, "a journal that is well again")
            lost = status(broker)["journal_lost"]
            assert broker.stop() == 0
            assert f"{lost} records are missing in the journal" in broker.said()
        done = polybus("archive", "--once", "--data-dir", str(tmp_path / "data"), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        rows = everything(journal_of(tmp_path))
    holes = [row for row in rows if row["what"] == "hole"]
    assert sum(row["size"] for row in holes) == lost
    covered = {seq for row in holes for seq in range(row["seq"] - row["size"] + 1, row["seq"] + 1)}
    numbers = covered | {row["seq"] for row in rows}
    assert numbers == set(range(1, max(numbers) + 1))
    assert rows[-1]["what"] == "stopped"
