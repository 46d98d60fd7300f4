"""W3C Trace Context, and the places where a dialect has room for it."""

from __future__ import annotations

import pytest

from polybus.wire import mdr
from polybus.wire.context import (
    NO_CONTEXT,
    add_to_id,
    announce,
    as_headers,
    asks_again,
    find_context,
    find_in_id,
    from_headers,
    is_announced,
    new_context,
    read_context,
    replace_context,
    write_context,
)
from polybus.wire.frames import MAX_ID_BYTES
from support.wire_frames import refused

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    "parent",
    [
        "",
        PARENT[:-1],
        PARENT.upper(),
        PARENT + "-00",
        "ff" + PARENT[2:],
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
        PARENT + "\n",
    ],
)
def test_what_is_no_traceparent_is_no_context(parent: str) -> None:
    assert new_context(parent, "a=1") == NO_CONTEXT
    assert find_in_id(b"id~" + parent.encode()) == NO_CONTEXT
    assert find_context(["traceparent:" + parent]) == NO_CONTEXT or parent.strip() == PARENT


def test_a_tracestate_is_a_header_for_each_of_its_members() -> None:
    context = new_context(PARENT, "shop=a:1 , other=2,,third=x y")

    assert context == (
        f"traceparent:{PARENT}",
        "tracestate:shop=a:1",
        "tracestate:other=2",
        "tracestate:third=x y",
    )
    assert as_headers(context) == {"traceparent": PARENT, "tracestate": "shop=a:1,other=2,third=x y"}
    assert from_headers(as_headers(context)) == context
    assert as_headers(new_context(PARENT)) == {"traceparent": PARENT}
    assert as_headers(NO_CONTEXT) == {}
    assert from_headers({}) == from_headers({"tracestate": "a=1"}) == NO_CONTEXT


@pytest.mark.parametrize("state", ["UPPER=1", "a", "a=b=c", "a=\x07", ",".join(["a=1"] * 33)])
def test_a_broken_tracestate_is_dropped_and_the_parent_stays(state: str) -> None:
    assert new_context(PARENT, state) == (f"traceparent:{PARENT}",)


def test_a_long_tracestate_loses_its_oldest_members() -> None:
    members = [f"m{number}={'x' * 100}" for number in range(10)]
    state = as_headers(new_context(PARENT, ",".join(members)))["tracestate"]

    assert state == ",".join(members[:4])


def test_what_a_public_worker_would_misread_is_left_out() -> None:
    """EventMQ's looks for `timeout:` anywhere in a header, and takes what follows the colon for a number."""
    context = new_context(PARENT, "a=1,b=timeout:5,c=reply-requested,d=2")

    assert context[1:] == ("tracestate:a=1", "tracestate:d=2")


def test_headers_of_others_stay() -> None:
    context = new_context(PARENT, "a=1")

    assert find_context(["x-shop:7", *context, "flag"]) == context
    assert replace_context(("x-shop:7", *context, "flag"), NO_CONTEXT) == ("x-shop:7", "flag")
    # Two parents are a contradiction.
    assert find_context([context[0], context[0]]) == NO_CONTEXT


def test_an_id_carries_it_as_far_as_there_is_room() -> None:
    whole = new_context(PARENT, "a=1")
    assert add_to_id(b"id", whole) == b"id~" + PARENT.encode() + b"~a=1"
    assert find_in_id(add_to_id(b"id", whole)) == whole
    long = new_context(PARENT, f"a={'x' * 250}")
    assert find_in_id(add_to_id(b"id", long)) == new_context(PARENT)
    assert add_to_id(b"i" * 220, whole) == b"i" * 220
    assert add_to_id(b"i~d", whole) == b"i~d"
    assert add_to_id(b"id", NO_CONTEXT) == b"id"
    assert add_to_id(b"id", new_context(PARENT)) == b"id~" + PARENT.encode()
    assert len(add_to_id(b"i" * (MAX_ID_BYTES - 56), whole)) == MAX_ID_BYTES


@pytest.mark.parametrize(
    "name", [b"\xff" * 80, b"~" * 80, b"id~" + b"\xff" * 80, b"~".join([b"a" * 30] * 3), PARENT.encode() * 2]
)
def test_an_id_that_only_looks_like_it_is_an_id(name: bytes) -> None:
    assert find_in_id(name) == NO_CONTEXT


