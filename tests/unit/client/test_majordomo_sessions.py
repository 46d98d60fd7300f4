"""Clients and workers of the Majordomo family, frame by frame, on a clock of our own."""

from __future__ import annotations

import pytest

from polybus.client.sessions import client_session, worker_sessions
from polybus.client.sessions.port import (
    ClientSession,
    Done,
    Failed,
    Options,
    Part,
    Restart,
    Work,
    WorkerSession,
)
from polybus.errors import LocalProtocolError
from support.majordomo import BEAT_S, MDP1, MDP2, MDR, Talk, statement

ALL = [MDP1, MDP2, MDR]


def lead(talk: Talk) -> list[bytes]:
    """RFC 7 begins every message with an empty frame."""
    return [b""] if talk is MDP1 else []


def client(talk: Talk) -> ClientSession:
    return client_session(talk.name)


def worker(talk: Talk, credit: int = 1) -> WorkerSession:
    (session,) = worker_sessions(talk.name, [b"echo"], credit, {}, b"p")
    session.hello(0.0)
    return session


def order(session: WorkerSession, talk: Talk, token: bytes = b"t1", now: float = 0.0) -> Work:
    (work,) = session.receive([*lead(talk), *talk.order(token, b"r1", b"in")], now)
    assert isinstance(work, Work)
    return work


# -- clients ----------------------------------------------------------------------------------


@statement(mdp1="MDP1-4 MDP1-7", mdp2="MDP2-4 MDP2-7", mdr="MDR-5 MDR-8")
def test_request(talk: Talk) -> None:
    assert client(talk).request(b"r1", b"echo", [b"a", b"b"]) == [
        [*lead(talk), *talk.request(b"echo", b"r1", b"a", b"b")]
    ]


@statement(mdp1="MDP1-3 MDP1-5", mdp2="MDP2-3 MDP2-6", mdr="MDR-4 MDR-7 MDR-10")
def test_final_ends_the_request_and_a_second_one_is_dropped(talk: Talk) -> None:
    session = client(talk)
    session.request(b"r1", b"echo", [b"a"])
    final = [*lead(talk), *talk.final(b"echo", b"r1", b"out", b"more")]
    assert session.receive(final) == [Done(b"r1", [b"out", b"more"])]
    assert session.receive(final) == []
    assert session.invalid == 1
    assert session.resend() == []


@statement(mdp2="MDP2-5 MDP2-8", mdr="MDR-6 MDR-9")
def test_partials_come_before_the_final(talk: Talk) -> None:
    session = client(talk)
    session.request(b"r1", b"echo", [b"a"])
    assert session.receive(talk.partial(b"echo", b"r1", b"1")) == [Part(b"r1", [b"1"])]
    assert session.receive(talk.partial(b"echo", b"r1", b"2")) == [Part(b"r1", [b"2"])]
    assert session.receive(talk.final(b"echo", b"r1", b"3")) == [Done(b"r1", [b"3"])]
    assert session.receive(talk.partial(b"echo", b"r1", b"4")) == []
    assert session.invalid == 1


@pytest.mark.parametrize("talk", ALL, ids=lambda talk: talk.name)
def test_an_error_object_is_a_failure(talk: Talk) -> None:
    session = client(talk)
    session.request(b"r1", b"echo", [b"a"])
    body = b'{"error":"expired","detail":"no answer within 3 s"}'
    assert session.receive(talk.final(b"echo", b"r1", body)) == [
        Failed(b"r1", "expired", "no answer within 3 s", [body])
    ]


@pytest.mark.conforms("MDR-3", "MDR-10")
def test_mdr_has_many_requests_open() -> None:
    session = client(MDR)
    for rid in (b"r1", b"r2", b"r3"):
        assert session.request(rid, b"echo", [rid])
    assert session.receive(MDR.final(b"echo", b"r2", b"x")) == [Done(b"r2", [b"x"])]
    assert [frames[3] for frames in session.resend()] == [b"r1", b"r3"]


@pytest.mark.conforms("MDR-11")
def test_mdr_resends_the_same_frames() -> None:
    session = client(MDR)
    sent = session.request(b"r1", b"echo", [b"a"])
    assert session.resend() == sent
    session.cancel(b"r1")
    assert session.resend() == []


