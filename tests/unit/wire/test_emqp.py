"""eMQP/1.0, frame by frame."""

from __future__ import annotations

from functools import partial

import pytest

from polybus.errors import LocalProtocolError
from polybus.wire import emqp
from polybus.wire.emqp_inform import MAX_QUEUES, MAX_WEIGHT, read_queues, write_queues
from support.wire_frames import Opaque, refused

T = b"eMQP/1.0"


@pytest.mark.conforms("EMQP-5")
def test_ack() -> None:
    given = [T, b"ACK", b"m1", b"m0"]
    message = emqp.Ack(b"m1", b"m0")
    assert emqp.write_ack(b"m1", b"m0") == emqp.write_from_worker(message) == given
    for read in (emqp.read_from_client, emqp.read_from_worker, emqp.read_as_client, emqp.read_as_worker):
        assert read(given) == message
    assert emqp.read_as_scheduler(given) == message


@pytest.mark.conforms("EMQP-6")
def test_reply_as_the_document_shows_it() -> None:
    given = [T, b"REPLY", b"m1", b"42"]
    assert emqp.read_as_client(given) == emqp.read_from_worker(given) == emqp.Reply(b"m1", [b"42"])
    assert emqp.write_reply(b"m1", [b"42"]) == given
    assert emqp.write_from_worker(emqp.Reply(b"m1", [b"42"])) == given


@pytest.mark.conforms("EMQP-6")
def test_reply_that_names_its_request() -> None:
    given = [T, b"REPLY", b"m2", b'{"value": 42}', b"m1"]
    message = emqp.Reply(b"m2", [b'{"value": 42}'], b"m1")
    assert emqp.read_from_worker([b"peer", b"", *given], 2) == message
    assert emqp.read_as_client(given) == emqp.read_as_scheduler(given) == message
    assert emqp.write_from_worker(message) == given
    assert emqp.write_result(b"m2", [b'{"value": 42}'], b"m1") == given


def test_receipt() -> None:
    given = emqp.write_receipt(b"m2", b"m1")
    assert given == [T, b"REPLY", b"m2", b"m1"]
    reply = emqp.read_as_client(given)
    assert isinstance(reply, emqp.Reply)
    assert emqp.receipt_of(reply) == b"m1"
    assert emqp.receipt_of(emqp.Reply(b"m2", [b"m1"], b"m0")) == b""
    assert emqp.receipt_of(emqp.Reply(b"m2", [b""])) == b""
    assert emqp.receipt_of(emqp.Reply(b"m2", [b"x" * 256])) == b""
    for named in (b"x", b"x" * 255):
        assert emqp.receipt_of(emqp.Reply(b"m2", [named])) == named


@pytest.mark.conforms("EMQP-7")
def test_heartbeat() -> None:
    given = [T, b"HEARTBEAT", b"m1", b"1510000000.25"]
    message = emqp.Heartbeat(b"m1", 1510000000.25)
    assert emqp.write_heartbeat(b"m1", 1510000000.25) == emqp.write_from_client(message) == given
    assert emqp.read_from_worker(given) == emqp.read_as_worker(given) == message
    assert emqp.read_from_client([*given[:3], b"1510000000"]) == emqp.Heartbeat(b"m1", 1510000000.0)


def test_the_longest_timestamp() -> None:
    given = [T, b"HEARTBEAT", b"m1", b"1.5".rjust(64, b"0")]
    assert emqp.read_from_worker(given) == emqp.Heartbeat(b"m1", 1.5)


@pytest.mark.parametrize("stamp", [b"", b"now", b"nan", b"inf", b"1e999", b"\xff", b"1" * 65, Opaque(b"1")])
def test_bad_timestamp(stamp: bytes) -> None:
    assert refused(lambda: emqp.read_from_worker([T, b"HEARTBEAT", b"m1", stamp])) == "bad_timestamp"


@pytest.mark.conforms("EMQP-8")
def test_disconnect() -> None:
    given = [T, b"DISCONNECT", b"m1"]
    message = emqp.Disconnect(b"m1")
    assert emqp.write_disconnect(b"m1") == emqp.write_from_admin(message) == given
    assert emqp.write_from_client(message) == given
    for read in (emqp.read_from_client, emqp.read_from_worker, emqp.read_from_admin, emqp.read_as_worker):
        assert read(given) == message


@pytest.mark.conforms("EMQP-9")
@pytest.mark.parametrize("word", [b"KBAI", b"KBYE"])
def test_goodbye(word: bytes) -> None:
    given = [T, word, b"m1"]
    message = emqp.Goodbye(b"m1")
    assert emqp.write_goodbye(b"m1", word) == emqp.write_from_worker(message, word) == given
    for read in (emqp.read_from_client, emqp.read_from_worker, emqp.read_as_client, emqp.read_as_worker):
        assert read(given) == message
    assert emqp.write_goodbye(b"m1")[1] == emqp.write_from_client(message)[1] == b"KBYE"


