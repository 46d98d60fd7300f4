"""Lost writes: a disk that said a page was written, and kept the old one, or nothing.

Every row of an old page is whole, so its checksum tells nothing: what finds it is the count and the sum of
each table in the meta row.  A store is copied at two moments of its life; then each page of the later copy is
replaced by its earlier form, and by zeros.
"""

from __future__ import annotations

import random
from pathlib import Path

from polybus.core.ledger import Line
from polybus.store import files
from polybus.store.memory import MemoryStore
from polybus.store.sqlite import SqliteStore
from store_faults.bit_flips import Count, Original, judge_files, old_entries
from support.ledgers import everything, some_life

EARLIER, LATER, MORE = 15, 30, 4


def lose_each_page(workshop: Path, seed: int) -> Count:
    folder = workshop / "original"
    folder.mkdir()
    life = [old_entries(60), *some_life(random.Random(seed), LATER + MORE)]
    twin = MemoryStore()
    earlier = _live(folder, twin, life[:EARLIER])
    later = _live(folder, twin, life[EARLIER:LATER])
    expected = everything(twin)
    twin.write([line for lines in life[LATER:] for line in lines])
    source = Original(later, expected, everything(twin), life[LATER:])
    count = Count("pages lost")
    pages = len(later[files.DATABASE]) // files.PAGE_BYTES
    for number in range(pages):
        at = slice(number * files.PAGE_BYTES, (number + 1) * files.PAGE_BYTES)
        for kind, page in (("old", earlier[files.DATABASE][at]), ("zero", bytes(files.PAGE_BYTES))):
            if len(page) < files.PAGE_BYTES or page == later[files.DATABASE][at]:
                continue
            spoiled = bytearray(later[files.DATABASE])
            spoiled[at] = page
            changed = {**later, files.DATABASE: bytes(spoiled)}
            count.add(kind, f"page {number + 1} {kind}", judge_files(workshop / "spoiled", source, changed))
    return count


def _live(folder: Path, twin: MemoryStore, life: list[list[Line]]) -> dict[str, bytes]:
    store = SqliteStore(folder)
    for lines in life:
        store.write(lines)
        twin.write(lines)
    store.close()
    return {file.name: file.read_bytes() for file in folder.iterdir()}
