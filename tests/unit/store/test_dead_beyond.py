"""The oldest dead letters that are too many, asked of every store."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from polybus.core.ledger import Accepted, Ended
from polybus.store.memory import MemoryStore
from polybus.store.port import Store
from polybus.store.sqlite import SqliteStore
from support.ledgers import job, letter, token


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_the_oldest_beyond_what_is_kept(kind: str, tmp_path: Path) -> None:
    store: Store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path)
    store.load()
    for number in range(5):
        store.write([Accepted(job(number))])
        store.write([Ended(token(number), None, letter(number))])
    tokens = [token(number) for number in range(5)]
    try:
        for kept, limit, found in [
            (5, 9, []),
            (6, 9, []),
            (4, 9, tokens[:1]),
            (0, 9, tokens),
            (0, 5, tokens),
            (0, 2, tokens[:2]),
            (3, 1, tokens[:1]),
            (3, 0, []),
        ]:
            assert store.dead_beyond(kept, limit) == found, (kept, limit)
    finally:
        store.close()


def test_a_store_that_nobody_has_loaded_yet_knows_them_too(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        for number in range(3):
            store.write([Accepted(job(number))])
            store.write([Ended(token(number), None, letter(number))])
    with closing(SqliteStore(tmp_path)) as store:
        assert store.dead_beyond(1, 9) == [token(0), token(1)]
