"""A process that dies before any single step that changes something on disk, again and again.

def test_it_may_be_killed_anywhere(tmp_path, monkeypatch):
    for step in every_step():
        ...prepare a folder of its own...
        with step.dying(monkeypatch):
            work()
        ...what must hold now, and after one more run...
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

# What changes a disk, here.
STEPS: tuple[tuple[Any, str], ...] = (
    (Path, "rename"),
    (Path, "unlink"),
    (Path, "mkdir"),
    (Path, "rmdir"),
    (os, "fsync"),
    (pq, "write_table"),
    (pq.ParquetWriter, "write_table"),
)


class Killed(BaseException):
    """The process is gone at this point."""


class Step:
    """Death before the step with this number, counted from 0."""

    def __init__(self, number: int) -> None:
        self.number = number
        # Whether there were fewer steps than that.
        self.survived = False

    @contextlib.contextmanager
    def dying(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        left = self.number

        def mortal(function: Any) -> Any:
            def step(*args: Any, **more: Any) -> Any:
                nonlocal left
                if left == 0:
                    raise Killed
                left -= 1
                return function(*args, **more)

            return step

        with monkeypatch.context() as patch:
            for owner, name in STEPS:
                patch.setattr(owner, name, mortal(getattr(owner, name)))
            try:
                yield
                self.survived = True
            except Killed:
                pass


def every_step() -> Iterator[Step]:
    """Until one is survived."""
    number = 0
    while True:
        step = Step(number)
        yield step
        if step.survived:
            return
        number += 1
