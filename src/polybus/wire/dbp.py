"""The Distributive Broker Protocol ("DBP"): a catalog of services, with calls to them.

Every message is a command of a few characters, a time, and then what the command takes.  There
is no tag: `at` is the index of the command frame, behind the empty first frame.  The time has
three forms in use (4-byte float, 8-byte double, decimal text); it means nothing to us, but a peer
gets its own form back, so every message remembers the `form` it came with.

Any node may ask, serve, or both, so there are only two tables:

    broker  reads  BROKER_COMMANDS  from nodes
    node    reads  NODE_COMMANDS    from the broker, and from nodes that call it directly

Peers of the original implementation take no message of fewer than three frames: what we write
always has a third one, be it empty, and a third frame that carries nothing is taken everywhere.
`strict` writes the document's form instead, without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from polybus.errors import LocalProtocolError, RemoteProtocolError
from polybus.wire.dbp_info import (
    NodeInfo,
    RegistrationRefused,
    read_changes,
    read_info,
    read_json_objects,
    write_changes,
    write_info,
)
from polybus.wire.dbp_time import TimeForm, read_time_form, write_time
from polybus.wire.frames import (
    EMPTY,
    Frame,
    Frames,
    check_name,
    read_body,
    read_name,
    read_text,
    refuse,
)

REQUEST: Final = b"u_U"
REPLY: Final = b"o_O"
REGISTRATION: Final = b"UwU"
UPDATE: Final = b"UoU"
APPROVED: Final = b"OwO"
DENIED: Final = b"OmO"  # what the original implementation checks for
DENIED_STRICT: Final = b"(O_O)"  # what the document says
HEARTBEAT: Final = b"<3"
DISCONNECT: Final = b"</3"
ACKNOWLEDGE: Final = b"u.u"
EXIT: Final = b"<\\3"  # the original's word for "stop": read so that it can be refused
PING: Final = b"ping"
PONG: Final = b"pong"
# An info request for this name is about the broker itself, if it is polybus: its name and its endpoints.
BROKER: Final = b"polybus.broker"

# Between the names of an info request for several services.
COMMA: Final = b","
# Reasons are read by people.
MAX_REASONS: Final = 32
MAX_REASON_BYTES: Final = 1024


class InfoRequest(Struct, frozen=True):
    """Node to broker: tell me about this service, or about all if the name is empty.

    The text may name several services, separated by commas.  A name may have a comma itself: only who knows
    the services can tell the two apart.
    """

    service: bytes
    form: TimeForm = TimeForm.FLOAT

    @property
    def several(self) -> tuple[bytes, ...]:
        """The names, if the text is a list."""
        return _split_names(self.service) if COMMA in self.service else ()


class Call(Struct, frozen=True):
    """Node to broker, or broker to service: run this."""

    service: bytes
    body: list[Frame]
    form: TimeForm = TimeForm.FLOAT


class Answer(Struct, frozen=True):
    """The `o_O` that answers an info request (one frame of JSON) or a call (anything)."""

    body: list[Frame]
    form: TimeForm = TimeForm.FLOAT


class Registration(Struct, frozen=True):
    """Service to broker: list me. `missing` are the document's minimum fields it does not have."""

    info: NodeInfo
    missing: tuple[str, ...] = ()
    form: TimeForm = TimeForm.FLOAT


class Update(Struct, frozen=True):
    """Service to broker: these fields of my `NodeInfo` are new (see `dbp_info.changed`)."""

    name: bytes
    changes: dict[str, Any]
    form: TimeForm = TimeForm.FLOAT


class Approved(Struct, frozen=True):
    """Broker to service: you are listed; use this configuration."""

    config: dict[str, Any] = {}
    form: TimeForm = TimeForm.FLOAT


class Denied(Struct, frozen=True):
    """Broker to service: you are not listed, because."""

    reasons: tuple[str, ...] = ()
    form: TimeForm = TimeForm.FLOAT


class Heartbeat(Struct, frozen=True):
    """Either way: I am here. The name may be empty on a socket that registered it."""

    name: bytes = b""
    form: TimeForm = TimeForm.FLOAT


class Disconnect(Struct, frozen=True):
    """Either way: this conversation is over. A service without its own socket says its name."""

    name: bytes = b""
    form: TimeForm = TimeForm.FLOAT


class Acknowledge(Struct, frozen=True):
    """Either way: understood."""

    form: TimeForm = TimeForm.FLOAT


class Exit(Struct, frozen=True):
    """Asks a node to stop. Never obeyed from the network."""

    form: TimeForm = TimeForm.FLOAT


class Ping(Struct, frozen=True):
    """To a service at its own address: are you there?"""

    body: list[Frame] = []
    form: TimeForm = TimeForm.FLOAT


class Pong(Struct, frozen=True):
    """From a service at its own address: I am, and this is my name."""

    name: bytes = b""
    form: TimeForm = TimeForm.FLOAT


Either = InfoRequest | Call | Answer | Heartbeat | Disconnect | Acknowledge | Exit | Ping | Pong
BrokerReads = Either | Registration | Update
NodeReads = Either | Approved | Denied
Message = BrokerReads | NodeReads


