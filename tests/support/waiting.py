"""Waiting for a condition: the only place in the tests that lets time pass, and never longer than it must."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from support.patience import patient

PATIENCE_S: Final = patient(30.0)
LOOK_EVERY_S: Final = 0.01

T = TypeVar("T")


def until(condition: Callable[[], T], what: str = "it", timeout_s: float = PATIENCE_S) -> T:
    """The first true value of a condition, looked at again and again."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {timeout_s:g} s; last seen: {value!r}")
        time.sleep(LOOK_EVERY_S)
