"""DBP's time frame: three forms in use, none of them ever used for logic.

The original implementation packs seconds since the epoch into a 4-byte float, which has steps of
128 seconds; the document does not say a form.  A peer is answered in the form that it used itself.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from polybus.wire.frames import Frame, refuse

# Seconds since the epoch with microseconds take 17 characters.
MAX_TIME_TEXT: Final = 32
_TEXT: Final = re.compile(rb"[0-9]+(\.[0-9]+)?")


class TimeForm(Enum):
    """How a peer writes the time."""

    FLOAT = "float"
    DOUBLE = "double"
    TEXT = "text"


def read_time_form(frame: Frame) -> TimeForm:
    """Which form a time frame has.

    Text of 4 or 8 characters is text: read as a float its bytes would be a moment in the first
    millisecond of 1970, so no real time is taken for another form.
    """
    if type(frame) is bytes and len(frame) <= MAX_TIME_TEXT:
        if _TEXT.fullmatch(frame):
            return TimeForm.TEXT
        if len(frame) == 4:
            return TimeForm.FLOAT
        if len(frame) == 8:
            return TimeForm.DOUBLE
    raise refuse("bad_time", "time must be a 4-byte float, an 8-byte double, or decimal text")


def write_time(now_s: float, form: TimeForm) -> bytes:
    return _WRITERS[form](now_s)


_WRITERS: Final[Mapping[TimeForm, Callable[[float], bytes]]] = {
    TimeForm.FLOAT: struct.Struct("<f").pack,
    TimeForm.DOUBLE: struct.Struct("<d").pack,
    TimeForm.TEXT: lambda now_s: b"%.6f" % now_s,
}