@statement(mdp1="MDP1-3", mdp2="MDP2-3")
def test_without_ids_one_request_at_a_time_in_order(talk: Talk) -> None:
    session = client(talk)
    assert session.capacity == 1
    assert session.request(b"r1", b"echo", [b"1"])
    assert session.request(b"r2", b"echo", [b"2"]) == []
    assert session.request(b"r3", b"echo", [b"3"]) == []
    assert session.release() == []
    assert session.receive(talk.final(b"echo", b"", b"x")) == [Done(b"r1", [b"x"])]
    assert session.release() == [[*lead(talk), *talk.request(b"echo", b"", b"2")]]
    assert session.receive(talk.final(b"echo", b"", b"y")) == [Done(b"r2", [b"y"])]
    session.cancel(b"r3")
    assert session.release() == []


@statement(mdp1="MDP1-8", mdp2="MDP2-9")
def test_without_ids_a_given_up_request_spends_the_socket(talk: Talk) -> None:
    session = client(talk)
    session.request(b"r1", b"echo", [b"1"])
    session.cancel(b"r1")
    assert session.wants_restart
    assert session.request(b"r2", b"echo", [b"2"]) == []
    # The answer to the first would otherwise be taken for the second's.
    assert session.receive(talk.final(b"echo", b"", b"late")) == []
    session.restarted(1.0)
    assert session.resend() == []
    assert session.release() == [[*lead(talk), *talk.request(b"echo", b"", b"2")]]


@pytest.mark.parametrize("talk", ALL, ids=lambda talk: talk.name)
def test_clients_refuse_what_the_dialect_cannot_say(talk: Talk) -> None:
    session = client(talk)
    with pytest.raises(LocalProtocolError, match="eMQP"):
        session.request(b"r1", b"echo", [b"a"], options=Options(guarantee=True))
    with pytest.raises(LocalProtocolError, match="service name"):
        session.request(b"r1", b"", [b"a"])
    assert session.resend() == []


@pytest.mark.parametrize("talk", ALL, ids=lambda talk: talk.name)
def test_clients_drop_and_count_what_they_cannot_read(talk: Talk) -> None:
    session = client(talk)
    session.request(b"r1", b"echo", [b"a"])
    for frames in ([], [b""], [b"XYZ"], [talk.client], [b"", talk.client, b"\x09"], [talk.worker, b"\x02"]):
        assert session.receive(frames) == []
    assert session.invalid == 6
    assert len(session.resend()) == 1


# -- workers: opening and closing ---------------------------------------------------------------


@statement(
    mdp1="MDP1-10 MDP1-15 MDP1-17 MDP1-18",
    mdp2="MDP2-11 MDP2-18 MDP2-19",
    mdr="MDR-12 MDR-20 MDR-21",
)
def test_ready(talk: Talk) -> None:
    (plain,) = worker_sessions(talk.name, [b"echo"], 1, {}, b"p")
    assert plain.hello(0.0) == [[*lead(talk), *talk.ready(b"echo")]]
    (eager,) = worker_sessions(talk.name, [b"echo"], 8, {}, b"p")
    assert eager.hello(0.0) == [[*lead(talk), *talk.ready(b"echo", b"8")]]
    assert len(worker_sessions(talk.name, [b"a", b"b"], 1, {}, b"p")) == 2


@statement(mdp1="MDP1-19 MDP1-20", mdp2="MDP2-20 MDP2-21", mdr="MDR-22 MDR-23")
def test_one_ready_a_conversation_and_no_answer_is_awaited(talk: Talk) -> None:
    session = worker(talk)
    said = []
    now = 0.0
    for _ in range(100):
        now += 0.5
        session.receive([*lead(talk), talk.worker, talk.beat_answer or talk.beat], now)
        said += session.tick(now) + session.pending()
    assert said
    # Tag and command, behind the empty first frame: none of what it said is another READY.
    head = talk.ready(b"echo")[:2]
    assert [frames for frames in said if frames[len(lead(talk)) :][:2] == head] == []
    assert all(frames == [*lead(talk), *talk.heartbeat()] for frames in said)


@statement(
    mdp1="MDP1-14 MDP1-22 MDP1-25",
    mdp2="MDP2-16 MDP2-23 MDP2-26",
    mdr="MDR-18 MDR-26 MDR-29",
)
def test_disconnect_asks_for_a_new_socket_and_a_new_ready(talk: Talk) -> None:
    session = worker(talk)
    work = order(session, talk)
    (event,) = session.receive([*lead(talk), *talk.farewell()], 1.0)
    assert isinstance(event, Restart)
    assert session.hello(2.0) == [[*lead(talk), *talk.ready(b"echo")]]
    # Work of the conversation that is over is somebody else's now.
    assert session.reply(work.token, [b"late"]) == []


