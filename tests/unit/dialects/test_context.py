"""Where a request comes from, told to every kind of worker in the place that it has for it."""

from __future__ import annotations

import pytest

from polybus.core.model import PLAIN_CALL
from polybus.dialects.context import options_of_id
from polybus.dialects.emqp import Emqp
from polybus.dialects.mdr import Mdr
from polybus.dialects.port import RouterEar
from polybus.wire.context import add_to_id, new_context, write_context
from support.exchange import Exchange

EMQP_CLIENTS, EMQP_WORKERS, MDR = 1, 2, 3
TAG = b"eMQP/1.0"
OURS = b"pb-0123456789abcdef+context"
SAID = new_context("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=1")
SPAN = new_context("00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01")


def broker() -> Exchange:
    ex = Exchange()
    emqp = Emqp(ex.bus, wall=lambda: 1700000000.5)
    ex.listen(EMQP_CLIENTS, RouterEar(ex.bus, "emqp", emqp.client_tags))
    ex.listen(EMQP_WORKERS, RouterEar(ex.bus, "emqp", emqp.worker_tags))
    ex.listen(MDR, RouterEar(ex.bus, "mdr", Mdr(ex.bus).tags))
    return ex


def emqp_worker(ex: Exchange, identity: bytes, version: int = 0) -> None:
    """A worker with one slot; its receipt is taken away."""
    more = [b'{"polybus": %d, "holding": []}' % version] if version else []
    ex.send(EMQP_WORKERS, identity, b"", TAG, b"INFORM", b"i", b'[[10, "echo"]]', b"worker", *more)
    ex.got(EMQP_WORKERS, identity)
    ex.send(EMQP_WORKERS, identity, b"", TAG, b"READY", b"r")


def mdr_worker(ex: Exchange, identity: bytes) -> None:
    ex.send(MDR, identity, b"", b"MDRW01", b"\x01", b"echo")


def ask_by_mdr(ex: Exchange, context: tuple[str, ...] = SAID) -> None:
    ex.send(MDR, b"c", b"", b"MDRC01", b"\x01", b"echo", add_to_id(b"id", context), b"x")


def ask_by_emqp(ex: Exchange, *headers: str) -> None:
    text = ",".join(("reply-requested", *headers)).encode()
    ex.send(EMQP_CLIENTS, b"c", b"", TAG, b"REQUEST", b"job", b"echo", text, b"x")


def headers(ex: Exchange, identity: bytes, version: int) -> list[str]:
    """What the only order said, without what is of no interest here."""
    order = ex.one(EMQP_WORKERS, identity)
    assert order[2] == (b"ORDERS" if version == 2 else b"REQUEST")
    found = order[6 if version == 2 else 5].decode().split(",")
    return [item for item in found if item.startswith(("traceparent", "tracestate", "x-"))]


WORKERS = [(b"w", 0), (OURS, 0), (b"w1", 1), (b"w2", 2)]


@pytest.mark.parametrize(("identity", "version"), WORKERS)
def test_the_context_in_an_id_reaches_workers_of_ours_and_no_others(identity: bytes, version: int) -> None:
    ex = broker()
    emqp_worker(ex, identity, version)
    ask_by_mdr(ex)
    assert headers(ex, identity, version) == ([] if identity == b"w" else list(SAID))


@pytest.mark.parametrize(("identity", "version"), WORKERS)
def test_headers_of_a_client_with_headers_reach_everybody(identity: bytes, version: int) -> None:
    ex = broker()
    emqp_worker(ex, identity, version)
    ask_by_emqp(ex, "x-shop:7", *SAID)
    assert headers(ex, identity, version) == ["x-shop:7", *SAID]


@pytest.mark.parametrize(("identity", "version"), WORKERS)
def test_a_span_of_the_broker_replaces_what_the_client_said_for_workers_of_ours(
    identity: bytes, version: int
) -> None:
    ex = broker()
    ask_by_emqp(ex, "x-shop:7", *SAID)
    (request,) = ex.bus.requests.values()
    request.context = SPAN
    emqp_worker(ex, identity, version)
    expected = ["x-shop:7", *(SAID if identity == b"w" else SPAN)]
    assert headers(ex, identity, version) == expected


@pytest.mark.parametrize(
    ("context", "span", "told"),
    [(SAID, None, SAID), (SAID, SPAN, SPAN), ((), SPAN, SPAN), ((), None, ()), (SAID, (), ())],
)
def test_workers_of_ours_have_a_frame_for_it(
    context: tuple[str, ...], span: tuple[str, ...] | None, told: tuple[str, ...]
) -> None:
    ex = broker()
    ask_by_mdr(ex, context)
    (request,) = ex.bus.requests.values()
    request.context = span
    mdr_worker(ex, OURS)
    word, *rest = ex.one(MDR, OURS)[2:]
    if told:
        assert word == b"TRACED"
        assert rest == [request.token, b"", request.request_id, write_context(told), b"x"]
    else:
        assert (word, rest) == (b"\x02", [request.token, b"", request.request_id, b"x"])


def test_workers_of_the_document_have_none() -> None:
    ex = broker()
    mdr_worker(ex, b"w")
    ask_by_mdr(ex)
    (request,) = ex.bus.requests.values()
    assert ex.one(MDR, b"w") == [b"", b"MDRW01", b"\x02", request.token, b"", request.request_id, b"x"]


def test_an_id_without_a_context_has_no_options() -> None:
    assert options_of_id(b"id") is PLAIN_CALL
    assert options_of_id(b"i" * 200) is PLAIN_CALL
    assert options_of_id(add_to_id(b"id", SAID)).other == SAID


@pytest.mark.parametrize("version", [0, 1, 2])
def test_other_options_of_a_job_are_told_beside_its_context(version: int) -> None:
    """Retries, the time limit, rounded up, the guarantee, and the attempt to those who know the word."""
    ex = broker()
    emqp_worker(ex, b"w", version)
    ask_by_emqp(ex, "retry-count:3", "timeout:7", "x-shop:7")
    order = ex.one(EMQP_WORKERS, b"w")
    found = set(order[6 if version == 2 else 5].decode().split(","))
    assert {"reply-requested", "retry-count:3", "timeout:7", "x-shop:7"} <= found
    assert any(item.startswith("attempt") for item in found) == (version > 0)


def test_a_worker_of_ours_without_the_extension_is_told_no_attempt() -> None:
    ex = broker()
    emqp_worker(ex, OURS)
    ask_by_emqp(ex, "retry-count:3")
    order = ex.one(EMQP_WORKERS, OURS)
    assert not any(item.startswith("attempt") for item in order[5].decode().split(","))


def test_the_shortest_id_with_a_context_has_one_byte_of_its_own() -> None:
    ex = broker()
    parent = SPAN[0].removeprefix("traceparent:").encode()
    ex.send(MDR, b"c", b"MDRC01", b"\x01", b"echo", b"1~" + parent, b"x")
    (request,) = ex.bus.requests.values()
    assert request.options.other == SPAN