# -- reading ----------------------------------------------------------------------------------


def _read_request(frames: Frames, at: int, form: TimeForm) -> InfoRequest | Call:
    if len(frames) < at + 3:
        raise refuse("short", f"REQUEST has {len(frames) - at} frames; it takes 3 or more")
    if len(frames) == at + 3:
        return InfoRequest(_read_names(frames[at + 2]), form)
    return Call(read_name(frames[at + 2], "service name"), read_body(frames, at + 3), form)


def _read_names(frame: Frame) -> bytes:
    text = read_text(frame, "service name")
    if COMMA not in text:
        return read_name(frame, "service name") if len(frame) else EMPTY
    for name in _split_names(text):
        read_name(name, "service name")
    return text


def _split_names(text: bytes) -> tuple[bytes, ...]:
    return tuple(name for part in text.split(COMMA) if (name := part.strip(b" ")))


def _read_answer(frames: Frames, at: int, form: TimeForm) -> Answer:
    if len(frames) < at + 3:
        raise refuse("short", f"REPLY has {len(frames) - at} frames; it takes 3 or more")
    return Answer(read_body(frames, at + 2), form)


def _read_registration(frames: Frames, at: int, form: TimeForm) -> Registration:
    first, *more = _info_frames(frames, at, form, "REGISTRATION")
    info = read_info(first, form, more)
    return Registration(info, info.missing, form)


def _read_update(frames: Frames, at: int, form: TimeForm) -> Update:
    first, *more = _info_frames(frames, at, form, "UPDATE")
    return Update(*read_changes(first, form, more), form)


def _read_approved(frames: Frames, at: int, form: TimeForm) -> Approved:
    # "6 or more frames" with "Frame 3+" for the configuration: any number of objects, and empty frames.
    config = [frame for frame in frames[at + 2 :] if len(frame)]
    return Approved(read_json_objects(config, "configuration"), form)


def _read_denied(frames: Frames, at: int, form: TimeForm) -> Denied:
    reasons = frames[at + 2 :]
    if len(reasons) > MAX_REASONS or any(len(reason) > MAX_REASON_BYTES for reason in reasons):
        raise refuse("too_long", f"DENIED takes {MAX_REASONS} reasons of {MAX_REASON_BYTES} bytes")
    # A denial stays a denial whatever its words are encoded in.
    return Denied(tuple(bytes(reason).decode("utf-8", "replace") for reason in reasons if len(reason)), form)


def _read_heartbeat(frames: Frames, at: int, form: TimeForm) -> Heartbeat:
    return Heartbeat(_optional_name(frames, at, "HEARTBEAT"), form)


def _read_disconnect(frames: Frames, at: int, form: TimeForm) -> Disconnect:
    return Disconnect(_optional_name(frames, at, "DISCONNECT"), form)


def _read_acknowledge(frames: Frames, at: int, form: TimeForm) -> Acknowledge:
    _optional_name(frames, at, "ACKNOWLEDGE")
    return Acknowledge(form)


def _read_exit(_frames: Frames, _at: int, form: TimeForm) -> Exit:
    # It is refused in any case, so nothing that follows is looked at.
    return Exit(form)


def _read_ping(frames: Frames, at: int, form: TimeForm) -> Ping:
    return Ping(read_body(frames, at + 2), form)


def _read_pong(frames: Frames, at: int, form: TimeForm) -> Pong:
    return Pong(_optional_name(frames, at, "PONG"), form)


def _info_frames(frames: Frames, at: int, form: TimeForm, what: str) -> Frames:
    if len(frames) < at + 3:
        raise RegistrationRefused((f"{what} has {len(frames) - at} frames; it takes 3 or more",), form)
    return frames[at + 2 :]


def _optional_frame(frames: Frames, at: int, what: str) -> Frame:
    if len(frames) > at + 3:
        raise refuse("length", f"{what} has {len(frames) - at} frames; it takes 2 or 3")
    return frames[at + 2] if len(frames) == at + 3 else EMPTY


def _optional_name(frames: Frames, at: int, what: str) -> bytes:
    name = _optional_frame(frames, at, what)
    return read_name(name, "service name") if len(name) else EMPTY


_EITHER: Final[Mapping[Frame, Callable[[Frames, int, TimeForm], Either]]] = {
    REQUEST: _read_request,
    REPLY: _read_answer,
    HEARTBEAT: _read_heartbeat,
    DISCONNECT: _read_disconnect,
    ACKNOWLEDGE: _read_acknowledge,
    EXIT: _read_exit,
    PING: _read_ping,
    PONG: _read_pong,
}
BROKER_COMMANDS: Final[Mapping[Frame, Callable[[Frames, int, TimeForm], BrokerReads]]] = {
    **_EITHER,
    REGISTRATION: _read_registration,
    UPDATE: _read_update,
}
NODE_COMMANDS: Final[Mapping[Frame, Callable[[Frames, int, TimeForm], NodeReads]]] = {
    **_EITHER,
    APPROVED: _read_approved,
    DENIED: _read_denied,
    DENIED_STRICT: _read_denied,
}
# Commands that no broker expects: only brokers send them.
COMMANDS_OF_BROKERS: Final = (APPROVED, DENIED, DENIED_STRICT)


