"""Bodies of public EBUS peers: a compressed BSON document with one field.

Texts are written by hand, so that requests and replies of the tests do not depend on the code that is tested.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

from polybus.wire import bson


def pack(text: str) -> bytes:
    raw = text.encode() + b"\0"
    fields = b"\x02l\0" + struct.pack("<i", len(raw)) + raw
    return zlib.compress(struct.pack("<i", len(fields) + 5) + fields + b"\0")


def unpack(data: bytes | None) -> Any:
    """The value; None for `null` and for nothing; whatever else it is, as it came."""
    if data is None or data == b"null":
        return None
    try:
        document = zlib.decompress(data)
    except zlib.error:
        return data
    return bson.decode(document)["l"]
