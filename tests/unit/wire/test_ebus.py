"""EBUS 1.0, frame by frame."""

from __future__ import annotations

import pytest

from polybus.errors import LocalProtocolError, RemoteProtocolError
from polybus.wire import ebus
from polybus.wire.frames import MAX_BODY_FRAMES
from support.wire_frames import Opaque, refused

C, W = b"EBC01", b"EBW01"


@pytest.mark.conforms("EBUS-2")
@pytest.mark.parametrize("word", [b"REQUEST", b"REQ"])
def test_request(word: bytes) -> None:
    given = [C, word, b"echo", b"id-1", b'{"a": 1}']
    message = ebus.Request(b"echo", b"id-1", [b'{"a": 1}'])
    assert ebus.read_from_client(given) == message
    assert ebus.read_from_client([b"peer", b"", *given], 2) == message
    assert ebus.write_from_client(message, word) == given
    assert ebus.write_request(b"echo", b"id-1", [b'{"a": 1}'], word=word) == given


@pytest.mark.conforms("EBUS-25")
def test_request_as_the_document_shows_it() -> None:
    given = [C, b"REQUEST", b"echo", b"id-1", b"data"]
    assert ebus.write_document_request(b"echo", b"id-1", [b"data"]) == given
    assert ebus.write_document_request(b"echo", b"id-1", []) == given[:4]
    assert ebus.read_as_worker(given) == ebus.Request(b"echo", b"id-1", [b"data"])
    with pytest.raises(LocalProtocolError, match="one body frame"):
        ebus.write_document_request(b"echo", b"id-1", [b"a", b"b"])


def test_request_to_a_worker() -> None:
    given = [C, b"REQUEST", b"echo", b"id-1", b"data", b"1500"]
    assert ebus.read_as_worker(given) == ebus.Request(b"echo", b"id-1", [b"data"], 1500)
    assert ebus.write_request(b"echo", b"id-1", [b"data"], 1500) == given


@pytest.mark.conforms("EBUS-33")
def test_order_to_a_public_worker_has_no_service() -> None:
    given = [C, b"REQ", b"id-1", b"data", b"1500"]
    assert ebus.read_as_worker(given) == ebus.Order(b"id-1", [b"data"], 1500)
    assert ebus.read_as_worker([b"", *given], 1) == ebus.Order(b"id-1", [b"data"], 1500)
    assert ebus.read_as_worker(given[:4]) == ebus.Order(b"id-1", [b"data"])
    assert ebus.read_as_worker(given[:3]) == ebus.Order(b"id-1", [])
    assert ebus.write_order(b"id-1", [b"data"], 1500) == given
    assert ebus.write_order(b"id-1", [], 1500) == [C, b"REQ", b"id-1", b"", b"1500"]
    assert refused(lambda: ebus.read_as_worker(given[:2])) == "length"
    assert refused(lambda: ebus.read_as_worker([*given, b"more"])) == "length"


def test_request_without_data() -> None:
    given = [C, b"REQ", b"echo", b"id-1"]
    assert ebus.read_from_client(given) == ebus.Request(b"echo", b"id-1", [])
    assert ebus.write_from_client(ebus.Request(b"echo", b"id-1", [])) == given
    # A worker always gets a data frame.
    assert ebus.write_request(b"echo", b"id-1", [], word=b"REQ") == [*given, b""]


def test_request_with_a_time_to_live() -> None:
    given = [C, b"REQ", b"echo", b"id-1", b"data", b"1500"]
    message = ebus.Request(b"echo", b"id-1", [b"data"], 1500)
    assert ebus.read_from_client(given) == message
    assert ebus.write_from_client(message) == given
    assert ebus.write_request(b"echo", b"id-1", [], 0, b"REQ") == [C, b"REQ", b"echo", b"id-1", b"", b"0"]
    assert ebus.read_from_client([*given[:5], b""]) == ebus.Request(b"echo", b"id-1", [b"data"])
    assert ebus.read_ttl(b"2147483648") == ebus.MAX_TTL_MS


@pytest.mark.parametrize(
    ("ttl", "meant"),
    [
        (b"1500.5", 1500),
        (b"1100.0000000000002", 1100),
        (b"null", None),
        (b"undefined", None),
        (b"NaN", None),
        (b"Infinity", None),
    ],
)
def test_numbers_as_node_writes_them(ttl: bytes, meant: int | None) -> None:
    assert ebus.read_ttl(ttl) == meant


