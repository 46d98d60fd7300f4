"""A stretch of a store's life, in a process of its own, for the recorder to watch.

    python life.py FOLDER SEED FIRST LAST (close | die) PRAGMA

Writes transactions FIRST to LAST of the life with that seed.  After each the number of transactions that are
promised to be on disk is written to the file `promised`, which the replay reads from the trace.  PRAGMA is
how the replay's own test makes a store that is careless.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from polybus.store.sqlite import SqliteStore
from support.ledgers import some_life

# The log is copied back after so many pages, so that a short life has many copies in it.
CHECKPOINT_PAGES = 40


def main() -> None:
    folder, seed, first, last, end = Path(sys.argv[1]), *map(int, sys.argv[2:5]), sys.argv[5]
    promised = os.open(folder / "promised", os.O_WRONLY | os.O_CREAT)
    store = SqliteStore(folder)
    store.load()
    assert store._db is not None
    store._db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    store._db.execute(f"PRAGMA {sys.argv[6]}")
    life = some_life(random.Random(seed), last)
    for number in range(first, last):
        store.write(life[number])
        os.pwrite(promised, (number + 1).to_bytes(8, "little"), 0)
    if end == "die":
        os._exit(0)
    store.close()


if __name__ == "__main__":
    main()
