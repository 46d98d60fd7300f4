"""The synchronous client on real sockets, against a broker that does what the test tells it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from polybus import Client, ConfigError, LocalProtocolError, PolybusError, RequestFailed, RequestTimeout
from polybus.client.sessions import ebus
from support.fake_brokers import Background, FakeBroker
from support.patience import patient
from support.waiting import until

FINAL, PARTIAL = b"\x03", b"\x02"


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    broker = FakeBroker()
    yield broker
    broker.close()


@pytest.fixture
def client(broker: FakeBroker) -> Iterator[Client]:
    with Client(broker.endpoint, timeout_s=patient(10)) as client:
        yield client


def answer(broker: FakeBroker, *body: bytes, word: bytes = FINAL) -> list[bytes]:
    """Answer the next MDR request; its frames."""
    identity, frames = broker.receive()
    broker.send(identity, b"MDRC01", word, frames[2], frames[3], *body)
    return frames


def test_call(broker: FakeBroker, client: Client) -> None:
    call = Background(client.call, "echo", b"in")
    frames = answer(broker, b"out")
    assert frames[:3] == [b"MDRC01", b"\x01", b"echo"]
    assert frames[4:] == [b"in"]
    assert call.join() == b"out"


def test_several_frames(broker: FakeBroker, client: Client) -> None:
    call = Background(client.call_multipart, "echo", [b"a", b"b"])
    assert answer(broker, b"c", b"d")[4:] == [b"a", b"b"]
    assert call.join() == [b"c", b"d"]
    call = Background(client.call, "echo", b"a")
    answer(broker, b"c", b"d")
    with pytest.raises(LocalProtocolError, match="call_multipart"):
        call.join()


def test_large_bodies(broker: FakeBroker, client: Client) -> None:
    large = bytes(range(256)) * 1000
    call = Background(client.call, "echo", large)
    assert answer(broker, large)[4] == large
    result = call.join()
    assert type(result) is bytes
    assert result == large


def test_a_failure_is_raised_with_its_code(broker: FakeBroker, client: Client) -> None:
    call = Background(client.call, "echo", b"in")
    answer(broker, b'{"error":"queue_full","detail":"no room"}')
    with pytest.raises(RequestFailed, match="no room") as caught:
        call.join()
    assert (caught.value.code, caught.value.detail) == ("queue_full", "no room")
    assert caught.value.body.startswith(b"{")


@pytest.mark.conforms("MDR-9")
def test_stream(broker: FakeBroker, client: Client) -> None:
    parts = Background(lambda: list(client.stream("count")))
    identity, frames = broker.receive()
    for word, body in ((PARTIAL, b"1"), (PARTIAL, b"2"), (FINAL, b"3")):
        broker.send(identity, b"MDRC01", word, frames[2], frames[3], body)
    assert parts.join() == [b"1", b"2", b"3"]


def test_a_call_takes_the_final_and_drops_the_partials(broker: FakeBroker, client: Client) -> None:
    call = Background(client.call, "count")
    identity, frames = broker.receive()
    for word, body in ((PARTIAL, b"1"), (FINAL, b"2")):
        broker.send(identity, b"MDRC01", word, frames[2], frames[3], body)
    assert call.join() == b"2"


@pytest.mark.conforms("MDR-3", "MDR-10")
def test_submit_has_many_on_their_way(broker: FakeBroker, client: Client) -> None:
    first, second = client.submit("echo", b"1"), client.submit("echo", b"2")
    assert first.request_id != second.request_id
    asked = [broker.receive() for _ in range(2)]
    for identity, frames in reversed(asked):
        broker.send(identity, b"MDRC01", FINAL, frames[2], frames[3], b"re " + frames[4])
    assert second.result() == b"re 2"
    assert first.result() == b"re 1"
    assert first.is_done
    assert first.result_multipart() == [b"re 1"]


def test_a_timeout_leaves_a_submitted_request_open(broker: FakeBroker, client: Client) -> None:
    pending = client.submit("echo", b"1")
    with pytest.raises(RequestTimeout):
        pending.result(timeout_s=0.01)
    answer(broker, b"late")
    assert pending.result() == b"late"


def test_cancel(broker: FakeBroker, client: Client) -> None:
    pending = client.submit("echo", b"1")
    assert client.cancel(pending.request_id)
    assert not client.cancel(pending.request_id)
    with pytest.raises(RequestFailed) as caught:
        pending.result()
    assert caught.value.code == "cancelled"
    # The answer that comes all the same is dropped.
    answer(broker, b"late")
    call = Background(client.call, "echo", b"2")
    answer(broker, b"out")
    assert call.join() == b"out"
    assert client.invalid == 1


def test_call_many_keeps_the_order_and_the_window(broker: FakeBroker, client: Client) -> None:
    results = Background(lambda: list(client.call_many("echo", [b"%d" % i for i in range(10)], window=4)))
    for _ in range(5):
        pair = [broker.receive() for _ in range(2)]
        for identity, frames in reversed(pair):
            broker.send(identity, b"MDRC01", FINAL, frames[2], frames[3], frames[4])
    assert results.join() == [b"%d" % i for i in range(10)]


def test_call_many_never_has_more_than_its_window_open(broker: FakeBroker, client: Client) -> None:
    results = Background(lambda: list(client.call_many("echo", [b"1", b"2", b"3"], window=2)))
    asked = [broker.receive() for _ in range(2)]
    assert broker.is_quiet()
    for identity, frames in asked:
        broker.send(identity, b"MDRC01", FINAL, frames[2], frames[3], frames[4])
    answer(broker, b"3")
    assert results.join() == [b"1", b"2", b"3"]


def test_call_many_raises_or_returns_failures(broker: FakeBroker, client: Client) -> None:
    def serve() -> None:
        for body in (b"1", b'{"error":"failed"}', b"3"):
            answer(broker, body)

    results = Background(lambda: list(client.call_many("echo", [b"a", b"b", b"c"], return_errors=True)))
    serve()
    one, two, three = results.join()
    assert (one, three) == (b"1", b"3")
    assert isinstance(two, RequestFailed)
    results = Background(lambda: list(client.call_many("echo", [b"a", b"b", b"c"])))
    serve()
    with pytest.raises(RequestFailed):
        results.join()


def test_an_iteration_that_is_left_gives_its_requests_up(broker: FakeBroker) -> None:
    with Client(broker.endpoint, window=3, timeout_s=patient(10)) as client:
        results = client.call_many("echo", [b"1", b"2", b"3"])
        first = Background(lambda: next(results))
        answer(broker, b"1")
        assert first.join() == b"1"
        results.close()
        # There is room again for as many as the window takes.
        for _ in range(3):
            client.submit("echo")
        with pytest.raises(RequestTimeout, match="3 requests are open"):
            client.submit("echo", timeout_s=0.01)


@pytest.mark.conforms("MDR-11")
def test_a_restarted_broker_is_asked_again_with_the_same_ids(broker: FakeBroker, client: Client) -> None:
    call = Background(lambda: list(client.call_many("echo", [b"1", b"2"])))
    before = [broker.receive() for _ in range(2)]
    broker.restart()
    after = [broker.receive() for _ in range(2)]
    assert before == after
    for identity, frames in after:
        broker.send(identity, b"MDRC01", FINAL, frames[2], frames[3], frames[4])
    assert call.join() == [b"1", b"2"]


@pytest.mark.conforms("MDP2-9")
def test_without_ids_a_restarted_broker_meets_a_new_client(broker: FakeBroker) -> None:
    with Client(broker.endpoint, "mdp2", timeout_s=patient(10)) as client:
        call = Background(client.call, "echo", b"1")
        first, frames = broker.receive()
        broker.restart()
        second, again = broker.receive_until(lambda frames: True)
        while second == first:
            # libzmq may have kept the message for the old identity and sent it once more.
            second, again = broker.receive()
        assert again == frames
        broker.send(second, b"MDPC02", FINAL, b"echo", b"out")
        assert call.join() == b"out"


@pytest.mark.conforms("MDP1-8", "MDP2-9")
@pytest.mark.parametrize(
    ("dialect", "words"),
    [("mdp1", [b"", b"MDPC01"]), ("mdp2", [b"MDPC02", FINAL])],
)
def test_without_ids_a_late_answer_is_nobodys(broker: FakeBroker, dialect: str, words: list[bytes]) -> None:
    with Client(broker.endpoint, dialect, timeout_s=patient(10)) as client:
        # Long enough that the request has left the client: what a closed socket still holds is dropped.
        call = Background(client.call, "echo", b"1", patient(0.7))
        late, _ = broker.receive()
        with pytest.raises(RequestTimeout):
            call.join()
        call = Background(client.call, "echo", b"2")
        second, _ = broker.receive()
        assert second != late
        broker.send(late, *words, b"echo", b"late")
        broker.send(second, *words, b"echo", b"out")
        assert call.join() == b"out"


@pytest.mark.conforms("EBUS-13")
def test_a_silent_ebus_broker_is_left_and_asked_again(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ebus, "BEAT_S", 0.02)
    with Client(broker.endpoint, "ebus", timeout_s=patient(10)) as client:
        call = Background(client.call, "echo", b"1")
        first, frames = broker.receive()
        identity, again = broker.receive_until(lambda frames: frames[2] == b"REQ")
        assert again == frames
        assert identity == first
        broker.send(identity, b"", b"EBW01", b"REPLY", frames[4], b"out")
        assert call.join() == b"out"


@pytest.mark.conforms("EBUS-13")
def test_an_ebus_client_that_is_disconnected_asks_again(broker: FakeBroker) -> None:
    with Client(broker.endpoint, "ebus", timeout_s=patient(10)) as client:
        call = Background(client.call, "echo", b"1")
        identity, frames = broker.receive()
        broker.send(identity, b"EBW01", b"DISCONNECT")
        identity, again = broker.receive_until(lambda frames: frames[2] == b"REQ")
        assert again == frames
        broker.send(identity, b"", b"EBW01", b"REPLY", frames[4], b"out")
        assert call.join() == b"out"


def test_send_asks_emqp_for_no_result(broker: FakeBroker) -> None:
    with Client(broker.endpoint, "emqp", timeout_s=patient(10)) as client:
        request_id = client.send("email", b"job")
        _, frames = broker.receive()
        assert frames == [b"", b"eMQP/1.0", b"REQUEST", request_id, b"email", b"receipt-requested", b"job"]
        pending = client.submit("email", b"job")
        identity, frames = broker.receive()
        assert not pending.is_accepted
        broker.send(identity, b"", b"eMQP/1.0", b"REPLY", b"b1", frames[3])

        def is_accepted() -> bool:
            with pytest.raises(RequestTimeout):
                pending.result(timeout_s=0.05)
            return pending.is_accepted

        until(is_accepted, "the receipt")
        assert not pending.is_done


def test_emqp_publishes_through_its_own_connection(broker: FakeBroker) -> None:
    with Client(broker.endpoint, "emqp") as client:
        client.publish("news", b"hello")
        _, frames = broker.receive()
        assert frames[:3] + frames[4:] == [b"", b"eMQP/1.0", b"PUBLISH", b"news", b"hello"]


def test_topics_are_for_those_who_have_them(client: Client) -> None:
    with pytest.raises(LocalProtocolError, match="ebus or emqp"):
        client.publish("news")
    with pytest.raises(LocalProtocolError, match="ebus or emqp"):
        client.subscribe("news")


def test_settings_are_checked(broker: FakeBroker) -> None:
    for settings in ({"dialect": "amqp"}, {"address": "not an address"}, {"window": 0}):
        with pytest.raises(ConfigError):
            Client(**{"address": broker.endpoint, **settings})  # type: ignore[arg-type]
    client = Client(broker.endpoint)
    client.close()
    client.close()
    with pytest.raises(PolybusError, match="closed"):
        client.call("echo")
