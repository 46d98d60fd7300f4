"""Subscribers: the handshake, values before the stream, full pipes, and peers that misbehave."""

from __future__ import annotations

import math

import pytest

from polybus.core.model import Limits
from polybus.server import delivery, subscribers
from polybus.server.subscriber import CHUNK_BYTES
from polybus.wire import zmtp
from support.studio import EBUS, EMQP, Studio
from support.zmtp import GREETING, ready

# -- the handshake ------------------------------------------------------------------------------------


def test_we_greet_first_and_introduce_ourselves_as_xpub() -> None:
    studio = Studio()
    peer = studio.connect()
    studio.turn()
    assert peer.unread == zmtp.GREETING_BYTES
    peer.send(GREETING)
    studio.turn()
    assert peer.messages() == []
    assert peer.commands == [b"\x05READY\x0bSocket-Type\x00\x00\x00\x04XPUB"]


def test_one_that_says_nothing_is_cut_off() -> None:
    studio = Studio()
    silent, good = studio.connect(), studio.join(b"")
    studio.turn(subscribers.HANDSHAKE_S + 1.0)
    studio.turn(subscribers.FAREWELL_S)
    assert studio.pump.closed == {silent.identity}
    assert len(studio.subscribers) == 1
    assert not good.messages()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n", "no_zmtp"),
        (GREETING + ready(b"DEALER"), "socket_type"),
        (GREETING + ready(b"SUB") + b"\xff\xff", "flags"),
        (GREETING + ready(b"SUB") + zmtp.write_error("bye"), "error"),
    ],
)
def test_who_cannot_be_understood_is_told_and_cut_off(data: bytes, reason: str) -> None:
    studio = Studio()
    studio.bus.listen(True, None)
    peer = studio.connect()
    peer.send(data + zmtp.write_subscription(True, b"late"))
    studio.turn()
    assert studio.bus.counters.invalid == 1
    peer.messages()
    assert peer.commands[-1] == b"\x05ERROR" + bytes((len(reason),)) + reason.encode()
    # It is not listened to any more.
    peer.subscribe(b"a")
    studio.turn(subscribers.FAREWELL_S)
    studio.turn(subscribers.FAREWELL_S)
    assert studio.pump.closed == {peer.identity}
    assert len(studio.subscribers) == 0
    assert not any(studio.bus.subscriptions.values())


def test_a_ping_is_answered_and_a_broken_promise_ends_it() -> None:
    studio = Studio()
    peer = studio.join(b"a")
    peer.send(zmtp.write_ping(3.0, b"ctx"))
    studio.turn()
    peer.messages()
    assert peer.commands[-1] == b"\x04PONGctx"
    peer.send(zmtp.write_pong(b""))
    studio.turn(2.9)
    assert len(studio.subscribers) == 1
    studio.turn(3.2)
    studio.turn(1.1)
    assert studio.pump.closed == {peer.identity}
    assert not studio.bus.subscriptions[EBUS]


def test_a_connection_that_is_gone_is_forgotten() -> None:
    studio = Studio()
    first, second = studio.join(b"a"), studio.join(b"a", b"b")
    assert studio.bus.subscriptions[EBUS] == {b"a": 2, b"b": 1}
    first.hang_up()
    assert studio.bus.subscriptions[EBUS] == {b"a": 1, b"b": 1}
    # Of the other one nobody tells us, but nothing can be sent to it.
    studio.pump.gone.add(second.identity)
    studio.publish(b"a")
    studio.turn()
    assert not studio.bus.subscriptions[EBUS]
    assert len(studio.subscribers) == 0
    # Its end is told after all: that is not a new connection for long.
    second.send(b"")
    studio.turn()
    assert len(studio.subscribers) == 0
    second.send(b"late bytes")
    assert len(studio.subscribers) == 0


# -- values and the stream ----------------------------------------------------------------------------


