"""Bodies as EBUS peers on Node write them: the BSON document {"l": value}, deflated (zlib).

To the broker a body is opaque.  It writes this form itself only where it answers upstream's queries for
services and workers.  A Python peer that talks to Node peers packs and unpacks its bodies with these
functions.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

from polybus.wire import bson
from polybus.wire.frames import EMPTY, refuse

# The only field.
FIELD: Final = "l"
# What Node peers send for "no value", depending on the version of their library.
NO_VALUE: Final = frozenset((EMPTY, b"null"))


def pack_bson(value: Any) -> bytes:
    """A value as EBUS peers on Node read it: `None`, `bool`, `int`, `float`, `str`, `list` or `dict`.

    Raises `LocalProtocolError` for anything else.
    """
    return zlib.compress(bson.encode({FIELD: value}))


def unpack_bson(body: bytes) -> Any:
    """The value of a body of an EBUS peer on Node; `None` if the body is empty or `null`.

    Raises `RemoteProtocolError` if the body has another form.
    """
    if body in NO_VALUE:
        return None
    inflater = zlib.decompressobj()
    try:
        # Bounded: a few bytes may inflate to any number.
        document = inflater.decompress(body, bson.MAX_BYTES + 1)
    except zlib.error as error:
        raise refuse("bad_body", f"the body is not deflated: {error}") from None
    if len(document) > bson.MAX_BYTES:
        raise refuse("too_long", f"the body inflates to more than {bson.MAX_BYTES} bytes")
    if not inflater.eof or inflater.unused_data:
        raise refuse("bad_body", "the deflated body is cut off, or more follows it")
    # Node leaves a field out whose value is undefined.
    return bson.decode(document).get(FIELD)