@pytest.mark.conforms("MDR-18")
def test_mdr_disconnect_may_carry_the_header_of_mdp2() -> None:
    session = worker(MDR)
    (event,) = session.receive([b"MDPW02", b"\x06"], 1.0)
    assert isinstance(event, Restart)


def test_mdr_takes_nothing_else_from_mdp2() -> None:
    session = worker(MDR)
    assert session.receive([b"MDPW02", b"\x02", b"t", b"", b"r", b"x"], 1.0) == []
    assert session.receive([b"MDPW02", b"PONG"], 1.0) == []
    assert session.invalid == 2
    assert session.heard_at == 0.0


@pytest.mark.conforms("MDR-46")
def test_mdr_peers_can_be_told_another_frame_0() -> None:
    asking = client_session("mdr", b"C9")
    assert asking.request(b"r1", b"echo", [b"a"]) == [[b"C9", b"\x01", b"echo", b"r1", b"a"]]
    assert asking.receive(MDR.final(b"echo", b"r1", b"X")) == []
    assert asking.receive([b"C9", b"\x03", b"echo", b"r1", b"X"]) == [Done(b"r1", [b"X"])]
    (session,) = worker_sessions("mdr", [b"echo"], 1, {}, b"p", tag=b"W9")
    assert session.hello(0.0) == [[b"W9", b"\x01", b"echo"]]
    assert session.receive(MDR.order(b"t1", b"r1", b"in"), 1.0) == []
    assert session.heard_at == 0.0
    (work,) = session.receive([b"W9", b"\x02", b"t1", b"", b"r1", b"in"], 1.0)
    assert isinstance(work, Work)
    assert session.part(work.token, [b"1"]) == [[b"W9", b"\x03", b"t1", b"", b"r1", b"1"]]
    assert session.reply(work.token, [b"2"]) == [[b"W9", b"\x04", b"t1", b"", b"r1", b"2"]]
    assert session.tick(10.0) == [[b"W9", b"PING"]]
    assert session.goodbye() == [[b"W9", b"\x06"]]
    for tag in (b"W9", b"MDPW02"):
        (event,) = session.receive([tag, b"\x06"], 20.0)
        assert isinstance(event, Restart)
    assert session.receive([b"MDRW01", b"\x06"], 20.0) == []


@pytest.mark.conforms("MDR-44")
def test_an_mdr_worker_takes_a_request_without_a_body_frame() -> None:
    session = worker(MDR)
    (work,) = session.receive(MDR.order(b"t1", b"r1"), 0.0)
    assert isinstance(work, Work)
    assert work.body == []
    # What we send has a body frame at least.
    assert session.reply(work.token, []) == [MDR.reply(MDR.order(b"t1", b"r1"), b"")]


@statement(mdp1="MDP1-21", mdp2="MDP2-22", mdr="MDR-24")
def test_goodbye(talk: Talk) -> None:
    assert worker(talk).goodbye() == [[*lead(talk), *talk.farewell()]]


@statement(mdp1="MDP1-24", mdp2="MDP2-25", mdr="MDR-28")
def test_workers_drop_and_count_what_they_cannot_read(talk: Talk) -> None:
    session = worker(talk)
    short = talk.order(b"t", b"r")[:-1]
    for frames in (
        [],
        [b""],
        [b"XYZ", b"\x02"],
        [talk.worker],
        [*lead(talk), *short],
        [talk.client, b"\x02"],
    ):
        assert session.receive(frames, 5.0) == []
    assert session.invalid == 6
    # What cannot be read is no life sign.
    assert session.heard_at == 0.0


# -- workers: requests and replies -------------------------------------------------------------


@statement(
    mdp1="MDP1-9 MDP1-11 MDP1-12 MDP1-26",
    mdp2="MDP2-10 MDP2-12 MDP2-14 MDP2-28",
    mdr="MDR-13 MDR-15 MDR-31 MDR-32",
)
def test_request_and_reply(talk: Talk) -> None:
    session = worker(talk)
    sent = talk.order(b"t1", b"r1", b"in", b"more")
    (work,) = session.receive([*lead(talk), *sent], 0.0)
    assert isinstance(work, Work)
    assert (work.service, work.body) == (b"echo", [b"in", b"more"])
    assert work.request_id == (b"r1" if talk.has_ids else b"")
    assert session.reply(work.token, [b"out"]) == [[*lead(talk), *talk.reply(sent, b"out")]]


