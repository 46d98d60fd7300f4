"""A disk that is slower than the traffic: the journal loses bodies before records, and says what it lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from msgspec import Struct

from polybus.journal.reader import read_rows
from polybus.journal.verify import verify
from support.echo import echo
from support.live import LiveBroker, Peer, wait_for

MIB = 1024 * 1024
BODY = bytes(2048)
COLUMNS = ["what", "size", "body_size", "reason", "body"]


def request(dialect: str, number: int) -> list[bytes]:
    if dialect == "mdr":
        return [b"MDRC01", b"\x01", b"echo", b"id-%d" % number, BODY]
    return [b"MDPC02", b"\x01", b"echo", BODY]


# Runs in the broker's process before anything else: a sync takes as long as on a disk of this speed.
SLOW_DISK = """
import os, time

sync, sizes = os.fdatasync, {{}}


def slow(file):
    size, before = os.fstat(file).st_size, sizes.get(file, 0)
    sizes[file] = size
    sync(file)
    time.sleep((size - before if size > before else size) / {bytes_in_a_second})


os.fdatasync = slow
"""


def slow_disk(folder: Path, monkeypatch: pytest.MonkeyPatch, bytes_in_a_second: int) -> None:
    """Brokers that are started from now on have such a disk."""
    (folder / "sitecustomize.py").write_text(SLOW_DISK.format(bytes_in_a_second=bytes_in_a_second))
    monkeypatch.setenv("PYTHONPATH", str(folder))


class Seen(Struct):
    """What is left of a burst: the broker's last status and log, its memory when all was answered, and what
    its journal has."""

    status: dict[str, Any]
    log: str
    rss_bytes: int
    # Answers by their size, records of requests without a body, and what the journal says about itself.
    answers: Counter[int]
    bare: int
    told: list[tuple[int, str]]


def send_all(dialect: str, count: int, settings: dict[str, object], patience_s: float) -> Seen:
    """Send everything, then read all answers, then look at the journal."""
    with LiveBroker(settings) as broker:
        with echo(broker), Peer(broker["majordomo.clients"]) as client:
            for number in range(count):
                client.send(*request(dialect, number))
            wait_for(lambda: broker.ask("status")["replied"] == count, patience_s)
            rss_bytes = broker.rss_bytes()
            for _ in range(count):
                client.recv(patience_s)
            wait_for(lambda: not broker.ask("status")["journal_waiting_bytes"], patience_s)
        status = broker.ask("status")
        broker.stop()
        journal = broker.data_dir / "journal"
        verdict = verify(journal)
        assert (verdict.problems, verdict.holes, verdict.counts) == ([], [], {})
        assert (verdict.requests, verdict.ends) == (count, {"replied": count})
        seen = Seen(status, broker.errors(), rss_bytes, Counter(), 0, [])
        for table in read_rows(journal, columns=COLUMNS):
            look_at(table, seen)
        return seen


def look_at(table: pa.Table, seen: Seen) -> None:
    answers = table.filter(pc.equal(table["what"], "replied"))
    seen.answers.update(answers["body_size"].to_pylist())
    requests = table.filter(pc.is_in(table["what"], pa.array(["accepted", "replied"])))
    seen.bare += requests["body"].null_count
    told = table.filter(pc.equal(table["what"], "bodies_dropped"))
    seen.told += zip(told["size"].to_pylist(), told["reason"].to_pylist(), strict=True)


def check(seen: Seen, count: int) -> None:
    """No record is lost, and every body that is missing is counted and told."""
    assert seen.status["journal_lost"] == 0
    assert seen.status["journal_bodies_dropped"] > 0, "the disk was fast enough: nothing was tested"
    assert seen.answers == {len(BODY): count}
    assert seen.bare == seen.status["journal_bodies_dropped"] == sum(size for size, _ in seen.told)
    assert {reason for _, reason in seen.told} == {"journal.buffer_bytes"}
    assert seen.log.count("records are in the journal without their bodies") == len(seen.told)
    assert "records are missing" not in seen.log


def test_a_burst_costs_bodies_and_no_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_disk(tmp_path, monkeypatch, 2_000_000)
    settings = {"journal.buffer_bytes": 8 * MIB}
    seen = send_all("mdr", 5000, settings, 60.0)
    check(seen, 5000)
    assert f"journal.buffer_bytes = {8 * MIB}" in seen.log


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("dialect", ["mdr", "mdp2"])
def test_a_hundred_thousand_requests_on_a_slow_disk_lose_no_record(
    dialect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_disk(tmp_path, monkeypatch, 20_000_000)
    seen = send_all(dialect, 100_000, {}, 300.0)
    check(seen, 100_000)
    # The answers that wait for their client, the buffer of the journal, and the broker itself.
    assert seen.rss_bytes < 900 * MIB