def read_from_node(frames: Frames, at: int = 0) -> BrokerReads:
    read = BROKER_COMMANDS.get(_command(frames, at))
    if read is None:
        raise _unknown(frames, at)
    return read(frames, at, read_time_form(frames[at + 1]))


def read_as_node(frames: Frames, at: int = 0) -> NodeReads:
    read = NODE_COMMANDS.get(_command(frames, at))
    if read is None:
        raise _unknown(frames, at)
    return read(frames, at, read_time_form(frames[at + 1]))


def _command(frames: Frames, at: int) -> bytes:
    if len(frames) < at + 2:
        raise refuse("short", f"{len(frames) - at} frames; a command takes 2 or more")
    command = frames[at]
    return command if type(command) is bytes else EMPTY


def _unknown(frames: Frames, at: int) -> RemoteProtocolError:
    return refuse("unknown_command", f"command {_command(frames, at)[:16]!r} is not known here")


# -- writing ----------------------------------------------------------------------------------


def write_from_node(message: BrokerReads, now_s: float) -> list[Frame]:
    """What a node sends, to the broker or to a node that it calls directly."""
    match message:
        case Call(service, body, form):
            return write_call(check_name(service, "service name"), body, now_s, form)
        case Answer(body, form):
            return write_answer(body, now_s, form)
        case Registration(info, _, form):
            return [REGISTRATION, write_time(now_s, form), write_info(info)]
        case Update(name, changes, form):
            return [UPDATE, write_time(now_s, form), write_changes(name, changes)]
        case Ping(body, form):
            return [PING, write_time(now_s, form), *_some(body)]
        case InfoRequest(service, form):
            return [REQUEST, write_time(now_s, form), _checked_names(service)]
        case Heartbeat(name, form):
            return write_heartbeat(_checked_if_any(name), now_s, form)
        case Disconnect(name, form):
            return write_disconnect(now_s, form, _checked_if_any(name))
        case Pong(name, form):
            return [PONG, write_time(now_s, form), _checked_if_any(name)]
        case Acknowledge(form):
            return write_acknowledge(now_s, form)
        case Exit():
            raise LocalProtocolError("EXIT is read, to be refused; it is never sent")


def write_call(service: bytes, body: list[Frame], now_s: float, form: TimeForm) -> list[Frame]:
    return [REQUEST, write_time(now_s, form), service, *_some(body)]


def write_answer(body: list[Frame], now_s: float, form: TimeForm) -> list[Frame]:
    return [REPLY, write_time(now_s, form), *_some(body)]


def write_catalog(entries: Mapping[str, Any], now_s: float, form: TimeForm) -> list[Frame]:
    """The answer to an info request: entries by service name (see `dbp_info.catalog_entry`)."""
    return [REPLY, write_time(now_s, form), msgspec.json.encode(entries)]


def write_error(text: str, now_s: float, form: TimeForm) -> list[Frame]:
    """The answer to what cannot be answered: an inactive service, a call that failed or expired."""
    return [REPLY, write_time(now_s, form), msgspec.json.encode({"Error": text})]


def write_approved(
    config: Mapping[str, Any], now_s: float, form: TimeForm, strict: bool = False
) -> list[Frame]:
    head: list[Frame] = [APPROVED, write_time(now_s, form)]
    return [*head, msgspec.json.encode(config)] if config else _filled(head, strict)


def write_denied(
    reasons: Sequence[str], now_s: float, form: TimeForm, command: bytes = DENIED
) -> list[Frame]:
    """`command` is `DENIED`, or `DENIED_STRICT` for the document's own form."""
    texts: list[Frame] = [
        reason.encode("utf-8", "replace")[:MAX_REASON_BYTES] for reason in reasons[:MAX_REASONS]
    ]
    return [command, write_time(now_s, form), *_some(texts)]


def write_heartbeat(name: bytes, now_s: float, form: TimeForm) -> list[Frame]:
    return [HEARTBEAT, write_time(now_s, form), name]


def write_disconnect(now_s: float, form: TimeForm, name: bytes = EMPTY, strict: bool = False) -> list[Frame]:
    head: list[Frame] = [DISCONNECT, write_time(now_s, form)]
    return [*head, name] if name else _filled(head, strict)


def write_acknowledge(now_s: float, form: TimeForm, strict: bool = False) -> list[Frame]:
    return _filled([ACKNOWLEDGE, write_time(now_s, form)], strict)


def _filled(head: list[Frame], strict: bool) -> list[Frame]:
    return head if strict else [*head, EMPTY]


def _checked_if_any(name: bytes) -> bytes:
    return check_name(name, "service name") if name else EMPTY


def _checked_names(text: bytes) -> bytes:
    try:
        return _read_names(text)
    except RemoteProtocolError as error:
        raise LocalProtocolError(str(error)) from None


def _some(body: list[Frame]) -> list[Frame]:
    return body or [EMPTY]
