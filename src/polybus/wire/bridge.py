"""What brokers say to each other over a bridge (tag `PBBR1`).

One link joins two brokers and is used in both directions: either side asks, answers and publishes.  Both
begin with HELLO; before that nothing else counts.  Frames after the tag and the command:

    HELLO      version, {"name", "instance", "credit", "heartbeat_s", "link"}
    DENIED     reason, text            no link: another version, a name that is taken, not allowed
    BEAT
    BYE        reason                  the conversation is over
    ADVERT     {"full", "offers": {service: [broker, …]}, "withdrawn": [service, …]}
    REQUEST    id, service, {"hops", "ttl_ms", "timeout_s", "other"}, body …
    PARTIAL    id, body …
    REPLY      id, body …
    REFUSED    id, reason, detail, body …
    RETURN     id, detail              not begun, and not to be sent here again until it is advertised again
    CANCEL     id
    PUBLISH    topic, {"origin", "number", "at", "hops", "snapshot"}, body …

A path is the list of brokers from the one that speaks to the one whose worker offers the service; hops are
those that a message has passed, the first one first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from polybus.wire.bridge_messages import (
    Advert,
    Beat,
    Bye,
    Cancel,
    Denied,
    Hello,
    Message,
    Partial,
    Path,
    Publish,
    Refused,
    Reply,
    Request,
    Return,
)
from polybus.wire.frames import (
    Frame,
    Frames,
    check_id,
    check_name,
    is_name,
    read_body,
    read_command,
    read_id,
    read_name,
    read_text,
    refuse,
)

TAG: Final = b"PBBR1"
VERSION: Final = 1
# A broker's name stands in every path and every hop list.
MAX_BROKER_BYTES: Final = 64
# No path is longer, whatever the settings say: a hop list is walked for every message.
MAX_PATH: Final = 32
# Services in one ADVERT, and its bytes: more of them come in several.
ADVERT_SERVICES: Final = 200
MAX_ADVERT_BYTES: Final = 1024 * 1024
MAX_CREDIT: Final = 1_000_000
# A year: whoever means longer means for ever.
MAX_MS: Final = 31_536_000_000
MAX_NUMBER: Final = 2**63 - 1

HELLO: Final = b"HELLO"
DENIED: Final = b"DENIED"
BEAT: Final = b"BEAT"
BYE: Final = b"BYE"
ADVERT: Final = b"ADVERT"
REQUEST: Final = b"REQUEST"
PARTIAL: Final = b"PARTIAL"
REPLY: Final = b"REPLY"
REFUSED: Final = b"REFUSED"
RETURN: Final = b"RETURN"
CANCEL: Final = b"CANCEL"
PUBLISH: Final = b"PUBLISH"


# -- the JSON in them -------------------------------------------------------------------------------


class _Hello(Struct):
    name: str
    instance: str
    credit: int = 1
    heartbeat_s: float = 1.0
    link: str = ""


class _Advert(Struct):
    offers: dict[str, list[str]]
    withdrawn: list[str] = []
    full: bool = False


class _Call(Struct, omit_defaults=True):
    hops: list[str]
    ttl_ms: int | None = None
    timeout_s: float = 0.0
    other: list[str] = []


class _Publication(Struct, omit_defaults=True):
    origin: str
    number: int
    at: float
    hops: list[str]
    snapshot: bool = False


_read_hello = msgspec.json.Decoder(_Hello).decode
_read_advert = msgspec.json.Decoder(_Advert).decode
_read_call = msgspec.json.Decoder(_Call).decode
_read_publication = msgspec.json.Decoder(_Publication).decode
_write = msgspec.json.Encoder().encode
T = TypeVar("T")


def _json(read: Callable[[bytes], T], text: bytes, what: str) -> T:
    try:
        return read(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise refuse("bad_json", f"{what} cannot be read: {str(error)[:200]}") from None


def is_broker_name(name: str) -> bool:
    """1 to 64 bytes of printable text."""
    try:
        text = name.encode()
    except UnicodeError:
        return False
    return len(text) <= MAX_BROKER_BYTES and is_name(text)


def _path(names: Sequence[str], what: str) -> Path:
    if not 1 <= len(names) <= MAX_PATH:
        raise refuse("bad_path", f"{what} has {len(names)} brokers; allowed are 1 to {MAX_PATH}")
    for name in names:
        if not is_broker_name(name):
            raise refuse("bad_path", f"{what} names a broker {name[:40]!r}, which is no name")
    return tuple(names)


def _name(text: str, what: str) -> bytes:
    # What was read as JSON is text that can be written again.
    return read_name(text.encode(), what)


def _frames(frames: Frames, at: int, least: int, most: int | None = None) -> None:
    """How many frames stand behind the command."""
    count = len(frames) - at - 2
    if count < least or (most is not None and count > most):
        wanted = f"{least} or more" if most is None else most
        raise refuse("length", f"{count} frames behind the command; it takes {wanted}")


def _words(frame: Frame, what: str) -> str:
    return read_text(frame, what).decode("utf-8", "replace")


# -- reading ----------------------------------------------------------------------------------------


def read_hello(frames: Frames, at: int) -> Hello:
    _frames(frames, at, 1)
    text = read_text(frames[at + 2], "version")
    if not text.isdigit() or len(text) > 9:
        raise refuse("bad_version", f"the version is {text[:20]!r}; it is a number")
    version = int(text)
    if version != VERSION:
        # What follows may be anything; the version alone is enough to say no.
        return Hello(version)
    _frames(frames, at, 2)
    found = _json(_read_hello, read_text(frames[at + 3], "HELLO"), "HELLO")
    for what, name in (("name", found.name), ("instance", found.instance)):
        if not is_broker_name(name):
            raise refuse("bad_name", f"the {what} {name[:40]!r} is no name of 1 to {MAX_BROKER_BYTES} bytes")
    if not 1 <= found.credit <= MAX_CREDIT:
        raise refuse("bad_credit", f"credit is {found.credit}; allowed are 1 to {MAX_CREDIT}")
    if not 0 < found.heartbeat_s <= 3600:
        raise refuse("bad_heartbeat", f"heartbeat_s is {found.heartbeat_s:g}; allowed is up to 3600")
    return Hello(version, found.name, found.instance, found.credit, found.heartbeat_s, found.link)


def read_denied(frames: Frames, at: int) -> Denied:
    _frames(frames, at, 2, 2)
    return Denied(_words(frames[at + 2], "reason"), _words(frames[at + 3], "text"))


def read_beat(frames: Frames, at: int) -> Beat:
    _frames(frames, at, 0, 0)
    return Beat()


def read_bye(frames: Frames, at: int) -> Bye:
    _frames(frames, at, 1, 1)
    return Bye(_words(frames[at + 2], "reason"))


def read_advert(frames: Frames, at: int) -> Advert:
    _frames(frames, at, 1, 1)
    text = frames[at + 2]
    if len(text) > MAX_ADVERT_BYTES:
        raise refuse("too_long", f"an ADVERT has {len(text)} bytes; allowed are {MAX_ADVERT_BYTES}")
    found = _json(_read_advert, bytes(text), "ADVERT")
    return Advert(
        {_name(name, "service"): _path(path, "path") for name, path in found.offers.items()},
        tuple(_name(name, "service") for name in found.withdrawn),
        found.full,
    )


def read_request(frames: Frames, at: int) -> Request:
    _frames(frames, at, 3)
    call = _json(_read_call, read_text(frames[at + 4], "REQUEST"), "REQUEST")
    if call.ttl_ms is not None and not 0 <= call.ttl_ms <= MAX_MS:
        raise refuse("bad_ttl", f"ttl_ms is {call.ttl_ms}; allowed are 0 to {MAX_MS}, or null")
    if not 0 <= call.timeout_s <= MAX_MS / 1000:
        raise refuse("bad_timeout", f"timeout_s is {call.timeout_s:g}; allowed are 0 to {MAX_MS // 1000}")
    return Request(
        read_id(frames[at + 2]),
        read_name(frames[at + 3], "service"),
        _path(call.hops, "hops"),
        read_body(frames, at + 5),
        call.ttl_ms,
        call.timeout_s,
        tuple(call.other),
    )


def read_partial(frames: Frames, at: int) -> Partial:
    _frames(frames, at, 1)
    return Partial(read_id(frames[at + 2]), read_body(frames, at + 3))


def read_reply(frames: Frames, at: int) -> Reply:
    _frames(frames, at, 1)
    return Reply(read_id(frames[at + 2]), read_body(frames, at + 3))


def read_refused(frames: Frames, at: int) -> Refused:
    _frames(frames, at, 3)
    reason, detail = _words(frames[at + 3], "reason"), _words(frames[at + 4], "detail")
    return Refused(read_id(frames[at + 2]), reason, detail, read_body(frames, at + 5))


def read_return(frames: Frames, at: int) -> Return:
    _frames(frames, at, 2, 2)
    return Return(read_id(frames[at + 2]), _words(frames[at + 3], "detail"))


def read_cancel(frames: Frames, at: int) -> Cancel:
    _frames(frames, at, 1, 1)
    return Cancel(read_id(frames[at + 2]))


def read_publish(frames: Frames, at: int) -> Publish:
    _frames(frames, at, 2)
    found = _json(_read_publication, read_text(frames[at + 3], "PUBLISH"), "PUBLISH")
    if not is_broker_name(found.origin.partition("#")[0]) or len(found.origin) > 2 * MAX_BROKER_BYTES:
        raise refuse("bad_name", f"the origin {found.origin[:40]!r} is no name")
    if not 0 <= found.number <= MAX_NUMBER or not isfinite(found.at):
        raise refuse("bad_number", f"publication number {found.number} at {found.at:g} is out of range")
    return Publish(
        read_name(frames[at + 2], "topic"),
        found.origin,
        found.number,
        found.at,
        _path(found.hops, "hops"),
        read_body(frames, at + 4),
        found.snapshot,
    )


COMMANDS: Final[Mapping[Frame, Callable[[Frames, int], Message]]] = {
    HELLO: read_hello,
    DENIED: read_denied,
    BEAT: read_beat,
    BYE: read_bye,
    ADVERT: read_advert,
    REQUEST: read_request,
    PARTIAL: read_partial,
    REPLY: read_reply,
    REFUSED: read_refused,
    RETURN: read_return,
    CANCEL: read_cancel,
    PUBLISH: read_publish,
}


def read(frames: Frames, at: int = 0) -> Message:
    """The message whose tag is at `at`."""
    if len(frames) <= at or frames[at] != TAG:
        raise refuse("unknown_tag", "it does not begin with the tag of a bridge")
    return read_command(COMMANDS, frames, at)


# -- writing ----------------------------------------------------------------------------------------


def write_hello(hello: Hello) -> list[Frame]:
    facts = _Hello(hello.name, hello.instance, hello.credit, hello.heartbeat_s, hello.link)
    return [TAG, HELLO, b"%d" % hello.version, _write(facts)]


def write_denied(reason: str, text: str) -> list[Frame]:
    return [TAG, DENIED, reason.encode(), text.encode()]


def write_beat() -> list[Frame]:
    return [TAG, BEAT]


def write_bye(reason: str) -> list[Frame]:
    return [TAG, BYE, reason.encode("utf-8", "replace")]


def write_advert(advert: Advert) -> list[Frame]:
    offers = {name.decode(): list(path) for name, path in advert.offers.items()}
    withdrawn = [name.decode() for name in advert.withdrawn]
    return [TAG, ADVERT, _write(_Advert(offers, withdrawn, advert.full))]


def write_request(request: Request) -> list[Frame]:
    facts = _Call(list(request.hops), request.ttl_ms, request.timeout_s, list(request.other))
    name = check_name(request.service, "service")
    return [TAG, REQUEST, check_id(request.request_id), name, _write(facts), *request.body]


def write_partial(request_id: bytes, body: Sequence[Frame]) -> list[Frame]:
    return [TAG, PARTIAL, request_id, *body]


def write_reply(request_id: bytes, body: Sequence[Frame]) -> list[Frame]:
    return [TAG, REPLY, request_id, *body]


def write_refused(request_id: bytes, reason: str, detail: str, body: Sequence[Frame] = ()) -> list[Frame]:
    # A detail may quote what a worker said.
    words = detail.encode("utf-8", "replace")[:4096]
    return [TAG, REFUSED, request_id, reason.encode(), words, *body]


def write_return(request_id: bytes, detail: str) -> list[Frame]:
    return [TAG, RETURN, request_id, detail.encode("utf-8", "replace")[:4096]]


def write_cancel(request_id: bytes) -> list[Frame]:
    return [TAG, CANCEL, request_id]


def write_publish(message: Publish) -> list[Frame]:
    facts = _Publication(message.origin, message.number, message.at, list(message.hops), message.snapshot)
    return [TAG, PUBLISH, message.topic, _write(facts), *message.body]
