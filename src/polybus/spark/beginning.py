"""What a pipeline that begins late finds twice: segments that were compacted and are still where they landed.

They stay there until everybody who follows the landing has read them, which others may not have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import PurePosixPath

from polybus.journal.retention import first_number, is_within, ranges_of


class Covered:
    """The segments that are in some compacted files, which are named from the folder of their date on."""

    def __init__(self, compacted: Iterable[str]) -> None:
        files: defaultdict[str, list[PurePosixPath]] = defaultdict(list)
        for name in map(PurePosixPath, compacted):
            files[_hour(name)].append(name)
        self._ranges = {hour: ranges_of(names) for hour, names in files.items()}

    def __contains__(self, segment: str) -> bool:
        path = PurePosixPath(segment)
        return is_within(first_number(path), self._ranges.get(_hour(path), []))


def _hour(path: PurePosixPath) -> str:
    return "/".join(path.parent.parts[-2:])