def test_a_worker_says_in_its_identity_that_it_takes_one() -> None:
    assert is_announced(announce(b"pb-0123456789abcdef"))
    for identity in (b"pb-0123456789abcdef", b"worker+context", b"", b"pb-0123456789ABCDEF+context"):
        assert not is_announced(identity)


def test_an_order_with_a_context_has_a_word_of_its_own() -> None:
    context = new_context(PARENT, "a=1,b=2")
    frames = mdr.write_traced_order(b"token", b"id", context, [b"x", b"y"])

    assert frames == [b"MDRW01", b"TRACED", b"token", b"", b"id", write_context(context), b"x", b"y"]
    assert mdr.read_as_worker(frames) == mdr.Order(b"token", b"id", [b"x", b"y"], context)
    # Nobody's work depends on it.
    frames[5] = b"\xff" * 5000
    assert mdr.read_as_worker(frames) == mdr.Order(b"token", b"id", [b"x", b"y"])
    frames[5] = b"\xff"
    assert mdr.read_as_worker(frames) == mdr.Order(b"token", b"id", [b"x", b"y"])
    assert read_context(b"") == NO_CONTEXT


def test_an_order_with_a_context_has_a_body_frame_at_least() -> None:
    context = new_context(PARENT)
    frames = mdr.write_traced_order(b"token", b"id", context, [])
    assert frames[6:] == [b""]
    assert mdr.read_as_worker(frames) == mdr.Order(b"token", b"id", [b""], context)
    assert refused(lambda: mdr.read_as_worker(frames[:6])) == "short"


def test_a_tracestate_of_as_much_as_is_allowed_is_whole() -> None:
    many = ",".join(f"m{number}=1" for number in range(32))
    assert as_headers(new_context(PARENT, many))["tracestate"] == many
    assert new_context(PARENT, f"{many},m32=1")[1:] == ()
    # 512 bytes with the commas between the members.
    long = f"a={'x' * 253},b={'y' * 254}"
    assert len(long) == 512
    assert as_headers(new_context(PARENT, long))["tracestate"] == long
    assert as_headers(new_context(PARENT, f"{long}y"))["tracestate"] == f"a={'x' * 253}"


@pytest.mark.parametrize(
    ("member", "is_one"),
    [
        ("a=1", True),
        ("0=1", True),
        ("a*/@-_9=1", True),
        ("-a=1", False),
        ("=1", False),
        ("a=", False),
        ("a= 1", True),
        (f"{'k' * 256}=1", True),
        (f"{'k' * 257}=1", False),
        (f"a={'v' * 256}", True),
        (f"a={'v' * 257}", False),
    ],
)
def test_what_is_a_member(member: str, is_one: bool) -> None:
    assert new_context(PARENT, f"b=2, {member}\t") == (
        (f"traceparent:{PARENT}", "tracestate:b=2", f"tracestate:{member}")
        if is_one
        else (f"traceparent:{PARENT}",)
    )


def test_an_id_has_room_for_the_state_or_not_by_one_byte() -> None:
    state = "a=" + "x" * 50
    context = new_context(PARENT, state)
    room = MAX_ID_BYTES - 2 - len(PARENT) - len(state)
    assert find_in_id(add_to_id(b"i" * room, context)) == context
    assert find_in_id(add_to_id(b"i" * (room + 1), context)) == new_context(PARENT)
    alone = new_context(PARENT)
    assert add_to_id(b"i" * (MAX_ID_BYTES - 55), alone) == b"i" * (MAX_ID_BYTES - 55)
    # The shortest id that has one.
    assert find_in_id(b"i~" + PARENT.encode()) == alone
    assert find_in_id(b"~" + PARENT.encode()) == NO_CONTEXT


def test_a_frame_with_a_context_has_a_largest_size() -> None:
    parent = f"traceparent:{PARENT}"
    assert read_context(parent.encode() + b"," * (2048 - len(parent))) == (parent,)
    assert read_context(parent.encode() + b"," * (2049 - len(parent))) == NO_CONTEXT


def test_clients_of_the_library_are_known_by_their_identity() -> None:
    assert asks_again(b"pb-0123456789abcdef")
    assert asks_again(announce(b"pb-0123456789abcdef"))
    for identity in (b"", b"pb-", b"pb-0123456789ABCDEF", b"client", b"x-pb-0123456789abcdef"):
        assert not asks_again(identity)
