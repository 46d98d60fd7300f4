"""A broker without a store: guarantees are refused with the reason, everything else works."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from polybus import Client, RequestFailed
from polybus.server.keeping import _joined
from polybus.server.scribe import Sick, Unwritten, Written
from support.live import LiveBroker
from support.patience import patient


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LiveBroker({"jobs.store": "false"}) as broker,
        Client(broker["majordomo.clients"], "mdr", timeout_s=patient(10)) as client,
    ):
        yield client


def submit(client: Client, **head: object) -> bytes:
    return client.call("polybus.submit", json.dumps(head).encode() + b"\nbody")


def test_a_guarantee_is_refused_with_the_reason(client: Client) -> None:
    with pytest.raises(RequestFailed, match=r"store_unavailable.*jobs\.store = true"):
        submit(client, service="nobody", id="1")


def test_a_job_without_one_is_taken(client: Client) -> None:
    assert json.loads(submit(client, service="nobody", id="2", guarantee=False)) == {"job": "2"}


def test_a_schedule_without_one_is_confirmed(client: Client) -> None:
    question = {"do": "add", "queue": "nobody", "message": "{}", "every_s": 3600, "key": "hourly"}
    question["guarantee"] = False
    assert json.loads(client.call("polybus.schedule", json.dumps(question).encode()))["key"] == "hourly"


def test_nothing_is_written(client: Client, tmp_path: Path) -> None:
    with LiveBroker({"jobs.store": "false", "broker.data_dir": str(tmp_path)}) as broker:
        assert broker.is_alive
    assert not list(tmp_path.rglob("*.db*"))


def test_refusals_of_many_batches_are_one_for_the_core() -> None:
    results = [
        Sick("full"),
        Unwritten(1, (b"a", b"b"), "full"),
        Unwritten(2, (b"c",), "full"),
        Unwritten(3, (b"d",), "gone"),
        Written(3),
        Unwritten(4, (b"e",), "full"),
    ]
    assert _joined(results) == [
        Sick("full"),
        Unwritten(0, (b"a", b"b", b"c"), "full"),
        Unwritten(0, (b"d",), "gone"),
        Written(3),
        Unwritten(0, (b"e",), "full"),
    ]
