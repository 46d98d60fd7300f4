"""Workers that say nothing while their handler runs, over real sockets, in every dialect.

Silence means disconnected, and another worker may get the request; but the first correct answer ends it, it
is not given again to a worker that is busy with it, and the client hears of nothing else.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
import zmq

from conformance.live_settings import BEAT_S, DEAD_S, FAST
from support.live import POLYBUS, WAIT_S, LiveBroker, Peer, wait_for
from support.patience import patient
from support.silent_workers import SilentWorker, Talk, talks

SETTINGS = {**FAST, "limits.request_ttl_s": 60.0, "dbp.heartbeat_s": BEAT_S}
DIALECTS = sorted(talks(BEAT_S))
# The handlers take longer than a worker may be silent, and than three of them one after the other may.
SLOW_S = 4 * DEAD_S
# Nobody is lost by silence, whatever the machine does.
PATIENT = {**SETTINGS, "majordomo.liveness": 1000, "emqp.liveness": 1000}


@contextmanager
def workers(
    broker: LiveBroker, dialect: str, count: int, handler_s: float, beat_s: float = BEAT_S
) -> Iterator[list[SilentWorker]]:
    service = f"{dialect}-{count}-{handler_s:g}"
    with ExitStack() as stack:
        talk = talks(beat_s)[dialect]
        found = []
        for _ in range(count):
            worker = SilentWorker(broker, talk, service.encode(), handler_s, beat_s)
            stack.callback(worker.end)
            found.append(worker)
        # One name, one node: in DBP the others are denied, and register again, until the first is late.
        wait_for(lambda: broker.has_workers(service, count=1 if dialect == "dbp" else count))
        yield found


def ask(client: Peer, dialect: str, count: int, handler_s: float) -> None:
    client.send(b"MDRC01", b"\x01", f"{dialect}-{count}-{handler_s:g}".encode(), b"r1", b"work")


def queue_up(broker: LiveBroker, client: Peer, service: bytes, request_id: bytes, body: bytes) -> None:
    """The only request, before anybody offers the service. A peer that never beats is given it in the turn in
    which it registers; if it were idle first, it would be sent away whenever the machine is busy for long."""
    client.send(b"MDRC01", b"\x01", service, request_id, body)
    wait_for(lambda: broker.ask("status")["requests"] == 1)


def answer(client: Peer, timeout_s: float) -> bytes:
    frames = client.recv(patient(timeout_s))
    assert frames[:2] == [b"MDRC01", b"\x03"]
    assert frames[3] == b"r1"
    return frames[4]


@pytest.mark.parametrize("count", [1, 3])
def test_one_answer_of_slow_workers(count: int) -> None:
    """All dialects at a time, each with a service of its own: nearly all of it is waiting."""
    with (
        LiveBroker(SETTINGS) as broker,
        Peer(broker["majordomo.clients"]) as client,
        ExitStack() as stack,
    ):
        of_dialect = {
            dialect: stack.enter_context(workers(broker, dialect, count, SLOW_S)) for dialect in DIALECTS
        }
        services = {dialect: f"{dialect}-{count}-{SLOW_S:g}" for dialect in DIALECTS}
        for dialect, service in services.items():
            client.send(b"MDRC01", b"\x01", service.encode(), dialect.encode(), b"work")
        answered = [client.recv(patient(10 * SLOW_S)) for _ in DIALECTS]
        assert sorted(frames[3].decode() for frames in answered) == DIALECTS
        for frames in answered:
            assert (frames[:2], frames[4:]) == ([b"MDRC01", b"\x03"], [b"work done"]), frames[3]
        for dialect, found in of_dialect.items():
            runs = [run for worker in found for run in worker.runs]
            assert 1 <= len(runs) <= len(found), dialect
        totals = broker.ask("status")
        assert totals["workers_lost"] >= len(DIALECTS), "they were silent for too long"
        assert totals["replied"] == len(DIALECTS)
        # Nothing more reaches the client, whoever else is done.
        assert client.get(SLOW_S + DEAD_S) is None
        # They work again, all of them, on whatever connection they have.
        for dialect, found in of_dialect.items():
            service = services[dialect]
            at_once = 1 if dialect == "dbp" else count
            wait_for(lambda service=service, at_once=at_once: broker.has_workers(service, count=at_once))
            for worker in found:
                worker.handler_s = 0.0
            number = busy = 0
            # One that missed a beat is away for a moment: then a few more calls are needed.
            until = time.monotonic() + WAIT_S
            while number < 2 * count or (busy < at_once and time.monotonic() < until):
                number += 1
                again = b"%s again %d" % (dialect.encode(), number)
                client.send(b"MDRC01", b"\x01", service.encode(), again, b"again")
                assert client.recv()[3:] == [again, b"again done"]
                busy = sum(b"again" in worker.runs for worker in found)
            assert busy >= at_once, dialect


@pytest.mark.parametrize("dialect", sorted(set(DIALECTS) - {"dbp"}))
def test_a_worker_that_dies_is_found_as_fast_as_ever(dialect: str) -> None:
    with (
        LiveBroker(SETTINGS) as broker,
        Peer(broker["majordomo.clients"]) as client,
        workers(broker, dialect, 1, 600.0) as (first,),
    ):
        ask(client, dialect, 1, 600.0)
        assert first.begun.wait(patient(10.0))
        service = f"{dialect}-1-600".encode()
        other = SilentWorker(broker, talks(BEAT_S)[dialect], service, 0.0, BEAT_S)
        try:
            # The first one may count as silent by now, and then the other one has got the request already.
            wait_for(lambda: broker.has_workers(service.decode(), count=2) or other.runs)
            began = time.monotonic()
            first.end()
            assert answer(client, 30.0) == b"work done"
            assert other.runs == [b"work"]
            # Time enough for a slow machine, far less than the handler takes.
            assert time.monotonic() - began < DEAD_S + patient(10.0)
        finally:
            other.end()


@pytest.mark.parametrize("dialect", ["mdr", "dbp"])
def test_a_queue_gives_its_workers_more_time(dialect: str) -> None:
    service = f"{dialect}-2-{SLOW_S:g}"
    with (
        LiveBroker(SETTINGS, ["--set", f"queues.{service}.silence_s={10 * SLOW_S}"]) as broker,
        Peer(broker["majordomo.clients"]) as client,
        workers(broker, dialect, 2, SLOW_S) as found,
    ):
        ask(client, dialect, 2, SLOW_S)
        assert answer(client, 10 * SLOW_S) == b"work done"
        assert [worker.runs for worker in found if worker.runs] == [[b"work"]], "one run, two workers"
        # Nor was it taken from the silent worker. The idle one has no more time than before, and may have
        # missed a beat on a busy machine.
        totals = broker.ask("status")
        assert (totals["dispatched"], totals["requeued"]) == (1, 0)


def test_the_answer_of_a_dbp_node_counts_although_another_one_has_its_name() -> None:
    talk = talks(BEAT_S)["dbp"]

    def is_request(frames: list[bytes]) -> bool:
        return talk.request(frames) is not None

    with (
        LiveBroker(SETTINGS) as broker,
        Peer(broker["majordomo.clients"]) as client,
        Peer(broker[talk.port]) as first,
        Peer(broker[talk.port]) as second,
    ):
        queue_up(broker, client, b"slow", b"r1", b"work")
        (hello,) = talk.hello(b"slow")
        first.send(*hello)
        assert first.recv()[1] == b"OwO"
        first.recv_until(is_request)
        # The node is late long before its lease ends, and then another one gets the name and the call. That
        # one will be idle between two calls: its lease is a long one.
        (hello,) = talks(60.0)["dbp"].hello(b"slow")
        second.send(*hello)
        second.recv_until(is_request)
        for name, worker in (("first", first), ("second", second)):
            for frames in talk.reply([], name.encode()):
                worker.send(*frames)
            if worker is first:
                assert answer(client, 10.0) == b"first"
        # The first one has lost the name; the second one has it and takes calls.
        first.recv_until(talk.is_goodbye)
        client.send(b"MDRC01", b"\x01", b"slow", b"r2", b"again")
        second.recv_until(is_request)
        for frames in talk.reply([], b"done"):
            second.send(*frames)
        assert client.recv()[3:] == [b"r2", b"done"]
        assert broker.ask("status")["replied"] == 2


@pytest.mark.long
@pytest.mark.timeout(300)
def test_handlers_of_twelve_and_sixty_seconds_with_the_usual_intervals() -> None:
    """All dialects at once, with the settings that a broker has by default."""
    cases = [(dialect, count, float(s)) for dialect in DIALECTS for count in (1, 3) for s in (12, 60)]
    with ExitStack() as stack:
        broker = stack.enter_context(LiveBroker())
        found = {}
        clients = {}
        for case in cases:
            found[case] = stack.enter_context(workers(broker, *case, beat_s=1.0))
            clients[case] = stack.enter_context(Peer(broker["majordomo.clients"]))
        for case in cases:
            ask(clients[case], *case)
        for case in cases:
            assert answer(clients[case], 120.0) == b"work done", case
            runs = [run for worker in found[case] for run in worker.runs]
            assert 1 <= len(runs) <= case[1], (case, len(runs))
            if case[1] == 1:
                assert len(runs) == 1, case
        # The others who were given a request answer it, too, and no client hears of that.
        every = [worker for several in found.values() for worker in several]
        wait_for(lambda: all(worker.answered == len(worker.runs) for worker in every), patient(120.0))
        assert sum(worker.answered for worker in every) > len(cases), "nobody ran what another one had"
        poller = zmq.Poller()
        for client in clients.values():
            poller.register(client.socket, zmq.POLLIN)
        assert poller.poll(1000) == []
        totals = broker.ask("status")
        assert totals["replied"] == len(cases)
        assert totals["answers_lost"] == 0


# eMQP has no word for it, and a DBP name has one worker.
@pytest.mark.parametrize("dialect", ["ebus", "mdp1", "mdp2", "mdr"])
def test_a_worker_whose_request_another_one_answered_is_sent_away_once(dialect: str) -> None:
    talk = talks(BEAT_S)[dialect]
    service = f"{dialect}-2-0".encode()

    def is_request(frames: list[bytes]) -> bool:
        return talk.request(frames) is not None

    with (
        LiveBroker(SETTINGS) as broker,
        Peer(broker["majordomo.clients"]) as client,
        Peer(broker[talk.port]) as first,
    ):
        queue_up(broker, client, service, b"r1", b"work")
        for frames in talk.hello(service):
            first.send(*frames)
        held = talk.request(first.recv_until(is_request))
        assert held is not None
        wait_for(lambda: broker.ask("status")["workers_lost"] == 1)
        with Peer(broker[talk.port]) as other:
            for frames in talk.hello(service):
                other.send(*frames)
            taken = talk.request(other.recv_until(is_request))
            assert taken is not None
            for frames in talk.reply(taken[0], b"fast"):
                other.send(*frames)
            assert answer(client, 10.0) == b"fast"
        # Its handler is done. It has several things to say before it reads what came meanwhile.
        for frames in talk.reply(held[0], b"slow"):
            first.send(*frames)
        first.send(*talk.beat(service))
        first.send(*talk.beat(service))
        first.recv_until(talk.is_goodbye)
        # The next request is behind everything else that the broker had to say to it.
        wait_for(lambda: not broker.has_workers(service.decode()), patient(30.0))
        queue_up(broker, client, service, b"r2", b"again")
        for frames in talk.hello(service):
            first.send(*frames)
        heard = []
        while not is_request(frames := first.recv()):
            heard.append(frames)
        assert not [frames for frames in heard if talk.is_goodbye(frames)], "it was sent away again"


@pytest.mark.parametrize("dialect", sorted(set(DIALECTS) - {"dbp"}))
def test_a_silent_worker_is_told_that_the_broker_stops(dialect: str) -> None:
    talk = talks(BEAT_S)[dialect]
    service = f"{dialect}-1-0".encode()
    settings = {**SETTINGS, "broker.drain_s": 0.1}
    with (
        LiveBroker(settings) as broker,
        Peer(broker["majordomo.clients"]) as client,
        Peer(broker[talk.port]) as worker,
    ):
        queue_up(broker, client, service, b"r1", b"work")
        for frames in talk.hello(service):
            worker.send(*frames)
        worker.recv_until(lambda frames: talk.request(frames) is not None)
        wait_for(lambda: broker.ask("status")["workers_lost"] == 1)
        broker.stop()
        worker.recv_until(talk.is_goodbye)
        # It is said once: the connection is closed, so nothing else comes.
        assert worker.get(BEAT_S) is None


def hold(broker: LiveBroker, talk: Talk, service: bytes, client: Peer, worker: Peer) -> list[bytes]:
    """A worker registers, gets the only request, and says nothing for so long that it counts as disconnected.
    The envelope that its answer needs."""
    queue_up(broker, client, service, b"r1", b"work")
    for frames in talk.hello(service):
        worker.send(*frames)
    held = talk.request(worker.recv_until(lambda frames: talk.request(frames) is not None))
    assert held is not None
    wait_for(lambda: broker.ask("status")["workers_lost"] == 1)
    return held[0]


def await_probe(worker: Peer) -> None:
    """Pass over what came before the worker was lost. The next message finds out whether it is connected."""
    while worker.get(0.0) is not None:
        pass
    worker.recv()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_worker_lost_is_not_the_verdict_while_a_silent_worker_is_connected(dialect: str) -> None:
    talk = talks(BEAT_S)[dialect]
    with (
        LiveBroker({**SETTINGS, "limits.attempts": 1}) as broker,
        Peer(broker["majordomo.clients"]) as client,
        Peer(broker[talk.port]) as worker,
    ):
        envelope = hold(broker, talk, b"slow", client, worker)
        await_probe(worker)
        await_probe(worker)
        # Another one does not get it: it has cost as many workers as it may.
        with Peer(broker["majordomo.workers"]) as other:
            other.send(b"MDRW01", b"\x01", b"slow")
            other.send(b"MDRW01", b"PING")
            assert other.recv()[1:] == [b"PONG"], "it is no worker, or was given something before"
            (row,) = broker.ask("requests")
            assert row["worker"] is None
            for frames in talk.reply(envelope, b"late"):
                worker.send(*frames)
            assert answer(client, WAIT_S) == b"late"
        assert broker.ask("status")["failed"] == 0


@pytest.mark.parametrize("dialect", DIALECTS)
def test_worker_lost_is_the_verdict_when_the_silent_worker_is_not_connected(dialect: str) -> None:
    talk = talks(BEAT_S)[dialect]
    with (
        LiveBroker({**SETTINGS, "limits.attempts": 1}) as broker,
        Peer(broker["majordomo.clients"]) as client,
        Peer(broker[talk.port]) as worker,
    ):
        hold(broker, talk, b"slow", client, worker)
        await_probe(worker)
        assert client.get(0.0) is None
        worker.close()
        assert json.loads(answer(client, WAIT_S))["error"] == "worker_lost"


@pytest.mark.parametrize("dialect", ["ebus", "emqp", "mdp1", "mdp2", "mdr"])
def test_a_worker_that_comes_back_on_a_new_connection_may_answer(dialect: str) -> None:
    talk = talks(BEAT_S)[dialect]
    with LiveBroker(SETTINGS) as broker, Peer(broker["majordomo.clients"]) as client:
        with Peer(broker[talk.port], identity=b"own") as worker:
            queue_up(broker, client, b"slow", b"r1", b"work")
            for frames in talk.hello(b"slow"):
                worker.send(*frames)
            held = talk.request(worker.recv_until(lambda frames: talk.request(frames) is not None))
            assert held is not None
        # The connection is gone, and the broker has noticed; the request waits for another worker.
        wait_for(lambda: not broker.has_workers("slow"))
        with Peer(broker[talk.port], identity=b"own") as worker:
            # As libzmq does it: the program does not notice, and does not register again.
            for frames in talk.reply(held[0], b"carried over"):
                worker.send(*frames)
            assert answer(client, WAIT_S) == b"carried over"
            for frames in talk.reply(held[0], b"a second one"):
                worker.send(*frames)
            worker.send(*talk.beat(b"slow"))
            if dialect != "emqp":
                worker.recv_until(talk.is_goodbye)
            wait_for(lambda: broker.ask("status")["late"] == 1)
        assert client.get(0.0) is None


# Those that cannot be told to stop, with several slots each: of MDP and MDR by one more frame of READY.
@pytest.mark.parametrize("dialect", ["emqp", "mdp1", "mdp2", "mdr"])
def test_a_retry_is_not_given_to_the_worker_that_is_busy_with_the_job(dialect: str) -> None:
    talk = talks(BEAT_S)[dialect]

    def is_request(frames: list[bytes]) -> bool:
        return talk.request(frames) is not None

    with (
        LiveBroker(PATIENT) as broker,
        Peer(broker["majordomo.clients"]) as client,
        Peer(broker[talk.port]) as worker,
    ):
        first, *others = talk.hello(b"slow")
        for frames in [first, *others * 5] if others else [[*first, b"5"]]:
            worker.send(*frames)
        wait_for(lambda: broker.has_workers("slow"))
        head = {"service": "slow", "timeout_s": DEAD_S / 2, "retries": 20, "reply": "result", "id": "j"}
        client.send(b"MDRC01", b"\x01", b"polybus.submit", b"r1", json.dumps(head).encode() + b"\nwork")
        held = talk.request(worker.recv_until(is_request))
        assert held is not None
        given = []

        def has_timed_out() -> bool:
            worker.send(*talk.beat(b"slow"))
            while (frames := worker.get(0.0)) is not None:
                given.extend([frames] if is_request(frames) else [])
            return bool(broker.ask("status")["timeouts"] >= 3)

        wait_for(has_timed_out)
        assert given == [], "it was given what it is busy with"
        for frames in talk.reply(held[0], b"done"):
            worker.send(*frames)
        assert answer(client, WAIT_S) == b"done"
        # It is a worker like any other: its next request is not preceded by a goodbye.
        client.send(b"MDRC01", b"\x01", b"slow", b"r2", b"next")
        heard = [worker.recv()]
        while not is_request(heard[-1]):
            heard.append(worker.recv())
        assert not any(talk.is_goodbye(frames) for frames in heard)


def show(broker: LiveBroker, *words: str) -> str:
    """What a command of the command line prints about the broker."""
    command = [str(POLYBUS), *words, "--data-dir", str(broker.data_dir)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=patient(30.0)).stdout


def test_what_operators_see_of_a_silent_worker() -> None:
    talk = talks(BEAT_S)["mdr"]
    with (
        LiveBroker(SETTINGS) as broker,
        Peer(broker["majordomo.clients"]) as client,
        Peer(broker[talk.port], identity=b"sleeper") as worker,
    ):
        queue_up(broker, client, b"slow", b"r1", b"work")
        for frames in talk.hello(b"slow"):
            worker.send(*frames)
        worker.recv_until(lambda frames: talk.request(frames) is not None)
        wait_for(lambda: broker.ask("status")["workers_lost"] == 1)
        assert re.search(r"^ *sleeper +mdr +slow +silent since \d{4}-", show(broker, "workers"), re.MULTILINE)
        (row,) = json.loads(show(broker, "workers", "--json"))
        assert (row["worker"], row["state"], row["unanswered"]) == ("sleeper", "silent", 1)
        assert time.time() - patient(60.0) < row["silent_since"] < time.time()
        assert re.search(r"^ *slow +silent: 1 +0 ", show(broker, "services"), re.MULTILINE)
        (row,) = json.loads(show(broker, "services", "--json"))
        assert (row["state"], row["workers"], row["silent_workers"]) == ("silent", 0, 1)
        assert " queued " in show(broker, "queues", "--requests")
        assert " sleeper (silent) " in show(broker, "queues", "--requests")
        (row,) = json.loads(show(broker, "queues", "--requests", "--json"))
        assert (row["worker"], row["silent_workers"]) == (None, ["sleeper"])
        look = broker.ask("top")
        assert [row["state"] for row in (*look["workers"], *look["services"])] == ["silent", "silent"]