@statement(mdp1="MDP1-12", mdp2="MDP2-27", mdr="MDR-30")
def test_exactly_one_final(talk: Talk) -> None:
    session = worker(talk)
    work = order(session, talk)
    assert len(session.reply(work.token, [b"out"])) == 1
    assert session.reply(work.token, [b"again"]) == []
    assert session.part(work.token, [b"late"]) == []
    assert session.fail(work.token, "late") == []


@statement(mdp2="MDP2-13 MDP2-27", mdr="MDR-14 MDR-30")
def test_partials(talk: Talk) -> None:
    session = worker(talk)
    sent = talk.order(b"t1", b"r1", b"in")
    work = order(session, talk)
    assert session.part(work.token, [b"1"]) == [talk.part(sent, b"1")]
    assert session.part(work.token, [b"2"]) == [talk.part(sent, b"2")]
    assert session.reply(work.token, [b"3"]) == [talk.reply(sent, b"3")]


def test_mdp1_has_no_partials() -> None:
    session = worker(MDP1)
    work = order(session, MDP1)
    assert session.part(work.token, [b"1"]) == []
    assert session.reply(work.token, [b"2"])


@pytest.mark.parametrize("talk", ALL, ids=lambda talk: talk.name)
def test_failures_are_error_objects(talk: Talk) -> None:
    session = worker(talk, credit=2)
    (failed,) = session.fail(order(session, talk, b"t1").token, "boom")
    assert failed[-1] == b'{"error":"failed","detail":"boom"}'
    (rejected,) = session.fail(order(session, talk, b"t2").token, "no", rejected=True)
    assert rejected[-1] == b'{"error":"rejected","detail":"no"}'


# -- workers: heartbeats ------------------------------------------------------------------------


@statement(
    mdp1="MDP1-13 MDP1-27 MDP1-30",
    mdp2="MDP2-15 MDP2-29 MDP2-32",
    mdr="MDR-16 MDR-17 MDR-33 MDR-36",
)
def test_a_beat_every_interval(talk: Talk) -> None:
    session = worker(talk)
    beats = []
    now = 0.0
    while now < 20.0:
        # The broker says something all the time, we have nothing to say but that we are here.
        session.receive([*lead(talk), talk.worker, talk.beat_answer or talk.beat], now)
        if now >= session.deadline:
            beats += [(now, frames) for frames in session.tick(now)]
        now += 0.25
    assert [at for at, _ in beats] == [BEAT_S * i for i in range(1, 8)]
    assert all(frames == [*lead(talk), *talk.heartbeat()] for _, frames in beats)


@statement(mdp1="MDP1-29", mdp2="MDP2-31", mdr="MDR-35")
def test_no_beat_while_we_say_other_things(talk: Talk) -> None:
    session = worker(talk)
    now = 0.0
    for i in range(40):
        now = i * 0.5
        work = order(session, talk, b"t%d" % i, now)
        assert session.reply(work.token, [b"out"])
        assert session.tick(now) == []


@pytest.mark.conforms("MDR-35", "MDR-36")
def test_mdr_pings_when_it_speaks_but_hears_nothing() -> None:
    # A long stream of PARTIALs has no answer: only a PONG shows that somebody listens.
    session = worker(MDR)
    work = order(session, MDR)
    pings = 0
    for i in range(1, 21):
        session.part(work.token, [b"x"])
        pings += len(session.tick(i * 0.25))
    assert 1 <= pings <= 11


@statement(mdp1="MDP1-31 MDP1-32", mdp2="MDP2-33 MDP2-34", mdr="MDR-37 MDR-40")
def test_three_silent_intervals_are_a_lost_broker(talk: Talk) -> None:
    session = worker(talk)
    assert not session.is_lost(3 * BEAT_S - 0.01)
    assert session.is_lost(3 * BEAT_S)
    session.hello(100.0)
    assert not session.is_lost(100.0)


@statement(mdp1="MDP1-28", mdp2="MDP2-30", mdr="MDR-34")
def test_every_command_is_a_heartbeat(talk: Talk) -> None:
    session = worker(talk)
    order(session, talk, now=7.0)
    assert not session.is_lost(14.0)
    session.receive([*lead(talk), talk.worker, talk.beat_answer or talk.beat], 14.0)
    assert not session.is_lost(21.0)
    assert session.is_lost(21.5)