@pytest.mark.conforms("EMQP-10")
def test_request() -> None:
    given = [T, b"REQUEST", b"m1", b"default", b"", b'["run", {}]']
    message = emqp.Request(b"m1", b"default", emqp.NO_HEADERS, [b'["run", {}]'])
    assert emqp.read_from_client(given) == emqp.read_as_worker(given) == message
    assert emqp.read_from_client([b"peer", b"", *given], 2) == message
    assert emqp.write_from_client(message) == given
    assert emqp.write_order(b"m1", b"default", emqp.NO_HEADERS, [b'["run", {}]']) == given
    assert emqp.write_order(b"m1", b"default", emqp.NO_HEADERS, [])[5] == b""


@pytest.mark.conforms("EMQP-11")
def test_publish_of_seven_frames() -> None:
    given = [T, b"PUBLISH", b"m1", b"news", b"guarantee", b"hello"]
    message = emqp.Publish(b"m1", b"news", emqp.Headers(guarantee=True), [b"hello"])
    assert emqp.read_from_client(given) == message
    assert emqp.write_from_client(message) == given
    bare = emqp.Publish(b"m1", b"news", emqp.NO_HEADERS, [b"hello"])
    assert emqp.write_from_client(bare, document=True) == [T, b"PUBLISH", b"m1", b"news", b"", b"hello"]
    assert emqp.read_from_client([T, b"PUBLISH", b"m1", b"news", b"", b"hello"]) == bare


@pytest.mark.conforms("EMQP-12")
def test_publish_of_six_frames() -> None:
    given = [T, b"PUBLISH", b"m1", b"news", b"hello"]
    message = emqp.Publish(b"m1", b"news", emqp.NO_HEADERS, [b"hello"])
    assert emqp.read_from_client(given) == message
    assert emqp.write_from_client(message) == given


def test_publication() -> None:
    assert emqp.write_publication(b"news", [b"hello"]) == [b"news", b"hello"]
    assert emqp.read_publication([b"news", b"hello"]) == emqp.Publication(b"news", [b"hello"])
    assert refused(lambda: emqp.read_publication([b"news"])) == "length"
    assert refused(lambda: emqp.read_publication([b"", b"hello"])) == "bad_name"


@pytest.mark.conforms("EMQP-15")
def test_inform_of_a_scheduler() -> None:
    given = [T, b"INFORM", b"m1", b"", b"scheduler"]
    message = emqp.Inform(b"m1", "scheduler")
    assert emqp.read_from_client(given) == message
    assert emqp.write_from_client(message) == given
    # The queues are unused there: whatever they are.
    assert emqp.read_from_client([T, b"INFORM", b"m1", b"anything", b"scheduler"]) == message
    novel = [T, b"INFORM", b"m1", b"x" * (64 * 1024 + 1), b"scheduler"]
    assert refused(lambda: emqp.read_from_client(novel)) == "too_long"


@pytest.mark.conforms("EMQP-16")
def test_inform_of_a_worker() -> None:
    given = [T, b"INFORM", b"m1", b'[[40,"email"],[10,"default"]]', b"worker"]
    message = emqp.Inform(b"m1", "worker", (emqp.Queue(40, b"email"), emqp.Queue(10, b"default")))
    assert emqp.read_from_worker(given) == message
    assert emqp.write_from_worker(message) == given
    assert emqp.write_from_worker(emqp.Inform(b"m1", "worker"))[3] == b""


@pytest.mark.conforms("EMQP-16")
@pytest.mark.parametrize(
    ("text", "queues"),
    [
        (b"", []),
        (b"[]", []),
        (b'[[10, "default"]]', [(10, b"default")]),
        (b"[40, 'email']", [(40, b"email")]),
        (b"[40, 'email'], [10, 'x']", [(40, b"email"), (10, b"x")]),
        (b"[40,\"email\"],[10,'x']", [(40, b"email"), (10, b"x")]),
        (b'[[0, "caf\xc3\xa9"]]', [(0, "café".encode())]),
    ],
)
def test_queues(text: bytes, queues: list[tuple[int, bytes]]) -> None:
    assert read_queues(text) == tuple(emqp.Queue(*queue) for queue in queues)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"default", "bad_queues"),
        (b"\xff", "bad_queues"),
        (b'[["default", 10]]', "bad_queues"),
        (b'[[10, "default"]', "bad_queues"),
        (b"[40, 'email'],", "bad_queues"),
        (b"[40, 'email'] [10, 'x']", "bad_queues"),
        (b"[40, 'email']; [10, 'x']", "bad_queues"),
        (b"[-1, 'email']", "bad_queues"),
        (b'[[-1, "email"]]', "bad_queues"),
        (b'[[%d, "email"]]' % (MAX_WEIGHT + 1), "bad_queues"),
        (b"[" * 20_000, "bad_queues"),
        (b"[" + b",".join([b'[1,"q"]'] * (MAX_QUEUES + 1)) + b"]", "bad_queues"),
        (b'[[1, ""]]', "bad_name"),
        (b"[1, '']", "bad_name"),
        (b"[1, '%s']" % (b"x" * 256), "bad_name"),
        (b" " * 70_000, "too_long"),
    ],
)
def test_bad_queues(text: bytes, reason: str) -> None:
    assert refused(lambda: emqp.read_from_worker([T, b"INFORM", b"m1", text, b"worker"])) == reason


