"""A broker that is not there: commands ask it, and it answers what the test says."""

from __future__ import annotations

import time
from typing import Any

import pytest


class Canned:
    """Stands in for `rows.ask`; remembers the questions."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.questions: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, admin: object, data_dir: object, do: str, **question: Any) -> Any:
        self.questions.append((do, question))
        return self.answers[do]


def stand_in(monkeypatch: pytest.MonkeyPatch, *modules: str) -> Canned:
    canned = Canned()
    for module in modules:
        monkeypatch.setattr(f"polybus.cli.{module}.ask", canned)
    # Times are shown as they are on this machine; tests run on many.
    monkeypatch.setattr("time.localtime", time.gmtime)
    monkeypatch.setenv("COLUMNS", "200")
    return canned