@pytest.mark.parametrize(
    "ttl",
    [
        *(b"-1", b"1.", b".5", b"1.5x", b"1." + b"0" * 21, b" 1", b"1e3", b"x"),
        *(b"2147483649", b"2147483649.5", b"00000000001", Opaque(b"5")),
    ],
)
def test_bad_time_to_live(ttl: bytes) -> None:
    given = [C, b"REQ", b"echo", b"id-1", b"data", ttl]
    assert refused(lambda: ebus.read_from_client(given)) == "bad_ttl"


@pytest.mark.conforms("EBUS-2")
@pytest.mark.parametrize("service", [b"", b"x" * 256, b"a\nb", b"\xff", Opaque(b"echo")])
def test_request_names_a_service(service: bytes) -> None:
    assert refused(lambda: ebus.read_from_client([C, b"REQ", service, b"id-1"])) == "bad_name"


@pytest.mark.conforms("EBUS-8")
@pytest.mark.parametrize("request_id", [b"", b"x" * 256, Opaque(b"id-1")])
def test_request_has_an_id(request_id: bytes) -> None:
    assert refused(lambda: ebus.read_from_client([C, b"REQ", b"echo", request_id])) == "bad_id"


@pytest.mark.conforms("EBUS-20")
def test_heartbeat() -> None:
    assert ebus.read_as_worker([W, b"HEARTBEAT"]) == ebus.Heartbeat()
    assert ebus.write_heartbeat(W) == [W, b"HEARTBEAT"]


@pytest.mark.conforms("EBUS-21")
def test_ping() -> None:
    assert ebus.read_as_worker([W, b"PING"]) == ebus.Ping()
    assert ebus.write_ping(W) == [W, b"PING"]


@pytest.mark.conforms("EBUS-22")
def test_disconnect() -> None:
    assert ebus.read_as_worker([W, b"DISCONNECT"]) == ebus.Disconnect()
    assert ebus.write_disconnect(W) == [W, b"DISCONNECT"]


@pytest.mark.parametrize("beat", [ebus.Heartbeat(), ebus.Ping(), ebus.Disconnect()])
def test_beats_in_every_direction(beat: ebus.Beat) -> None:
    from_client, from_worker = ebus.write_from_client(beat), ebus.write_from_worker(beat)
    assert from_client[0] == C
    assert from_worker[0] == W
    assert ebus.read_from_client(from_client) == beat
    assert ebus.read_from_worker(from_worker) == beat
    assert ebus.read_as_client(from_worker) == beat
    # Public workers hear the broker as a client; the document shows the worker's tag.
    assert ebus.read_as_worker(from_client) == ebus.read_as_worker(from_worker) == beat
    assert ebus.read_from_worker([*from_worker, b"extra"]) == beat
    assert refused(lambda: ebus.read_from_worker(from_worker + [b""] * MAX_BODY_FRAMES)) == "length"


@pytest.mark.conforms("EBUS-31")
def test_reject() -> None:
    given = [W, b"REJECT", b"id-1", b"no"]
    message = ebus.Reject(b"id-1", [b"no"])
    assert ebus.read_from_worker(given) == ebus.read_as_client(given) == message
    assert ebus.write_from_worker(message) == ebus.write_reject(b"id-1", [b"no"]) == given
    # Without data it says that the request expired.
    assert ebus.read_as_client(given[:3]) == ebus.Reject(b"id-1", [])
    assert ebus.write_reject(b"id-1", []) == given[:3]


@pytest.mark.conforms("EBUS-23")
def test_reject_as_the_document_shows_it() -> None:
    assert ebus.read_as_worker([W, b"REJECT"]) == ebus.Reject(b"", [])
    assert ebus.write_reject(b"", []) == ebus.write_from_worker(ebus.Reject(b"", [])) == [W, b"REJECT"]
    assert refused(lambda: ebus.read_as_client([W, b"REJECT", b""])) == "bad_id"
    with pytest.raises(LocalProtocolError, match="needs the id"):
        ebus.write_reject(b"", [b"data"])


