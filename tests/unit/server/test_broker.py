"""A broker in a thread of this process: what it opens and leaves, slow subscribers, bugs that it survives."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from polybus import config
from polybus.cli.status import OTHERS, groups
from polybus.client.admin import AdminClient
from polybus.core.model import Limits
from polybus.errors import ConfigError
from polybus.server import links
from polybus.server.broker import Broker
from polybus.server.data_dir import ENDPOINTS_FILE
from support.live import Peer, wait_for
from support.majordomo import MDR
from support.patience import patient


class LocalBroker:
    def __init__(self, folder: Path, **settings: Any) -> None:
        overrides = {**config.any_free_ports(), "broker.data_dir": str(folder), "broker.drain_s": 0.2}
        overrides["journal.archive"] = False
        self.broker = Broker(config.load(None, {**overrides, **settings}, {}))
        self.endpoints = self.broker.open()
        # The number of the link that EBUS subscribers come to.
        links = self.broker.bus.link_names
        self.link = next(number for number, name in links.items() if name == "ebus.subscribe")
        self.thread = threading.Thread(target=self.broker.run, daemon=True)
        self.thread.start()

    def __enter__(self) -> LocalBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self.broker.stop()
        self.thread.join(patient(10))
        assert not self.thread.is_alive()


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """A broker freezes what is there; this process has other things to do afterwards."""
    threshold = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


def open_files() -> Counter[str]:
    """What this process has open, to be compared by `after - before`: earlier tests may still close theirs.

    Sockets and pipes are named by their own numbers.
    """
    found: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[os.readlink(f"/proc/self/fd/{fd}")] += 1
    return found


# -- opening ------------------------------------------------------------------------------------------


def test_every_port_is_named_and_written_down(tmp_path: Path) -> None:
    with LocalBroker(tmp_path, **{"bridge.name": "named"}) as local:
        assert set(local.endpoints) == set(config.PORTS)
        written = json.loads((tmp_path / ENDPOINTS_FILE).read_text())
        assert written == {"pid": os.getpid(), "endpoints": local.endpoints}
    assert not (tmp_path / ENDPOINTS_FILE).exists()


def test_every_field_of_the_status_has_its_group(tmp_path: Path) -> None:
    with (
        LocalBroker(tmp_path, **{"bridge.name": "named"}) as local,
        AdminClient(local.endpoints["admin.port"], patient(5)) as admin,
    ):
        headings = dict(groups(admin.ask("status")))
    assert {"requests", "bridges", "journal and archiver", "endpoints"} <= set(headings)
    assert OTHERS not in headings


def test_ports_may_be_off(tmp_path: Path) -> None:
    off = {"admin.port": -1, "emqp.enabled": False, "ebus.publish": -1, "dbp.port": -1}
    with LocalBroker(tmp_path, **off) as local:
        assert set(local.endpoints) == {
            "ebus.frontend",
            "ebus.backend",
            "ebus.subscribe",
            "majordomo.clients",
            "majordomo.workers",
        }


def test_a_port_in_use_is_an_error_and_nothing_is_left_open(tmp_path: Path) -> None:
    # Without a journal, whose thread opens its file when it gets to it.
    with LocalBroker(tmp_path / "first", **{"journal.enabled": False}) as local:
        taken = local.endpoints["dbp.port"]
        before = open_files()
        overrides = {
            **config.any_free_ports(),
            "broker.data_dir": str(tmp_path / "second"),
            "dbp.port": taken,
        }
        second = Broker(config.load(None, overrides, {}))
        with pytest.raises(ConfigError, match="is in use") as caught:
            second.open()
        assert "POLYBUS_DBP_PORT" in str(caught.value)
        assert not open_files() - before
    assert not (tmp_path / "second" / ENDPOINTS_FILE).exists()


def test_a_data_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = config.load(None, {**config.any_free_ports(), "broker.data_dir": str(tmp_path / "file/x")}, {})
    with pytest.raises(ConfigError, match="--data-dir"):
        Broker(settings).open()


def test_an_unknown_pump_is_an_error_and_nothing_is_left_open(tmp_path: Path) -> None:
    before = open_files()
    overrides = {**config.any_free_ports(), "broker.data_dir": str(tmp_path), "broker.pump": "steam"}
    with pytest.raises(ConfigError, match="steam"):
        Broker(config.load(None, overrides, {})).open()
    assert not open_files() - before


# -- ending -------------------------------------------------------------------------------------------


def test_asked_to_drain_from_another_thread(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as local:
        local.broker.ask_to_drain()
        local.thread.join(patient(10))
        assert not local.thread.is_alive()
        # Signals may come late.
        local.broker.ask_to_drain()
        local.broker.stop()


def test_other_limits_from_another_thread(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as local:
        settings = config.load(None, {"limits.queue_length": 3}, {})
        local.broker.ask_to_reload(lambda: settings)
        wait_for(lambda: local.broker.bus.limits == Limits(queue_length=3))


def test_a_broker_can_be_told_to_drain_before_it_runs(tmp_path: Path) -> None:
    overrides = {**config.any_free_ports(), "broker.data_dir": str(tmp_path), "journal.archive": False}
    broker = Broker(config.load(None, overrides, {}))
    broker.ask_to_drain()
    broker.open()
    broker.ask_to_drain()
    broker.run()


# -- subscribers --------------------------------------------------------------------------------------


def publish(publisher: Peer, number: int, body: bytes) -> None:
    publisher.send(b"", b"eMQP/1.0", b"PUBLISH", b"id", b"t%d" % number, b"", body)


def two_subscribers(
    local: LocalBroker, context: zmq.Context[zmq.Socket[bytes]]
) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    """One that takes hardly anything unless it is asked, and one that takes everything."""
    slow, fast = context.socket(zmq.SUB), context.socket(zmq.SUB)
    slow.set(zmq.RCVHWM, 1)
    slow.set(zmq.RCVBUF, 4096)
    fast.set(zmq.RCVHWM, 0)
    for number, socket in enumerate((slow, fast), 1):
        socket.set(zmq.SUBSCRIBE, b"t")
        socket.connect(local.endpoints["ebus.subscribe"])
        if local.endpoints["ebus.subscribe"].startswith("tcp"):
            wait_for(lambda want=number: local.broker.bus.subscriptions.get(local.link, {}).get(b"t") == want)
    return slow, fast


def test_a_slow_subscriber_misses_publications_and_others_do_not(
    tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    count, body = 400, b"x" * 65536
    with LocalBroker(tmp_path, **{"broker.pipe_bytes": 1_000_000}) as local:
        slow, fast = two_subscribers(local, context)
        with fast, slow, Peer(local.endpoints["emqp.publish"], context) as publisher:
            got = []
            for number in range(count):
                publish(publisher, number, body)
                assert fast.poll(int(patient(10.0) * 1000))
                got.append(fast.recv_multipart()[0])
            assert got == [b"t%d" % number for number in range(count)]
            dropped = int(local.broker.facts()["publications_dropped"])
            assert 0 < dropped < count
            lazy, busy = local.broker.subscribers()
            assert (lazy["dropped"], busy["dropped"]) == (dropped, 0)
            # The broker counts a publication after it has sent it.
            wait_for(lambda: local.broker.subscribers()[1]["delivered"] == count)
            # Every publication is either dropped and counted, or it arrives, in order.
            arrived = []
            while len(arrived) < count - dropped:
                assert slow.poll(int(patient(10.0) * 1000))
                arrived.append(slow.recv_multipart()[0])
            assert arrived == sorted(arrived, key=got.index)
            assert not slow.poll(50)
            publish(publisher, count, body)
            assert slow.poll(int(patient(10.0) * 1000))
            assert slow.recv_multipart() == [b"t%d" % count, body]
            assert local.broker.facts()["publications_dropped"] == dropped


def test_messages_of_a_slow_subscriber_are_limited_too(
    tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    count, body = 300, b"x" * 65536
    with LocalBroker(tmp_path, **{"broker.pipe_messages": 3}) as local:
        slow, fast = two_subscribers(local, context)
        with fast, slow, Peer(local.endpoints["emqp.publish"], context) as publisher:
            for number in range(count):
                publish(publisher, number, body)
                assert fast.poll(int(patient(10.0) * 1000))
                fast.recv_multipart()
            (lazy, _) = local.broker.subscribers()
            assert lazy["waiting"] == 3
            assert 0 < lazy["dropped"] < count


def test_without_tcp_libzmq_serves_the_subscribers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    monkeypatch.setattr(links, "PUBLICATIONS_QUEUED", 10)
    count, body = 400, b"x" * 65536
    with LocalBroker(tmp_path, **{"ebus.subscribe": f"ipc://{tmp_path}/sub"}) as local:
        slow, fast = two_subscribers(local, context)
        with fast, slow, Peer(local.endpoints["emqp.publish"], context) as publisher:

            def is_there() -> bool:
                publish(publisher, 0, b"")
                return bool(slow.poll(20)) and bool(fast.poll(20))

            wait_for(is_there)
            assert local.broker.bus.subscriptions[local.link] == {b"t": 1}, "nobody counts them there"
            for number in range(1, count):
                publish(publisher, number, body)
                while fast.recv_multipart()[0] != b"t%d" % number:
                    continue
            assert int(local.broker.facts()["publications_dropped"]) > 0


# -- surviving ----------------------------------------------------------------------------------------


def test_a_bug_costs_one_message_and_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    with LocalBroker(tmp_path) as local:
        bus = local.broker.bus
        handle = bus.handle

        def broken(event: Any, now: float) -> None:
            if type(event).__name__ == "WorkerUp":
                raise ZeroDivisionError("a bug")
            handle(event, now)

        bus.handle = broken  # type: ignore[method-assign]
        with Peer(local.endpoints["majordomo.workers"], context) as peer:
            peer.send(*MDR.ready(b"echo"))
            wait_for(lambda: local.broker.internal_errors == 1)
            bus.handle = handle  # type: ignore[method-assign]
            peer.send(*MDR.request(b"mmi.service", b"1", b"echo"))
            assert peer.recv()[-1] == b"404"
    assert "ZeroDivisionError: a bug" in capfd.readouterr().err