@pytest.mark.parametrize("link", [EBUS, EMQP])
def test_values_come_first_then_the_stream(link: int) -> None:
    studio = Studio()
    for number in range(3):
        studio.publish(b"t/%d" % number, b"old")
    studio.publish(b"t/1", b"value")
    peer = studio.join(b"t/", link=link)
    studio.publish(b"t/1", b"live")
    studio.publish(b"u", b"not wanted")
    studio.turn()
    assert peer.messages() == [
        [b"t/0", b"old"],
        [b"t/1", b"value"],
        [b"t/2", b"old"],
        [b"t/1", b"live"],
    ]


def test_what_happens_in_one_turn_keeps_its_order() -> None:
    """Publications before the subscription are in its values, those after it are live; none is both."""
    studio = Studio()
    other = studio.join(b"t")
    peer = studio.join()
    studio.publish(b"t", b"1")
    studio.publish(b"t", b"2")
    peer.subscribe(b"t")
    studio.publish(b"t", b"3")
    studio.turn()
    assert peer.messages() == [[b"t", b"2"], [b"t", b"3"]]
    assert other.messages() == [[b"t", b"1"], [b"t", b"2"], [b"t", b"3"]]
    studio.publish(b"t", b"4")
    peer.cancel(b"t")
    studio.publish(b"t", b"5")
    peer.subscribe(b"t")
    studio.publish(b"t", b"6")
    studio.turn()
    assert peer.messages() == [[b"t", b"4"], [b"t", b"5"], [b"t", b"6"]]


def test_no_value_comes_twice_by_two_subscriptions() -> None:
    studio = Studio()
    for topic in (b"a", b"ab", b"abc", b"b"):
        studio.publish(topic, b"v")
    peer = studio.join(b"ab", b"abc", b"a", b"ab", b"")
    studio.turn()
    assert [topic for topic, _ in peer.messages()] == [b"ab", b"abc", b"a", b"b"]


def test_a_body_without_frames_has_one_in_emqp() -> None:
    studio = Studio()
    studio.publish(b"t")
    ebus, emqp = studio.join(b"t", link=EBUS), studio.join(b"t", link=EMQP)
    studio.publish(b"t")
    studio.turn()
    assert ebus.messages() == [[b"t"]] * 2
    assert emqp.messages() == [[b"t", b""]] * 2


def test_what_is_said_to_one_dialect_is_no_last_value() -> None:
    studio = Studio()
    ebus, emqp = studio.join(b"", link=EBUS), studio.join(b"", link=EMQP)
    studio.subscribers.say("ebus", b"ebus/shutdown", [b"null"])
    studio.turn()
    assert (ebus.messages(), emqp.messages()) == ([[b"ebus/shutdown", b"null"]], [])
    assert not len(studio.bus.last)


def test_one_batch_for_each_turn() -> None:
    studio = Studio()
    peers = [studio.join(b"t") for _ in range(10)]
    before = studio.pump.calls
    for number in range(100):
        studio.publish(b"t", b"%d" % number)
    studio.turn()
    assert studio.pump.calls == before + 1
    assert all(len(peer.messages()) == 100 for peer in peers)


# -- those who do not read ----------------------------------------------------------------------------


def test_what_a_full_pipe_refuses_waits_and_what_is_too_much_is_dropped_and_counted() -> None:
    studio = Studio(pipe_messages=5)
    slow, quick = studio.join(b"t"), studio.join(b"t")
    studio.pump.full.add(slow.identity)
    for number in range(20):
        studio.publish(b"t", b"%d" % number)
        studio.turn()
    assert [int(body) for _, body in quick.messages()] == list(range(20))
    lazy, busy = studio.subscribers.views(studio.now)
    assert (lazy["waiting"], lazy["dropped"], lazy["delivered"]) == (5, 15, 0)
    assert (busy["waiting"], busy["dropped"], busy["delivered"]) == (0, 0, 20)
    facts = studio.subscribers.facts()
    assert (facts["publications_dropped"], facts["subscribers_behind"]) == (15, 1)
    studio.pump.full.clear()
    studio.until_quiet()
    assert [int(body) for _, body in slow.messages()] == [0, 1, 2, 3, 4]
    studio.publish(b"t", b"20")
    studio.turn()
    assert slow.messages() == [[b"t", b"20"]]
    assert studio.subscribers.views(studio.now)[0]["delivered"] == 6


