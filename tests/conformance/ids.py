"""Every statement of the protocol documents, by id: what conformance tests prove.

`PENDING` are the statements whose feature is not there yet; a test may show a part of it (that the frames are
read), which does not make it true.  Who finishes the feature takes the id out of the table, and from then
on the statement passes or fails like any other.  A failing test fails it in any case.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from conformance import ids_dbp, ids_ebus, ids_emqp, ids_majordomo, ids_mdr

LEVELS: Final = {"M": "must", "S": "should", "Y": "may"}
_LEVEL: Final = re.compile(r"([MSY]): (.*)")


@dataclass(frozen=True)
class Statement:
    id: str
    # M, S or Y; empty where the document states a fact, such as frames.
    level: str
    text: str


def _read(ident: str, line: str) -> Statement:
    found = _LEVEL.fullmatch(line)
    return Statement(ident, found[1], found[2]) if found else Statement(ident, "", line)


STATEMENTS: Final[dict[str, Statement]] = {
    ident: _read(ident, line)
    for table in (ids_ebus.IDS, ids_emqp.IDS, ids_mdr.IDS, ids_majordomo.IDS, ids_dbp.IDS)
    for ident, line in table.items()
}

# What is missing, by id.
PENDING: Final[dict[str, str]] = {}
