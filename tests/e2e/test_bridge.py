"""Bridges between real brokers on the loopback: calls, topics, the command line, refusals, the example."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from polybus import Client, Request, RequestFailed, Worker, config, unpack_bson
from support.live import POLYBUS, LiveBroker, Peer
from support.patience import patient
from support.waiting import until

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "bridge"
FAST: dict[str, object] = {"bridge.heartbeat_s": 0.25, "bridge.retry_max_s": 1.0, "bridge.topics": "weather"}
# Links that no busy machine ends by silence.
STEADY = {**FAST, "bridge.heartbeat_s": 60.0}


_WORKING: list[tuple[Worker, threading.Thread]] = []


def serve(broker: LiveBroker, port: str, dialect: str, **handlers: object) -> None:
    worker = Worker(handlers, broker[port], dialect)  # type: ignore[arg-type]
    thread = threading.Thread(target=worker.run)
    thread.start()
    _WORKING.append((worker, thread))


@pytest.fixture(scope="module", autouse=True)
def _nobody_works_on() -> Iterator[None]:
    """Workers that outlive their brokers would disturb tests that come later."""
    yield
    for worker, thread in _WORKING:
        worker.stop()
        thread.join(patient(20))


def echo(request: Request) -> bytes:
    if request.body == b"fail":
        raise ValueError("no tea today")
    return request.body


@pytest.fixture(scope="module")
def line() -> Iterator[tuple[LiveBroker, LiveBroker, LiveBroker]]:
    """A – B – C, with a worker in C."""
    with (
        LiveBroker({**STEADY, "bridge.name": "C"}) as c,
        LiveBroker({**STEADY, "bridge.name": "B", "bridge.peers": c["bridge.port"]}) as b,
        LiveBroker({**STEADY, "bridge.name": "A", "bridge.peers": b["bridge.port"]}) as a,
    ):
        serve(c, "ebus.backend", "ebus", far=echo)
        until(lambda: a.has_workers("far"), "A knows the worker of C")
        yield a, b, c
        for broker in (a, b, c):
            assert not broker.crashes()
            assert broker.ask("status")["internal_errors"] == 0


Line = tuple[LiveBroker, LiveBroker, LiveBroker]


@pytest.mark.conforms("DBP-34")
def test_calls_cross_with_their_failures(line: Line) -> None:
    a, _, c = line
    with Client(a["majordomo.clients"], "mdr", timeout_s=patient(20)) as client:
        for body in (b"", b"hello", bytes(range(256)) * 4096):
            assert client.call("far", body) == body
        with pytest.raises(RequestFailed, match="no tea today"):
            client.call("far", b"fail")
    serve(a, "dbp.port", "dbp", near=echo)
    until(lambda: c.has_workers("near"), "C knows the worker of A")
    with Client(c["emqp.clients"], "emqp", timeout_s=patient(20)) as client:
        assert client.call("near", b"back") == b"back"


@pytest.mark.conforms("DBP-34")
def test_catalogs_answer_for_the_whole_network(line: Line) -> None:
    a, _, _ = line
    row = next(row for row in a.ask("services") if row["service"] == "far")
    assert (row["via"], row["dialects"]) == (["B", "C"], ["bridge"])
    with Peer(a["majordomo.clients"]) as peer:
        peer.send(b"", b"MDPC01", b"mmi.service", b"far")
        assert peer.recv()[-1] == b"200"
    with Peer(a["ebus.frontend"]) as peer:
        peer.send(b"EBC01", b"SERVICES", b"", b"1")
        assert "far" in unpack_bson(peer.recv()[3])
    with Peer(a["dbp.port"]) as peer:
        peer.send(b"", b"u_U", b"0", b"far")
        entry = json.loads(peer.recv()[3])["far"]
        assert entry["via"] == ["B", "C"]


@pytest.mark.conforms("DBP-34")
def test_topics_and_last_values_cross_in_both_dialects(line: Line) -> None:
    a, _, c = line
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        with (
            Client(a["emqp.clients"], "emqp") as emqp,
            Client(a["ebus.frontend"], "ebus", publish_address=a["ebus.publish"]) as ebus,
        ):
            emqp.publish("weather.emqp", b"snow")
            ebus.publish("weather.ebus", b"sunny")
            ebus.publish("secret", b"not this")
            # Whoever comes late two brokers away gets both, whatever dialect it speaks.
            until(lambda: c.ask("status")["last_values"] == 2, "the values are in C")
            for port in ("ebus.subscribe", "emqp.subscribe"):
                with Peer(c[port], context, zmq.SUB) as late:
                    assert sorted([late.recv(), late.recv()]) == [
                        [b"weather.ebus", b"sunny"],
                        [b"weather.emqp", b"snow"],
                    ]
                    ebus.publish("weather.ebus", b"rain")
                    assert late.recv_until(lambda frames: frames[1] == b"rain")[0] == b"weather.ebus"
                    ebus.publish("weather.ebus", b"sunny")
                    late.recv_until(lambda frames: frames[1] == b"sunny")
    finally:
        context.destroy(linger=0)


def test_the_command_line_shows_links_and_ways(line: Line) -> None:
    a, b, _ = line

    def run(*words: str) -> str:
        command = [str(POLYBUS), *words, "--admin", b["admin.port"]]
        return subprocess.run(command, capture_output=True, timeout=patient(30), check=True, text=True).stdout

    links = json.loads(run("bridges", "--json"))
    assert sorted((link["broker"], link["state"], link["dialled"]) for link in links) == [
        ("A", "up", False),
        ("C", "up", True),
    ]
    assert "up" in run("bridges")
    assert "via" in run("services")
    assert a.ask("status")["bridges_up"] == 1


def test_a_killed_broker_comes_back_on_other_ports_and_is_dialled_where_it_was(tmp_path: Path) -> None:
    """The dialling side is restarted: its successor links anew although its name was taken a moment ago."""
    with (
        LiveBroker({**FAST, "bridge.name": "B"}) as b,
        LiveBroker({**FAST, "bridge.name": "A", "bridge.peers": b["bridge.port"]}) as a,
    ):
        serve(b, "majordomo.workers", "mdr", far=echo)
        until(lambda: a.has_workers("far"), "A knows the worker of B")
        a.restart()
        until(lambda: a.has_workers("far"), "A knows it again")
        with Client(a["majordomo.clients"], "mdr", timeout_s=patient(20)) as client:
            assert client.call("far", b"again") == b"again"


def test_a_guaranteed_job_outlives_the_broker_that_took_it_and_runs_once() -> None:
    runs: list[bytes] = []
    begun, go_on = threading.Event(), threading.Event()

    def slow(request: Request) -> bytes:
        runs.append(request.body)
        begun.set()
        assert go_on.wait(patient(60))
        return b"done"

    with (
        LiveBroker({**FAST, "bridge.name": "B"}) as b,
        LiveBroker(
            {**FAST, "bridge.name": "A", "bridge.peers": b["bridge.port"], "limits.orphan_grace_s": 1}
        ) as a,
    ):
        serve(b, "majordomo.workers", "mdr", slow=slow)
        until(lambda: a.has_workers("slow"), "A knows the worker of B")
        order = json.dumps({"service": "slow", "id": "job 1", "guarantee": True}).encode()
        with Client(a["majordomo.clients"], "mdr", timeout_s=patient(20)) as client:
            assert json.loads(client.call("polybus.submit", order + b"\nwork")) == {"job": "job 1"}
        assert begun.wait(patient(20))
        a.restart()
        until(lambda: a.has_workers("slow"), "A is linked again")
        # It is sent again as soon as it is clear that nobody comes back with it, and is known over there.
        until(lambda: b.ask("status")["duplicates"] >= 1, "B has it again")
        go_on.set()
        with Client(a["majordomo.clients"], "mdr", timeout_s=patient(20)) as client:
            assert client.call("polybus.result", b"job 1") == b"done"
        assert runs == [b"work"]
        assert not a.crashes() + b.crashes()


def test_the_same_name_is_refused_with_a_word() -> None:
    with (
        LiveBroker({**FAST, "bridge.name": "X"}) as b,
        LiveBroker({**FAST, "bridge.name": "X", "bridge.peers": b["bridge.port"]}) as a,
    ):
        words = "both brokers are called 'X'; give each a bridge.name of its own"
        until(lambda: words in a.errors(), "A says so")
        (link,) = a.ask("bridges")
        assert (link["state"], link["trouble"]) == ("down", words)


def test_without_a_name_there_is_no_bridge() -> None:
    with LiveBroker() as broker:
        assert "bridge.port" not in broker.endpoints
        assert broker.ask("bridges") == []


def test_the_files_of_the_example_can_be_used_on_one_machine() -> None:
    places = []
    for name in ("laboratory", "office"):
        settings = config.load(EXAMPLE / f"{name}.toml", environ={})
        assert settings.bridge.name == name
        places += [place for port in config.PORTS if (place := config.endpoint(settings, port)) is not None]
    assert len(set(places)) == len(places)


@pytest.mark.timeout(120)
def test_the_example() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "two_networks.py")],
        capture_output=True,
        timeout=patient(90),
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "office to laboratory: 21.5 degrees in Rome",
        "laboratory to office: measured.rome 21.5",
    ], done.stderr
