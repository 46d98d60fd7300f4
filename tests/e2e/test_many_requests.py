"""A client that sends everything before it reads anything, as the guide's `mdclient2` does.

It gets an answer to each of them: what it has no room for waits in the broker, within limits.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.echo import echo
from support.live import LiveBroker, Peer, wait_for
from support.patience import patient

MIB = 1024 * 1024
EMQP = b"eMQP/1.0"
Frames = list[bytes]


# How long nothing more may come after the last answer.
SILENCE_S = 0.5
# So much that the kernel cannot hold all answers.
PADDING = b" " * 400


def mdp1(number: int) -> Frames:
    return [b"", b"MDPC01", b"echo", b"%d" % number + PADDING]


def mdp2(number: int) -> Frames:
    return [b"MDPC02", b"\x01", b"echo", b"%d" % number + PADDING]


def mdr(number: int) -> Frames:
    return [b"MDRC01", b"\x01", b"echo", b"id-%d" % number, b"%d" % number + PADDING]


def emqp(number: int) -> Frames:
    return [b"", EMQP, b"REQUEST", b"id-%d" % number, b"echo", b"reply-requested", b"%d" % number + PADDING]


# How a request is written, its port, where the body is in an answer, and the number of frames of one.
CLIENTS: dict[str, tuple[Callable[[int], Frames], str, int, int]] = {
    "mdp1": (mdp1, "majordomo.clients", 3, 4),
    "mdp2": (mdp2, "majordomo.clients", 3, 4),
    "mdr": (mdr, "majordomo.clients", 4, 5),
    # A receipt comes first; its last frame is empty or missing, that of a result is the request's id.
    "emqp": (emqp, "emqp.clients", 4, 6),
}


def send_all_then_read(dialect: str, count: int, settings: dict[str, object], patience_s: float) -> int:
    """The highest memory of the broker meanwhile, in bytes."""
    write, port, body_at, frames_of_answer = CLIENTS[dialect]
    with LiveBroker(settings) as broker, echo(broker), Peer(broker[port]) as client:
        for number in range(count):
            client.send(*write(number))
        # Everything is answered before the first answer is read.
        wait_for(lambda: broker.ask("status")["replied"] == count, patient(patience_s))
        totals = broker.ask("status")
        assert totals["pending_messages"] > 0, "the pipe alone was enough: nothing was tested"
        rss_bytes = broker.rss_bytes()
        answers: list[int] = []
        receipts = 0
        while len(answers) < count:
            frames = client.recv(patient(patience_s))
            if dialect == "emqp" and len(frames) < frames_of_answer:
                receipts += 1
                continue
            assert len(frames) == frames_of_answer, frames
            answers.append(int(frames[body_at]))
        assert sorted(answers) == list(range(count)), "one answer for each"
        assert receipts == (count if dialect == "emqp" else 0)
        totals = broker.ask("status")
        assert totals["answers_lost"] == 0
        assert totals["rejected"] == 0
        assert totals["pending_messages"] == totals["pending_bytes"] == 0
        assert client.get(SILENCE_S) is None, "something follows the last answer"
        return rss_bytes


@pytest.mark.parametrize("dialect", sorted(CLIENTS))
def test_everything_is_sent_before_anything_is_read(dialect: str) -> None:
    # The client itself takes a thousand, and the kernel as much again or more.
    send_all_then_read(dialect, 20_000, {"broker.pipe_messages": 100}, 60.0)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("dialect", sorted(CLIENTS))
def test_a_hundred_thousand_requests_before_the_first_answer_is_read(dialect: str) -> None:
    assert send_all_then_read(dialect, 100_000, {}, 300.0) < 600 * MIB


def test_what_is_refused_for_a_limit_is_told_though_the_client_does_not_read() -> None:
    count, allowed = 20_000, 5_000
    settings = {"broker.pipe_messages": 100, "limits.outstanding_per_client": allowed}
    with LiveBroker(settings) as broker, Peer(broker["majordomo.clients"]) as client:
        for number in range(count):
            client.send(*mdr(number))
        wait_for(lambda: broker.ask("status")["rejected"] == count - allowed, patient(60.0))
        refused = [client.recv(patient(30.0))[3] for _ in range(count - allowed)]
        assert sorted(refused) == sorted(b"id-%d" % number for number in range(allowed, count))
        with echo(broker):
            answered = [client.recv(patient(30.0))[3] for _ in range(allowed)]
        assert sorted(answered) == sorted(b"id-%d" % number for number in range(allowed))
        assert client.get(SILENCE_S) is None, "something follows the last answer"
        assert broker.ask("status")["answers_lost"] == 0