@pytest.mark.conforms("EBUS-24")
def test_reply() -> None:
    given = [W, b"REPLY", b"id-1", b"[1]"]
    message = ebus.Reply(b"id-1", [b"[1]"])
    assert ebus.read_from_worker(given) == ebus.read_as_client(given) == message
    assert ebus.read_from_worker([b"peer", *given], 1) == message
    assert ebus.write_from_worker(message) == ebus.write_reply(b"id-1", [b"[1]"]) == given
    assert ebus.read_as_client(given[:3]) == ebus.Reply(b"id-1", [])
    assert ebus.write_reply(b"id-1", []) == given[:3]


def test_ready() -> None:
    for unused in (b"whatever", b"null", b""):
        assert ebus.read_from_worker([W, b"READY", unused, b"echo"]) == ebus.Ready(b"echo")
    assert ebus.read_from_worker([W, b"READY", b"", b"echo", b"16"]) == ebus.Ready(b"echo", 16)
    assert ebus.read_from_worker([W, b"READY", b"echo"]) == ebus.Ready(b"echo", upstream=False)
    assert ebus.write_from_worker(ebus.Ready(b"echo")) == [W, b"READY", b"", b"echo"]
    assert ebus.write_from_worker(ebus.Ready(b"echo", 1)) == [W, b"READY", b"", b"echo", b"1"]
    assert ebus.write_from_worker(ebus.Ready(b"echo", 16)) == [W, b"READY", b"", b"echo", b"16"]
    assert ebus.write_from_worker(ebus.Ready(b"echo", upstream=False)) == [W, b"READY", b"echo"]
    # The short form has no credit, so a number in its place is a service of that name.
    assert ebus.read_from_worker([W, b"READY", b"a", b"2"]) == ebus.Ready(b"2")


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        ([], "length"),
        ([b""], "bad_name"),
        ([b"echo", b""], "bad_name"),
        ([Opaque(b"x" * 70_000), b"echo"], "too_long"),
        ([b"x" * 70_000, b"echo", b"1"], "too_long"),
        ([b"", b"echo", b"0"], "bad_credit"),
        ([b"", b"echo", b"1000001"], "bad_credit"),
        ([b"", b"echo", b"00000001"], "bad_credit"),
        ([b"", b"echo", b""], "bad_credit"),
        ([b"", b"echo", Opaque(b"1")], "bad_credit"),
        ([b"", b"echo", b"1", b""], "length"),
    ],
)
def test_bad_ready(tail: list[bytes], reason: str) -> None:
    assert refused(lambda: ebus.read_from_worker([W, b"READY", *tail])) == reason


def test_cancel() -> None:
    given = [C, b"CANCEL", b"echo", b"id-1"]
    assert ebus.read_from_client(given) == ebus.Cancel(b"echo", b"id-1")
    assert ebus.write_from_client(ebus.Cancel(b"echo", b"id-1")) == given
    assert ebus.write_cancel_order(b"id-1") == [C, b"CANCEL", b"id-1"]
    assert ebus.read_as_worker([C, b"CANCEL", b"id-1"]) == ebus.CancelOrder(b"id-1")
    assert refused(lambda: ebus.read_from_client([C, b"CANCEL", b"id-1"])) == "length"
    assert refused(lambda: ebus.read_as_worker(given)) == "length"


def test_a_client_rejects_an_answer_that_it_does_not_know() -> None:
    given = [C, b"REJECT", b"id-1", b"no request with id-1"]
    message = ebus.Reject(b"id-1", [b"no request with id-1"])
    assert ebus.read_from_client([b"peer", b"", *given], 2) == message
    assert ebus.read_from_worker(given) == message
    assert ebus.write_from_client(message) == given
    assert ebus.read_from_client([C, b"REJECT"]) == ebus.Reject(b"", [])
    assert ebus.write_from_client(ebus.Reject(b"", [])) == [C, b"REJECT"]