def test_bytes_that_wait_are_limited_but_one_turn_is_always_taken() -> None:
    studio = Studio(pipe_bytes=1000)
    slow = studio.join(b"t")
    studio.pump.full.add(slow.identity)
    for size in (5000, 10):
        studio.publish(b"t", b"x" * size)
        studio.turn()
    studio.pump.full.clear()
    studio.until_quiet()
    assert [len(body) for _, body in slow.messages()] == [5000]
    assert studio.subscribers.facts()["publications_dropped"] == 1


def test_values_are_never_dropped() -> None:
    studio = Studio(pipe_messages=1, pipe_bytes=10)
    for number in range(500):
        studio.publish(b"t/%03d" % number, b"x" * 1000)
    peer = studio.join()
    studio.pump.full.add(peer.identity)
    peer.subscribe(b"t/")
    studio.publish(b"t/000", b"live")
    studio.turn()
    studio.publish(b"t/000", b"dropped")
    studio.turn()
    studio.pump.full.clear()
    studio.until_quiet()
    messages = peer.messages()
    assert [topic for topic, _ in messages] == [*(b"t/%03d" % number for number in range(500)), b"t/000"]
    assert messages[-1][1] == b"live"
    assert studio.subscribers.facts()["publications_dropped"] == 1


def test_a_full_pipe_is_tried_again_less_and_less_often() -> None:
    studio = Studio()
    slow = studio.join(b"t")
    studio.pump.full.add(slow.identity)
    studio.publish(b"t", b"1")
    studio.turn()
    pauses = []
    for _ in range(8):
        pause = studio.subscribers.next_at - studio.now
        pauses.append(pause)
        studio.turn(pause)
    assert pauses == sorted(pauses)
    assert pauses[0] == pytest.approx(delivery.RETRY_S)
    assert pauses[-1] == pytest.approx(delivery.RETRY_MAX_S)
    studio.pump.full.clear()
    studio.until_quiet()
    assert slow.messages() == [[b"t", b"1"]]
    assert studio.subscribers.next_at == math.inf


@pytest.mark.parametrize("refusals", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2 * CHUNK_BYTES])
def test_order_is_kept_when_a_pipe_gets_room_in_the_middle(refusals: int, size: int) -> None:
    studio = Studio()
    peer, other = studio.join(b"t"), studio.join()
    studio.pump.refuse_next[peer.identity] = refusals
    studio.publish(b"t", b"1")
    # Another one joins the audience, which is served before: twice in one turn.
    other.subscribe(b"t")
    studio.publish(b"t", b"2")
    studio.publish(b"t", b"3" * size)
    studio.publish(b"t", b"4")
    studio.until_quiet()
    assert [body[:1] for _, body in peer.messages()] == [b"1", b"2", b"3", b"4"]
    assert [body[:1] for _, body in other.messages()] == [b"1", b"2", b"3", b"4"]


def test_large_publications_go_in_pieces_and_are_shared() -> None:
    studio = Studio(pipe_bytes=100_000_000)
    peers = [studio.join(b"t"), studio.join(b"t")]
    body = bytes(range(256)) * 4 * CHUNK_BYTES
    studio.publish(b"t", b"before")
    studio.publish(b"t", body)
    studio.publish(b"t", b"after")
    studio.turn()
    assert studio.subscribers.next_at == 0.0, "there is more to be sent, but others come first"
    studio.until_quiet()
    for peer in peers:
        assert peer.messages() == [[b"t", b"before"], [b"t", body], [b"t", b"after"]]


def test_a_pong_for_one_that_does_not_read_is_left_out() -> None:
    studio = Studio()
    slow = studio.join(b"t")
    studio.pump.full.add(slow.identity)
    studio.publish(b"t", b"1")
    studio.turn()
    for _ in range(1000):
        slow.send(zmtp.write_ping(0.0))
    studio.turn()
    assert studio.subscribers.views(studio.now)[0]["waiting_bytes"] < 100


# -- limits -------------------------------------------------------------------------------------------


