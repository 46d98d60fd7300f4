"""How the pages of the reference are written: what all of them share."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Final

MADE: Final = "Made from the code by `make reference`; do not edit."


class Undocumented(Exception):
    """Something that a reader of the page would have to guess."""


def cell(text: str) -> str:
    """One line, safe inside a table."""
    return " ".join(text.split()).replace("|", "\\|")


def table(*columns: str) -> list[str]:
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]


def paragraphs(text: str) -> Iterator[str]:
    for part in inspect.cleandoc(text).split("\n\n"):
        yield from (part, "")