@pytest.mark.conforms("EBUS-27")
@pytest.mark.parametrize(
    ("word", "query"), [(b"SERVICES", ebus.ServicesQuery), (b"WORKERS", ebus.WorkersQuery)]
)
def test_queries(word: bytes, query: type[ebus.ServicesQuery]) -> None:
    assert ebus.read_from_client([C, word]) == query(b"")
    assert ebus.read_from_client([C, word, b""]) == query(b"")
    assert ebus.read_from_client([C, word, b"id-1"]) == query(b"id-1")
    assert ebus.write_from_client(query()) == [C, word]
    # Public brokers look for the id where a request has it.
    assert ebus.read_from_client([C, word, b"", b"id-1"]) == query(b"id-1")
    assert ebus.read_from_client([C, word, b"null", b""]) == query(b"")
    assert ebus.write_from_client(query(b"id-1")) == [C, word, b"", b"id-1"]
    assert refused(lambda: ebus.read_from_client([C, word, b"", b"id-1", b""])) == "length"
    assert refused(lambda: ebus.read_from_client([C, word, b"x" * 256])) == "bad_id"


@pytest.mark.conforms("EBUS-27")
@pytest.mark.parametrize("word", [b"SERVICES", b"WORKERS"])
def test_listings(word: bytes) -> None:
    given = [W, word, b"id-1", b'["echo"]']
    message = ebus.Listing(word, b"id-1", [b'["echo"]'])
    assert ebus.read_as_client(given) == ebus.read_as_client([b"", *given], 1) == message
    assert ebus.read_as_worker(given) == message
    assert ebus.read_as_client([W, word, b"", b"[]"]) == ebus.Listing(word, b"", [b"[]"])
    assert ebus.write_listing(word, b"id-1", [b'["echo"]']) == given
    assert refused(lambda: ebus.read_as_client([W, word])) == "length"
    assert refused(lambda: ebus.read_as_client([*given, b""])) == "length"
    assert refused(lambda: ebus.read_from_worker(given)) == "wrong_sender"


@pytest.mark.conforms("EBUS-26")
def test_a_worker_may_be_a_client() -> None:
    asked = ebus.Request(b"other", b"id-9", [b"data"])
    assert ebus.write_from_worker(asked) == [C, b"REQ", b"other", b"id-9", b"data"]
    assert ebus.read_from_worker([C, b"REQ", b"other", b"id-9", b"data"]) == asked
    assert ebus.write_from_worker(ebus.Cancel(b"other", b"id-9"))[0] == C
    assert ebus.read_as_worker([W, b"REPLY", b"id-9", b"1"]) == ebus.Reply(b"id-9", [b"1"])


@pytest.mark.conforms("EBUS-4")
def test_the_wrong_sender_is_refused() -> None:
    assert refused(lambda: ebus.read_from_client([W, b"PING"])) == "wrong_sender"
    assert refused(lambda: ebus.read_as_client([C, b"REPLY", b"id-1"])) == "wrong_sender"
    for tag, word in [(W, b"REQ"), (W, b"CANCEL"), (C, b"READY"), (C, b"REPLY"), (b"EBX01", b"PING")]:
        assert refused(lambda: ebus.read_from_worker([tag, word, b"a", b"b"])) == "wrong_sender"  # noqa: B023
    for tag, word in [(W, b"REQUEST"), (C, b"REPLY"), (C, b"REJECT"), (b"", b"HEARTBEAT")]:
        assert refused(lambda: ebus.read_as_worker([tag, word, b"a", b"b"])) == "wrong_sender"  # noqa: B023
    assert refused(lambda: ebus.read_from_worker([Opaque(W), b"PING"])) == "wrong_sender"


@pytest.mark.conforms("EBUS-19")
def test_publish_names_a_channel() -> None:
    given = [b"news.sport", b"one", b"two"]
    assert ebus.read_publish(given) == ebus.Publish(b"news.sport", [b"one", b"two"])
    assert ebus.write_publish(b"news.sport", [b"one", b"two"]) == given
    assert refused(lambda: ebus.read_publish([])) == "short"
    assert refused(lambda: ebus.read_publish([b"", b"one"])) == "bad_name"
    assert refused(lambda: ebus.read_publish([b"a", *[b""] * (MAX_BODY_FRAMES + 1)])) == "too_many_frames"


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "wrong_sender"),
        ([C], "short"),
        ([C, b"DANCE"], "unknown_command"),
        ([C, b"req", b"echo", b"id-1"], "unknown_command"),
        ([C, Opaque(b"REQ"), b"echo", b"id-1"], "unknown_command"),
        ([C, b"REQ", b"echo"], "length"),
        ([C, b"REQ", b"echo", b"id-1", b"data", b"1", b"more"], "length"),
    ],
)
def test_malformed(frames: list[bytes], reason: str) -> None:
    assert refused(lambda: ebus.read_from_client(frames)) == reason
    assert refused(lambda: ebus.read_from_worker(frames)) == reason


