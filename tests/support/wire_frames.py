"""Frames for the tests of the codecs: an opaque body frame, and strategies that make frames."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import strategies as st

from polybus.errors import RemoteProtocolError


class Opaque:
    """A body frame like the pump's: a length and `bytes()`, and a failure for anything else."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.copies = 0

    def __len__(self) -> int:
        return len(self._data)

    def __bytes__(self) -> bytes:
        self.copies += 1
        return self._data

    def __eq__(self, other: object) -> bool:
        raise AssertionError("a codec compared a body frame")

    __hash__ = None  # type: ignore[assignment]


names = st.text(
    st.characters(codec="utf-8", categories=["L", "N", "P", "S"], include_characters=" "), min_size=1
).map(lambda text: text.encode()[:255].decode("utf-8", "ignore").encode())
ids = st.binary(min_size=1, max_size=255)
bodies = st.lists(st.binary(max_size=64), min_size=1, max_size=4)


def refused(read: Callable[[], object]) -> str:
    """The reason with which the codec refuses."""
    with pytest.raises(RemoteProtocolError) as caught:
        read()
    return caught.value.reason


def broken(pieces: Sequence[bytes], longest: int = 8) -> st.SearchStrategy[list[Any]]:
    """Frames of anything, and of pieces of valid messages in any order, some of them opaque or damaged."""
    piece = st.sampled_from(list(pieces))
    damaged = st.builds(lambda frame, at, junk: frame[:at] + junk + frame[at:], piece, st.integers(0, 8), ids)
    frame = st.one_of(st.binary(max_size=300), piece, piece, damaged, piece.map(Opaque))
    return st.lists(frame, max_size=longest)


def never_crashes(read: Callable[[list[Any], int], object], frames: list[Any], at: int) -> None:
    """A decoder answers or refuses; any other exception passes through here and fails the test."""
    with contextlib.suppress(RemoteProtocolError):
        read(frames, at)
