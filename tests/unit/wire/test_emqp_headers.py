"""The header field of eMQP."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from polybus.errors import LocalProtocolError
from polybus.wire import emqp_headers
from polybus.wire.emqp_headers import (
    MAX_HEADERS,
    MAX_NUMBER,
    MAX_RETRIES,
    NO_HEADERS,
    Headers,
    read_headers,
    write_headers,
)
from support.wire_frames import refused


@pytest.mark.conforms("EMQP-27")
def test_no_headers_are_an_empty_string() -> None:
    assert read_headers(b"") == NO_HEADERS
    assert write_headers(NO_HEADERS) == write_headers(Headers()) == b""


@pytest.mark.conforms("EMQP-26")
def test_headers_are_separated_by_commas() -> None:
    text = b"reply-requested,guarantee,retry-count:3,timeout:60"
    headers = Headers(reply_requested=True, guarantee=True, retry_count=3, timeout_s=60)
    assert read_headers(text) == headers
    assert write_headers(headers) == text
    assert read_headers(b" timeout: 60 ,, retry-count:3,guarantee , reply-requested,") == headers


@pytest.mark.parametrize(
    ("text", "headers"),
    [
        pytest.param(
            b"reply-requested", Headers(reply_requested=True), marks=pytest.mark.conforms("EMQP-28")
        ),
        pytest.param(b"retry-count:5", Headers(retry_count=5), marks=pytest.mark.conforms("EMQP-29")),
        pytest.param(b"timeout:30", Headers(timeout_s=30), marks=pytest.mark.conforms("EMQP-30")),
        pytest.param(b"guarantee", Headers(guarantee=True), marks=pytest.mark.conforms("EMQP-31")),
        pytest.param(b"nohaste", Headers(nohaste=True), marks=pytest.mark.conforms("EMQP-32")),
        (b"run_count:0", Headers(run_count=0)),
        (b"x-trace:a:b,debounce", Headers(other=("x-trace:a:b", "debounce"))),
        (b"retry-count:%d" % MAX_RETRIES, Headers(retry_count=MAX_RETRIES)),
        (b"timeout:%d" % MAX_NUMBER, Headers(timeout_s=MAX_NUMBER)),
        (",".join(f"h{n}" for n in range(64)).encode(), Headers(other=tuple(f"h{n}" for n in range(64)))),
    ],
)
def test_each_header(text: bytes, headers: Headers) -> None:
    assert read_headers(text) == headers
    assert write_headers(headers) == text


@pytest.mark.parametrize(
    ("text", "headers"),
    [
        (b"retry-count:0,timeout:0", NO_HEADERS),
        (b"run_count:-1", NO_HEADERS),
        (b"guarantee:False,nohaste:true", Headers(nohaste=True)),
        (b"timeout:1,timeout:2", Headers(timeout_s=2)),
        (b"{}", NO_HEADERS),
        (b' {"reply-requested": true, "retry-count": 3} ', Headers(reply_requested=True, retry_count=3)),
        (b'{"guarantee": false, "timeout": "9", "x": 1, "y": null}', Headers(timeout_s=9, other=("x:1",))),
        (b'{"x": false, "y": true}', Headers(other=("y",))),
        (b"a" * 1000, Headers(other=("a" * 1000,))),
    ],
)
def test_tolerated_forms(text: bytes, headers: Headers) -> None:
    assert read_headers(text) == headers


@pytest.mark.parametrize(
    "text",
    [
        b"retry-count",
        b"retry-count:",
        b"retry-count:x",
        b"retry-count:-1",
        b"retry-count:1.5",
        "retry-count:²".encode(),
        b"retry-count:%d" % (MAX_RETRIES + 1),
        b"timeout:%d" % (MAX_NUMBER + 1),
        b"timeout:" + b"0" * 11,
        b"run_count:-2",
        b"guarantee:maybe",
        b"a\nb",
        b"\xff",
        b"a,{",
        b"{",
        b'{"a": [1]}',
        b'{"a,b": true}',
        b'{"retry-count": true}',
        b'{"retry-count": 1e3}',
        b'{"a":' * 5000,
        b",".join([b"h"] * (MAX_HEADERS + 1)),
        b"{%s}" % b",".join(b'"h%d":1' % n for n in range(MAX_HEADERS + 1)),
    ],
)
def test_malformed(text: bytes) -> None:
    assert refused(lambda: read_headers(text)) == "bad_header"


def test_too_long() -> None:
    assert refused(lambda: read_headers(b"a" * (64 * 1024 + 1))) == "too_long"


@pytest.mark.parametrize(
    "headers",
    [
        Headers(retry_count=-1),
        Headers(retry_count=MAX_RETRIES + 1),
        Headers(timeout_s=MAX_NUMBER + 1),
        Headers(run_count=-1),
        Headers(other=("a,b",)),
        Headers(other=("",)),
        Headers(other=(" a",)),
        Headers(other=("guarantee",)),
        Headers(other=("timeout:1",)),
        Headers(other=("{}",)),
        Headers(other=("a\nb",)),
        Headers(other=("h",) * (MAX_HEADERS + 1)),
    ],
)
def test_what_we_must_not_send(headers: Headers) -> None:
    with pytest.raises(LocalProtocolError):
        write_headers(headers)


@pytest.mark.parametrize(
    ("name", "field", "most"),
    [
        ("retry-count", "retry_count", 1_000_000),
        ("timeout", "timeout_s", 2_147_483_647),
        ("run_count", "run_count", 2_147_483_647),
        ("attempt", "attempt", 2_147_483_647),
    ],
)
def test_every_number_has_its_largest_value(name: str, field: str, most: int) -> None:
    def headers(value: Any) -> Headers:
        return Headers(**{field: value})

    for value in (1, most):
        text = f"{name}:{value}".encode()
        assert read_headers(text) == headers(value)
        assert write_headers(headers(value)) == text
    assert refused(lambda: read_headers(f"{name}:{most + 1}".encode())) == "bad_header"
    # Ten digits, of which some may be zeros in front.
    assert read_headers(f"{name}:{'7':0>10}".encode()) == headers(7)
    assert refused(lambda: read_headers(f"{name}:{'7':0>11}".encode())) == "bad_header"
    for wrong in (-1, most + 1):
        with pytest.raises(LocalProtocolError):
            write_headers(headers(wrong))


@pytest.mark.parametrize("name", ["reply-requested", "guarantee", "nohaste", "receipt-requested"])
def test_every_flag_can_be_switched_on_and_off(name: str) -> None:
    field = name.replace("-", "_")
    on = replace(NO_HEADERS, **{field: True})
    assert write_headers(on) == name.encode()
    for value in ("", ":", ":true", ": TRUE ", ":1"):
        assert read_headers(f"{name}{value}".encode()) == on
    for value in (":false", ":False", ":0"):
        assert read_headers(f"{name}{value}".encode()) == NO_HEADERS
    assert refused(lambda: read_headers(f"{name}:2".encode())) == "bad_header"
    assert refused(lambda: read_headers(f"{name}:yes".encode())) == "bad_header"


def test_minus_one_means_forever_for_runs_alone() -> None:
    assert read_headers(b"run_count: -1 ").run_count is None
    assert refused(lambda: read_headers(b"timeout:-1")) == "bad_header"


def test_all_headers_together_are_no_more_than_the_limit() -> None:
    other = tuple(f"h{number}" for number in range(62))
    assert len(write_headers(Headers(guarantee=True, timeout_s=1, other=other)).split(b",")) == 64
    with pytest.raises(LocalProtocolError):
        write_headers(Headers(guarantee=True, timeout_s=1, other=(*other, "one-more")))


@pytest.mark.parametrize("length", [255, 256, 257, 64 * 1024])
def test_texts_of_any_length_up_to_the_limit_are_read(length: int) -> None:
    assert read_headers(b"a" * length) == Headers(other=("a" * length,))


@pytest.mark.parametrize(("length", "is_kept"), [(256, True), (257, False)])
def test_only_short_texts_are_kept(length: int, is_kept: bool) -> None:
    """Any client can send long ones, each of them another one, and they would be kept in memory."""
    before = emqp_headers._read_cached.cache_info()
    read_headers(b"b" * length)
    after = emqp_headers._read_cached.cache_info()
    assert (after.hits + after.misses > before.hits + before.misses) == is_kept


@pytest.mark.parametrize(("other", "is_kept"), [((), True), (("b" * 300,), False)])
def test_headers_of_others_are_written_and_not_kept(other: tuple[str, ...], is_kept: bool) -> None:
    """Unknown headers may be long, and each of them another one."""
    before = emqp_headers._write_cached.cache_info()
    write_headers(Headers(guarantee=True, other=other))
    after = emqp_headers._write_cached.cache_info()
    assert (after.hits + after.misses > before.hits + before.misses) == is_kept