def test_subscriptions_of_one_peer_and_of_all_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribers, "PREFIXES", 3)
    studio = Studio(Limits(subscriptions=5))
    first, second = studio.join(b"1", b"2"), studio.join(b"1", b"2")
    studio.join(b"5")
    assert studio.bus.counters.invalid == 0
    late = studio.join(b"6")
    assert studio.bus.counters.invalid == 1
    late.messages()
    assert b"too_many_subscriptions" in late.commands[-1]
    second.hang_up()
    for prefix in (b"3", b"4"):
        first.subscribe(prefix)
    studio.turn()
    assert studio.bus.counters.invalid == 2
    assert studio.bus.subscriptions[EBUS] == {b"5": 1}


def test_strange_things_from_a_subscriber_are_counted_and_it_stays() -> None:
    studio = Studio()
    peer = studio.join(b"t")
    peer.send(b"\x00\x05hello\x04\x05\x04NEWS")
    peer.subscribe(b"x" * 256)
    peer.cancel(b"never")
    studio.publish(b"t", b"1")
    studio.turn()
    assert studio.bus.counters.invalid == 3
    assert peer.messages() == [[b"t", b"1"]]


def test_one_that_asks_again_and_again_waits_until_it_has_read() -> None:
    studio = Studio()
    for number in range(100):
        studio.publish(b"t/%02d" % number, b"x" * 10_000)
    peer = studio.join()
    studio.pump.full.add(peer.identity)
    for _ in range(10):
        peer.subscribe(b"t")
        peer.cancel(b"t")
    studio.turn()
    # The first is on its way, and that is much: the others are not even read.
    assert studio.subscribers.next_at > 0.0, "nothing can be done for it now"
    studio.pump.full.clear()
    studio.until_quiet()
    assert len(peer.messages()) == 1000
    assert not studio.bus.subscriptions[EBUS]


def test_when_everybody_asks_for_everything_at_once_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscribers, "TURN_VALUES", 20)
    studio = Studio()
    for number in range(10):
        studio.publish(b"t/%d" % number, b"1")
    peers = [studio.join() for _ in range(7)]
    for peer in peers:
        peer.subscribe(b"t/")
    studio.publish(b"t/0", b"2")
    studio.turn()
    assert [len(peer.messages()) for peer in peers] == [11, 11, 0, 0, 0, 0, 0]
    assert studio.subscribers.next_at == 0.0
    studio.turn()
    # Who was read later sees what is current then.
    assert [len(peer.messages()) for peer in peers] == [0, 0, 10, 10, 0, 0, 0]
    studio.until_quiet()
    assert [len(peer.messages()) for peer in peers] == [0, 0, 0, 0, 10, 10, 10]


def test_one_that_asks_for_ever_is_cut_off() -> None:
    studio = Studio()
    for number in range(100):
        studio.publish(b"t/%02d" % number, b"x" * 10_000)
    peer = studio.join()
    studio.pump.full.add(peer.identity)
    flood = b"".join(zmtp.write_subscription(wanted, b"t") for wanted in (True, False)) * 300
    for _ in range(subscribers.UNREAD_BYTES // len(flood) + 2):
        peer.send(flood)
        studio.turn()
    assert studio.bus.counters.invalid == 1
    # A full pipe takes no end either; as soon as it can be told, it is.
    studio.turn(2.0)
    assert len(studio.subscribers) == 1
    studio.pump.full.clear()
    studio.turn(2.0)
    assert studio.pump.closed == {peer.identity}
    assert len(studio.subscribers) == 0


def test_a_peer_that_leaves_in_the_turn_in_which_it_came() -> None:
    studio = Studio()
    studio.publish(b"t", b"1")
    peer = studio.connect()
    peer.send(GREETING + ready(b"SUB"))
    peer.subscribe(b"t")
    peer.hang_up()
    studio.publish(b"t", b"2")
    studio.turn()
    assert len(studio.subscribers) == 0
    assert not studio.bus.subscriptions[EBUS]
    assert studio.subscribers.next_at == math.inf


def test_listeners_are_told_of_subscriptions() -> None:
    studio = Studio()
    studio.bus.listen(True, None)
    studio.join(b"t").hang_up()
    studio.turn()
    assert [(record.what, record.service) for record in studio.observed] == [
        ("subscribed", b"t"),
        ("unsubscribed", b"t"),
    ]
