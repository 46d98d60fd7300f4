"""Any history of transactions and restarts: SQLite holds what its twin in memory holds."""

from __future__ import annotations

import shutil

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from polybus.core.ledger import Line
from polybus.store import memory, shelves
from polybus.store.memory import MemoryStore
from polybus.store.sqlite import SqliteStore
from support.folders import quick_folder
from support.ledgers import KEYS, LINES, TOKENS, everything


class Histories(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.place = quick_folder()
        self.folder = self.place.__enter__()
        self.twin = MemoryStore()
        self.store = SqliteStore(self.folder)
        self.store.load()

    @rule(lines=st.lists(LINES, max_size=12))
    def write(self, lines: list[Line]) -> None:
        self.twin.write(lines)
        self.store.write(lines)

    @rule(lines=st.lists(LINES, max_size=5))
    def write_in_vain(self, lines: list[Line]) -> None:
        """A transaction that fails leaves nothing behind."""
        with pytest.raises(KeyError):
            self.store.write([*lines, "no line"])  # type: ignore[list-item]

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = SqliteStore(self.folder)
        assert everything(self.store) == everything(self.twin)

    @rule()
    def be_killed(self) -> None:
        """The files as they are while the broker runs, opened elsewhere: the log is not copied back yet."""
        with quick_folder() as other:
            for file in self.folder.iterdir():
                shutil.copy(file, other)
            copy = SqliteStore(other)
            assert everything(copy) == everything(self.twin)
            copy.close()

    @rule(token=TOKENS, key=KEYS, service=st.sampled_from(["", "email"]))
    def ask(self, token: bytes, key: str, service: str) -> None:
        assert self.store.outcome(token) == self.twin.outcome(token)
        assert self.store.dead_letter(token) == self.twin.dead_letter(token)
        assert self.store.runs(key, 5) == self.twin.runs(key, 5)
        assert self.store.dead(3, service, token) == self.twin.dead(3, service, token)

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        self.reopen()
        self.store.close()
        self.place.__exit__(None, None, None)


@pytest.fixture(autouse=True)
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (memory, shelves):
        monkeypatch.setattr(module, "RUNS_PER_SCHEDULE", 4)
        monkeypatch.setattr(module, "RUNS", 9)


def test_histories() -> None:
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