@pytest.mark.parametrize("role", [b"", b"client", b"Worker", Opaque(b"worker")])
def test_bad_role(role: bytes) -> None:
    assert refused(lambda: emqp.read_from_worker([T, b"INFORM", b"m1", b"", role])) == "bad_role"


@pytest.mark.conforms("EMQP-17")
def test_ready() -> None:
    given = [T, b"READY", b"m1"]
    assert emqp.read_from_worker(given) == emqp.Ready(b"m1")
    assert emqp.write_from_worker(emqp.Ready(b"m1")) == given


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (b"HELLO", emqp.Hello(b"m1")),
        (b"STATUS", emqp.Status(b"m1")),
        (b"ROUTER_SHOW_WORKERS", emqp.ShowWorkers(b"m1")),
        (b"ROUTER_SHOW_SCHEDULERS", emqp.ShowSchedulers(b"m1")),
        (b"DISCONNECT", emqp.Disconnect(b"m1")),
    ],
)
def test_admin(word: bytes, message: emqp.AdminMessage) -> None:
    assert emqp.read_from_admin([T, word, b"m1"]) == message
    assert emqp.write_from_admin(message) == [T, word, b"m1"]
    assert refused(lambda: emqp.read_from_admin([T, word, b"m1", b""])) == "length"


@pytest.mark.conforms("EMQP-38")
@pytest.mark.parametrize("msg_id", [b"", b"x" * 256, Opaque(b"m1")])
def test_every_message_has_an_id(msg_id: bytes) -> None:
    tails: dict[bytes, list[bytes]] = {
        b"REQUEST": [b"q", b"", b""],
        b"PUBLISH": [b"t", b""],
        b"SCHEDULE": [b"q", b"", b""],
        b"UNSCHEDULE": [b"q", b"", b""],
        b"INFORM": [b"", b"scheduler"],
        b"ACK": [b"m0"],
        b"HEARTBEAT": [b"1"],
        b"KBAI": [],
    }
    for word, tail in tails.items():
        assert refused(lambda: emqp.read_from_client([T, word, msg_id, *tail])) == "bad_id"  # noqa: B023
    assert refused(lambda: emqp.read_from_worker([T, b"REPLY", msg_id, b""])) == "bad_id"
    assert refused(lambda: emqp.read_from_worker([T, b"READY", msg_id])) == "bad_id"
    assert refused(lambda: emqp.read_from_worker([T, b"REPLY", b"m1", b"", msg_id])) == "bad_id"
    assert refused(lambda: emqp.read_from_worker([T, b"ACK", b"m1", msg_id])) == "bad_id"


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "wrong_protocol"),
        ([b"eMQP/2.0", b"KBYE", b"m1"], "wrong_protocol"),
        ([Opaque(T), b"KBYE", b"m1"], "wrong_protocol"),
        ([T], "short"),
        ([T, b"DANCE", b"m1"], "unknown_command"),
        ([T, b"kbye", b"m1"], "unknown_command"),
        ([T, Opaque(b"KBYE"), b"m1"], "unknown_command"),
        ([T, b"KBYE"], "length"),
        ([T, b"KBYE", b"m1", b""], "length"),
        ([T, b"ACK", b"m1"], "length"),
        ([T, b"HEARTBEAT", b"m1"], "length"),
        ([T, b"INFORM", b"m1", b""], "length"),
    ],
)
def test_malformed(frames: list[bytes], reason: str) -> None:
    assert refused(lambda: emqp.read_from_client(frames)) == reason
    assert refused(lambda: emqp.read_from_worker(frames)) == reason


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([b"REQUEST", b"m1", b"q", b""], "length"),
        ([b"REQUEST", b"m1", b"q", b"", b"a", b"b"], "length"),
        ([b"REQUEST", b"m1", b"", b"", b"a"], "bad_name"),
        ([b"REQUEST", b"m1", b"q" * 256, b"", b"a"], "bad_name"),
        ([b"REQUEST", b"m1", b"q", b"retry-count:x", b"a"], "bad_header"),
        ([b"REQUEST", b"m1", b"q", Opaque(b"," * 70_000), b"a"], "too_long"),
        ([b"PUBLISH", b"m1", b"t"], "length"),
        ([b"PUBLISH", b"m1", b"t", b"", b"a", b"b"], "length"),
        ([b"PUBLISH", b"m1", b"", b"a"], "bad_name"),
        ([b"READY", b"m1"], "unknown_command"),
        ([b"REPLY", b"m1", b"a"], "unknown_command"),
    ],
)
def test_malformed_from_clients(frames: list[bytes], reason: str) -> None:
    assert refused(lambda: emqp.read_from_client([T, *frames])) == reason


