"""Functions that a worker may be allowed to run, and some that it must never run."""

from __future__ import annotations

from os import getcwd
from subprocess import run as run_program

from polybus import Bus

bus = Bus()
bus.allow("support.shop:*")
bus.allow("support.shop:Till.*")

sold: list[str] = []
number = 42


def sell(what: str, count: int = 1) -> str:
    sold.append(what)
    return f"{count} {what}"


async def order(what: str) -> str:
    return what


def _private() -> None:
    raise AssertionError("nobody may call this")


class Till:
    limit = 5

    def __init__(self, start: int = 0) -> None:
        self.total = start

    def add(self, amount: int) -> int:
        self.total += amount
        return self.total

    def _empty(self) -> None:
        raise AssertionError("nobody may call this")

    @staticmethod
    def currency() -> str:
        return "EUR"


# What a module has merely imported is not its own.
__all__ = ["getcwd", "run_program"]