@pytest.mark.parametrize(
    "frames", [[W, b"REPLY"], [W, b"REPLY", b"id-1", b"a", b"b"], [W, b"REJECT", b"i", b"", b""]]
)
def test_answers_of_the_wrong_length(frames: list[bytes]) -> None:
    for read in (ebus.read_from_worker, ebus.read_as_client, ebus.read_as_worker):
        assert refused(lambda: read(frames)) == "length"  # noqa: B023


def test_bodies_are_passed_on_untouched() -> None:
    body = Opaque(b"large")
    request = ebus.read_from_client([C, b"REQ", b"echo", b"id-1", body])
    assert isinstance(request, ebus.Request)
    assert ebus.write_request(b"echo", b"id-1", request.body)[4] is body
    assert ebus.write_order(b"id-1", request.body, 1)[3] is body
    reply = ebus.read_from_worker([W, b"REPLY", b"id-1", body])
    assert isinstance(reply, ebus.Reply)
    assert ebus.write_reply(b"id-1", reply.body)[3] is body
    assert body.copies == 0


@pytest.mark.parametrize(
    "write",
    [
        lambda: ebus.write_request(b"echo", b"id-1", [b"a", b"b"]),
        lambda: ebus.write_order(b"id-1", [b"a", b"b"], 1),
        lambda: ebus.write_listing(b"SERVICES", b"id-1", [b"a", b"b"]),
        lambda: ebus.write_from_client(ebus.Reject(b"id-1", [b"a", b"b"])),
        lambda: ebus.write_reply(b"id-1", [b"a", b"b"]),
        lambda: ebus.write_reject(b"id-1", [b"a", b"b"]),
        lambda: ebus.write_from_client(ebus.Request(b"", b"id-1", [])),
        lambda: ebus.write_from_client(ebus.Request(b"echo", b"", [])),
        lambda: ebus.write_from_client(ebus.Request(b"echo", b"id-1", [], -1)),
        lambda: ebus.write_from_client(ebus.Request(b"echo", b"id-1", [], ebus.MAX_TTL_MS + 1)),
        lambda: ebus.write_from_worker(ebus.Ready(b"echo", 0)),
        lambda: ebus.write_from_worker(ebus.Ready(b"")),
        lambda: ebus.write_from_worker(ebus.Reply(b"", [])),
        lambda: ebus.write_publish(b"", []),
    ],
)
def test_what_we_must_not_send(write: object) -> None:
    assert callable(write)
    with pytest.raises(LocalProtocolError):
        write()


@pytest.mark.parametrize("ttl_ms", [0, 1, ebus.MAX_TTL_MS])
def test_the_shortest_and_the_longest_time_to_live(ttl_ms: int) -> None:
    for body in ([], [b"data"]):
        frames = ebus.write_from_client(ebus.Request(b"echo", b"id-1", body, ttl_ms))
        assert frames == [C, b"REQ", b"echo", b"id-1", *(body or [b""]), b"%d" % ttl_ms]
        assert ebus.read_from_client(frames) == ebus.Request(b"echo", b"id-1", body or [b""], ttl_ms)


@pytest.mark.parametrize(
    ("ttl", "meant"),
    [(b"0", 0), (b"0000000007", 7), (b"0.5", 0), (b"7." + b"0" * 20, 7), (b"2147483648.9", ebus.MAX_TTL_MS)],
)
def test_a_time_to_live_at_the_limits_of_its_form(ttl: bytes, meant: int) -> None:
    assert ebus.read_ttl(ttl) == meant


@pytest.mark.parametrize("credit", [1, ebus.MAX_CREDIT])
def test_the_smallest_and_the_largest_credit(credit: int) -> None:
    frames = ebus.write_from_worker(ebus.Ready(b"echo", credit))
    assert frames == [W, b"READY", b"", b"echo", b"%d" % credit]
    assert ebus.read_from_worker(frames) == ebus.Ready(b"echo", credit)
    with pytest.raises(LocalProtocolError):
        ebus.write_from_worker(ebus.Ready(b"echo", ebus.MAX_CREDIT + 1))
    for wrong in (b"0", b"%d" % (ebus.MAX_CREDIT + 1), b"00000001", b"", Opaque(b"1")):
        assert refused(lambda wrong=wrong: ebus.read_from_worker([*frames[:4], wrong])) == "bad_credit"


