"""A journal that is compacted while it is checked is checked again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polybus.errors import JournalMoved
from polybus.journal import verify as module
from polybus.journal.record import Row
from support.journals import NOON_US, Logs


@pytest.mark.parametrize(("moves", "is_given_up"), [(0, False), (1, False), (4, False), (5, True), (9, True)])
def test_it_is_begun_again_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int, is_given_up: bool
) -> None:
    logs = Logs(tmp_path)
    logs.write([Row("started", NOON_US)])
    run = module._Check.run
    tries: list[int] = []

    def moving(check: Any) -> Any:
        tries.append(1)
        if len(tries) <= moves:
            raise JournalMoved("a segment is gone")
        return run(check)

    monkeypatch.setattr(module._Check, "run", moving)
    if is_given_up:
        with pytest.raises(JournalMoved):
            module.verify(logs.journal)
    else:
        assert module.verify(logs.journal).is_well
    assert len(tries) == min(moves + 1, 5)