@pytest.mark.parametrize("frames", [[b"REPLY", b"m1"], [b"REPLY", b"m1", b"", b"m0", b""]])
def test_replies_of_the_wrong_length(frames: list[bytes]) -> None:
    assert refused(lambda: emqp.read_from_worker([T, *frames])) == "length"
    assert refused(lambda: emqp.read_as_client([T, *frames])) == "length"


def test_bodies_are_passed_on_untouched() -> None:
    body = Opaque(b"large")
    request = emqp.read_from_client([T, b"REQUEST", b"m1", b"default", b"", body])
    assert isinstance(request, emqp.Request)
    assert emqp.write_order(b"m1", b"default", request.headers, request.body)[5] is body
    reply = emqp.read_from_worker([T, b"REPLY", b"m2", body, b"m1"])
    assert isinstance(reply, emqp.Reply)
    assert emqp.write_result(b"m3", reply.body, b"m1")[3] is body
    publish = emqp.read_from_client([T, b"PUBLISH", b"m1", b"news", body])
    assert isinstance(publish, emqp.Publish)
    assert emqp.write_publication(b"news", publish.body)[1] is body
    assert body.copies == 0


@pytest.mark.parametrize(
    "write",
    [
        lambda: emqp.write_order(b"m1", b"q", emqp.NO_HEADERS, [b"a", b"b"]),
        lambda: emqp.write_result(b"m1", [b"a", b"b"], b"m0"),
        lambda: emqp.write_from_client(emqp.Request(b"", b"q", emqp.NO_HEADERS, [])),
        lambda: emqp.write_from_client(emqp.Request(b"m1", b"", emqp.NO_HEADERS, [])),
        lambda: emqp.write_from_client(emqp.Publish(b"m1", b"", emqp.NO_HEADERS, [])),
        lambda: emqp.write_from_client(emqp.Goodbye(b"")),
        lambda: emqp.write_from_worker(emqp.Ready(b"x" * 256)),
        lambda: emqp.write_from_worker(emqp.Reply(b"", [b"x"])),
        lambda: emqp.write_from_worker(emqp.Reply(b"", [b"x"], b"m0")),
        lambda: emqp.write_from_worker(emqp.Reply(b"m1", [b"x"], b"x" * 256)),
        lambda: emqp.write_from_worker(emqp.Inform(b"m1", "worker", (emqp.Queue(-1, b"q"),))),
        lambda: emqp.write_from_worker(emqp.Inform(b"m1", "worker", (emqp.Queue(1, b""),))),
        lambda: emqp.write_from_worker(
            emqp.Inform(b"m1", "worker", (emqp.Queue(1, b"q"),) * (MAX_QUEUES + 1))
        ),
        lambda: emqp.write_from_admin(emqp.Status(b"")),
    ],
)
def test_what_we_must_not_send(write: object) -> None:
    assert callable(write)
    with pytest.raises(LocalProtocolError):
        write()


def test_queues_and_weights_up_to_their_limits() -> None:
    heaviest = (emqp.Queue(0, b"a"), emqp.Queue(1_000_000, b"b"))
    text = b'[[0,"a"],[1000000,"b"]]'
    assert write_queues(heaviest) == text
    assert read_queues(text) == heaviest
    assert read_queues(b"[0, 'a'], [1000000, 'b']") == heaviest
    most = tuple(emqp.Queue(1, b"q%d" % number) for number in range(1024))
    assert read_queues(write_queues(most)) == most
    for wrong in ((*most, emqp.Queue(1, b"more")), (emqp.Queue(-1, b"a"),), (emqp.Queue(1_000_001, b"a"),)):
        with pytest.raises(LocalProtocolError):
            write_queues(wrong)
    for text in (b'[[-1,"a"]]', b'[[1000001,"a"]]', b"[1000001, 'a']"):
        assert refused(partial(read_queues, text)) == "bad_queues"
    assert write_queues(()) == b""