@pytest.mark.parametrize(
    ("frames", "least", "most"),
    [
        ([C, b"REQ", b"echo", b"id"], 4, 6),
        ([C, b"CANCEL", b"echo", b"id"], 4, 4),
        ([C, b"REJECT", b"id"], 2, 4),
        ([C, b"SERVICES"], 2, 4),
        ([C, b"WORKERS"], 2, 4),
        ([C, b"HEARTBEAT"], 2, MAX_BODY_FRAMES),
    ],
)
def test_how_many_frames_a_client_may_send(frames: list[bytes], least: int, most: int) -> None:
    whole = [*frames, *[b"1"] * (most - len(frames))]
    for count in (least, most):
        ebus.read_from_client(whole[:count])
        ebus.read_from_client([b"peer", b"", *whole[:count]], 2)
    for wrong in (whole[: least - 1], [*whole, b"1"]):
        if len(wrong) > 1:
            assert refused(lambda wrong=wrong: ebus.read_from_client(wrong)) == "length"
        assert refused(lambda wrong=wrong: ebus.read_from_client([b"peer", *wrong], 1)) in (
            "length",
            "short",
            "unknown_command",
        )


@pytest.mark.parametrize(
    ("frames", "least", "most"),
    [
        ([W, b"READY", b"echo"], 3, 5),
        ([W, b"REPLY", b"id"], 3, 4),
        ([W, b"REJECT", b"id"], 2, 4),
        ([W, b"DISCONNECT"], 2, MAX_BODY_FRAMES),
    ],
)
def test_how_many_frames_a_worker_may_send(frames: list[bytes], least: int, most: int) -> None:
    whole = [*frames, *[b"1"] * (most - len(frames))]
    for count in (least, most):
        ebus.read_from_worker(whole[:count])
    assert refused(lambda: ebus.read_from_worker([*whole, b"1"])) == "length"
    if least > 2:
        assert refused(lambda: ebus.read_from_worker(whole[: least - 1])) == "length"


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([C, b"REJECT", b"id", b"1", b"2"], "REJECT has 5 frames; it takes 2 to 4"),
        ([C, b"SERVICES", b"", b"id", b"1"], "a query has 5 frames; it takes 2 to 4"),
        ([C, b"PING", *[b"1"] * MAX_BODY_FRAMES], "Ping has 1026 frames; it takes 2 to 1024"),
    ],
)
def test_how_many_frames_a_message_takes_is_told(frames: list[bytes], words: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        ebus.read_from_client(frames)
    assert str(caught.value).endswith(words)


@pytest.mark.parametrize("word", [b"SERVICES", b"WORKERS"])
def test_how_many_frames_a_listing_has(word: bytes) -> None:
    assert ebus.read_as_client([W, word, b"id"]) == ebus.Listing(word, b"id", [])
    assert ebus.read_as_client([W, word, b"", b"list"]) == ebus.Listing(word, b"", [b"list"])
    for wrong in ([W, word], [W, word, b"id", b"list", b"more"]):
        assert refused(lambda wrong=wrong: ebus.read_as_client(wrong)) == "length"


def test_the_messages_that_the_broker_writes() -> None:
    assert ebus.write_listing(b"SERVICES", b"id-1", [b"{}"]) == [W, b"SERVICES", b"id-1", b"{}"]
    assert ebus.write_reply(b"id-1", [], C) == [C, b"REPLY", b"id-1"]
    assert ebus.write_reject(b"id-1", [b"why"], C) == [C, b"REJECT", b"id-1", b"why"]
    assert ebus.write_reject(b"", []) == [W, b"REJECT"]
    with pytest.raises(LocalProtocolError):
        ebus.write_reject(b"", [b"why"])
    assert ebus.write_cancel_order(b"id-1") == [C, b"CANCEL", b"id-1"]
    assert ebus.write_heartbeat(C) == [C, b"HEARTBEAT"]
    assert ebus.write_ping(W) == [W, b"PING"]
    assert ebus.write_disconnect(W) == [W, b"DISCONNECT"]
    assert ebus.write_publish(b"news", [b"a", b"b"]) == [b"news", b"a", b"b"]
