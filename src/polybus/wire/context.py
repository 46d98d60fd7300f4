"""Where a request comes from, as W3C Trace Context says it, and the places where that fits into a dialect.

A context is a tuple of texts as eMQP's headers have them, none if nobody traces:

    ("traceparent:00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate:shop=1", …)

A header has no comma, and a tracestate is a list with commas; so each member of it is a header of its own,
which is what the recommendation allows (section 3.3.1.1).  It travels in one of three ways:

- in headers, where a dialect has them (eMQP, bridges);
- behind a request id that a client makes up itself (MDR, EBUS): `ID~TRACEPARENT`, or with `~TRACESTATE` too.
  An id is opaque to everybody: no peer can misread it, and it comes back as it went;
- in a frame of its own, to a worker that has said that it understands that.  It says so in its identity, the
  one thing that a worker may choose and that no broker looks into: `pb-0123456789abcdef+context`.

Whatever is not exactly a context is none: it is never an error, because nobody's work depends on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from polybus.wire.frames import MAX_ID_BYTES, Frame

Context = tuple[str, ...]
NO_CONTEXT: Final[Context] = ()

PARENT: Final = "traceparent"
STATE: Final = "tracestate"
_PARENT_ITEM: Final = "traceparent:"
_STATE_ITEM: Final = "tracestate:"
# Version 00 of the recommendation: version, trace id, parent id, flags.
_PARENT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
PARENT_BYTES: Final = 55
# Members that a tracestate may have (section 3.3.1.5), and bytes that everybody must pass on.
_MEMBERS: Final = 32
_STATE_BYTES: Final = 512
_MEMBER: Final = re.compile(
    r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
# Public eMQP workers look for these anywhere among the headers: a member that has them is left out.
_MISREAD: Final = ("timeout:", "reply-requested")
MARK: Final = b"~"
# No shorter id has a context.
SHORTEST_ID: Final = 1 + len(MARK) + PARENT_BYTES
# One frame with a context is no longer than this.
MAX_CONTEXT_BYTES: Final = 2048
_ANNOUNCED: Final = b"+context"
_IDENTITY: Final = re.compile(rb"pb-[0-9a-f]{16}\+context")
_OWN: Final = re.compile(rb"pb-[0-9a-f]{16}")


def new_context(parent: str, state: str = "") -> Context:
    """A context of the two headers; none if the first is not as it should be."""
    if _PARENT.fullmatch(parent) is None:
        return NO_CONTEXT
    members = _members(state.split(",")) if state else []
    return (_PARENT_ITEM + parent, *(_STATE_ITEM + member for member in members))


def _members(texts: Iterable[str]) -> list[str]:
    """The members of a tracestate that may be passed on; the whole list is dropped if one is broken."""
    members = [text.strip(" \t") for text in texts]
    members = [member for member in members if member]
    if len(members) > _MEMBERS or not all(map(_MEMBER.fullmatch, members)):
        return []
    members = [member for member in members if not any(word in member for word in _MISREAD)]
    # A list that is too long loses its last members, which are the oldest.
    while sum(map(len, members)) + len(members) - 1 > _STATE_BYTES:
        members.pop()
    return members


def as_headers(context: Context) -> dict[str, str]:
    """The two headers of a context, by name, as propagators take them."""
    headers: dict[str, str] = {}
    members = []
    for item in context:
        name, _, value = item.partition(":")
        if name == PARENT:
            headers[PARENT] = value
        else:
            members.append(value)
    if members:
        headers[STATE] = ",".join(members)
    return headers


def from_headers(headers: Mapping[str, str]) -> Context:
    return new_context(headers.get(PARENT, ""), headers.get(STATE, ""))


# -- among headers ----------------------------------------------------------------------------


def find_context(items: Iterable[str]) -> Context:
    """The context among other headers, if there is one."""
    parents = [item for item in items if item.startswith(_PARENT_ITEM)]
    if len(parents) != 1:
        return NO_CONTEXT
    states = [item.removeprefix(_STATE_ITEM) for item in items if item.startswith(_STATE_ITEM)]
    return new_context(parents[0].removeprefix(_PARENT_ITEM).strip(), ",".join(states))


def replace_context(items: tuple[str, ...], context: Context) -> tuple[str, ...]:
    """The same headers with another context."""
    return (*(item for item in items if not item.startswith((_PARENT_ITEM, _STATE_ITEM))), *context)


# -- in a request id --------------------------------------------------------------------------


def add_to_id(request_id: bytes, context: Context) -> bytes:
    """An id that says where its request comes from. What is too long for it is left out, state first."""
    headers = as_headers(context)
    if PARENT not in headers or MARK in request_id:
        return request_id
    named = request_id + MARK + headers[PARENT].encode()
    state = headers.get(STATE, "").encode()
    if state and len(named) + len(MARK) + len(state) <= MAX_ID_BYTES:
        return named + MARK + state
    return named if len(named) <= MAX_ID_BYTES else request_id


def find_in_id(request_id: bytes) -> Context:
    """The context in an id, if there is one."""
    if len(request_id) < SHORTEST_ID or MARK not in request_id:
        return NO_CONTEXT
    _, _, said = request_id.partition(MARK)
    parent, _, state = said.decode("ascii", "replace").partition(MARK.decode())
    return new_context(parent, state)


# -- in a frame -------------------------------------------------------------------------------


def announce(identity: bytes) -> bytes:
    """The identity of a worker that takes contexts."""
    return identity + _ANNOUNCED


def is_announced(identity: bytes) -> bool:
    return identity.endswith(_ANNOUNCED) and _IDENTITY.fullmatch(identity) is not None


def asks_again(identity: bytes) -> bool:
    """Whether it is a client of this library, which waits for the next broker with what is unanswered."""
    return _OWN.match(identity) is not None


def write_context(context: Context) -> bytes:
    return ",".join(context).encode()


def read_context(frame: Frame) -> Context:
    if len(frame) > MAX_CONTEXT_BYTES:
        return NO_CONTEXT
    return find_context(bytes(frame).decode("ascii", "replace").split(","))
